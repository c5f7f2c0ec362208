"""Names of types and sentinels that every floor uses."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

NestedKey: TypeAlias = str | tuple["NestedKey", ...]
"""A key (a string) or a path of keys (a tuple of strings, possibly nested)."""

Child: TypeAlias = Any
"""A leaf (a tensor) or a node (a tensor collection); both answer to the same words."""

Call: TypeAlias = Callable[..., Any]
"""What a verb says to each child."""

Batch: TypeAlias = tuple[int, ...]
Names: TypeAlias = tuple[str | None, ...] | None
Rule: TypeAlias = Callable[[tuple[Any, ...], Any], tuple[Any, ...]]
"""A dim rule: a tuple with one entry a dim, and the entry of a dim that is new, to the tuple after the operation."""

DeviceLike: TypeAlias = torch.device | str | int | None
SizeLike: TypeAlias = Sequence[int] | torch.Size | int
Scalar: TypeAlias = bool | int | float | complex
TensorLike: TypeAlias = Tensor | Scalar


class _Sentinel(enum.Enum):
    NO_DEFAULT = "no default"
    KEEP = "keep"

    def __repr__(self) -> str:
        return f"<{self.value}>"


NO_DEFAULT = _Sentinel.NO_DEFAULT
"""Stands for "raise when the key is missing"."""

KEEP = _Sentinel.KEEP
"""Stands for "leave as it is" where None has a meaning of its own."""
