"""Rows that one writer holds, so that others that ask for them wait: a byte a row of a file in the folder of a tree.

The locks are advisory, and those of an open file description where the system has them (Linux): two threads, and two
tensordicts of one process, exclude each other as two processes do, and a process that ends gives its locks back.
Elsewhere the whole file is locked.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator

from tensordict.storage import disk
from tensordict.storage.layout import TEMPORARY
from tensordict.storage.saving import root_of

FILE = f"{TEMPORARY}rows"

_FORMAT = "@hhqqi0q"  # struct flock of Linux: type, whence, start, length, pid
_SHORTEST, _LONGEST = 0.0005, 0.02


@contextlib.contextmanager
def rows_held(folder: str, start: int, stop: int, timeout: float | None = None) -> Iterator[None]:
    """Hold rows of the tree that a folder is a node of.

    Raises:
        TimeoutError: another writer holds some of them all the time.
    """
    path = os.path.join(root_of(folder), FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, start, stop, timeout, path)
        yield
        _set(descriptor, start, stop, lock=False)
    finally:
        os.close(descriptor)


def _take(descriptor: int, start: int, stop: int, timeout: float | None, path: str) -> None:
    end = None if timeout is None else time.monotonic() + timeout
    pause = _SHORTEST
    while not _set(descriptor, start, stop, lock=True):
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(
                f"rows {start} to {stop} of {os.path.dirname(path)!r} were not free within {timeout} s: another writer "
                f"holds rows {_holder(descriptor, start, stop)}"
            )
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST)


def _set(descriptor: int, start: int, stop: int, *, lock: bool) -> bool:
    """Take or give back the lock of some bytes; return whether it went as asked."""
    fcntl = disk.fcntl
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return disk.lock(descriptor, wait=False) if lock else True  # closing the file gives it back
    kind = fcntl.F_WRLCK if lock else fcntl.F_UNLCK
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FORMAT, kind, os.SEEK_SET, start, stop - start, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _holder(descriptor: int, start: int, stop: int) -> str:
    fcntl = disk.fcntl
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return "of it"
    asked = struct.pack(_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, start, stop - start, 0)
    _, _, first, count, pid = struct.unpack(_FORMAT, fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return f"{first} to {first + count}" + (f" (process {pid})" if pid > 0 else "")
