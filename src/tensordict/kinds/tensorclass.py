"""tensorclass: a typed facade. Fields are declared like those of a dataclass, and lie in a tensordict inside."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor
from typing_extensions import dataclass_transform

from tensordict.aliases import NO_DEFAULT, DeviceLike, NestedKey, SizeLike
from tensordict.core.core import Core
from tensordict.kinds.declared import Declared, Options, chosen, prepare

if TYPE_CHECKING:
    from typing_extensions import Self

    class Size:
        def __get__(self, owner: Any, kind: Any) -> torch.Size: ...
        def __set__(self, owner: Any, value: SizeLike | None) -> None: ...

    class Device:
        def __get__(self, owner: Any, kind: Any) -> torch.device | None: ...
        def __set__(self, owner: Any, value: DeviceLike) -> None: ...

    class DimNames:
        def __get__(self, owner: Any, kind: Any) -> list[str | None]: ...
        def __set__(self, owner: Any, value: Sequence[str | None] | None) -> None: ...


T = TypeVar("T")


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class Dataclass(Declared):
    """Tell type checkers that classes below have fields; the names in `TensorClass` are fields of all of them."""


class TensorClass(Dataclass):
    """Be the base of classes whose annotated fields hold tensors, and that behave like a tensordict.

    A subclass takes its fields as arguments, and ``batch_size``, ``device``, ``names`` and ``lock`` as keywords. In a
    field that is not annotated as a tensor, dicts and tuples stay what they are, and a number stands, when there are
    batch dims, for all rows as it is. Options go into the class statement, or in brackets
    (``TensorClass["nocast"]``); subclasses inherit them:

    - ``frozen=True`` refuses to set and delete fields; values can still change in place.
    - ``autocast=True`` casts values to the annotated type; ``nocast=True`` keeps them as the objects that they are.
    - ``tensor_only=True`` refuses fields, and values, that are no tensors or tensor collections.
    - ``shadow=True`` allows fields with the name of a word, which is then hidden from users of the class only.
    - ``cast_filter=f`` has `double()`, `to(dtype)` and their kin leave a leaf alone when ``f(key, leaf)`` is False.
    - ``kw_only=True`` makes all fields of this class keywords; this one is not inherited.

    Raises:
        AttributeError: if a field has the name of a word, such as ``keys`` or ``mean``, without ``shadow=True``.
        TypeError: for unknown options, or a field without a default after one with a default.

    Examples:
        >>> import torch
        >>> from tensordict import TensorClass
        >>> class Sample(TensorClass):
        ...     image: torch.Tensor
        ...     label: str = "none"
        >>> batch = Sample(image=torch.zeros(4, 8, 8), batch_size=[4])
        >>> batch[:2].image.shape, batch.label
        (torch.Size([2, 8, 8]), 'none')
    """

    if TYPE_CHECKING:  # arguments of every constructor, beside the fields
        batch_size: Size = dataclasses.field(default=Size(), kw_only=True)  # type: ignore[override]
        device: Device = dataclasses.field(default=Device(), kw_only=True)
        names: DimNames = dataclasses.field(default=DimNames(), kw_only=True)  # type: ignore[override]
        lock: dataclasses.InitVar[bool] = dataclasses.field(default=False, kw_only=True)

    _is_typed = True

    def get(self, key: NestedKey, default: Any = NO_DEFAULT, **kwargs: Any) -> Any:
        """Return the value of a field as the attribute gives it, or a default when there is no such field.

        Args:
            key: the name of a field, or a tuple for a key below it.
            default: returned when there is no such key; None if it is not given.
            **kwargs: how a lazy stack joins values of different shapes, as for `TensorDict.get`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            ...     label: str = "none"
            >>> Sample(torch.zeros(2), batch_size=[2]).get("label")
            'none'
        """
        found = super().get(key, default, **kwargs)
        return found._given() if isinstance(found, Core) and found._is_non_tensor and found is not default else found

    @classmethod
    def from_tensordict(cls, tensordict: Any, non_tensordict: dict[str, Any] | None = None) -> Self:
        """Return an instance around a tensordict, whose keys are the fields; nothing is copied.

        Args:
            tensordict: a tensordict with no keys but fields.
            non_tensordict: further fields and their values.

        Raises:
            KeyError: if a key is not a field.

        ``__post_init__`` is called, since the values come from outside.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass, TensorDict
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            >>> Sample.from_tensordict(TensorDict({"image": torch.zeros(2)}, [2])).batch_size
            torch.Size([2])
        """
        node = cls._around(tensordict)
        node._require_fields(tensordict._keys())
        for name, value in (non_tensordict or {}).items():
            node._store_field(name, value)
        node._begin()
        return node


@overload
def tensorclass(cls: type[T]) -> type[T]: ...
@overload
def tensorclass(
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    cast_filter: Callable[[Any, Tensor], Any] | None = None,
    kw_only: bool = False,
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def tensorclass(
    cls: Any = None,
    *,
    autocast: bool = False,
    frozen: bool = False,
    nocast: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    skip_post_init_on_rebuild: bool = False,
    cast_filter: Callable[[Any, Tensor], Any] | None = None,
    kw_only: bool = False,
) -> Any:
    """Make a class whose annotated fields hold tensors a tensorclass, as `TensorClass` does by inheritance.

    Args:
        cls: the class.
        autocast: cast values to the annotated type.
        frozen: refuse to set and delete fields.
        nocast: keep numbers and lists as the objects they are, instead of making tensors of them.
        shadow: allow fields with the name of a word, which is then hidden from users of the class only.
        tensor_only: refuse fields, and values, that are no tensors or tensor collections.
        skip_post_init_on_rebuild: kept for programs that pass it; what a word returns is never initialised again.
        cast_filter: called with key and leaf; words that cast to a dtype leave a leaf alone for which it is False.
        kw_only: make all fields keywords of the constructor.

    Raises:
        AttributeError: if a field has the name of a word, without ``shadow``.

    Examples:
        >>> import torch
        >>> from tensordict import tensorclass
        >>> @tensorclass
        ... class Sample:
        ...     image: torch.Tensor
        >>> Sample(image=torch.zeros(4, 8), batch_size=[4])[0].image.shape
        torch.Size([8])
    """
    said = Options(frozen, nocast, autocast, shadow, tensor_only, skip_post_init_on_rebuild, cast_filter)
    options = {name: value for name, value in said._asdict().items() if value}
    if cls is None:
        return functools.partial(_made, kw_only=kw_only, options=options)
    return _made(cls, kw_only, options)


_WORDS = (types.FunctionType, property, classmethod, staticmethod)


def _made(plain: Any, kw_only: bool, options: dict[str, Any]) -> Any:
    """Return the tensorclass of a plain class."""
    if not isinstance(plain, type):
        raise TypeError(f"tensorclass expects a class, got {plain!r}")
    if issubclass(plain, TensorClass):
        if options or kw_only:
            plain._options = chosen(plain, options)
            prepare(plain, kw_only)
        return plain
    names = inspect.get_annotations(plain)
    own = vars(plain)
    body: dict[str, Any] = {name: own.get(name) for name in ("__module__", "__doc__")}
    body |= {"__qualname__": plain.__qualname__, "__annotations__": dict(names)}
    body |= {name: own[name] for name in names if name in own}
    # what reads the class, such as doctest and sphinx, looks for its words in it, and not in the plain one behind it
    body |= {name: value for name, value in own.items() if isinstance(value, _WORDS) and not name.startswith("__")}
    if dataclasses.is_dataclass(plain):
        body |= {f.name: f for f in dataclasses.fields(plain) if f.name in names}
    elif "__init__" in own:
        body["__init__"] = own["__init__"]
    return type(plain.__name__, (plain, TensorClass), body, kw_only=kw_only, **options)


@functools.cache
def _of_dataclass(plain: Any, options: Options) -> Any:
    """Return the tensorclass of a dataclass: one for each set of options, so that instances are of one class."""
    made = _made(plain, False, options._asdict())
    # by the name of the class, others find the dataclass
    made.__reduce__ = lambda self: (_unpickled, (plain, options, self.__getstate__()))
    return made


def _unpickled(plain: Any, options: Options, state: dict[str, Any]) -> Any:
    node = object.__new__(_of_dataclass(plain, options))
    node.__setstate__(state)
    return node


def from_dataclass(
    obj: Any,
    *,
    dest_cls: Any = None,
    auto_batch_size: bool = False,
    batch_dims: int | None = None,
    batch_size: SizeLike | None = None,
    frozen: bool = False,
    autocast: bool = False,
    nocast: bool = False,
    inplace: bool = False,
    shadow: bool = False,
    tensor_only: bool = False,
    device: DeviceLike = None,
) -> Any:
    """Return a tensorclass of a dataclass, or an instance of one that holds the values of an instance.

    The tensorclass derives from the dataclass and keeps its methods. Nested dataclasses become tensorclasses too.

    Args:
        obj: a dataclass, or an instance of one.
        dest_cls: the tensorclass to make an instance of, instead of one that derives from the dataclass.
        auto_batch_size: find the longest batch size that all values share.
        batch_dims: with ``auto_batch_size``, at most so many dims.
        batch_size: the batch size.
        frozen: refuse to set and delete fields.
        autocast: cast values to the annotated type.
        nocast: keep numbers and lists as the objects they are.
        inplace: kept for programs that pass it; a class cannot become another, so use the one that is returned.
        shadow: allow fields with the name of a word.
        tensor_only: refuse fields, and values, that are no tensors or tensor collections.
        device: the device.

    Raises:
        TypeError: if it is no dataclass.

    Examples:
        >>> import dataclasses, torch
        >>> from tensordict import from_dataclass
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: torch.Tensor
        ...     def norm(self):
        ...         return self.x.norm()
        >>> from_dataclass(Point(torch.tensor([3.0, 4.0])), auto_batch_size=True).norm()
        tensor(5.)
    """
    if isinstance(obj, Core) or not dataclasses.is_dataclass(obj):
        raise TypeError(f"from_dataclass expects a dataclass or an instance of one, got {obj!r}")
    options = Options(frozen, nocast, autocast, shadow, tensor_only)
    if isinstance(obj, type):
        return _of_dataclass(obj, options)
    kind = _of_dataclass(type(obj), options) if dest_cls is None else dest_cls
    if not is_tensorclass(kind):
        raise TypeError(f"dest_cls must be a tensorclass, got {dest_cls!r}")
    node = kind._around(kind._dense_kind({}, batch_size, device))
    for field in dataclasses.fields(obj):
        value = getattr(obj, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, (Core, type)):
            value = from_dataclass(value, **dict.fromkeys((n for n in options._fields if getattr(options, n)), True))
        node._store_field(field.name, value)
    if auto_batch_size or (batch_dims is not None and batch_size is None):
        node._inner.auto_batch_size_(batch_dims)
    return node


def is_tensorclass(obj: Any) -> bool:
    """Tell whether an object, or a class, is a tensorclass.

    Args:
        obj: any object or class.

    Examples:
        >>> from tensordict import TensorDict, is_tensorclass
        >>> is_tensorclass(TensorDict({}))
        False
    """
    return issubclass(obj if isinstance(obj, type) else type(obj), TensorClass)


Core._typed_kind = from_dataclass
