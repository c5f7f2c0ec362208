"""Tensors over mapped files.

    file --map_file--> storage with a `Home` --view--> plain leaf --present--> MemoryMappedTensor

Inside the library a leaf is a plain tensor: what says that it is mapped is the `Home` attached to its storage, which
every view of it shares. `MemoryMappedTensor` (in `mapped`) is only what a user is handed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.util import Finalize
from typing import Any, Protocol

import torch
from torch import Tensor

from tensordict.storage import disk
from tensordict.storage.base import Spec, byte_count, flat_bytes, require_space, spec_of, view
from tensordict.storage.layout import TEMPORARY
from tensordict.storage.memory import Slot

MODES = ("r", "r+")
_RESERVES = hasattr(os, "posix_fallocate")  # Linux

_SMALL = 1 << 16  # up to so many bytes a checksum takes less time than a look at the file
_counter = itertools.count()
_from_file = torch.UntypedStorage.from_file
_open: weakref.WeakValueDictionary[tuple[int, int, str], torch.UntypedStorage] = weakref.WeakValueDictionary()


class Place(Protocol):
    """A folder that a tree is written in, which may get another name.

    `threads` copy leaves, if there are any; `sums` has the checksums of files that were computed meanwhile.
    """

    path: str
    threads: int
    sums: dict[str, tuple[int, int]]

    def at(self, name: str) -> str:
        """Return where a file of the tree lies now."""

    def file(self, name: str) -> str:
        """Announce a file of the tree and return where to create it."""

    def later(self, job: Callable[[], Any]) -> None:
        """Do a job in a thread before the tree is published."""


class Home:
    """Where a mapped storage lies: the file, the mode, and the shape of each leaf by its first byte.

    The `path` of a `name` within a `place` moves with it. `file` is the identity of the file that is mapped, whatever
    has its name now.
    """

    __slots__ = ("_leaves", "file", "first", "mode", "name", "place", "records")

    def __init__(
        self,
        name: str,
        mode: str,
        place: Place | None = None,
        file: tuple[int, int] = (0, 0),
        first: tuple[int, ...] | None = None,
    ) -> None:
        self.name = name
        self.mode = mode
        self.place = place
        self.file = file
        self.first = first  # the shape of the leaf at the first byte, mostly the only one
        self._leaves: dict[int, tuple[int, ...]] | None = None
        self.records: tuple[int, int, int] | None = None  # where rows that lie side by side begin, their size, how many

    @property
    def path(self) -> str:
        return self.name if self.place is None else self.place.at(self.name)

    @property
    def said(self) -> str:
        """The path that the file has, or will have, for errors."""
        return self.name if self.place is None else f"{self.place.path}/{self.name}"

    def goes_to(self, path: str) -> bool:
        """Tell whether this is, or will be, the path of the file."""
        return path == self.said

    def note(self, start: int, shape: tuple[int, ...]) -> None:
        """Note that a leaf of this shape begins at a byte."""
        if not start:
            self.first = shape
        elif self._leaves is None:
            self._leaves = {start: shape}
        else:
            self._leaves[start] = shape

    def note_all(self, slots: Iterable[Slot]) -> None:
        """Note all leaves of a block; those with rows side by side come first in it."""
        for start, shape, _, stride in slots:
            self.note(start, shape)
            if stride:
                first = start if self.records is None else min(start, self.records[0])
                self.records = (first, stride, shape[0])

    def leaf_at(self, byte: int) -> tuple[int, tuple[int, ...]] | None:
        """Return the first byte and the shape of the leaf that a byte of the file belongs to."""
        if self.records is not None:
            first, size, count = self.records
            byte = first + (byte - first) % size if first <= byte < first + size * count else byte
        start = max((start for start in self._leaves or () if start <= byte), default=None)
        if self._leaves is not None and start is not None:
            return start, self._leaves[start]
        return None if self.first is None else (0, self.first)


def home_of(tensor: Tensor) -> Home | None:
    """Return where the memory of a tensor is mapped from, or None."""
    try:
        return getattr(tensor.untyped_storage(), "_home", None)
    except (NotImplementedError, RuntimeError):
        # Sparse and wrapper tensors have no storage of their own.
        return None


# --- mapping files


def map_file(path: str, nbytes: int, mode: str, *, most: float = 0) -> torch.UntypedStorage:
    """Map the first `nbytes` of a file that holds no more, or up to `most`; with ``"r"`` writes never reach the file.

    Raises:
        ValueError: the mode is unknown, or the file holds fewer or more bytes.
        FileNotFoundError: there is no such file.
    """
    return _map(path, nbytes, Home(path, mode, None, _check_file(path, nbytes, mode, most)))


def map_leaf(path: str, shape: tuple[int, ...], dtype: torch.dtype, mode: str, *, most: float = 0) -> Tensor:
    """Return the leaf at the beginning of a file; arguments and errors as for `map_file`."""
    nbytes = math.prod(shape) * dtype.itemsize
    home = Home(path, mode, None, _check_file(path, nbytes, mode, most), shape)
    return view(_map(path, nbytes, home), 0, shape, dtype)


def _check_file(path: str, nbytes: int, mode: str, most: float) -> tuple[int, int]:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES!r}, got {mode!r}")
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if nbytes == 0:
            return 0, 0
        raise FileNotFoundError(f"no file {path!r}; expected one of {nbytes} bytes") from None
    size = status.st_size
    if size != nbytes and not nbytes <= size <= most:
        raise ValueError(f"{path!r} should hold {nbytes} bytes, but it holds {size}")
    if mode != "r" and _RESERVES and 512 * status.st_blocks < size:
        disk.fill_holes(path, size)
    return _identity(status)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _map(path: str, nbytes: int, home: Home) -> torch.UntypedStorage:
    # Mapping for writing would make a file that is missing, or too short; an empty range cannot be mapped.
    storage: Any = _from_file(path, home.mode != "r", nbytes) if nbytes else torch.UntypedStorage(0)
    storage._home = home
    return storage  # type: ignore[no-any-return]


def attach(path: str, nbytes: int, mode: str, *, most: float = 0) -> torch.UntypedStorage:
    """Like `map_file`, but a file that this process has mapped already is not mapped again."""
    key = (*_check_file(path, nbytes, mode, most), mode)
    storage = _open.get(key) if nbytes else None
    if storage is None or storage.nbytes() < nbytes:
        storage = _map(path, nbytes, Home(path, mode, None, key[:2]))
        if nbytes:
            _open[key] = storage
    return storage


def leaf_of(storage: torch.UntypedStorage, start: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the leaf that begins at a byte of a mapped storage, and note its shape at home."""
    storage._home.note(start, tuple(shape))  # type: ignore[attr-defined]
    return view(storage, start, shape, dtype)


@contextlib.contextmanager
def replace_file(path: str) -> Iterator[tuple[int, str]]:
    """Yield descriptor and name of a new file that takes this name when the block ends well, and vanishes otherwise.

    An older file of that name is replaced, not overwritten: who has it mapped keeps the old bytes. The new one is on
    the disk before it gets the name.
    """
    temporary = os.path.join(os.path.dirname(path), f"{TEMPORARY}{os.getpid()}-{next(_counter)}")
    descriptor = disk.create(temporary)
    with disk.taking_name(descriptor, temporary, path):
        yield descriptor, temporary


def new_leaf(path: str, shape: Sequence[int], dtype: torch.dtype, tensor: Tensor | None = None) -> Tensor:
    """Make a file of zeros, or with the elements of a tensor, and return the leaf over it.

    Raises:
        OSError: the file system has too little space; the message names the file and the bytes needed.
    """
    require_space(os.path.dirname(path), byte_count(shape, dtype), repr(path))
    with replace_file(path) as (descriptor, temporary):
        return _made(descriptor, temporary, (tuple(shape), dtype), tensor, Home(path, "r+"))


def copy_leaf(path: str, tensor: Tensor) -> Tensor:
    """Write a tensor to a file of its own and return the leaf over it; a leaf that lies there already is kept.

    Raises:
        OSError: the file system has too little space; the message names the file and the bytes needed.
    """
    return tensor if lies_at(tensor, path) else new_leaf(path, *spec_of(tensor), tensor)


def place_new(
    place: Place, name: str, shape: Sequence[int], dtype: torch.dtype, tensor: Tensor | None = None
) -> Tensor:
    """Make a file in a tree that is being written, and return the leaf over it; otherwise as `new_leaf`."""
    path = place.file(name)
    require_space(os.path.dirname(path), byte_count(shape, dtype), repr(f"{place.path}/{name}"))
    descriptor = disk.create(path)
    try:
        return _made(descriptor, path, (tuple(shape), dtype), tensor, Home(name, "r+", place))
    finally:
        os.close(descriptor)


def place_copy(place: Place, name: str, tensor: Tensor) -> Tensor:
    """Write a tensor to a file in a tree that is being written; a leaf that lies in that file of the old tree is kept.

    Raises:
        OSError: the file system has too little space; the message names the file and the bytes needed.
    """
    path = f"{place.path}/{name}"
    if lies_at(tensor, path):
        with contextlib.suppress(OSError):  # where files cannot have two names it is copied
            disk.link(path, place.file(name))
            return tensor
    leaf = place_new(place, name, *spec_of(tensor), None if place.threads else tensor)
    if place.threads:
        place.later(lambda: _fill_placed(leaf, tensor, place.at(name)))
    return leaf


def _made(descriptor: int, path: str, spec: Spec, tensor: Tensor | None, home: Home) -> Tensor:
    """Give a new file the size of a leaf, and the elements of a tensor, and return the leaf over it."""
    nbytes = byte_count(*spec)
    disk.reserve(descriptor, nbytes, home.said)
    home.file, home.first = _identity(os.fstat(descriptor)), spec[0]
    leaf = view(_map(path, nbytes, home), 0, *spec)
    if tensor is not None:
        _fill(leaf, tensor, descriptor)
    return leaf


def _fill(leaf: Tensor, tensor: Tensor, descriptor: int) -> None:
    """Copy a tensor to its file: through the file where it lies as it should, which takes no page fault a page."""
    home: Any = home_of(leaf)
    if tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        array: Any = flat_bytes(tensor.detach()).numpy()
        disk.write(descriptor, array, home.said)
        if home.place is not None and len(array) <= _SMALL:
            home.place.sums[home.name] = len(array), zlib.crc32(array)
    else:
        with torch.no_grad():
            leaf.copy_(tensor)
    if leaf.nbytes > _SMALL:
        disk.start_writing(descriptor)


def _fill_placed(leaf: Tensor, tensor: Tensor, path: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        _fill(leaf, tensor, descriptor)
    finally:
        os.close(descriptor)


def lies_at(tensor: Tensor, path: str) -> bool:
    """Tell whether a tensor is the whole of a file, mapped for writing, and that file still has this name."""
    home = home_of(tensor)
    if home is None or not home.goes_to(path) or home.mode == "r" or not tensor.is_contiguous():
        return False
    if tensor.nbytes != tensor.untyped_storage().nbytes() or tensor.is_conj() or tensor.is_neg():
        return False
    try:
        status = os.stat(path)
    except OSError:
        return False
    return _identity(status) == home.file


# --- mappings without a name of their own


def allocate_anonymous(nbytes: int) -> torch.UntypedStorage:
    """Map a new temporary file, which goes when this process drops the mapping or ends."""
    descriptor, path = tempfile.mkstemp(prefix="tensordict-", suffix=".memmap")
    try:
        require_space(os.path.dirname(path), nbytes, repr(path))
        disk.reserve(descriptor, nbytes, path)
        storage = _map(path, nbytes, Home(path, "r+", None, _identity(os.fstat(descriptor))))
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
    # Unlike weakref.finalize this also runs at the end of forked workers, never in a child that inherits the mapping,
    # and, with a negative priority, after the children of this process have ended.
    Finalize(storage, _remove, (path,), exitpriority=-1)
    return storage


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
