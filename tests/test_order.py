"""The order of an epoch: a bijection, the same for ever, and mixed well enough."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict.data import Blocks, Permutation
from tensordict.data import order as orders
from tensordict.data.order import BlockOrder, mixed, order_of
from tensordict.data.schedule import Schedule


@given(st.integers(0, 3000), st.integers(-(2**70), 2**70))
def test_a_permutation_is_a_bijection(size: int, seed: int) -> None:
    found = Permutation(size, seed)(np.arange(size))
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [*range(40), 2**16, 2**16 + 1, 46_340**2 // 10_000, 99_991])
def test_every_size_is_a_bijection(size: int) -> None:
    assert len(np.unique(Permutation(size, 1)(np.arange(size)))) == size


@given(st.integers(1, 2**62), st.integers(0, 5))
def test_huge_permutations_stay_in_their_range_and_repeat_nothing(size: int, seed: int) -> None:
    some = np.unique(np.linspace(0, size - 1, 50, dtype=np.float64).astype(np.int64).clip(0, size - 1))
    found = Permutation(size, seed)(some)
    assert ((found >= 0) & (found < size)).all()
    assert len(np.unique(found)) == len(some)


def test_the_numbers_are_the_same_for_ever() -> None:
    assert Permutation(10, 0)(np.arange(10)).tolist() == PINNED[10]
    assert Permutation(1_000_000_007, 42)(np.arange(5)).tolist() == PINNED[1_000_000_007]
    assert [mixed(0), mixed(1, 2, 3)] == PINNED["mixed"]
    assert BlockOrder(10, Blocks(3, 1), 5).ranges(0) == PINNED["ranges"]


PINNED: dict[Any, Any] = {
    10: [9, 1, 5, 0, 2, 7, 3, 6, 4, 8],
    1000000007: [837255559, 624763268, 506451889, 147186921, 194458396],
    "mixed": [16294208416658607535, 7702586659592502839],
    "ranges": [(3, 6)],
}


def test_a_billion_rows_take_no_memory() -> None:
    tracemalloc.start()
    order = order_of(10**9, True, seed=0, epoch=1)
    found = order(np.arange(256))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(order, Permutation)
    assert len(np.unique(found)) == 256
    assert peak < 1_000_000


def test_up_to_some_millions_of_rows_torch_draws_the_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    want = torch.randperm(100, generator=torch.Generator().manual_seed(mixed(3, 4) >> 1))
    assert order_of(100, True, 3, 4)(np.arange(100)).tolist() == want.tolist()
    monkeypatch.setattr(orders, "LISTED", 99)
    assert isinstance(order_of(100, True, 3, 4), Permutation)
    state = torch.get_rng_state()
    order_of(10, True, 0, 0)
    assert torch.equal(torch.get_rng_state(), state)


def test_places_and_neighbours_are_spread_evenly() -> None:
    """Chi-squared sums of 64 x 64 and 64 cells stay within six standard deviations of what chance gives."""
    size, cells = 1 << 16, 64
    wide = size // cells
    found = Permutation(size, 7)(np.arange(size))
    table = np.zeros((cells, cells))
    np.add.at(table, (np.arange(size) // wide, found // wide), 1)
    expected = size / cells**2
    chi = ((table - expected) ** 2 / expected).sum()
    free = (cells - 1) ** 2
    assert abs(chi - free) < 6 * (2 * free) ** 0.5
    steps = np.bincount(np.diff(found) % size // wide, minlength=cells)
    expected = (size - 1) / cells
    chi = ((steps - expected) ** 2 / expected).sum()
    assert abs(chi - cells) < 6 * (2 * cells) ** 0.5


def test_every_permutation_of_a_few_comes_up() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(2400):
        key = tuple(Permutation(4, seed)(np.arange(4)).tolist())
        counts[key] = counts.get(key, 0) + 1
    assert len(counts) == 24
    assert min(counts.values()) > 50 and max(counts.values()) < 160


@given(st.integers(0, 200), st.integers(1, 9), st.integers(1, 5), st.integers(0, 9))
def test_a_block_order_is_a_bijection_and_keeps_blocks_together(size: int, rows: int, mix: int, seed: int) -> None:
    order = BlockOrder(size, Blocks(rows, mix), seed)
    found = order(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))
    groups = -(-order.count // mix)
    for group in range(groups):
        begin, length = order.span(group)
        flat = [row for a, b in order.ranges(group) for row in range(a, b)]
        assert sorted(found[begin : begin + length].tolist()) == sorted(flat)
        assert all(b - a <= rows and a % rows == 0 for a, b in order.ranges(group))
    for low, high in pairwise(sorted({0, size // 3, size // 2, size})):
        parts = [
            [row for a, b in order.ranges(group) for row in range(a, b)][at]
            for group, places in order.groups(np.arange(low, high))
            for at in places.tolist()
        ]
        assert parts == found[low:high].tolist()


def test_blocks_say_what_is_wrong() -> None:
    for options in ({"rows": 0}, {"rows": 2.0}, {"rows": 4, "mix": 0}):
        with pytest.raises(ValueError, match="of Blocks must be an int of at least 1"):
            Blocks(**options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*62, got -1"):
        Permutation(-1)


@given(st.integers(0, 100), st.integers(1, 7), st.integers(1, 5), st.booleans(), st.integers(0, 100))
def test_ranks_share_every_row_of_an_epoch(size: int, batch: int, world: int, drop: bool, start: int) -> None:
    start = min(start, size)
    ranks = [Schedule(size, batch, drop, rank, world, start) for rank in range(world)]
    assert len({rank.count for rank in ranks}) == 1
    seen: list[int] = []
    for number in range(ranks[0].count):
        parts = [rank.positions(number, 1).tolist() for rank in ranks]
        assert all(1 <= len(part) <= batch for part in parts)
        if number < ranks[0].full:
            assert all(len(part) == batch for part in parts)
        seen += sorted({position for part in parts for position in part})
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        if number + 1 < ranks[0].count:
            assert ranks[0].after(number) == start + len(seen)
    rest = (size - start) % (batch * world)
    assert seen == list(range(start, size - rest if drop else size))
    for rank in ranks:
        if rank.full > 1:
            both = [*rank.positions(0, 1).tolist(), *rank.positions(1, 1).tolist()]
            assert rank.positions(0, 2).tolist() == both
