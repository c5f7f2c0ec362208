"""map and map_iter on tensordicts of every kind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, WorkerError, lazy_stack

METHODS = ["fork", "spawn", "forkserver"]
multiprocessing.set_forkserver_preload(["torch"])
FORK: dict[str, Any] = {"num_workers": 2, "generator": torch.default_generator, "mp_start_method": "fork"}
HERE: dict[str, Any] = {"num_workers": 0, "generator": torch.default_generator}


class Step(TensorClass):
    x: torch.Tensor


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer, or leaves a worker behind."""

    def ring(signum: int, frame: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("map-worker")]


def dense(path: Path) -> Any:
    return TensorDict({"x": torch.arange(24.0).view(2, 6, 2), "n": {"y": torch.arange(12).view(2, 6)}}, [2, 6])


def lazy(path: Path) -> Any:
    return lazy_stack(list(dense(path).unbind(1)), 1)


def mapped(path: Path) -> Any:
    return dense(path).memmap_(path / "data")


def anonymous(path: Path) -> Any:
    return dense(path).memmap_()


def shared(path: Path) -> Any:
    return dense(path).share_memory_()


def tensorclass(path: Path) -> Any:
    return Step(x=torch.arange(24.0).view(2, 6, 2), batch_size=[2, 6])


def mapped_class(path: Path) -> Any:
    return tensorclass(path).memmap_(path / "class")


def mapped_lazy(path: Path) -> Any:
    return lazy(path).memmap_(path / "lazy")


KINDS = [dense, lazy, mapped, anonymous, shared, tensorclass, mapped_class, mapped_lazy]


def add_one(td: Any) -> Any:
    return td + 1


def only_x(td: Any) -> Any:
    return TensorDict({"x": td.get("x") * 2}, td.batch_size)


def leaf(td: Any) -> torch.Tensor:
    value: torch.Tensor = td.get("x")
    return value


def nothing(td: Any) -> None:
    return None


def not_the_first(td: Any) -> Any:
    return None if int(td["x"].flatten()[0]) == 0 else td


def write_in_place(td: Any) -> None:
    td.set_("x", td.get("x") + 100)


def batch_size(td: Any) -> Any:
    return tuple(td.batch_size)


def add_a_key(td: Any) -> Any:
    td["new"] = td["x"]
    return td


def about(td: Any) -> Any:
    return type(td).__name__, td.is_memmap(), td.is_shared(), td.is_locked, os.getpid()


def total(td: Any) -> torch.Tensor:
    return torch.as_tensor(td.get("x").sum())


def with_total(td: Any) -> Any:
    return td + 1, td["x"].flatten(1).sum(-1)


def fail(td: Any) -> Any:
    raise KeyError("no such thing")


def leave(td: Any) -> Any:
    os._exit(3)


def worker_state(td: Any) -> Any:
    return os.getpid(), torch.initial_seed(), torch.get_num_threads()


def same(one: Any, two: Any) -> bool:
    return bool((one.to_tensordict() == two.to_tensordict()).all())


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_chunks_of_every_kind_come_back_joined(make: Any, tmp_path: Path) -> None:
    td = make(tmp_path)
    with within(30):
        for where in (FORK, HERE):
            got = td.map(add_one, 1, chunksize=4, **where)
            assert same(got, td + 1)
            assert isinstance(got, Step) is isinstance(td, Step)
            parts = list(td.map_iter(add_one, -1, num_chunks=3, **where))
            assert [part.batch_size for part in parts] == [(2, 2)] * 3
            assert same(torch.cat(parts, 1), td + 1)
            rows = list(td.map_iter(add_one, 1, chunksize=0, **where))
            assert [row.batch_size for row in rows] == [(2,)] * 6
            assert same(td.map(add_one, 1, chunksize=0, **where), td + 1)
            assert torch.equal(td.map(leaf, **where), td.get("x"))
            assert td.map(nothing, **where) is None


@pytest.mark.parametrize("method", METHODS)
def test_every_start_method_runs_over_mapped_rows_into_mapped_rows(method: str, tmp_path: Path) -> None:
    td = mapped(tmp_path)
    out = TensorDict({"x": torch.zeros(2, 6, 2)}, [2, 6]).memmap_like(tmp_path / "out")
    with within(60):
        assert td.map(only_x, 1, chunksize=2, out=out, **{**FORK, "mp_start_method": method}) is out
    want = td["x"] * 2
    assert torch.equal(out["x"], want)
    assert torch.equal(TensorDict.load_memmap(tmp_path / "out", mode="r")["x"], want)


def test_workers_see_the_memory_itself_and_not_a_copy(tmp_path: Path) -> None:
    for make in (mapped, anonymous, shared, mapped_class, mapped_lazy):
        td = make(tmp_path)
        with within(30):
            told = list(td.map_iter(about, 1, chunksize=3, **FORK))
            assert td.map(write_in_place, 1, chunksize=3, **FORK) is None
        if make is not mapped_lazy:
            assert all((memmap or share) and locked for _, memmap, share, locked, _ in told)
        assert {name for name, *_ in told} == {type(td).__name__}
        assert os.getpid() not in {pid for *_, pid in told}
        assert torch.equal(td.get("x"), dense(tmp_path)["x"] + 100)


def test_the_chunk_of_a_mapped_tensordict_is_locked(tmp_path: Path) -> None:
    with within(30), pytest.raises(RuntimeError, match="locked"):
        mapped(tmp_path).map(add_a_key, **FORK)


@pytest.mark.parametrize("where", [FORK, HERE], ids=["fork", "here"])
@pytest.mark.parametrize("place", ["memory", "shared", "memmap"])
def test_out_receives_every_kind_of_result(where: dict[str, Any], place: str, tmp_path: Path) -> None:
    td = dense(tmp_path)

    def fresh() -> Any:
        zeros = td.clone().zero_()
        return zeros if place == "memory" else zeros.share_memory_() if place == "shared" else zeros.memmap_()

    with within(30):
        for how in ({"chunksize": 4}, {"chunksize": 0}, {"num_chunks": 2}, {}):
            out = fresh()
            assert td.map(add_one, 1, out=out, **how, **where) is out
            assert same(out, td + 1)
        out = fresh()
        td.map(not_the_first, 0, chunksize=1, out=out, **where)
        assert out["x"][0].sum() == 0
        assert torch.equal(out["x"][1], td["x"][1])
        with pytest.raises(ValueError, match="6"):
            td.map(add_one, 1, out=fresh()[:, :3], **where)


def test_results_that_are_none_are_left_out(tmp_path: Path) -> None:
    td = dense(tmp_path)
    with within(30):
        assert same(td.map(not_the_first, 0, chunksize=1, **FORK), td[1:])
        assert [part is None for part in td.map_iter(not_the_first, chunksize=1, **FORK)] == [True, False]


def test_ragged_stacks_are_cut_between_their_members() -> None:
    td = lazy_stack([TensorDict({"x": torch.full((n + 1,), float(n))}) for n in range(4)])
    with within(30):
        got = td.map(add_one, chunksize=2, **FORK)
    assert isinstance(got, LazyStackedTensorDict)
    assert [row["x"].tolist() for row in got] == [[n + 1.0] * (n + 1) for n in range(4)]


def test_objects_go_along() -> None:
    td = TensorDict({"x": torch.arange(4), "word": ["a", "b", "c", "d"]}, [4])
    with within(30):
        got = td.map(add_one, chunksize=3, **FORK)
    assert list(got["word"]) == ["a", "b", "c", "d"]
    assert got["x"].tolist() == [1, 2, 3, 4]


def test_shuffling_gives_every_row_once(tmp_path: Path) -> None:
    td = TensorDict({"x": torch.arange(12)}, [12]).memmap_()
    torch.manual_seed(0)
    with within(30):
        parts = list(td.map_iter(only_x, shuffle=True, chunksize=5, **FORK))
        with pytest.raises(RuntimeError, match="index_with_generator"):
            td.map_iter(only_x, shuffle=True, index_with_generator=False, **FORK)
        early = list(td.map_iter(only_x, chunksize=5, index_with_generator=False, **FORK))
    values = torch.cat(parts)["x"].tolist()
    assert sorted(values) == list(range(0, 24, 2))
    assert values != sorted(values)
    assert torch.cat(early)["x"].tolist() == list(range(0, 24, 2))
    assert sorted(len(part) for part in parts) == [2, 5, 5]


def test_workers_are_seeded_apart_counted_and_replaced() -> None:
    td = TensorDict({"x": torch.arange(6)}, [6])
    with within(30):
        states = list(td.map_iter(worker_state, chunksize=1, worker_threads=2, max_tasks_per_child=1, **FORK))
    assert len({pid for pid, _, _ in states}) == 6
    assert len({seed for _, seed, _ in states}) == 6
    assert {threads for *_, threads in states} == {2}
    seeds = []
    for _ in range(2):
        options = {**FORK, "generator": torch.Generator().manual_seed(3), "num_workers": 1}
        with within(30):
            seeds.append([seed for _, seed, _ in td.map_iter(worker_state, **options)])
    assert seeds[0] == seeds[1]


def test_without_a_generator_a_warning_points_at_the_caller() -> None:
    td = TensorDict({"x": torch.arange(2)}, [2])
    with within(30):
        with pytest.warns(FutureWarning, match="generator") as caught:
            td.map(add_one, num_workers=1, mp_start_method="fork")
        with pytest.warns(FutureWarning, match="generator"):
            list(td.map_iter(add_one, num_workers=1, mp_start_method="fork"))
    assert caught[0].filename == __file__


def test_a_pool_of_the_user_is_used_and_stays_open() -> None:
    td = TensorDict({"x": torch.arange(6)}, [6]).share_memory_()
    with within(30), mp.get_context("fork").Pool(2) as pool:
        for _ in range(2):
            assert td.map(add_one, pool=pool)["x"].tolist() == [1, 2, 3, 4, 5, 6]
            parts = list(td.map_iter(add_one, pool=pool, chunksize=2))
            assert [part["x"].tolist() for part in parts] == [[1, 2], [3, 4], [5, 6]]
        out = td.clone().zero_()
        assert td.map(add_one, pool=pool, out=out, chunksize=4) is out
        assert out["x"].tolist() == [1, 2, 3, 4, 5, 6]


def test_a_progress_bar_is_shown_where_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    td = TensorDict({"x": torch.arange(4)}, [4])
    with within(30):
        td.map(add_one, chunksize=1, pbar=True, **FORK)
        assert "4/4" in capfd.readouterr().err
        list(td.map_iter(add_one, chunksize=1, **FORK))
        assert capfd.readouterr().err == ""


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_arrives_with_its_type_and_a_dead_worker_is_an_error(method: str) -> None:
    td = TensorDict({"x": torch.arange(4)}, [4])
    options = {**FORK, "mp_start_method": method, "num_workers": 1}
    with within(60):
        with pytest.raises(KeyError, match="no such thing"):
            td.map(fail, **options)
        began = time.perf_counter()
        with pytest.raises(WorkerError, match="exit code 3"):
            list(td.map_iter(leave, chunksize=1, **options))
    assert time.perf_counter() - began < 30


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"chunksize": 2, "num_chunks": 2}, ValueError, "both"),
        ({"chunksize": -1}, ValueError, "chunksize"),
        ({"num_chunks": 0}, ValueError, "num_chunks"),
        ({"dim": 1}, IndexError, "dim"),
        ({"dim": -2}, IndexError, "dim"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"max_tasks_per_child": 0}, ValueError, "max_tasks_per_child"),
        ({"worker_threads": 0}, ValueError, "worker_threads"),
        ({"mp_start_method": "jump"}, ValueError, "jump"),
    ],
)
def test_bad_arguments_are_refused_at_once(options: Any, error: type[Exception], words: str) -> None:
    td = TensorDict({"x": torch.zeros(4, 3)}, [4])
    for word in (td.map, td.map_iter):
        with pytest.raises(error, match=words):
            word(add_one, **{**FORK, **options})


def test_a_lambda_cannot_be_sent_to_a_spawned_worker() -> None:
    td = TensorDict({"x": torch.zeros(4)}, [4])
    with within(30), pytest.raises(Exception, match="lambda"):
        td.map(lambda rows: rows, **{**FORK, "mp_start_method": "spawn"})


def test_an_iterator_that_is_dropped_ends_its_workers() -> None:
    td = TensorDict({"x": torch.arange(100)}, [100])
    with within(30):
        for part in td.map_iter(add_one, chunksize=1, **FORK):
            assert part["x"].tolist() == [1]
            break
        parts = td.map_iter(batch_size, chunksize=30, **FORK)
        assert list(parts) == [(30,), (30,), (30,), (10,)]


def test_tuples_are_joined_place_by_place_and_numbers_only_row_by_row(tmp_path: Path) -> None:
    td = dense(tmp_path)
    with within(30):
        more, sums = td.map(with_total, 0, chunksize=1, **FORK)
        assert same(more, td + 1)
        assert torch.equal(sums, td["x"].flatten(1).sum(-1))
        assert torch.equal(td.map(total, 0, chunksize=0, **FORK), td["x"].flatten(1).sum(-1))
        with pytest.raises(ValueError, match="chunksize=0"):
            td.map(total, 0, chunksize=1, **FORK)
        with pytest.raises(IndexError, match="no dim"):
            TensorDict({"x": 1}).map(total, **FORK)
        assert td[:0].map(add_one, **FORK).batch_size == (0, 6)
        assert list(td[:0].map_iter(add_one, **FORK)) == []
