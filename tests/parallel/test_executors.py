"""Every pool and executor: the same results, the same errors, and what each does about a worker that is killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib.util
import multiprocessing.pool
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import parallel_work as work
import pytest
import torch

from tensordict import NonTensorStack, TensorClass, TensorDict, WorkerError, lazy_stack
from tensordict.ops.parallel import guests, link

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
FORK = multiprocessing.get_context("fork")


@contextlib.contextmanager
def loky() -> Iterator[Any]:
    executor = pytest.importorskip("loky").ProcessPoolExecutor(2)
    yield executor
    executor.shutdown(kill_workers=True)


@contextlib.contextmanager
def dask() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    where = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(**where) as cluster, distributed.Client(cluster) as client:
        yield client.get_executor()


MAKERS: dict[str, Any] = {
    "multiprocessing": lambda: FORK.Pool(2),
    "processes": lambda: concurrent.futures.ProcessPoolExecutor(2, FORK),
    "threads": lambda: concurrent.futures.ThreadPoolExecutor(2),
    "thread pool": lambda: multiprocessing.pool.ThreadPool(2),
    "loky": loky,
    "dask": dask,
}


@pytest.fixture(scope="module", params=MAKERS)
def pool(request: pytest.FixtureRequest) -> Iterator[Any]:
    with MAKERS[request.param]() as made:
        yield made


def plus(td: Any) -> Any:
    return TensorDict({"x": td["x"] + 1}, batch_size=td.batch_size)


def draw(td: Any) -> Any:
    return torch.rand(len(td))


def fail_at_four(td: Any) -> Any:
    if 4 in td["x"].flatten().tolist():
        raise KeyError("no such row")
    return td


def kill_once(td: Any, mark: str) -> Any:
    if not os.path.exists(mark):
        pathlib.Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return plus(td)


def dawdle(td: Any) -> Any:
    time.sleep(1.0)


def small(path: Any) -> Any:
    return TensorDict({"x": torch.arange(12).view(6, 2)}, [6])


def large(path: Any) -> Any:
    return TensorDict({"x": torch.arange(60_000).view(6, 10_000)}, [6])


def mapped(path: Any) -> Any:
    return large(path).memmap_(path / "data")


def shared(path: Any) -> Any:
    return large(path).share_memory_()


SOURCES = [small, large, mapped, shared]


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_every_pool_gives_the_same_for_every_source(make: Any, pool: Any, tmp_path: pathlib.Path) -> None:
    td = make(tmp_path)
    with work.within(30):
        assert torch.equal(td.map(plus, pool=pool, chunksize=4)["x"], td["x"] + 1)
        rows = list(td.map_iter(plus, pool=pool, chunksize=0))
        assert torch.equal(torch.stack(rows)["x"], td["x"] + 1)
        parts = list(td.map_iter(plus, pool=pool, chunksize=4, shuffle=True, seed=3))
        order = torch.randperm(6, generator=torch.Generator().manual_seed(3))
        assert sorted(len(part) for part in parts) == [2, 4]
        first, second = sorted(parts, key=len, reverse=True)
        assert torch.equal(torch.cat([first, second])["x"], td["x"][order] + 1)


@pytest.mark.parametrize("place", ["memory", "shared", "memmap", "files"])
def test_every_pool_fills_an_out_wherever_it_lies(place: str, pool: Any, tmp_path: pathlib.Path) -> None:
    td, out = large(tmp_path), TensorDict({"x": torch.zeros(6, 10_000, dtype=torch.long)}, [6])
    if place == "shared":
        out.share_memory_()
    elif place != "memory":
        out.memmap_(tmp_path / "out" if place == "files" else None)
    with work.within(30):
        assert td.map(plus, pool=pool, chunksize=4, out=out) is out
    assert torch.equal(out["x"], td["x"] + 1)
    if place == "files":
        assert torch.equal(TensorDict.load_memmap(tmp_path / "out")["x"], td["x"] + 1)


def test_a_seed_gives_every_pool_the_numbers_of_the_calling_process(pool: Any) -> None:
    td = small(None)
    before = torch.get_rng_state()
    alone = td.map(draw, num_workers=0, chunksize=1, seed=7)
    with work.within(30):
        assert torch.equal(td.map(draw, pool=pool, chunksize=1, seed=7), alone)
    assert torch.equal(before, torch.get_rng_state())


def test_an_error_of_the_function_arrives_with_its_type_and_its_chunk(pool: Any) -> None:
    with work.within(30), pytest.raises(KeyError, match="no such row") as caught:
        small(None).map(fail_at_four, pool=pool, chunksize=2)
    told = str(caught.value.__cause__) + "".join(getattr(caught.value, "__notes__", []))
    assert "at chunk 1 (rows 2:4 of dim 0)" in told or sys.version_info < (3, 11)
    assert torch.equal(small(None).map(plus, pool=pool)["x"], small(None)["x"] + 1), "the pool still works"


def test_a_pool_that_gives_no_sign_for_too_long_is_an_error(pool: Any) -> None:
    with work.within(30), pytest.raises(TimeoutError, match=r"the oldest under way is chunk 0 \(rows 0:6"):
        small(None).map(dawdle, pool=pool, chunksize=6, timeout=0.2)


def test_what_standard_processes_cannot_unpickle_is_refused_at_once() -> None:
    for name in ("multiprocessing", "processes"):
        with MAKERS[name]() as made, pytest.raises(pickle.PicklingError, match="top level of a module"):
            small(None).map(lambda td: td, pool=made)
    with pytest.raises(TypeError, match=r"pool must be .* got 3 of type int"):
        small(None).map(plus, pool=3)


def test_by_value_executors_take_lambdas() -> None:
    with loky() as made, work.within(30):
        assert torch.equal(small(None).map(lambda td: td["x"] * 2, pool=made, chunksize=2), small(None)["x"] * 2)


@pytest.mark.parametrize("name", ["multiprocessing", "processes", "loky"])
def test_a_killed_worker_of_a_pool_is_an_error(name: str, tmp_path: pathlib.Path) -> None:
    fn = partial(kill_once, mark=str(tmp_path / "mark"))
    with MAKERS[name]() as made, work.within(30), pytest.raises(WorkerError, match=r"chunk \d \(rows"):
        small(None).map(fn, pool=made, chunksize=1)


def test_a_killed_worker_of_a_pool_that_retires_its_workers_is_an_error(tmp_path: pathlib.Path) -> None:
    td = small(None)
    with FORK.Pool(2, maxtasksperchild=1) as made, work.within(30):
        assert torch.equal(td.map(plus, pool=made, chunksize=1)["x"], td["x"] + 1)
        with pytest.raises(WorkerError, match=r"chunk \d \(rows"):
            td.map(partial(kill_once, mark=str(tmp_path / "mark")), pool=made, chunksize=1)


@contextlib.contextmanager
def seen(monkeypatch: pytest.MonkeyPatch, word: str) -> Iterator[list[Any]]:
    """Collect what `Guests` gives back for a word."""
    given: list[Any] = []
    plain = getattr(guests.Guests, word)

    def note(self: Any, *args: Any) -> Any:
        given.append(plain(self, *args))
        return given[-1]

    with monkeypatch.context() as patch:
        patch.setattr(guests.Guests, word, note)
        yield given


def test_the_source_travels_once_and_short_chunks_together(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    td = TensorDict({"x": torch.arange(60_000).view(6000, 10)}, [6000])
    with work.within(30), seen(monkeypatch, "_load") as loads, seen(monkeypatch, "_open") as opened:
        assert torch.equal(td.map(plus, pool=pool, chunksize=10)["x"], td["x"] + 1)
    assert sum(map(len, opened)) == 600 and len(opened) < 400
    assert all(load.rows is None for load in loads), "rows went with a task"


def test_a_source_without_a_place_travels_with_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    td = TensorDict({"x": torch.arange(60_000).view(6000, 10)}, [6000])
    monkeypatch.setattr(guests, "_free_memory", lambda: 1e6)
    with FORK.Pool(2) as made, work.within(30), seen(monkeypatch, "_load") as loads:
        assert torch.equal(td.map(plus, pool=made, chunksize=10)["x"], td["x"] + 1)
        shuffled = torch.cat(list(td.map_iter(plus, pool=made, chunksize=10, shuffle=True)))
    assert torch.equal(shuffled["x"].sort(0).values, td["x"] + 1)
    assert all(load.rows is not None and len(load.rows) <= 2 * guests.LOAD for load in loads)


def test_a_source_too_large_for_the_workers_of_dask_is_not_put_there() -> None:
    client = types.SimpleNamespace(scatter=lambda parts, **how: parts)
    client.scheduler_info = lambda: {"workers": {"a": {"memory_limit": 0}, "b": {"memory_limit": 4000}}}
    part = torch.zeros(1000, dtype=torch.uint8).numpy()
    assert guests._stored(types.SimpleNamespace(_client=client), [part]) is not None
    assert guests._stored(types.SimpleNamespace(_client=client), [part, part]) is None


def uneven(td: Any, folder: pathlib.Path) -> Any:
    """Be quick, but for every fortieth row, and leave a file for each chunk."""
    (folder / str(int(td["x"][0]))).touch()
    if int(td["x"][0]) % 40 == 39:
        time.sleep(0.02)
    return td["x"].clone()


@pytest.mark.parametrize("name", ["multiprocessing", "processes", "threads"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_chunks_that_travel_together_keep_order_and_the_bound(name: str, prefetch: int, tmp_path: pathlib.Path) -> None:
    td, taken = TensorDict({"x": torch.arange(300)}, [300]), 0
    with MAKERS[name]() as made, work.within(30):
        for part in td.map_iter(partial(uneven, folder=tmp_path), pool=made, chunksize=1, prefetch=prefetch):
            assert int(part) == taken
            taken += 1
            assert len(os.listdir(tmp_path)) <= taken + 2 * prefetch
    assert taken == 300


def test_a_chunk_that_takes_long_does_not_hold_up_those_that_came_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    td = TensorDict({"x": torch.arange(400)}, [400])
    with FORK.Pool(2) as made, work.within(30), seen(monkeypatch, "_open") as opened:
        slow = partial(slow_from, first=200)
        assert torch.equal(td.map(slow, pool=made, chunksize=1, timeout=0.5)["x"], td["x"] + 1)
    assert max(map(len, opened)) > 10, "the short ones travelled together"
    assert all(len(done) == 1 for done in opened if 205 <= done[-1][0] < 220), "the long ones did not"


def slow_from(td: Any, first: int) -> Any:
    if int(td["x"]) >= first and int(td["x"]) < first + 20:
        time.sleep(0.1)
    return plus(td)


def test_an_error_among_chunks_that_travel_together_names_its_own(tmp_path: pathlib.Path) -> None:
    td = TensorDict({"x": torch.arange(400)}, [400])
    with FORK.Pool(2) as made, work.within(30), pytest.raises(KeyError, match="no such row") as caught:
        td.map(fail_late, pool=made, chunksize=1)
    assert "at chunk 333 (rows 333:334 of dim 0)" in str(caught.value.__cause__)


def fail_late(td: Any) -> Any:
    if 333 in td["x"].tolist():
        raise KeyError("no such row")
    return td


def test_a_pool_keeps_neither_memory_nor_descriptors_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "IDLE", 0.1)  # inherited
    td = TensorDict({"x": torch.arange(60_000).view(6000, 10)}, [6000])
    with FORK.Pool(1) as made, work.within(30):
        before = len(os.listdir("/proc/self/fd")), made.apply(held)
        for part in td.map_iter(plus, pool=made, chunksize=10):
            assert len(part) == 10 and made.apply(held)[0] == 1
            break
        while made.apply(held) != before[1]:
            time.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) == before[0]


@pytest.mark.parametrize("name", ["multiprocessing", "processes", "loky", "thread pool"])
def test_what_a_pool_has_not_begun_when_the_loop_is_left_is_never_run(name: str, tmp_path: pathlib.Path) -> None:
    td, fn = TensorDict({"x": torch.arange(2000)}, [2000]), partial(uneven, folder=tmp_path)
    with MAKERS[name]() as made, work.within(30):
        for part in td.map_iter(fn, pool=made, chunksize=1, prefetch=500):
            if int(part) == 300:
                break
        ran = len(os.listdir(tmp_path))
        wait = made.apply if hasattr(made, "apply") else lambda call: made.submit(call).result()
        [wait(held) for _ in range(3)]  # whatever was in the queue has been seen by now
        assert len(os.listdir(tmp_path)) <= ran + 2, "but for the two that were under way"


def held() -> tuple[int, int]:
    """Count the jobs that this worker keeps open, and its descriptors."""
    return len(guests._jobs), len(os.listdir("/proc/self/fd"))


def test_a_descriptor_that_stands_for_something_else_by_now_is_not_opened(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"not ours")
    with open(tmp_path / "file", "rb+") as file:
        place = link.Place.of(file.fileno())
        with place.opened() as descriptor:
            assert os.read(descriptor, 3) == b"not"
        with pytest.raises(FileNotFoundError, match="has closed descriptor"), place._replace(inode=1).opened():
            pass


def of_kind(kind: str, folder: pathlib.Path) -> Any:
    rows = torch.arange(60_000.0).view(60, 1000)
    words = [f"word {row}" for row in range(60)]
    td = TensorDict({"x": rows, "n": {"y": torch.arange(60)}, "w": NonTensorStack(*words)}, [60])
    if kind == "lazy":
        return lazy_stack([row.clone() for row in td.unbind(0)])
    if kind == "tensorclass":
        return Row(x=rows, n=torch.arange(60), batch_size=[60])
    if kind == "shared rows":
        return td.exclude("w").consolidate(layout="rows").share_memory_()
    if kind in ("h5", "zarr"):
        pytest.importorskip("h5py" if kind == "h5" else "zarr")
        getattr(td.exclude("w"), f"to_{kind}")(folder / kind)
        return getattr(TensorDict, f"from_{kind}")(folder / kind, mode="r")
    return {"dense": td, "shared": td.clone().share_memory_(), "mapped": td.memmap(folder / "m")}[kind]


class Row(TensorClass):
    x: torch.Tensor
    n: torch.Tensor


def told(td: Any) -> list[Any]:
    rows = td.to_tensordict()
    return [(type(td).__name__, {key: value.tolist() for key, value in row.items(True, True)}) for row in rows]


KINDS = ["dense", "lazy", "tensorclass", "shared", "shared rows", "mapped", "h5", "zarr"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_goes_to_processes_that_run_already(kind: str, tmp_path: pathlib.Path) -> None:
    source = of_kind(kind, tmp_path)
    here = list(source.map_iter(told, num_workers=0, chunksize=7, seed=0))
    for method in ("fork", "spawn") if kind in ("dense", "shared") else ("fork",):
        with multiprocessing.get_context(method).Pool(2) as made, work.within(60):
            assert list(source.map_iter(told, pool=made, chunksize=7)) == here


def test_seeds_and_errors_of_chunks_that_travel_together_are_their_own(tmp_path: pathlib.Path) -> None:
    td = TensorDict({"x": torch.arange(400)}, [400])
    alone = td.map(draw, num_workers=0, chunksize=1, seed=7)
    for name in ("multiprocessing", "processes", "threads"):
        with MAKERS[name]() as made, work.within(30):
            assert torch.equal(td.map(draw, pool=made, chunksize=1, seed=7), alone)
    words = (
        r"ProcessPoolExecutor lost chunk \d+ \(rows \d+:\d+ of dim 0\) or one of the \d+ after it: BrokenProcessPool"
    )
    with MAKERS["processes"]() as made, work.within(30), pytest.raises(WorkerError, match=words):
        td.map(partial(die_at, row=300, mark=str(tmp_path / "mark")), pool=made, chunksize=1)


def die_at(td: Any, row: int, mark: str) -> Any:
    if row in td["x"].tolist() and not os.path.exists(mark):
        pathlib.Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return plus(td)


def scale(td: Any, by: torch.Tensor, tally: torch.Tensor) -> Any:
    tally += 1
    return td["x"] * by


def test_shared_memory_goes_to_a_pool_as_a_handle_and_is_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    td, out = large(None).share_memory_(), TensorDict({"x": torch.zeros(6, 10_000, dtype=torch.long)}, [6])
    out.share_memory_()
    tally, by = (
        torch.zeros(6, dtype=torch.long).share_memory_(),
        torch.nn.Parameter(torch.ones(())).requires_grad_(False),
    )
    for name in ("multiprocessing", "processes"):
        with MAKERS[name]() as made, work.within(30):
            got = td.map(partial(scale, by=by, tally=tally), pool=made, num_chunks=1)
            assert torch.equal(got, td["x"].float()) and not by.is_shared()
            with seen(monkeypatch, "_open") as opened:
                assert td.map(write_in, pool=made, chunksize=2, out=out) is out
        assert [result for done in opened for _, result in done] == [None] * 3
        assert torch.equal(out["x"], td["x"]) and int(td["x"][0, 0]) == 1
        td["x"].sub_(1)
        out["x"].zero_()
    assert tally.tolist() == [2] * 6


def write_in(td: Any) -> Any:
    td["x"].add_(1)
    return td


@pytest.mark.skipif(not importlib.util.find_spec("distributed"), reason="needs the extra dask")
def test_a_cluster_that_loses_all_its_workers_gets_the_source_again(tmp_path: pathlib.Path) -> None:
    td = large(None)
    with dask() as made, work.within(120):
        client = made._client
        sent: list[Any] = []
        scatter = client.scatter
        client.scatter = lambda *args, **how: sent.append(args) or scatter(*args, **how)
        assert torch.equal(td.map(plus, pool=made, chunksize=1)["x"], td["x"] + 1)
        assert len(sent) == 1
        fn = partial(kill_each_once, folder=tmp_path)
        assert torch.equal(td.map(fn, pool=made, chunksize=1)["x"], td["x"] + 1)
        assert len(os.listdir(tmp_path)) == 2 and len(sent) == 3
        many = TensorDict({"x": torch.arange(600)}, [600])
        fn = partial(die_at, row=300, mark=str(tmp_path / "mark"))
        assert torch.equal(many.map(fn, pool=made, chunksize=1)["x"], many["x"] + 1), "it died with several chunks"
        assert (tmp_path / "mark").exists()
        assert not client.futures


def kill_each_once(td: Any, folder: pathlib.Path) -> Any:
    """End the first two workers, together."""
    if len(os.listdir(folder)) < 2:
        (folder / str(os.getpid())).touch()
        while len(os.listdir(folder)) < 2:
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return plus(td)


def run_example(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


MPI = importlib.util.find_spec("mpi4py") and shutil.which("mpiexec")


@pytest.mark.skipif(not MPI, reason="needs mpi4py and mpiexec")
@pytest.mark.parametrize("how", ["pool", "comm"])
def test_the_processes_of_mpi_are_an_executor(how: str, tmp_path: pathlib.Path) -> None:
    script = [str(pathlib.Path(__file__).with_name("mpi_work.py")), how, str(tmp_path)]
    python = [sys.executable, *(["-m", "mpi4py.futures"] if how == "pool" else [])]
    freely = {name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")}
    freely |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    command = ["mpiexec", "-n", "3", *python, *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | freely)
    assert done.stdout == "right\n", done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("distributed"), reason="needs the extra dask")
def test_the_example_for_dask_is_right_though_a_worker_is_killed() -> None:
    assert "no shared path: right" in run_example("cluster_dask.py", "--kill")


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the extra ray")
@pytest.mark.parametrize("arguments", [(), ("--kill",)])
def test_the_example_for_ray_is_right_though_a_worker_is_killed(arguments: tuple[str, ...]) -> None:
    assert "no shared path: right" in run_example("cluster_ray.py", *arguments)
