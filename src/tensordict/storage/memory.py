"""Leaves side by side in one block: shared memory here, and what every other block is made of.

    specs of all leaves --slots_of--> slots, and the bytes they take in all --pour--> leaf, leaf, leaf, ...

However many leaves there are, the block is one storage, so one file descriptor takes them all to another process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy

from tensordict.storage.base import ALIGN, Spec, require_space, spec_of, view

SHM = "/dev/shm"


class Slot(NamedTuple):
    """Where a tensor lies in a block: its first byte, shape and dtype, and the bytes from row to row (0: no gaps)."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: int = 0

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take."""
        return math.prod(self.shape) * self.dtype.itemsize

    def moved(self, by: int) -> Slot:
        """Return the slot so many bytes further on."""
        return Slot(self.start + by, self.shape, self.dtype, self.stride)


def slots_of(specs: Iterable[Spec], start: int = 0) -> tuple[list[Slot], int]:
    """Return where leaves lie that follow each other, each at a multiple of 64 bytes, and where the last one ends."""
    slots = []
    for shape, dtype in specs:
        slots.append(Slot(start, shape, dtype))
        start -= -math.prod(shape) * dtype.itemsize // ALIGN * ALIGN
    return slots, start


def lay(slots: Sequence[Slot], storage: torch.UntypedStorage) -> list[Tensor]:
    """Return the tensors in the slots of a block, noted at its home if it is mapped."""
    home = getattr(storage, "_home", None)
    if home is not None:
        home.note_all(slots)
    return [view(storage, *slot) for slot in slots]


def pour(
    tensors: Sequence[Tensor], slots: Sequence[Slot], storage: torch.UntypedStorage, skip: Container[int] = ()
) -> list[Tensor]:
    """Copy tensors to their slots in a block, but for some that stay as they are there; return those there."""
    room = lay(slots, storage)
    kept = [number for number in range(len(room)) if number not in skip]
    with torch.no_grad():
        if kept:
            torch._foreach_copy_([room[number] for number in kept], [tensors[number] for number in kept])
    return room


def allocate_shared(nbytes: int) -> torch.UntypedStorage:
    """Return zeroed shared memory; raise OSError naming the bytes needed when there is not enough."""
    what = "a block of shared memory"
    # An empty range can be neither reserved nor mapped.
    nbytes = max(nbytes, 1)
    if os.path.isdir(SHM):
        require_space(SHM, nbytes, what)
    storage: torch.UntypedStorage = torch.UntypedStorage._new_shared(nbytes)
    if hasattr(os, "posix_fallocate") and get_sharing_strategy() == "file_descriptor":
        _commit(storage, nbytes, what)
    return storage


def _commit(storage: torch.UntypedStorage, nbytes: int, what: str) -> None:
    # Pages that do not fit would kill the process at the first write, long after the allocation.
    descriptor, _ = storage._share_fd_cpu_()  # still torch's own: not ours to close
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        raise OSError(error.errno, f"no space for {what}: {nbytes} bytes needed: {error.strerror}") from error


def block(tensors: Sequence[Tensor], allocate: Callable[[int], torch.UntypedStorage]) -> list[Tensor]:
    """Return copies of tensors in one block.

    >>> a, b = block([torch.arange(3), torch.zeros(())], allocate_shared)
    >>> a.untyped_storage() is b.untyped_storage(), is_shared(a)
    (True, True)

    Raises:
        OSError: there is too little space for the block.
        ValueError: a tensor has no plain layout.
    """
    slots, total = slots_of(map(spec_of, tensors))
    return pour(tensors, slots, allocate(total))


def is_shared(tensor: Tensor) -> bool:
    """Tell whether other processes that receive this tensor see the same memory."""
    return bool(tensor.is_shared())
