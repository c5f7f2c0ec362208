"""The files of a tree in a folder, from its records alone: what each is for, and how long it should be."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from tensordict.storage import layout
from tensordict.storage.base import Record, byte_count
from tensordict.storage.layout import INNER, META, TEMPORARY, Entry, said
from tensordict.storage.rows import Rows, cut, of_children

CHANGING = f"{TEMPORARY}changing"
"""A file of this name lies in the folder of a node that is being changed in its place."""

Key = tuple[str, ...]


class Node(NamedTuple):
    """One node of a tree: its key, its folder within the tree (empty for the root), what its record says, its rows."""

    key: Key
    folder: str
    record: Record
    entries: dict[str, Entry]
    rows: Rows | None = None

    @property
    def pickle(self) -> str | None:
        """The name of the file with the value of a non-tensor, if it has one."""
        return self.record.pickle

    def path(self, name: str) -> str:
        """Return the path of a file of this node within the tree."""
        return f"{self.folder}/{name}" if self.folder else name

    def key_of(self, name: str) -> Key:
        """Return the key of a child as users write it: the folder of the fields of a class is none."""
        return self.key if name == INNER and self.record.kind == "tensorclass" else (*self.key, name)

    def leaves(self) -> Iterator[tuple[str, Entry]]:
        """Yield each key of a leaf with its entry."""
        return ((key, entry) for key, entry in self.entries.items() if entry.dtype is not None)


class Part(NamedTuple):
    """One file of a tree: the key that it belongs to, its path within the tree, and its size if the record tells."""

    key: Key
    file: str
    nbytes: int | None = None


def nodes(root: str) -> Iterator[Node]:
    """Yield each node of a tree, parents first.

    Raises:
        FileNotFoundError: a `meta.json` is missing.
        ValueError: one is malformed; the message names the file and the entry.
        RuntimeError: one was written in a newer format.
    """
    waiting: list[tuple[Key, str, Rows | None]] = [((), "", None)]
    while waiting:
        key, folder, rows = waiting.pop()
        path = os.path.join(root, folder, META) if folder else os.path.join(root, META)
        node = _node(key, folder, path)
        rows = Rows(*node.record.rows) if node.record.rows is not None else rows
        if rows is not None:
            record, entries = cut(os.path.dirname(path), node.record, node.entries, rows.number)
            node = node._replace(record=record, entries=entries, rows=rows)
            rows = of_children(record, rows)
        yield node
        below = [
            (node.key_of(name), node.path(entry.file), rows) for name, entry in node.entries.items() if not entry.dtype
        ]
        waiting += reversed(below)


def _node(key: Key, folder: str, path: str) -> Node:
    try:
        with open(path, "rb") as file:
            text = file.read()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{said(key)}no {META} in {os.path.dirname(path)!r}, so no tree was saved there"
        ) from None
    return Node(key, folder, *layout.parse(text, path))


def parts(root: str) -> Iterator[Part]:
    """Yield each file of a tree: records, leaves, and pickled objects; leaves without elements may have none."""
    for node in nodes(root):
        yield Part(node.key, node.path(META))
        if node.pickle is not None:
            yield Part(node.key, node.path(node.pickle))
        for key, entry in node.leaves():
            at = node.key_of(key)
            if node.rows is not None and node.rows.growing:  # files may be longer
                yield from (Part(at, node.path(name)) for name in reversed(entry.files))
            elif entry.nested:
                yield Part(at, node.path(layout.sizes_name(entry.file)), byte_count(entry.shape, torch.int64))
                yield Part(at, node.path(entry.file))
            else:
                assert entry.dtype is not None
                yield Part(at, node.path(entry.file), byte_count(entry.shape, entry.dtype))


def surplus(root: str) -> Iterator[Part]:
    """Yield each file of a leaf that belongs to no key of the node it lies with, and the key it would have."""
    for node in nodes(root):
        for name in strangers(os.path.join(root, node.folder), node.entries.values()):
            yield Part((*node.key, name.removesuffix(layout.SUFFIX)), node.path(name))


def strangers(folder: str, entries: Iterable[Entry], *, changing: bool = False) -> list[str]:
    """Return the names of files in the folder of a node that look like those of leaves, but of no entry.

    Where a node is being changed in its place, there may be such files until the change is done, or the next one; only
    who does it, and says `changing`, is told of them.
    """
    found = set(os.listdir(folder))
    for entry in entries:
        found.difference_update(entry.files) if entry.nested else found.discard(entry.file)
    named = [name for name in found if name.endswith(layout.SUFFIX)]
    if not named or (CHANGING in found and not changing):
        return []
    return sorted(n for n in named if not n.startswith(TEMPORARY) and not os.path.isdir(os.path.join(folder, n)))
