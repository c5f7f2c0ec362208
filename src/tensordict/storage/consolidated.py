"""A tree in one file: a header, a description in JSON, and all leaves side by side.

    Sketch --describe--> JSON of the tree, each node as the `meta.json` of a folder --write--> one file
    file --map--> header and description are checked --Consolidated--> leaves over the mapping

docs/file-format.md gives the file byte by byte.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict.storage import layout, published
from tensordict.storage.base import Child, content_of, padded, view
from tensordict.storage.buffer import pieces_of
from tensordict.storage.layout import Entry
from tensordict.storage.memmap import map_file
from tensordict.storage.memory import Slot, pour
from tensordict.storage.opened import Opened
from tensordict.storage.ragged import parts
from tensordict.storage.sketch import LAYOUTS, Sketch, arrange
from tensordict.storage.stream import Stream, crc, new_file, raw

MAGIC = b"\x93TDBLOCK"
VERSION = 1
_AT_ONCE = 8 << 20  # bytes of records that are put together at a time
_HEAD = struct.Struct("<8sIIQQ")  # magic, version, CRC-32 of the description, its bytes, bytes of the leaves


# --- writing


class Draft(NamedTuple):
    """A file before it is written: its description, where in it each tensor of a tree lies, where the leaves begin.

    `runs` are those in the description, by the number of the tensor; their sums are zeros, which take as much room.
    """

    sketch: Sketch
    found: dict[str, Any]
    runs: list[list[Any]]
    slots: list[Slot]
    start: int
    nbytes: int

    def head(self, sums: Sequence[int]) -> bytes:
        """Return the header and the description, with the sums of all tensors."""
        for run, found in zip(self.runs, sums):
            run[3] = f"{found:08x}"
        text, total = _text(self.found), self.nbytes - self.start
        return _HEAD.pack(MAGIC, VERSION, zlib.crc32(text), len(text), total) + text

    def fill(self, leaf: Tensor) -> list[Tensor]:
        """Write the whole file to a leaf of its bytes; return the tensors there."""
        pieces = pour(self.sketch.tensors, self.slots, leaf.untyped_storage(), self.sketch.blank)
        head = self.head(list(map(crc, self.sketch.tensors)))
        leaf[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        return pieces


def draft(sketch: Sketch, layout: str | None = None) -> Draft:
    """Return the plan of a file for a sketched tree.

    Raises:
        ValueError: there is no such layout, or the tree has no rows.
    """
    _pickle_objects(sketch)
    slots, total = arrange(sketch, layout)
    runs = [[slot.start, slot.stride, slot.nbytes, f"{0:08x}"] for slot in slots]
    found = _describe(sketch, runs, layout)
    start = padded(_HEAD.size + len(_text(found)))
    return Draft(sketch, found, runs, [slot.moved(start) for slot in slots], start, start + total)


def write_file(path: str, made: Draft) -> None:
    """Write a file, whole or not at all.

    Raises:
        OSError: the file system has too little space; the message names the file and the bytes needed.
    """
    slots, sums = made.slots, [0] * len(made.slots)
    with new_file(path, made.nbytes) as stream:
        stream.pad(made.start)
        _put_records(stream, made.sketch, slots, sums)
        for number in sorted((n for n, slot in enumerate(slots) if not slot.stride), key=lambda n: slots[n].start):
            stream.pad(slots[number].start)
            sums[number] = stream.put_tensor(made.sketch.tensors[number])
        stream.pad(made.nbytes)
        stream.put_first(made.head(sums))


def _put_records(stream: Stream, sketch: Sketch, slots: Sequence[Slot], sums: list[int]) -> None:
    """Write the leaves that lie side by side, some records at a time."""
    beside = [number for number, slot in enumerate(slots) if slot.stride]
    if not beside:
        return
    stride, count, start = slots[beside[0]].stride, len(sketch.tensors[beside[0]]), stream.at
    at_once = max(1, _AT_ONCE // stride)
    for first in range(0, count, at_once):
        some = slice(first, first + at_once)
        rows = [sketch.tensors[number][some] for number in beside]
        block = torch.zeros(len(rows[0]) * stride, dtype=torch.uint8)
        within = [slots[number].moved(-start)._replace(shape=tuple(row.shape)) for number, row in zip(beside, rows)]
        pour(rows, within, block.untyped_storage())
        stream.put(raw(block))
        for number, part in zip(beside, rows):
            sums[number] = zlib.crc32(raw(part), sums[number])


def _pickle_objects(node: Sketch) -> None:
    """Add the values that JSON cannot hold to the tensors of a tree, as the bytes of a pickle."""
    if layout.pickle_name(node.meta) is not None:
        content = bytearray(pickle.dumps(node.meta.data))
        node.places[""] = [len(node.tensors)]
        node.apart.add(len(node.tensors))
        node.tensors.append(torch.frombuffer(content, dtype=torch.uint8))
    for child in node.nodes():
        _pickle_objects(child)


def _text(found: dict[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _describe(node: Sketch, runs: list[list[Any]], order: str | None) -> dict[str, Any]:
    """Return the description of a node, whose tensors lie in these runs, by their numbers."""
    record, keys = node.meta, node.keys()
    found: dict[str, Any] = {"meta": layout.dump_object(record, node.entries())}
    if record.batch is not None:
        found["batch"] = list(record.batch)
    if record.device is not None:
        found["device"] = record.device
    if order:
        found["layout"] = order
    if keys:
        found["leaves"] = [[runs[at] for at in node.places[key]] for key, kind in keys.items() if kind == "leaf"]
        found["nodes"] = [_describe(child, runs, order) for child in node.nodes()]
    elif "" in node.places:
        found["pickle"] = [runs[at] for at in node.places[""]]
    return found


# --- reading


class Mapping(NamedTuple):
    """A mapped file: where its leaves begin, the bytes they take, what was asked when it was opened, its pieces."""

    path: str
    mode: str
    storage: torch.UntypedStorage
    start: int
    nbytes: int
    allow_pickle: bool
    kind: str
    pieces: set[tuple[int, int]]

    def view(self, run: Any, shape: tuple[int, ...], dtype: torch.dtype, leaf: bool = False) -> Tensor:
        """Return the tensor that lies in a run, after a check that it is all there; note whether it is a leaf."""
        start, stride, size, _ = run if type(run) is list and len(run) == 4 else (None,) * 4
        if not type(start) is type(stride) is type(size) is int or start < 0 or stride < 0:
            raise _wrong(self.path, "leaves", "a run [start, stride, bytes, sum]", run)
        itemsize, end = dtype.itemsize, start + size
        if size != math.prod(shape) * itemsize or start % itemsize or stride % itemsize:
            raise _wrong(self.path, "leaves", f"a run for shape {list(shape)} of {dtype}", run)
        home: Any = self.storage._home  # type: ignore[attr-defined]
        if stride:
            if not (shape and shape[0] and size // shape[0] <= stride):
                raise _wrong(self.path, "leaves", f"a stride of at least a row of shape {list(shape)} of {dtype}", run)
            end = start + stride * (shape[0] - 1) + size // shape[0]
            home.records = (self.start, stride, shape[0])
        if end > self.nbytes:
            raise _wrong(self.path, "leaves", f"a run that ends within {self.nbytes} bytes", run)
        start += self.start
        home.note(start, shape)
        if leaf:
            self.pieces.add((start, size))
        return view(self.storage, start, shape, dtype, stride)


class Consolidated(Opened):
    """Open one node of a tree that `write_file` wrote.

    Args:
        source: the mapped file.
        found: the description of the node.
        key: the keys that lead to it, for errors.

    Raises:
        ValueError: the description is malformed; the message names the file and the entry.
        RuntimeError: it holds a pickle, and reading one was not allowed.
    """

    summed = True
    """The file has checksums."""

    def __init__(self, source: Mapping, found: Any, key: tuple[str, ...] = ()) -> None:
        super().__init__(source.path, source.mode, key, source.allow_pickle)
        where = f"{source.path}: node {'/'.join(key)!r}" if key else source.path
        if not isinstance(found, dict) or not isinstance(found.get("meta"), dict):
            raise _wrong(source.path, str(key), 'an object with the entry "meta"', found)
        nodes = found.get("nodes")
        members = len(nodes) if type(nodes) is list else 0
        record, self._entries = layout.parse_object(
            found["meta"], where, lambda path: int(os.path.basename(os.path.dirname(path))) < members
        )
        self._source, self.kind = source, source.kind
        self.layout = found.get("layout", "")
        if self.layout not in LAYOUTS and self.layout != "":
            raise _wrong(self.path, "layout", "'rows'", self.layout)
        self._runs = self._by_key(found, "leaves", "leaf")
        self._nodes = self._by_key(found, "nodes", "node")
        batch, device = found.get("batch"), layout.device_name(found.get("device"), self.path)
        batch = record.batch if batch is None else layout.sizes(batch, self.path, "batch")
        self._record = replace(record, batch=batch, device=device)
        self._unpickle(lambda name: pickle.loads(self._pickle(found.get("pickle"))))

    def _by_key(self, found: dict[str, Any], name: str, kind: Child) -> dict[str, Any]:
        value, keys = found.get(name, []), [key for key, one in self.keys().items() if one == kind]
        if type(value) is not list or len(value) != len(keys):
            raise _wrong(self.path, f"{name} of {self._key!r}", f"a list of {len(keys)}", value)
        return dict(zip(keys, value))

    def _pickle(self, runs: Any) -> memoryview:
        if type(runs) is not list or len(runs) != 1 or type(runs[0]) is not list or len(runs[0]) != 4:
            raise _wrong(self.path, "pickle", "one run", runs)
        size = runs[0][2] if type(runs[0][2]) is int else 0
        return raw(self._source.view(runs[0], (size,), torch.uint8))

    def _piece(self, key: str, file: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        entry, runs = self._entries[key], self._runs[key]
        if type(runs) is not list or len(runs) != 1 + entry.nested:
            raise _wrong(self.path, "leaves", f"a list of {1 + entry.nested} runs", runs)
        first = file == entry.file
        return self._source.view(runs[not first], shape, dtype, first)

    def _node(self, key: str, entry: Entry) -> Consolidated:
        return Consolidated(self._source, self._nodes[key], (*self._key, key))


def open_file(path: str, mode: str, *, allow_pickle: bool = False) -> Consolidated:
    """Map a file that `write_file` wrote and return its root.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not such a file, is damaged, or has another size than it says.
        RuntimeError: it was written in a newer format, or holds a pickle and `allow_pickle` is false.
    """
    path = os.path.abspath(path)
    return open_storage(map_file(path, os.stat(path).st_size, mode), path, mode, allow_pickle)


def open_storage(
    storage: torch.UntypedStorage, path: str, mode: str, allow_pickle: bool, kind: str = "consolidated"
) -> Consolidated:
    """Return the root of a tree whose file is mapped already; arguments and errors as for `open_file`."""
    size = storage.nbytes()
    if size < _HEAD.size:
        raise ValueError(f"{path!r} holds no consolidated tensordict: it has {size} bytes, fewer than a header")
    content = content_of(storage)
    magic, version, checksum, length, total = _HEAD.unpack_from(content)
    if magic != MAGIC:
        other = published.description(content, path)
        if other is None:
            raise ValueError(f"{path!r} holds no consolidated tensordict: it begins with {magic!r}, not {MAGIC!r}")
        room = Consolidated(Mapping(path, mode, storage, 0, other[1], allow_pickle, kind, pieces_of(storage)), other[0])
        room.summed = False
        return room
    if version > VERSION:
        raise RuntimeError(
            f"{path!r} was written in version {version} of the consolidated format, but this version reads up to "
            f"{VERSION}; upgrade tensordict"
        )
    start = padded(_HEAD.size + length)
    if size != start + total:
        raise ValueError(f"{path!r} should hold {start + total} bytes, but it holds {size}")
    text = content[_HEAD.size : _HEAD.size + length]
    if zlib.crc32(text) != checksum:
        raise ValueError(f"{path!r} is damaged: the description of its leaves has another checksum than it should")
    try:
        found = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path!r}: not valid JSON: {error}") from error
    return Consolidated(Mapping(path, mode, storage, start, total, allow_pickle, kind, pieces_of(storage)), found)


def _wrong(path: str, entry: str, expected: str, got: Any) -> ValueError:
    return ValueError(f"{path}: entry {entry!r}: expected {expected}, got {got!r}")


def damage(node: Consolidated) -> Iterator[str]:
    """Yield a line for each leaf of a tree in which the bytes do not have the CRC-32 that was saved."""
    for key, kind in node.keys().items():
        if kind == "node":
            yield from damage(node.child(key))
            continue
        leaf, runs = node.read(key), node._runs[key]
        pieces = [leaf] if not leaf.is_nested else [parts(leaf).values, parts(leaf).sizes]
        for piece, run in zip(pieces, runs, strict=True):
            found = f"{crc(piece):08x}"
            if found != run[3] is not None:
                yield (
                    f"key {layout.shown((*node._key, key))}: {node.path!r} has the CRC-32 {found} there, expected "
                    f"{run[3]!r}: it is damaged, or was written through a mapping"
                )
