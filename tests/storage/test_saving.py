"""A saved folder is the old tree or the new one, whatever happens; what else lies in it is kept."""

from __future__ import annotations

import errno
import gc
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import MemoryMappedTensor, TensorDict, lazy_stack
from tensordict.storage import disk, saving
from tensordict.storage.base import Record
from tensordict.storage.folder import Folder
from tensordict.storage.memmap import home_of


def dataset(value: int, rows: int = 3) -> TensorDict:
    """Return a tree of which every leaf says which version it is."""
    inner = TensorDict({"y": torch.full((rows, 2), value), "z": torch.full((rows,), float(value))}, [rows])
    return TensorDict({"x": torch.full((rows, 4), value), "n": inner, "name": str(value)}, [rows])


def wide(value: int) -> TensorDict:
    """Return a tree that takes longer to open."""
    td = dataset(value)
    for key in range(30):
        td[f"k{key}", "x"] = torch.full((3,), value)
    return td


def version(path: Path | str) -> int:
    """Return which version lies in a folder; fail on a mixture."""
    td = TensorDict.load_memmap(path)
    found = {leaf.flatten()[0].item() for leaf in td.exclude("name").values(True, True)}
    found |= {*td["x"].unique().tolist(), *td["n", "y"].unique().tolist(), *td["n", "z"].unique().tolist()}
    assert found == {int(td["name"])}, f"a mixture of {found}"
    return int(td["name"])


def beside(path: Path) -> list[str]:
    return sorted(name.name for name in path.parent.iterdir() if name != path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data"


# ---- one step


def write_in_turn(path: str, done: Any) -> None:
    torch.set_num_threads(1)
    versions = [wide(1), wide(2)]
    turn = 0
    while not done.is_set():
        turn += 1
        versions[turn % 2].memmap(path)


def read_often(path: str, count: int, answers: Any) -> None:
    torch.set_num_threads(1)
    try:
        seen = [version(path) for _ in range(count)]
        while len(set(seen)) < 2 and len(seen) < 100 * count:  # the writer may be slow to start
            seen.append(version(path))
        answers.put(seen)
    except BaseException as error:
        answers.put(repr(error))
        raise


def test_readers_see_the_old_or_the_new_while_a_writer_saves_again_and_again(place: Path) -> None:
    context: Any = mp.get_context("fork")
    wide(1).memmap(place)
    answers, done = context.SimpleQueue(), context.Event()
    writer = context.Process(target=write_in_turn, args=(str(place), done))
    readers = [context.Process(target=read_often, args=(str(place), 150, answers)) for _ in range(2)]
    writer.start()
    for reader in readers:
        reader.start()
    found = [answers.get() for _ in readers]
    done.set()
    for process in (writer, *readers):
        process.join()
        assert process.exitcode == 0, found
    assert {one for seen in found for one in seen} == {1, 2}
    assert beside(place) == []


def test_a_reader_that_always_meets_another_tree_says_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset(1).memmap(place)
    monkeypatch.setattr(saving, "_TRIES", 3)

    def read() -> None:
        dataset(2).memmap(place)

    with pytest.raises(RuntimeError, match="replaced by other processes 3 times"):
        saving.steadily(str(place), read)


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), ValueError("short")])
def test_what_goes_wrong_while_another_tree_comes_is_tried_again(place: Path, error: Exception) -> None:
    dataset(1).memmap(place)
    faults = [error]

    def read() -> int:
        if faults:
            dataset(2).memmap(place)
            raise faults.pop()
        return version(place)

    assert saving.steadily(str(place), read) == 2
    faults.append(error)
    with pytest.raises(type(error)):
        saving.steadily(str(place), lambda: (_ for _ in ()).throw(error))


def test_nothing_can_be_seen_of_a_tree_that_is_being_written(place: Path) -> None:
    dataset(1).memmap(place)
    node = Folder(place, "w")
    node.write("x", torch.zeros(2))
    node.child("n").write("y", torch.zeros(2))
    assert version(place) == 1
    node.child("n").meta = Record("dense", ())
    assert version(place) == 1
    node.meta = Record("dense", ())
    assert set(TensorDict.load_memmap(place).keys()) == {"x", "n"}
    assert beside(place) == []


def test_leaves_know_their_place_before_and_after(place: Path) -> None:
    node = Folder(place, "w")
    leaf = node.write("x", torch.arange(3))
    home = home_of(leaf)
    assert home is not None
    assert os.path.isfile(home.path)
    node.meta = Record("dense", ())
    assert home.path == str(place / "x.memmap")
    leaf[0] = 7
    assert TensorDict.load_memmap(place)["x"].tolist() == [7, 1, 2]
    td = dataset(1).memmap(place)
    assert td["n", "y"].filename == str(place / "n" / "y.memmap")
    assert td["n"].saved_path == str(place / "n")


def test_saving_in_place_shares_the_file_of_a_leaf_that_lies_there(place: Path) -> None:
    td = dataset(1).memmap_(place)
    inode = (place / "x.memmap").stat().st_ino
    bigger = td.copy().unlock_().set("new", torch.ones(3))
    bigger.memmap(place)
    assert (place / "x.memmap").stat().st_ino == inode
    td["x"].fill_(5)
    back = TensorDict.load_memmap(place)
    assert back["x"].unique().tolist() == [5]
    assert "new" in set(back.keys())


def test_a_leaf_whose_file_another_tree_has_replaced_is_saved_by_value(place: Path) -> None:
    td = dataset(1).memmap(place)
    dataset(2).memmap(place)
    td.memmap(place)
    assert version(place) == 1


@pytest.mark.parametrize("threads", [0, 3])
def test_threads_copy_the_same(threads: int, place: Path) -> None:
    many = TensorDict({f"k{n}": torch.arange(n, n + 50).view(5, 10).t() for n in range(20)}, [10])
    many.memmap(place, num_threads=threads)
    back = TensorDict.load_memmap(place)
    assert all(torch.equal(back[key], leaf) for key, leaf in many.items())


def test_a_failure_in_a_thread_is_a_failure(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset(1).memmap(place)

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(disk, "write", fail)
    with pytest.raises(OSError, match="full"):
        dataset(2).memmap(place, num_threads=2)
    monkeypatch.undo()
    assert version(place) == 1
    assert beside(place) == []


# ---- failures


@pytest.mark.parametrize(
    "name", ["create", "write", "reserve", "sync_all", "make_folder", "exchange", "link", "open_folder"]
)
def test_a_failure_leaves_the_old_tree_and_nothing_else(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(1).memmap(place)
    (place / "mine.txt").write_text("mine")
    before = sorted(map(str, place.rglob("*")))
    real, calls = getattr(disk, name), []

    def fail(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) >= 2 or name == "exchange":
            raise OSError(errno.EIO, "broken")
        return real(*given, **options)

    monkeypatch.setattr(disk, name, fail)
    if name == "link":  # a file system without links: the file is moved
        dataset(2).memmap(place)
        monkeypatch.undo()
        assert version(place) == 2
    else:
        with pytest.raises(OSError, match="broken"):
            dataset(2).memmap(place)
        monkeypatch.undo()
        assert version(place) == 1
        assert sorted(map(str, place.rglob("*"))) == before
    assert (place / "mine.txt").read_text() == "mine"
    assert beside(place) == []


def test_what_cannot_be_placed_leaves_the_old_tree(place: Path) -> None:
    dataset(1).memmap(place)
    bad = TensorDict({"x": torch.ones(3), "y": torch.ones(3, device="meta")}, [3])
    with pytest.raises(RuntimeError, match="'y'"):
        bad.memmap(place)
    assert version(place) == 1
    assert beside(place) == []


def test_a_tree_that_is_begun_and_forgotten_goes(place: Path) -> None:
    node = Folder(place, "w")
    node.write("x", torch.zeros(2))
    assert beside(place)
    del node
    gc.collect()
    assert beside(place) == []


def test_a_file_in_the_way_is_kept(place: Path) -> None:
    place.write_text("mine")
    with pytest.raises(FileExistsError, match="data"):
        dataset(1).memmap(place)
    assert place.read_text() == "mine"


# ---- what else lies in the folder


def test_what_belongs_to_others_stays(place: Path) -> None:
    dataset(1).memmap(place)
    (place / "config.yaml").write_text("mine")
    (place / "n" / "deep.txt").write_text("deep")
    (place / "logs" / "run").mkdir(parents=True)
    (place / "link").symlink_to("config.yaml")
    (place / "config.yaml").chmod(0o600)
    place.chmod(0o750)
    with open(place / "logs" / "run" / "log.txt", "w") as log:
        log.write("before ")
        dataset(2).memmap(place)
        log.write("after")
    TensorDict({"z": torch.zeros(1)}).memmap(place)
    assert (place / "config.yaml").read_text() == "mine"
    assert stat.S_IMODE((place / "config.yaml").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    assert (place / "n" / "deep.txt").read_text() == "deep"
    assert (place / "logs" / "run" / "log.txt").read_text() == "before after"
    assert os.readlink(place / "link") == "config.yaml"
    names = {str(path.relative_to(place)) for path in place.rglob("*")}
    assert names == {
        "checksums.json",
        "config.yaml",
        "link",
        "logs",
        "logs/run",
        "logs/run/log.txt",
        "meta.json",
        "n",
        "n/deep.txt",
        "z.memmap",
    }
    assert beside(place) == []


def test_a_folder_that_holds_no_tensordict_keeps_all_it_holds(place: Path) -> None:
    (place / "n").mkdir(parents=True)
    (place / "n" / "mine.txt").write_text("mine")
    (place / "other").mkdir()
    dataset(1).memmap(place)
    assert version(place) == 1
    assert (place / "n" / "mine.txt").read_text() == "mine"
    assert (place / "other").is_dir()


def test_a_file_that_changes_while_the_tree_is_replaced_keeps_the_change(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset(1).memmap(place)
    (place / "config.yaml").write_text("old")
    real = disk.exchange

    def exchange(one: str, other: str) -> bool:
        (place / "new").write_text("config")
        os.replace(place / "new", place / "config.yaml")
        (place / "late.txt").write_text("late")
        return real(one, other)

    monkeypatch.setattr(disk, "exchange", exchange)
    dataset(2).memmap(place)
    assert (place / "config.yaml").read_text() == "config"
    assert (place / "late.txt").read_text() == "late"


@pytest.mark.parametrize("what", ["folder for a leaf", "file for a node"])
def test_what_is_in_the_way_of_the_tree_is_named_and_kept(what: str, place: Path) -> None:
    TensorDict({"other": torch.ones(1)}).memmap(place)
    if what == "folder for a leaf":
        (place / "x.memmap").mkdir()
        (place / "x.memmap" / "mine").write_text("mine")
    else:
        (place / "n").write_text("mine")
    with pytest.raises(FileExistsError, match="in the way"):
        dataset(1).memmap(place)
    assert list(TensorDict.load_memmap(place).keys()) == ["other"]
    assert beside(place) == []


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path, place: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").mkdir()
    place.symlink_to(tmp_path / "disk" / "real")
    for value in (1, 2):
        dataset(value).memmap(place)
        assert version(place) == version(tmp_path / "disk" / "real") == value
    assert place.is_symlink()
    assert beside(tmp_path / "disk" / "real") == []


def test_a_program_may_save_to_the_folder_it_is_in(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir()
    monkeypatch.chdir(place)
    for value in (1, 2):
        dataset(value).memmap(".")
        assert os.path.samefile(".", place)
        assert version(".") == value


def test_long_names_are_swept_too(tmp_path: Path) -> None:
    place = tmp_path / ("é" * 120)
    dataset(1).memmap(place)
    leave_behind(place, lambda: disk.sync_all, "sync_all")
    assert beside(place)
    dataset(2).memmap(place)
    assert beside(place) == []


# ---- what the dead leave


def leave_behind(place: Path, real: Callable[[], Any], name: str, *, after: bool = False) -> None:
    """Let a process die in a call of a save of version 9, or right after it."""
    call = real()

    def die() -> None:
        def dying(*given: Any, **options: Any) -> Any:
            if after:
                call(*given, **options)
            os._exit(0)

        setattr(disk, name, dying)
        torch.set_num_threads(1)
        dataset(9).memmap(place)

    process = mp.get_context("fork").Process(target=die)
    process.start()
    process.join()


def test_the_next_save_removes_what_a_dead_writer_left(place: Path) -> None:
    dataset(1).memmap(place)
    leave_behind(place, lambda: disk.sync_all, "sync_all")
    assert [name.partition("-")[0] for name in beside(place)] == ["%%build"]
    assert version(place) == 1
    dataset(2).memmap(place)
    assert version(place) == 2
    assert beside(place) == []


def test_files_of_others_come_back_from_what_a_dead_writer_left(place: Path) -> None:
    dataset(1).memmap(place)
    (place / "config.yaml").write_text("mine")
    (place / "logs").mkdir()
    (place / "logs" / "log.txt").write_text("log")
    leave_behind(place, lambda: disk.exchange, "exchange", after=True)
    assert version(place) == 9
    assert (place / "config.yaml").read_text() == "mine"
    (place / "config.yaml").write_text("changed since")
    dataset(2).memmap(place)
    assert version(place) == 2
    assert (place / "config.yaml").read_text() == "changed since"
    assert (place / "logs" / "log.txt").read_text() == "log"
    assert beside(place) == []


def test_what_a_living_writer_writes_is_left_alone(place: Path, tmp_path: Path) -> None:
    node = Folder(place, "w")
    node.write("x", torch.ones(2))
    dataset(2).memmap(place)
    assert version(place) == 2
    node.meta = Record("dense", ())
    assert TensorDict.load_memmap(place)["x"].tolist() == [1.0, 1.0]
    (tmp_path / "%%build-mine").mkdir()
    (tmp_path / "%%build-1-2-data").mkdir()
    dataset(1).memmap(place)
    assert beside(place) == ["%%build-1-2-data", "%%build-mine"]


# ---- where the names cannot be exchanged


class TestWithoutExchange:
    @pytest.fixture(autouse=True)
    def no_exchange(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(disk, "exchange", lambda one, other: False)

    def test_trees_are_replaced_in_two_steps(self, place: Path) -> None:
        dataset(1).memmap(place)
        (place / "logs").mkdir()
        dataset(2).memmap(place)
        assert version(place) == 2
        assert (place / "logs").is_dir()
        assert beside(place) == []

    def test_who_dies_between_them_leaves_a_whole_tree_for_the_next(self, place: Path) -> None:
        dataset(1).memmap(place)
        (place / "mine.txt").write_text("mine")
        calls = []

        def die() -> None:
            real = disk.rename

            def rename(source: str, target: str) -> None:
                calls.append(source)
                if len(calls) == 3:
                    os._exit(0)
                real(source, target)

            disk.rename = rename
            dataset(9).memmap(place)

        process = mp.get_context("fork").Process(target=die)
        process.start()
        process.join()
        assert not place.exists()
        saving.sweep(str(place.parent), place.name, str(place))
        assert version(place) in (1, 9)
        assert (place / "mine.txt").read_text() == "mine"
        assert beside(place) == []


class TestWhereTheParentCannotBeChanged:
    @pytest.fixture(autouse=True)
    def mounted(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        place.mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(place))

    def test_a_first_save_writes_inside_and_the_record_last(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (place / "n").mkdir()
        (place / "n" / "mine.txt").write_text("mine")
        real, names = disk.rename, []

        def rename(source: str, target: str) -> None:
            assert not (place / "meta.json").exists()
            names.append(os.path.relpath(target, place))
            real(source, target)

        monkeypatch.setattr(disk, "rename", rename)
        inode = place.stat().st_ino
        td = dataset(1).memmap(place)
        assert names[-1] == "meta.json"
        assert version(place) == 1
        assert place.stat().st_ino == inode
        assert td["x"].filename == str(place / "x.memmap")
        assert (place / "n" / "mine.txt").read_text() == "mine"
        assert not [name for name in os.listdir(place) if name.startswith("%%")]

    def test_a_saved_tensordict_is_not_replaced(self, place: Path) -> None:
        dataset(1).memmap(place)
        with pytest.raises(PermissionError, match=r"in one step.*sub-folder"):
            dataset(2).memmap(place)
        assert version(place) == 1
        dataset(2).memmap(place / "second")
        assert version(place / "second") == 2

    def test_what_is_in_the_way_is_named(self, place: Path) -> None:
        (place / "n").write_text("mine")
        with pytest.raises(FileExistsError, match="in the way"):
            dataset(1).memmap(place)
        assert os.listdir(place) == ["n"]


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_not_replaced(place: Path) -> None:
    dataset(1).memmap(place)
    place.chmod(0o555)
    with pytest.raises(PermissionError, match="may not be written"):
        dataset(2).memmap(place)
    place.chmod(0o755)
    assert version(place) == 1


# ---- every kind


def test_stacks_and_classes_are_saved_in_one_step(place: Path) -> None:
    ragged = lazy_stack([TensorDict({"x": torch.ones(n, 2)}) for n in (1, 0, 3)])
    ragged.memmap(place)
    dataset(1).memmap(place)
    assert version(place) == 1
    names = TensorDict({"name": [f"row {n}" for n in range(2000)]}, [2000])
    names.memmap(place)
    assert TensorDict.load_memmap(place)["name"][1999] == "row 1999"
    assert sorted(os.listdir(place)) == ["checksums.json", "meta.json", "name"]


def test_a_column_of_objects_that_is_written_replaces_its_folder_in_one_step(place: Path) -> None:
    td = TensorDict({"x": torch.zeros(3), "name": ["a", "b", "c"]}, [3]).memmap(place)
    td[1] = TensorDict({"x": torch.tensor(1.0), "name": "new"})
    back = TensorDict.load_memmap(place)
    assert list(back["name"]) == ["a", "new", "c"]
    assert sorted(os.listdir(place)) == ["checksums.json", "meta.json", "name", "x.memmap"]


def test_zeros_are_zeros_where_other_rows_were(place: Path) -> None:
    dataset(7).memmap(place)
    like = dataset(7).memmap_like(place)
    assert like["x"].sum() + like["n", "y"].sum() == 0
    assert TensorDict.load_memmap(place)["x"].sum() == 0
    dataset(7).memmap(place)
    TensorDict.from_schema({"x": ([4], torch.int64)}, batch_size=[3], storage="memmap", prefix=place)
    back = TensorDict.load_memmap(place)
    assert list(back.keys()) == ["x"]
    assert back["x"].sum() == 0
    assert isinstance(back["x"], MemoryMappedTensor)
