"""A Loader whose batches another process reads: the same batches, and what happens when one of the two dies."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, WorkerError
from tensordict.data import Blocks, Loader

sys.path.insert(0, str(Path(__file__).parent / "contract"))
import kinds

METHODS = ["fork", "spawn", "forkserver"]


def table(size: int = 40, width: int = 3000) -> TensorDict:
    rows = torch.arange(size)
    names = NonTensorStack(*map(str, range(size)))
    return TensorDict({"row": rows, "n": {"wide": rows[:, None] * 10 + torch.arange(width)}, "name": names}, [size])


def rows_of(loader: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in loader]


def marked(batch: Any) -> Any:
    """Return a batch with the process and the number of its thread's process that made it."""
    return batch.set("pid", torch.full((len(batch),), os.getpid())), {"sum": batch["row"].sum()}


def grown(batch: Any) -> Any:
    """Return as many numbers as the row number says, squared."""
    return torch.arange(int(batch["row"][0]) ** 2 * 100)


class OddError(Exception):
    def __init__(self, one: Any, two: Any) -> None:
        super().__init__(one, two)


def failing(batch: Any) -> Any:
    if 6 in batch["row"].tolist():
        raise OddError("no", 6)
    return batch


def dying(batch: Any) -> Any:
    if 6 in batch["row"].tolist():
        Path(batch["path"]).write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def unsendable(batch: Any) -> Any:
    return lambda: batch


def child_of(loader: Loader) -> Any:
    return loader._helpers[0].process


@pytest.mark.parametrize(
    "kind", ["dense", "nested", "uneven", "mapped", "shared", "tensorclass", "persistent", "window"]
)
def test_every_kind_comes_as_threads_read_it(kind: str) -> None:
    data = kinds.KINDS[kind]((7, 2))
    for reuse in (False, True, "check"):
        here = Loader(data, 3, shuffle=True)
        there = Loader(data, 3, shuffle=True, workers="fork", reuse_buffers=reuse)
        for _ in range(2):
            for one, other in zip(here, there, strict=True):
                assert type(one) is type(other)
                assert one.batch_size == other.batch_size
                kinds.assert_same(other, one, kind)
                other.get("x").zero_()
        assert child_of(there).is_alive()


@pytest.mark.parametrize("method", METHODS)
def test_batches_cross_from_one_process_that_stays(method: str) -> None:
    data = table()
    loader = Loader(data, 8, shuffle=True, workers=method, transform=marked, reuse_buffers=True)
    pids = set()
    for epoch in range(2):
        want = rows_of(_at(Loader(data, 8, shuffle=True), epoch))
        for rows, (batch, about) in zip(want, loader, strict=True):
            assert batch["row"].tolist() == rows
            assert batch["name"] == list(map(str, rows))
            assert torch.equal(batch["n", "wide"], data["n", "wide"][rows])
            assert int(about["sum"]) == sum(rows)
            pids |= set(batch["pid"].tolist())
    assert len(pids) == 1
    assert pids == {child_of(loader).pid} != {os.getpid()}
    assert loader.stats.batches == 5


def _at(loader: Loader, epoch: int) -> Loader:
    loader.set_epoch(epoch)
    return loader


def test_batches_that_are_kept_keep_their_values() -> None:
    data = table(60)
    kept = list(Loader(data, 4, workers="fork"))
    assert torch.equal(torch.cat(kept)["n", "wide"], data["n", "wide"])
    assert not any(batch.is_shared() for batch in kept)
    small = TensorDict({"row": torch.arange(5000)}, [5000])
    for reuse in (False, True):
        got = [batch["row"].clone() for batch in Loader(small, 3, workers="fork", reuse_buffers=reuse)]
        assert torch.equal(torch.cat(got), small["row"])


def test_batches_may_grow_beyond_the_slots() -> None:
    data = TensorDict({"row": torch.arange(12)}, [12])
    for reuse in (False, True):
        sizes = [len(part) for part in Loader(data, 1, workers="fork", transform=grown, reuse_buffers=reuse)]
        assert sizes == [n**2 * 100 for n in range(12)]


def test_blocks_and_resume_and_two_passes() -> None:
    data = table(50).exclude("name")
    shuffle = Blocks(8, mix=2)
    want = rows_of(Loader(data, 6, shuffle=shuffle))
    loader = Loader(data, 6, shuffle=shuffle, workers="fork")
    passing = iter(loader)
    got = [next(passing)["row"].tolist() for _ in range(3)]
    state = loader.state_dict()
    assert state == {"seed": 0, "epoch": 0, "position": 18}
    assert rows_of(loader) == want  # another pass, while the first goes on
    got += rows_of(passing)
    assert got == want
    for workers in (1, "fork"):
        again = Loader(data, 6, shuffle=shuffle, workers=workers)  # type: ignore[arg-type]
        again.load_state_dict(state)
        assert rows_of(again) == want[3:]


@pytest.mark.parametrize("method", METHODS)
def test_an_error_comes_as_it_is_with_its_batch_and_rows(method: str) -> None:
    passing = iter(Loader(table(), 2, workers=method, transform=failing))
    assert [next(passing)["row"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(OddError) as caught:
        next(passing)
    assert caught.value.args == ("no", 6)
    assert "in the transform of batch 3 (rows 6, 7)" in str(caught.value.__cause__)
    assert "in failing" in str(caught.value.__cause__)  # the traceback of the process


@pytest.mark.parametrize("method", METHODS)
def test_a_process_that_dies_is_an_error_at_once(method: str, tmp_path: Path) -> None:
    data = table().set("path", NonTensorData(str(tmp_path / "died"), [40]))
    with pytest.raises(WorkerError, match="the process of the Loader was killed by SIGKILL"):
        list(Loader(data, 2, workers=method, transform=dying))
    assert time.monotonic() - float((tmp_path / "died").read_text()) < 2


def test_a_process_that_dies_between_two_epochs_is_replaced() -> None:
    loader = Loader(table(), 8, workers="fork")
    want = rows_of(loader)
    first = child_of(loader)
    pid = first.pid
    first.kill()
    first.join()
    rows_of(loader)
    loader.set_epoch(0)
    assert rows_of(loader) == want
    assert child_of(loader).pid != pid


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(pickle.PicklingError, match="top level of a module"):
        next(iter(Loader(table(), 2, workers="spawn", transform=lambda batch: batch)))
    with pytest.raises(pickle.PicklingError, match="what the transform returned cannot be pickled"):
        next(iter(Loader(table(), 2, workers="fork", transform=unsendable)))


def test_leaving_and_dropping_end_the_process() -> None:
    loader = Loader(table(), 2, workers="fork", transform=marked)
    passing = iter(loader)
    pid = int(next(passing)[0]["pid"][0])
    passing.close()  # type: ignore[attr-defined]
    assert gone(pid)
    pid = [int(batch["pid"][0]) for batch, _ in loader][-1]
    assert not gone(pid)
    del loader, passing
    gc.collect()
    assert gone(pid)


def gone(pid: int) -> bool:
    """Tell whether a child has ended and was waited for."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


ORPHAN = """
import os, signal, sys, torch
from tensordict import TensorDict
from tensordict.data import Loader
if __name__ == "__main__":
    passing = iter(Loader(TensorDict({"x": torch.zeros(1000, 50_000)}, [1000]), 2, workers=sys.argv[1]))
    next(passing)
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", METHODS)
def test_the_process_dies_with_its_parent(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ORPHAN)
    # the process inherits the output, so the output ends when both are gone
    done = subprocess.run([sys.executable, str(script), method], stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b"ready\n"


def test_a_daemon_says_to_use_threads() -> None:
    context = torch.multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()
    child = context.Process(target=_in_a_daemon, args=(queue,), daemon=True)
    child.start()
    assert "pass workers=1" in queue.get()
    child.join()


def _in_a_daemon(queue: Any) -> None:
    try:
        next(iter(Loader(TensorDict({"x": torch.zeros(4)}, [4]), 2, workers="fork")))
    except RuntimeError as error:
        queue.put(str(error))


def test_ragged_batches_cross_too() -> None:
    data = LazyStackedTensorDict(*[TensorDict({"x": torch.full((n % 3 + 1,), n)}) for n in range(6)])
    batches = list(Loader(data, 3, workers="fork"))
    assert [type(batch) for batch in batches] == [LazyStackedTensorDict] * 2
    assert [row["x"].tolist() for batch in batches for row in batch] == [[n] * (n % 3 + 1) for n in range(6)]
