"""Any index to a plan: parsed once for a node, then the fastest call for every child.

An index is torch's own: int, slice, None, Ellipsis, bool, range, list, nested list, numpy array, index or mask tensor,
and tuples that mix them. It addresses the batch dims only. Ints are selects and do not count as advanced indices, as in
torch; index tensors that stand side by side put their dims where they stood, others put them in front.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from tensordict.aliases import Batch

_ROW_NUMBERS = (torch.int64, torch.int32, torch.int16, torch.int8)


class Plan(NamedTuple):
    """An index, parsed against a batch size.

    ``call`` reads a child, ``items`` is the normal form (no Ellipsis, lists or masks; for writing and for routing),
    ``batch`` the batch of the result, ``kept`` the source dim of every result dim (None for a new one), ``view``
    whether the result of reading shares memory with the source, ``place`` where the dims of index tensors stand.
    """

    call: Callable[[Any], Any]
    items: tuple[Any, ...]
    batch: Batch
    kept: tuple[int | None, ...]
    view: bool
    place: int = 0


def plan(index: Any, batch: Batch) -> Plan:
    """Return the plan of an index."""
    kind = type(index)
    if kind is int:
        if batch and -batch[0] <= index < batch[0]:
            return Plan(lambda v: v[index], (index,), batch[1:], tuple(range(1, len(batch))), True)
        raise _out_of_range(index, batch, 0)
    if kind is slice and batch:
        _forward(index)
        size = _span(index, batch[0])
        return Plan(lambda v: v[index], (index,), (size, *batch[1:]), tuple(range(len(batch))), True)
    if kind is tuple and not index:
        return Plan(lambda v: v[index], (), batch, tuple(range(len(batch))), True)
    if (kind is Tensor or kind is list) and batch:
        rows = _rows(index, batch)
        if rows is not None:
            return rows
    return _general(index if kind is tuple else (index,), batch)


def unled(value: Tensor) -> Tensor:
    """Return a tensor that is to be written without leading dims of size one: torch's indexing does not mind them."""
    lead = next((at for at, size in enumerate(value.shape) if size != 1), value.ndim)
    return value.reshape(value.shape[lead:]) if lead else value


def _span(item: slice, size: int) -> int:
    """Return how many rows a slice takes, by sums: `slice.indices` would make the compiler fix a dynamic size."""
    start, stop, step = item.start, item.stop, item.step
    first = 0 if start is None else start if type(start) is int and 0 <= start <= size else _bound(start, size)
    last = size if stop is None else stop if type(stop) is int and 0 <= stop <= size else _bound(stop, size)
    count: int = last - first if step is None else -((first - last) // operator.index(step))
    return count if count > 0 else 0


def _bound(at: Any, size: int) -> int:
    """Return where a bound of a slice stands, counted from the front and within the rows."""
    number: int = operator.index(at)
    return max(number + size, 0) if number < 0 else min(number, size)


def rows(index: Sequence[int], batch: Batch) -> Plan:
    """Return the plan of a batch of row numbers (a list of ints), which become a tensor once."""
    found = _rows(list(index), batch) if batch else None
    return plan(list(index), batch) if found is None else found


def _rows(index: Any, batch: Batch) -> Plan | None:
    """Return the plan of a 1-d index of whole rows, or None when it is something else."""
    if type(index) is list:
        if not index or type(index[0]) is not int:
            return None
        picked = _numbers(index)
        if picked is None or picked.dtype is not torch.long or picked.ndim != 1:
            return None
        low, high = min(index), max(index)
        if high >= batch[0] or low < -batch[0]:
            raise _out_of_range(high if high >= batch[0] else low, batch, 0)
        if low < 0:
            picked = torch.where(picked < 0, picked + batch[0], picked)
    elif index.dtype is torch.long and index.ndim == 1:
        picked = index
    else:
        return None
    return Plan(_picking(0, picked), (picked,), (picked.shape[0], *batch[1:]), tuple(range(len(batch))), False)


def _numbers(index: list[Any]) -> Tensor | None:
    """Return a list as a tensor, through numpy, which reads it faster; None where the list has no shape."""
    try:
        return torch.from_numpy(numpy.array(index))
    except (ValueError, TypeError, OverflowError):
        return None


def _picking(dim: int, rows: Tensor) -> Callable[[Any], Any]:
    """Return the call that reads whole rows by the kernel that copies them; it knows no negative row numbers."""
    if not rows.is_cpu:
        # an error on a device comes late and cannot be caught, so rows are counted from the front first
        def call_device(v: Any) -> Any:
            return v.index_select(dim, torch.where(rows < 0, rows + v.shape[dim], rows))

        return call_device
    items = (slice(None),) * dim + (rows,)

    def call(v: Any) -> Any:
        if not isinstance(v, Tensor):  # a node: its leaves are called in their turn
            batch = v._meta.batch
            out = (*batch[:dim], rows.shape[0], *batch[dim + 1 :])
            return v._index(Plan(call, items, out, tuple(range(len(batch))), False, dim))
        try:
            return v.index_select(dim, rows)
        except (IndexError, RuntimeError):  # negative rows, or none such: torch's own indexing decides
            return v[items]

    return call


def _out_of_range(index: Any, batch: Batch, dim: int) -> IndexError:
    if dim >= len(batch):
        return IndexError(f"too many indices: index {index!r} needs dim {dim}, but the batch size is {list(batch)}")
    return IndexError(f"index {index} is out of range for dim {dim} of size {batch[dim]} (batch size {list(batch)})")


def check_rows(plan: Plan, batch: Batch) -> None:
    """Raise IndexError if an index tensor names a row that is not there: torch would find out after writing others."""
    items = plan.items
    found = [item for item in items if isinstance(item, Tensor)]
    if not found:
        return
    rows = tuple(map(abs, batch))  # a size that members of a lazy stack do not share is -1
    try:
        # sizes one by one are read faster than a tuple of them
        found[0].new_empty(()).expand(*rows)[items]
    except IndexError as error:
        raise explain(plan.items, batch, error) from None


def explain(index: Any, batch: Batch, error: Exception) -> IndexError:
    """Return an error that names the index and the batch size, for one that a leaf raised."""
    shown = f"a tensor of shape {list(index.shape)}" if isinstance(index, Tensor) else repr(index)
    return IndexError(f"index {shown} does not fit the batch size {list(batch)}: {error}")


def _item(item: Any) -> Any:
    """Return one item of an index in its normal form: None, Ellipsis, a slice, a bool, an int or a tensor."""
    if item is None or item is Ellipsis or isinstance(item, (bool, int)):
        return item
    if isinstance(item, slice):
        return _forward(item)
    if isinstance(item, numpy.bool_):
        return bool(item)
    if isinstance(item, numpy.integer):
        return int(item)
    found = _tensor(item)
    if found.dtype is torch.bool or found.dtype is torch.uint8:
        # a mask without dims is a bool: it adds a dim
        return found.bool() if found.ndim else bool(found)
    if found.dtype not in _ROW_NUMBERS:
        raise IndexError(
            f"cannot index with values of {found.dtype}: row numbers are integers, masks are bools; got {item!r}"
        )
    return found


def _forward(item: slice) -> slice:
    if item.step is not None and item.step <= 0:
        raise ValueError(f"the step of a slice must be positive, got {item!r}; `flip` reverses rows")
    return item


def _tensor(item: Any) -> Tensor:
    """Return an index that names several rows as a tensor."""
    if isinstance(item, Tensor):
        return item
    if isinstance(item, numpy.ndarray):
        return torch.from_numpy(numpy.array(item, dtype=numpy.int64 if item.dtype.kind in "iu" else None, order="C"))
    if not isinstance(item, (list, range)):
        raise TypeError(f"cannot index with {item!r} of type {type(item).__name__}: expected what torch accepts")
    try:
        found = torch.tensor(item if type(item) is list else list(item))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"cannot index with the list {item!r}: {error}") from None
    return found if found.numel() or found.dtype is not torch.get_default_dtype() else found.long()


def _width(item: Any) -> int:
    """Return how many batch dims an item consumes."""
    if item is None or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype is torch.bool else 1


def _spread(index: tuple[Any, ...], batch: Batch) -> list[Any]:
    """Return the items of an index with Ellipsis written out."""
    items = [_item(item) for item in index]
    dots = [at for at, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError(f"an index can have one Ellipsis, got {len(dots)} in {index!r}")
    if dots:
        at = dots[0]
        free = len(batch) - sum(map(_width, items[:at] + items[at + 1 :]))
        items[at : at + 1] = [slice(None)] * max(free, 0)
    return items


class _Parser:
    """Walk the items of an index once, and collect what a plan needs."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.items: list[Any] = []
        self.sizes: list[tuple[int, int | None]] = []
        self.dim = 0
        self.shapes: list[tuple[int, ...]] = []
        self.place = 0
        self.last = -1
        self.apart = False
        self.source: int | None = None

    def take(self, item: Any) -> None:
        """Take one item that is not Ellipsis."""
        if item is None:
            self.items.append(None)
            self.sizes.append((1, None))
        elif isinstance(item, bool):
            self._advanced(item, (int(item),), None)
        elif isinstance(item, Tensor) and item.dtype is torch.bool:
            self._mask(item)
        else:
            self._one_dim(item)

    def _one_dim(self, item: Any) -> None:
        if self.dim >= len(self.batch):
            raise _out_of_range(item, self.batch, self.dim)
        size = self.batch[self.dim]
        if isinstance(item, Tensor):
            if item.ndim:
                self._advanced(item, tuple(item.shape), self.dim)
            else:
                self.items.append(item)
        elif isinstance(item, slice):
            self.items.append(item)
            self.sizes.append((_span(item, size), self.dim))
        elif -size <= item < size:
            self.items.append(item)
        else:
            raise _out_of_range(item, self.batch, self.dim)
        self.dim += 1

    def _mask(self, mask: Tensor) -> None:
        over = self.batch[self.dim : self.dim + mask.ndim]
        if over != tuple(mask.shape):
            raise IndexError(
                f"a mask of shape {list(mask.shape)} does not fit the dims {list(over)} that it selects from "
                f"(batch size {list(self.batch)}, from dim {self.dim})"
            )
        for part in mask.nonzero(as_tuple=True):
            self._advanced(part, tuple(part.shape), self.dim)
        self.dim += mask.ndim

    def _advanced(self, item: Any, shape: tuple[int, ...], source: int | None) -> None:
        if not self.shapes:
            self.place = len(self.sizes)
        elif len(self.sizes) != self.last:
            self.apart = True
        self.last = len(self.sizes)
        self.items.append(item)
        # the rows that one list of numbers picks are still those of its dim
        self.source = source if not self.shapes and len(shape) == 1 else None
        self.shapes.append(shape)

    def finish(self) -> tuple[Batch, tuple[int | None, ...], int]:
        """Return the batch of the result, the source dim of each of its dims, and the place of index tensors."""
        sizes = self.sizes + [(self.batch[dim], dim) for dim in range(self.dim, len(self.batch))]
        at = 0 if self.apart else self.place
        if self.shapes:
            sizes[at:at] = [(size, self.source) for size in self._together()]
        return tuple(size for size, _ in sizes), tuple(dim for _, dim in sizes), at

    def _together(self) -> tuple[int, ...]:
        if len(self.shapes) == 1:  # the word for several loads torch's symbolic shapes: a second
            return tuple(self.shapes[0])
        try:
            return tuple(torch.broadcast_shapes(*self.shapes))
        except RuntimeError:
            raise IndexError(
                f"index tensors of shapes {list(map(list, self.shapes))} do not broadcast together (batch size "
                f"{list(self.batch)})"
            ) from None


def whole(items: tuple[Any, ...]) -> bool:
    """Tell whether the items of a plan name all rows, in their order."""
    return all(isinstance(item, slice) and item == slice(None) for item in items)


def _general(index: tuple[Any, ...], batch: Batch) -> Plan:
    parser = _Parser(batch)
    for item in _spread(index, batch):
        parser.take(item)
    items = tuple(parser.items)
    out, kept, place = parser.finish()
    return Plan(_call(items, len(parser.shapes)), items, out, kept, not parser.shapes, place)


def _call(items: tuple[Any, ...], advanced: int) -> Callable[[Any], Any]:
    """Return the fastest call that reads a child by these items."""
    if advanced == 1 and isinstance(items[-1], Tensor) and all(item == slice(None) for item in items[:-1]):
        dim, index = len(items) - 1, items[-1].long()
        shape = tuple(index.shape)
        pick = _picking(dim, index.reshape(-1))
        return pick if len(shape) == 1 else lambda v: pick(v).unflatten(dim, shape)
    if len(items) == 1:
        only = items[0]
        return lambda v: v[only]
    return lambda v: v[items]
