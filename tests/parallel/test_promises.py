"""What the parallel map promises beyond joining: retries, seeds, bounds, limits, kinds, and bars that count right."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import parallel_work as work
import pytest
import torch

from tensordict import LazyStackedTensorDict, NonTensorData, TensorClass, TensorDict, WorkerError, lazy_stack
from tensordict.ops.parallel import iter_map, link, run_map
from tensordict.ops.parallel.cpus import usable_cpus

FORK: dict[str, Any] = {"num_workers": 2, "generator": torch.default_generator, "mp_start_method": "fork"}
HERE: dict[str, Any] = {"num_workers": 0}
ROWS = torch.arange(8)


def once(rows: torch.Tensor, mark: Path, end: str, at: int = 4) -> torch.Tensor:
    """Double the rows; the first time that row *at* comes, die or hang."""
    path = mark / f"{at}"
    if at in rows.tolist() and not path.exists():
        path.touch()
        if end == "hang":
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL) if end == "kill" else os._exit(3)
    return rows * 2


def always(rows: torch.Tensor) -> torch.Tensor:
    os._exit(3)


def numbers(rows: torch.Tensor) -> torch.Tensor:
    drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
    return torch.tensor([drawn] * len(rows), dtype=torch.float64)


def numbers_once(rows: torch.Tensor, mark: Path) -> torch.Tensor:
    made = numbers(rows)
    once(rows, mark, "kill")
    return made


def stamp(rows: torch.Tensor, folder: Path) -> int:
    (folder / f"{int(rows[0])}").touch()
    return os.getpid()


# ---- lost chunks


@pytest.mark.parametrize("end", ["kill", "exit", "hang"])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_lost_chunk_is_run_again(end: str, method: str, tmp_path: Path) -> None:
    where = {**FORK, "mp_start_method": method, "retries": 1, "timeout": 0.5 if end == "hang" else None}
    out = torch.zeros(8, dtype=torch.long).share_memory_()
    with work.within(30):
        for name in ("map", "iter", "out"):
            (tmp_path / name).mkdir()
            fn = partial(once, mark=tmp_path / name, end=end)
            if name == "map":
                assert torch.equal(run_map(ROWS, fn, chunksize=1, **where), ROWS * 2)
            elif name == "iter":
                assert torch.equal(torch.cat(list(iter_map(ROWS, fn, chunksize=3, **where))), ROWS * 2)
            else:
                assert torch.equal(run_map(ROWS, fn, chunksize=2, out=out, **where), ROWS * 2)


def test_a_chunk_is_not_run_again_more_often_than_allowed(tmp_path: Path) -> None:
    with work.within(30):
        with pytest.raises(WorkerError, match=r"exit code 3 at chunk \d"):
            run_map(ROWS, always, chunksize=1, retries=3, **FORK)
        with pytest.raises(KeyError, match="no such row"):
            run_map(ROWS, work.fail, retries=100, **FORK)
    for bad, error in [(-1, ValueError), (1.5, TypeError)]:
        with pytest.raises(error, match="retries"):
            run_map(ROWS, work.same, retries=bad, **HERE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, got 0"):
        run_map(ROWS, work.same, timeout=0, **HERE)


def test_short_chunks_do_not_run_out_of_time_together() -> None:
    with work.within(30):
        got = run_map(torch.arange(300), work.double, chunksize=1, timeout=1.0, **FORK)
    assert torch.equal(got, torch.arange(300) * 2)


# ---- seeds


def test_a_seed_gives_the_same_numbers_everywhere(tmp_path: Path) -> None:
    alone = run_map(ROWS, numbers, chunksize=2, seed=11, **HERE)
    assert len(alone.unique(dim=0)) == 4 and len(alone[0].unique()) == 3
    assert not torch.equal(alone, run_map(ROWS, numbers, chunksize=2, seed=12, **HERE))
    with work.within(60):
        for workers in (1, 2, 3):
            for method in ("fork", "forkserver") if workers > 1 else ("spawn",):
                how: Any = {"num_workers": workers, "mp_start_method": method, "chunksize": 2, "seed": 11}
                assert torch.equal(run_map(ROWS, numbers, max_tasks_per_child=2, **how), alone)
        mark = partial(numbers_once, mark=tmp_path)
        again = iter_map(ROWS, mark, 0, 2, chunksize=2, seed=11, retries=1, mp_start_method="fork")
        assert torch.equal(torch.cat(list(again)), alone)
    assert (tmp_path / "4").exists()


def test_a_seed_leaves_the_callers_generators_alone_and_warns_of_nothing() -> None:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = torch.rand(()), random.random(), np.random.rand()
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    run_map(ROWS, numbers, num_workers=0, seed=5)
    list(iter_map(ROWS, numbers, num_workers=0, seed=5, shuffle=True, chunksize=2))
    assert (torch.rand(()), random.random(), np.random.rand()) == expected


# ---- bounds


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_no_more_than_prefetch_chunks_a_worker_run_ahead(prefetch: int, tmp_path: Path) -> None:
    with work.within(30):
        results = iter_map(torch.arange(100), partial(stamp, folder=tmp_path), chunksize=1, prefetch=prefetch, **FORK)
        for taken in range(1, 30):
            next(results)
            if taken % 10 == 0:
                time.sleep(0.05)  # what may run ahead does
                assert len(os.listdir(tmp_path)) <= taken + 2 * prefetch
        results.close()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="prefetch must be at least 1, got 0"):
        iter_map(ROWS, work.same, prefetch=0, **HERE)


def blow_up(rows: torch.Tensor) -> torch.Tensor:
    return torch.ones(1 << 20)


def test_memory_does_not_grow_with_the_number_of_results() -> None:
    def held() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with work.within(60):
        results = iter_map(torch.arange(120), blow_up, chunksize=1, **FORK)
        for _ in range(20):
            next(results)
        before = held()
        for _ in range(100):
            next(results)
        grown = held() - before
        results.close()  # type: ignore[attr-defined]
    assert grown < 40 << 20, "100 results of 4 MB went by"


def test_leaving_early_ends_workers_that_are_at_work() -> None:
    began = time.monotonic()
    with work.within(20):
        for result in iter_map(torch.arange(4), partial(slow_after, first=0), chunksize=1, **FORK):
            assert result == 0
            break
        assert not [p for p in multiprocessing.active_children() if p.name.startswith("map-worker")]
    assert time.monotonic() - began < 5


def slow_after(rows: torch.Tensor, first: int) -> int:
    if int(rows[0]) > first:
        time.sleep(60)
    return int(rows[0])


ORPHANS = """
import os, signal, sys, time, torch
from tensordict.ops.parallel import iter_map

def work(rows):
    if int(rows[0]):
        while True:
            sum(range(1000)) if {busy} else time.sleep(60)
    return os.getpid()

if __name__ == "__main__":
    how = {{"num_workers": 2, "generator": torch.default_generator, "mp_start_method": {method!r}}}
    next(iter_map(torch.arange(9), work, chunksize=1, **how))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("method", "busy"), [("fork", True), ("fork", False), ("forkserver", False)])
def test_workers_in_the_middle_of_a_chunk_die_with_a_killed_parent(method: str, busy: bool, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ORPHANS.format(method=method, busy=busy))
    # the workers hold the program's output open, so the run returns when the last of them has gone
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL


# ---- large results


@pytest.mark.parametrize("size", [10, 100_000, 3_000_000])
@pytest.mark.parametrize("block", [1 << 20, 1 << 40])
def test_results_of_any_size_arrive_whole_and_writable(size: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BLOCK", block)  # inherited: results above it come in one block, others by the pipe
    before = len(os.listdir("/proc/self/fd"))
    with work.within(30):
        got = list(iter_map(torch.arange(3), partial(long, size=size), chunksize=1, **FORK))
    for number, (first, second) in enumerate(got):
        assert torch.equal(first, torch.full((size,), float(number)))
        assert torch.equal(second["n"]["y"], torch.arange(size))
        first.add_(1)
    assert len(os.listdir("/proc/self/fd")) == before


def long(rows: torch.Tensor, size: int) -> Any:
    return torch.full((size,), float(rows[0])), TensorDict({"n": {"y": torch.arange(size)}}, [size])


# ---- out


@pytest.mark.parametrize("place", ["memory", "shared"])
@pytest.mark.parametrize(
    ("leaves", "error", "words"),
    [
        ({}, KeyError, "it has the key 'x', which out has not; there are"),
        ({"z": torch.zeros(8)}, KeyError, "it has the key 'x', which out has not"),
        ({"x": torch.zeros(8, 2)}, ValueError, r"at key 'x', expected shape \[2, 2\], got \[2\]"),
    ],
)
def test_a_result_that_does_not_fit_out_is_an_error_and_changes_nothing(
    place: str, leaves: dict[str, torch.Tensor], error: type[Exception], words: str
) -> None:
    out, td = TensorDict(leaves, [8]), TensorDict({"x": torch.ones(8)}, [8])
    if place == "shared" and leaves:
        out.share_memory_()
    with work.within(20), pytest.raises(error, match=rf"result for chunk \d \(rows .* to out: {words}"):
        td.map(work.double, chunksize=2, out=out, **FORK)
    assert set(out.keys()) == set(leaves) and not any(value.any() for value in out.values())
    with pytest.raises(ValueError, match="out must have 8 rows along dim 0"):
        td.map(always, chunksize=2, out=out[:4], **FORK)
    with pytest.raises(TypeError, match="expected a Tensor, got a TensorDict"):
        td.map(work.double, chunksize=2, out=torch.zeros(8), **HERE)


def touch_then(rows: Any, folder: Path, at: int = -1) -> Any:
    """Leave a file; give what fits, and from one row on what does not."""
    first = int(rows["x"].flatten()[0])
    (folder / str(first)).touch()
    return TensorDict({"x" if first < at or at < 0 else "y": rows["x"] + 1}, rows.batch_size)


def outs(folder: Path) -> dict[str, tuple[Any, type[Exception], str]]:
    zeros = TensorDict({"x": torch.zeros(8, dtype=torch.long)}, [8])
    zeros.memmap(folder / "read")
    return {
        "dict": ({"x": torch.zeros(8)}, TypeError, "out must be a tensordict or a tensor, got a dict"),
        "rows": (zeros[:4], ValueError, r"out must have 8 rows along dim 0, got shape \[4\]"),
        "no rows": (zeros[0], ValueError, r"out must have 8 rows along dim 0, got shape \[\]"),
        "read": (TensorDict.load_memmap(folder / "read", mode="r"), PermissionError, "open it with mode='r\\+'"),
        "expanded": (torch.zeros(1).expand(8), RuntimeError, "expanded or requires gradients"),
        "gradients": (torch.zeros(8, requires_grad=True), RuntimeError, "expanded or requires gradients"),
    }


@pytest.mark.parametrize("name", ["dict", "rows", "no rows", "read", "expanded", "gradients"])
@pytest.mark.parametrize("where", [FORK, HERE], ids=["fork", "here"])
def test_an_out_that_cannot_take_rows_is_an_error_before_the_first_chunk(
    name: str, where: dict[str, Any], tmp_path: Path
) -> None:
    out, error, words = outs(tmp_path)[name]
    (tmp_path / "ran").mkdir()
    with work.within(20), pytest.raises(error, match=words):
        run_map(TensorDict({"x": ROWS}, [8]), partial(touch_then, folder=tmp_path / "ran"), out=out, **where)
    assert not os.listdir(tmp_path / "ran")


@pytest.mark.parametrize("pool", [False, True], ids=["ours", "pool"])
@pytest.mark.parametrize("place", ["memory", "shared", "files"])
def test_nothing_is_begun_after_the_first_result_that_does_not_fit(pool: bool, place: str, tmp_path: Path) -> None:
    td, out = TensorDict({"x": torch.arange(300)}, [300]), TensorDict({"x": torch.zeros(300, dtype=torch.long)}, [300])
    if place == "shared":
        out.share_memory_()
    elif place == "files":
        out.memmap_(tmp_path / "out")
    words = r"result for chunk 200 \(rows 200:201 .* to out: it has the key 'y'"
    (tmp_path / "ran").mkdir()
    fn = partial(touch_then, folder=tmp_path / "ran", at=200)
    with multiprocessing.get_context("fork").Pool(1) as made, work.within(30):
        how: dict[str, Any] = {"pool": made} if pool else {**FORK, "num_workers": 1}
        with pytest.raises(KeyError, match=words):
            td.map(fn, chunksize=1, out=out, **how)
    ran = len(os.listdir(tmp_path / "ran"))
    assert 201 <= ran <= (201 if place != "memory" and not pool else 240), "one more at most for each that travelled"
    assert out["x"].tolist()[200:] == [0] * 100 and set(out.keys()) == {"x"}


# ---- kinds


class Point(TensorClass):
    x: torch.Tensor


def ragged(td: Any) -> Any:
    return lazy_stack([TensorDict({"x": torch.full((int(n) + 1,), float(n))}) for n in td["x"]])


def points(td: Any) -> Any:
    return Point(x=td["x"], batch_size=td.batch_size)


def words(td: Any) -> Any:
    return TensorDict({"x": td["x"], "w": NonTensorData("word", batch_size=td.batch_size)}, td.batch_size)


@pytest.mark.parametrize("where", [FORK, HERE], ids=["fork", "here"])
def test_functions_return_every_kind(where: dict[str, Any]) -> None:
    td = TensorDict({"x": torch.arange(5)}, [5])
    with work.within(30):
        stack = td.map(ragged, chunksize=2, **{**where, "generator": torch.default_generator})
        made = td.map(points, chunksize=2, **where)
        texts = td.map(words, chunksize=2, **where)
        both = td.map(lambda part: (points(part), part["x"]), chunksize=2, **where)
    assert isinstance(stack, LazyStackedTensorDict)
    assert [len(row["x"]) for row in stack] == [1, 2, 3, 4, 5]
    assert isinstance(made, Point) and made.x.tolist() == [0, 1, 2, 3, 4]
    assert texts[3]["w"] == "word"
    assert isinstance(both[0], Point) and both[1].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("store", ["h5", "zarr"])
def test_stored_rows_are_read_by_the_workers(store: str, method: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py" if store == "h5" else "zarr")
    td = TensorDict({"x": torch.arange(20.0).view(10, 2), "n": {"y": torch.arange(10)}}, [10])
    if store == "h5":
        td.to_h5(tmp_path / "data.h5")
        source: Any = TensorDict.from_h5(tmp_path / "data.h5", mode="r")
    else:
        td.to_zarr(tmp_path / "data.zarr")
        source = TensorDict.from_zarr(tmp_path / "data.zarr", mode="r")
    where = {**FORK, "mp_start_method": method}
    with work.within(60):
        assert (source.map(loaded, chunksize=3, **where) == td + 1).all()
        parts = list(source.map_iter(loaded, chunksize=4, shuffle=True, **where))
    assert sorted(torch.cat(parts)["n", "y"].tolist()) == list(range(1, 11))


def loaded(td: Any) -> Any:
    return td.to_tensordict() + 1


# ---- bars, processors, replaced workers


def test_the_bar_counts_right_for_shuffled_and_replaced_workers(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    how: dict[str, Any] = {"chunksize": 3, "pbar": True, "max_tasks_per_child": 1}
    with work.within(30):
        list(iter_map(torch.arange(20), work.same, shuffle=True, **how, **FORK))
        assert "7/7" in capfd.readouterr().err
        results = iter_map(torch.arange(20), work.same, **how, **FORK)
        next(results), next(results)
        results.close()  # type: ignore[attr-defined]
        told = capfd.readouterr().err
    assert "2/7" in told and "7/7" not in told


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_workers_are_replaced_without_end(method: str) -> None:
    with work.within(60):
        where = {**FORK, "mp_start_method": method}
        pids = list(iter_map(torch.arange(12), partial(slow_after, first=99), chunksize=1, **where))
        assert pids == list(range(12))
        told = list(iter_map(torch.arange(12), work.state, chunksize=1, max_tasks_per_child=2, **where))
    assert max(sum(pid == other for other, *_ in told) for pid, *_ in told) <= 2


@contextlib.contextmanager
def groups(folder: Path, files: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    yield str(folder / "cgroup"), str(folder / "own")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"own": "0::/a/b\n", "cgroup/a/cpu.max": "100000 100000", "cgroup/a/b/cpu.max": "max 100000"}, 1),
        ({"own": "0::/\n", "cgroup/cpu.max": "50000 100000"}, 1),
        ({"own": "0::/\n", "cgroup/cpu.max": "max 100000"}, None),
        ({"own": "4:cpu,cpuacct:/x\n", "cgroup/cpu/x/cpu.cfs_quota_us": "1", "cgroup/cpu/x/cpu.cfs_period_us": "9"}, 1),
        ({"own": "4:cpu:/x\n", "cgroup/cpu/x/cpu.cfs_quota_us": "-1", "cgroup/cpu/x/cpu.cfs_period_us": "9"}, None),
        ({"own": "0::/a\n", "cgroup/a/cpu.max": "900000 100000"}, None),
        ({}, None),
    ],
)
def test_quotas_of_control_groups_count(files: dict[str, str], quota: int | None, tmp_path: Path) -> None:
    with groups(tmp_path, files) as (cgroups, own):
        assert usable_cpus(cgroups, own) == (quota or len(os.sched_getaffinity(0)))
