"""Whether a value fits the leaf or the rows that it is written to, and the way that it gets there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tensordict import errors
from tensordict.aliases import Batch, Call
from tensordict.core import coerce
from tensordict.indexing import Plan
from tensordict.ops.ragged import paired

PRECISE = {torch.float32, torch.float64}  # narrower ones compute with a number as it is, not with it rounded
_VALUES = (Tensor, bool, int, float, complex)


class Trial:
    """A call in place, tried before any leaf is changed: once for each dtype, on tensors without elements.

    It is known of some dtypes that they can take the result, if all operands have them too.
    """

    def __init__(self, call: Call, known: Iterable[torch.dtype] = (), plan: Plan | None = None) -> None:
        self._call, self._known, self._plan = call, set(known), plan
        self._done: set[tuple[torch.dtype, ...]] = set()

    def __call__(self, key: str, leaf: Tensor, *parts: Tensor) -> None:
        """Raise unless the call can be said to a leaf and its parts of the operands."""
        if leaf.requires_grad or not leaf.is_contiguous():
            check_writable(key, leaf, self._plan)
        if leaf.is_nested:
            for row, part in paired(leaf, (), parts[0]) if len(parts) == 1 else ():
                self(key, row, part)
            return
        for part in parts:
            if part.shape != leaf.shape:
                check_room(key, tuple(leaf.shape), part)
        self._try(leaf, parts)

    def alike(self, leaves: list[Tensor]) -> None:
        """Raise unless the call can be said to leaves of which it is known that they can be changed."""
        for leaf in {leaf.dtype: leaf for leaf in leaves}.values():
            self._try(leaf, ())

    def _try(self, leaf: Tensor, parts: tuple[Tensor, ...]) -> None:
        dtypes = (leaf.dtype, *[part.dtype for part in parts])
        if dtypes not in self._done and not self._known.issuperset(dtypes):
            self._call(leaf.new_empty(0), *[part.new_empty(0) if part.ndim else part for part in parts])
            self._done.add(dtypes)


def filling(value: Any, plan: Plan) -> Trial:
    """Return the trial of a number that is written to rows."""

    def call(v: Tensor) -> None:
        torch.empty(0, dtype=v.dtype)[...] = value

    return Trial(call, () if isinstance(value, complex) else PRECISE, plan)


def expanded(leaf: Tensor) -> bool:
    """Tell whether elements of a leaf share memory, so that torch refuses to change it in place."""
    if leaf.is_nested or leaf.is_contiguous():
        return False
    return any(not step and size > 1 for step, size in zip(leaf.stride(), leaf.shape))


def _shared(rows: Tensor, value: Tensor | None) -> bool:
    """Tell whether elements of rows share memory, and get others than they have."""
    if value is not None and value.dtype is rows.dtype and value.device == rows.device and rows.is_set_to(value):
        return False
    return expanded(rows)


def check_writable(key: str, leaf: Tensor, plan: Plan | None = None, value: Tensor | None = None) -> None:
    """Raise if torch would refuse any change in place of a leaf, or a value for the rows of a plan."""
    if leaf.requires_grad and torch.is_grad_enabled():
        base = leaf if leaf._base is None else leaf._base
        if base.is_leaf and base.requires_grad:
            raise RuntimeError(
                f"cannot change the value at key {key!r} in place: it requires a gradient and is a leaf of the graph; "
                f"change it under torch.no_grad()"
            )
    if expanded(leaf) and (plan is None or (plan.view and _shared(plan.call(leaf), value))):
        raise RuntimeError(
            f"cannot change the value at key {key!r} in place: it is expanded, so that elements share memory; "
            f"clone() the tensordict first"
        )


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
