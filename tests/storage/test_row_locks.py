"""Rows that writers hold, and what is on the disk after a flush."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import TensorDict, append_memmap, lazy_stack
from tensordict.storage import disk, locks
from tensordict.storage.checksum import survey_of

METHODS = ["fork", "spawn", "forkserver"]


def table(rows: int = 8) -> TensorDict:
    return TensorDict({"x": torch.zeros(rows, dtype=torch.int64), "n": {"y": torch.zeros(rows, 2)}}, [rows])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    table().memmap(tmp_path / "data")
    return tmp_path / "data"


def write_rows(td: Any, who: int, turns: int) -> None:
    """Write rows one after the other, again and again; fail if somebody else writes them meanwhile."""
    for _ in range(turns):
        with td.lock_rows(2, 6):
            for row in range(2, 6):
                td["x"][row] = who
            assert td["x"][2:6].tolist() == [who] * 4


def writer(path: str, who: int, turns: int, begin: Any) -> None:
    torch.set_num_threads(1)
    td = TensorDict.load_memmap(path)
    begin.wait()
    write_rows(td, who, turns)


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_never_interleave(method: str, place: Path) -> None:
    context: Any = mp.get_context(method)
    begin = context.Barrier(2)
    writers = [context.Process(target=writer, args=(str(place), who, 200, begin)) for who in (1, 2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
        assert process.exitcode == 0


@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_never_interleave(shared: bool, place: Path) -> None:
    tds = [TensorDict.load_memmap(place)] * 2 if shared else [TensorDict.load_memmap(place) for _ in range(2)]
    failed: list[BaseException] = []

    def work(who: int) -> None:
        try:
            write_rows(tds[who], who, 100)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def hold(path: str, start: int, stop: int, held: Any, done: Any) -> None:
    with TensorDict.load_memmap(path).lock_rows(start, stop):
        held.set()
        done.wait(60)


def test_rows_that_are_held_are_named_and_others_are_free(place: Path) -> None:
    context: Any = mp.get_context("fork")
    held, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(str(place), 2, 5, held, done))
    process.start()
    held.wait(60)
    td = TensorDict.load_memmap(place)
    for start, stop in ((0, 2), (5, 8)):
        with td.lock_rows(start, stop, timeout=0):
            pass
    for start, stop in ((0, 3), (4, 5), (0, 8)):
        message = rf"rows {start} to {stop} .*within 0.01 s.*holds rows 2 to 5"
        with pytest.raises(TimeoutError, match=message), td.lock_rows(start, stop, timeout=0.01):
            pass
    process.kill()  # whoever dies gives back what it held
    process.join()
    with td.lock_rows(0, 8, timeout=10):
        pass


def test_a_block_that_fails_gives_the_rows_back(place: Path) -> None:
    td = TensorDict.load_memmap(place)
    with pytest.raises(ZeroDivisionError), td.lock_rows(0, 8):
        _ = 1 / 0
    with td.lock_rows(0, 8, timeout=0) as same:
        assert same is td


def test_nodes_of_one_tree_share_their_locks(place: Path) -> None:
    td = TensorDict.load_memmap(place)
    with td["n"].lock_rows(0, 3), pytest.raises(TimeoutError), td.lock_rows(2, 4, timeout=0):
        pass


def test_without_locks_of_ranges_the_whole_is_held(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    td = TensorDict.load_memmap(place)
    monkeypatch.delattr(disk.fcntl, "F_OFD_SETLK")
    monkeypatch.delattr(disk.fcntl, "F_OFD_GETLK")
    with td.lock_rows(0, 2), pytest.raises(TimeoutError), td.lock_rows(5, 6, timeout=0):
        pass
    with td.lock_rows(5, 6, timeout=0):
        pass


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (-1, 2), (3, 3), (5, 2)])
def test_there_must_be_such_rows(start: int, stop: int, place: Path) -> None:
    td = TensorDict.load_memmap(place)
    with pytest.raises(IndexError, match=rf"{start} to {stop}.*\[8\]"), td.lock_rows(start, stop):
        pass


def test_what_cannot_be_locked(place: Path) -> None:
    cases: list[tuple[Any, type[Exception], str]] = [
        (table(), RuntimeError, "not memory-mapped"),
        (table().memmap_(), RuntimeError, "from a folder"),
        (TensorDict.load_memmap(place)[2:], RuntimeError, "part"),
        (TensorDict.load_memmap(place, mode="r"), PermissionError, "mode='r'"),
    ]
    for td, error, message in cases:
        with pytest.raises(error, match=message), td.lock_rows(0, 1):
            pass
    assert not (place / locks.FILE).exists()


def test_the_file_of_the_locks_is_no_part_of_the_tree(place: Path) -> None:
    td = TensorDict.load_memmap(place)
    with td.lock_rows(0, 8):
        pass
    assert survey_of(str(place)).damage == []
    append_memmap(place, table(2))
    table(3).memmap(place)
    assert sorted(os.listdir(place)) == ["checksums.json", "meta.json", "n", "x.memmap"]


def test_rows_of_stacks_can_be_held(tmp_path: Path) -> None:
    td = lazy_stack([TensorDict({"x": torch.zeros(n + 1)}) for n in range(3)]).memmap(tmp_path)
    with td.lock_rows(1, 3), pytest.raises(TimeoutError), td.lock_rows(2, 3, timeout=0):
        pass


# ---- flush


def test_flush_writes_every_mapped_leaf_and_renews_its_checksum(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    td = TensorDict.load_memmap(place)
    synced, real = [], disk.sync_mapping

    def sync_mapping(address: int, nbytes: int, path: str) -> None:
        synced.append((os.path.relpath(path, place), nbytes))
        real(address, nbytes, path)

    monkeypatch.setattr(disk, "sync_mapping", sync_mapping)
    td["x"].fill_(3)
    assert survey_of(str(place)).damage
    assert td.flush(checksums=False) is td
    assert sorted(synced) == [("n/y.memmap", 64), ("x.memmap", 64)]
    assert survey_of(str(place)).damage
    td["n"].flush()
    assert survey_of(str(place)).damage
    td.flush()
    assert survey_of(str(place)).damage == []
    assert TensorDict.load_memmap(place, verify=True)["x"].tolist() == [3] * 8


def test_flush_of_some_leaves_leaves_the_others(tmp_path: Path) -> None:
    like = table().memmap_like(tmp_path)
    like["n", "y"].fill_(1)
    like["n"].flush()
    assert [part.file for part in survey_of(str(tmp_path)).unknown] == ["x.memmap"]
    like.flush()
    assert survey_of(str(tmp_path)).unknown == []
    append_memmap(tmp_path, table(2))
    like.memmap_refresh_().flush()
    found = survey_of(str(tmp_path))
    assert (found.damage, found.unknown) == ([], [])


def test_flush_of_one_file_says_what_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table().memmap(tmp_path / "zip", archive=True)
    table().consolidate(tmp_path / "block")
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync", lambda path: synced.append(os.path.basename(path)))
    archive = TensorDict.load_memmap(tmp_path / "zip", mode="r+")
    block = TensorDict.from_consolidated(tmp_path / "block")
    for td in (archive, block):
        td["x"].fill_(3)
        assert td.flush(checksums=False) is td
    assert synced == ["zip", "block"]
    with pytest.raises(ValueError, match=r"x\.memmap"):
        TensorDict.load_memmap(tmp_path / "zip", verify=True)
    archive["n"].flush()
    assert TensorDict.load_memmap(tmp_path / "zip", verify=True)["x"].tolist() == [3] * 8
    assert "zip" in synced[2:]
    content = (tmp_path / "block").read_bytes()
    block[2:].flush()
    assert synced[-1] == "block"
    assert (tmp_path / "block").read_bytes() == content
    with pytest.raises(ValueError, match=r"'x'.*written through a mapping"):
        TensorDict.from_consolidated(tmp_path / "block", verify=True)
    block.consolidate(tmp_path / "block")
    assert TensorDict.from_consolidated(tmp_path / "block", verify=True)["x"].tolist() == [3] * 8
    TensorDict.from_consolidated(tmp_path / "block", mode="r").flush()
    TensorDict.load_memmap(tmp_path / "zip").flush()


def test_flush_says_what_cannot_be_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match=r"here.*to the disk"):
        disk.sync_mapping(4096, 10, "here")
    for td in (table(), table().memmap_()):
        with pytest.raises(RuntimeError, match="not memory-mapped from a folder"):
            td.flush()
    TensorDict.load_memmap(place, mode="r").flush()
