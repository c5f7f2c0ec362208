"""Leaves that several processes hold: under every way to start a process, writes are seen both ways."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor

from tensordict.storage.base import Record
from tensordict.storage.folder import Folder
from tensordict.storage.mapped import MemoryMappedTensor, present
from tensordict.storage.memmap import allocate_anonymous, home_of
from tensordict.storage.memory import allocate_shared, block, is_shared
from tensordict.storage.sent import handle, restore

METHODS = ["fork", "spawn", "forkserver"]


def add_one(leaves: dict[str, Tensor], answers: Any) -> None:
    seen = {key: leaf.sum().item() for key, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.add_(1)
    answers.put((seen, len({leaf.untyped_storage()._cdata for leaf in leaves.values()})))


def send_back(path: str, answers: Any, done: Any) -> None:
    leaf = Folder(path).read("x")
    answers.put((leaf, leaf[2:], present(leaf)[0]))
    done.wait(60)


def make(kind: str, folder: Path, values: list[Tensor]) -> dict[str, Tensor]:
    if kind == "shared":
        leaves = block(values, allocate_shared)
    elif kind == "anonymous":
        leaves = block(values, allocate_anonymous)
    elif kind == "presented":
        leaves = [present(leaf) for leaf in block(values, allocate_anonymous)]
    else:
        node = Folder(folder, "w")
        leaves = [node.write(str(place), value) for place, value in enumerate(values)]
    return {str(place): leaf for place, leaf in enumerate(leaves)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["shared", "anonymous", "presented", "folder"])
def test_writes_are_seen_both_ways(kind: str, method: str, tmp_path: Path) -> None:
    context: Any = mp.get_context(method)
    leaves = make(kind, tmp_path, [torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(())])
    leaves["part"] = leaves["0"][1:]
    answers = context.SimpleQueue()
    process = context.Process(target=add_one, args=(leaves, answers))
    for leaf in leaves.values():
        leaf.add_(1)
    process.start()
    seen, storages = answers.get()
    process.join()
    assert seen == {"0": 5.0, "1": 4, "2": 1.0, "part": 4.0}
    assert storages == (3 if kind == "folder" else 1)
    assert leaves["0"].tolist() == [2.0, 4.0, 4.0]
    assert leaves["1"].tolist() == [[2, 2], [2, 2]]
    assert leaves["part"].tolist() == [4.0, 4.0]


@pytest.mark.parametrize("method", METHODS)
def test_plain_views_of_a_file_are_sent_by_name(method: str, tmp_path: Path) -> None:
    node = Folder(tmp_path, "w")
    mine = node.write("x", torch.arange(4))
    node.meta = Record("dense", (4,))
    context: Any = mp.get_context(method)
    answers, done = context.SimpleQueue(), context.Event()
    process = context.Process(target=send_back, args=(str(tmp_path), answers, done))
    process.start()
    whole, part, presented = answers.get()
    done.set()
    process.join()
    mine[:] = 7
    assert (whole.tolist(), part.tolist(), presented.item()) == ([7, 7, 7, 7], [7, 7], 7)
    assert type(whole) is Tensor
    assert type(presented) is MemoryMappedTensor


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def few_files() -> Any:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
class TestManyLeaves:
    def test_sharing_six_hundred_leaves_takes_one_descriptor(self) -> None:
        before = open_files()
        leaves = make("shared", Path(), [torch.full((3,), float(place)) for place in range(600)])
        assert open_files() <= before + 1
        context: Any = mp.get_context("spawn")
        answers = context.SimpleQueue()
        process = context.Process(target=add_one, args=(leaves, answers))
        process.start()
        seen, storages = answers.get()
        process.join()
        assert storages == 1
        assert seen == {str(place): place * 3.0 for place in range(600)}
        assert leaves["599"].tolist() == [600.0] * 3

    def test_two_thousand_temporary_leaves(self) -> None:
        before = open_files()
        leaves = block([torch.full((3,), place) for place in range(2000)], allocate_anonymous)
        assert open_files() == before
        received = [restore(handle(leaf)) for leaf in leaves]  # type: ignore[arg-type]
        assert open_files() == before
        assert [leaf[1].item() for leaf in received] == list(range(2000))

    def test_a_thousand_files(self, tmp_path: Path) -> None:
        before = open_files()
        node = Folder(tmp_path, "w")
        for place in range(1000):
            node.write(str(place), torch.tensor(place))
        node.meta = Record("dense", ())
        leaves = Folder(tmp_path).leaves()
        assert open_files() == before
        assert [leaf.item() for leaf in leaves.values()] == list(range(1000))


def test_a_forked_child_does_not_remove_the_file() -> None:
    (leaf,) = block([torch.ones(3)], allocate_anonymous)
    home = home_of(leaf)
    assert home is not None
    process = mp.get_context("fork").Process(target=_drop, args=([leaf],))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert os.path.exists(home.path)


def _drop(leaves: list[Tensor]) -> None:
    leaves.clear()
    gc.collect()


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_removes_its_own_files_when_it_ends(method: str) -> None:
    context: Any = mp.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=_keep_for_ever, args=(answers,))
    process.start()
    path = answers.get()
    process.join()
    assert process.exitcode == 0
    assert not os.path.exists(path)


_kept: list[Tensor] = []


def _keep_for_ever(answers: Any) -> None:
    _kept.extend(block([torch.ones(3)], allocate_anonymous))
    home = home_of(_kept[0])
    assert home is not None
    assert os.path.exists(home.path)
    answers.put(home.path)


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(3)", "1 / 0"])
def test_temporary_files_go_when_the_process_ends(end: str, tmp_path: Path) -> None:
    script = f"""
        import torch
        from tensordict.storage.memmap import allocate_anonymous, home_of
        from tensordict.storage.memory import block
        leaves = block([torch.ones(3)], allocate_anonymous)
        print(home_of(leaves[0]).path)
        {end}
    """
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, env=environment, check=False
    )
    assert result.stdout.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_shared_leaves_are_shared_through_views() -> None:
    (leaf,) = block([torch.ones(3)], allocate_shared)
    assert is_shared(leaf[1:])
