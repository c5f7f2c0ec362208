"""Words for a memory-mapped tensordict that grows and that several processes write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from tensordict.aliases import NestedKey, SizeLike
from tensordict.core.facts import Facts
from tensordict.keys import unravel_key_to_tuple
from tensordict.meta import as_batch
from tensordict.ops.store import open_room
from tensordict.storage import checksum, disk
from tensordict.storage.append import alone, append
from tensordict.storage.archive import renew
from tensordict.storage.folder import Folder, read_steadily
from tensordict.storage.locks import rows_held
from tensordict.storage.mapped import MemoryMappedTensor, present
from tensordict.storage.memmap import home_of
from tensordict.storage.saving import root_of
from tensordict.storage.sketch import Sketch

if TYPE_CHECKING:
    from typing_extensions import Self


N = TypeVar("N")


def append_memmap(prefix: str | os.PathLike[str], rows: Any, *, allow_pickle: bool | None = None) -> None:
    """Append rows to a tensordict that was saved in a folder, in one step.

    Whoever opens the folder has the rows from before or all the new ones, whenever a process or the machine stops. Who
    has it open keeps the rows that it had, until `memmap_refresh_`. Of two that append at once, one waits. It costs
    what the new rows take; only columns of objects other than long ones of strings are written anew.

    Args:
        prefix: the folder.
        rows: a tensordict with the keys, dtypes and shapes of the saved one, but for the first batch dim.
        allow_pickle: load a column of objects that were pickled, which can run code, to append to it.

    Raises:
        FileNotFoundError: if there is no tensordict in the folder.
        ValueError: if the rows do not fit; the message names the key. Nothing has been written then.
        OSError: if there is not enough space; the message names the file, and the folder holds what it held.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import TensorDict, append_memmap
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = TensorDict({"x": torch.arange(3)}, [3]).memmap(folder)
        ...     append_memmap(folder, TensorDict({"x": torch.tensor([7, 8])}, [2]))
        ...     TensorDict.load_memmap(folder)["x"].tolist()
        [0, 1, 2, 7, 8]
    """
    if not isinstance(rows, Facts):
        raise TypeError(f"append_memmap appends a tensordict, got {rows!r}")
    given = Sketch()
    rows._place(given, "memory", True)
    append(os.path.abspath(os.fspath(prefix)), given, allow_pickle=bool(allow_pickle))


class Mapped(Facts):
    """Requires: `_home`, `_adopt`. Gives: words for folders that others write too."""

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """See the rows and the keys that the folder has by now, whoever wrote them; return self.

        Args:
            allow_pickle: load objects that were pickled, which can run code; refused by default.

        Raises:
            RuntimeError: if this tensordict is not mapped from a folder, or is a part of what lies there.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict, append_memmap
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.arange(3)}, [3]).memmap(folder)
            ...     append_memmap(folder, TensorDict({"x": torch.tensor([7])}, [1]))
            ...     len(td), len(td.memmap_refresh_())
            (3, 4)
        """
        path = _folder_of(self, "refresh")
        mode = "r" if self._home.mode == "r" else "r+"
        fresh: Any = read_steadily(path, mode, bool(allow_pickle), open_room)
        self._bare()._adopt(fresh._bare())
        if self._locked:
            self._spread_lock(())
        return self

    def lock_rows(self, start: int, stop: int, timeout: float | None = None) -> AbstractContextManager[Self]:
        """Hold rows of a memory-mapped folder while they are written; others that ask for any of them wait.

        The lock is for writers that use it, in whatever process or thread: reads and other writes are not stopped. It
        is given back when the block ends, or when the process does, however it ends.

        Args:
            start: the first row, along the first batch dim.
            stop: the row after the last.
            timeout: how many seconds to wait at most; None waits as long as it takes.

        Raises:
            TimeoutError: if another writer holds some of the rows all the time.
            IndexError: if there are no such rows.
            RuntimeError: if this tensordict is not mapped from a folder, or is a part of what lies there.
            PermissionError: if it was opened with ``mode="r"``.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(4)}, [4]).memmap(folder)
            ...     with td.lock_rows(1, 3):
            ...         td[1:3] = TensorDict({"x": torch.ones(2)}, [2])
            ...     td["x"].tolist()
            [0.0, 1.0, 1.0, 0.0]
        """
        path = _folder_of(self, "lock rows of")
        batch = self._meta.batch
        if not batch or not 0 <= start < stop <= batch[0]:
            raise IndexError(f"cannot lock rows {start!r} to {stop!r} of a tensordict of batch size {list(batch)}")
        self._writable()
        return _holding(self, rows_held(path, start, stop, timeout))

    def flush(self, *, checksums: bool = True) -> Self:
        """Wait until all that was written to the leaves is on the disk; return self.

        Afterwards it survives a power failure, together with the keys, shapes and rows that the folder has. Writes
        that other processes made to the same files before are on the disk too. Without it the system writes them
        when it gets to it: a killed process loses nothing, a machine that loses power may.

        Args:
            checksums: read the files of the leaves again and renew their checksums, so that the folder, or the archive,
                can be verified. A consolidated file keeps those that it has: they lie in its description, which no
                step can change.

        Raises:
            RuntimeError: if this tensordict is not mapped from a folder or a file of that name.
            OSError: if the disk cannot be written; the message names the file.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(3)}, [3]).memmap(folder)
            ...     _ = td.fill_("x", 7.0).flush()
            ...     TensorDict.load_memmap(folder, verify=True)["x"]
            MemoryMappedTensor([7., 7., 7.])
        """
        home = self._home
        if home is not None and home.kind in ("consolidated", "archive"):
            if home.kind == "archive" and checksums and home.mode != "r":
                renew(home.path)
            disk.sync(home.path)  # all that was written to the mapping, too
            return self
        path = _folder_of(self, "flush", parts=True)
        files = set(_fold_leaves(self, _synced))
        if checksums and self._home.mode != "r":
            checksum.renew(root_of(path), files - {""})
        return self

    def make_memmap(
        self, key: NestedKey, shape: SizeLike, *, dtype: torch.dtype | None = None, robust_key: bool | None = True
    ) -> Tensor:
        """Add a leaf of zeros to a memory-mapped folder, locked or not, and return it.

        Args:
            key: the key; the nested tensordict that it goes to must be there.
            shape: the shape, which begins with the batch size.
            dtype: the default dtype of torch by default.
            robust_key: kept for programs that pass it; any key is safe.

        Raises:
            RuntimeError: if this tensordict is not mapped from a folder, the shape does not begin with the batch size,
                or there is such a key with another shape or dtype.
            PermissionError: if it was opened with ``mode="r"``.
            OSError: if there is not enough space.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(3)}, [3]).memmap(folder)
            ...     td.make_memmap("y", [3, 2], dtype=torch.uint8)[1] = 7
            ...     TensorDict.load_memmap(folder)["y"].tolist()
            [[0, 0], [7, 7], [0, 0]]
        """
        wanted = as_batch(shape), dtype or torch.get_default_dtype()
        return _add(self, key, wanted, lambda folder, name: folder.create(name, *wanted))

    def make_memmap_from_tensor(
        self,
        key: NestedKey,
        tensor: Tensor,
        *,
        copy_data: bool = True,
        existsok: bool = True,
        robust_key: bool | None = True,
    ) -> Tensor:
        """Add a copy of a tensor to a memory-mapped folder and return it; other arguments and errors as `make_memmap`.

        Args:
            tensor: the tensor; its shape begins with the batch size.
            copy_data: when false, only its shape and dtype count, and the leaf is all zeros.
            existsok: replace the values of a leaf of this shape and dtype that is there.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(3)}, [3]).memmap(folder)
            ...     td.make_memmap_from_tensor("y", torch.arange(3))
            MemoryMappedTensor([0, 1, 2])
        """
        if not copy_data:
            tensor = tensor.to("meta")
        elif tensor.is_meta:
            raise RuntimeError(f"cannot copy the value at key {key!r}: it is on the device 'meta', without memory")
        wanted = tuple(tensor.shape), tensor.dtype

        def make(folder: Folder, name: str) -> Tensor:
            if not existsok and name in folder.keys():  # noqa: SIM118
                raise RuntimeError(f"there is a leaf at key {key!r} already; pass existsok=True to replace its values")
            return folder.write(name, tensor) if copy_data else folder.create(name, *wanted)

        return _add(self, key, wanted, make)

    def make_memmap_from_storage(
        self,
        key: NestedKey,
        storage: torch.UntypedStorage,
        shape: SizeLike,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> Tensor:
        """Add a copy of the bytes of a storage to a memory-mapped folder and return it; errors as for `make_memmap`.

        Args:
            key: the key.
            storage: where the bytes are, from its beginning.
            shape: the shape, which begins with the batch size.
            dtype: how to read the bytes; the default dtype of torch by default.

        Raises:
            ValueError: if the storage is too small.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     td = TensorDict({"x": torch.zeros(3)}, [3]).memmap(folder)
            ...     td.make_memmap_from_storage("y", torch.ones(3).untyped_storage(), [3])
            MemoryMappedTensor([1., 1., 1.])
        """
        return self.make_memmap_from_tensor(
            key, MemoryMappedTensor.from_storage(storage, dtype=dtype, shape=as_batch(shape))
        )


def _add(node: Any, key: NestedKey, wanted: tuple[Any, torch.dtype], make: Callable[[Folder, str], Tensor]) -> Tensor:
    """Add a leaf to the folder of a node, in one step, and to the node."""
    *above, name = unravel_key_to_tuple(key)
    for part in above:
        node = node._get(part)
    path, node = _folder_of(node, "make a leaf of"), node._bare()
    if not hasattr(node, "_dict"):
        raise TypeError(f"a {type(node).__name__} takes no leaf of its own; make one in a tensordict that it holds")
    node._writable()
    shape, batch = wanted[0], node._meta.batch
    if tuple(shape[: len(batch)]) != batch:
        raise RuntimeError(f"a leaf at key {key!r} must begin with the batch size {list(batch)}, got {list(shape)}")
    old = node._look(name) if name in node._keys() else None
    if old is not None and not (isinstance(old, Tensor) and (tuple(old.shape), old.dtype) == wanted):
        raise RuntimeError(
            f"key {key!r} holds {type(old).__name__} of another shape or dtype; save the tensordict anew"
        )
    with alone(root_of(path)):
        folder = Folder(path, "r+")
        leaf = make(folder, name)
        folder.meta = folder.meta
    home = node._home
    node._set(name, leaf)
    node._home = home
    return present(leaf)


@contextlib.contextmanager
def _holding(node: N, held: AbstractContextManager[None]) -> Iterator[N]:
    with held:
        yield node


def _folder_of(node: Any, what: str, *, parts: bool = False) -> str:
    """Return the folder that a node is mapped from; raise if it is none, or only a part of what lies there."""
    home = node._home
    if home is None or home.kind != "memmap" or home.path is None:
        raise RuntimeError(f"cannot {what} this {type(node).__name__}: it is not memory-mapped from a folder")
    if not parts and not _whole(node):
        raise RuntimeError(f"cannot {what} a part of what lies in {home.path!r}; {what} the whole")
    return str(home.path)


def _fold_leaves(child: Any, call: Callable[[Tensor], str]) -> list[str]:
    if isinstance(child, Tensor):
        return [call(child)]
    return child._fold(lambda v: _fold_leaves(v, call), lambda parts: [one for part in parts for one in part])  # type: ignore[no-any-return]


def _synced(leaf: Tensor) -> str:
    """Write the mapped file of a leaf to the disk and return its path."""
    if leaf.is_nested:
        leaf = leaf.values()
    home = home_of(leaf)
    if home is None:
        return ""
    storage = leaf.untyped_storage()
    disk.sync_mapping(storage.data_ptr(), storage.nbytes(), home.path)
    return home.path


def _whole(child: Any) -> bool:
    """Tell whether a child is all that lies in its place, and not some rows of it."""
    if not isinstance(child, Tensor):
        return bool(child._fold(_whole, all))
    if child.is_nested:
        return True
    home, start = home_of(child), int(child.storage_offset()) * child.itemsize
    return home is not None and (not child.numel() or home.leaf_at(start) == (start, tuple(child.shape)))
