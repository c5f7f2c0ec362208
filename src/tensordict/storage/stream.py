"""Writing one file from end to end: beside its place, flushed to the disk, and then renamed into it."""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from tensordict.storage import disk, layout
from tensordict.storage.base import flat_bytes, require_space

MARK = "%%file-"
_AT_ONCE = 16 << 20
_SHORT = 1 << 18


class Stream:
    """Write runs of bytes to a file, one after the other, short ones together; `at` is where the next one begins."""

    def __init__(self, descriptor: int, path: str) -> None:
        self.at = 0
        self._descriptor, self._path = descriptor, path
        self._waiting = bytearray()

    def put(self, content: Any) -> None:
        """Write bytes at the end."""
        if len(content) <= _SHORT:
            self._waiting += content
        else:
            self.flush()
            disk.write(self._descriptor, content, self._path, self.at)
        self.at += len(content)
        if len(self._waiting) > _SHORT:
            self.flush()

    def put_first(self, content: Any) -> None:
        """Write bytes over those that the file begins with."""
        self.flush()
        disk.write(self._descriptor, content, self._path, 0)

    def flush(self) -> None:
        """Write what waits for more."""
        if self._waiting:
            disk.write(self._descriptor, self._waiting, self._path, self.at - len(self._waiting))
            self._waiting = bytearray()

    def pad(self, to: int) -> None:
        """Leave zeros up to a byte of the file."""
        if to > self.at:
            self.put(bytes(to - self.at))

    def put_tensor(self, tensor: Tensor) -> int:
        """Write the elements of a tensor in C order; return their CRC-32."""
        return crc(tensor, self.put)


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of the elements of a tensor in C order; it is copied only where it is not that already."""
    plain = tensor.detach()
    if not (plain.is_cpu and plain.is_contiguous()) or plain.is_conj() or plain.is_neg():
        plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
    array: Any = flat_bytes(plain).numpy()
    return memoryview(array)


def runs(tensor: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of the elements of a tensor in C order, some rows at a time where they must be copied."""
    if tensor.is_contiguous() or not tensor.dim() or not tensor.numel():
        yield raw(tensor)
        return
    for part in tensor.split(max(1, _AT_ONCE // tensor[0].nbytes)):
        yield raw(part)


def crc(tensor: Tensor, watch: Callable[[memoryview], object] = len) -> int:
    """Return the CRC-32 of the elements of a tensor in C order; `watch` is handed their bytes on the way."""
    found = 0
    for content in runs(tensor):
        watch(content)
        found = zlib.crc32(content, found)
    return found


@contextlib.contextmanager
def new_file(path: str, nbytes: int) -> Iterator[Stream]:
    """Yield a stream into a file of this size, which takes its name when the block ends well.

    Until then it has a temporary name in the same folder, and holds a lock; one whose writer died is removed by the
    next who writes this name.

    Raises:
        OSError: the file system has too little space; the message names the file and the bytes needed.
    """
    folder, name = os.path.split(path)
    require_space(folder, nbytes, repr(path))
    with disk.held(folder):  # no other writer takes what is not locked yet for a leftover
        sweep(folder, name)
        temporary = os.path.join(folder, f"{MARK}{secrets.token_hex(8)}-{layout.short(name)}")
        descriptor = disk.create(temporary)
        disk.lock(descriptor)
    with disk.taking_name(descriptor, temporary, path):
        disk.reserve(descriptor, nbytes, path)
        stream = Stream(descriptor, path)
        yield stream
        stream.flush()


def sweep(folder: str, name: str, _: str = "") -> None:
    """Remove what dead writers of a file left beside it."""
    start, end = len(MARK) + 16, f"-{layout.short(name)}"
    for other in os.listdir(folder):
        if other.startswith(MARK) and other[start:] == end:
            path = os.path.join(folder, other)
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDWR)
                try:
                    if disk.lock(descriptor, wait=False):
                        disk.unlink(path)
                finally:
                    os.close(descriptor)
