"""Every prefix of the calls of a save, as a power failure may leave it: the old tree or the new one.

The calls are recorded, and each prefix is done again in a copy of the old folder, with four ideas of what the disk had:

- all: whatever was written is there, as when a process is killed
- lost: a file that was not flushed is empty
- zeros: a file that was not flushed has its size, and no content
- names: changes of a folder that was not flushed afterwards are not there
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import TensorDict, append_memmap, lazy_stack
from tensordict.storage import disk, saving, stream, survey

Call = tuple[str, tuple[Any, ...]]
IDEAS = ("all", "lost", "zeros", "names")


def dataset(value: int) -> TensorDict:
    inner = TensorDict({"y": torch.full((3, 2), value), "z": torch.full((2, 3), value).t()}, [3])
    return TensorDict({"x": torch.full((3, 4), value), "n": inner, "name": str(value)}, [3])


def version(path: Path) -> int:
    return version_of(TensorDict.load_memmap(path))


def version_of(td: TensorDict) -> int:
    found = {value for key in ("x", ("n", "y"), ("n", "z")) for value in td[key].unique().tolist()}
    assert found == {int(td["name"])}, f"a mixture of {found} and {td['name']}"
    return int(td["name"])


class Recorder:
    """Notes the calls that change the disk while a save is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[Call] = []
        self._root = str(root)
        self._patch = monkeypatch
        self._lock = threading.Lock()
        self._paths: dict[int, str] = {}

    def _inside(self, path: Any) -> str:
        return os.path.relpath(os.fspath(path), self._root)

    def _note(self, name: str, *given: Any) -> None:
        self.calls.append((name, given))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        with self._patch.context() as patch:
            for name in ("make_folder", "link", "rename", "exchange", "unlink", "remove_folder", "remove_tree"):
                patch.setattr(disk, name, self._names(name, getattr(disk, name)))
            for name in ("create", "write", "reserve", "truncate", "sync"):
                patch.setattr(disk, name, getattr(self, f"_{name}")(getattr(disk, name)))
            yield

    def _names(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*paths: str) -> Any:
            done = call(*paths)
            if done is not False:
                self._note(name, *map(self._inside, paths))
            return done

        return noted

    def _create(self, call: Callable[[str], int]) -> Callable[[str], int]:
        def noted(path: str) -> int:
            self._note("create", self._inside(path))
            return call(path)

        return noted

    def _at(self, descriptor: int) -> str:
        return self._inside(os.readlink(f"/proc/self/fd/{descriptor}"))

    def _write(self, call: Callable[..., None]) -> Callable[..., None]:
        def noted(descriptor: int, data: Any, path: str, offset: int | None = None) -> None:
            place = os.lseek(descriptor, 0, os.SEEK_CUR) if offset is None else offset
            self._note("write", self._at(descriptor), bytes(data), place)
            call(descriptor, data, path, offset)

        return noted

    def _reserve(self, call: Callable[..., None]) -> Callable[..., None]:
        def noted(descriptor: int, nbytes: int, path: str) -> None:
            self._note("size", self._at(descriptor), nbytes)
            call(descriptor, nbytes, path)

        return noted

    def _truncate(self, call: Callable[..., None]) -> Callable[..., None]:
        def noted(descriptor: int, nbytes: int) -> None:
            self._note("cut", self._at(descriptor), nbytes)
            call(descriptor, nbytes)

        return noted

    def _sync(self, call: Callable[[str], None]) -> Callable[[str], None]:
        def noted(path: str) -> None:
            with self._lock:
                call(path)
                content = None if os.path.isdir(path) else Path(path).read_bytes()
                self._note("sync", self._inside(path), content)

        return noted


CHANGES = ("make_folder", "link", "rename", "exchange", "unlink", "remove_folder", "create")


def durable(calls: list[Call]) -> list[Call]:
    """Return the calls of which the names are on the disk: their folders were flushed afterwards."""
    waiting: list[tuple[int, set[str]]] = []
    kept = set(range(len(calls)))
    for number, (name, given) in enumerate(calls):
        if name == "sync" and given[1] is None:
            for _, folders in waiting:
                folders.discard(given[0])
        if name in CHANGES:
            paths = [str(path) for path in given if isinstance(path, str)]
            waiting.append((number, {os.path.dirname(path) or "." for path in paths[name == "link" :]}))
        if name in ("rename", "exchange"):
            for _, folders in waiting[:-1]:
                moved = {_moved(folder, given[0], given[1], name) for folder in folders}
                folders.clear()
                folders.update(moved)
    for number, folders in waiting:
        if folders:
            kept.discard(number)
    return [call for number, call in enumerate(calls) if number in kept]


def _moved(folder: str, source: str, target: str, how: str) -> str:
    for one, other in ((source, target), (target, source))[: 1 + (how == "exchange")]:
        if folder == one or folder.startswith(f"{one}/"):
            return other + folder[len(one) :]
    return folder


def do_again(calls: list[Call], root: Path, idea: str) -> None:
    """Do recorded calls below another folder, as the disk may have them."""
    for name, given in durable(calls) if idea == "names" else calls:
        paths = [str(root / path) for path in given if isinstance(path, str)]
        with contextlib.suppress(FileNotFoundError):  # what was lost is missed by what came later
            if name == "create":
                open(paths[0], "x").close()
            elif name in ("size", "cut") and idea != "lost":
                size = max(given[1], os.path.getsize(paths[0])) if name == "size" else given[1]
                os.truncate(paths[0], size)
            elif name == "write" and idea == "all":
                with open(paths[0], "r+b") as file:
                    file.seek(given[2])
                    file.write(given[1])
            elif name == "sync" and given[1] is not None:
                with open(paths[0], "r+b") as file:
                    file.truncate()
                    file.write(given[1])
            elif name in CHANGES or name == "remove_tree":
                getattr(disk, name)(*paths)


def prefixes(root: Path, calls: list[Call], old: Path, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield what may lie on the disk after each of the calls."""
    for count in range(len(calls) + 1):
        for idea in IDEAS:
            copy = tmp_path / "again"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(old, copy, symlinks=True)
            do_again(calls[:count], copy, idea)
            yield f"{count} of {len(calls)} calls, {idea}: {calls[max(count - 1, 0)][0]}", copy


def recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: Callable[[Path], Any], write: Callable[[Path], Any]
) -> tuple[Path, list[Call], Path]:
    root, old = tmp_path / "root", tmp_path / "old"
    root.mkdir()
    before(root)
    shutil.copytree(root, old, symlinks=True)
    recorder = Recorder(monkeypatch, root)
    with recorder.recording():
        write(root)
    return root, recorder.calls, old


def old_data(root: Path) -> None:
    dataset(1).memmap(root / "data")
    (root / "data" / "config.yaml").write_text("mine")
    (root / "data" / "n" / "deep.txt").write_text("deep")
    (root / "data" / "logs").mkdir()
    (root / "data" / "logs" / "log.txt").write_text("log")


def test_every_prefix_of_a_save_is_the_old_or_the_new(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, calls, old = recorded(monkeypatch, tmp_path, old_data, lambda root: dataset(2).memmap(root / "data"))
    assert version(root / "data") == 2
    seen: dict[str, list[int]] = {idea: [] for idea in IDEAS}
    for number, (what, copy) in enumerate(prefixes(root, calls, old, tmp_path)):
        found = version(copy / "data")
        seen[IDEAS[number % len(IDEAS)]].append(found)
        assert (copy / "data" / "config.yaml").read_text() == "mine", what
        assert (copy / "data" / "n" / "deep.txt").read_text() == "deep", what
        saving.sweep(str(copy), "data", str(copy / "data"))
        assert version(copy / "data") == found, what
        assert (copy / "data" / "logs" / "log.txt").read_text() == "log", what
        assert os.listdir(copy) == ["data"], what
    for idea in IDEAS:
        assert set(seen[idea]) == {1, 2}, "when the call returns it is on the disk"
        assert seen[idea] == sorted(seen[idea]), "what was saved stays saved"


def test_every_prefix_of_a_first_save_is_nothing_or_the_new(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, calls, old = recorded(monkeypatch, tmp_path, lambda root: None, lambda root: dataset(2).memmap(root / "data"))
    seen = []
    for _, copy in prefixes(root, calls, old, tmp_path):
        try:
            seen.append(version(copy / "data"))
        except FileNotFoundError:
            seen.append(0)
    assert set(seen) == {0, 2}
    assert seen[-len(IDEAS) :] == [2] * len(IDEAS), "when the call returns it is on the disk"


def consolidated(path: Path) -> int:
    return version_of(TensorDict.from_consolidated(path))


@pytest.mark.parametrize(
    "write, read, sweep",
    [
        (lambda td, path: td.consolidate(path), consolidated, stream.sweep),
        (lambda td, path: td.consolidate(path, layout="rows"), consolidated, stream.sweep),
        (lambda td, path: td.memmap(path, layout="rows"), version, saving.sweep),
    ],
    ids=["consolidate", "consolidated rows", "packed rows"],
)
def test_every_prefix_of_one_file_is_the_old_or_the_new(
    write: Any, read: Any, sweep: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    puts = [lambda root, value=value: write(dataset(value), root / "data") for value in (1, 2)]
    root, calls, old = recorded(monkeypatch, tmp_path, *puts)
    seen: dict[str, list[int]] = {idea: [] for idea in IDEAS}
    for number, (what, copy) in enumerate(prefixes(root, calls, old, tmp_path)):
        seen[IDEAS[number % len(IDEAS)]].append(read(copy / "data"))
        sweep(str(copy), "data", str(copy / "data"))
        assert os.listdir(copy) == ["data"], what
    for idea in IDEAS:
        assert set(seen[idea]) == {1, 2}, "when the call returns it is on the disk"
        assert seen[idea] == sorted(seen[idea]), "what was saved stays saved"


def test_every_prefix_where_names_cannot_be_exchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disk, "exchange", lambda one, other: False)
    root, calls, old = recorded(monkeypatch, tmp_path, old_data, lambda root: dataset(2).memmap(root / "data"))
    missing = 0
    for what, copy in prefixes(root, calls, old, tmp_path):
        missing += not (copy / "data").exists()
        saving.sweep(str(copy), "data", str(copy / "data"))
        assert version(copy / "data") in (1, 2), what
        assert (copy / "data" / "config.yaml").read_text() == "mine", what
        assert (copy / "data" / "logs" / "log.txt").read_text() == "log", what
    assert 0 < missing < 8


def test_every_prefix_where_the_parent_cannot_be_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path).endswith("/data"))

    def before(root: Path) -> None:
        (root / "data" / "n").mkdir(parents=True)
        (root / "data" / "n" / "mine.txt").write_text("mine")

    root, calls, old = recorded(monkeypatch, tmp_path, before, lambda root: dataset(2).memmap(root / "data"))
    seen = []
    for what, copy in prefixes(root, calls, old, tmp_path):
        try:
            seen.append(version(copy / "data"))
        except FileNotFoundError:
            assert not (copy / "data" / "meta.json").exists(), what
            seen.append(0)
        assert (copy / "data" / "n" / "mine.txt").read_text() == "mine", what
    assert set(seen) == {0, 2}


def grown(count: int) -> TensorDict:
    numbers = torch.arange(count)
    td = TensorDict({"x": numbers, "n": {"y": numbers[:, None].expand(count, 2), "z": numbers.float()}}, [count])
    td["w"] = [{"n": n} for n in range(count)]
    td["s"] = lazy_stack([TensorDict({"r": torch.full((n + 1,), n)}) for n in range(count)])
    return td


def test_every_prefix_of_an_append_has_all_rows_or_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root, calls, old = recorded(
        monkeypatch,
        tmp_path,
        lambda root: grown(3).memmap(root / "data"),
        lambda root: append_memmap(root / "data", grown(7)[3:]),
    )
    seen: dict[str, list[int]] = {idea: [] for idea in IDEAS}
    for number, (what, copy) in enumerate(prefixes(root, calls, old, tmp_path)):
        td = TensorDict.load_memmap(copy / "data")
        count = len(td)
        seen[IDEAS[number % len(IDEAS)]].append(count)
        for part in (TensorDict.load_memmap(copy / "data", subpath="n"), TensorDict.load_memmap(copy / "data" / "n")):
            assert len(part) == count, what
            assert part["y"][:, 1].tolist() == part["z"].tolist() == list(range(count)), what
        assert td["x"].tolist() == td["n", "y"][:, 1].tolist() == list(range(count)), what
        assert list(td["w"]) == [{"n": n} for n in range(count)], what
        assert [row["r"].tolist() for row in td["s"]] == [[n] * (n + 1) for n in range(count)], what
        if number % 3 == 0:  # whoever comes next goes on from there
            append_memmap(copy / "data", grown(count + 2)[count:])
            assert TensorDict.load_memmap(copy / "data")["x"].tolist() == list(range(count + 2)), what
    for idea in IDEAS:
        assert set(seen[idea]) == {3, 7}, "when the call returns it is on the disk"
        assert seen[idea] == sorted(seen[idea]), "what was appended stays"


def fresh(td: TensorDict, how: str) -> None:
    """Add a leaf to a folder that is open, or replace the values of one."""
    values = torch.full((3, 2), 7, dtype=torch.int32)
    if how == "make_memmap":
        td.make_memmap(("n", "new"), [3, 2], dtype=torch.int32)
    elif how == "make_memmap_from_storage":
        td.make_memmap_from_storage("new", values.untyped_storage(), [3, 2], dtype=torch.int32)
    else:
        td.make_memmap_from_tensor("x" if how == "existsok" else "new", values.long() if how == "existsok" else values)


@pytest.mark.parametrize("how", ["make_memmap", "make_memmap_from_tensor", "make_memmap_from_storage", "existsok"])
def test_every_prefix_of_a_leaf_that_is_added(how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def before(root: Path) -> None:
        dataset(1).replace(x=torch.ones(3, 2, dtype=torch.int64)).memmap(root / "data")

    def write(root: Path) -> None:
        fresh(TensorDict.load_memmap(root / "data"), how)

    root, calls, old = recorded(monkeypatch, tmp_path, before, write)
    added = {"make_memmap": ("n", "new"), "existsok": "x"}.get(how, "new")
    seen: dict[str, list[Any]] = {idea: [] for idea in IDEAS}
    for number, (what, copy) in enumerate(prefixes(root, calls, old, tmp_path)):
        td = TensorDict.load_memmap(copy / "data")
        found = td[added].unique().tolist() if added in td.keys(True) else [1]
        seen[IDEAS[number % len(IDEAS)]].append(found)
        if how != "existsok":
            assert version_of(td) == 1, what
        if number % 5 == 0:  # whoever comes next adds it
            fresh(td, how)
            assert td[added].unique().tolist() == TensorDict.load_memmap(copy / "data")[added].unique().tolist(), what
            assert not list(survey.surplus(str(copy / "data"))), what
            assert not list((copy / "data").rglob(survey.CHANGING)), what
    new = [0] if how == "make_memmap" else [7]
    for idea in IDEAS:
        assert sorted(seen[idea], key=[[1], new].index) == seen[idea], "what was added stays"
        assert seen[idea][-1] == new, "when the call returns it is on the disk"


def test_every_prefix_of_rows_written_to_a_column(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def before(root: Path) -> None:
        TensorDict({"name": ["a"] * 1200}, [1200]).memmap(root / "data")

    def write(root: Path) -> None:
        TensorDict.load_memmap(root / "data")[:] = TensorDict({"name": ["bcd"] * 1200}, [1200])

    root, calls, old = recorded(monkeypatch, tmp_path, before, write)
    seen = set()
    for _, copy in prefixes(root, calls, old, tmp_path):
        (found,) = set(TensorDict.load_memmap(copy / "data")["name"])
        seen.add(found)
    assert seen == {"a", "bcd"}
