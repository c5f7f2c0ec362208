"""Whether a value fits the leaf or the rows that it is written to, and the way that it gets there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict import errors
from tensordict.aliases import Batch
from tensordict.core import coerce

_VALUES = (Tensor, bool, int, float, complex)


def check_stored(key: str, leaf: Tensor, value: Tensor) -> None:
    """Raise unless the result of a leaf and a value can be stored in the leaf."""
    if value.shape != leaf.shape:
        check_room(key, tuple(leaf.shape), value)
    if value.dtype is not leaf.dtype and not torch.can_cast(torch.result_type(leaf, value), leaf.dtype):
        raise RuntimeError(f"cannot store {value.dtype} results in {leaf.dtype} in place, at key {key!r}")


def in_dtype(value: Any, leaf: Any) -> Any:
    """Return a tensor of one number in the dtype of a leaf that can hold it: torch writes it so where a mask is."""
    one = isinstance(value, Tensor) and isinstance(leaf, Tensor) and not value.ndim
    return value.to(leaf.dtype) if one and torch.can_cast(value.dtype, leaf.dtype) else value


def check_room(key: str, room: tuple[int, ...], value: Tensor, leaf: Tensor | None = None) -> None:
    """Raise unless a value fits the rows that it is written to, and the dtype of a leaf of which numbers pick rows."""
    shape = tuple(coerce.shape_of(value))
    lead = len(room) - len(shape)
    if lead < 0 or any(size not in (1, to) for size, to in zip(shape, room[lead:], strict=True)):
        raise errors.ShapeMismatch(
            f"cannot write at key {key!r}: expected a value of shape {list(room)} or one that broadcasts to it, "
            f"got shape {list(shape)}"
        )
    if leaf is not None and in_dtype(value, leaf).dtype is not leaf.dtype:
        raise RuntimeError(
            f"cannot write at key {key!r}: rows that an index tensor or a mask picks take values of the dtype "
            f"{leaf.dtype}, got {value.dtype}"
        )


def widened(key: str, value: Tensor, room: Batch) -> Tensor:
    try:
        return value.expand(room)
    except RuntimeError:
        raise errors.ShapeMismatch(
            f"cannot write at key {key!r}: expected a value of shape {list(room)} or one that broadcasts to it, got "
            f"shape {list(value.shape)}"
        ) from None


def poured(node: Any, value: Tensor) -> dict[str, Any]:
    """Return a tensor once for every leaf of a node."""
    children = [(key, node._look(key)) for key in node._keys()]
    return {
        key: value if isinstance(child, Tensor) else poured(child, value)
        for key, child in children
        if not getattr(child, "_is_non_tensor", False)
    }


def writable(value: Any, device: torch.device | None = None) -> Any:
    """Return a value as torch takes it for rows of a tensor: lists and arrays as tensors."""
    return value if isinstance(value, _VALUES) else torch.as_tensor(value, device=device)


def put(key: str, leaf: Tensor, index: Any, value: Any) -> None:
    """Write to rows of a leaf, by torch's own indexing."""
    try:
        leaf[index] = in_dtype(writable(value, leaf.device), leaf)
    except RuntimeError as error:
        raise RuntimeError(f"cannot write at key {key!r}: {error}") from None
