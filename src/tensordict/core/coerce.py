"""The door: a user's value to a legal child, checked once; nothing inside checks again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from tensordict import errors, settings
from tensordict.core.core import Core
from tensordict.meta import Meta

_NUMBERS = (bool, int, float, complex, numpy.number, numpy.bool_)


def child(key: Any, value: Any, meta: Meta) -> Any:
    """Return a value as a child of a node that has this meta.

    Tensors and nodes are taken as they are (moved to the device of the node), mappings become nodes, numbers and arrays
    become tensors, lists of numbers become tensors, and everything else becomes a non-tensor.

    Raises:
        RuntimeError: if the leading dims of the value are not the batch size.
    """
    if not isinstance(value, Tensor):
        if isinstance(value, Core):
            return _node(key, value, meta)
        if isinstance(value, Mapping):
            return Core._dense_kind(value, meta.batch, meta.device, list(meta.names) if meta.names else None)
        value = convert(value, meta)
        if isinstance(value, Core):
            return _node(key, value, meta)
    if type(value) is not Tensor and hasattr(value, "_held"):
        return _node(key, value._held(meta), meta)
    _fit(key, shape_of(value) if value.is_nested else value.shape, meta.batch)
    if meta.device is not None and value.device != meta.device:
        return value.to(meta.device)
    return value


def _fit(key: Any, shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    """Raise unless a shape begins with a batch size; one size is compared faster than a slice of sizes is made."""
    if (not shape or shape[0] != batch[0]) if len(batch) == 1 else shape[: len(batch)] != batch:
        raise errors.batch_mismatch(key, batch, tuple(shape))


def children(found: Mapping[str, Any], meta: Meta) -> dict[str, Any]:
    """Return several values as children; what is legal as it is passes without a further call."""
    batch, n, free = meta.batch, len(meta.batch), meta.device is None
    made, fits = {}, None
    for key, value in found.items():
        if free and type(value) is Tensor and not value.is_nested:
            shape = value.shape  # leaves often have one shape: it is looked at once
            if shape == fits or shape[:n] == batch:
                made[key], fits = value, shape
                continue
        made[key] = child(key, value, meta)
    return made


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a child; sizes that the rows of a nested tensor do not share are -1."""
    if isinstance(value, Tensor) and value.is_nested:
        rows = value.size(0)
        if value.layout is torch.strided:
            return (rows, *[-1] * (value.dim() - 1))
        return (rows, *(size if type(size) is int else -1 for size in value.shape[1:]))
    return value.shape  # type: ignore[no-any-return]


def _node(key: Any, node: Any, meta: Meta) -> Any:
    """Return a node as a child: its batch begins with the batch of the parent."""
    node = node._held()
    own = node._meta
    if own.batch[: len(meta.batch)] != meta.batch:
        if meta.batch[: len(own.batch)] != own.batch:
            raise errors.batch_mismatch(key, meta.batch, own.batch)
        node = node._widen(key, meta.batch)
    if meta.device is not None and own.device != meta.device:
        node = node.to(meta.device)
    if meta.names and not own.names:
        node = node.clone(False)
        node._name_dims(meta.names + (None,) * (len(node._meta.batch) - len(meta.batch)))
    return node


def convert(value: Any, meta: Meta) -> Any:
    """Return a value that is neither a tensor nor a mapping as a tensor where it reads as one, else as a non-tensor."""
    if isinstance(value, _NUMBERS):
        return torch.as_tensor(value, device=meta.device)
    if isinstance(value, numpy.ndarray):
        if value.dtype.kind in "biufc":
            return torch.as_tensor(value, device=meta.device)
        return Core._non_tensor_kind._of_list(value.tolist(), meta) if value.ndim else non_tensor(value.item(), meta)
    if isinstance(value, (list, tuple)):
        return _sequence(value, meta)
    return non_tensor(value, meta)


def non_tensor(value: Any, meta: Meta) -> Any:
    """Return any object as a non-tensor child, one value for all rows."""
    return Core._non_tensor_kind(value, meta.batch, meta.device)


def _sequence(value: Any, meta: Meta) -> Any:
    if not value:
        return torch.tensor([], device=meta.device) if isinstance(value, list) else non_tensor(value, meta)
    if all(isinstance(item, Tensor) for item in value) and len({item.shape for item in value}) == 1:
        return torch.stack(list(value)).to(meta.device)
    if all(isinstance(item, Core) for item in value):
        return Core._lazy_kind.maybe_dense_stack(list(value))
    if _all_numbers(value):
        try:
            return torch.as_tensor(value, device=meta.device)
        except (ValueError, TypeError, OverflowError):
            pass  # ragged lists of numbers are values, one a row
    if not settings.list_to_stack():
        return non_tensor(value, meta)
    return Core._non_tensor_kind._of_list(value if isinstance(value, list) else list(value), meta)


def _all_numbers(value: Any) -> bool:
    return all(_all_numbers(item) if isinstance(item, (list, tuple)) else isinstance(item, _NUMBERS) for item in value)
