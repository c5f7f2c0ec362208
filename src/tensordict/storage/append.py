"""Rows appended to a tree in a folder, in one step.

    record [100, 100] --> record [100, 120] --> files grow, rows are written and flushed --> record [120, 120]

The record at the top says how many rows there are and how many a file may hold (see `rows`); replacing it is the one
step. Who opens the folder before that has the old rows, after it the new ones. An append that is cut off leaves files
longer than the record says, up to the limit in it; the next append writes over what lies there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import torch
from torch import Tensor

from tensordict.storage import checksum, disk, layout
from tensordict.storage.arrays import flat
from tensordict.storage.base import Record, byte_count
from tensordict.storage.folder import Folder
from tensordict.storage.layout import INNER
from tensordict.storage.ragged import Parts, parts
from tensordict.storage.rows import BYTES, OFFSETS, VALID, Rows, end_of_strings
from tensordict.storage.saving import root_of
from tensordict.storage.sketch import Sketch
from tensordict.storage.stream import raw
from tensordict.storage.strings import PARTS, Strings

Key = tuple[str, ...]


@dataclass
class _Growth:
    """What an append will do, found out before anything is written."""

    count: int  # rows there are
    more: int
    files: list[tuple[str, int, Any]] = field(default_factory=list)  # path, where the new bytes begin, new bytes
    before: list[Callable[[], Any]] = field(default_factory=list)  # what is done before the step
    after: list[Folder] = field(default_factory=list)  # nodes that get their records anew after it

    @property
    def total(self) -> int:
        return self.count + self.more

    def bytes_of(self, path: str, start: int, data: Tensor) -> None:
        self.files.append((path, start, raw(data)))


def append(path: str, given: Sketch, *, allow_pickle: bool = False) -> None:
    """Append the rows of a tree, which is in memory, to one that lies in a folder.

    Raises:
        FileNotFoundError: there is no tree in the folder.
        ValueError: the rows do not fit; nothing has been written.
        OSError: there is too little space; the tree is as it was.
    """
    with alone(path):
        root = Folder(path, "r+", allow_pickle=allow_pickle)
        above: list[Folder] = []
        while root.meta.kind == "tensorclass" and given.meta.kind == "tensorclass":
            _require("class", root.meta.cls, given.meta.cls, ())
            above.append(root)
            root, given = root.child(INNER), given.child(INNER)
        growth = _planned(root, given)
        if growth.more:
            _grow(root, growth)


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Hold the tree in a folder: others that append to it, or replace it, wait."""
    while True:
        with disk.held(path) as descriptor:
            there = os.stat(path)
            mine = there if descriptor is None else os.fstat(descriptor)
            if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):  # else it was replaced while I waited
                yield
                return


def _planned(root: Folder, given: Sketch) -> _Growth:
    if root.meta.kind == "packed":
        raise ValueError(f"{root.path!r} was saved with layout='rows' and cannot grow; save it in the plain layout")
    _require("kind of node", root.meta.kind, given.meta.kind, ())
    if root.meta.kind == "lazy" and root.meta.stack_dim == 0:
        growth = _Growth(len(root.keys()), len(given.keys()))
    else:
        batch = given.meta.batch if given.meta.kind != "lazy" else given.child("0").meta.batch
        own = root.meta.batch if root.meta.kind != "lazy" else root.child("0").meta.batch
        if not own or not batch:
            raise ValueError(
                f"rows can be appended along the first batch dim, but {root.path!r} has batch size {own!r}"
            )
        growth = _Growth(own[0], batch[0])
    _plan(growth, root, given, ())
    return growth


def _grow(root: Folder, growth: _Growth) -> None:
    old = Rows(*root.meta.rows) if root.meta.rows is not None else Rows(growth.count, growth.count)
    _say(root, growth.count, Rows(growth.count, max(old.limit, growth.total)))
    try:
        _write(growth)
        for step in growth.before:
            step()
    except BaseException:
        with contextlib.suppress(OSError):
            _cut_back(growth)
            _say(root, growth.count, Rows(growth.count, growth.count))
        raise
    _say(root, growth.total, Rows(growth.total, growth.total))
    for node in growth.after:
        if node is not root:
            node.limit(Rows(growth.total, growth.total))
            node.meta = replace(node.meta, rows=None)


def _say(root: Folder, count: int, rows: Rows) -> None:
    root.limit(Rows(count, rows.limit))
    root.meta = replace(root.meta, rows=(rows.number, rows.limit))


def _write(growth: _Growth) -> None:
    """Make room in all files first, then write, then flush."""
    for path, _, _ in growth.files:
        root = root_of(os.path.dirname(path))
        checksum.forget(root, [os.path.relpath(path, root)])
    for path, start, data in growth.files:
        with _opened(path) as descriptor:
            disk.reserve(descriptor, start + len(data), path)
            if os.fstat(descriptor).st_size > start + len(data):  # what an append that was cut off has left
                disk.truncate(descriptor, start + len(data))
    for path, start, data in growth.files:
        with _opened(path) as descriptor:
            disk.write(descriptor, data, path, start)
            disk.start_writing(descriptor)
    disk.sync_all([path for path, _, _ in growth.files])


def _cut_back(growth: _Growth) -> None:
    for path, start, _ in growth.files:
        with _opened(path) as descriptor:
            if not path.endswith(f"{VALID}{layout.SUFFIX}"):
                disk.truncate(descriptor, start)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# --- planning, node by node


def _plan(growth: _Growth, node: Folder, given: Sketch, key: Key) -> None:
    kind = node.meta.kind
    if kind in ("strings", "non-tensor-stack"):
        _plan_column(growth, node, given, key)
        return
    _require("kind of node", kind, given.meta.kind, key)
    if kind == "lazy":
        _plan_lazy(growth, node, given, key)
    elif kind == "tensorclass":
        _require("class", node.meta.cls, given.meta.cls, key)
        _plan(growth, node.child(INNER), given.child(INNER), key)
    elif kind == "dense":
        _plan_dense(growth, node, given, key)
    elif kind == "unbatched":
        if not _same(node.read("data"), given.read("data")):
            raise ValueError(f"the tensor at {_said(key)} is one for all rows, and the rows to append have another")
        growth.after.append(node)
    elif node.meta.data != given.meta.data:
        raise ValueError(
            f"the value at {_said(key)} is one for all rows: expected {node.meta.data!r}, got "
            f"{given.meta.data!r}; save it with one value a row first"
        )


def _plan_dense(growth: _Growth, node: Folder, given: Sketch, key: Key) -> None:
    _require("batch dims after the first", (node.meta.batch or ())[1:], (given.meta.batch or ())[1:], key)
    theirs = given.keys()
    missing, more = sorted(node.keys().keys() - theirs.keys()), sorted(theirs.keys() - node.keys().keys())
    if missing or more:
        raise ValueError(
            f"the rows to append to {_said(key)} should have the same keys: missing {missing}, extra {more}"
        )
    for name, child in node.keys().items():
        _require("kind", child, theirs[name], (*key, name))
        if child == "leaf":
            _plan_leaf(growth, node, name, given.read(name), (*key, name))
        else:
            _plan(growth, node.child(name), _column(node, given, name, growth), (*key, name))
    growth.after.append(node)


def _column(node: Folder, given: Sketch, name: str, growth: _Growth) -> Sketch:
    """Return a child of the rows to append; one value for all of them as a column, where there is a column."""
    theirs = given.child(name)
    if node.child(name).meta.kind in ("strings", "non-tensor-stack") and theirs.meta.kind == "non-tensor":
        shape = (growth.more, *(node.meta.batch or ())[1:])
        values: Any = theirs.meta.data
        for size in reversed(shape):
            values = [values] * size
        column = Sketch()
        column.meta = Record("non-tensor-stack", shape, data=values, stack_dim=0)
        return column
    return theirs


def _plan_leaf(growth: _Growth, node: Folder, name: str, rows: Tensor, key: Key) -> None:
    entry = node.entry(name)
    path = os.path.join(node.path, entry.file)
    _require("dtype", entry.dtype, rows.dtype, key)
    _require("kind of tensor", "nested" if entry.nested else "plain", "nested" if rows.is_nested else "plain", key)
    if entry.nested:
        _plan_nested(growth, path, parts(node.read(name)), parts(rows), key)
        return
    _require("shape of a row", entry.shape[1:], tuple(rows.shape[1:]), key)
    assert entry.dtype is not None
    growth.bytes_of(path, byte_count(entry.shape, entry.dtype), rows)


def _plan_nested(growth: _Growth, path: str, old: Parts, new: Parts, key: Key) -> None:
    _require("ragged dim", old.jagged_dim, new.jagged_dim, key)
    if not growth.count:
        raise ValueError(f"cannot append to the nested tensor at {_said(key)}, which has no rows; save it anew")
    _require("number of dims of a row", old.sizes.shape[1], new.sizes.shape[1], key)
    if old.jagged_dim:
        fixed = [at for at in range(old.sizes.shape[1]) if at != old.jagged_dim - 1]
        _require("sizes of a row", old.sizes[0, fixed].tolist(), new.sizes[0, fixed].tolist(), key)
    growth.bytes_of(path, old.values.nbytes, new.values)
    growth.bytes_of(layout.sizes_name(path), old.sizes.nbytes, new.sizes)


def _plan_lazy(growth: _Growth, node: Folder, given: Sketch, key: Key) -> None:
    _require("stack dim", node.meta.stack_dim, given.meta.stack_dim, key)
    if node.meta.stack_dim:
        _require("number of members", len(node.keys()), len(given.keys()), key)
        for name, _ in node.keys().items():
            _plan(growth, node.child(name), given.child(name), (*key, name))
        growth.after.append(node)
        return
    first = len(node.keys())
    for at in range(len(given.keys())):
        growth.before.append(_member(node, str(first + at), given.child(str(at))))
    growth.after.append(node)


def _member(node: Folder, name: str, given: Sketch) -> Callable[[], None]:
    return lambda: _copy(given, node.new_member(name))


def _copy(given: Sketch, node: Folder) -> None:
    for key, kind in given.keys().items():
        if kind == "leaf":
            node.write(key, given.read(key))
        else:
            _copy(given.child(key), node.child(key))
    node.meta = given.meta


# --- columns of values


def _plan_column(growth: _Growth, node: Folder, given: Sketch, key: Key) -> None:
    if given.meta.kind not in ("strings", "non-tensor-stack"):
        raise ValueError(
            f"cannot append to the column at {_said(key)}: expected values, one a row, got {given.meta.kind}"
        )
    if node.meta.kind == "strings":
        _plan_strings(growth, node, _strings(given, key), key)
        return
    values, batch = given.meta.data, given.meta.batch or (growth.more,)
    if given.meta.kind == "strings":
        values = _nested(_strings(given, key).take(), batch)
    old = node.meta
    record = replace(old, data=[*old.data, *values])
    growth.before.append(lambda: setattr(node, "meta", record))


def _nested(values: list[Any], shape: Sequence[int]) -> list[Any]:
    for size in reversed(shape[1:]):
        values = [values[at : at + size] for at in range(0, len(values), size)]
    return values


def _strings(given: Sketch, key: Key) -> Strings:
    if given.meta.kind == "strings":
        found = given.keys()
        return Strings(*(given.read(name) for name in PARTS if name in found or name != VALID))
    values = flat(given.meta.data, len(given.meta.batch or (1,)))
    made = Strings.of(values) if any(value is not None for value in values) else Strings.of([*values, ""])
    if made is None:
        raise ValueError(f"the column at {_said(key)} holds strings: cannot append {values[:3]!r}")
    return made.pick(torch.arange(len(values)))


def _plan_strings(growth: _Growth, node: Folder, new: Strings, key: Key) -> None:
    inner = 1
    for size in (node.meta.batch or ())[1:]:
        inner *= size
    old, files = (
        growth.count * inner,
        {name: os.path.join(node.path, node.entry(name).file) for name in PARTS if node.keys().get(name)},
    )
    _require("number of strings", growth.more * inner, len(new), key)
    end = end_of_strings(files[OFFSETS], old)
    growth.bytes_of(files[BYTES], end, new.data)
    growth.bytes_of(files[OFFSETS], 8 * (old + 1), new.offsets[1:] + end)
    if VALID in files:
        shared = numpy.frombuffer(_tail(files[VALID], old // 8), numpy.uint8)
        growth.bytes_of(files[VALID], old // 8, _bits(shared, old % 8, new))
    elif new.valid is not None:
        whole = numpy.full(old // 8 + 1, 255, numpy.uint8)
        bits = torch.cat([torch.from_numpy(whole[: old // 8]), _bits(whole[:1], old % 8, new)])
        growth.before.append(lambda: _add_valid(node, bits))
    growth.after.append(node)


def _tail(path: str, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(1)


def _bits(shared: Any, count: int, new: Strings) -> Tensor:
    """Return the bits of some strings after the first bits of a byte that they share."""
    first = numpy.unpackbits(shared[:1], bitorder="little")[:count] if count else numpy.zeros(0, numpy.uint8)
    valid = numpy.full(-(-len(new) // 8), 255, numpy.uint8) if new.valid is None else new.valid.numpy()
    known = numpy.unpackbits(valid, count=len(new), bitorder="little")
    return torch.from_numpy(numpy.packbits(numpy.concatenate([first, known]), bitorder="little"))


def _add_valid(node: Folder, bits: Tensor) -> None:
    node.write(VALID, bits)
    node.meta = replace(node.meta, rows=None)


# --- words


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype is other.dtype and torch.equal(one, other)


def _said(key: Key) -> str:
    return repr(key[0] if len(key) == 1 else key) if key else "the tensordict"


def _require(what: str, expected: Any, got: Any, key: Key) -> None:
    if expected != got:
        raise ValueError(f"cannot append to {_said(key)}: the {what} should be {expected!r}, got {got!r}")
