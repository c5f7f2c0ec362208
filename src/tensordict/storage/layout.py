"""Keys to file names, and `meta.json` to records: pure functions on text.

The layout is that of the published package (format version 1) with additions, described in docs/file-format.md: keys
that its `meta.json` cannot say go into a list under `_tensordict_keys`; a kind that it has not is a node of version 2.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import re
import unicodedata
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch

from tensordict.storage.base import Record, Spec

FORMAT = 1
NEWEST = 2
META = "meta.json"
SUMS = "checksums.json"
SUFFIX = ".memmap"
INNER = "_tensordict"
PICKLE = "other.pickle"
STACK_PICKLE = "pickle.pkl"
TEMPORARY = "%%"
LIMIT = 1 << 63

_EXTRA = "_tensordict_keys"
_MEMBERS = "_tensordict_members"
_ALL = "_tensordict_all"
_KIND = "_tensordict_kind"
_ROWS = "_tensordict_rows"
_UNSAFE = re.compile(r'[\x00-\x20\x7f"%*/:<>?\\|]')
_CLASS = re.compile(r"<class '(.+)'>")
DTYPES = {
    str(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith("torch.q")  # quantized values are not in the bytes
}
_FIELDS = {"shape", "device", "_type", "_format_version", "_class", "_names", _EXTRA, _MEMBERS, _ROWS, _ALL}
_TYPES = {
    "packed": "tensordict:TensorDict",
    "dense": "tensordict:TensorDict",
    "lazy": "tensordict:LazyStackedTensorDict",
    "strings": "tensordict:NonTensorStack",
    "non-tensor": "tensordict:NonTensorData",
    "non-tensor-meta": "tensordict:MetaData",
    "non-tensor-stack": "tensordict:NonTensorStack",
    "unbatched": "tensordict:UnbatchedTensor",
}
_PUBLISHED = {
    "dense": "<class 'tensordict._td.TensorDict'>",
    "lazy": "<class 'tensordict._lazy.LazyStackedTensorDict'>",
    "strings": "<class 'tensordict.tensorclass.NonTensorStack'>",
    "non-tensor": "<class 'tensordict.tensorclass.NonTensorData'>",
    "non-tensor-meta": "<class 'tensordict.tensorclass.MetaData'>",
    "non-tensor-stack": "<class 'tensordict.tensorclass.NonTensorStack'>",
    "unbatched": "<class 'tensordict._unbatched.UnbatchedTensor'>",
    "packed": "<class 'tensordict._td.TensorDict'>",
}
_OF_LEAVES = ("strings", "unbatched", "packed")
_KINDS = {name.partition(":")[2]: kind for kind, name in _TYPES.items()}


class Entry(NamedTuple):
    """One child of a node: `file` is its name in the folder; a leaf has a dtype, a node has none.

    `type` is the class name that the parent notes for a node, `batch` the batch size of a non-tensor. The shape of a
    nested leaf is that of its sizes, which have a file of their own; `jagged_dim` is its ragged dim (0: none).
    """

    file: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = None
    type: str = ""
    batch: tuple[int, ...] | None = None
    nested: bool = False
    jagged_dim: int = 0

    @property
    def files(self) -> list[str]:
        """Every name in the folder that belongs to this child."""
        return [self.file, sizes_name(self.file)] if self.nested else [self.file]


# --- names


def sizes_name(file: str) -> str:
    """Return the name of the file that holds the sizes of a nested leaf."""
    return file.removesuffix(SUFFIX) + ".shape" + SUFFIX


def plain_name(key: str, kind: Literal["leaf", "node"]) -> str:
    """Return the usual file name of a key: unsafe characters percent-encoded, never a path of two parts."""
    name = _UNSAFE.sub(_escaped, key) or "%"
    if name in (".", ".."):
        name = name.replace(".", "%2E")
    return name + SUFFIX if kind == "leaf" else name


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"


def short(name: str) -> str:
    """Return the end of the temporary names of a file or folder, so that their length has room."""
    return name if len(os.fsencode(name)) <= 100 else hashlib.sha256(os.fsencode(name)).hexdigest()


def folded(name: str) -> str:
    """Return what two names have in common when some file system takes them for one."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def free_name(key: str, kind: Literal["leaf", "node"], taken: Container[str], *, nested: bool = False) -> str:
    """Return the usual name of a key, or a digest of the key when that is too long or taken; `taken` is folded."""
    name = plain_name(key, kind)
    free = folded(name) not in taken and not (nested and folded(sizes_name(name)) in taken)
    if free and name not in (META, SUMS):
        try:
            if len(name.encode()) <= 240:
                return name
        except UnicodeEncodeError:
            pass
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    # A percent sign before a hyphen comes out of no key, so a digest can meet no usual name.
    return f"%-{digest}{SUFFIX if kind == 'leaf' else ''}"


def shown(keys: tuple[str, ...]) -> str:
    """Return the keys that lead to a node as errors name it."""
    return repr(keys[0] if len(keys) == 1 else keys)


def said(keys: tuple[str, ...]) -> str:
    """Return how an error begins that is about a key."""
    return f"key {keys[0] if len(keys) == 1 else keys!r}: " if keys else ""


# --- reading


def parse(
    text: str | bytes, path: str, exists: Callable[[str], bool] = os.path.isfile
) -> tuple[Record, dict[str, Entry]]:
    """Read the text of a `meta.json`; `path` is where it lies, and `exists` tells which others there are.

    Raises:
        ValueError: the text is not what a `meta.json` holds; the message names the file and the entry.
        RuntimeError: it was written in a newer format.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error
    return parse_object(raw, path, exists)


def parse_object(
    raw: Any, path: str, exists: Callable[[str], bool] = os.path.isfile
) -> tuple[Record, dict[str, Entry]]:
    """Read what the text of a `meta.json` holds, once it is read as JSON; arguments and errors as for `parse`."""
    if not isinstance(raw, dict):
        raise _wrong(path, "the whole file", "an object", raw)
    version = raw.get("_format_version", FORMAT)
    if type(version) is not int:
        raise _wrong(path, "_format_version", "an integer", version)
    if version > NEWEST:
        raise RuntimeError(
            f"{path}: written in format version {version}, but this version reads up to {NEWEST}; upgrade tensordict"
        )
    cls = _class_name(raw, path)
    kind, rows = _kind(raw, cls), _rows(raw, path)
    if kind in ("dense", *_OF_LEAVES):
        record, entries = _dense(raw, path)
        return replace(record, kind=kind, rows=rows), entries
    if kind == "lazy":
        record, entries = _lazy(raw, path, exists)
        return replace(record, rows=rows), entries
    if kind == "tensorclass":
        return Record(kind, cls=cls), {INNER: Entry(INNER)}
    return _non_tensor(raw, path, kind), {}


def _rows(raw: dict[str, Any], path: str) -> tuple[int, int] | None:
    rows = raw.get(_ROWS)
    if rows is None:
        return None
    count, limit = sizes(rows, path, _ROWS) if type(rows) is list and len(rows) == 2 else (1, 0)
    if limit < count:
        raise _wrong(path, _ROWS, "how many rows there are, and how many files may hold", rows)
    return count, limit


def _kind(raw: dict[str, Any], cls: str) -> str:
    if raw.get(_KIND) in _OF_LEAVES:
        return str(raw[_KIND])
    kind = _KINDS.get(cls.rpartition(".")[2]) if cls.startswith("tensordict.") else None
    return kind or ("dense" if "shape" in raw else "tensorclass")


def _wrong(path: str, entry: str, expected: str, got: Any) -> ValueError:
    return ValueError(f"{path}: entry {entry!r}: expected {expected}, got {got!r}")


def _class_name(raw: dict[str, Any], path: str) -> str:
    name, old = raw.get("_class"), raw.get("_type")
    if isinstance(name, str) and ":" in name:
        return name.replace(":", ".")
    match = _CLASS.fullmatch(old) if isinstance(old, str) else None
    if match is None:
        raise _wrong(path, "_type", "the name of a class, such as \"<class 'package.Name'>\"", old)
    return match[1]


def sizes(value: Any, path: str, entry: str) -> tuple[int, ...]:
    """Return a list of sizes as a tuple; raise ValueError naming the file and the entry if it is something else."""
    if type(value) is not list or (value and (set(map(type, value)) != {int} or min(value) < 0 or max(value) >= LIMIT)):
        raise _wrong(path, entry, "a list of sizes", value)
    return tuple(value)


def device_name(value: Any, path: str) -> str | None:
    """Return the name of a device, or None; raise ValueError for what is neither."""
    try:
        return None if value is None else str(torch.device(value if isinstance(value, str) else ""))
    except RuntimeError:
        raise _wrong(path, "device", "the name of a device", value) from None


def _dense(raw: dict[str, Any], path: str) -> tuple[Record, dict[str, Entry]]:
    batch, device, names = (
        sizes(raw.get("shape"), path, "shape"),
        device_name(raw.get("device"), path),
        raw.get("_names"),
    )
    if isinstance(names, dict):
        names = None
    if names is not None and (
        not isinstance(names, list)
        or len(names) != len(batch)
        or not all(name is None or isinstance(name, str) for name in names)
    ):
        raise _wrong(path, "_names", f"a list of {len(batch)} names", names)
    known: dict[str, Spec] = {}
    entries = [
        (key, _entry(key, value, path, known))
        for key, value in raw.items()
        if isinstance(value, dict) or not (key in _FIELDS or key.startswith("_"))
    ]
    for place, key, value in _extra(raw.get(_EXTRA, []), path):
        entries.insert(place, (key, _entry(key, value, path, known)))
    names = tuple(names) if names else None
    return Record("dense", batch, device, names, names_all=raw.get(_ALL) is True), dict(entries)


def _extra(value: Any, path: str) -> list[tuple[int, str, Any]]:
    if not isinstance(value, list):
        raise _wrong(path, _EXTRA, "a list", value)
    for item in value:
        if not (isinstance(item, list) and len(item) == 3 and type(item[0]) is int and isinstance(item[1], str)) or (
            not 0 <= item[0] < LIMIT
        ):
            raise _wrong(path, _EXTRA, "items [place, key, entry]", item)
    return [(item[0], item[1], item[2]) for item in value]


def _entry(key: str, value: Any, path: str, known: dict[str, Spec]) -> Entry:
    """Read what a record says of a child; `known` are the specs that were read before, which most leaves share."""
    if not isinstance(value, dict):
        raise _wrong(path, key, "an object that describes a leaf or a node", value)
    file, name = value.get("file"), value.get("dtype")
    if file is not None and (not isinstance(file, str) or file in (META, SUMS, "", ".", "..") or _is_path(file)):
        raise _wrong(path, key, "a file name without folders", file)
    if name is None and "dtype" not in value:
        kind, batch = value.get("type"), value.get("batch")
        if not isinstance(kind, str):
            raise _wrong(path, key, "a dtype or a type", value)
        size = None if batch is None else sizes(batch, path, key)
        return Entry(file or plain_name(key, "node"), type=kind, batch=size)
    text = f"{name!r}{value.get('shape')!r}"
    spec = known.get(text)
    if spec is None:
        spec = known[text] = _spec(name, value.get("shape"), path, key)
    file = file or plain_name(key, "leaf")
    if value.get("is_nested") is False and "jagged_dim" not in value:
        return Entry(file, *spec)
    return Entry(file, *spec, "", None, *_nested(value, spec[0], path, key))


def _spec(name: Any, shape: Any, path: str, key: str) -> Spec:
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise _wrong(path, key, "the name of a torch dtype", name)
    shape = sizes(shape, path, key)
    if math.prod(shape) * dtype.itemsize >= LIMIT:
        raise _wrong(path, key, "a shape that fits in memory", list(shape))
    return shape, dtype


def _nested(value: dict[str, Any], shape: tuple[int, ...], path: str, key: str) -> tuple[bool, int]:
    nested, dim = value.get("is_nested", False), value.get("jagged_dim", 0)
    if type(nested) is not bool or (nested and len(shape) != 2):
        raise _wrong(path, key, "is_nested to be a bool, and the shape of the sizes if it is true", value)
    if type(dim) is not int or not 0 <= dim <= (shape[1] if nested else 0):
        raise _wrong(path, key, "a jagged_dim among the dims of a row", dim)
    return nested, dim


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or "\0" in name


def _stack(raw: dict[str, Any], path: str) -> tuple[int, str | None]:
    dim, name = raw.get("stack_dim"), raw.get("stack_dim_name")
    if type(dim) is not int:
        raise _wrong(path, "stack_dim", "an integer", dim)
    if name is not None and not isinstance(name, str):
        raise _wrong(path, "stack_dim_name", "a string", name)
    return dim, name


def _lazy(raw: dict[str, Any], path: str, exists: Callable[[str], bool]) -> tuple[Record, dict[str, Entry]]:
    dim, name = _stack(raw, path)
    count, folder = raw.get(_MEMBERS), os.path.dirname(path)
    if count is None:
        count = 0
        while exists(os.path.join(folder, str(count), META)):
            count += 1
    if type(count) is not int or count < 1 or not exists(os.path.join(folder, str(count - 1), META)):
        raise _wrong(path, _MEMBERS, "the number of members, at least one", count)
    record = Record("lazy", stack_dim=dim, stack_name=name)
    return record, {str(member): Entry(str(member)) for member in range(count)}


def _non_tensor(raw: dict[str, Any], path: str, kind: str) -> Record:
    data = raw.get("data")
    if kind != "non-tensor-stack":
        return Record(kind, data=data, pickle=PICKLE if raw.get("_is_non_tensor") and "data" not in raw else None)
    if not isinstance(data, list) and data != STACK_PICKLE:
        raise _wrong(path, "data", f"a list, or {STACK_PICKLE!r}", data)
    dim, name = _stack(raw, path)
    return Record(kind, data=data, stack_dim=dim, stack_name=name, pickle=data if data == STACK_PICKLE else None)


# --- writing


def pickle_name(record: Record) -> str | None:
    """Return the name of the file for the value of a non-tensor; None when JSON can hold it."""
    if not record.kind.startswith("non-tensor") or is_json(record.data):
        return None
    return STACK_PICKLE if record.kind == "non-tensor-stack" else PICKLE


def pickled(record: Record) -> bytes:
    """Return the content of that file."""
    return pickle.dumps(record.data if record.kind == "non-tensor-stack" else {"data": record.data})


def unpickled(name: str, content: bytes) -> Any:
    """Return the value of a non-tensor from the content of its file; this runs what is pickled there."""
    value = pickle.loads(content)
    return value["data"] if name.endswith(PICKLE) else value


def is_json(value: Any) -> bool:
    """Tell whether JSON can hold a value: a tuple counts as a list, anything else must come back as it went."""
    if type(value) in (list, tuple):
        return all(map(is_json, value))
    if type(value) is dict:
        return all(type(key) is str and is_json(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def dump(record: Record, entries: dict[str, Entry]) -> str:
    """Return the text of the `meta.json` of a node, without data that only a pickle can hold."""
    return json.dumps(dump_object(record, entries))


def dump_object(record: Record, entries: dict[str, Entry]) -> dict[str, Any]:
    """Return what the text of the `meta.json` of a node holds."""
    kind = record.kind
    if kind == "dense":
        raw = _dump_dense(record, entries)
    elif kind in _OF_LEAVES:
        raw = _dump_dense(record, entries) | _head(kind) | {"_format_version": NEWEST, _KIND: kind}
    elif kind == "lazy":
        raw = _head(kind) | {"stack_dim": record.stack_dim, "stack_dim_name": record.stack_name}
        raw[_MEMBERS] = len(entries)
    elif kind == "tensorclass":
        # The published package takes any second entry for a field of the class.
        raw = {"_type": f"<class '{record.cls}'>"}
    elif kind in ("non-tensor", "non-tensor-meta"):
        raw = {"_type": _PUBLISHED[kind], "_metadata": None, "_is_non_tensor": True}
        if is_json(record.data):
            raw["data"] = record.data
    elif kind == "non-tensor-stack":
        raw = _head(kind) | {"stack_dim": record.stack_dim, "device": None}
        raw["data"] = record.data if is_json(record.data) else STACK_PICKLE
    else:
        raise ValueError(f"unknown kind of node {kind!r}; expected 'tensorclass' or one of {sorted(_TYPES)!r}")
    if record.rows is not None:
        raw[_ROWS] = list(record.rows)
    return raw


def _head(kind: str) -> dict[str, Any]:
    return {"_type": _PUBLISHED[kind], "_format_version": FORMAT, "_class": _TYPES[kind]}


def _dump_dense(record: Record, entries: dict[str, Entry]) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    extra: list[tuple[int, str, dict[str, Any]]] = []
    for place, (key, entry) in enumerate(entries.items()):
        value: dict[str, Any]
        if entry.dtype is None:
            value = {"type": entry.type} if entry.batch is None else {"type": entry.type, "batch": list(entry.batch)}
        else:
            value = {"device": "cpu", "shape": list(entry.shape), "dtype": str(entry.dtype), "is_nested": entry.nested}
            if entry.jagged_dim:
                value["jagged_dim"] = entry.jagged_dim
        usual = entry.file == plain_name(key, "node" if entry.dtype is None else "leaf")
        if usual and key not in _FIELDS:
            raw[key] = value
        else:
            extra.append((place, key, value | {"file": entry.file}))
    raw |= {"shape": list(record.batch or ()), "device": "cpu"} | _head("dense") | {_ALL: True}
    if record.names is not None:
        raw["_names"] = list(record.names)
    if extra:
        raw[_EXTRA] = extra
    return raw


def type_name(record: Record) -> str:
    """Return the class name that a parent notes for a child."""
    return (record.cls or _TYPES[record.kind]).replace(":", ".").rpartition(".")[2]
