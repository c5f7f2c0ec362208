"""Leaves side by side: one record for each row, so that a batch of rows is one gather.

    record 0 | x y y z |      leaf x: every record, the first bytes
    record 1 | x y y z |      leaf y: every record, the bytes after those
    ...                       rows 7, 3, 5 of all leaves: three records

A leaf is an ordinary strided tensor over the records. What is told here is arithmetic on strides, so that it holds for
slices of such leaves too, wherever they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict.storage.base import Spec, byte_count, padded

UNIT = 8
"""What the size of a record is a multiple of, at least; a gather copies that many bytes at a time."""

_untracked = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", torch.no_grad)
_transform = torch._C._functorch.peek_interpreter_stack
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def record(specs: Iterable[Spec]) -> tuple[list[int], int]:
    """Return where each leaf begins in a record, and how many bytes there are from one record to the next.

    Each begins at a multiple of its item size; so does each record, and at a multiple of `UNIT`.

    >>> record([((4,), torch.uint8), ((4, 3), torch.float32), ((4,), torch.int16)])
    ([0, 4, 16], 24)
    """
    starts, end, widest = [], 0, UNIT
    for shape, dtype in specs:
        end = padded(end, dtype.itemsize)
        starts.append(end)
        end += byte_count(shape[1:], dtype)
        widest = max(widest, dtype.itemsize)
    return starts, padded(end, widest)


class Records:
    """Know which leaves lie side by side, and gather rows of all of these at once.

    Args:
        leaves: leaves whose first dim are the rows. Any that do not lie with the most others are left out.
    """

    __slots__ = ("_cuts", "_ids", "_leaves", "_places", "_table", "_types")

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._leaves = list(leaves)
        self._ids = list(map(id, leaves))
        self._table: Tensor | None = None
        self._types: list[torch.dtype] = []
        self._cuts: list[int] = []
        self._places: list[_Place | None] = [None] * len(leaves)
        groups: dict[Any, list[int]] = {}
        for number, leaf in enumerate(leaves):
            groups.setdefault(_group(leaf), []).append(number)
        groups.pop(None, None)
        inside = max(groups.values(), key=len, default=[])
        if len(inside) > 1:
            self._measure(inside)

    def _measure(self, inside: list[int]) -> None:
        """Note where the leaves of a group lie in their records, if they do not overlap the next record."""
        extents = [_extent(self._leaves[number]) for number in inside]
        first = self._leaves[inside[0]]
        storage, stride = first.untyped_storage(), first.stride(0) * first.itemsize
        unit = next(size for size in _WORDS if stride % size == 0)
        align = max(unit, *(self._leaves[number].itemsize for number in inside))
        low = min(start for start, _ in extents) // align * align
        width = padded(max(end for _, end in extents) - low, align)
        if width > stride or low + (len(first) - 1) * stride + width > storage.nbytes():
            return
        empty = torch.empty(0, dtype=_WORDS[unit], device=first.device)
        self._table = empty.set_(storage, low // unit, (len(first), width // unit), (stride // unit, 1))
        self._types = list({self._leaves[number].dtype: None for number in inside})
        for number, (start, _) in zip(inside, extents):
            leaf = self._leaves[number]
            place = _Place(
                self._types.index(leaf.dtype),
                tuple(leaf.shape[1:]),
                (width // leaf.itemsize, *leaf.stride()[1:]),
                (start - low) // leaf.itemsize,
            )
            self._places[number] = place
        self._cuts = self._even()

    def _even(self) -> list[int]:
        """Return the widths of the leaves if these are vectors of one dtype that fill the record, else nothing."""
        places = [place for place in self._places if place is not None]
        if len(self._types) > 1 or len(places) < len(self._places) or any(len(p.sizes) != 1 for p in places):
            return []
        widths, end = [place.sizes[0] for place in places], 0
        for place, width in zip(places, widths):
            if place.start != end or place.strides[1] != 1:
                return []
            end += width
        return widths if end == places[0].strides[0] else []

    def made_for(self, leaves: Sequence[Tensor]) -> bool:
        """Tell whether these are the very leaves that it knows."""
        return list(map(id, leaves)) == self._ids

    def can_pick(self) -> bool:
        """Tell whether leaves lie side by side, and no gradient or transform, which a gather of bytes would lose."""
        if self._table is None or _transform() is not None:
            return False
        return not any([leaf.requires_grad for leaf in self._leaves])

    def pick(self, call: Callable[[Tensor], Tensor]) -> list[Tensor | None]:
        """Return what a call that copies whole rows makes of each leaf; None for one that does not lie there."""
        assert self._table is not None
        got = call(self._table).contiguous()
        # a write to one of the leaves is none to the others, also when it brings gradients
        with _untracked():
            return self._cut(got)

    def _cut(self, got: Tensor) -> list[Tensor | None]:
        words = [got.view(dtype) for dtype in self._types]
        *front, width = got.shape
        if self._cuts and len(front) == 1:
            return list(words[0].split_with_sizes(self._cuts, 1))
        if len(front) != 1:
            rows = [step // width for step in got.stride()[:-1]]
            return [place and place.spread(words, front, rows) for place in self._places]
        return [
            None if place is None else words[place[0]].as_strided((*front, *place[1]), place[2], place[3])
            for place in self._places
        ]


class _Place(NamedTuple):
    """Where a leaf lies in gathered records: its dtype by number, sizes and strides of a row, the first element."""

    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    start: int

    def spread(self, words: list[Tensor], front: list[int], rows: list[int]) -> Tensor:
        """Return the leaf when the records lie in several dims; `rows`: how many from one to the next in each."""
        step, *inner = self.strides
        return words[self.dtype].as_strided(
            (*front, *self.sizes), (*[step * many for many in rows], *inner), self.start
        )


def _group(leaf: Tensor) -> Any:
    """Return what leaves of the same records have in common; None for a leaf that lies in none."""
    try:
        if type(leaf) is not Tensor or leaf.is_nested or leaf.ndim == 0 or len(leaf) < 2 or not leaf.numel():
            return None
        return leaf.untyped_storage()._cdata, len(leaf), leaf.stride(0) * leaf.itemsize
    except (NotImplementedError, RuntimeError):  # no memory of its own
        return None


def _extent(leaf: Tensor) -> tuple[int, int]:
    """Return the first byte of the first row of a leaf, and the one after its last."""
    start = int(leaf.storage_offset())
    last = start + sum((size - 1) * step for size, step in zip(leaf.shape[1:], leaf.stride()[1:]))
    return start * leaf.itemsize, (last + 1) * leaf.itemsize
