"""Tensors of different shapes made one: padded, or nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict import errors


def padded(parts: Sequence[Tensor], value: Any = 0.0, side: str = "right") -> Tensor:
    """Return tensors stacked along a new first dim, each padded to the greatest size along its first dim.

    Raises:
        ShapeMismatch: if they differ in another dim, or have none.
        ValueError: if the side is not "left" or "right".
    """
    if side not in ("left", "right"):
        raise ValueError(f"padding_side must be 'left' or 'right', got {side!r}")
    tails = {tuple(part.shape[1:]) for part in parts}
    if len(tails) > 1 or any(part.ndim == 0 for part in parts):
        shapes = [list(part.shape) for part in parts]
        raise errors.ShapeMismatch(f"only the first dim of a value may differ to be padded, got shapes {shapes}")
    longest = max(part.shape[0] for part in parts)
    out = parts[0].new_full((len(parts), longest, *parts[0].shape[1:]), value)
    for row, part in zip(out, parts, strict=True):
        start = longest - part.shape[0] if side == "left" else 0
        row[start : start + part.shape[0]] = part
    return out


def lengths_mask(parts: Sequence[Tensor], side: str = "right") -> Tensor:
    """Return a bool tensor that is True where `padded` puts values, one row a tensor."""
    sizes = torch.tensor([part.shape[0] for part in parts], device=parts[0].device)
    steps = torch.arange(int(sizes.max()), device=sizes.device)
    if side == "left":
        steps = steps.flip(0)
    return steps < sizes.unsqueeze(-1)


def jagged(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors of different first sizes as one jagged nested tensor."""
    return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)
