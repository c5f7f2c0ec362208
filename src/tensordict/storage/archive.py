"""A tree in one zip file: the files of a folder, stored as they are, so that leaves can be mapped in place.

    folder, or Sketch --Writer--> zip: entries without compression, leaves at multiples of 64 bytes
    zip --Directory--> where each entry lies --Archive--> leaves over one mapping of the whole file

Any program that opens zip files can look into it and unpack it. The format is in docs/file-format.md.
"""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tensordict.storage import disk, layout, survey
from tensordict.storage.base import byte_count, content_of, padded, require_space, spec_of, view
from tensordict.storage.checksum import ChecksumError
from tensordict.storage.layout import META, Entry
from tensordict.storage.memmap import leaf_of, map_file
from tensordict.storage.memory import Slot
from tensordict.storage.opened import Opened
from tensordict.storage.saving import Stage, replacing, steadily
from tensordict.storage.sketch import Sketch
from tensordict.storage.stream import runs

COMPRESSIONS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}
_LOCAL = struct.Struct("<4s5H3L2H")  # the header in front of the content of an entry
_FLAGS = 0x80E  # how hard it was compressed, sizes after the content, names in UTF-8
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, zlib.error, lzma.LZMAError, EOFError, struct.error, OverflowError)
_PADDING = 0x5444  # "TD": the extra field that moves the content of an entry to a multiple of 64 bytes

_FORMAT_HELP = "write it with memmap(..., archive=True) or pack_memmap()"


# --- writing


class Writer:
    """Write entries to a zip file; those without compression begin at a multiple of 64 bytes.

    Args:
        path: the file to write.
        compression: a key or a value of `COMPRESSIONS`, or None for none.
        level: how hard to compress, as in `zipfile`.

    Raises:
        ValueError: the compression is unknown.
    """

    def __init__(self, path: str, compression: str | int | None = None, level: int | None = None) -> None:
        self._zip = zipfile.ZipFile(path, "w", method_of(compression), compresslevel=level)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._zip.close()

    @contextlib.contextmanager
    def entry(self, name: str, nbytes: int) -> Iterator[Any]:
        """Yield a file to write the content of an entry to; `start` of the writer is where it lies."""
        info = zipfile.ZipInfo(name)
        info.compress_type, info.file_size = self._zip.compression, nbytes
        info.external_attr = 0o644 << 16
        long = nbytes * 1.05 > zipfile.ZIP64_LIMIT
        before = self._zip.start_dir + _LOCAL.size + len(name.encode()) + 4 + (20 if long else 0)
        gap = padded(before) - before
        info.extra = struct.pack("<HH", _PADDING, gap) + bytes(gap)
        with self._zip.open(info, "w", force_zip64=long) as file:
            self.start = padded(before)
            yield file

    def put(self, name: str, content: bytes | memoryview) -> None:
        """Write an entry."""
        with self.entry(name, len(content)) as file:
            file.write(content)


def method_of(compression: str | int | None) -> int:
    """Return what `zipfile` calls a compression."""
    if compression is None:
        return zipfile.ZIP_STORED
    found = COMPRESSIONS.get(compression) if isinstance(compression, str) else compression
    if found is None or found not in COMPRESSIONS.values():
        raise ValueError(f"compression must be None or one of {sorted(COMPRESSIONS)}, got {compression!r}")
    return found


def write_archive(path: str, sketch: Sketch, compression: str | int | None = None) -> list[Slot] | None:
    """Write a sketched tree to a zip file, whole or not at all; return where the tensors lie if they can be mapped.

    Raises:
        OSError: the file system has too little space; the message names the file and the bytes needed.
        ValueError: the compression is unknown.
    """
    method = method_of(compression)
    needed = sum(tensor.nbytes for tensor in sketch.tensors)
    require_space(os.path.dirname(path), needed if method == zipfile.ZIP_STORED else 0, repr(path))
    slots = [Slot(0, *spec_of(tensor)) for tensor in sketch.tensors]
    with _saying(path, needed), replacing(path) as new, Writer(new, method) as writer:
        _write_node(writer, sketch, "", slots)
    return slots if method == zipfile.ZIP_STORED else None


def _write_node(writer: Writer, node: Sketch, folder: str, slots: list[Slot]) -> None:
    entries = node.entries()
    for key, numbers in node.places.items():
        for number, file in zip(numbers, entries[key].files):
            with writer.entry(folder + file, node.tensors[number].nbytes) as entry:
                for content in runs(node.tensors[number]):
                    entry.write(content)
            slots[number] = slots[number].moved(writer.start)
    for key, kind in node.keys().items():
        if kind == "node":
            _write_node(writer, node.child(key), f"{folder}{entries[key].file}/", slots)
    name = layout.pickle_name(node.meta)
    if name is not None:
        writer.put(folder + name, layout.pickled(node.meta))
    writer.put(folder + META, layout.dump(node.meta, entries).encode())


@contextlib.contextmanager
def _saying(path: str, needed: int) -> Iterator[None]:
    """Name the file and the bytes in the error of a full disk."""
    try:
        yield
    except OSError as error:
        raise disk.no_space(error, path, needed) if error.errno == errno.ENOSPC else error from None


def pack(folder: str, path: str, compression: str | int | None = None, level: int | None = None) -> None:
    """Write the tree in a folder to a zip file, whole or not at all; other files of the folder are left out.

    Raises:
        FileNotFoundError: the folder holds no tree.
        OSError: the file system has too little space; the message names the file and the bytes needed.
        ValueError: the compression is unknown, or the tree is damaged.
    """
    method = method_of(compression)
    needed = sum(part.nbytes or 0 for part in survey.parts(folder))
    with _saying(path, needed), replacing(path) as new:
        steadily(folder, lambda: _pack(folder, new, method, level))


def _pack(folder: str, new: str, method: int, level: int | None) -> None:
    # the records of a tree that is appended to may say less than there is, and its files may hold more: an archive has
    # just the rows that count, at each node
    grown: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    for node in survey.nodes(folder):
        if node.rows is not None and node.pickle is None:
            grown[node.path(META)] = layout.dump(replace(node.record, rows=None), node.entries).encode()
            for key, entry in node.leaves():
                if entry.nested and node.rows.growing:
                    at = layout.said((*node.key, key))
                    raise ValueError(
                        f"{at}an append to {folder!r} was cut off; append to it again, or save it, to pack it"
                    )
                if not entry.nested and entry.dtype is not None:
                    sizes[node.path(entry.file)] = byte_count(entry.shape, entry.dtype)
    with Writer(new, method, level) as writer:
        for part in survey.parts(folder):
            source = os.path.join(folder, part.file)
            if part.file in grown:
                writer.put(part.file, grown[part.file])
            elif part.nbytes != 0 or os.path.exists(source):
                with open(source, "rb") as file:
                    nbytes = sizes.get(part.file, os.path.getsize(source))
                    with writer.entry(part.file, nbytes) as entry:
                        _copy(file, entry, nbytes)


def _copy(file: Any, entry: Any, nbytes: int) -> None:
    while nbytes:
        content = file.read(min(nbytes, 1 << 20))
        if not content:
            raise ValueError(f"{file.name!r} ends {nbytes} bytes too early")
        entry.write(content)
        nbytes -= len(content)


def unpack(path: str, folder: str) -> None:
    """Write what a zip file holds to a folder, in one step; the checksum of every entry is compared.

    Raises:
        ValueError: the file is no such zip file, or is damaged.
        OSError: the file system has too little space; the message names the folder and the bytes needed.
    """
    source = Directory(path, "r")
    stage = Stage(os.path.abspath(folder))
    needed = sum(info.file_size for info in source.entries.values())
    with _saying(folder, needed):
        try:
            stage.begin()
            require_space(os.path.dirname(stage.where), needed, repr(folder))
            for name in source.entries:
                for parent in _parents(name):
                    if not os.path.isdir(stage.at(parent)):
                        stage.folder(parent)
                with source.reading(name) as file, open(stage.file(name), "xb") as copy:
                    shutil.copyfileobj(file, copy, 1 << 20)
            stage.publish()
        except BaseException:
            stage.abandon()
            raise


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: at + 1]) for at in range(len(parts))]


def renew(path: str) -> None:
    """Write the checksums of entries that are not compressed anew, where they are, after leaves were written.

    Raises:
        ValueError: the file is no such zip file.
    """
    source = Directory(path, "r+")
    places = source.sums()
    for name, info in source.entries.items():
        if info.compress_type == zipfile.ZIP_STORED:
            start = source.starts[name]
            crc = struct.pack("<L", zlib.crc32(source.content[start : start + info.file_size]))
            for at in (info.header_offset + 14, places[name]):
                source.content[at : at + 4] = crc
    disk.sync(path)


# --- reading


class Directory:
    """Know what a zip file holds and where, and that no name leads out of it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no zip file, or its entries are not what they should be; the message names the entry.
    """

    def __init__(self, path: str, mode: str) -> None:
        self.path, self.mode = os.path.abspath(path), mode
        while True:
            try:
                self._zip = zipfile.ZipFile(self.path)
            except (*_DAMAGE, UnicodeDecodeError) as error:
                raise ValueError(f"{self.path!r} is no archive of a tensordict: {error}; {_FORMAT_HELP}") from error
            status = os.fstat(self._file.fileno())
            self.storage = map_file(self.path, os.stat(self.path).st_size, mode)
            if (status.st_dev, status.st_ino) == self.storage._home.file:  # type: ignore[attr-defined]
                break  # else it was replaced meanwhile
        self.content = content_of(self.storage)
        self.entries: dict[str, zipfile.ZipInfo] = {}
        self.starts: dict[str, int] = {}
        for info in self._zip.infolist():
            if not info.is_dir():
                self.starts[info.filename] = self._checked(info)
                self.entries[info.filename] = info

    @property
    def _file(self) -> Any:
        return self._zip.fp

    def _checked(self, info: zipfile.ZipInfo) -> int:
        """Return where the content of an entry begins, after a check that it is one that can be read."""
        name = info.orig_filename
        if name != info.filename or "\\" in name or name[1:2] == ":" or set(name.split("/")) & {"", ".", ".."}:
            raise self._wrong(name, "its name leads out of the archive, or is no name of a file")
        if name in self.entries:
            raise self._wrong(name, "there are two of this name")
        if info.flag_bits & ~_FLAGS:
            raise self._wrong(name, f"its flags, {info.flag_bits:#x}, are unknown, or it is encrypted")
        if info.compress_type not in COMPRESSIONS.values():
            raise self._wrong(name, f"its compression, {info.compress_type}, is unknown")
        if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
            raise self._wrong(name, f"it is stored in {info.compress_size} bytes, but should have {info.file_size}")
        start = self._start(info)
        if start + info.compress_size > self._zip.start_dir:
            raise self._wrong(name, "it ends beyond the end of the file")
        return start

    def _wrong(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self.path!r} is damaged: entry {name!r}: {what}")

    def _start(self, info: zipfile.ZipInfo) -> int:
        # only the header in front of the content tells
        at = info.header_offset
        if not 0 <= at <= self._zip.start_dir - _LOCAL.size:
            raise self._wrong(info.filename, "it begins beyond the end of the file")
        head = _LOCAL.unpack_from(self.content, at)
        if head[0] != b"PK\x03\x04":
            raise self._wrong(info.filename, "there is no header in front of it")
        return int(at + _LOCAL.size + head[-2] + head[-1])

    def sums(self) -> dict[str, int]:
        """Return where in the list of entries the checksum of each lies."""
        found, at = {}, self._zip.start_dir
        for info in self._zip.infolist():
            if bytes(self.content[at : at + 4]) != b"PK\1\2":
                raise self._wrong(info.filename, "the list of entries is not where it should be")
            found[info.filename] = at + 16
            at += 46 + sum(struct.unpack_from("<3H", self.content, at + 28))
        return found

    def require(self, name: str) -> zipfile.ZipInfo:
        if name not in self.entries:
            raise FileNotFoundError(f"no entry {name!r} in {self.path!r}")
        return self.entries[name]

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Any]:
        """Yield an entry as a file to read; its checksum is compared at its end."""
        try:
            with self._zip.open(self.require(name)) as file:
                yield file
        except _DAMAGE as error:
            raise ChecksumError(f"{self.path!r} is damaged: entry {name!r}: {error}") from error

    def read(self, name: str) -> bytes:
        """Return the content of an entry, after its checksum was compared."""
        with self.reading(name) as file:
            return file.read()  # type: ignore[no-any-return]

    def check(self, name: str) -> None:
        """Raise ChecksumError unless an entry has its checksum."""
        with self.reading(name) as file:
            while file.read(1 << 20):
                pass

    def leaf(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the leaf in an entry: mapped, or in memory if it is compressed or does not begin at an element."""
        nbytes = byte_count(shape, dtype)
        if not nbytes and name not in self.entries:
            return torch.empty(shape, dtype=dtype)
        info = self.require(name)
        if info.file_size != nbytes:
            at = f"entry {name!r} of {self.path!r}"
            raise ValueError(f"{at} should hold {nbytes} bytes, but it holds {info.file_size}")
        start = self.starts[name]
        if info.compress_type == zipfile.ZIP_STORED and start % dtype.itemsize == 0:
            return leaf_of(self.storage, start, shape, dtype)
        if self.mode == "r+":
            raise ValueError(
                f"entry {name!r} of {self.path!r} is compressed or lies askew, so it cannot be written in its place; "
                f"open the archive with mode='r', or unpack_memmap() it"
            )
        content = torch.empty(nbytes, dtype=torch.uint8)
        array: Any = content.numpy()
        with self.reading(name) as file:
            if file.readinto(array) != nbytes or file.read(1):
                raise self._wrong(name, f"it should hold {nbytes} bytes")
        return view(content.untyped_storage(), 0, shape, dtype)


class Archive(Opened):
    """Open one node of a tree in a zip file.

    Args:
        source: the zip file.
        folder: where the node lies in it, with a slash at the end; empty for the root.
        allow_pickle: whether objects that were pickled may be loaded, which can run code.
        key: the keys that lead to the node, for errors.
    """

    kind = "archive"

    def __init__(self, source: Directory, folder: str, allow_pickle: bool, key: tuple[str, ...] = ()) -> None:
        top = f"{source.path}/"
        super().__init__(source.path, source.mode, key, allow_pickle)
        self._record, self._entries = layout.parse(
            source.read(folder + META), f"{top}{folder}{META}", lambda path: path[len(top) :] in source.entries
        )
        self._source, self._folder = source, folder
        self._unpickle(lambda name: layout.unpickled(name, source.read(folder + name)))

    def _piece(self, key: str, file: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._source.leaf(self._folder + file, shape, dtype)

    def _node(self, key: str, entry: Entry) -> Archive:
        return Archive(self._source, f"{self._folder}{entry.file}/", self.allow_pickle, (*self._key, key))


def is_archive(path: str) -> bool:
    """Tell whether a path is that of a zip file with a tree in it."""
    try:
        with zipfile.ZipFile(path) as found:
            return META in found.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def open_archive(path: str, mode: str = "r", *, allow_pickle: bool = False, verify: bool = False) -> Archive:
    """Return the root of the tree in a zip file, whose leaves are mapped; with `verify`, compare all checksums first.

    Raises:
        FileNotFoundError: there is no such file, or an entry of a leaf is missing.
        ValueError: it is no such zip file, or is damaged.
        RuntimeError: it was written in a newer format, or holds a pickle and `allow_pickle` is false.
    """
    source = Directory(path, mode)
    if META not in source.entries:
        raise ValueError(f"{source.path!r} is no archive of a tensordict: it has no {META}; {_FORMAT_HELP}")
    for name in source.entries if verify else ():
        source.check(name)
    return Archive(source, "", allow_pickle)
