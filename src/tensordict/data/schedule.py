"""Which positions of the order make which batch: arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy


@dataclass(frozen=True)
class Schedule:
    """The batches of one rank from a position on.

    A global batch is ``batch`` rows for each of ``world`` ranks. A last one with fewer rows is shared out evenly, and
    where there are fewer rows than ranks, rows are given out twice: every rank gets as many batches.

    >>> [Schedule(10, 2, False, rank, 2).positions(2, 1).tolist() for rank in (0, 1)]
    [[8], [9]]
    """

    size: int
    batch: int
    drop_last: bool
    rank: int = 0
    world: int = 1
    start: int = 0

    @property
    def step(self) -> int:
        """Return how many rows a global batch has."""
        return self.batch * self.world

    @property
    def full(self) -> int:
        """Count the batches that have all their rows."""
        return max(self.size - self.start, 0) // self.step

    @property
    def count(self) -> int:
        """Count the batches."""
        rest = max(self.size - self.start, 0) % self.step
        return self.full + bool(rest and not self.drop_last)

    def positions(self, first: int, count: int) -> Any:
        """Return the positions of some batches, all of which are full or only one of which there is."""
        if first < self.full:
            starts = self.start + self.rank * self.batch + self.step * numpy.arange(first, first + count)
            return (starts[:, None] + numpy.arange(self.batch)).reshape(-1)
        base = self.start + self.full * self.step
        rest = self.size - base
        low, high = rest * self.rank // self.world, rest * (self.rank + 1) // self.world
        return base + (numpy.arange(low, high) if rest >= self.world else numpy.array([self.rank % rest]))

    def after(self, number: int) -> int:
        """Return the position after a batch: how many rows all ranks together have had by then.

        The end of an epoch is its last row, also where the last rows were dropped.
        """
        return self.size if number + 1 >= self.count else self.start + (number + 1) * self.step
