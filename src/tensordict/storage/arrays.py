"""Trees of arrays in a store that has groups: what HDF5 and zarr have in common.

    index --cut--> selection (slices, one list of increasing rows) --store--> block --the rest of the index--> rows

A group is a node, an array of numbers a leaf, and an array of texts a non-tensor: one value, or a column with one a
row. Reading rows reads only those rows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import pickle
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy
import torch
from torch import Tensor

from tensordict.storage.base import Child, Record, require_key
from tensordict.storage.layout import DTYPES, is_json

FORMAT = 1
META, DTYPE, KEY = "__tensordict__", "__tensordict_dtype__", "__tensordict_key__"
VALUE, STACK, STRING = "__tensordict_non_tensor__", "__tensordict_stack__", "__tensordict_str__"

_NUMPY = {
    getattr(torch, name): numpy.dtype(name)
    for name in (
        "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
    )
}
_TORCH = {str(dtype): torch_dtype for torch_dtype, dtype in _NUMPY.items()}
_CARRIERS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_DTYPES = {name: dtype for name, dtype in DTYPES.items() if dtype.itemsize in _CARRIERS}
_UNSAFE = re.compile(r"[\x00-\x20\x7f%/\\\ud800-\udfff]|^\.+$|^__|^zarr\.json$")
_UNTEXT = re.compile("[\0\ud800-\udfff]")
_ENCODINGS = ("text", "json", "pickle")
_ESCAPED = re.compile(r"(?:%[0-9A-F]{2})+")

Items = tuple[Any, ...]


class Store(Protocol):
    """An open file or container of arrays; groups and arrays are those of its library."""

    kind: str
    mode: str
    age: int

    @property
    def growing(self) -> bool:
        """Tell whether another process may append rows while this one reads."""

    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def path(self) -> str: ...
    def close(self) -> None: ...
    def flush(self) -> None:
        """Wait until what was written is on the disk."""

    def root(self) -> Any:
        """Return the group at the top; `age` changes when it had to be opened again."""

    def group(self, path: str) -> Any:
        """Return the group at a path, made where it is missing and the store may be written."""

    def members(self, group: Any) -> Iterable[tuple[str, Any]]: ...
    def is_group(self, member: Any) -> bool: ...
    def marks(self, member: Any) -> dict[str, Any]:
        """Return the attributes of ours that a group or array has."""

    def mark(self, member: Any, name: str, value: Any) -> None: ...
    def make(self, group: Any, name: str, shape: Sequence[int], dtype: numpy.dtype[Any] | type) -> Any:
        """Make an array of zeros; of texts for the dtype `str`."""

    def read(self, array: Any, selection: Items) -> Any: ...
    def write(self, array: Any, selection: Items, value: Any) -> None: ...


class Terms(NamedTuple):
    """What holds for a whole tree: are pickles taken, where do leaves go, is one value written to each row.

    `watch` is told the key of each leaf that was written.
    """

    allow_pickle: bool = False
    device: torch.device | None = None
    as_stack: bool = False
    watch: Callable[[str], object] = bool


# ---- names


def name_of(key: str) -> str:
    """Return the name of a key in a group: what such a name cannot hold is percent-encoded, a long key is digested."""
    name = _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass")), key)
    if len(name.encode()) > 200:
        return f"%-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()}"
    return name or "%"


def key_of(name: str) -> str:
    """Return the key that a name stands for; that of a digest is noted beside it, and others stand for themselves."""
    try:
        key = _ESCAPED.sub(
            lambda m: bytes.fromhex(m[0].replace("%", "")).decode("utf-8", "surrogatepass"), name.rstrip("%")
        )
    except UnicodeDecodeError:
        return name
    return key if name_of(key) == name else name


# ---- numbers


def cut(items: Items, shape: Sequence[int], exact: bool = False) -> tuple[Items, Items, bool]:
    """Return which block of an array an index needs, the index within the block, and whether it needs all of it.

    With ``exact``, the block of an index with one list of rows has no other rows.
    """
    selection: list[Any] = []
    local: list[Any] = []
    tensors = 0
    for item in items:
        if item is None or isinstance(item, bool):
            local.append(item)
            tensors += 2 * (item is False)
            continue
        size = shape[len(selection)]
        if isinstance(item, slice):
            rows = range(size)[item]
            selection.append(slice(rows.start, rows.stop, rows.step) if rows else slice(0, 0))
            local.append(slice(None))
        elif isinstance(item, Tensor) and item.ndim:
            tensors += 1
            # libraries take one list of rows only
            block, rest = _rows(item, size, math.inf if tensors > 1 else 1 if exact else 2)
            selection.append(block)
            local.append(rest)
        else:
            at = int(item) % size
            selection.append(slice(at, at + 1))
            local.append(0)
    selection += [slice(0, size) for size in shape[len(selection) :]]
    return tuple(selection), tuple(local), not tensors or (exact and tensors == 1)


def _rows(item: Tensor, size: int, spare: float) -> tuple[Any, Tensor]:
    """Return the rows of a dim to read, and where among them each row that an index tensor names is.

    Rows that lie close together are read faster in one piece: at most ``spare`` times as many as are named.
    """
    rows = item.cpu().long()
    rows = torch.where(rows < 0, rows + size, rows)
    if not rows.numel():
        return slice(0, 0), rows
    unique, inverse = rows.unique(return_inverse=True)
    low, high = int(unique[0]), int(unique[-1]) + 1
    if high - low <= spare * len(unique):
        return slice(low, high), rows - low
    return unique.numpy(), inverse


def require_plain(key: str, tensor: Tensor) -> None:
    """Raise TypeError for a tensor that is no array of numbers."""
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        what = "nested" if tensor.is_nested else f"{tensor.layout}, {tensor.dtype}"
        raise TypeError(f"cannot store a {what} tensor at key {key!r}; store its parts, or a lazy stack of its rows")


def to_numpy(tensor: Tensor) -> Any:
    """Return the values of a tensor for a library that knows the dtypes of numpy only: others as the bits they have."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.numpy() if plain.dtype in _NUMPY else plain.view(_CARRIERS[plain.itemsize]).numpy()


def _from_numpy(array: Any, dtype: torch.dtype) -> Tensor:
    array = numpy.asarray(array)
    if not (array.dtype.isnative and array.flags.writeable):
        array = array.astype(array.dtype.newbyteorder("="))
    tensor = torch.from_numpy(array)
    return tensor if dtype in _NUMPY else tensor.view(dtype)


# ---- objects as texts


def encoding_of(values: Iterable[Any], allow_pickle: bool) -> str:
    """Return how values can be written as texts: as they are ("text"), as "json", or by "pickle" if that is allowed.

    Raises:
        TypeError: only pickle could hold one of them, and that is not allowed.
    """
    best = "text"
    for value in values:
        if type(value) is not str or _UNTEXT.search(value):
            best = "json"
        if not is_json(value):
            if allow_pickle:
                return "pickle"
            raise TypeError(
                f"cannot store {value!r} of type {type(value).__name__}: it is neither a tensor nor what JSON can hold"
                f"; pass allow_pickle=True to pickle it"
            )
    return best


def encode(value: Any, encoding: str) -> str:
    if encoding == "pickle":
        return base64.b64encode(pickle.dumps(value)).decode()
    return str(value) if encoding == "text" else json.dumps(value)


def decode(text: Any, encoding: str) -> Any:
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            return text
    if encoding == "pickle":
        return pickle.loads(base64.b64decode(text))
    return json.loads(text) if encoding == "json" else str(text)


def _as_encoding(value: Any) -> str | None:
    found = value.get("encoding") if isinstance(value, dict) else None
    return found if found in _ENCODINGS else None


def _as_dtype(own: Any) -> Callable[[Any], torch.dtype | None]:
    """Return how the name of a dtype is read: one of torch only where the array holds integers of its size."""

    def read(name: Any) -> torch.dtype | None:
        found = _DTYPES.get(name) if isinstance(name, str) else None
        carrier = None if found is None else _CARRIERS.get(found.itemsize)
        if carrier and own == _NUMPY[carrier]:
            return found
        return _TORCH.get(name) if name == str(own.newbyteorder("=")) else None

    return read


class Slot:
    """One array of a store, with rows that are read and written by the items of an index."""

    def __init__(self, store: Store, path: str, array: Any, allow_pickle: bool = False) -> None:
        self._store, self._path, self._array, self._age = store, path, array, store.age
        self.allow_pickle = allow_pickle
        marks = store.marks(array)
        text = array.dtype.kind in "OSUT"
        self.whole = STRING in marks or (VALUE in marks and STACK not in marks) or (text and not array.shape)
        if self.whole and (math.prod(array.shape) != 1 if text else array.dtype != numpy.uint8 or array.ndim != 1):
            name = STRING if STRING in marks else VALUE
            raise ValueError(
                f"{path!r} in {store.path!r}: the attribute {name!r} is for one value, and not for an array of "
                f"{array.dtype} of shape {list(array.shape)}"
            )
        self.encoding: str | None = None
        if text or self.whole:
            self.encoding = str(self._said(marks, VALUE, {"encoding": "text"}, _as_encoding))
            self.dtype = torch.uint8
        else:
            self.dtype = self._said(marks, DTYPE, str(array.dtype.newbyteorder("=")), _as_dtype(array.dtype))

    def _said(self, marks: dict[str, Any], name: str, otherwise: Any, read: Callable[[Any], Any]) -> Any:
        """Return what a mark means; raise for one that means nothing."""
        found = read(marks.get(name, otherwise))
        if found is not None:
            return found
        where = f"{self._path!r} in {self._store.path!r}"
        if name in marks:
            raise ValueError(f"{where}: the attribute {name!r} cannot be {marks[name]!r}")
        raise TypeError(f"{where} holds {otherwise}, a dtype that torch lacks")

    @property
    def array(self) -> Any:
        root = self._store.root()
        if self._age != self._store.age:
            self._array, self._age = root[self._path], self._store.age
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def sizes(self, batch: Sequence[int]) -> tuple[int, ...]:
        """Return my shape, without the rows that another process has appended to a batch."""
        shape = self.shape
        return (*batch, *shape[len(batch) :]) if self._store.growing else shape

    def read(self, items: Items = (), batch: Sequence[int] = ()) -> Tensor:
        """Return the rows that an index picks, as torch's own indexing gives them."""
        selection, local, _ = cut(items, self.sizes(batch))
        block = _from_numpy(self._store.read(self.array, selection), self.dtype)
        return block[local] if local else block

    def write(self, items: Items, value: Any) -> None:
        """Write a value, which broadcasts, to the rows that an index picks."""
        selection, local, covered = cut(items, self.shape, exact=True)
        if covered:
            sizes = [len(range(n)[s]) if isinstance(s, slice) else len(s) for s, n in zip(selection, self.shape)]
            block = torch.empty(sizes, dtype=self.dtype)
        else:
            block = _from_numpy(self._store.read(self.array, selection), self.dtype)
        block[local] = value.detach().to("cpu", self.dtype) if isinstance(value, Tensor) else value
        if block.numel():
            self._store.write(self.array, selection, to_numpy(block))

    def objects(self, items: Items = (), batch: Sequence[int] = ()) -> tuple[list[Any], Tensor]:
        """Return the objects in a block, and an index tensor that says which of them each picked row has."""
        selection, local, _ = cut(items, self.shape if self.whole else self.sizes(batch))
        block = self._texts(selection)
        if self.encoding == "pickle" and not self.allow_pickle:
            raise RuntimeError(
                f"{self._path!r} in {self._store.path!r} holds pickled objects, which can run code when loaded; pass "
                f"allow_pickle=True to allow it"
            )
        try:
            values = [decode(text, str(self.encoding)) for text in block.reshape(-1)]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self._path!r} in {self._store.path!r} holds no {self.encoding}: {error}") from error
        return values, torch.arange(len(values)).reshape(block.shape)[local]

    def _texts(self, selection: Items) -> Any:
        found = self._store.read(self.array, selection)
        if getattr(found, "dtype", None) == numpy.uint8:  # one value as bytes
            found = numpy.asarray(found).tobytes()
        block = numpy.empty(getattr(found, "shape", ()), dtype=object)
        block[...] = found
        return block

    def takes(self, values: Iterable[Any]) -> bool:
        """Tell whether objects can be written to rows as the others are written."""
        needed = encoding_of(values, self.allow_pickle)
        return not self.whole and _ENCODINGS.index(needed) <= _ENCODINGS.index(str(self.encoding))

    def write_objects(self, items: Items, values: Sequence[Any], rows: Tensor) -> None:
        """Write objects to the rows that an index picks; `rows` says which object each of them gets."""
        selection, local, _ = cut(items, self.shape, exact=True)
        block = self._texts(selection)
        at = torch.arange(block.size).reshape(block.shape)
        at[local] = rows + block.size
        texts = [*block.reshape(-1), *(encode(value, str(self.encoding)) for value in values)]
        new = numpy.empty(block.shape, dtype=object)
        new.reshape(-1)[:] = [texts[n] for n in at.reshape(-1).tolist()]
        if new.size:
            self._store.write(self.array, selection, new)


class Arrays:
    """One node of a tree in a store of arrays: a group, or the array of a non-tensor.

    What the group holds is listed once; `refresh` lists it again.
    """

    resident = False

    def __init__(self, store: Store, place: str = "", terms: Terms = Terms(), slot: Slot | None = None) -> None:  # noqa: B008
        self.store, self.place, self.terms, self._slot = store, place, terms, slot
        self.key: str | None = None  # a key that is too long for a name
        self._listed: dict[str, Slot | Arrays] | None = None

    @property
    def path(self) -> str:
        return self.store.path

    @property
    def mode(self) -> str:
        return self.store.mode

    @property
    def kind(self) -> str:
        return self.store.kind

    @property
    def writable(self) -> bool:
        return self.store.mode != "r"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listed": None, "_slot": None}

    def _below(self, name: str) -> str:
        return f"{self.place}/{name}" if self.place else name

    def refresh(self) -> None:
        self._listed = None

    def _entries(self) -> dict[str, Slot | Arrays]:
        if self._listed is None:
            root = self.store.root()
            if self.place and self.place not in root:
                self._listed = {}
                return self._listed
            group = root[self.place] if self.place else root
            said = self._said()
            found = {
                self._key(name, member, said is not None): (name, member) for name, member in self.store.members(group)
            }
            order = {key: at for at, key in enumerate((said or {}).get("keys") or ())}
            listed = sorted(found, key=lambda key: order.get(key, len(order))) if order else found
            self._listed = {key: self._entry(*found[key]) for key in listed}
        return self._listed

    def _key(self, name: str, member: Any, ours: bool) -> str:
        if not ours or "%" not in name:
            return name
        if not name.startswith("%-"):
            return key_of(name)
        key = self.store.marks(member).get(KEY)
        if not isinstance(key, str) or name_of(key) != name:
            raise ValueError(f"{self.path!r}: the attribute {KEY!r} of {self._below(name)!r} is no key of it: {key!r}")
        return key

    def _entry(self, name: str, member: Any) -> Slot | Arrays:
        place = self._below(name)
        if self.store.is_group(member):
            return Arrays(self.store, place, self.terms)
        slot = Slot(self.store, place, member, self.terms.allow_pickle)
        return slot if slot.encoding is None else Arrays(self.store, place, self.terms, slot)

    # ---- the record

    def _said(self) -> dict[str, Any] | None:
        """Return what the record of this group says, None for a group that was not written as a tensordict."""
        root = self.store.root()
        marks = self.store.marks(root[self.place] if self.place else root)
        return _checked(marks[META], f"{self.place or '/'!r} in {self.path!r}") if META in marks else None

    def is_plain(self) -> bool:
        """Tell whether this is a group that no record gives another kind than that of a dense node."""
        return self._slot is None and (self._said() or {}).get("kind") in (None, "dense")

    @property
    def meta(self) -> Record:
        if self._slot is not None:
            values, rows = self._slot.objects()
            if self._slot.whole:
                return Record("non-tensor", None, None, data=values[0])
            return Record("non-tensor-stack", tuple(rows.shape), None, data=_nest(values, rows.shape), stack_dim=0)
        said = self._said()
        if said is None:
            raise KeyError(f"{self.place or '/'!r} in {self.path!r} has no record; it was not written as a tensordict")
        batch, names = said.get("batch_size"), said.get("names")
        return Record(
            said.get("kind") or "dense",
            None if batch is None else tuple(batch),
            said.get("device"),
            None if names is None else tuple(names),
            said.get("class"),
            None,
            said.get("stack_dim"),
            said.get("stack_name"),
        )

    @meta.setter
    def meta(self, record: Record) -> None:
        self._require_writable()
        if record.kind.startswith("non-tensor"):
            self._store_objects(record)
            return
        said = {
            "batch_size": None if record.batch is None else list(record.batch),
            "version": FORMAT,
            "kind": None if record.kind == "dense" else record.kind,
            "device": record.device,
            "names": None if record.names is None else list(record.names),
            "class": record.cls,
            "stack_dim": record.stack_dim,
            "stack_name": record.stack_name,
            "keys": list(self._entries()) if self.store.kind == "zarr" else None,
        }
        group = self.store.group(self.place)
        self.store.mark(group, META, {name: value for name, value in said.items() if value is not None})
        if self.key is not None:
            self.store.mark(group, KEY, self.key)

    def _store_objects(self, record: Record) -> None:
        column = record.kind == "non-tensor-stack"
        shape = tuple(record.batch or ()) if column else ()
        values = flat(record.data, len(shape)) if column else [record.data]
        encoding = encoding_of(values, self.terms.allow_pickle)
        above, _, name = self.place.rpartition("/")
        group = self.store.group(above)
        if name in group:
            del group[name]
        array = self.store.make(group, name, shape, str)
        if self.key is not None:
            self.store.mark(array, KEY, self.key)
        if column:
            self.store.mark(array, STACK, list(shape))
        if encoding != "text":
            self.store.mark(array, VALUE, {"encoding": encoding})
        elif not column:
            self.store.mark(array, STRING, True)
        self._slot = Slot(self.store, self.place, array, self.terms.allow_pickle)
        self._slot.write_objects((), values, torch.arange(len(values)).reshape(shape))

    def _require_writable(self) -> None:
        self.store.root()  # after a fork it is opened again, for reading
        if not self.writable:
            raise PermissionError(f"{self.path!r} was opened with mode='r'; open it with mode='r+' to change it")

    # ---- leaves and children

    def create(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> Slot:
        self._require_writable()
        if key in self._entries():
            self.delete(key)
        name, group = name_of(key), self.store.group(self.place)
        own = dtype in _NUMPY
        carrier = _NUMPY[dtype] if own else _NUMPY[_CARRIERS[dtype.itemsize]]
        array = self.store.make(group, name, tuple(shape), carrier)
        if not own:
            self.store.mark(array, DTYPE, str(dtype))
        if name.startswith("%-"):
            self.store.mark(array, KEY, key)
        slot = Slot(self.store, self._below(name), array, self.terms.allow_pickle)
        self._entries()[key] = slot
        return slot

    def write(self, key: str, tensor: Tensor) -> Slot:
        require_plain(key, tensor)
        found = self._entries().get(key)
        if isinstance(found, Slot) and (found.shape, found.dtype) == (tuple(tensor.shape), tensor.dtype):
            self._require_writable()
            slot = found
        else:
            slot = self.create(key, tuple(tensor.shape), tensor.dtype)
        slot.write((), tensor)
        self.filled(key)
        return slot

    def filled(self, key: str) -> None:
        """Note that an array that was made to be written holds what it should."""
        self.terms.watch(key)

    def slot(self, key: str) -> Slot | None:
        """Return the array under a key, None when a group is there; that of a non-tensor has an encoding."""
        require_key(self._entries(), key, repr(self.path))
        found = self._entries()[key]
        return found if isinstance(found, Slot) else found._slot

    def read(self, key: str) -> Tensor:
        slot = self.slot(key)
        if slot is None or slot.encoding is not None:
            raise KeyError(f"key {key!r} in {self.path!r} is a node; read it with child()")
        return slot.read()

    def leaves(self) -> dict[str, Tensor]:
        return {key: self.read(key) for key, kind in self.keys().items() if kind == "leaf"}

    def delete(self, key: str) -> None:
        self._require_writable()
        require_key(self._entries(), key, repr(self.path))
        group = self.store.group(self.place)
        name = name_of(key) if name_of(key) in group else key
        if name in group:
            del group[name]
        del self._entries()[key]

    def keys(self) -> dict[str, Child]:
        return {key: "leaf" if isinstance(found, Slot) else "node" for key, found in self._entries().items()}

    def child(self, key: str) -> Arrays:
        found = self._entries().get(key)
        if isinstance(found, Arrays):
            return found
        if not self.writable:
            require_key([k for k, kind in self.keys().items() if kind == "node"], key, f"the nodes of {self.path!r}")
        if found is not None:
            self.delete(key)
        name = name_of(key)
        child = Arrays(self.store, self._below(name), self.terms)
        child.key = key if name.startswith("%-") else None
        self._entries()[key] = child
        return child


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_KINDS = ("dense", "lazy", "tensorclass", "unbatched")
_FORMS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "batch_size": ("a list of sizes", _list_of(lambda size: type(size) is int and 0 <= size < 1 << 63)),
    "names": ("a list of names", _list_of(lambda name: name is None or isinstance(name, str))),
    "kind": (
        "'lazy', 'tensorclass' or 'unbatched'",
        lambda kind: kind in ("dense", "lazy", "tensorclass", "unbatched"),
    ),
    "device": ("a name", _is_text),
    "class": ("a name", _is_text),
    "stack_dim": ("an integer", lambda dim: type(dim) is int),
    "stack_name": ("a name", _is_text),
    "keys": ("a list of keys", _list_of(_is_text)),
}


def _checked(raw: Any, where: str) -> dict[str, Any]:
    """Return the record of a group after a look at all that it says."""
    if not isinstance(raw, dict) or type(raw.get("version")) is not int:
        raise ValueError(f"{where}: the attribute {META!r} should describe a tensordict, got {raw!r}")
    if raw["version"] > FORMAT:
        raise RuntimeError(
            f"{where}: written in format version {raw['version']}, but this version reads up to {FORMAT}; "
            f"upgrade tensordict"
        )
    for entry, (expected, fits) in _FORMS.items():
        if raw.get(entry) is not None and not fits(raw[entry]):
            raise ValueError(f"{where}: {entry!r} of {META!r} should be {expected}, got {raw[entry]!r}")
    if raw.get("names") and len(raw["names"]) != len(raw.get("batch_size") or ()):
        raise ValueError(f"{where}: {META!r} should name every batch dim, got {raw['names']!r}")
    needed = {"lazy": "stack_dim", "unbatched": "batch_size"}.get(raw.get("kind") or "")
    if needed and raw.get(needed) is None:
        raise ValueError(f"{where}: {META!r} should say the {needed!r} of a node of the kind {raw['kind']!r}")
    return raw


def _nest(values: list[Any], shape: Sequence[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        values = [values[at : at + size] for at in range(0, len(values), size)] if size else []
    return values


def flat(data: Any, depth: int) -> list[Any]:
    """Return nested lists of values, to some depth, as one list."""
    for _ in range(depth - 1):
        data = [item for inner in data for item in inner]
    return list(data)
