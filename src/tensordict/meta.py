"""What a node knows of itself besides its children: one immutable record, shared by pointer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tensordict.aliases import Batch, Names, SizeLike

_new, _size = tuple.__new__, torch.Size
_INTS = {int}


class _Fields(NamedTuple):
    batch: torch.Size
    device: torch.device | None = None
    names: Names = None


class Meta(_Fields):
    """The batch size, the device (None when free) and the names of the batch dims (None when none is named).

    The batch is kept as the `torch.Size` that users ask for most, made once.
    """

    __slots__ = ()

    def __new__(cls, batch: Batch, device: torch.device | None = None, names: Names = None) -> Meta:
        return _new(cls, (_size(batch), device, names))


def as_batch(value: SizeLike | None) -> Batch:
    """Return a batch size as a tuple of ints.

    Raises:
        TypeError: if it is not an int or a sequence of ints.
        ValueError: if a size is negative.
    """
    if value is None:
        return ()
    if type(value) is torch.Size:
        return value
    try:
        batch = (int(value),) if isinstance(value, int) else tuple(value)
    except TypeError:
        raise TypeError(f"batch_size must be an int or a sequence of ints, got {value!r}") from None
    if set(map(type, batch)) - _INTS:
        if not all(isinstance(size, (int, torch.SymInt)) or hasattr(size, "__index__") for size in batch):
            raise TypeError(f"batch_size must be an int or a sequence of ints, got {value!r}")
        batch = tuple(size if isinstance(size, torch.SymInt) else int(size) for size in batch)
    if [size for size in batch if type(size) is int and size < 0]:
        raise ValueError(f"batch_size must not be negative, got {list(batch)}")
    return batch


def as_names(value: Sequence[str | None] | None, ndim: int) -> Names:
    """Return the names of batch dims as a tuple, or None when none is named.

    Raises:
        RuntimeError: if their number is not that of the batch dims, or a name is there twice.
    """
    if value is None:
        return None
    names = tuple(value)
    if len(names) != ndim:
        raise RuntimeError(f"expected {ndim} names, one for each batch dim, got {list(names)!r}")
    given = [name for name in names if name is not None]
    if len(set(given)) < len(given):
        raise RuntimeError(f"names must differ, got {list(names)!r}")
    return names if given else None
