"""HDF5 files, by h5py: opened once a process, and opened again after a fork.

The handles of h5py must not cross a fork: a child that used them would share caches with its parent. In a forked child
the file is opened anew, for reading only, by another driver, since HDF5 would find its own copy of the open file else.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from tensordict.storage import disk
from tensordict.storage.arrays import STACK, STRING, Items

MODES = ("r", "r+", "w", "w-", "x", "a")
_OF_FILES = frozenset(
    "driver libver userblock_size swmr rdcc_nslots rdcc_nbytes rdcc_w0 locking fs_strategy fs_page_size page_buf_size "
    "min_meta_keep min_raw_keep alignment_threshold alignment_interval meta_block_size".split()
)
_writers: weakref.WeakSet[HDF5] = weakref.WeakSet()
_inherited: list[Any] = []  # handles of the parent: closing one here would write the parent's caches


def library() -> Any:
    """Return h5py, or say how to install it."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py: pip install 'tensordict[h5]'") from error
    return h5py


class HDF5:
    """Open an HDF5 file.

    Args:
        path: the file, or an open h5py file.
        mode: as `h5py.File` takes it.
        options: of `h5py.File` and, for the datasets that are made, of `create_dataset`.

    Raises:
        FileNotFoundError: there is no such file.
        BlockingIOError: another process has it open for writing.
    """

    kind = "h5"

    def __init__(self, path: Any, mode: str, options: dict[str, Any]) -> None:
        h5py = library()
        self.age, self._pid = 0, os.getpid()
        self._path: str
        self.mode: str
        self._for_file = {name: value for name, value in options.items() if name in _OF_FILES}
        self._for_arrays = {name: value for name, value in options.items() if name not in _OF_FILES}
        if isinstance(path, h5py.File):
            self._file, self._path = path, os.path.abspath(path.filename)
        else:
            self._path = os.path.abspath(os.fspath(path))
            if mode in ("r", "r+") and not os.path.exists(self._path):
                raise FileNotFoundError(f"no HDF5 file {self._path!r}")
            self._file = h5py.File(self._path, mode, track_order=True, **self._for_file)
        self.mode = self._file.mode
        if self.mode != "r":
            _writers.add(self)

    @property
    def path(self) -> str:
        return self._path

    @property
    def growing(self) -> bool:
        """Tell whether another process may append rows while this one reads."""
        return bool(self._for_file.get("swmr")) or (self.mode == "r" and bool(self._file) and self._file.swmr_mode)

    @property
    def options(self) -> dict[str, Any]:
        return {**self._for_file, **self._for_arrays}

    def __reduce__(self) -> tuple[Any, ...]:
        return HDF5, (self._path, "r" if self.mode == "r" else "r+", self.options)

    def root(self) -> Any:
        if self._pid != os.getpid():
            self._open_again()
        if not self._file:
            raise ValueError(f"the HDF5 file {self._path!r} was closed; open it again")
        return self._file

    def _open_again(self) -> None:
        _inherited.append(self._file)
        if self._file:
            said = self._for_file if self.growing else {**self._for_file, "driver": "stdio", "locking": False}
            self._file = library().File(self._path, "r", **said)
        self.mode, self._pid, self.age = "r", os.getpid(), self.age + 1

    def close(self) -> None:
        if self._pid == os.getpid():
            self._file.close()

    def flush(self) -> None:
        if self._file and self._pid == os.getpid():
            self._file.flush()
            if os.path.isfile(self._path):
                disk.sync(self._path)

    def group(self, path: str) -> Any:
        root = self.root()
        return root if not path else root[path] if path in root else root.create_group(path, track_order=True)

    def members(self, group: Any) -> Iterable[tuple[str, Any]]:
        return group.items()  # type: ignore[no-any-return]

    def is_group(self, member: Any) -> bool:
        return hasattr(member, "keys")

    def marks(self, member: Any) -> dict[str, Any]:
        attributes = member.attrs
        return {name: self._mark(attributes[name]) for name in attributes if name.startswith("__tensordict")}

    def _mark(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value.tolist() if isinstance(value, (numpy.ndarray, numpy.generic)) else None
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value

    def mark(self, member: Any, name: str, value: Any) -> None:
        member.attrs[name] = value if name in (STACK, STRING) else json.dumps(value)

    def make(self, group: Any, name: str, shape: Sequence[int], dtype: numpy.dtype[Any] | type) -> Any:
        options = fitted(self._for_arrays, shape) if dtype is not str else {}
        kind = library().string_dtype() if dtype is str else dtype
        return group.create_dataset(name, shape, kind, **options)

    def read(self, array: Any, selection: Items) -> Any:
        if self.growing:
            array.refresh()
        return array[selection]

    def write(self, array: Any, selection: Items, value: Any) -> None:
        if self.mode == "r":
            raise PermissionError(
                f"cannot write to {self._path!r} here: it was opened with mode='r', or by the process that forked this "
                f"one, and HDF5 takes no writes from two processes"
            )
        array[selection] = value


def fitted(options: dict[str, Any], shape: Sequence[int]) -> dict[str, Any]:
    """Return options of arrays for one of a shape: sizes that are given for leading dims go on with its own."""
    if not shape or 0 in shape:
        return {name: value for name, value in options.items() if name in ("maxshape",) and shape and 0 in shape}
    found = dict(options)
    for name in ("chunks", "shards", "maxshape"):
        sizes = options.get(name)
        if isinstance(sizes, (tuple, list)):
            own = tuple(sizes[: len(shape)])
            limits = zip(own, shape)
            own = own if name != "chunks" or options.get("maxshape") else tuple(min(size, n) for size, n in limits)
            found[name] = own + tuple(shape[len(own) :])
    return found


def _flush_all() -> None:
    for store in list(_writers):
        store.flush()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_flush_all)
