"""How batches are read: many small ones by one gather, which is then cut, and what is dear to read in whole blocks.

batch numbers --schedule--> positions --order--> rows --gather--> node --split--> batches --transform--> batches
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch

from tensordict.data.buffers import Loans, Pool
from tensordict.data.order import BlockOrder, Order
from tensordict.data.schedule import Schedule
from tensordict.ops.gather import Reading

_SHOWN_ROWS = 8
_LONGEST = 64  # batches in a run


class Task(NamedTuple):
    """What a pass over a dataset does."""

    dataset: Any
    order: Order
    schedule: Schedule
    transform: Callable[[Any], Any] | None
    reuse: bool | str
    pools: deque[Pool | Loans]
    single: bool
    whole: bool = False

    @property
    def longest(self) -> int:
        """Return how many batches may be read together."""
        return 1 if self.single or not self.dataset._even() else _LONGEST

    def groups(self) -> Groups | None:
        """Return the groups of blocks that are read together, where the dataset lies in a store."""
        blocks = isinstance(self.order, BlockOrder) and not self.dataset._resident()
        return Groups(self.dataset, self.order, self.schedule) if blocks else None  # type: ignore[arg-type]


class Place(Exception):
    """Where an error happened: the cause of an error that a transform or a dataset raised."""

    def __str__(self) -> str:
        return str(self.args[0])


class Lender(Protocol):
    """Whoever lent the buffers of a run."""

    def give_back(self, rooms: list[Any]) -> None:
        """Take them back."""


class Run:
    """Some batches that were read together, in order; after them the error that ended the run, if one did."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.batches: deque[Any] = deque()
        self.error: BaseException | None = None
        self.bytes = 0
        self.ready = False
        self.rooms: list[Any] = []
        self.groups: list[int] = []
        self.pool: Lender | None = None

    def give_back(self) -> None:
        """Give the buffers back that were lent."""
        if self.pool is not None:
            self.pool.give_back(self.rooms)


class Groups:
    """The groups of blocks that batches come from: each is read once, by whichever thread needs it first.

    Runs are claimed in order. A group is held until no claimed run needs it, and the newest until the next is needed.
    """

    def __init__(self, dataset: Any, order: BlockOrder, schedule: Schedule) -> None:
        self._dataset, self._order, self._schedule = dataset, order, schedule
        self._gate = threading.Lock()
        self._newest = 0
        self._needed: dict[int, int] = {}
        self._locks: dict[int, Any] = {}
        self._held: dict[int, Any] = {}

    def claim(self, run: Run) -> None:
        """Note the groups that a run needs."""
        positions = self._schedule.positions(run.first, run.count)
        run.groups = [group for group, _ in self._order.groups(positions)]
        with self._gate:
            for group in run.groups:
                self._needed[group] = self._needed.get(group, 0) + 1
                self._locks.setdefault(group, threading.Lock())
            self._newest = max(self._newest, *run.groups)

    def release(self, run: Run) -> None:
        """Let groups go that no run needs any more."""
        with self._gate:
            for group in run.groups:
                self._needed[group] -= 1
            gone = [group for group, count in self._needed.items() if not count and group < self._newest]
            for group in gone:
                del self._needed[group], self._locks[group]
                self._held.pop(group, None)

    def rows(self, positions: Any, reading: Callable[[Any], Reading]) -> tuple[Any, int]:
        """Return the rows at positions, and how many bytes they have."""
        parts, size = [], 0
        for group, places in self._order.groups(positions):
            node, one = self._group(group), reading(torch.from_numpy(places))
            parts.append(node._read_rows(one.plan(node._meta.batch)))
            size += one.bytes
        return parts[0] if len(parts) == 1 else torch.cat(parts), size

    def _group(self, group: int) -> Any:
        with self._locks[group]:
            if group not in self._held:
                blocks = [self._dataset[a:b]._dense() for a, b in self._order.ranges(group)]
                self._held[group] = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
            return self._held[group]


class Reader:
    """One thread's way to read batches of a task."""

    def __init__(self, task: Task, groups: Groups | None) -> None:
        self._task, self._groups = task, groups
        try:
            self._buffers = task.pools.pop()
        except IndexError:
            self._buffers = Loans() if task.reuse is True else Pool(noted=task.reuse == "check")

    def close(self) -> None:
        """Leave the buffers to the next pass."""
        self._task.pools.append(self._buffers)

    def read(self, run: Run) -> None:
        """Read the batches of a run."""
        number, doing = run.first, "reading"
        try:
            with torch.no_grad():
                run.pool, run.rooms = self._buffers, self._buffers.begin()
                rows = self._rows(run)
            doing = "the transform of"
            for batch in self._cut(rows, run.count):
                run.batches.append(batch if self._task.transform is None else self._task.transform(batch))
                number += 1
        except BaseException as error:
            run.error = told(error, f"in {doing} {self._where(number)}")

    def _rows(self, run: Run) -> Any:
        positions = self._task.schedule.positions(run.first, run.count)
        if self._groups is not None:
            try:
                node, run.bytes = self._groups.rows(positions, self._reading)
            finally:
                self._groups.release(run)
            return node
        reading = self._reading(torch.from_numpy(self._task.order(positions)))
        dataset = self._task.dataset
        node = dataset._read_rows(reading.plan(dataset._meta.batch))
        run.bytes = reading.bytes
        return node

    def _reading(self, rows: Any) -> Reading:
        return Reading(rows, self._buffers.room)

    def _cut(self, rows: Any, count: int) -> Iterator[Any]:
        return iter((rows,) if count == 1 or self._task.whole else rows.split(self._task.schedule.batch))

    def _where(self, number: int) -> str:
        rows = self._task.order(self._task.schedule.positions(number, 1)).tolist()
        more = f", ... {len(rows)} rows in all" if len(rows) > _SHOWN_ROWS else ""
        return f"batch {number} (rows {', '.join(map(str, rows[:_SHOWN_ROWS]))}{more})"


def told(error: BaseException, text: str) -> BaseException:
    """Return an error that says where it happened, as the cause of its first cause."""
    deepest = error
    while deepest.__cause__ is not None:
        deepest = deepest.__cause__
    deepest.__cause__ = Place(text)
    return error
