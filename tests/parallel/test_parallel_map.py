"""map and map_iter: what comes back, where it is written, who is seeded how."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import warnings
from functools import partial
from typing import Any, NamedTuple

import parallel_work as work
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict.ops.parallel import iter_map, run_map
from tensordict.ops.parallel.seeds import draw_seed
from tensordict.ops.parallel.wire import dumps, loads

FORK: dict[str, Any] = {"num_workers": 2, "generator": torch.default_generator, "mp_start_method": "fork"}
HERE: dict[str, Any] = {"num_workers": 0}
GRID = torch.arange(24).view(2, 6, 2)


class Both(NamedTuple):
    plus: torch.Tensor
    minus: torch.Tensor


def both(rows: torch.Tensor) -> Both:
    return Both(rows, -rows)


@pytest.mark.parametrize("where", [FORK, HERE], ids=["fork", "here"])
@pytest.mark.parametrize("how", [{}, {"chunksize": 0}, {"chunksize": 4}, {"num_chunks": 3}, {"num_chunks": 50}])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_map_joins_what_it_cut(where: dict[str, Any], how: dict[str, int], dim: int) -> None:
    with work.within(20):
        assert torch.equal(run_map(GRID, work.double, dim, **how, **where), GRID * 2)
        got = list(iter_map(GRID, work.same, dim, **how, **where))
    join = torch.stack if how == {"chunksize": 0} else torch.cat
    assert torch.equal(join(got, dim), GRID)


@pytest.mark.parametrize("method", work.METHODS)
def test_every_start_method_gives_the_same_in_order_and_into_out(method: str) -> None:
    where = {**FORK, "mp_start_method": method}
    out = torch.zeros_like(GRID).share_memory_()
    with work.within(60):
        got = list(iter_map(GRID, work.double, 1, chunksize=1, **where))
        assert run_map(GRID, work.double, 1, chunksize=2, out=out, pbar=True, **where) is out
    assert torch.equal(torch.cat(got, 1), GRID * 2)
    assert torch.equal(out, GRID * 2)


@given(st.integers(0, 9), st.integers(0, 4), st.booleans())
@settings(deadline=None)
def test_iteration_covers_every_row_once(size: int, chunksize: int, shuffle: bool) -> None:
    rows = torch.arange(size)
    got = list(iter_map(rows, work.same, chunksize=chunksize, shuffle=shuffle, **HERE))
    assert len(got) == (size if not chunksize else -(-size // chunksize))
    values = list(itertools.chain.from_iterable(part.reshape(-1).tolist() for part in got))
    assert (sorted(values) if shuffle else values) == rows.tolist()


def test_shuffle_permutes_along_dim_and_needs_the_indexing() -> None:
    torch.manual_seed(0)
    with work.within(20):
        parts = list(iter_map(GRID, work.same, 1, shuffle=True, chunksize=4, **FORK))
    order = torch.cat(parts, 1)[0, :, 0] // 2
    assert order.tolist() != list(range(6))
    assert torch.equal(torch.cat(parts, 1), GRID[:, order])
    assert sorted(order.tolist()) == list(range(6))
    with pytest.raises(RuntimeError, match="index_with_generator=True"):
        iter_map(GRID, work.same, 1, shuffle=True, index_with_generator=False, **FORK)


def test_results_may_be_none_or_tuples_and_nothing_else() -> None:
    rows = torch.arange(8)
    assert run_map(rows, work.nothing, chunksize=2, **HERE) is None
    assert run_map(rows, work.some, chunksize=2, **HERE).tolist() == [2, 3, 6, 7]
    plus, minus = run_map(rows, work.pair, chunksize=3, **HERE)
    assert torch.equal(plus, rows) and torch.equal(minus, -rows)
    named = run_map(rows, both, chunksize=3, **HERE)
    assert isinstance(named, Both) and torch.equal(named.minus, -rows)
    with pytest.raises(TypeError, match="chunk 0 gave a float"):
        run_map(rows, work.number, **HERE)
    assert list(iter_map(rows, work.number, num_chunks=2, **HERE)) == [1.5, 1.5]
    assert list(iter_map(rows, work.nothing, num_chunks=2, **HERE)) == [None, None]


def test_an_empty_source_is_one_empty_chunk_for_map_and_none_for_iter() -> None:
    assert run_map(GRID[:, :0], work.double, 1, chunksize=2, **HERE).shape == (2, 0, 2)
    assert run_map(GRID[:, :0], work.double, 1, chunksize=0, **HERE) is None
    with work.within(20):
        assert list(iter_map(GRID[:, :0], work.double, 1, **FORK)) == []


@pytest.mark.parametrize("shared", [True, False])
def test_out_takes_the_rows_in_place(shared: bool) -> None:
    out = torch.full((2, 6, 2), -1)
    if shared:
        out.share_memory_()
    with work.within(20):
        assert run_map(GRID, work.some, 1, out=out, chunksize=2, **FORK) is out
        assert out[0, :, 0].tolist() == [-1, -1, -1, -1, -1, -1]
        assert run_map(GRID, work.double, 1, out=out, chunksize=0, **FORK) is out
        assert torch.equal(out, GRID * 2)
        with pytest.raises(ValueError, match=r"chunk \d \(rows .* expected 3 rows along dim 1, got shape \[2, 1, 2\]"):
            run_map(GRID, work.too_few, 1, out=out, chunksize=3, **FORK)
    with pytest.raises(ValueError, match=r"out must have 6 rows along dim 1, got shape \[6, 2, 2\]"):
        run_map(GRID, work.double, 1, out=torch.zeros(6, 2, 2), **FORK)


def test_workers_are_seeded_from_the_generator_and_replaced_with_fresh_numbers() -> None:
    def states(**how: Any) -> list[Any]:
        generator = torch.Generator().manual_seed(5)
        got = list(iter_map(torch.arange(4), work.state, chunksize=1, **{**FORK, "generator": generator, **how}))
        assert draw_seed(generator) == second
        return got

    fresh = torch.Generator().manual_seed(5)
    base, second = draw_seed(fresh), draw_seed(fresh)
    before = torch.random.get_rng_state()
    with work.within(20):
        one_each = states(max_tasks_per_child=1)
        again = states(max_tasks_per_child=1)
        two_workers = states(worker_threads=2)
    pids, seeds, threads, *draws = zip(*one_each, strict=True)
    assert sorted(seeds) == [base, base + 1, base + 2, base + 3]
    assert len(set(pids)) == 4 and set(threads) == {1}
    assert all(len(set(column)) == 4 for column in draws)
    assert sorted(state[1:] for state in again) == sorted(state[1:] for state in one_each)
    assert {state[1] for state in two_workers} <= {base, base + 1}
    assert {state[2] for state in two_workers} == {2}
    assert torch.equal(before, torch.random.get_rng_state())


def test_without_a_generator_the_seed_is_fixed_and_the_caller_is_told() -> None:
    seeds = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as told, work.within(20):
            warnings.simplefilter("always")
            results = iter_map(torch.arange(1), work.state, num_workers=1, mp_start_method="fork")
            assert [(w.category, w.filename) for w in told] == [(FutureWarning, __file__)]
            seeds.append(next(iter(results))[1])
            del results
    assert seeds == [draw_seed(torch.Generator())] * 2


def test_the_iterator_runs_a_bounded_number_of_chunks_and_stops_when_dropped() -> None:
    counter = torch.zeros(500, dtype=torch.int64).share_memory_()
    with work.within(20):
        results = iter_map(torch.arange(500), partial(work.count, counter=counter), chunksize=1, **FORK)
        assert not multiprocessing.active_children()
        assert [int(part) for part in itertools.islice(results, 10)] == list(range(10))
        assert counter[10 + 2 * 2 :].sum() == 0
        del results
    assert counter.max() == 1


def test_a_pool_of_the_user_is_used_as_it_is() -> None:
    rows = torch.arange(8)
    with multiprocessing.get_context("fork").Pool(2) as pool, work.within(20):
        pids = {process.pid for process in multiprocessing.active_children()}
        assert torch.equal(run_map(rows, work.double, pool=pool), rows * 2)
        assert len(list(iter_map(rows, work.same, pool=pool))) == 2
        assert [part.tolist() for part in iter_map(rows, work.same, chunksize=3, pool=pool)][2] == [6, 7]
        shuffled = list(iter_map(rows, work.same, chunksize=3, shuffle=True, pool=pool))
        assert sorted(torch.cat(shuffled).tolist()) == rows.tolist()
        out = torch.zeros_like(rows)
        assert run_map(rows, work.double, pool=pool, out=out, num_workers=-7) is out
        assert torch.equal(out, rows * 2)
        assert {state[0] for state in iter_map(rows, work.state, chunksize=1, pool=pool)} <= pids
        with pytest.raises(KeyError, match="no such row") as caught:
            run_map(rows, work.fail, pool=pool)
        assert "chunk" in str(caught.value.__cause__)
        with pytest.raises(Exception, match="pickle"):
            run_map(rows, lambda part: part, pool=pool)


def test_arguments_are_checked_before_anything_starts() -> None:
    for how, words in [
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"max_tasks_per_child": 0}, "max_tasks_per_child must be at least 1"),
        ({"worker_threads": 0}, "worker_threads must be at least 1"),
        ({"mp_start_method": "zork"}, "zork"),
        ({"chunksize": 1, "num_chunks": 1}, "not both"),
    ]:
        for call in (run_map, iter_map):
            with pytest.raises(ValueError, match=words):
                call(GRID, work.same, **{**FORK, **how})


def test_the_default_number_of_workers_is_the_number_of_usable_cpus() -> None:
    wide = torch.zeros(1000)
    with work.within(20):
        parts = list(iter_map(wide, work.same, generator=torch.default_generator, mp_start_method="fork"))
    assert len(parts) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int8])
def test_tensors_travel_whole_by_value_and_alone(dtype: torch.dtype) -> None:
    big = (torch.arange(100_000) % 2).to(dtype)
    for view in (big[3], big[:4], big[::50_000], big.view(10, -1).t()[:2], big[:0], big[:2].conj(), big[:4].view(2, 2)):
        data = dumps({"view": view, "again": view})
        assert len(data) < 1000
        back = loads(data)
        assert back["again"] is back["view"]
        assert back["view"].dtype == dtype and torch.equal(back["view"], view)
        back["view"].zero_()
    assert loads(dumps(torch.ones(2, requires_grad=True))).requires_grad


def test_special_tensors_travel_by_torchs_own_way() -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(loads(dumps(sparse)).to_dense(), torch.eye(3))
    assert type(loads(dumps(torch.nn.Parameter(torch.ones(2))))) is torch.nn.Parameter
