"""Words that keep a tensordict in an HDF5 file or a zarr store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensordict import dims
from tensordict.aliases import Batch, SizeLike
from tensordict.core.facts import Facts
from tensordict.meta import as_batch
from tensordict.ops.store import open_room, open_tree
from tensordict.storage.arrays import Arrays, Store, Terms
from tensordict.storage.hdf5 import HDF5
from tensordict.storage.saving import replacing
from tensordict.storage.zarr import Zarr

if TYPE_CHECKING:
    pass

_STORES: dict[str, Any] = {"h5": HDF5, "zarr": Zarr}


class Persist(Facts):
    """Requires: `_place`. Gives: the words for HDF5 and zarr."""

    def to_h5(self, filename: str | os.PathLike[str], **kwargs: Any) -> Any:
        """Write a copy to an HDF5 file, which is replaced as a whole, and return it as a `PersistentTensorDict`.

        Args:
            filename: the file.
            **kwargs: options of `h5py.File` and of `create_dataset` for every leaf, such as ``compression="gzip"`` or
                ``chunks=(32,)``; sizes that are missing in a tuple are those of the leaf.

        Raises:
            TypeError: if a value is neither an array of numbers nor what JSON can hold; the file is as it was.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     stored = TensorDict({"x": torch.arange(3)}, [3]).to_h5(f"{folder}/data.h5", compression="gzip")
            ...     row = stored[1]["x"]
            ...     stored.close()
            >>> row
            tensor(1)
        """
        return stored(self, "h5", filename, Terms(), kwargs)

    def to_zarr(self, filename: Any, *, allow_pickle: bool | None = None, **kwargs: Any) -> Any:
        """Write a copy to a zarr group, in place of what is there, and return it as a `PersistentTensorDict`.

        Args:
            filename: a folder, a zip file, a URL, or anything else that `zarr.open_group` takes as a store.
            allow_pickle: pickle objects that JSON cannot hold; refused by default.
            **kwargs: options of `zarr.open_group` and of `create_array` for every leaf, such as ``chunks=(32,)``;
                sizes that are missing in a tuple are those of the leaf.

        Raises:
            TypeError: if a value is neither an array of numbers nor what JSON can hold.
            FileExistsError: if the folder holds other things than a zarr store.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     TensorDict({"x": torch.arange(3)}, [3]).to_zarr(f"{folder}/data.zarr", chunks=(2,))[1:]["x"]
            tensor([1, 2])
        """
        return stored(self, "zarr", filename, Terms(bool(allow_pickle)), kwargs)

    @classmethod
    def from_h5(
        cls,
        filename: str | os.PathLike[str],
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: SizeLike | None = None,
        non_tensor_as_stack: bool = False,
    ) -> Any:
        """Open an HDF5 file as a `PersistentTensorDict`; values are read when they are asked for.

        Args:
            filename: the file.
            mode: "r" or "r+".
            auto_batch_size: find the longest batch size that all datasets share, whatever the file says.
            batch_dims: with ``auto_batch_size``, or where the file says none, at most so many dims.
            batch_size: the batch size; None for that of the file, or the one that all datasets share.
            non_tensor_as_stack: write one value that is set for all rows to each of them.

        Raises:
            FileNotFoundError: if there is no such file.
            RuntimeError: if a dataset does not have the batch size.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     TensorDict({"x": torch.arange(3)}, [3]).to_h5(f"{folder}/data.h5").close()
            ...     stored = TensorDict.from_h5(f"{folder}/data.h5")
            ...     batch_size = stored.batch_size
            ...     stored.close()
            >>> batch_size
            torch.Size([3])
        """
        room = Arrays(HDF5(filename, mode, {}), "", Terms(as_stack=non_tensor_as_stack))
        return _sized(cls._received(open_tree(room)), auto_batch_size, batch_dims, batch_size)

    @classmethod
    def from_zarr(
        cls,
        filename: Any,
        *,
        mode: str = "r",
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        batch_size: SizeLike | None = None,
        non_tensor_as_stack: bool = False,
        allow_pickle: bool | None = None,
    ) -> Any:
        """Open a zarr group as a `PersistentTensorDict`; arguments and errors as for `from_h5`.

        Args:
            filename: a folder, a zip file, a URL, or anything else that `zarr.open_group` takes as a store.
            allow_pickle: load objects that were pickled, which can run code; refused by default.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = TensorDict({"x": torch.arange(3)}, [3]).to_zarr(f"{folder}/data.zarr")
            ...     TensorDict.from_zarr(f"{folder}/data.zarr")["x"]
            tensor([0, 1, 2])
        """
        room = Arrays(Zarr(filename, mode, {}), "", Terms(bool(allow_pickle), None, non_tensor_as_stack))
        return _sized(cls._received(open_tree(room)), auto_batch_size, batch_dims, batch_size)


def _sized(node: Any, auto: bool, batch_dims: int | None, batch_size: SizeLike | None) -> Any:
    if batch_size is not None:
        node.batch_size = as_batch(batch_size)
    elif auto or batch_dims is not None:
        node.auto_batch_size_(batch_dims)
    return node


def common_batch(room: Arrays) -> Batch:
    """Return the leading dims that all leaves of a stored tree share."""
    return dims.common(list(_shapes(room)))


def _shapes(room: Arrays) -> Iterator[Batch]:
    for key in list(room.keys()):
        slot = room.slot(key)
        if slot is None:
            yield from _shapes(room.child(key))
        elif slot.encoding is None:
            yield slot.shape


def opened(backend: str, target: Any, mode: str, options: dict[str, Any]) -> Store:
    """Return an open file or store."""
    if backend not in _STORES:
        raise ValueError(f"backend must be one of {list(_STORES)}, got {backend!r}")
    store: Store = _STORES[backend](target, mode, options)
    return store


def stored(node: Any, backend: str, target: Any, terms: Terms, options: dict[str, Any]) -> Any:
    """Write a node to a store and return it as it lies there.

    A local file or folder is written beside its place and renamed: who reads the place finds the old one or the new.
    """
    if not isinstance(target, (str, os.PathLike)) or "://" in os.fspath(target):
        room = Arrays(opened(backend, target, "w", options), "", terms)
        node._place(room, backend, True)
        return open_room(room)
    path = os.path.abspath(os.fspath(target))
    _require_replaceable(path, backend)
    with replacing(path) as beside:
        store = opened(backend, beside, "w", options)
        try:
            node._place(Arrays(store, "", terms), backend, True)
        finally:
            store.close()
    return open_room(Arrays(opened(backend, path, "r" if path.endswith(".zip") else "r+", options), "", terms))


def _require_replaceable(path: str, backend: str) -> None:
    """Raise if there is a folder of other things in the place of a file or store."""
    names = os.listdir(path) if os.path.isdir(path) else []
    if os.path.isdir(path) and backend == "h5":
        raise IsADirectoryError(errno.EISDIR, f"cannot save to {path!r}: a folder is there")
    if names and not any(name.startswith(".z") or name == "zarr.json" for name in names):
        raise FileExistsError(
            errno.EEXIST, f"cannot save to {path!r}: the folder holds {sorted(names)[0]!r}, and is no zarr store"
        )
