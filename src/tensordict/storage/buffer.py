"""One block of memory that holds many leaves and travels as one piece, and which tensors are its leaves.

    leaf --piece_of--> Piece --pickle--> its Buffer, once: a run of bytes, a buffer out of band, or a shared block

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
from tensordict.storage.ragged import Parts, parts, whole

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
        if protocol < 5 or not self.content.is_cpu:
            return Buffer, (self.content,)
        array: Any = self.content.numpy()
        return _received, (pickle.PickleBuffer(array),)


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


class Piece:
    """Stand for a leaf in a pickle: the buffer that it lies in, and where. It is a tensor again when it is loaded.

    Below protocol 3, which `torch.save` uses, it is a copy of the leaf alone.
    """

    __slots__ = ("buffer", "leaf", "start")

    def __init__(self, leaf: Tensor, buffer: Buffer, start: int) -> None:
        self.leaf, self.buffer, self.start = leaf, buffer, start

    def __reduce_ex__(self, protocol: Any) -> Any:
        leaf = self.leaf
        if protocol < 3:
            return leaf.clone().__reduce_ex__(protocol)
        return _placed, (self.buffer, self.start, leaf.dtype, tuple(leaf.shape), leaf.stride(), is_piece(leaf))


def _placed(buffer: Buffer, start: int, dtype: torch.dtype, shape: tuple[int, ...], *about: Any) -> Tensor:
    stride, piece = about
    empty = torch.empty(0, dtype=dtype, device=buffer.content.device)
    leaf = empty.set_(buffer.storage, start // dtype.itemsize, shape, stride)
    if piece:
        mark(leaf)
    return leaf


class NestedPiece:
    """Stand for a nested leaf in a pickle, as `Piece` does; the sizes of its rows travel by value."""

    __slots__ = ("given", "leaf")

    def __init__(self, leaf: Tensor, given: Parts) -> None:
        self.leaf, self.given = leaf, given

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol < 3:
            return self.leaf.clone().__reduce_ex__(protocol)
        values, sizes, dim = self.given
        return _nested, (piece_of(values), sent_sizes(sizes), dim)


def _nested(values: Tensor, sizes: tuple[bytes, tuple[int, ...]], jagged_dim: int) -> Tensor:
    return whole(Parts(values, received_sizes(sizes), jagged_dim))


def sent_sizes(sizes: Tensor) -> tuple[bytes, tuple[int, ...]]:
    """Return the sizes of rows by value, for a pickle that sends other tensors out of band."""
    return sizes.contiguous().numpy().tobytes(), tuple(sizes.shape)


def received_sizes(sent: tuple[bytes, tuple[int, ...]]) -> Tensor:
    """Return the sizes that `sent_sizes` sent."""
    content, shape = sent
    if not content:
        return torch.zeros(shape, dtype=torch.int64)
    return torch.frombuffer(bytearray(content), dtype=torch.int64).view(shape)


def piece_of(leaf: Tensor) -> Piece | NestedPiece | None:
    """Return what stands for a leaf of a block; None for any other tensor."""
    if leaf.requires_grad:
        return None
    if leaf.is_nested:
        owner = leaf if leaf.layout is torch.strided else leaf.values()
        given = parts(leaf) if _pieces(owner) else None
        return NestedPiece(leaf, given) if given is not None and is_piece(given.values) else None
    if not is_piece(leaf) or leaf.is_conj() or leaf.is_neg():
        return None
    return Piece(leaf, block_of(leaf.untyped_storage()), _extent(leaf)[0])


def loose(leaf: Tensor) -> Piece | None:
    """Return what stands for a plain contiguous leaf in memory, as a buffer of its own; None for any other tensor."""
    plain = type(leaf) is Tensor and leaf.layout is torch.strided and leaf.is_cpu and not leaf.is_nested
    if not plain or leaf.requires_grad or leaf.is_conj() or leaf.is_neg() or not leaf.is_contiguous():
        return None
    storage, (start, size) = leaf.untyped_storage(), _extent(leaf)
    if size == storage.nbytes():
        return Piece(leaf, block_of(storage), 0)
    return Piece(leaf, Buffer(view(storage, start, (size,), torch.uint8)), 0)


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
