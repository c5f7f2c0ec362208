"""Words for a memory-mapped tensordict that grows and that several processes write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tensordict.core.facts import Facts
from tensordict.ops.store import open_room
from tensordict.storage.append import append, in_memory
from tensordict.storage.folder import Folder
from tensordict.storage.memmap import home_of
from tensordict.storage.saving import steadily

if TYPE_CHECKING:
    from typing_extensions import Self


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
    given = in_memory()
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
        home = self._home
        if home is None or home.kind != "memmap" or home.path is None:
            raise RuntimeError(f"cannot refresh this {type(self).__name__}: it is not memory-mapped from a folder")
        if not _whole(self):
            raise RuntimeError(
                f"cannot refresh a part of what lies in {home.path!r}; refresh the whole and index it again"
            )
        mode = home.mode or "r+"
        fresh: Any = steadily(
            home.path,
            lambda: open_room(Folder(home.path, "r" if mode == "r" else "r+", allow_pickle=bool(allow_pickle))),
        )
        self._bare()._adopt(fresh._bare())
        if self._locked:
            self._spread_lock(())
        return self


def _whole(child: Any) -> bool:
    """Tell whether a child is all that lies in its place, and not some rows of it."""
    if not isinstance(child, Tensor):
        return bool(child._fold(_whole, all))
    if child.is_nested:
        return True
    home = home_of(child)
    return home is not None and home.leaf_at(0) == (0, tuple(child.shape))
