"""A tree in a folder: one file a leaf, one `meta.json` a node, one sub-folder a child node."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tensordict.storage import checksum, disk, layout, survey
from tensordict.storage.base import Child, Record, Spec, byte_count, require_key, spec_of
from tensordict.storage.layout import META, Entry
from tensordict.storage.memmap import (
    MODES,
    copy_leaf,
    leaf_of,
    map_file,
    new_leaf,
    place_copy,
    place_new,
    replace_file,
)
from tensordict.storage.ragged import Parts, count_elements, parts, whole
from tensordict.storage.rows import Rows, cut, of_children
from tensordict.storage.saving import Stage, root_of


class Folder:
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

    resident = True
    row_reads = True

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
        self.path = os.path.abspath(path)
        self.mode = mode
        self.allow_pickle = allow_pickle
        self._key = key
        self._leaves: dict[str, Tensor] = {}
        self._children: dict[str, Folder] = {}
        self._entries: dict[str, Entry] = {}
        self._record: Record | None = None
        self._rows: Rows | None = None
        self._stage: Stage | None = None
        self._within = ""  # my path within the stage
        self._changed = False  # in my place, since the record was written
        if mode == "w":
            self._stage = Stage(self.path, threads)
        else:
            self._open()
        self._taken = {layout.folded(name): key for key, entry in self._entries.items() for name in entry.files}

    @property
    def writable(self) -> bool:
        return self.mode != "r"

    def _open(self) -> None:
        path = os.path.join(self.path, META)
        text = _read(self.path)
        self._record, self._entries = layout.parse(text, path)
        if self._record.names_all:
            self._require_all()
        name = layout.pickle_name(text) if self._record.kind.startswith("non-tensor") else None
        if self._record.rows is not None:
            self.limit(Rows(*self._record.rows))
        if name is None:
            return
        path = os.path.join(self.path, name)
        if not self.allow_pickle:
            raise RuntimeError(
                f"cannot load the value at key {layout.shown(self._key)}: {path!r} is a pickle, which can run "
                f"code when loaded; pass allow_pickle=True if you trust who wrote it"
            )
        with open(path, "rb") as file:
            value = pickle.load(file)
        self._record = replace(self._record, data=value["data"] if name == layout.PICKLE else value)

    def _require_all(self) -> None:
        """Raise if a file lies in the folder that looks like that of a leaf, but belongs to none."""
        for name in survey.strangers(self.path, self._entries.values()):
            path, key = os.path.join(self.path, name), (*self._key, name.removesuffix(layout.SUFFIX))
            raise ValueError(
                f"{survey.said(key)}{path!r} of {os.path.getsize(path)} bytes belongs to no key of the tensordict; "
                f"remove it, or save again"
            )

    def limit(self, rows: Rows | None) -> None:
        """Take so many rows of the tree that I am in, whatever my own record says."""
        if rows is not None:
            self._rows = rows
            self._record, self._entries = cut(self.path, self.meta, self._entries, rows.number)
            for child in self._children.values():
                child.limit(of_children(self.meta, rows))

    # --- the record

    @property
    def meta(self) -> Record:
        if self._record is None:
            raise KeyError(f"{self.path!r} has no record yet; assign `meta` first")
        return self._record

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
        name = layout.pickle_name(text) if record.kind.startswith("non-tensor") else None
        if name is not None:
            self._put(name, pickle.dumps({"data": record.data} if name == layout.PICKLE else record.data))
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

    def reserve(self, specs: Iterable[Spec]) -> None:
        """Do nothing: each leaf has a file of its own."""

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
        others = {name for name, owner in self._taken.items() if owner != key} if entry else self._taken
        return layout.free_name(key, kind, others, nested=nested)

    def _enter_as(self, key: str, entry: Entry) -> None:
        self._forget(key)
        self._entries[key] = entry
        self._taken |= {layout.folded(name): key for name in entry.files}

    def _forget(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            for name in entry.files:
                self._taken.pop(layout.folded(name), None)
            self._leaves.pop(key, None)
            self._children.pop(key, None)

    def read(self, key: str) -> Tensor:
        leaf = self._leaves.get(key)
        if leaf is None:
            require_key(self._entries, key, repr(self.path))
            entry = self._entries[key]
            if entry.dtype is None:
                raise KeyError(f"key {key!r} in {self.path!r} is a node; read it with child()")
            mode = "r" if self.mode == "r" else "r+"
            path = f"{self.path}/{entry.file}"
            try:
                if entry.nested:
                    leaf = _read_nested(path, entry, mode, growing=self._rows is not None and self._rows.growing)
                else:
                    nbytes = byte_count(entry.shape, entry.dtype)
                    storage = map_file(path, nbytes, mode, most=self._most(nbytes))
                    leaf = leaf_of(storage, 0, entry.shape, entry.dtype)
            except (ValueError, FileNotFoundError) as error:
                raise type(error)(f"{survey.said((*self._key, key))}{error}") from None
            self._leaves[key] = leaf
        return leaf

    def _most(self, nbytes: int) -> float:
        """Return how long the file of a leaf may be, to which somebody may be appending."""
        if self._rows is None or not self._rows.growing:
            return nbytes
        if not self._rows.number or self.meta.kind == "strings":
            return math.inf
        return nbytes // self._rows.number * self._rows.limit

    def leaves(self) -> dict[str, Tensor]:
        """Return every leaf of this node, by key."""
        return {key: self.read(key) for key, entry in self._entries.items() if entry.dtype is not None}

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

    def keys(self) -> dict[str, Child]:
        return {key: "node" if entry.dtype is None else "leaf" for key, entry in self._entries.items()}

    def child(self, key: str) -> Folder:
        child = self._children.get(key)
        if child is not None:
            return child
        entry = self._entries.get(key)
        if entry is not None and entry.dtype is None:
            path, key_path = os.path.join(self.path, entry.file), (*self._key, key)
            child = Folder(path, self.mode, allow_pickle=self.allow_pickle, key=key_path)
            if entry.batch is not None:
                child._record = replace(child.meta, batch=entry.batch)
            if self._rows is not None:
                child.limit(of_children(self.meta, self._rows))
        elif self.writable:
            child = self._new_child(key, self._enter(key, "node"))
            self._enter_as(key, Entry(os.path.basename(child.path)))
        else:
            require_key(
                [name for name, kind in self.keys().items() if kind == "node"], key, f"the nodes of {self.path!r}"
            )
        assert child is not None
        self._children[key] = child
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


def _read_nested(path: str, entry: Entry, mode: str, *, growing: bool) -> Tensor:
    """Map a nested tensor: its elements, and the sizes of its rows, which say how many elements there must be."""
    assert entry.dtype is not None
    sizes_path = layout.sizes_name(path)
    most = math.inf if growing else 0
    mapped = map_file(sizes_path, byte_count(entry.shape, torch.int64), "r", most=most)
    sizes = leaf_of(mapped, 0, entry.shape, torch.int64).clone()
    count, dim = count_elements(sizes, entry.jagged_dim, sizes_path), entry.jagged_dim
    values = leaf_of(map_file(path, count * entry.dtype.itemsize, mode, most=most), 0, (count,), entry.dtype)
    return whole(Parts(values, sizes, dim))


def _read(folder: str) -> bytes:
    try:
        with open(os.path.join(folder, META), "rb") as file:
            return file.read()
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
