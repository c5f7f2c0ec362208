"""Threads that read batches ahead of whoever asks for them, in order.

    cursor --claim--> thread: read a run of batches --> runs, in order --take--> consumer

A run is as many batches as take about a millisecond, so that handing them over costs little: one where a batch is large
or its transform slow, and dozens of small ones. Who waits for rows that lie in memory reads the next run meanwhile. A
thread holds the crew and not the pass over it, so a pass that is dropped ends its threads.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque

from tensordict.data.reader import Reader, Run, Task

_SECONDS = 2e-3  # a run that takes longer is not made longer
_BYTES = 1 << 23  # nor is one of so many bytes

_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """The threads of one pass over a dataset, and the runs that they have begun or finished."""

    def __init__(self, task: Task, threads: int, ahead: int) -> None:
        self._task, self._groups = task, task.groups()
        self._ahead = ahead
        self._end = task.schedule.count
        self._changed = threading.Condition(threading.Lock())
        self._cursor, self._length = 0, 1
        self._longest = task.longest
        self._runs: deque[Run] = deque()
        self._stopped = False
        self._pid = os.getpid()
        # who waits for a copy of rows in memory can as well make the next one
        helps = task.transform is None and task.dataset._resident()
        self._own = Reader(task, self._groups) if helps else None
        self._threads = [
            threading.Thread(target=_work, args=(self,), daemon=True, name=f"loader-{at}") for at in range(threads)
        ]
        _crews.add(self)
        for thread in self._threads:
            thread.start()

    def claim(self) -> Run | None:
        """Return the next run to read, as soon as there is room for one; None when there is no more."""
        with self._changed:
            while not self._stopped and self._cursor < self._end and len(self._runs) >= self._ahead:
                self._changed.wait()
            return self._begun()

    def _begun(self) -> Run | None:
        """Return the next run to read, if there is one and room for it."""
        if self._stopped or self._cursor >= self._end or len(self._runs) >= self._ahead:
            return None
        run = Run(self._cursor, max(1, min(self._length, self._task.schedule.full - self._cursor)))
        self._cursor += run.count
        if self._groups is not None:
            self._groups.claim(run)
        self._runs.append(run)
        return run

    def read(self, run: Run, reader: Reader) -> None:
        """Read a run and hand it over."""
        began = time.perf_counter()
        reader.read(run)
        self.finish(run, time.perf_counter() - began)

    def finish(self, run: Run, seconds: float) -> None:
        """Hand over a run that took some time to read."""
        with self._changed:
            run.ready = True
            if run.error is not None:
                self._end = min(self._end, run.first + run.count)
            self._length = longer(self._length, run, seconds, self._longest)
            self._changed.notify_all()

    def take(self) -> tuple[Run, float]:
        """Return the next run in order, and the seconds that it was waited for."""
        waited = 0.0
        if not self._has_next():
            began = time.perf_counter()
            while (run := self._awaited()) is not None and self._own is not None:
                self.read(run, self._own)
            waited = time.perf_counter() - began
        with self._changed:
            run = self._runs.popleft()
            self._changed.notify_all()
        return run, waited

    def _has_next(self) -> bool:
        return bool(self._runs) and self._runs[0].ready

    def _awaited(self) -> Run | None:
        """Wait for the next run in order; or return one that can be read meanwhile."""
        with self._changed:
            while not self._has_next():
                if os.getpid() != self._pid:
                    raise RuntimeError("a pass over a Loader cannot go on in a forked process: begin another there")
                run = None if self._own is None else self._begun()
                if run is not None:
                    return run
                self._changed.wait()
        return None

    def reader(self) -> Reader:
        """Return what a thread reads with."""
        return Reader(self._task, self._groups)

    def close(self, patience: float = 1.0) -> None:
        """Let the threads go; one that is in a transform ends after it."""
        with self._changed:
            self._stopped = True
            self._runs.clear()
            self._changed.notify_all()
        here = threading.current_thread()
        for thread in self._threads:
            if thread is not here and os.getpid() == self._pid:
                thread.join(patience)
        if self._own is not None:
            self._own.close()


class Caller:
    """The thread of the caller, which reads a batch when it is asked for."""

    def __init__(self, task: Task) -> None:
        self._groups, self._next, self._schedule = task.groups(), 0, task.schedule
        self._reader = Reader(task, self._groups)
        # with a transform, no more is done than was asked for
        self._longest = task.longest if task.transform is None else 1
        self._length = 1

    def take(self) -> tuple[Run, float]:
        """Read the next batch; return it with the seconds that it took."""
        run = Run(self._next, max(1, min(self._length, self._schedule.full - self._next)))
        self._next += run.count
        if self._groups is not None:
            self._groups.claim(run)
        began = time.perf_counter()
        self._reader.read(run)
        seconds = time.perf_counter() - began
        self._length = longer(self._length, run, seconds, self._longest)
        return run, seconds

    def close(self) -> None:
        """Leave the buffers to the next pass."""
        self._reader.close()


def longer(length: int, run: Run, seconds: float, longest: int) -> int:
    """Return how many batches the next run has, after one that took some time."""
    if seconds < _SECONDS and 2 * run.bytes <= _BYTES and run.count == length:
        return min(2 * length, longest)
    return max(1, length // 2) if seconds > 4 * _SECONDS else length


def _work(crew: Crew) -> None:
    """Be a thread of a crew until there is nothing more to read."""
    reader = crew.reader()
    while (run := crew.claim()) is not None:
        crew.read(run, reader)
    reader.close()


def _end_all() -> None:
    # A thread that runs while the interpreter is taken down would crash it.
    for crew in list(_crews):
        crew.close()


atexit.register(_end_all)
