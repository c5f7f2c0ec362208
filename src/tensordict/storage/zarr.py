"""Zarr stores, by zarr 3: a folder, a zip file, a URL that fsspec knows, or any store object."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy

from tensordict.storage import disk
from tensordict.storage.arrays import Items
from tensordict.storage.hdf5 import fitted

_OF_STORES = frozenset(["storage_options", "zarr_format", "zarr_version"])


def library() -> Any:
    """Return zarr, or say how to install it."""
    try:
        import zarr
    except ImportError as error:
        raise ImportError("zarr stores need zarr 3: pip install 'tensordict[zarr]'") from error
    return zarr


class Zarr:
    """Open a zarr group.

    Args:
        path: what `zarr.open_group` takes as a store, or an open group.
        mode: as `zarr.open_group` takes it.
        options: of `open_group` and, for the arrays that are made, of `create_array`.

    Raises:
        FileNotFoundError: there is no such group.
    """

    kind = "zarr"
    growing = False

    def __init__(self, path: Any, mode: str, options: dict[str, Any]) -> None:
        zarr = library()
        self.age, self._pid = 0, os.getpid()
        self._for_store = {name: value for name, value in options.items() if name in _OF_STORES}
        self._for_arrays = {name: value for name, value in options.items() if name not in _OF_STORES}
        self._where = os.fspath(path) if isinstance(path, os.PathLike) else path
        self.mode = "r" if mode == "r" else "r+"
        if isinstance(path, zarr.Group):
            self._group: Any = path
            self.mode = "r" if path.read_only else "r+"
        else:
            self._group = self._opened(mode)

    def _opened(self, mode: str) -> Any:
        zarr = library()
        try:
            return zarr.open_group(self._where, mode={"x": "w-"}.get(mode, mode), **self._for_store)
        except (FileNotFoundError, zarr.errors.GroupNotFoundError) as error:
            raise FileNotFoundError(f"no zarr group at {self.path!r}") from error

    @property
    def path(self) -> str:
        return (
            os.path.abspath(self._where)
            if isinstance(self._where, str) and "://" not in self._where
            else str(self._where)
        )

    @property
    def options(self) -> dict[str, Any]:
        return {**self._for_store, **self._for_arrays}

    def __reduce__(self) -> tuple[Any, ...]:
        return Zarr, (self._where, self.mode, self.options)

    def root(self) -> Any:
        if self._group is None:
            raise ValueError(f"the zarr store {self.path!r} was closed; open it again")
        if self._pid != os.getpid() and isinstance(self._where, str):
            self._group, self._pid, self.age = self._opened(self.mode), os.getpid(), self.age + 1
        return self._group

    def close(self) -> None:
        if self._group is not None:
            self._group.store.close()
            self._group = None

    def flush(self) -> None:
        if isinstance(self._where, str) and os.path.exists(self.path):
            disk.sync_all(disk.all_in(self.path))

    def group(self, path: str) -> Any:
        root = self.root()
        return root if not path else root[path] if path in root else root.create_group(path)

    def members(self, group: Any) -> Iterable[tuple[str, Any]]:
        return sorted(group.members(), key=lambda pair: pair[0])

    def is_group(self, member: Any) -> bool:
        return not hasattr(member, "shape")

    def marks(self, member: Any) -> dict[str, Any]:
        return {name: value for name, value in member.attrs.items() if name.startswith("__tensordict")}

    def mark(self, member: Any, name: str, value: Any) -> None:
        member.attrs[name] = value

    def make(self, group: Any, name: str, shape: Sequence[int], dtype: numpy.dtype[Any] | type) -> Any:
        if dtype is str:
            return group.create_array(name, shape=tuple(shape), dtype="string")
        return group.create_array(name, shape=tuple(shape), dtype=dtype, **fitted(self._for_arrays, shape))

    def read(self, array: Any, selection: Items) -> Any:
        return array.oindex[selection] if _listed(selection) else array[selection]

    def write(self, array: Any, selection: Items, value: Any) -> None:
        if self.mode == "r":
            raise PermissionError(f"cannot write to {self.path!r}: it was opened with mode='r'; open it with mode='r+'")
        if _listed(selection):
            array.oindex[selection] = value
        else:
            array[selection] = value


def _listed(selection: Items) -> bool:
    return any(not isinstance(item, slice) for item in selection)
