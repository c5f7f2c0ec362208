"""A tree that lies in one file: its leaves can be read and, with mode ``"r+"``, written; its keys cannot change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict.storage.base import Child, Record, Spec, require_key
from tensordict.storage.layout import Entry


class Sealed:
    """One node of such a tree; a format says how a leaf and a child node are found.

    Args:
        path: the file.
        mode: ``"r"`` or ``"r+"``.
        record: what the node is.
        entries: its children.
    """

    resident = True
    row_reads = True
    kind = "memmap"
    layout = ""

    def __init__(self, path: str, mode: str, record: Record, entries: dict[str, Entry]) -> None:
        self.path, self.mode = path, mode
        self._record, self._entries = record, entries
        self._leaves: dict[str, Tensor] = {}
        self._children: dict[str, Sealed] = {}

    @property
    def writable(self) -> bool:
        return False

    @property
    def meta(self) -> Record:
        return self._record

    @meta.setter
    def meta(self, record: Record) -> None:
        raise self._refusal("its record", record)

    def reserve(self, specs: Iterable[Spec]) -> None:
        raise self._refusal("new leaves", list(specs))

    def create(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        raise self._refusal("a new leaf at key", key)

    def write(self, key: str, tensor: Tensor) -> Tensor:
        raise self._refusal("a new leaf at key", key)

    def delete(self, key: str) -> None:
        raise self._refusal("key", key)

    def _refusal(self, what: str, got: Any) -> PermissionError:
        return PermissionError(
            f"cannot change {what} {got!r}: {self.path!r} holds the whole tree in one file, so its keys and shapes "
            f"stay as they are; write another file"
        )

    def keys(self) -> dict[str, Child]:
        return {key: "node" if entry.dtype is None else "leaf" for key, entry in self._entries.items()}

    def read(self, key: str) -> Tensor:
        leaf = self._leaves.get(key)
        if leaf is None:
            leaf = self._leaves[key] = self._leaf(key, self._require(key, "leaf"))
        return leaf

    def child(self, key: str) -> Sealed:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = self._node(key, self._require(key, "node"))
        return child

    def _require(self, key: str, kind: Child) -> Entry:
        entry = self._entries.get(key)
        if entry is None or (entry.dtype is None) != (kind == "node"):
            require_key([name for name, one in self.keys().items() if one == kind], key, f"{self.path!r} as a {kind}")
        assert entry is not None
        return entry

    def _leaf(self, key: str, entry: Entry) -> Tensor:
        raise NotImplementedError

    def _node(self, key: str, entry: Entry) -> Sealed:
        raise NotImplementedError
