"""The plan against torch's own words, and the schedule against a crew that finishes in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordict.ops.parallel.crew import schedule
from tensordict.ops.parallel.job import Job
from tensordict.ops.parallel.plan import make_plan

sizes = st.integers(0, 60)


def cut(**how: Any) -> list[list[int]]:
    size = how.pop("size")
    plan = make_plan((2, size), -1, **how)
    return [list(range(chunk.start, chunk.stop)) for chunk in map(plan.chunk, range(plan.count))]


@given(sizes, st.integers(1, 70))
def test_chunksize_cuts_as_split_does(size: int, chunksize: int) -> None:
    assert cut(size=size, chunksize=chunksize) == [part.tolist() for part in torch.arange(size).split(chunksize)]


@given(sizes, st.integers(1, 70))
def test_num_chunks_cuts_as_chunk_does(size: int, num_chunks: int) -> None:
    assert cut(size=size, num_chunks=num_chunks) == [part.tolist() for part in torch.arange(size).chunk(num_chunks)]


@given(sizes, st.integers(1, 70))
def test_without_numbers_there_is_a_chunk_per_worker_and_none_is_empty(size: int, workers: int) -> None:
    parts = cut(size=size, workers=workers)
    assert list(chain.from_iterable(parts)) == list(range(size))
    assert len(parts) <= workers
    assert all(parts) or not size


@given(sizes, st.permutations(range(12)))
def test_rows_one_by_one_and_permuted(size: int, order: list[int]) -> None:
    assert cut(size=size, chunksize=0) == [[row] for row in range(size)]
    plan = make_plan((12,), 0, chunksize=5)
    rows = [plan.chunk(number, order).rows for number in range(plan.count)]
    assert [len(part) for part in rows] == [5, 5, 2]
    assert list(chain.from_iterable(rows)) == order


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.data())
def test_a_job_takes_what_torch_cuts(shape: list[int], data: st.DataObject) -> None:
    source = torch.arange(torch.Size(shape).numel()).view(shape)
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    chunksize = data.draw(st.integers(0, 5))
    plan = make_plan(source.shape, dim, chunksize=chunksize)
    taken = [Job(torch.neg, source, plan).take(chunk) for chunk in map(plan.chunk, range(plan.count))]
    expected = source.split(chunksize, dim) if chunksize else source.unbind(dim)
    assert len(taken) == len(expected)
    assert all(torch.equal(got, want) for got, want in zip(taken, expected, strict=True))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"chunksize": 2, "num_chunks": 2}, ValueError, "not both: got 2 and 2"),
        ({"chunksize": -1}, ValueError, "chunksize must be at least 0, got -1"),
        ({"num_chunks": 0}, ValueError, "num_chunks must be at least 1, got 0"),
        ({"chunksize": 1.5}, TypeError, "chunksize must be an int, got 1.5"),
        ({"dim": 2}, IndexError, r"dim 2 is out of range for shape \[3, 4\]: expected -2 to 1"),
        ({"dim": -3}, IndexError, "dim -3"),
        ({"shape": ()}, IndexError, "no dim to cut"),
    ],
)
def test_bad_numbers_are_named(how: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make_plan(**{"shape": (3, 4), "dim": 0, **how})


class AnyOrder:
    """A crew that finishes chunks as *data* decides, and remembers how much was under way."""

    def __init__(self, size: int, data: st.DataObject) -> None:
        self.size, self.data = size, data
        self.numbers: list[int] = []
        self.given = 0
        self.closed: list[bool] = []

    def wants(self, room: int, most: int) -> int:
        return min(room, self.size - len(self.numbers))

    def busy(self) -> int:
        return len(self.numbers)

    def submit(self, numbers: Sequence[int]) -> None:
        assert 0 < len(numbers) <= self.wants(self.size, self.size)
        self.given += len(numbers)
        self.numbers += numbers

    def collect(self, block: bool) -> list[tuple[int, int]]:
        assert self.numbers or not block, "nothing to wait for: this would be a hang"
        least = 1 if block else 0
        count = self.data.draw(st.integers(least, len(self.numbers)))
        done = self.data.draw(st.permutations(self.numbers))[:count]
        self.numbers = [number for number in self.numbers if number not in done]
        return [(number, -number) for number in done]

    def close(self, finished: bool) -> None:
        self.closed.append(finished)


@settings(deadline=None)
@given(st.integers(0, 20), st.integers(1, 4), st.booleans(), st.integers(1, 3), st.integers(0, 25), st.data())
def test_schedule_gives_every_chunk_once_in_order_and_looks_ahead_a_little(
    count: int, size: int, ordered: bool, ahead: int, taken: int, data: st.DataObject
) -> None:
    crew = AnyOrder(size, data)
    events: Iterator[tuple[int, Any]] = schedule(lambda: crew, count, ordered=ordered, ahead=ahead)
    got = []
    for number, result in events:
        assert result == -number
        got.append(number)
        assert crew.given <= len(got) + ahead * size
        if len(got) == taken:
            break
    complete = not taken or len(got) < taken
    events.close()  # type: ignore[attr-defined]
    assert len(set(got)) == len(got)
    assert got == list(range(len(got))) or not ordered
    if complete:
        assert sorted(got) == list(range(count))
    assert crew.closed == [complete]
