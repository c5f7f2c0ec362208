"""Tensors of different shapes made one: padded, or nested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict import errors
from tensordict.aliases import Call
from tensordict.storage.ragged import ends


def padded(parts: Sequence[Tensor], value: Any = 0.0, side: str = "right", only_first: bool = False) -> Tensor:
    """Return tensors stacked along a new first dim, each padded to the greatest size along every dim.

    Raises:
        ShapeMismatch: if they differ in the number of dims, or with ``only_first`` in another dim than the first.
        ValueError: if the side is not "left" or "right".
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
    if len({part.ndim for part in parts}) > 1:
        raise errors.ShapeMismatch(f"values need as many dims to be padded, got shapes {_shapes(parts)}")
    if parts[0].ndim and len({part.shape[1:] for part in parts}) == 1:
        return torch.nn.utils.rnn.pad_sequence(list(parts), True, value, side)
    if only_first:
        raise errors.ShapeMismatch(f"only the first dim of a value may differ to be padded, got {_shapes(parts)}")
    sizes = tuple(map(max, zip(*(part.shape for part in parts))))
    out = parts[0].new_full((len(parts), *sizes), value)
    for row, part in zip(out, parts, strict=True):
        if side == "left":
            row[tuple(slice(size - own, None) for size, own in zip(sizes, part.shape))] = part
        else:
            row[tuple(map(slice, part.shape))] = part
    return out


def lengths_mask(parts: Sequence[Tensor], side: str = "right") -> Tensor:
    """Return a bool tensor that is True where `padded` puts values, one row a tensor."""
    sizes = torch.tensor([part.shape[0] for part in parts], device=parts[0].device)
    steps = torch.arange(int(sizes.max()), device=sizes.device)
    if side == "left":
        steps = steps.flip(0)
    return steps < sizes.unsqueeze(-1)


def is_nested(child: Any) -> bool:
    return isinstance(child, Tensor) and child.is_nested


def nest(rows: Sequence[Tensor], like: Any) -> Tensor:
    """Return rows as a nested tensor of the layout, and with the ragged dim, of another one."""
    if like.layout is torch.strided:
        return torch.nested.as_nested_tensor(list(rows), like.dtype, like.device, torch.strided)
    return jagged(rows, like._ragged_idx) if rows else _picked(like, torch.arange(0, device=like.device))


def jagged(rows: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return rows of different sizes along one dim, counted from 1 (0: find it), as one jagged nested tensor."""
    if not dim:
        sizes_by_dim = zip(*(row.shape for row in rows))
        dim = next((at for at, sizes in enumerate(sizes_by_dim, 1) if len(set(sizes)) > 1), 1)
    if any(row.ndim < dim or _tail(row, dim) != _tail(rows[0], dim) for row in rows):
        raise errors.ShapeMismatch(f"rows of a jagged tensor may differ in one dim only, got shapes {_shapes(rows)}")
    offsets = ends(torch.tensor([row.shape[dim - 1] for row in rows], device=rows[0].device))
    return torch.nested.nested_tensor_from_jagged(torch.cat(list(rows), dim - 1), offsets, jagged_dim=dim)


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return nested tensors, and dense ones among them, one after the other."""
    like = next(part for part in parts if part.is_nested)
    return nest([row for part in parts for row in part.unbind(0)], like)


def told(children: Mapping[str, Any], call: Call, error: Exception) -> dict[str, Any]:
    """Say a call that treats rows alike to each child; of a nested tensor, what it does to row numbers picks rows.

    Without a nested tensor the error stands: a node below has tried this already, and each level would double the work.
    """
    if isinstance(error, RecursionError) or not any(map(is_nested, children.values())):
        raise error
    return {key: _by_rows(key, child, call) if is_nested(child) else call(child) for key, child in children.items()}


def _by_rows(key: str, leaf: Tensor, call: Call) -> Any:
    numbers = torch.arange(leaf.size(0), device=leaf.device)
    answer = call(numbers)
    picked = [
        _rows_of(key, leaf, rows, rows.untyped_storage().data_ptr() == numbers.untyped_storage().data_ptr())
        for rows in ([answer] if isinstance(answer, Tensor) else answer)
    ]
    return picked[0] if isinstance(answer, Tensor) else picked


def _rows_of(key: str, leaf: Tensor, rows: Tensor, view: bool) -> Tensor:
    if rows.ndim > 1:
        raise errors.ShapeMismatch(
            f"the value at key {key!r} is a nested tensor, whose first dim is its only batch dim: it cannot have "
            f"batch dims of sizes {list(rows.shape)}"
        )
    if not rows.ndim:
        return leaf[int(rows)]
    if leaf.layout is torch.strided:
        return nest([leaf[row] for row in rows.tolist()], leaf)
    return _picked(leaf, rows, view)


def _picked(leaf: Any, rows: Tensor, view: bool = False) -> Tensor:
    """Return rows of a jagged nested tensor: a view where a tensor gives one and they follow each other, or a copy."""
    dim, starts, sizes = leaf._ragged_idx, leaf.offsets()[:-1][rows], leaf.lengths()
    sizes = (leaf.offsets().diff() if sizes is None else sizes)[rows]
    offsets = ends(sizes)
    total = int(offsets[-1])
    if view and len(rows) and torch.equal(starts - starts[0], offsets[:-1]):
        values = leaf.values().narrow(dim - 1, int(starts[0]), total)
    else:
        steps = torch.repeat_interleave(starts - offsets[:-1], sizes) + torch.arange(total, device=rows.device)
        values = leaf.values().index_select(dim - 1, steps)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim)


def paired(leaf: Tensor, items: tuple[Any, ...], value: Any) -> list[tuple[Tensor, Tensor]]:
    """Return each row of a nested tensor that an index names, with the part of a value that is written to it."""
    rows, pieces, value = torch.arange(leaf.size(0))[items].tolist(), leaf.unbind(0), torch.as_tensor(value)
    if isinstance(rows, int):
        return [(pieces[rows], value)]
    parts = value.unbind(0) if value.dim() == leaf.dim() and value.size(0) == len(rows) else [value] * len(rows)
    return [(pieces[at], part) for at, part in zip(rows, parts, strict=True)]


def write_rows(leaf: Tensor, items: tuple[Any, ...], value: Any) -> None:
    for row, part in paired(leaf, items, value):
        row.copy_(part)


def _tail(row: Tensor, dim: int) -> tuple[int, ...]:
    return (*row.shape[: dim - 1], *row.shape[dim:])


def _shapes(parts: Sequence[Tensor]) -> list[list[int]]:
    return [list(part.shape) for part in parts]
