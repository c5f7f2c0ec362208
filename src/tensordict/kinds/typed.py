"""TypedTensorDict: a tensordict whose keys a class declares, checked when it is made and when keys are set."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import dataclass_transform

from tensordict.core.core import Core
from tensordict.kinds.collection import TensorDictBase
from tensordict.kinds.declared import Declared, annotated, as_annotated, fits

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensordict.kinds.tensorclass import Device, DimNames, Size


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(dataclasses.field,))
class Schema(Declared):
    """Tell type checkers that classes below have fields, all of them keywords."""


class TypedTensorDict(Schema, TensorDictBase):
    """Be the base of tensordicts whose keys are declared, with their types, as the fields of a class.

    A subclass takes its keys as keywords, or one mapping, and ``batch_size``, ``device``, ``names`` and ``lock`` as
    further keywords. It has all the words of a tensordict, and reads and sets keys as attributes too. A key is optional
    when it has a default, or is annotated as ``NotRequired``; a value must be a tensor or a tensor collection where the
    annotation says so. Subclasses add keys. The options of `TensorClass` go into the class statement here too.

    Raises:
        AttributeError: if a key has the name of a word, without ``shadow=True``; or when an optional key is read as an
            attribute and has no value.
        TypeError: if a required key is missing, an unknown one is given, or a value is not what is annotated.
        KeyError: when an unknown key is set later.

    Examples:
        >>> import torch
        >>> from tensordict import TypedTensorDict
        >>> class State(TypedTensorDict):
        ...     position: torch.Tensor
        ...     note: str = "none"
        >>> state = State(position=torch.zeros(4, 3), batch_size=[4])
        >>> state[0].position.shape, (state + 1)["position"].sum()
        (torch.Size([3]), tensor(12.))
    """

    if TYPE_CHECKING:  # arguments of every constructor, beside the keys
        batch_size: Size = dataclasses.field(default=Size(), kw_only=True)  # type: ignore[override]
        device: Device = dataclasses.field(default=Device(), kw_only=True)
        names: DimNames = dataclasses.field(default=DimNames(), kw_only=True)  # type: ignore[override]
        lock: dataclasses.InitVar[bool] = dataclasses.field(default=False, kw_only=True)

    _is_typed = False  # it joins tensordicts that have its keys
    _strict = True
    __required_keys__: ClassVar[frozenset[str]] = frozenset()
    __optional_keys__: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        for name, hint in inspect.get_annotations(cls).items():
            if "NotRequired[" in str(hint) and name not in vars(cls):
                setattr(cls, name, None)
        super().__init_subclass__(kw_only=True, **options)
        free = dataclasses.MISSING
        needed = {name for name, f in cls._fields.items() if f.default is free and f.default_factory is free}
        cls.__required_keys__, cls.__optional_keys__ = frozenset(needed), frozenset(cls._fields) - needed

    @classmethod
    def _bound(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not args:
            return args, kwargs
        if len(args) > 1 or not isinstance(args[0], (Mapping, Core)):
            raise TypeError(f"{cls.__name__} takes its keys as keywords or as one mapping, got {args!r}")
        (source,) = args
        if isinstance(source, Mapping):
            return (), {**source, **kwargs}
        said = {"batch_size": source._meta.batch, "device": source._meta.device, "names": source._meta.names}
        return (), {**said, **dict(source._raw_pairs()), **kwargs}

    def _store_field(self, name: str, value: Any) -> None:
        needed = name in self._shows.__required_keys__ and type(None) not in annotated(self._shows, name)
        if value is None and needed:
            raise TypeError(f"{self._shows.__name__} requires a value for the key {name!r}, got None")
        super()._store_field(name, value)

    def _field_value(self, name: str) -> Any:
        if name not in self._inner._keys():
            raise AttributeError(f"{type(self).__name__} declares the key {name!r}, which has no value here")
        return as_annotated(self._shows, name, super()._field_value(name))

    @classmethod
    def from_tensordict(cls, td: Any, *, check: bool = True) -> Self:
        """Return an instance around a tensordict that has the declared keys; nothing is copied.

        Args:
            td: a tensordict.
            check: raise unless its keys and values are those that are declared.

        Raises:
            TypeError: if a required key is missing, or a value is not what is annotated.
            KeyError: if there is an unknown key.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict, TypedTensorDict
            >>> class State(TypedTensorDict):
            ...     position: torch.Tensor
            >>> State.from_tensordict(TensorDict({"position": torch.zeros(2)}, [2])).position
            tensor([0., 0.])
        """
        node = cls._around(td)
        if check:
            node._require_fields(td._keys())
            missing = sorted(cls.__required_keys__ - set(td._keys()))
            if missing:
                raise TypeError(f"{cls.__name__} requires values for the keys {missing}, the tensordict has none")
            for key, child in td._looks():
                if not fits(cls, key, as_annotated(cls, key, child)):
                    raise TypeError(f"{cls.__name__} expects a {cls._fields[key].type!r} at key {key!r}, got {child!r}")
        node._begin()
        return node
