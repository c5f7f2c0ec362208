"""Leaves on their way to a pickle, and out of it again.

    leaves of a node --Packed--> a table: in which buffer each lies, and where --unpacked--> leaves
    mapped or shared leaf --handle--> file name, offset, shape, ... --restore--> the same bytes, in any process

A buffer is in a pickle once, however many leaves lie in it: a run of bytes, a buffer out of band, or a shared block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from tensordict.storage.base import view
from tensordict.storage.buffer import Buffer, block_of, is_piece, mark, pieces_of
from tensordict.storage.memmap import attach, home_of
from tensordict.storage.memory import is_shared
from tensordict.storage.ragged import Parts, parts, whole

Sizes = tuple[bytes, tuple[int, ...]]


class Packed:
    """Stand for the leaves of a node, by key, in a pickle; it is a dict again when it is loaded.

    Mapped and shared leaves are sent as handles. Below protocol 3, which `torch.save` uses, only mapped ones are, since
    what is shared ends with the processes; others are sent as they are, and a leaf of a block as a copy of it alone.
    """

    __slots__ = ("leaves",)

    def __init__(self, leaves: dict[str, Any]) -> None:
        self.leaves = leaves

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol < 3:
            plain = {key: _alone(leaf) if isinstance(leaf, Tensor) else leaf for key, leaf in self.leaves.items()}
            return unpacked, (plain,)
        return _Table(loose=True).reduced(self.leaves)


def _alone(leaf: Tensor) -> Any:
    sent = handle(leaf)
    values = sent.values if isinstance(sent, NestedHandle) else sent
    if values is not None and values.path is not None:
        return sent
    return leaf if sent is None and not _in_block(leaf) else leaf.detach().clone().requires_grad_(leaf.requires_grad)


def _in_block(leaf: Tensor) -> bool:
    if leaf.is_nested:
        owner = leaf if leaf.layout is torch.strided else leaf.values()
        return hasattr(owner.untyped_storage(), "_pieces") and is_piece(parts(leaf).values)
    return is_piece(leaf)


class _Table:
    """Note in which buffer each leaf lies, and where; leaves that are `loose` get a buffer of their own."""

    def __init__(self, loose: bool) -> None:
        self._loose = loose
        self._numbers: dict[int, int] = {}  # of the buffer of each storage that goes as a whole
        self._buffers: list[Buffer] = []

    def reduced(self, leaves: dict[str, Any]) -> Any:
        """Return how leaves are pickled."""
        rest: dict[str, Any] = dict(leaves)
        rows: dict[str, Any] = {}
        nested: dict[str, tuple[Sizes, int]] = {}
        for key, leaf in leaves.items():
            if not isinstance(leaf, Tensor):
                continue
            row = self._row(leaf) if type(leaf) is Tensor else None
            if row is not None:
                rows[key], rest[key] = row, None
            elif leaf.is_nested and not leaf.requires_grad and _in_block(leaf) and handle(leaf) is None:
                values, sizes, dim = parts(leaf)
                rows[key], nested[key] = self._row(values), (sent_sizes(sizes), dim)
            else:
                rest[key] = handle(leaf) or leaf
        return unpacked, (rest, self._buffers, rows, nested)

    def _row(self, leaf: Tensor) -> tuple[Any, ...] | None:
        """Return where a leaf lies: buffer, first byte, dtype, shape, stride, and whether it is one of a block.

        The stride is None where the leaf is contiguous. None for a leaf that must go alone.
        """
        if leaf.requires_grad or leaf.layout is not torch.strided or leaf.is_nested or leaf.is_conj() or leaf.is_neg():
            return None
        storage: Any = leaf.untyped_storage()
        if hasattr(storage, "_home") or (leaf.is_cpu and storage.is_shared()):
            return None
        start, size, stride = int(leaf.storage_offset()) * leaf.itemsize, leaf.nbytes, None
        piece = (start, size) in getattr(storage, "_pieces", ())
        if not leaf.is_contiguous():
            stride = leaf.stride()
        if piece or (self._loose and leaf.is_cpu and stride is None and size == storage.nbytes()):
            number = self._numbers.get(storage._cdata)
            if number is None:
                number = self._numbers[storage._cdata] = self._sent(block_of(storage))
        elif self._loose and leaf.is_cpu and stride is None:
            number, start = self._sent(Buffer(view(storage, start, (size,), torch.uint8))), 0
        else:
            return None
        return number, start, leaf.dtype, tuple(leaf.shape), stride, piece

    def _sent(self, buffer: Buffer) -> int:
        self._buffers.append(buffer)
        return len(self._buffers) - 1


def unpacked(
    leaves: dict[str, Any],
    buffers: Sequence[Buffer] = (),
    rows: dict[str, Any] | None = None,
    nested: dict[str, tuple[Sizes, int]] | None = None,
) -> dict[str, Any]:
    """Return the leaves that a `Packed` stood for."""
    storages = [buffer.storage for buffer in buffers]
    for key, (number, start, dtype, shape, stride, piece) in (rows or {}).items():
        storage = storages[number]
        if stride is None:
            leaf = view(storage, start, shape, dtype)
        else:
            leaf = torch.empty(0, dtype=dtype, device=storage.device)
            leaf.set_(storage, start // dtype.itemsize, shape, stride)
        if piece:
            pieces_of(storage).add((start, leaf.nbytes))
        leaves[key] = leaf
    for key, (sizes, dim) in (nested or {}).items():
        leaves[key] = whole(Parts(leaves[key], received_sizes(sizes), dim))
    for key, leaf in leaves.items():
        if isinstance(leaf, (Handle, NestedHandle)):
            leaves[key] = restore(leaf)
    return leaves


def sent_sizes(sizes: Tensor) -> Sizes:
    """Return the sizes of rows by value, for a pickle that sends other tensors out of band."""
    return sizes.contiguous().numpy().tobytes(), tuple(sizes.shape)


def received_sizes(sent: Sizes) -> Tensor:
    """Return the sizes that `sent_sizes` sent."""
    content, shape = sent
    if not content:
        return torch.zeros(shape, dtype=torch.int64)
    return torch.frombuffer(bytearray(content), dtype=torch.int64).view(shape)


# --- mapped and shared leaves


class Handle(NamedTuple):
    """What to send instead of a leaf: a file name (or the whole shared block), and which part of it.

    `leaf` is the first byte and the shape of the leaf in the file. `flags` tell whether the tensor requires gradients,
    is a conjugate or a negative, and is one of the leaves of a block.
    """

    path: str | None
    mode: str
    block: Buffer | None
    nbytes: int
    leaf: tuple[int, tuple[int, ...]] | None
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    flags: tuple[bool, bool, bool, bool]


class NestedHandle(NamedTuple):
    """What to send instead of a nested leaf whose values are mapped or shared; sizes travel by value."""

    values: Handle
    sizes: tuple[bytes, tuple[int, ...]]
    jagged_dim: int


def handle(tensor: Tensor) -> Handle | NestedHandle | None:
    """Return a small picklable object that stands for a mapped or shared CPU leaf; None for any other tensor.

    >>> from tensordict import MemoryMappedTensor
    >>> a = MemoryMappedTensor([0, 1, 2, 3])
    >>> restore(handle(a[2:4]))
    tensor([2, 3])
    """
    if tensor.is_nested:
        return _nested_handle(tensor)
    home = home_of(tensor)
    if home is None and not (tensor.device.type == "cpu" and tensor.layout is torch.strided and is_shared(tensor)):
        return None
    if tensor.requires_grad and not tensor.is_leaf:
        return None
    storage, offset = tensor.untyped_storage(), int(tensor.storage_offset())
    return Handle(
        home.path if home else None,
        home.mode if home else "r+",
        None if home else block_of(storage),
        storage.nbytes(),
        home.leaf_at(offset * tensor.itemsize) if home else None,
        tensor.dtype,
        offset,
        tuple(tensor.shape),
        tensor.stride(),
        (tensor.requires_grad, tensor.is_conj(), tensor.is_neg(), is_piece(tensor)),
    )


def _nested_handle(tensor: Tensor) -> NestedHandle | None:
    owner = tensor if tensor.layout is torch.strided else tensor.values()
    if tensor.requires_grad or (home_of(owner) is None and not is_shared(owner)):
        return None
    given = parts(tensor)
    sent = handle(given.values)
    return NestedHandle(sent, sent_sizes(given.sizes), given.jagged_dim) if isinstance(sent, Handle) else None


def restore(sent: Handle | NestedHandle) -> Tensor:
    """Return the leaf that a handle stands for, over the same bytes.

    Raises:
        FileNotFoundError: the file is gone.
        ValueError: the file is shorter by now.
    """
    if isinstance(sent, NestedHandle):
        return whole(Parts(restore(sent.values), received_sizes(sent.sizes), sent.jagged_dim))
    if sent.block is not None:
        storage = sent.block.storage
    else:
        storage = attach(str(sent.path), sent.nbytes, sent.mode, most=math.inf)  # others may have appended
        if sent.leaf is not None:
            storage._home.note(*sent.leaf)  # type: ignore[attr-defined]
    leaf = torch.empty(0, dtype=sent.dtype).set_(storage, sent.offset, sent.shape, sent.stride)
    requires_grad, conjugate, negative, piece = sent.flags
    if piece:
        mark(leaf)
    if negative:
        leaf = torch._neg_view(leaf)
    if conjugate:
        leaf = leaf.conj()
    return leaf.requires_grad_() if requires_grad else leaf


def _reduce_plain(tensor: Tensor) -> Any:
    # torch would look for the file descriptor of the mapping, which is closed.
    if home_of(tensor) is None or (sent := handle(tensor)) is None:
        return reduce_tensor(tensor)
    return restore, (sent,)


def _reduce_buffer(buffer: Buffer) -> Any:
    # as a tensor it is shared; as bytes it would be copied
    return Buffer, (buffer.content,)


ForkingPickler.register(Tensor, _reduce_plain)
ForkingPickler.register(Buffer, _reduce_buffer)
ForkingPickler.register(Packed, lambda packed: _Table(loose=False).reduced(packed.leaves))
