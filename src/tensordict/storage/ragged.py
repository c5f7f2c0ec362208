"""Nested tensors as plain ones: what a place for tensors stores of them, and how they are made again.

nested --parts--> elements, row after row; the sizes of each row; which dim is ragged --whole--> nested
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict.storage.base import view

_ends: weakref.WeakValueDictionary[Any, Tensor] = weakref.WeakValueDictionary()


class Parts(NamedTuple):
    """A nested tensor in plain parts.

    ``values`` holds the elements of all rows in one dim, ``sizes`` has a row of sizes for each row, and ``jagged_dim``
    is the ragged dim of a jagged nested tensor (1 for the first of a row), or 0 for a strided one. The rows of a jagged
    one lie there with their ragged dim first. One without rows still has a row of sizes, with -1 for the ragged
    dim, so that the others are known.
    """

    values: Tensor
    sizes: Tensor
    jagged_dim: int = 0


def parts(tensor: Any) -> Parts:
    """Return the parts of a nested tensor; values share its memory where they lie as they should."""
    if tensor.layout is torch.strided:
        sizes = tensor._nested_tensor_size()
        # Without rows torch gives a scalar of another dtype.
        sizes = sizes.contiguous() if sizes.dim() == 2 else torch.zeros(0, 0, dtype=torch.int64)
        return Parts(_elements(tensor, sizes), sizes)
    dim: int = tensor._ragged_idx
    values, rows = tensor.detach().values(), tensor.lengths()
    if rows is None:
        rows = tensor.offsets().diff()
    else:  # there are gaps between the rows
        values = torch.cat(tensor.detach().unbind(0), dim - 1)
    rows = rows if len(rows) else rows.new_full((1,), -1)
    columns = [rows if at == dim - 1 else torch.full_like(rows, size) for at, size in enumerate(values.shape)]
    return Parts(values.movedim(dim - 1, 0).reshape(-1), torch.stack(columns, 1).long().cpu(), dim)


def _elements(tensor: Any, sizes: Tensor) -> Tensor:
    """Return the elements of a strided nested tensor, without a copy if its rows follow each other."""
    starts, count = tensor._nested_tensor_storage_offsets(), int(sizes.prod(1).sum())
    first = int(starts[0]) if len(sizes) else 0
    values = view(tensor.untyped_storage(), first * tensor.itemsize, (count,), tensor.dtype)
    like = _strided(values, sizes)
    same = torch.equal(like._nested_tensor_storage_offsets(), starts) and torch.equal(
        like._nested_tensor_strides(), tensor._nested_tensor_strides()
    )
    return values if same else tensor.detach().clone(memory_format=torch.contiguous_format).values()


def whole(given: Parts) -> Tensor:
    """Return the nested tensor of its parts, over the same memory."""
    values, sizes, dim = given
    if not dim:
        return _strided(values, sizes)
    ragged = sizes[: 0 if without_rows(sizes, dim) else None, dim - 1].to(values.device)
    one = sizes[0].tolist()
    rows = values.view(int(ragged.sum()), *(size for at, size in enumerate(one) if at != dim - 1)).movedim(0, dim - 1)
    return torch.nested.nested_tensor_from_jagged(rows, ends(ragged), jagged_dim=dim)


def without_rows(sizes: Tensor, dim: int) -> bool:
    """Tell whether sizes are those of a jagged tensor that has no rows."""
    return bool(dim) and len(sizes) == 1 and int(sizes[0, dim - 1]) == -1


def count_elements(sizes: Tensor, dim: int, where: str) -> int:
    """Return how many elements rows of these sizes have.

    Raises:
        ValueError: if the sizes cannot be those of one nested tensor; ``where`` says where they were found.
    """
    rows = (sizes.clamp(min=0) if without_rows(sizes, dim) else sizes).tolist()
    if any(size < 0 for row in rows for size in row) or (dim and not rows):
        raise ValueError(f"{where!r} holds a negative size, or none")
    if any(row[: dim - 1] + row[dim:] != rows[0][: dim - 1] + rows[0][dim:] for row in rows if dim):
        raise ValueError(f"{where!r} holds sizes that differ in other dims than the jagged one, {dim}")
    return sum(map(math.prod, rows))


def ends(sizes: Tensor) -> Tensor:
    """Return where each row begins, and where the last one ends, when rows of these sizes follow each other.

    As long as such a tensor lives, equal sizes get the same one: torch computes with jagged tensors together, such as
    tokens and their mask, only if they share it.
    """
    key = (sizes.device, tuple(sizes.tolist()))
    found = _ends.get(key)
    if found is None:
        found = _ends[key] = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return found


def _strided(values: Tensor, sizes: Tensor) -> Tensor:
    starts = torch.full((len(sizes),), int(values.storage_offset()))  # torch counts from the start of the memory
    strides = torch.ones_like(sizes)
    if len(sizes):
        starts[1:] += sizes.prod(1).cumsum(0)[:-1]
        strides[:, :-1] = sizes[:, 1:].flip(1).cumprod(1).flip(1)
    return torch._nested_view_from_buffer(values, sizes, strides, starts)
