"""Rows gathered into memory of their own: what loaders read with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from tensordict import indexing
from tensordict.aliases import Batch
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.errors import KeysMismatch, ShapeMismatch
from tensordict.indexing import Plan
from tensordict.storage.gathers import as_bytes, copy_rows, is_plain, row_bytes

if TYPE_CHECKING:
    from typing_extensions import Self

Room = Callable[[int], Any]
"""Gives an array of so many bytes."""


def fresh_room(size: int) -> Any:
    """Return new memory."""
    return numpy.empty(size, dtype=numpy.uint8)


class Reading:
    """What is said to each child when rows are gathered: leaves are copied, and nodes are read by the same rows."""

    def __init__(self, rows: Tensor, room: Room = fresh_room, threads: int = 1) -> None:
        self.rows, self.room, self.threads = rows, room, threads
        self.numbers = rows.numpy()
        self.bytes = 0

    def plan(self, batch: Batch) -> Plan:
        """Return the plan by which a node of a batch size is read."""
        return Plan(self, (self.rows,), (len(self.rows), *batch[1:]), tuple(range(len(batch))), False)

    def __call__(self, child: Any) -> Any:
        if isinstance(child, Core):
            return child._read_rows(self.plan(child._meta.batch))  # type: ignore[attr-defined]
        if not is_plain(child):
            found = child.index_select(0, self.rows.to(child.device))
            self.bytes += 0 if found.is_nested else found.nbytes
            return found
        count, width = len(self.rows), row_bytes(child)
        if not count or not width:
            return child.new_empty((count, *child.shape[1:]))
        room = self.room(count * width)
        copy_rows(child, self.numbers, room.reshape(count, width), self.threads)
        self.bytes += count * width
        return torch.from_numpy(room).view(child.dtype).view(count, *child.shape[1:])


class Gather(Facts):
    """Requires: `_read_rows`, `_into`. Gives: rows gathered into memory of their own."""

    if TYPE_CHECKING:

        def _read_rows(self, plan: Plan) -> Self: ...
        def _bare(self) -> Any: ...
        def _into(self, reading: Reading, out: Any) -> list[Callable[[], Any]]: ...

    def gather_rows(self, index: Any, out: Any = None, *, threads: int = 1) -> Self:
        """Return copies of the rows that an index names along the first batch dim.

        The values are those of ``td[index]``. Rows of a tensordict in a store are read, and those of a lazy stack
        become dense where their keys and shapes allow it.

        Args:
            index: row numbers, repeated and negative ones among them, a mask, or a slice: a list, a range, an array or
                a tensor with one dim.
            out: a tensordict that the rows are written to, of their keys, shapes and dtypes.
            threads: at most so many threads copy a leaf of which several megabytes are copied.

        Returns:
            The rows, or ``out``.

        Raises:
            IndexError: if a row is not there, or the index has not one dim.
            KeyError: if ``out`` has other keys.
            ValueError: if ``threads`` is less than 1.
            RuntimeError: if ``out`` has other shapes or dtypes. Nothing has been written then.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(4)}, [4])
            >>> buffer = td[:2].clone()
            >>> td.gather_rows([3, -2], out=buffer)["x"]
            tensor([3, 2])
        """
        if threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads!r}")
        reading = Reading(row_numbers(index, self._meta.batch), threads=threads)
        if out is None:
            return self._read_rows(reading.plan(self._meta.batch))
        out._writable()
        for step in self._bare()._into(reading, out._bare()):
            step()
        return out  # type: ignore[no-any-return]

    def _even(self) -> bool:
        """Tell whether rows that were read for several batches can be split into them."""
        return False


def row_numbers(index: Any, batch: Batch) -> Tensor:
    """Return the rows that an index names along the first batch dim, counted from the front.

    >>> row_numbers([True, False, True], (3, 2)), row_numbers([-1, 0], (3,))
    (tensor([0, 2]), tensor([2, 0]))

    Raises:
        IndexError: if there is no such row, or the index is not one for rows along one dim.
    """
    if not batch:
        raise IndexError(f"rows are gathered along the first batch dim, and there is none; got index {index!r}")
    if isinstance(index, slice):
        return torch.arange(*index.indices(batch[0]))
    try:
        items = indexing.plan(index, batch).items
    except IndexError as error:
        raise indexing.explain(index, batch, error) from None
    rows = items[0] if len(items) == 1 else None
    if not isinstance(rows, Tensor) or rows.ndim != 1:
        raise IndexError(f"rows are gathered by row numbers or a mask, with one dim; got index {index!r}")
    rows = rows.to("cpu", torch.long)
    if not rows.numel():
        return rows
    low, high = map(int, torch.aminmax(rows))
    if low < -batch[0] or high >= batch[0]:
        raise IndexError(
            f"row {low if low < -batch[0] else high} is out of range for dim 0 of size {batch[0]} "
            f"(batch size {list(batch)})"
        )
    return torch.where(rows < 0, rows + batch[0], rows) if low < 0 else rows.contiguous()


def same_keys(source: Any, out: Any) -> None:
    """Raise unless two nodes have the same keys."""
    if not isinstance(out, Core) or set(source._keys()) != set(out._keys()):
        got = sorted(out._keys()) if isinstance(out, Core) else repr(out)
        raise KeysMismatch(f"out does not fit: expected the keys {sorted(source._keys())}, got {got}")


def fits(key: str, shape: Batch, leaf: Tensor, out: Any) -> None:
    """Raise unless rows of a leaf, which have a shape together, can be written to another leaf as they are."""
    if leaf.is_nested:
        raise ShapeMismatch(f"out has no room for the nested tensor at key {key!r}: gather without out")
    if not isinstance(out, Tensor) or out.shape != shape or out.dtype is not leaf.dtype:
        got = f"{list(out.shape)} of {out.dtype}" if isinstance(out, Tensor) else repr(out)
        raise ShapeMismatch(f"out does not fit at key {key!r}: expected {list(shape)} of {leaf.dtype}, got {got}")


def alike(rows: Any, out: Any) -> None:
    """Raise unless rows have the keys, shapes and dtypes of the node that they are to be written to."""
    same_keys(rows, out)
    for key, leaf in rows._raw_pairs():
        theirs = out._get(key)
        if isinstance(leaf, Tensor):
            fits(key, leaf.shape, leaf, theirs)
        elif not leaf._is_non_tensor:
            alike(leaf, theirs)


def steps(source: Any, reading: Reading, out: Any) -> list[Callable[[], Any]]:
    """Return the calls that copy the rows of one dense node to another, once it is seen that they fit."""
    same_keys(source, out)
    found: list[Callable[[], Any]] = []
    for key, child in source._raw_pairs():
        theirs = out._get(key)
        if isinstance(child, Tensor):
            fits(key, child.shape if child.is_nested else (len(reading.rows), *child.shape[1:]), child, theirs)
            found.append(partial(copy_into, reading, child, theirs))
        elif not child._is_non_tensor:
            same_keys(child, theirs)
            found += child._bare()._into(reading, theirs._bare())
        elif out._home is None:
            found.append(partial(out._set, key, child._read_rows(reading.plan(child._meta.batch))))
        else:
            found.append(partial(theirs._written, (), child._read_rows(reading.plan(child._meta.batch))))
    return found


def copy_into(reading: Reading, leaf: Tensor, out: Tensor) -> None:
    """Copy the rows of a leaf to another of their shape."""
    if len(reading.rows) and is_plain(leaf) and is_plain(out) and row_bytes(leaf):
        copy_rows(leaf, reading.numbers, as_bytes(out), reading.threads)
    else:
        out.copy_(leaf.index_select(0, reading.rows.to(leaf.device)))
