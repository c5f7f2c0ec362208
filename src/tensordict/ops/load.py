"""Words that open saved folders."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tensordict import errors, keys
from tensordict.aliases import DeviceLike, NestedKey
from tensordict.core.facts import Facts
from tensordict.ops.store import open_tree, unpacked
from tensordict.storage import checksum
from tensordict.storage.archive import open_archive
from tensordict.storage.folder import Folder, read_steadily
from tensordict.storage.layout import INNER

if TYPE_CHECKING:
    from typing_extensions import Self


class Load(Facts):
    """Requires: `_take`, `_adopt`. Gives: the words that open saved folders."""

    @classmethod
    def load_memmap(
        cls,
        prefix: str | os.PathLike[str],
        device: DeviceLike = None,
        non_blocking: bool = False,
        *,
        out: Any = None,
        robust_key: bool | None = True,
        subpath: NestedKey | None = None,
        mode: str | None = None,
        num_threads: int = 0,
        allow_pickle: bool | None = None,
        verify: bool = False,
    ) -> Self:
        """Open a folder that `memmap` wrote, without reading its leaves.

        Args:
            prefix: the folder, or the archive that ``memmap(..., archive=True)`` wrote.
            device: copy the leaves there; None leaves them mapped.
            non_blocking: passed to the copy to ``device``.
            out: a tensordict of the same kind and batch size that takes what was loaded in place of its values.
            robust_key: kept for programs that pass it.
            subpath: the key of a nested tensordict; only this one is opened.
            mode: "r" refuses writes; "r+" writes through to the files; None is "r+" where the files may be written, and
                "r" for an archive.
            num_threads: kept for programs that pass it.
            allow_pickle: load objects that were pickled, which can run code; refused by default.
            verify: read all files first, and compare them with the checksums that were saved.

        Raises:
            FileNotFoundError: if the folder or one of its files is missing.
            ValueError: if a file is not as long as its leaf or belongs to none, does not have its checksum, or ``mode``
                is none of these.
            KeyError: if there is no nested tensordict at ``subpath``.
            RuntimeError: if it holds pickled objects and ``allow_pickle`` is not set, or was written by a newer format.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = TensorDict({"x": torch.arange(3), "n": {"y": torch.ones(3)}}, [3]).memmap(folder)
            ...     TensorDict.load_memmap(folder, subpath="n")["y"]
            MemoryMappedTensor([1., 1., 1.])
        """
        if mode not in (None, "r", "r+"):
            raise ValueError(f"mode must be 'r', 'r+' or None, got {mode!r}")
        path = os.fspath(prefix)
        chosen = mode or ("r+" if os.access(path, os.W_OK) else "r")
        below = () if subpath is None else keys.unravel_key_to_tuple(subpath)

        def opened(room: Folder) -> Any:
            if verify:
                checksum.check(path)
            return open_tree(_below(room, below))

        if os.path.isfile(path):
            room = open_archive(path, mode or "r", allow_pickle=bool(allow_pickle), verify=verify)
            node: Any = cls._received(open_tree(_below(room, below)))
        else:
            node = cls._received(read_steadily(path, chosen, bool(allow_pickle), opened))
        node = node if device is None else node.to(device, non_blocking=non_blocking)
        return node if out is None else _taken(out, node)  # type: ignore[no-any-return]

    @classmethod
    def load(cls, prefix: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Self:
        """Open a saved folder; arguments and errors as for `load_memmap`.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = TensorDict({"x": torch.arange(3)}, [3]).memmap(folder)
            ...     TensorDict.load(folder, mode="r").batch_size
            torch.Size([3])
        """
        return cls.load_memmap(prefix, *args, **kwargs)

    def load_memmap_(
        self,
        prefix: str | os.PathLike[str],
        robust_key: bool | None = True,
        *,
        allow_pickle: bool | None = None,
        mode: str | None = None,
    ) -> Self:
        """Take the leaves of a saved folder, mapped from its files, in place of all values; return self.

        Args:
            prefix: the folder; what it holds must have my kind and batch size.
            robust_key: kept for programs that pass it.
            allow_pickle: load objects that were pickled, which can run code; refused by default.
            mode: as for `load_memmap`.

        Raises:
            RuntimeError: if the batch sizes differ, or the tensordict is locked.
            TypeError: if the folder holds another kind, such as a lazy stack.

        Examples:
            >>> import tempfile, torch
            >>> from tensordict import TensorDict
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = TensorDict({"x": torch.arange(3)}, [3]).memmap(folder)
            ...     TensorDict({"x": torch.zeros(3)}, [3]).load_memmap_(folder)["x"]
            MemoryMappedTensor([0, 1, 2])
        """
        found = type(self).load_memmap(prefix, mode=mode, allow_pickle=allow_pickle)
        return _taken(self, found)  # type: ignore[no-any-return]


def _below(room: Any, path: tuple[str, ...]) -> Any:
    """Return the node at a key of users, who do not see the node with the fields of a class."""
    if path and room.meta.kind == "packed":
        room = unpacked(room)
    for at, key in enumerate(path):
        room = room.child(INNER) if room.meta.kind == "tensorclass" else room
        if room.keys().get(key) != "node":
            nodes = [name for name, kind in room.keys().items() if kind == "node"]
            raise KeyError(f"no nested tensordict at key {path[: at + 1]!r} in {room.path!r}; there are {nodes!r}")
        room = room.child(key)
    return room


def _taken(target: Any, found: Any) -> Any:
    """Let a node take the values of another of its kind in place of its own."""
    if type(target) is not type(found):
        raise TypeError(f"the folder holds a {type(found).__name__}, which a {type(target).__name__} cannot take")
    if target._meta.batch != found._meta.batch:
        raise errors.ShapeMismatch(
            f"the folder holds a tensordict of batch size {list(found._meta.batch)}, which one of batch size "
            f"{list(target._meta.batch)} cannot take"
        )
    target._gate("load into it")
    _strip(target, found)
    target._take(found)
    target._adopt(found)
    return target


def _strip(node: Any, found: Any) -> None:
    """Delete the keys that another node does not have."""
    if node._is_non_tensor or type(node) is not type(found):
        return
    names = found._keys()
    for key in list(node._keys()):
        if key not in names:
            node._del(key)
    for key in node._keys():
        mine, theirs = node._look(key), found._look(key)
        if isinstance(mine, Facts) and isinstance(theirs, Facts):
            _strip(mine, theirs)
