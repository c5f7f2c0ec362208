"""What tensorclasses and typed tensordicts share: keys that a class declares as fields, over a node inside.

`dataclasses` reads the annotations and writes the constructor; here properties take the place of the fields, and a
value that is set passes a door that knows what its field is annotated with.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor
from torch.serialization import add_safe_globals
from torch.utils._pytree import GetAttrKey, register_pytree_node
from typing_extensions import get_type_hints

from tensordict import errors
from tensordict.aliases import NestedKey
from tensordict.core.core import PRESENTED, Core
from tensordict.core.locks import filling
from tensordict.indexing import Plan
from tensordict.keys import is_nested_key, unravel_key_to_tuple
from tensordict.kinds.facade import Facade
from tensordict.ops.cast import Cast
from tensordict.ops.store import LOADERS, node_home, open_room
from tensordict.storage.base import Record

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensordict.kinds.dense import TensorDict

_REGISTERED: dict[str, Any] = {}
"""Every class with fields by "module.QualName": the only classes that a saved folder can name."""


class Options(typing.NamedTuple):
    """What a class statement, or the decorator, says about a class; subclasses inherit it."""

    frozen: bool = False
    nocast: bool = False
    autocast: bool = False
    shadow: bool = False
    tensor_only: bool = False
    skip_post_init_on_rebuild: bool = False
    cast_filter: Callable[[Any, Tensor], Any] | None = None


@dataclasses.dataclass
class _Said:
    """What every constructor takes beside the fields."""

    batch_size: dataclasses.InitVar[Any] = None
    device: dataclasses.InitVar[Any] = None
    names: dataclasses.InitVar[Any] = None


_SAID: dict[str, Any] = _Said.__dataclass_fields__


class _Known:
    """What `dataclasses` knows of a class, and of an instance its batch size too, so that `replace` keeps it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __get__(self, node: Any, kind: Any) -> dict[str, Any]:
        return self.fields if node is None else {**_SAID, **self.fields}


class _Field(property):
    """A field: reads and writes a key of the node inside."""


def _field(name: str) -> _Field:
    def read(self: Any) -> Any:
        return self._field_value(name)

    def write(self: Any, value: Any) -> None:
        Facade._gate(self, "set field {!r}", name)
        self._store_field(name, value)

    def drop(self: Any) -> None:
        self._gate("delete field {!r}", name)
        self._store_field(name, None)

    return _Field(read, write, drop)


def _constructor(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that makes the node inside, and has the one that `dataclasses` wrote fill it."""
    found = inspect.signature(init)
    known = frozenset(found.parameters)
    meta = [name for name in _SAID if name not in known]
    lockable = "lock" not in known

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = self._bound(args, kwargs)
        said = {name: kwargs.pop(name) for name in meta if name in kwargs}
        lock = lockable and kwargs.pop("lock", False)
        if not known.issuperset(kwargs):
            shown = ", ".join(repr(name) for name in kwargs if name not in known)
            raise TypeError(f"{type(self).__name__} has no field {shown}; its fields are {list(self._fields)}")
        object.__setattr__(self, "_inner", self._inside(self._dense_kind({}, **said)))
        init(_Filler(self) if self._options.frozen else self, *args, **kwargs)
        if lock:
            self.lock_()

    made: Any = functools.update_wrapper(__init__, init)
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in (*_SAID, "lock")]
    more = [p for p in more if p.name not in found.parameters]
    made.__signature__ = found.replace(parameters=[*found.parameters.values(), *more])
    return made  # type: ignore[no-any-return]


class _Filler:
    """What the constructor of a frozen class writes to: its fields, past the refusal."""

    def __init__(self, node: Any) -> None:
        object.__setattr__(self, "_node", node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self._node, name, value)


def _own_constructor(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of a class's own, which finds a node inside to set fields of."""

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_inner" not in self.__dict__:
            object.__setattr__(self, "_inner", self._inside(self._dense_kind({})))
        init(self, *args, **kwargs)

    return __init__


def _nothing(self: Any) -> None:
    """Do what `dataclasses` writes for a class without fields."""


class Declared(Facade):
    """Requires: what facades do. Gives: fields, options, and the class to whatever comes out."""

    _fields: ClassVar[dict[str, Any]] = {}
    _types: ClassVar[dict[str, tuple[Any, ...]]] = {}  # what fields are annotated with, as far as it can be read
    _options: ClassVar[Options] = Options()
    _own_init: ClassVar[bool] = False  # the class, or a base of it, has a constructor of its own
    _strict: ClassVar[bool] = False  # values must be what their fields are annotated with
    _shows: Any  # the class that users see

    _fill: ClassVar[Any] = _constructor(_nothing)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._fill(*args, **kwargs)

    def __init_subclass__(cls, *, kw_only: bool = False, **options: Any) -> None:
        super().__init_subclass__()
        cls._shows = cls
        cls._options = chosen(cls, options)
        prepare(cls, kw_only)
        register_pytree_node(cls, _parts, cls._of_parts, flatten_with_keys_fn=_parts_with_keys)
        add_safe_globals([cls])  # unpickling one runs nothing but its own `__setstate__`

    def __class_getitem__(cls, options: Any) -> Any:
        if getattr(cls, "__parameters__", ()):
            return super().__class_getitem__(options)  # type: ignore[misc]
        names = map(str, options if isinstance(options, tuple) else (options,))
        return type(cls.__name__, (cls,), {"__module__": cls.__module__}, **dict.fromkeys(names, True))

    @classmethod
    def _bound(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the constructor as `dataclasses` wants them."""
        return args, kwargs

    # ---- fields

    def _field_value(self, name: str) -> Any:
        try:
            return self._inner._read_one(name)
        except errors.MissingKey:
            return None

    def _store_field(self, name: str, value: Any) -> None:
        """Set a field; a dict stays the object it is, unless the field is annotated as a tensor collection."""
        inner = self._inner
        if value is not None:
            inner._set(name, self._child(name, value, dict))
        elif name in inner._keys():
            inner._del(name)

    def _door(self, key: str, value: Any) -> Any:
        return self._child(key, value, ())

    def _child(self, key: str, value: Any, objects: Any) -> Any:
        """Return a value as a child of mine; values of the classes in `objects` may stay what they are."""
        kind, inner = self._shows, self._inner
        if key not in kind._fields:
            self._require_fields([key])
        if kind._options.autocast or kind._strict:
            value = as_annotated(kind, key, value)
        if not isinstance(value, (Tensor, Core)) and self._is_object(key, value, objects):
            return inner._non_tensor_kind(value, inner._meta.batch, inner._meta.device)
        child = inner._door(key, value)
        if (kind._strict or kind._options.tensor_only) and not fits(kind, key, child):
            raise TypeError(
                f"cannot set field {key!r} of {kind.__name__}: expected {kind._fields[key].type!r}, got {value!r}"
            )
        return child

    def _is_object(self, key: str, value: Any, objects: Any) -> bool:
        """Tell whether a value is kept as it is, one object for all rows."""
        options = self._shows._options
        if options.tensor_only:
            return False
        if isinstance(value, dict):
            return isinstance(value, objects) and not _of_tensors(self._shows, key)
        if options.nocast or options.autocast:
            return True
        rows = isinstance(value, Number) and bool(self._inner._meta.batch)
        whole = isinstance(value, tuple) or (isinstance(value, list) and not value)  # an empty list has no rows
        return (rows or whole) and not _of_tensors(self._shows, key)

    def _begin(self) -> None:
        """Run `__post_init__` on values that came from outside, not through the constructor."""
        if hasattr(self, "__post_init__"):
            fields = getattr(type(self), "__dataclass_fields__", {})
            later = [f for f in fields.values() if f._field_type is dataclasses._FIELD_INITVAR]  # type: ignore[attr-defined]
            self.__post_init__(*(f.default for f in later))

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        if name not in kind._fields and (not hasattr(kind, name) or callable(getattr(Declared, name, None))):
            self._require_fields([name])
        if kind._options.frozen and not name.startswith("_"):
            raise dataclasses.FrozenInstanceError(f"cannot assign to {name!r}: {kind.__name__} is frozen")
        object.__setattr__(self, name, value)

    def _gate(self, what: str, *about: Any) -> None:
        if self._shows._options.frozen and "_filling" not in self.__dict__:
            raise dataclasses.FrozenInstanceError(f"cannot {what.format(*about)}: {self._shows.__name__} is frozen")
        super()._gate(what, *about)

    def _require_fields(self, keys: Iterable[str]) -> None:
        kind = self._shows
        unknown = [key for key in keys if key not in kind._fields]
        if unknown:
            shown = f"field {unknown[0]!r}" if len(unknown) == 1 else f"fields {unknown}"
            raise errors.UnknownField(f"{kind.__name__} has no {shown}; its fields are {list(kind._fields)}")

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        fresh = self._structural_copy()
        with filling(fresh):
            return fresh.update(*args, **kwargs)

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

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, Declared) and not is_nested_key(index):
            mine, theirs = self._shows, value._shows
            if not issubclass(theirs, mine) and set(mine._fields) != set(theirs._fields):
                raise TypeError(
                    f"cannot write a {theirs.__name__} to rows of a {mine.__name__}: expected the same class, "
                    f"a subclass, or a class of the same fields; `to_tensordict` gives rows that can be written"
                )
        super().__setitem__(index, value)

    def _write(self, plan: Plan, value: Any) -> None:
        self._admit_fields(value)
        super()._write(plan, value)

    def _admit(self, plan: Plan, value: Any) -> None:
        self._admit_fields(value)
        super()._admit(plan, value)

    def _admit_fields(self, value: Any) -> None:
        if isinstance(value, Core):
            self._require_fields(value._keys())

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        before = set(self._inner._keys())
        changed = self._inner._restructure(call)
        self._require_fields(key for key in changed._keys() if key not in before)
        return self._wrap(changed)

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

    # ---- facade

    if TYPE_CHECKING:

        @classmethod
        def from_tensordict(cls, td: Any) -> Self: ...

    @classmethod
    def _of_parts(cls, parts: Any, shown: Any) -> Any:
        (inner,) = parts
        return cls._around(inner) if shown is None else _held(inner, shown)

    @classmethod
    def _around(cls, inner: Any) -> Self:
        node = object.__new__(cls)
        object.__setattr__(node, "_inner", cls._inside(inner) if cls._options.shadow else inner)
        return node

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "non_tensordict" in state:  # a pickle of the published package
            inner = state["tensordict"]
            for key, value in state["non_tensordict"].items():
                if key in self._fields and value is not None:
                    inner.set_non_tensor(key, value)
            state = self._around(inner).__dict__
        super().__setstate__(state)

    @classmethod
    def _inside(cls, inner: Any) -> Any:
        """Return what an instance holds: a node, or what stands between it and a class that hides words."""
        return _held(inner, cls) if cls._options.shadow and not isinstance(inner, Held) else inner

    def _wrap(self, node: Any) -> Self:
        return self._around(node)

    def _held(self) -> Any:
        return self._inner if self._options.shadow else self

    @classmethod
    def _unwrapped(cls, items: Sequence[Any]) -> list[Any]:
        first = items[0]._shows
        for item in items:
            kind = item._shows if isinstance(item, Declared) else type(item)
            if not _alike(first, kind):
                raise TypeError(
                    f"cannot join a {first.__name__} and a {kind.__name__}: expected one class, "
                    f"or a base and a subclass with the same fields"
                )
        return [item._inner if isinstance(item, Declared) else item for item in items]

    def _place(self, room: Any, kind: str, fill: bool) -> Self:
        inner = self._inner._place(room.child("_tensordict"), kind, fill)
        room.meta = Record("tensorclass", None, None, cls=f"{self._shows.__module__}.{self._shows.__qualname__}")
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

        Args:
            retain_none: True gives fields that are None a key too.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            >>> type(Sample(image=torch.zeros(2)).to_tensordict()).__name__
            'TensorDict'
        """
        found = self._inner.to_tensordict(retain_none=retain_none)
        for name in self._nones() if retain_none else ():
            found._set(name, found._non_tensor_kind(None, found._meta.batch, found._meta.device))
        return found  # type: ignore[no-any-return]

    def to_dict(
        self, *, retain_none: bool = True, convert_tensors: bool = False, tolist_first: bool = False
    ) -> dict[str, Any]:
        """Return a dict of the fields, those that are None too; arguments as for any tensor collection.

        Examples:
            >>> import torch
            >>> from tensordict import TensorClass
            >>> class Sample(TensorClass):
            ...     image: torch.Tensor
            ...     label: torch.Tensor | None = None
            >>> Sample(image=torch.ones(2)).to_dict()
            {'image': tensor([1., 1.]), 'label': None}
        """
        said = {"convert_tensors": convert_tensors, "tolist_first": tolist_first}
        found: dict[str, Any] = self._inner.to_dict(retain_none=retain_none, **said)
        return {**found, **dict.fromkeys(self._nones() if retain_none else ())}

    def _nones(self) -> list[str]:
        """Return the fields that have no value."""
        present = self._inner._keys()
        return [name for name in self._shows._fields if name not in present]

    @classmethod
    def _received(cls, node: Any) -> Any:
        return node if isinstance(node, cls) else cls.from_tensordict(node._untyped())

    def _untyped(self) -> Any:
        return self._inner._untyped()

    def _brief(self, depth: int, level: int) -> str:
        return f"{self._shows.__name__}" + super()._brief(depth, level)

    def _peek(self, key: str) -> Any:
        return self._inner._peek(key) if key in self._inner._keys() else None

    def _shown_keys(self) -> list[str]:
        return [name for name, field in self._shows._fields.items() if field.repr]


# ---- classes


def chosen(cls: Any, options: dict[str, Any]) -> Options:
    """Return the options of a class: those of its base, and those given.

    Raises:
        TypeError: if there is no such option, or two of them contradict each other.
    """
    unknown = set(options) - set(Options._fields)
    if unknown:
        raise TypeError(f"{cls.__name__} got unknown options {sorted(unknown)}; known are {list(Options._fields)}")
    found: Options = cls._options._replace(**options)
    if found.nocast and (found.autocast or found.tensor_only):
        raise TypeError(f"{cls.__name__}: nocast=True excludes autocast=True and tensor_only=True")
    return found


def prepare(cls: Any, kw_only: bool) -> None:
    """Let `dataclasses` read the fields of a class and write its constructor, and put properties in their place."""
    annotations = inspect.get_annotations(cls)
    own = vars(cls).get("__init__")
    if not annotations and own is None and not hasattr(cls, "__dataclass_fields__"):
        return
    _name_fields(cls, annotations)
    if own is not None:
        del cls.__init__
    _write_fields(cls, kw_only)
    cls._fields = {field.name: field for field in dataclasses.fields(cls)}
    cls._types = {name: found for name in cls._fields if (found := _annotated(cls, name))}
    _take_constructor(cls, own)
    if cls._options.tensor_only:
        _need_tensors(cls)
    for name in cls._fields:
        if name in annotations or not any(isinstance(vars(base).get(name), _Field) for base in cls.__mro__):
            setattr(cls, name, _field(name))
    cls.__dataclass_fields__ = _Known(vars(cls)["__dataclass_fields__"])
    _REGISTERED[f"{cls.__module__}.{cls.__qualname__}"] = cls
    if cls._options.cast_filter is not None:
        _filter_casts(cls, cls._options.cast_filter)
    if cls._options.shadow:
        _send_words(cls)


def _write_fields(cls: Any, kw_only: bool) -> None:
    """Let `dataclasses` do what it does, and undo what does not fit a tensor collection."""
    plain = [base for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    frozen = any(base.__dataclass_params__.frozen for base in plain)  # those that `dataclasses` made frozen
    dataclasses.dataclass(repr=False, eq=False, kw_only=kw_only, frozen=frozen)(cls)
    if frozen:  # ours knows that a word may write what a user may not
        cls._options = cls._options._replace(frozen=True)
        del cls.__setattr__, cls.__delattr__
    for name in ("__repr__", "__eq__", "__setattr__", "__delattr__"):
        if any(getattr(cls, name) is vars(base).get(name) for base in plain if not issubclass(base, Declared)):
            setattr(cls, name, getattr(Declared, name))  # what it wrote for a plain one knows nothing of a batch size


def _take_constructor(cls: Any, own: Any) -> None:
    """Give a class its own constructor, or the one that `dataclasses` wrote if neither it nor a base has its own."""
    cls._fill, filled = _constructor(vars(cls)["__init__"]), vars(cls).get("_fill")
    if own is not None and own is not filled:
        cls.__init__, cls._own_init = _own_constructor(own), True
    elif cls._own_init:
        del cls.__init__
    else:
        cls.__init__ = cls._fill


def _name_fields(cls: Any, annotations: dict[str, Any]) -> None:
    """Raise where a field has a name that it cannot have; leave fields without a default what `dataclasses` expects."""
    shadow = cls._options.shadow
    taken = [name for name in annotations if hasattr(Declared, name) and (not shadow or name.startswith("_"))]
    if taken:
        raise AttributeError(
            f"{cls.__name__} cannot have fields named {taken}: these are words of every tensor collection; rename "
            f"them, or say shadow=True to hide the words from users of the class"
        )
    for name in annotations:
        if isinstance(vars(cls).get(name), _Field):  # the class is prepared again
            setattr(cls, name, cls._fields[name])
        elif name not in vars(cls) and (isinstance(getattr(cls, name, None), _Field) or hasattr(Declared, name)):
            setattr(cls, name, dataclasses.field())  # declared again, or named as a word: no default of its own


def _filter_casts(cls: Any, keep: Callable[[Any, Tensor], Any]) -> None:
    """Let the words that cast leaves to a dtype leave alone those that a filter of key and leaf does not choose."""

    def filtered(word: Any) -> Any:
        @functools.wraps(word)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            def pick(key: NestedKey, new: Tensor, old: Tensor) -> Tensor:
                chosen = new.dtype is old.dtype or keep(unravel_key_to_tuple(key), old)
                return new if chosen else old.to(new.device)

            return word(self, *args, **kwargs).named_apply(pick, self, nested_keys=True)

        return call

    words = [name for name, word in vars(Cast).items() if inspect.isfunction(word)]
    casts = [name for name in words if "cast_filter" in inspect.signature(vars(Cast)[name]).parameters]
    for name in ("to", *casts):
        setattr(cls, name, filtered(getattr(cls, name)))


# ---- annotations

_OLD_TENSORS = type(torch.LongTensor)


def annotated(kind: Any, name: str) -> tuple[Any, ...]:
    """Return the types that a field may have; nothing where its annotation cannot be read."""
    found = kind._types.get(name)
    return _annotated(kind, name) if found is None else found  # what an annotation names may be defined by now


def _annotated(kind: Any, name: str) -> tuple[Any, ...]:
    hint = kind._fields[name].type
    owner = next((base for base in kind.__mro__ if name in vars(base).get("__annotations__", ())), kind)
    space = {**vars(sys.modules.get(owner.__module__, types)), owner.__name__: owner}
    try:
        hint = get_type_hints(types.SimpleNamespace(__annotations__={name: hint}), space)[name]
    except (NameError, AttributeError, SyntaxError, TypeError):
        return ()
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    parts = typing.get_args(hint) if union else (hint,)
    return tuple(typing.get_origin(part) or part for part in parts)


def members(kind: Any, name: str) -> tuple[Any, ...]:
    """Return the types that a field may have, None aside."""
    return tuple(part for part in annotated(kind, name) if part is not type(None))


def _is_tensors(part: Any) -> bool:
    return isinstance(part, type) and (issubclass(part, (Tensor, Core)) or type(part) is _OLD_TENSORS)


def _need_tensors(cls: Any) -> None:
    """Raise for fields that may hold something else than tensors and tensor collections."""
    wrong = [name for name in cls._fields if not all(map(_is_tensors, members(cls, name)))]
    if wrong:
        raise TypeError(f"{cls.__name__} is tensor_only: its fields {wrong} are annotated as something else")


def _of_tensors(kind: Any, name: str) -> bool:
    """Tell whether a field may hold a tensor or a tensor collection, as far as its annotation says."""
    found = members(kind, name)
    return any(map(_is_tensors, found)) if found else "Tensor" in str(kind._fields[name].type)


def fits(kind: Any, name: str, child: Any) -> bool:
    """Tell whether a child is a tensor, a node or a non-tensor where its field is annotated as nothing else."""
    found = members(kind, name)
    if not found or not all(map(_is_tensors, found)):
        return True
    if isinstance(child, Tensor):
        return not all(issubclass(part, Core) for part in found)
    return any(issubclass(part, Core) and part._is_non_tensor == child._is_non_tensor for part in found)


def as_annotated(kind: Any, name: str, value: Any) -> Any:
    """Return a value as the one type that its field is annotated with."""
    found = members(kind, name)
    to = found[0] if len(found) == 1 else None
    rows = isinstance(value, Tensor) and value.ndim > 0
    if (
        not isinstance(to, type)
        or to is Any
        or isinstance(value, to)
        or value is None
        or (rows and not _is_tensors(to))
    ):
        return value
    try:
        if issubclass(to, Declared):
            return _as_declared(to, value)
        if not kind._options.autocast or issubclass(to, Core) or isinstance(value, Core):
            return value
        return torch.as_tensor(value) if issubclass(to, Tensor) else to(value)  # type: ignore[call-arg]
    except (ValueError, TypeError, RuntimeError) as error:
        raise TypeError(
            f"cannot make the value of field {name!r} of {kind.__name__} a {to.__name__}, got {value!r}: {error}"
        ) from error


def _as_declared(to: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return to(**value)
    return to.from_tensordict(value) if isinstance(value, Core) and not isinstance(value, Declared) else value


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two classes can be joined: the same, or base and subclass with the same fields."""
    if one is other:
        return True
    if not issubclass(other, Declared):
        return not one._is_typed
    related = issubclass(one, other) or issubclass(other, one)
    return related and set(one._fields) == set(other._fields)


def _parts(node: Any) -> tuple[list[Any], Any]:
    """Return what an instance is made of, for `torch.utils._pytree`."""
    return [node._inner], node.__dict__.get("_shows")


def _parts_with_keys(node: Any) -> tuple[list[Any], Any]:
    return [(GetAttrKey("_inner"), node._inner)], node.__dict__.get("_shows")


# ---- a class whose fields have names of words


@final
class Held(Declared):
    """What a parent holds of an instance whose fields have names of words: the node inside and the class.

    Words that are said to a child reach this node. The instance that users see sends every word here, so that no field
    hides a word from another one.
    """

    def _wrap(self, node: Any) -> Self:
        return _held(node, self._shows)  # type: ignore[no-any-return]

    def _given(self) -> Any:
        return self._shows._around(self)

    _entry = _given

    @property
    def _is_typed(self) -> bool:  # type: ignore[override]
        return bool(self._shows._is_typed)


def _held(inner: Any, shown: Any) -> Any:
    PRESENTED.add(Held)
    node = object.__new__(Held)
    node.__dict__.update(_inner=inner, _shows=shown)
    return node


_SENT = ("_place", "__iter__", "__setitem__", "__delitem__", "__copy__", "__deepcopy__", "__enter__", "__exit__")


def _send_words(cls: Any) -> None:
    """Let all words of a class, but fields and those that it has of its own, be said to the node that it holds."""
    for name in (*(name for name in dir(Declared) if not name.startswith("_")), *_SENT):
        found = inspect.getattr_static(Declared, name)
        if name in cls._fields or inspect.getattr_static(cls, name) is not found:
            continue
        if inspect.isfunction(found):
            setattr(cls, name, _sending(found))
        elif isinstance(found, property):
            setattr(cls, name, property(functools.partial(_sent_property, name), found.fset, None, found.__doc__))

    def torch_function(cls: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _given(func(*_hidden(args), **{key: _hidden(value) for key, value in (kwargs or {}).items()}))

    cls.__torch_function__ = classmethod(torch_function)


def _sending(word: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(word)
    def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = word(self._inner, *_hidden(args), **{key: _hidden(value) for key, value in kwargs.items()})
        return self if result is self._inner else _given(result)

    return send


def _sent_property(name: str, self: Any) -> Any:
    return _given(getattr(self._inner, name))


def _hidden(value: Any) -> Any:
    """Return what stands for an instance, also in a list or tuple of them."""
    if isinstance(value, (list, tuple)):
        return _again(value, _hidden)
    return value._held() if isinstance(value, Declared) else value


def _given(value: Any) -> Any:
    """Return the instance that a node stands for, also in a list, tuple or iterator of them."""
    if isinstance(value, Iterator):
        return map(_given, value)
    if isinstance(value, (list, tuple)):
        return _again(value, _given)
    return value._given() if isinstance(value, Held) else value


def _again(values: Any, call: Callable[[Any], Any]) -> Any:
    kind: Any = type(values)
    parts = [call(value) for value in values]
    if all(part is value for part, value in zip(parts, values)):
        return values
    return kind(*parts) if hasattr(values, "_fields") else kind(parts)


LOADERS["tensorclass"] = Declared._open
