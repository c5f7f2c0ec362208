"""Leaves of a whole tree in one block: shared memory here, and the base of every other block.

    specs of all leaves --offsets--> one allocation --view--> leaf, leaf, leaf, ...

However many leaves there are, the block is one storage, so one file descriptor takes them all to another process.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy

from tensordict.storage.base import Child, Record, Spec, byte_count, offsets, require_key, require_space, spec_of, view
from tensordict.storage.ragged import Parts, parts, whole

SHM = "/dev/shm"

Allocate = Callable[[int], torch.UntypedStorage]


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


class Block:
    """One allocation for many leaves: announced ones lie side by side, others get one of their own.

    `note` is told of every leaf that is handed out.
    """

    def __init__(self, allocate: Allocate, note: Callable[[Tensor], object] | None = None) -> None:
        self._allocate = allocate
        self._note = note
        self._slots: deque[tuple[Spec, int]] = deque()
        self._storage: torch.UntypedStorage | None = None

    def reserve(self, specs: Iterable[Spec]) -> None:
        specs = [(tuple(shape), dtype) for shape, dtype in specs]
        starts, total = offsets(specs)
        self._storage = self._allocate(total)
        self._slots = deque(zip(specs, starts))

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        spec = (tuple(shape), dtype)
        if self._storage is not None and self._slots and self._slots[0][0] == spec:
            leaf = view(self._storage, self._slots.popleft()[1], *spec)
        else:
            leaf = view(self._allocate(byte_count(*spec)), 0, *spec)
        if self._note is not None:
            self._note(leaf)
        return leaf

    def fill(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copy tensors into one allocation and return the leaves in it, in the same order."""
        specs = [spec_of(tensor) for tensor in tensors]
        self.reserve(specs)
        leaves = [self.take(*spec) for spec in specs]
        with torch.no_grad():
            for leaf, tensor in zip(leaves, tensors):
                leaf.copy_(tensor)
        return leaves


def missing(tensors: Sequence[Tensor], there: Callable[[Tensor], object], block: Block) -> list[Tensor]:
    """Return the tensors, with copies in a block for those that are not yet where they should be."""
    leaves = list(tensors)
    rest = [index for index, tensor in enumerate(leaves) if not there(tensor)]
    if rest:
        for index, leaf in zip(rest, block.fill([leaves[index] for index in rest])):
            leaves[index] = leaf
    return leaves


def share(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return equal tensors in shared memory, all new ones in one block; those already shared come back as they are.

    >>> a, b = share([torch.arange(3), torch.zeros(())])
    >>> a.untyped_storage() is b.untyped_storage(), is_shared(a)
    (True, True)

    Raises:
        OSError: shared memory has too little space.
    """
    return missing(tensors, is_shared, Block(allocate_shared))


def is_shared(tensor: Tensor) -> bool:
    """Tell whether other processes that receive this tensor see the same memory."""
    return bool(tensor.is_shared())


class Blocked:
    """A node whose tree lies in one `Block`; the tree itself is kept in this process only."""

    resident = True
    writable = True
    row_reads = True

    def __init__(self, block: Block) -> None:
        self._block = block
        self._leaves: dict[str, Tensor] = {}
        self._children: dict[str, Blocked] = {}
        self._keys: dict[str, Child] = {}
        self._meta: Record | None = None

    @property
    def meta(self) -> Record:
        if self._meta is None:
            raise KeyError("this node has no record yet; assign `meta` first")
        return self._meta

    @meta.setter
    def meta(self, record: Record) -> None:
        self._meta = record

    def reserve(self, specs: Iterable[Spec]) -> None:
        self._block.reserve(specs)

    def abandon(self) -> None:
        """Do nothing: what was made goes with me."""

    def create(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        leaf = self._block.take(shape, dtype)
        self._children.pop(key, None)
        self._leaves[key] = leaf
        self._keys[key] = "leaf"
        return leaf

    def filled(self, key: str) -> None:
        """Do nothing: a block has no checksums."""

    def write(self, key: str, tensor: Tensor) -> Tensor:
        if tensor.is_nested:
            given = parts(tensor)
            values, sizes = (self.create(key, *spec_of(part)).copy_(part) for part in given[:2])
            leaf = self._leaves[key] = whole(Parts(values, sizes, given.jagged_dim))
            return leaf
        leaf = self.create(key, *spec_of(tensor))
        with torch.no_grad():
            return leaf.copy_(tensor)

    def read(self, key: str) -> Tensor:
        require_key(self._leaves, key, "the leaves of this node")
        return self._leaves[key]

    def leaves(self) -> dict[str, Tensor]:
        return dict(self._leaves)

    def delete(self, key: str) -> None:
        require_key(self._keys, key, "this node")
        del self._keys[key]
        self._leaves.pop(key, None)
        self._children.pop(key, None)

    def keys(self) -> dict[str, Child]:
        return dict(self._keys)

    def child(self, key: str) -> Blocked:
        if key not in self._children:
            self._leaves.pop(key, None)
            self._children[key] = self._begin()
            self._keys[key] = "node"
        return self._children[key]

    def _begin(self) -> Blocked:
        return Blocked(self._block)


def memory() -> Blocked:
    """Return an empty tree in shared memory."""
    return Blocked(Block(allocate_shared))
