"""One block of memory that holds many leaves and travels as one piece, and which tensors are its leaves.

What says that tensors are the leaves of a block is attached to its storage, so nothing has to be kept up to date when
a tensordict changes: a leaf that was replaced simply is no longer one of them.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict.storage.base import view

_buffers: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()


class Buffer:
    """Stand for a run of bytes in a pickle, however many leaves there are in it.

    With pickle protocol 5 it is a `pickle.PickleBuffer`, which the caller may send out of band without a copy. What is
    loaded lies in the memory that pickle hands in; bytes that may not be written are copied, since no tensor can
    refuse to be written.
    """

    __slots__ = ("__weakref__", "content")

    def __init__(self, content: Tensor) -> None:
        self.content = content

    @property
    def storage(self) -> torch.UntypedStorage:
        """The memory of the bytes."""
        return self.content.untyped_storage()

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol < 3 or not self.content.is_cpu:
            return Buffer, (self.content,)
        array: Any = self.content.numpy()
        return _received, (pickle.PickleBuffer(array) if protocol > 4 else array.tobytes(),)


def _received(content: Any) -> Buffer:
    found = memoryview(content)
    if not found.nbytes:
        return Buffer(torch.empty(0, dtype=torch.uint8))
    if found.readonly:
        found = memoryview(bytearray(found))
    return Buffer(torch.frombuffer(found, dtype=torch.uint8))


def block_of(storage: torch.UntypedStorage) -> Buffer:
    """Return what stands for a storage: the same object as long as anyone holds it, so that a pickle has it once."""
    found = _buffers.get(storage._cdata)
    if found is None or found.storage is not storage:
        found = _buffers[storage._cdata] = Buffer(view(storage, 0, (storage.nbytes(),), torch.uint8))
    return found


def mark(leaf: Tensor) -> None:
    """Note that a tensor is one of the leaves of the block that it lies in, which travels as one piece."""
    pieces_of(leaf.untyped_storage()).add(_extent(leaf))


def pieces_of(storage: torch.UntypedStorage) -> set[tuple[int, int]]:
    """Return where in a block its leaves lie: the first byte and the bytes of each, to be added to."""
    block: Any = storage
    if not hasattr(block, "_pieces"):
        block._pieces = set()
    return block._pieces  # type: ignore[no-any-return]


def is_piece(tensor: Tensor) -> bool:
    """Tell whether a tensor is a leaf of a block, and not only some rows of one."""
    pieces = _pieces(tensor)
    return bool(pieces) and _extent(tensor) in pieces


def _pieces(tensor: Tensor) -> Any:
    try:
        return getattr(tensor.untyped_storage(), "_pieces", ())
    except (NotImplementedError, RuntimeError):  # sparse and wrapper tensors have no storage of their own
        return ()


def is_block(tensors: Sequence[Tensor]) -> bool:
    """Tell whether these tensors are all leaves of one block; so are no tensors."""
    if not all(map(is_piece, tensors)):
        return False
    blocks = {tensor.untyped_storage()._cdata: tensor for tensor in tensors}
    if len(blocks) != 1:
        return not tensors
    block: Any = tensors[0].untyped_storage()
    return set(map(_extent, tensors)) == block._pieces  # type: ignore[no-any-return]


def _extent(tensor: Tensor) -> tuple[int, int]:
    return int(tensor.storage_offset()) * tensor.itemsize, tensor.nbytes
