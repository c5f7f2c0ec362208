"""A tree in a folder: one file a leaf, one `meta.json` a node, one sub-folder a child node."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from tensordict.storage import checksum, disk, layout, survey
from tensordict.storage.base import Child, Record, byte_count, require_key, spec_of
from tensordict.storage.layout import META, Entry
from tensordict.storage.memmap import MODES, copy_leaf, map_leaf, new_leaf, place_copy, place_new, replace_file
from tensordict.storage.opened import Opened
from tensordict.storage.ragged import parts, whole
from tensordict.storage.rows import Rows, cut, of_children
from tensordict.storage.saving import Stage, root_of, steadily

R = TypeVar("R")


class Folder(Opened):
    """Open or begin one node in a folder.

    With mode ``"w"`` a new tree takes the place of what the folder held, in one step, when `meta` is assigned; ``"r+"``
    opens what is there for reading and writing, and ``"r"`` for reading only. Loading runs no code unless
    `allow_pickle`; `threads` copy leaves, if there are any.

    >>> import tempfile
    >>> path = tempfile.mkdtemp()
    >>> node = Folder(path, "w")
    >>> _ = node.write("x", torch.arange(3))
    >>> node.meta = Record("dense", (3,))
    >>> Folder(path, "r").leaves()
    {'x': tensor([0, 1, 2])}

    Raises:
        FileNotFoundError: there is no such node to open.
        ValueError: its `meta.json` is malformed; the message names the file and the entry.
        RuntimeError: it was written in a newer format, or holds a pickle and `allow_pickle` is false.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r+",
        *,
        allow_pickle: bool = False,
        key: tuple[str, ...] = (),
        threads: int = 0,
    ) -> None:
        if mode not in (*MODES, "w"):
            raise ValueError(f"mode must be 'r', 'r+' or 'w', got {mode!r}")
        super().__init__(os.path.abspath(path), mode, key, allow_pickle)
        self._rows: Rows | None = None
        self._most: dict[str, float] = {}  # how many bytes there may be in files that grow
        self._stage: Stage | None = None
        self._within = ""  # my path within the stage
        self._changed = False  # in my place, since the record was written
        if mode == "w":
            self._stage = Stage(self.path, threads)
        else:
            self._open()
        self._taken: dict[str, str] | None = None  # whose the names in the folder are, when that is first needed

    @property
    def writable(self) -> bool:
        return self.mode != "r"

    def _open(self) -> None:
        self._record, self._entries = record, _ = layout.parse(_read(self.path), os.path.join(self.path, META))
        if record.names_all:
            self._require_all()
        self._unpickle(lambda name: layout.unpickled(name, _content(os.path.join(self.path, name))))
        if record.rows is not None:
            self.limit(Rows(*record.rows))

    def _require_all(self) -> None:
        """Raise if a file lies in the folder that looks like that of a leaf, but belongs to none."""
        for name in survey.strangers(self.path, self._entries.values()):
            path, key = os.path.join(self.path, name), (*self._key, name.removesuffix(layout.SUFFIX))
            raise ValueError(
                f"{layout.said(key)}{path!r} of {os.path.getsize(path)} bytes belongs to no key of the tensordict; "
                f"remove it, or save again"
            )

    def limit(self, rows: Rows | None) -> None:
        """Take so many rows of the tree that I am in, whatever my own record says."""
        if rows is not None:
            self._rows = rows
            self._record, self._entries = cut(self.path, self.meta, self._entries, rows.number)
            growing = self._entries.values() if rows.growing else ()
            self._most = {name: self._most_of(entry, rows) for entry in growing if entry.dtype for name in entry.files}
            for child in self._children.values():
                child.limit(of_children(self.meta, rows))

    def _most_of(self, entry: Entry, rows: Rows) -> float:
        """Return how many bytes there may be in the file of a leaf to which somebody may be appending."""
        assert entry.dtype is not None
        if not rows.number or entry.nested or self.meta.kind == "strings":
            return math.inf
        return byte_count(entry.shape, entry.dtype) // rows.number * rows.limit

    # --- the record

    @property
    def meta(self) -> Record:
        return super().meta

    @meta.setter
    def meta(self, record: Record) -> None:
        self._require_writable()
        for key, child in self._children.items():
            batch = child.meta.batch if child.meta.kind.startswith("non-tensor") else None
            self._entries[key] = self._entries[key]._replace(type=layout.type_name(child.meta), batch=batch)
        text = layout.dump(record, self._entries).encode()
        old = _entries_of(self.path) if self._place is None else None
        kept = {name for entry in self._entries.values() for name in entry.files}
        self._touch(META, layout.PICKLE, layout.STACK_PICKLE, *(n for e in old or () for n in e.files if n not in kept))
        name = layout.pickle_name(record)
        if name is not None:
            self._put(name, layout.pickled(record))
        self._put(META, text)
        self._record = record
        if self._place is not None and not self._within:
            self._place.publish()
        if old is not None:
            self._clear(old, kept)
        self._changed = False

    def _touch(self, *names: str) -> None:
        """Note, if this node is changed in its place, that it is, and that files may not have their checksums."""
        if self._place is None:
            _note(os.path.join(self.path, survey.CHANGING))
            root, path = root_of(self.path), os.path.realpath(self.path)
            within = os.path.relpath(path, root)
            checksum.forget(root, names if within == "." else [f"{within}/{name}" for name in names])

    @contextlib.contextmanager
    def _changing(self, file: str) -> Iterator[None]:
        """Change a file of mine in its place."""
        try:
            self._touch(file)
            yield
            self._changed = True
        except BaseException:
            if not self._changed:
                _unlink(os.path.join(self.path, survey.CHANGING))
            raise

    def _clear(self, old: list[Entry], kept: set[str]) -> None:
        """Remove the files and folders that an old record named and mine does not, and what dead writers left."""
        for entry in old:
            if entry.dtype is None and entry.file not in kept:
                _discard(self.path, entry)
            elif entry.dtype is not None:
                for name in set(entry.files) - kept:
                    _unlink(os.path.join(self.path, name))
        for name in survey.strangers(self.path, self._entries.values(), changing=True):
            _unlink(os.path.join(self.path, name))
        _unlink(os.path.join(self.path, survey.CHANGING))

    def _put(self, name: str, content: bytes) -> None:
        path = os.path.join(self.path, name)
        if self._place is None:
            with replace_file(path) as (descriptor, _):
                disk.write(descriptor, content, path)
            return
        descriptor = disk.create(self._place.file(self._inside(name)))
        try:
            disk.write(descriptor, content, path)
        finally:
            os.close(descriptor)

    @property
    def _place(self) -> Stage | None:
        """Where my tree is being written, until it is published."""
        return self._stage if self._stage is not None and self._stage.building else None

    def _inside(self, name: str) -> str:
        return f"{self._within}/{name}" if self._within else name

    def abandon(self) -> None:
        """Remove what was written of a new tree that has not been published."""
        if self._stage is not None:
            self._stage.abandon()

    def _require_writable(self) -> None:
        if not self.writable:
            raise PermissionError(f"{self.path!r} was opened with mode='r'; open it with mode='r+' to change it")

    # --- leaves

    def create(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        file = self._enter(key, "leaf")
        if self._place is None:
            with self._changing(file):
                leaf = new_leaf(os.path.join(self.path, file), shape, dtype)
        else:
            self._place.unfilled.add(self._inside(file))
            leaf = place_new(self._place, self._inside(file), shape, dtype)
        self._enter_as(key, Entry(file, *spec_of(leaf)))
        self._leaves[key] = leaf
        return leaf

    def filled(self, key: str) -> None:
        """Note that a leaf that was made to be written holds what it should, so that it gets its checksum."""
        if self._place is not None:
            self._place.unfilled.discard(self._inside(self._entries[key].file))

    def write(self, key: str, tensor: Tensor) -> Tensor:
        file = self._enter(key, "leaf", nested=tensor.is_nested)
        if tensor.is_nested:
            given = parts(tensor)
            self._copy(layout.sizes_name(file), given.sizes)
            leaf = whole(given._replace(values=self._copy(file, given.values)))
            entry = Entry(file, tuple(given.sizes.shape), tensor.dtype, nested=True, jagged_dim=given.jagged_dim)
        else:
            leaf = self._copy(file, tensor)
            entry = Entry(file, *spec_of(leaf))
        self._enter_as(key, entry)
        self._leaves[key] = leaf
        return leaf

    def _copy(self, file: str, tensor: Tensor) -> Tensor:
        if self._place is None:
            with self._changing(file):
                return copy_leaf(os.path.join(self.path, file), tensor)
        return place_copy(self._place, self._inside(file), tensor)

    def _enter(self, key: str, kind: Child, *, nested: bool = False) -> str:
        """Return the file name of a key that is about to be written."""
        self._require_writable()
        entry = self._entries.get(key)
        if entry is not None and (entry.dtype is None) == (kind == "node") and entry.nested == nested:
            return entry.file
        if entry is not None:
            self._drop(key)
        taken = self._names()
        others = {name for name, owner in taken.items() if owner != key} if entry else taken
        return layout.free_name(key, kind, others, nested=nested)

    def _names(self) -> dict[str, str]:
        """Return whose each name in the folder is, the names as a file system may take them."""
        if self._taken is None:
            self._taken = {layout.folded(name): key for key, entry in self._entries.items() for name in entry.files}
        return self._taken

    def _enter_as(self, key: str, entry: Entry) -> None:
        self._forget(key)
        taken = self._names()
        self._entries[key] = entry
        taken |= {layout.folded(name): key for name in entry.files}

    def _forget(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            for name in entry.files:
                self._names().pop(layout.folded(name), None)
            self._leaves.pop(key, None)
            self._children.pop(key, None)

    def _piece(self, key: str, file: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        mode, most = "r" if self.mode == "r" else "r+", self._most.get(file, 0)
        return map_leaf(f"{self.path}/{file}", shape, dtype, mode, most=most)

    def delete(self, key: str) -> None:
        self._require_writable()
        require_key(self._entries, key, repr(self.path))
        self._drop(key)
        self._forget(key)
        del self._entries[key]

    def _drop(self, key: str) -> None:
        if self._place is not None:
            for name in self._entries[key].files:
                self._place.drop(self._inside(name))

    # --- children

    def child(self, key: str) -> Folder:
        entry = self._entries.get(key)
        if self.writable and (entry is None or entry.dtype is not None):
            child = self._new_child(key, self._enter(key, "node"))
            self._enter_as(key, Entry(os.path.basename(child.path)))
            self._children[key] = child
        return super().child(key)

    def _node(self, key: str, entry: Entry) -> Folder:
        path = os.path.join(self.path, entry.file)
        child = Folder(path, self.mode, allow_pickle=self.allow_pickle, key=(*self._key, key))
        if self._rows is not None:
            child.limit(of_children(self.meta, self._rows))
        return child

    def entry(self, key: str) -> Entry:
        """Return what my record says of a key."""
        require_key(self._entries, key, repr(self.path))
        return self._entries[key]

    def new_member(self, name: str) -> Folder:
        """Begin a node under a key that my record may have, but that readers do not see yet."""
        child = self._children[name] = self._new_child(name, name)
        self._entries[name] = Entry(name)
        return child

    def _new_child(self, key: str, file: str) -> Folder:
        path = os.path.join(self.path, file)
        child = Folder(path, "w", allow_pickle=self.allow_pickle, key=(*self._key, key))
        child._stage, child._within = self._stage, self._inside(file)
        if self._place is None:
            if not os.path.isdir(child.path):
                disk.make_folder(child.path)
                disk.sync(self.path)
        else:
            self._place.begin()
            self._place.folder(child._within)
        return child


def read_steadily(path: str, mode: str, allow_pickle: bool, read: Callable[[Folder], R]) -> R:
    """Read the node in a folder, again where its tree is changed meanwhile; the tree says how many rows there are.

    Raises:
        FileNotFoundError: there is no node.
        RuntimeError: the tree was replaced each time.
    """

    def once() -> R:
        if root == os.path.realpath(path):
            return read(Folder(path, mode, allow_pickle=allow_pickle))
        room = Folder(root, mode, allow_pickle=allow_pickle)
        for name in os.path.relpath(os.path.realpath(path), root).split(os.sep):
            room = room.child(next(key for key in room.keys() if room.entry(key).file == name))  # noqa: SIM118
        return read(room)

    root = root_of(path)
    return steadily(root, once)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read(folder: str) -> bytes:
    try:
        return _content(os.path.join(folder, META))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"no {META} in {folder!r}, so no tree was saved there") from None


def _entries_of(folder: str) -> list[Entry]:
    # What cannot be read cannot be cleared away either, and no reader will find it.
    try:
        return list(layout.parse(_read(folder), os.path.join(folder, META))[1].values())
    except (OSError, ValueError, RuntimeError):
        return []


def _discard(folder: str, entry: Entry) -> None:
    """Remove what an old `meta.json` names, and nothing else that may lie in the folder."""
    if entry.dtype is not None:
        for name in entry.files:
            _unlink(os.path.join(folder, name))
        return
    path = os.path.join(folder, entry.file)
    if os.path.islink(path):
        return
    for inner in _entries_of(path):
        _discard(path, inner)
    for name in (META, layout.PICKLE, layout.STACK_PICKLE):
        _unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):
        disk.remove_folder(path)


def _note(path: str) -> None:
    if not os.path.exists(path):
        with contextlib.suppress(OSError):
            os.close(disk.create(path))
            disk.sync(os.path.dirname(path))


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        disk.unlink(path)
