"""One node of a stored tree that is open: what its record says, and its leaves and nodes as they are asked for.

    record --parse--> entries: key -> file, shape, dtype --_piece--> leaf over the stored bytes

Where the bytes of a leaf lie is all that a place for trees has to say: a file of a folder, a part of one file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict.storage import layout
from tensordict.storage.base import Child, Record, require_key
from tensordict.storage.layout import Entry
from tensordict.storage.ragged import Parts, count_elements, whole

if TYPE_CHECKING:
    from typing_extensions import Self


class Opened:
    """Requires: `_piece` and `_node`. Gives: reading.

    Args:
        path: the folder or file.
        mode: ``"r"`` or ``"r+"``.
        key: the keys that lead to the node, for errors.
        allow_pickle: whether objects that were pickled may be loaded, which can run code.
    """

    resident = True
    kind = "memmap"
    layout = ""

    def __init__(self, path: str, mode: str, key: tuple[str, ...], allow_pickle: bool) -> None:
        self.path, self.mode, self._key, self.allow_pickle = path, mode, key, allow_pickle
        self._record: Record | None = None
        self._entries: dict[str, Entry] = {}
        self._leaves: dict[str, Tensor] = {}
        self._children: dict[str, Any] = {}

    @property
    def meta(self) -> Record:
        if self._record is None:
            raise KeyError(f"{self.path!r} has no record yet; assign `meta` first")
        return self._record

    def keys(self) -> dict[str, Child]:
        return {key: "node" if entry.dtype is None else "leaf" for key, entry in self._entries.items()}

    def read(self, key: str) -> Tensor:
        if key not in self._leaves:
            self._read({key: self._require(key, "leaf")})
        return self._leaves[key]

    def leaves(self) -> dict[str, Tensor]:
        """Return every leaf of this node, by key."""
        self._read(self._entries)
        return dict(self._leaves)

    def _read(self, entries: dict[str, Entry]) -> None:
        """Open the leaves among some children, but for those that are open."""
        key, known = "", self._leaves
        try:
            for key, (file, shape, dtype, _, _, nested, dim) in entries.items():
                if dtype is None or key in known:
                    continue
                if not nested:
                    known[key] = self._piece(key, file, shape, dtype)
                    continue
                beside = layout.sizes_name(file)
                sizes = self._piece(key, beside, shape, torch.int64).clone()
                count = count_elements(sizes, dim, f"{self.path}/{beside}")
                known[key] = whole(Parts(self._piece(key, file, (count,), dtype), sizes, dim))
        except (ValueError, FileNotFoundError) as error:
            raise type(error)(f"{layout.said((*self._key, key))}{error}") from None

    def child(self, key: str) -> Self:
        child = self._children.get(key)
        if child is None:
            entry = self._require(key, "node")
            child = self._children[key] = self._node(key, entry)
            if entry.batch is not None:
                child._record = replace(child.meta, batch=entry.batch)
        return child

    def _require(self, key: str, kind: Child) -> Entry:
        entry = self._entries.get(key)
        if entry is None or (entry.dtype is None) != (kind == "node"):
            require_key([name for name, one in self.keys().items() if one == kind], key, f"{self.path!r} as a {kind}")
        assert entry is not None
        return entry

    def _piece(self, key: str, file: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the tensor in a file of a leaf, or in what stands for one, after a check that all of it is there."""
        raise NotImplementedError

    def _node(self, key: str, entry: Entry) -> Self:
        raise NotImplementedError

    def _unpickle(self, load: Callable[[str], Any]) -> None:
        """Take the value of a non-tensor from its pickle, if it has one and that is allowed."""
        name = self.meta.pickle
        if name is not None:
            if not self.allow_pickle:
                raise RuntimeError(
                    f"Refusing to load pickled data at key {layout.shown(self._key)}: {self.path!r} holds it in "
                    f"{name}, which can run code when loaded; pass allow_pickle=True if you trust who wrote it"
                )
            self._record = replace(self.meta, data=load(name), pickle=None)
