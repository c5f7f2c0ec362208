"""How a tree takes the place of another in one step.

    data/              the old tree                         data/              the new tree
    %%build-R-data/    the new tree, being written   -->    %%ready-R-data/    the old tree, being removed

All files are written beside their place, then they and their folders are flushed, then the two names are exchanged.
Whatever else lies in the old folder is carried over. A process that dies leaves a folder of one of three names, which
the next save to the place removes: ``%%build-`` holds only what nobody has seen; in ``%%ready-`` there may be files of
the user, which are given back first; ``%%trash-`` holds only what is left of old trees.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from tensordict.storage import checksum, disk, layout
from tensordict.storage.layout import INNER, META, TEMPORARY

BUILD, READY, TRASH, WHOLE = (f"{TEMPORARY}{word}-" for word in ("build", "ready", "trash", "whole"))

_TRIES = 1000
_OLD = f"{TEMPORARY}old"
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)

R = TypeVar("R")


class Stage:
    """The folder in which a new tree is written, until it takes the place of what lies at `path` in one step.

    Nothing is made before `begin`. `where` is the folder of the tree: the temporary one, and `path` after `publish`.
    `unfilled` names the files that are made to be written later, which have no checksums yet.
    """

    def __init__(self, path: str, threads: int = 0) -> None:
        self.path = path
        self.where = path
        self.building = True
        self._begun = False
        self._inside = False
        self._real = path
        self.unfilled: set[str] = set()
        self._files: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self.threads = threads
        self.sums: dict[str, checksum.Sum] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._jobs: list[Future[Any]] = []
        self._open: list[int] = []  # the descriptor of the temporary folder, whose lock says that I live

    # --- writing

    def begin(self) -> str:
        """Make the temporary folder, and remove those that dead processes left; return its path."""
        if self._begun:
            return self.where
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"{self.path!r} is a file; a tensordict is saved to a folder")
        self._real = os.path.realpath(self.path)
        parent, name = os.path.split(self._real)
        _make_folders(parent)
        if os.path.isdir(self._real) and not os.access(self._real, os.W_OK):
            raise PermissionError(errno.EACCES, f"cannot save to {self.path!r}: the folder may not be written")
        if os.path.ismount(self._real):
            self._begin_inside()
        else:
            try:
                self._make(parent, name)
            except OSError as error:
                if error.errno not in _CLOSED or not os.path.isdir(self._real):
                    raise
                self._begin_inside()
        self._begun = True
        self._folders[""] = None
        weakref.finalize(self, _abandon, os.getpid(), self.where, self._open)
        return self.where

    def _begin_inside(self) -> None:
        """Begin within the folder, whose parent cannot be written."""
        if os.path.lexists(os.path.join(self._real, META)):
            raise PermissionError(
                errno.EACCES,
                f"cannot replace the tensordict in {self.path!r} in one step: the folder that it lies in cannot be "
                f"changed; save to a new sub-folder of it, or remove what was saved there first",
            )
        self._inside = True
        self._make(self._real, os.path.basename(self._real))

    def _make(self, parent: str, name: str) -> None:
        with disk.held(parent):
            sweep(parent, name, self._real)
            self.where = os.path.join(parent, f"{BUILD}{secrets.token_hex(6)}-{layout.short(name)}")
            disk.make_folder(self.where)
            try:
                descriptor = disk.open_folder(self.where)
                if descriptor is not None:
                    self._open.append(descriptor)
                    disk.lock(descriptor)
            except BaseException:
                disk.remove_tree(self.where)
                raise

    def at(self, name: str) -> str:
        """Return where a file of the tree lies now, by its path within the tree."""
        return f"{self.where}/{name}" if name else self.where

    def folder(self, name: str) -> None:
        """Make a folder of the tree."""
        disk.make_folder(self.at(name))
        self._folders[name] = None

    def file(self, name: str) -> str:
        """Announce a file of the tree and return where to create it."""
        self.begin()
        path = self.at(name)
        if name in self._files and os.path.lexists(path):
            disk.unlink(path)
        self._files[name] = None
        self.sums.pop(name, None)
        return path

    def drop(self, name: str) -> None:
        """Take a file or folder out of the tree again."""
        path = self.at(name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            disk.unlink(path)
        self._files = {file: None for file in self._files if not _within(file, name)}
        self._folders = {folder: None for folder in self._folders if not _within(folder, name)}

    def later(self, job: Callable[[], Any]) -> None:
        """Do a job in a thread before the tree is published."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads)
        self._jobs.append(self._pool.submit(job))

    # --- the end

    def publish(self) -> None:
        """Let the new tree take its place.

        Raises:
            OSError: it cannot be written to the disk; the old one is as it was.
        """
        try:
            self._wait()
            self._add_sums()
            disk.sync_all([self.at(name) for name in self._files])
            disk.sync_all([self.at(name) for name in self._folders])
            if self._inside:
                self._move_in()
            else:
                self._swap()
        except BaseException:
            self.abandon()
            raise

    def _add_sums(self) -> None:
        root = root_of(self._real)
        if root != self._real:
            checksum.forget(root, [os.path.relpath(self._real, root)])
            return
        text = checksum.text_of(self.where, known=self.sums, skip=self.unfilled)
        path = self.file(layout.SUMS)
        descriptor = disk.create(path)
        try:
            disk.write(descriptor, text, path)
        finally:
            os.close(descriptor)

    def _wait(self) -> None:
        for job in self._jobs:
            job.result()
        self._close_pool()

    def _close_pool(self) -> None:
        self._jobs = []
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _swap(self) -> None:
        parent = os.path.dirname(self._real)
        with disk.held(parent):
            if _is_free(self._real):
                if os.path.isdir(self._real):
                    shutil.copymode(self._real, self.where)
                with _staying(self._real):
                    disk.rename(self.where, self._real)
                self._end()
                disk.sync(parent)
                return
            ready = _renamed(self.where, READY)
            disk.rename(self.where, ready)
            self.where = ready
            with disk.held(self._real), _staying(self._real):
                shutil.copymode(self._real, ready)
                disk.sync_all(list(_carry(self._real, ready)))
                if not disk.exchange(ready, self._real):
                    _exchange_in_steps(ready, self._real)
                self._end()  # from here on the temporary folder is the old tree
            disk.sync(parent)
            give_back(ready, self._real, replace=True)
            _remove(ready)

    def _move_in(self) -> None:
        """Move what was written within the folder to its place, the record last: before, there is no tree."""
        _require_no_conflict(self._real, self.where)
        _merge(self.where, self._real)
        disk.sync(self._real)
        disk.rename(os.path.join(self.where, META), os.path.join(self._real, META))
        disk.sync(self._real)
        inside = self.where
        self._end()
        disk.remove_tree(inside)

    def _end(self) -> None:
        self.where, self.building = self.path, False
        self._files, self._folders = {}, {}
        while self._open:
            os.close(self._open.pop())

    def abandon(self) -> None:
        """Remove what was written, if it has not taken its place."""
        self._close_pool()
        if self._begun and self.building:
            disk.remove_tree(self.where)
            self._end()
            self._begun, self.building = False, True


def _within(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder}/")


def _abandon(pid: int, where: str, descriptors: list[int]) -> None:
    """Remove a tree that was begun and forgotten."""
    if pid == os.getpid() and descriptors:
        disk.remove_tree(where)
    while descriptors:
        os.close(descriptors.pop())


def _make_folders(path: str) -> None:
    """Make a folder and those above it, so that they stay."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            disk.make_folder(folder)
        disk.sync(os.path.dirname(folder))


def _renamed(path: str, start: str) -> str:
    """Return the path of a temporary folder with the name for another state."""
    folder, name = os.path.split(path)
    return os.path.join(folder, start + name.partition("-")[2])


def _is_free(path: str) -> bool:
    """Tell whether a folder is missing or empty."""
    try:
        return not os.listdir(path)
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def _staying(path: str) -> Iterator[None]:
    """Stay in a folder by its name, if this process is in it."""
    try:
        inside = os.path.samefile(".", path)
    except FileNotFoundError:
        inside = False
    yield
    if inside:
        os.chdir(path)


def _exchange_in_steps(new: str, path: str) -> None:
    """Do what `disk.exchange` does where it cannot: for a moment there is nothing at the path."""
    old = _renamed(new, f"{READY}old-")
    disk.rename(path, old)
    try:
        disk.rename(new, path)
    except BaseException:
        disk.rename(old, path)
        raise
    disk.rename(old, new)


# --- what else lies in a folder


class _Own(NamedTuple):
    """The names in a folder that belong to the tree: files, and the folders of nodes."""

    files: set[str]
    nodes: set[str]


def _own(folder: str) -> _Own:
    """Return the names that the record of a node names; none where there is no record."""
    path = os.path.join(folder, META)
    try:
        with open(path, "rb") as file:
            entries = layout.parse(file.read(), path)[1].values()
    except (OSError, ValueError, RuntimeError):
        return _Own(set(), set())
    files = {name for entry in entries if entry.dtype is not None for name in entry.files}
    files |= {META, layout.SUMS, layout.PICKLE, layout.STACK_PICKLE}
    return _Own(files, {entry.file for entry in entries if entry.dtype is None})


def root_of(folder: str) -> str:
    """Return the folder of the whole tree that a folder is a node of; the folder itself if it is no other's."""
    above, name = os.path.split(os.path.realpath(folder))
    return root_of(above) if name in _own(above).nodes else os.path.join(above, name)


def _listed(folder: str, own: _Own) -> Iterator[tuple[str, bool]]:
    """Yield the names in a folder that are not files of the tree, and whether they are folders of nodes.

    Where there is a tree, what looks like the file of a leaf is one, left by a program that did not clear it away.
    """
    names = sorted(os.listdir(folder))
    tree = META in names
    for name in names:
        if name in own.files or name.startswith(TEMPORARY):
            continue
        if not (tree and name.endswith(layout.SUFFIX)) or os.path.isdir(os.path.join(folder, name)):
            yield name, name in own.nodes and not os.path.islink(os.path.join(folder, name))


def _carry(old: str, new: str) -> Iterator[str]:
    """Give the files of others in an old tree a second name in the new one; yield the folders that changed.

    Folders have one name only: they are moved when the new tree is in its place.
    """
    ours, changed = _own(new), False
    for name, is_node in _listed(old, _own(old)):
        source, target = os.path.join(old, name), os.path.join(new, name)
        if os.path.isdir(source) and not os.path.islink(source):
            if name in ours.files:
                raise FileExistsError(f"{source!r} is a folder, in the way of a file of the tensordict; move it first")
            if is_node or name in ours.nodes:
                yield from _carry_below(source, target)
        elif name in ours.nodes:
            if not os.path.islink(source):
                raise FileExistsError(f"{source!r} is a file, in the way of a folder of the tensordict; move it first")
        elif name not in ours.files:
            if name.endswith(layout.SUFFIX):
                raise FileExistsError(f"{source!r} would be taken for a file of the tensordict; move it first")
            changed |= _second_name(source, target)
    if changed:
        yield new


def _carry_below(old: str, new: str) -> Iterator[str]:
    """Carry from a node that the new tree may not have; its folder is made if there is something to carry."""
    made = not os.path.isdir(new)
    if made:
        disk.make_folder(new)
    changed = list(_carry(old, new))
    if made and not os.listdir(new):
        disk.remove_folder(new)
    else:
        yield from changed
        yield new


def _second_name(source: str, target: str) -> bool:
    try:
        disk.link(source, target)
    except OSError:  # a file system without links: the file is moved, as folders are
        return False
    return True


def give_back(old: str, new: str, *, replace: bool) -> None:
    """Move what belongs to others from an old tree to the new one; with `replace` what was carried may have changed."""
    if not os.path.isdir(old):
        return
    ours = _own(new)
    for name, is_node in _listed(old, _own(old)):
        source, target = os.path.join(old, name), os.path.join(new, name)
        if os.path.isdir(source) and not os.path.islink(source) and (is_node or os.path.isdir(target)):
            give_back(source, target, replace=replace)
        elif name in ours.files or name in ours.nodes:
            continue
        elif not os.path.lexists(target) or (replace and not os.path.isdir(target)):
            _make_folders(new)
            disk.rename(source, target)


def _remove(ready: str) -> None:
    trash = _renamed(ready, TRASH)
    disk.rename(ready, trash)
    disk.remove_tree(trash)


def _require_no_conflict(folder: str, new: str) -> None:
    for name in os.listdir(new):
        source, target = os.path.join(new, name), os.path.join(folder, name)
        if os.path.lexists(target) and os.path.isdir(source) != os.path.isdir(target):
            raise FileExistsError(f"{target!r} is in the way of the tensordict; move it first")
        if os.path.isdir(source) and os.path.isdir(target):
            _require_no_conflict(target, source)


def _merge(new: str, folder: str) -> None:
    """Move all but the record at the top into a folder; folders that are there already are filled."""
    for name in sorted(os.listdir(new)):
        source, target = os.path.join(new, name), os.path.join(folder, name)
        if os.path.isdir(source) and os.path.isdir(target):
            _merge(source, target)
            disk.rename(os.path.join(source, META), os.path.join(target, META))
            disk.sync(target)
        elif name != META:
            disk.rename(source, target)


# --- what is replaced as a whole


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yield where to write a file or folder that takes the place of another, whatever that holds, when the block ends.

    It is written in a folder named ``%%whole-R-NAME`` beside its place. Readers find the old one or the new one.

    Raises:
        IsADirectoryError: it is a file, but a folder is in its place.
    """
    path = os.path.realpath(path)
    parent, name = os.path.split(path)
    with disk.held(parent):
        sweep(parent, name, path)
        beside = os.path.join(parent, f"{WHOLE}{secrets.token_hex(6)}-{layout.short(name)}")
        disk.make_folder(beside)
        descriptor = disk.open_folder(beside)
        if descriptor is not None:
            disk.lock(descriptor)
    new = os.path.join(beside, name)
    try:
        yield new
        disk.sync_all(disk.all_in(new))
        with disk.held(parent):
            _replace_whole(new, path, os.path.join(beside, _OLD))
            disk.sync(parent)
    finally:
        disk.remove_tree(beside)
        if descriptor is not None:
            os.close(descriptor)


def _replace_whole(new: str, path: str, old: str) -> None:
    if not os.path.isdir(path) or not os.path.isdir(new):
        disk.rename(new, path)
    elif not disk.exchange(new, path):
        disk.rename(path, old)
        disk.rename(new, path)


# --- what the dead leave


def sweep(parent: str, name: str, path: str) -> None:
    """Remove what processes that died left of saves to a path; give back what belongs to others."""
    ending = f"-{layout.short(name)}"
    for found in sorted(os.listdir(parent)):
        if found.startswith(TEMPORARY) and found.endswith(ending):
            for start in (BUILD, READY, TRASH, WHOLE):
                if found.startswith(start) and "-" not in found[len(start) : -len(ending)].removeprefix("old-"):
                    _sweep(os.path.join(parent, found), path)


def _sweep(leftover: str, path: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = disk.open_folder(leftover)
        try:
            if descriptor is None or not disk.lock(descriptor, wait=False):
                return
            if os.path.basename(leftover).startswith(WHOLE) and not os.path.lexists(path):
                with contextlib.suppress(FileNotFoundError):  # it did not come to the exchange
                    disk.rename(os.path.join(leftover, _OLD), path)
            if os.path.basename(leftover).startswith(READY):
                if not os.path.lexists(path):  # it died between the steps of an exchange in steps
                    disk.rename(leftover, path)
                    return
                give_back(leftover, path, replace=False)
                _remove(leftover)
            else:
                disk.remove_tree(leftover)
        finally:
            if descriptor is not None:
                os.close(descriptor)


# --- reading meanwhile


class _Seen:
    """What a folder is now, to tell whether another has taken its place since."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._existed = os.path.lexists(path)
        # An open descriptor keeps the identity of the folder from being used again.
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            self._descriptor = disk.open_folder(path)
        self._records = self._stats()

    def _stats(self) -> list[tuple[int, ...]]:
        """Return what the records are now that say how many rows there are."""
        found: list[tuple[int, ...]] = []
        for name in (META, f"{INNER}/{META}"):
            with contextlib.suppress(OSError):
                one = os.stat(f"{self._path}/{name}")
                found.append((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns))
        return found

    def replaced(self) -> bool:
        """Tell whether the folder is another."""
        try:
            now = os.stat(self._path)
        except OSError:
            return self._existed
        if self._descriptor is None:
            return not self._existed
        then = os.fstat(self._descriptor)
        return (then.st_dev, then.st_ino) != (now.st_dev, now.st_ino)

    def changed(self) -> bool:
        """Tell whether the folder is another, or has another record."""
        return self.replaced() or self._stats() != self._records

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def steadily(path: str, read: Callable[[], R]) -> R:
    """Read a folder as one tree: again, if another took its place meanwhile.

    Raises:
        RuntimeError: it was replaced each time.
    """
    for _ in range(_TRIES):
        seen = _Seen(path)
        try:
            found = read()
        except (OSError, ValueError, RuntimeError):
            if not seen.changed():
                raise
        else:
            if not seen.changed():
                return found
        finally:
            seen.close()
    raise RuntimeError(f"{path!r} was replaced by other processes {_TRIES} times while it was being opened")
