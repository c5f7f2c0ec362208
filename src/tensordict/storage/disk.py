"""The calls that change a disk, one function each, so that a test can record them and stop between any two.

    create --write--> file --sync_all--> on the disk --exchange--> in its place

Errors of a full disk name the file and the bytes that were needed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

try:
    import fcntl as fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_AT_CWD = -100
_EXCHANGE = 2
_START_WRITING = 2
_AT_ONCE = 8
R = TypeVar("R")

_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


# --- files


def create(path: str) -> int:
    """Make a new file and return its descriptor, open for reading and writing."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def write(descriptor: int, data: Any, path: str, offset: int | None = None) -> None:
    """Write all of a buffer to the end of what was written, or to an offset.

    Raises:
        OSError: the disk is full; the message names the file and the bytes.
    """
    rest = memoryview(data)
    needed = len(rest)
    try:
        while rest:
            count = os.write(descriptor, rest) if offset is None else os.pwrite(descriptor, rest, offset)
            rest = rest[count:]
            offset = None if offset is None else offset + count
    except OSError as error:
        raise no_space(error, path, needed) from error


def reserve(descriptor: int, nbytes: int, path: str) -> None:
    """Give a file a size, of which no byte can find the disk full later.

    Raises:
        OSError: the disk is full; the message names the file and the bytes.
    """
    # A page that finds no room when it is first written through a mapping kills the process.
    try:
        if nbytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, nbytes)
        else:
            os.ftruncate(descriptor, nbytes)
    except OSError as error:
        raise no_space(error, path, nbytes) from error


def fill_holes(path: str, nbytes: int) -> None:
    """Take space for the parts of a file that have none yet, as another program may have left them.

    Raises:
        OSError: the disk is full; the message names the file and the bytes.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        if os.lseek(descriptor, 0, os.SEEK_HOLE) < nbytes:
            reserve(descriptor, nbytes, path)
    finally:
        os.close(descriptor)


def no_space(error: OSError, path: str, nbytes: int) -> OSError:
    """Return an error that names a file and the bytes it needed."""
    return OSError(error.errno, f"no space for {path!r}: {nbytes} bytes needed: {error.strerror}")


def truncate(descriptor: int, nbytes: int) -> None:
    """Cut a file to a size."""
    os.ftruncate(descriptor, nbytes)


def start_writing(descriptor: int) -> None:
    """Ask the kernel to begin writing a file to the disk, without waiting for it."""
    if hasattr(os, "posix_fallocate"):  # Linux
        with contextlib.suppress(AttributeError):
            _libc().sync_file_range(descriptor, ctypes.c_long(0), ctypes.c_long(0), _START_WRITING)


def sync(path: str) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: they cannot be written; the message names the path.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if os.path.isdir(path):  # as on Windows, where a folder cannot be opened
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (error.errno == errno.EINVAL and os.path.isdir(path)):
            raise OSError(error.errno, f"cannot write {path!r} to the disk: {error.strerror}") from error
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[str]) -> None:
    """Wait until files and folders are on the disk; a journal writes those that wait together at once."""
    for _ in spread(lambda path: sync(path), paths, _AT_ONCE):
        pass


def spread(call: Callable[[str], R], names: Sequence[str], threads: int) -> Iterator[R]:
    """Yield what a call returns for each name, in order; threads do it, each for a few names at a time."""
    if len(names) < 2:
        yield from map(call, names)
        return
    step = max(1, len(names) // (threads * 8))
    runs = [names[at : at + step] for at in range(0, len(names), step)]
    with ThreadPoolExecutor(min(threads, len(runs))) as pool:
        for found in pool.map(lambda run: list(map(call, run)), runs):
            yield from found


def all_in(path: str) -> list[str]:
    """Return a file or folder and all that is in it."""
    return [path, *(os.path.join(top, name) for top, *names in os.walk(path) for some in names for name in some)]


def sync_mapping(address: int, nbytes: int, path: str) -> None:
    """Wait until what was written through a mapping is on the disk; `path` is for the message of an error.

    Raises:
        OSError: it cannot be written.
    """
    if nbytes and os.name == "posix":
        flag = 0x10 if sys.platform == "darwin" else 4  # MS_SYNC
        if _libc().msync(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), flag):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot write {path!r} to the disk: {os.strerror(code)}")


# --- names


def make_folder(path: str) -> None:
    os.mkdir(path)


def link(source: str, target: str) -> None:
    """Give a file a second name."""
    os.link(source, target, follow_symlinks=False)


def rename(source: str, target: str) -> None:
    """Rename a file or folder; a file, or an empty folder, of the new name goes."""
    os.replace(source, target)


def exchange(one: str, other: str) -> bool:
    """Exchange two names in one step; return False where the system or the file system cannot."""
    call = getattr(_libc(), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if call(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), one, None, other)


@contextlib.contextmanager
def taking_name(descriptor: int, temporary: str, path: str) -> Iterator[None]:
    """Give a new file, open at a descriptor, its name when the block ends well, and remove it otherwise; close it.

    It is on the disk before it gets the name, and so is the name at the end.
    """
    try:
        yield
        sync(temporary)
        rename(temporary, path)
    except BaseException:
        unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    sync(os.path.dirname(path))


def unlink(path: str) -> None:
    os.unlink(path)


def remove_folder(path: str) -> None:
    os.rmdir(path)


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it, as far as it can be removed."""
    shutil.rmtree(path, ignore_errors=True)


# --- locks


@contextlib.contextmanager
def held(folder: str) -> Iterator[int | None]:
    """Hold a folder: whoever else holds it waits. Yield its descriptor; None where folders cannot be held."""
    descriptor = open_folder(folder)
    try:
        if descriptor is not None:
            lock(descriptor)
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def open_folder(path: str) -> int | None:
    """Return a descriptor of a folder, which keeps its identity; None where folders cannot be opened."""
    return None if fcntl is None else os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Take the lock of an open file or folder; return whether it is mine now.

    A process that ends, however it ends, gives its locks back.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # some network file systems lock no folders
        return wait
    return True
