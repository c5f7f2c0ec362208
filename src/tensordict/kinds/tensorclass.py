"""tensorclass: a typed facade. Fields are declared like those of a dataclass, and lie in a tensordict inside."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

import torch
from torch import Tensor
from torch.serialization import add_safe_globals
from torch.utils._pytree import GetAttrKey, register_pytree_node
from typing_extensions import dataclass_transform

from tensordict import errors
from tensordict.aliases import DeviceLike, NestedKey, SizeLike
from tensordict.core.core import Core
from tensordict.keys import unravel_key_to_tuple
from tensordict.kinds.facade import Facade
from tensordict.ops.store import LOADERS, node_home, open_room
from tensordict.storage.base import Record

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensordict.kinds.dense import TensorDict

    class _Size:
        def __get__(self, owner: Any, kind: Any) -> torch.Size: ...
        def __set__(self, owner: Any, value: SizeLike | None) -> None: ...

    class _Device:
        def __get__(self, owner: Any, kind: Any) -> torch.device | None: ...
        def __set__(self, owner: Any, value: DeviceLike) -> None: ...

    class _Names:
        def __get__(self, owner: Any, kind: Any) -> list[str | None]: ...
        def __set__(self, owner: Any, value: Sequence[str | None] | None) -> None: ...


T = TypeVar("T")

_REGISTERED: dict[str, Any] = {}
"""Every tensorclass by "module.QualName": the only classes that a saved folder can name."""


class _Options(typing.NamedTuple):
    frozen: bool = False
    nocast: bool = False
    autocast: bool = False


class _Field(property):
    """A field of a tensorclass: reads and writes a key of the tensordict inside."""


def _field(name: str) -> _Field:
    def read(self: Any) -> Any:
        return self._field_value(name)

    def write(self: Any, value: Any) -> None:
        self._set_field(name, value)

    def drop(self: Any) -> None:
        self._set_field(name, None)

    return _Field(read, write, drop)


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class Declared(Facade):
    """Tell type checkers that classes below have fields; the names in `TensorClass` are fields of all of them."""


class TensorClass(Declared):
    """Be the base of classes whose annotated fields hold tensors, and that behave like a tensordict.

    A subclass takes its fields as arguments, and ``batch_size``, ``device`` and ``names`` as keywords. A number in a
    field that is not annotated as a tensor stands, when there are batch dims, for all rows as it is. Options go into
    the class statement: ``frozen=True`` refuses assignments, ``nocast=True`` keeps numbers and lists as the objects
    they are, ``autocast=True`` casts values to the annotated type.

    Raises:
        TypeError: if a field has the name of a word, such as ``keys`` or ``mean``.

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
        batch_size: _Size = dataclasses.field(default=_Size(), kw_only=True)  # type: ignore[override]
        device: _Device = dataclasses.field(default=_Device(), kw_only=True)
        names: _Names = dataclasses.field(default=_Names(), kw_only=True)  # type: ignore[override]
        lock: dataclasses.InitVar[bool] = dataclasses.field(default=False, kw_only=True)

    _fields: ClassVar[dict[str, Any]] = {}
    _options: ClassVar[_Options] = _Options()

    def __init_subclass__(cls, **options: Any) -> None:
        unknown = set(options) - set(_Options._fields)
        if unknown:
            raise TypeError(f"{cls.__name__} got unknown options {sorted(unknown)}; known are {list(_Options._fields)}")
        super().__init_subclass__()
        cls._options = cls._options._replace(**options)
        _prepare(cls)
        _REGISTERED[f"{cls.__module__}.{cls.__qualname__}"] = cls
        register_pytree_node(cls, _parts, cls._of_parts, flatten_with_keys_fn=_parts_with_keys)
        add_safe_globals([cls])  # unpickling one runs nothing but its own `__setstate__`

    def __class_getitem__(cls, options: Any) -> Any:
        names = (options,) if isinstance(options, str) else options
        if isinstance(names, tuple) and all(isinstance(name, str) for name in names):
            return type(cls.__name__, (cls,), {"__module__": cls.__module__}, **dict.fromkeys(names, True))
        return cls

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        node = object.__new__(cls)
        if cls.__init__ is not TensorClass.__init__:  # a class with an `__init__` of its own sets its fields there
            object.__setattr__(node, "_inner", cls._dense_kind({}))
        return node

    def __init__(
        self,
        *args: Any,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        names: Sequence[str | None] | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        object.__setattr__(self, "_inner", self._dense_kind({}, batch_size, device, names))
        for name, value in _bind(type(self), args, kwargs).items():
            self._store_field(name, value)
        if hasattr(self, "__post_init__"):
            self.__post_init__()
        if lock:
            self.lock_()

    # ---- fields

    def _field_value(self, name: str) -> Any:
        inner = self._inner
        try:
            child = inner._get(name)
        except errors.MissingKey:
            return None
        return inner._shown(child) if isinstance(child, Tensor) else child._given()

    def _set_field(self, name: str, value: Any) -> None:
        if self._options.frozen:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}: {type(self).__name__} is frozen")
        self._gate("set field {!r}", name)
        self._store_field(name, value)

    def _store_field(self, name: str, value: Any) -> None:
        inner = self._inner
        if value is None:
            if name in inner._keys():
                inner._del(name)
            return
        inner._set(name, self._door(name, value))

    def _door(self, key: str, value: Any) -> Any:
        inner, options = self._inner, self._options
        self._require_fields([key])
        if options.autocast:
            value = _cast(type(self), key, value)
        kept = (options.nocast or options.autocast) and not isinstance(value, (Tensor, Core, dict))
        if kept or (isinstance(value, Number) and inner._meta.batch and "Tensor" not in str(self._fields[key].type)):
            return inner._non_tensor_kind(value, inner._meta.batch, inner._meta.device)
        return inner._door(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        self._require_fields([name])

    @classmethod
    def _require_fields(cls, keys: Iterable[str]) -> None:
        unknown = [key for key in keys if key not in cls._fields]
        if unknown:
            shown = f"field {unknown[0]!r}" if len(unknown) == 1 else f"fields {unknown}"
            raise AttributeError(f"{cls.__name__} has no {shown}; its fields are {list(cls._fields)}")

    def rename_key_(self, old_key: NestedKey, new_key: NestedKey, safe: bool = False) -> Self:
        """Rename a key, where the new one is a field or below one; arguments as for any tensor collection.

        Raises:
            AttributeError: if there is no such field.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass
            >>> class Pair(TensorClass):
            ...     one: torch.Tensor
            ...     two: torch.Tensor | None = None
            >>> Pair(torch.ones(2)).rename_key_("one", "two").two
            tensor([1., 1.])
        """
        self._require_fields(unravel_key_to_tuple(new_key)[:1])
        return super().rename_key_(old_key, new_key, safe)

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        changed = self._inner._restructure(call)
        self._require_fields(changed._keys())
        return self._wrap(changed)

    def _untyped(self) -> Any:
        return self._inner

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the fields, as `dataclasses.fields` does.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            >>> [field.name for field in Sample.fields()]
            ['image']
        """
        return tuple(cls._fields.values())

    @classmethod
    def from_tensordict(cls, tensordict: Any, non_tensordict: dict[str, Any] | None = None) -> Self:
        """Return an instance around a tensordict, whose keys are the fields; nothing is copied.

        Args:
            tensordict: a tensordict with no keys but fields.
            non_tensordict: further fields and their values.

        Raises:
            KeyError: if a key is not a field.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass, TensorDict
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            >>> Sample.from_tensordict(TensorDict({"image": torch.zeros(2)}, [2])).batch_size
            torch.Size([2])
        """
        extra = set(tensordict._keys()) - set(cls._fields)
        if extra:
            raise KeyError(f"{cls.__name__} has no fields {sorted(extra)}; its fields are {list(cls._fields)}")
        node = cls._around(tensordict)
        for name, value in (non_tensordict or {}).items():
            node._store_field(name, value)
        return node

    # ---- facade

    @classmethod
    def _of_parts(cls, parts: Any, context: None) -> Self:
        (inner,) = parts
        return cls._around(inner)

    @classmethod
    def _around(cls, inner: Any) -> Self:
        node = object.__new__(cls)
        object.__setattr__(node, "_inner", inner)
        return node

    def _wrap(self, node: Any) -> Self:
        return self._around(node)

    @classmethod
    def _unwrapped(cls, items: Sequence[Any]) -> list[Any]:
        for item in items:
            if not isinstance(item, TensorClass) or not _alike(type(items[0]), type(item)):
                raise TypeError(
                    f"cannot join a {type(items[0]).__name__} and a {type(item).__name__}: expected one class, "
                    f"or a base and a subclass with the same fields"
                )
        return [item._inner for item in items]

    @classmethod
    def _received(cls, node: Any) -> Any:
        if isinstance(node, cls):
            return node
        return cls.from_tensordict(node._inner if isinstance(node, TensorClass) else node)

    def _place(self, room: Any, kind: str, fill: bool) -> Self:
        inner = self._inner._place(room.child("_tensordict"), kind, fill)
        room.meta = Record("tensorclass", None, None, cls=f"{type(self).__module__}.{type(self).__qualname__}")
        inner._home = node_home(room, kind)
        return self._wrap(inner)

    @classmethod
    def _open(cls, room: Any) -> Any:
        inner = open_room(room.child("_tensordict"))
        inner._home = node_home(room, "memmap")
        found = _REGISTERED.get(room.meta.cls)
        # a class that this program has not defined cannot be named by a file: its fields are still there
        return inner if found is None else found._around(inner)

    def to_tensordict(self, *, retain_none: bool | None = None) -> TensorDict:
        """Return a copy as a plain tensordict.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            >>> type(Sample(image=torch.zeros(2)).to_tensordict()).__name__
            'TensorDict'
        """
        return self._inner.to_tensordict(retain_none=retain_none)  # type: ignore[no-any-return]

    def _brief(self, depth: int, level: int) -> str:
        return type(self).__name__ + super()._brief(depth, level)

    def _peek(self, key: str) -> Any:
        return self._inner._peek(key) if key in self._inner._keys() else None

    def _shown_keys(self) -> list[str]:
        return list(self._fields)


def _parts(node: Any) -> tuple[list[Any], None]:
    """Return what a tensorclass is made of, for `torch.utils._pytree`."""
    return [node._inner], None


def _parts_with_keys(node: Any) -> tuple[list[Any], None]:
    return [(GetAttrKey("_inner"), node._inner)], None


def _prepare(cls: Any) -> None:
    """Collect the fields of a class as a dataclass does, and put properties in their place."""
    annotations = inspect.get_annotations(cls)
    taken = [name for name in annotations if hasattr(TensorClass, name)]
    if taken:
        raise TypeError(
            f"{cls.__name__} cannot have fields named {taken}: these are words of every tensor collection; rename them"
        )
    for name in annotations:
        if isinstance(getattr(cls, name, None), _Field) and name not in cls.__dict__:
            setattr(cls, name, dataclasses.field())  # a field that is declared again has no default of its own
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    cls._fields = {field.name: field for field in dataclasses.fields(cls)}
    _check_order(cls)
    for name in cls._fields:
        setattr(cls, name, _field(name))


def _check_order(cls: Any) -> None:
    """Raise where a field without a default follows one with a default, as a dataclass does."""
    seen = None
    for field in cls._fields.values():
        if not field.init or field.kw_only:
            continue
        if _has_default(field):
            seen = field.name
        elif seen is not None:
            raise TypeError(
                f"{cls.__name__}: the field {field.name!r} has no default but follows {seen!r}, which has one; "
                f"give it a default, or declare it earlier"
            )


def _bind(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the value of each field for a call, as Python would bind it."""
    positional = [f.name for f in cls._fields.values() if f.init and not f.kw_only]
    if len(args) > len(positional):
        raise TypeError(f"{cls.__name__} takes {len(positional)} positional arguments, got {len(args)}")
    values = dict(zip(positional, args, strict=False))
    for name, value in kwargs.items():
        if name in values:
            raise TypeError(f"{cls.__name__} got multiple values for field {name!r}")
        if name not in cls._fields:
            raise TypeError(f"{cls.__name__} has no field {name!r}; its fields are {list(cls._fields)}")
        values[name] = value
    missing = [name for name, field in cls._fields.items() if name not in values and not _has_default(field)]
    if missing:
        raise TypeError(f"{cls.__name__} is missing the fields {missing}")
    return {name: values[name] if name in values else _default(cls._fields[name]) for name in cls._fields}


def _has_default(field: Any) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(field: Any) -> Any:
    return field.default if field.default is not dataclasses.MISSING else field.default_factory()


def _alike(one: type, other: type) -> bool:
    """Tell whether two tensorclasses can be joined: the same, or base and subclass with the same fields."""
    if one is other:
        return True
    related = issubclass(one, other) or issubclass(other, one)
    return related and set(one._fields) == set(other._fields)  # type: ignore[attr-defined]


def _cast(cls: Any, name: str, value: Any) -> Any:
    """Return a value as the annotated type of its field."""
    hints = typing.get_type_hints(cls)
    wanted = hints.get(name)
    if wanted is Tensor and not isinstance(value, (Tensor, Core)):
        return torch.as_tensor(value)
    if isinstance(wanted, type) and issubclass(wanted, TensorClass) and isinstance(value, dict):
        return wanted(**value)
    if wanted in (int, float, str, bool, complex) and not isinstance(value, wanted):
        return wanted(value)
    return value


@overload
def tensorclass(cls: type[T]) -> type[T]: ...
@overload
def tensorclass(
    *, frozen: bool = False, nocast: bool = False, autocast: bool = False
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def tensorclass(cls: Any = None, *, frozen: bool = False, nocast: bool = False, autocast: bool = False) -> Any:
    """Make a class whose annotated fields hold tensors a tensorclass, as `TensorClass` does by inheritance.

    Args:
        cls: the class.
        frozen: refuse assignments to fields.
        nocast: keep numbers and lists as the objects they are, instead of making tensors of them.
        autocast: cast values to the annotated type.

    Examples:
        >>> import torch
        >>> from tensordict import tensorclass
        >>> @tensorclass
        ... class Sample:
        ...     image: torch.Tensor
        >>> Sample(image=torch.zeros(4, 8), batch_size=[4])[0].image.shape
        torch.Size([8])
    """

    def make(plain: Any) -> Any:
        body = {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "__annotations__": dict(inspect.get_annotations(plain)),
        }
        if issubclass(plain, TensorClass):  # its fields are in place already
            plain._options = plain._options._replace(frozen=frozen, nocast=nocast, autocast=autocast)
            return plain
        body |= {name: plain.__dict__[name] for name in body["__annotations__"] if name in plain.__dict__}
        if dataclasses.is_dataclass(plain):  # what it generated knows nothing of a batch size
            body |= {name: getattr(TensorClass, name) for name in ("__init__", "__repr__", "__eq__")}
            body |= {f.name: f for f in dataclasses.fields(plain) if f.default_factory is not dataclasses.MISSING}
        return type(plain.__name__, (plain, TensorClass), body, frozen=frozen, nocast=nocast, autocast=autocast)

    return make if cls is None else make(cls)


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


LOADERS["tensorclass"] = TensorClass._open
