"""The homes that a dataset can have on a disk: how each is told from the others, listed, checked, opened and saved.

A new home is one row of `HOMES`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from tensordict.kinds.dense import TensorDict
from tensordict.ops.persist import opened, stored
from tensordict.ops.store import CONTENT, open_tree
from tensordict.storage import checksum, layout, survey
from tensordict.storage.archive import Directory, open_archive
from tensordict.storage.arrays import FORMAT as ARRAYS_FORMAT
from tensordict.storage.arrays import Arrays, Terms
from tensordict.storage.consolidated import MAGIC, VERSION, damage, open_file
from tensordict.storage.folder import Folder
from tensordict.storage.layout import FORMAT, META, NEWEST
from tensordict.storage.survey import Key, Node

Watch = Callable[[str], object]
"""What is told the name of each piece that was worked on."""


class Holding(NamedTuple):
    """One value of a dataset: its key, its dtype or what else it is, its shape, and its bytes if a record tells."""

    key: Key
    what: str
    shape: tuple[int | str, ...] = ()
    nbytes: int | None = None


@dataclass
class Contents:
    """What a dataset holds, as far as its records tell; no value is read."""

    home: str
    kind: str
    version: int
    batch: tuple[int, ...] | None
    layout: str
    rows: list[Holding] = field(default_factory=list)


class Home(NamedTuple):
    """One home: how it is listed, checked (what is damaged, line by line, and a note), opened and saved to."""

    describe: Callable[[str], Contents]
    verify: Callable[[str, Watch], tuple[list[str], str]]
    open: Callable[[str, bool], Any]
    save: Callable[[Any, str, Terms], object]


def home_at(path: str) -> str:
    """Return the name of the home that a dataset at a path has.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: what is there is no dataset.
    """
    if "://" in path:
        return "zarr"
    if os.path.isdir(path):
        names = set(os.listdir(path))
        if META in names:
            return "folder"
        if names & {"zarr.json", ".zgroup"}:
            return "zarr"
        raise ValueError(f"{path!r} holds no dataset: it is a folder without {META} and without zarr.json")
    with open(path, "rb") as file:
        head = file.read(8)
    if head == MAGIC:
        return "consolidated"
    if head == b"\x89HDF\r\n\x1a\n":
        return "h5"
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if "zarr.json" in archive.namelist():
                return "zarr"
            if META in archive.namelist():
                return "archive"
    with contextlib.suppress(ValueError):  # one of the published package
        open_file(path, "r")
        return "consolidated"
    raise ValueError(f"{path!r} holds no dataset: it is no consolidated file, archive, HDF5 file or zarr store")


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- folders


def _describe_folder(path: str) -> Contents:
    batches: dict[Key, tuple[int, ...] | None] = {}
    root: Contents | None = None
    for node in survey.nodes(path):
        record = node.record
        if root is None:
            if record.kind == "packed":
                inner = _describe_consolidated(os.path.join(path, node.entries[CONTENT].file))
                return replace(inner, home="folder", version=NEWEST)
            root = Contents("folder", record.cls or record.kind, FORMAT, record.batch, "one file a leaf")
        if not node.key and root.batch is None:
            root.batch = record.batch
        if record.kind in ("strings", "unbatched"):
            root.version = NEWEST
        batches |= {node.key_of(name): entry.batch for name, entry in node.entries.items() if entry.dtype is None}
        root.rows += _rows_of(path, node, batches.get(node.key))
    assert root is not None
    return root


def _rows_of(path: str, node: Node, batch: tuple[int, ...] | None) -> Iterator[Holding]:
    kind = node.record.kind
    sizes = {key: sum(_bytes(os.path.join(path, node.path(n))) for n in entry.files) for key, entry in node.leaves()}
    if kind == "strings":
        yield Holding(node.key, "strings", node.record.batch or (), sum(sizes.values()))
    elif kind.startswith("non-tensor"):
        what = "pickle" if node.pickle else "objects" if kind.endswith("stack") else type(node.record.data).__name__
        yield Holding(node.key, what, batch or ())
    else:
        for key, entry in node.leaves():
            assert entry.dtype is not None
            shape: tuple[int | str, ...] = entry.shape
            if entry.nested:
                shape = (entry.shape[0], *["*"] * entry.shape[1])
            at = node.key if kind == "unbatched" else node.key_of(key)
            yield Holding(at, _dtype(entry.dtype), shape, sizes[key])


def _bytes(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _verify_folder(path: str, watch: Watch) -> tuple[list[str], str]:
    report = checksum.survey_of(path, lambda part: watch(part.file))
    note = f"{report.right} files have the checksum that was saved"
    if report.unknown:
        note += f"; {len(report.unknown)} have none, because they were not saved by this library, or not flushed yet"
    return report.damage, note


# --- consolidated files


def _describe_consolidated(path: str) -> Contents:
    room = open_file(path, "r")
    kind = room.meta.cls or room.meta.kind
    layout = "one file, the leaves of a row side by side" if room.layout else "one file for all leaves"
    return Contents("consolidated", kind, VERSION, room.meta.batch, layout, list(_walk(room, ())))


def _walk(room: Any, key: Key) -> Iterator[Holding]:
    """Yield what lies in a room of any backend that can be opened without reading."""
    for name, kind in room.keys().items():
        at = key if name == "_tensordict" and room.meta.kind == "tensorclass" else (*key, name)
        if kind == "leaf":
            leaf = room.read(name)
            shape = (leaf.size(0), *["*"] * (leaf.dim() - 1)) if leaf.is_nested else tuple(leaf.shape)
            yield Holding(at, _dtype(leaf.dtype), shape, leaf.nbytes if not leaf.is_nested else None)
            continue
        try:
            child = room.child(name)
        except RuntimeError:  # only a pickle could hold it
            yield Holding(at, "pickle")
            continue
        if child.meta.kind.startswith("non-tensor"):
            yield Holding(at, "objects" if child.meta.kind.endswith("stack") else type(child.meta.data).__name__)
        elif child.meta.kind == "strings":
            yield Holding(at, "strings", child.meta.batch or ())
        else:
            yield from _walk(child, at)


def _verify_consolidated(path: str, watch: Watch) -> tuple[list[str], str]:
    room = open_file(path, "r", allow_pickle=False)
    found = list(damage(room))
    watch(os.path.basename(path))
    if not room.summed:
        return found, "all leaves can be read; they have no checksums, because they were not saved by this library"
    return found, "the description and all leaves have the checksums that were saved"


# --- archives


def _describe_archive(path: str) -> Contents:
    room = open_archive(path)
    kind = room.meta.cls or room.meta.kind
    return Contents("archive", kind, FORMAT, room.meta.batch, "a zip file of a folder", list(_walk(room, ())))


def _verify_archive(path: str, watch: Watch) -> tuple[list[str], str]:
    found, source = [], Directory(path, "r")
    for name in source.entries:
        try:
            source.check(name)
        except ValueError as error:
            found.append(str(error))
        watch(name)
    return found, f"{len(source.entries)} entries have the checksum that was saved"


def _save_archive(node: Any, path: str, terms: Terms) -> None:
    with _mapped(node, path) as leaves:
        leaves.memmap(path, archive=True)
    terms.watch(os.path.basename(path))


# --- stores of arrays


def _arrays(backend: str) -> Callable[[str], Arrays]:
    return lambda path: Arrays(opened(backend, path, "r", {}))


def _describe_arrays(backend: str) -> Callable[[str], Contents]:
    def describe(path: str) -> Contents:
        room = _arrays(backend)(path)
        try:
            try:
                kind, batch = room.meta.kind, room.meta.batch
            except KeyError:  # another program wrote it
                kind, batch = "dense", None
            rows = list(_array_rows(room, ()))
        finally:
            room.store.close()
        return Contents(backend, kind, ARRAYS_FORMAT, batch, "one array a leaf", rows)

    return describe


def _array_rows(room: Arrays, key: Key) -> Iterator[Holding]:
    for name in list(room.keys()):
        slot, at = room.slot(name), (*key, name)
        if slot is None:
            yield from _array_rows(room.child(name), at)
        elif slot.encoding is None:
            size = slot.dtype.itemsize * torch.Size(slot.shape).numel()
            yield Holding(at, _dtype(slot.dtype), slot.shape, size)
        else:
            yield Holding(at, "strings" if slot.encoding == "text" else slot.encoding, slot.shape)


def _verify_arrays(backend: str) -> Callable[[str, Watch], tuple[list[str], str]]:
    def verify(path: str, watch: Watch) -> tuple[list[str], str]:
        room = _arrays(backend)(path)
        try:
            return list(_unreadable(room, (), watch)), "all values can be read; such files have no checksums of ours"
        finally:
            room.store.close()

    return verify


def _unreadable(room: Arrays, key: Key, watch: Watch) -> Iterator[str]:
    for name in list(room.keys()):
        at = (*key, name)
        slot = room.slot(name)
        if slot is None:
            yield from _unreadable(room.child(name), at, watch)
            continue
        try:
            for items in _blocks(slot.shape, slot.dtype.itemsize):
                slot.read(items) if slot.encoding is None else slot._texts(items)
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            yield f"{layout.said(at)}{room.path!r} cannot be read: {error}"
        watch("/".join(at))


def _blocks(shape: tuple[int, ...], itemsize: int) -> Iterable[tuple[slice, ...]]:
    """Yield indices of some rows at a time, so that an array of any size can be read."""
    if not shape:
        return [()]
    rows = max(1, (64 << 20) // max(1, itemsize * torch.Size(shape[1:]).numel()))
    return [(slice(at, at + rows),) for at in range(0, shape[0], rows)]


# --- saving


class _Watched:
    """Say of each leaf that a room has got it."""

    def __init__(self, room: Any, watch: Watch) -> None:
        self.__dict__.update(_room=room, _watch=watch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._room, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._room, name, value)

    def write(self, key: str, tensor: torch.Tensor) -> Any:
        leaf = self._room.write(key, tensor)
        self._watch(key)
        return leaf

    def filled(self, key: str) -> None:
        self._room.filled(key)
        self._watch(key)

    def child(self, key: str) -> _Watched:
        return _Watched(self._room.child(key), self._watch)


def _save_folder(node: Any, path: str, terms: Terms) -> None:
    room = Folder(path, "w")
    try:
        node._place(_Watched(room, terms.watch), "memmap", True)
    except BaseException:
        room.abandon()
        raise


@contextlib.contextmanager
def _mapped(node: Any, path: str) -> Iterator[Any]:
    """Yield a node whose values need no memory: what lies in a store is copied to a folder beside a path meanwhile."""
    if node._resident():
        yield node
        return
    with tempfile.TemporaryDirectory(prefix="tensordict-", dir=os.path.dirname(os.path.abspath(path))) as folder:
        _save_folder(node, folder, Terms())
        yield TensorDict.load_memmap(folder, mode="r", allow_pickle=True)  # it is ours


def _save_consolidated(node: Any, path: str, terms: Terms) -> None:
    with _mapped(node, path) as leaves:
        leaves.consolidate(path)
    terms.watch(os.path.basename(path))


def _save_arrays(backend: str) -> Callable[[Any, str, Terms], None]:
    return lambda node, path, terms: stored(node, backend, path, terms, {}).close()


HOMES: dict[str, Home] = {
    "folder": Home(
        _describe_folder,
        _verify_folder,
        lambda path, allow_pickle: TensorDict.load_memmap(path, mode="r", allow_pickle=allow_pickle),
        _save_folder,
    ),
    "consolidated": Home(
        _describe_consolidated,
        _verify_consolidated,
        lambda path, allow_pickle: TensorDict.from_consolidated(path, mode="r", allow_pickle=allow_pickle),
        _save_consolidated,
    ),
    "archive": Home(
        _describe_archive,
        _verify_archive,
        lambda path, allow_pickle: TensorDict.load_memmap(path, mode="r", allow_pickle=allow_pickle),
        _save_archive,
    ),
    "h5": Home(
        _describe_arrays("h5"),
        _verify_arrays("h5"),
        lambda path, allow_pickle: open_tree(Arrays(opened("h5", path, "r", {}), "", Terms(allow_pickle))),
        _save_arrays("h5"),
    ),
    "zarr": Home(
        _describe_arrays("zarr"),
        _verify_arrays("zarr"),
        lambda path, allow_pickle: open_tree(Arrays(opened("zarr", path, "r", {}), "", Terms(allow_pickle))),
        _save_arrays("zarr"),
    ),
}
"""Every home by its name."""

SUFFIXES = {
    ".h5": "h5",
    ".hdf5": "h5",
    ".zarr": "zarr",
    ".zarr.zip": "zarr",
    ".tdz": "archive",
    ".zip": "archive",
    ".memmap": "consolidated",
    ".consolidated": "consolidated",
}


def home_for(path: str) -> str:
    """Return the name of the home that a dataset gets at a path, by its suffix; a folder by default."""
    if "://" in path:
        return "zarr"
    return next((home for suffix, home in SUFFIXES.items() if path.lower().endswith(suffix)), "folder")
