"""Worker processes that hold the job from their start; a task is a chunk's number, and an answer is bytes.

    parent                                      worker
    start(job)  ---- inherited or pickled -->   open the job
    wait        <------------ ready ---------   seed, wait
    send(numbers) ------- one pipe --------->   job.run(number), for each
    wait([pipes, sentinels])  <--- bytes ----   answer, as soon as there is one
    close the pipe ------------------------->   end of file: exit

The parent waits on the pipe and the exit of every worker at once, so a worker that dies is an error and not a hang. A
worker gets a chunk when it is ready, and several at once when they are short, so none waits for one that starts late.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import time
from array import array
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from .crew import Done, undisturbed
from .job import Job
from .link import HELLO, READY, Link, Watch
from .pace import Pace
from .wire import WorkerError, open_answer
from .worker import Parcel, Setup, leave, serve, start_process

PATIENCE = 1.0  # seconds between two looks at the workers' health
GRACE = 0.5  # seconds for workers to leave before they are killed
BIRTH = 60.0  # seconds for a process to start, where `timeout` is shorter,
OPENING = 30.0  # and for it to import what the job needs and to open it


class _Worker:
    """One process, its pipe, and the chunks that it has."""

    def __init__(self, parcel: Parcel, setup: Setup, index: int) -> None:
        self.index, self.given, self.up, self.ready = index, 0, False, False
        self.chunks: deque[int] = deque()
        self.since: float | None = time.monotonic()  # when its present chunk, or before that its start, began
        self.link, self.process = start_process(serve, (parcel, setup, index), setup.method, f"map-worker-{index}")

    def give(self, numbers: Sequence[int]) -> None:
        """Send chunks; a worker that is dead is found by its exit."""
        if not self.chunks:
            self.since = time.monotonic()
        self.chunks.extend(numbers)
        self.given += len(numbers)
        with contextlib.suppress(OSError):
            self.link.pipe.send_bytes(array("q", numbers))


class Pool:
    """A crew of processes of our own."""

    def __init__(self, job: Job, setup: Setup, size: int) -> None:
        self.size = size
        self._job, self._setup, self._started = job, setup, 0
        self._owner, self._parcel, self._watch = os.getpid(), Parcel(job), Watch()
        self._workers: list[_Worker] = []
        self._retired: list[_Worker] = []
        self._backlog: deque[int] = deque()
        self._losses: dict[int, int] = {}  # how often each chunk was lost; those of workers without one count as -1
        self._pace = Pace()
        if multiprocessing.current_process().daemon:
            raise RuntimeError("a worker process may not start workers of its own: pass num_workers=0 here")
        np.random.get_state()  # loaded once here rather than by every forked worker
        try:
            for _ in range(size):
                self._start()
        except BaseException:
            self.close(finished=False)
            raise

    def busy(self) -> int:
        """Count the chunks that wait or are under way."""
        return len(self._backlog) + sum(len(worker.chunks) for worker in self._workers)

    def wants(self, room: int, most: int) -> int:
        """Count the chunks that the workers would take now, those included that are not ready yet."""
        absent = self.size - sum(worker.ready for worker in self._workers)
        return min(room, absent + sum(map(self._room, self._workers)) - len(self._backlog))

    def submit(self, numbers: range) -> None:
        """Hand chunks to the workers that have the fewest; those that have done their share are replaced."""
        self._backlog.extend(numbers)
        self._hand_out()

    def collect(self, block: bool) -> Done:
        """Read the answers that have arrived.

        Raises:
            Exception: what the function raised in the worker, with the worker's traceback as its cause.
            WorkerError: a worker died, and its chunk may not be run again.
            TimeoutError: a chunk took too long, and may not be run again.
        """
        done: Done = []
        while True:
            events = self._watch.ready(0 if done or not block else self._patience())
            for worker, exited in events:
                if exited:
                    self._bury(worker, done)
                elif worker in self._workers:
                    self._read(worker, done)
            if not events:
                self._check(block)
            self._hand_out()
            if (done and not events) or not block:
                return done

    def close(self, finished: bool) -> None:
        """End every process; in a forked copy of the owner, which shares the numbers of the processes, do nothing."""
        if os.getpid() != self._owner:
            return
        everyone, self._workers, self._retired = self._workers + self._retired, [], []
        for worker in everyone:  # all are told before any is waited for
            worker.link.close()
            if not (finished and worker.ready) and worker.process.exitcode is None:
                worker.process.terminate()
        deadline = time.monotonic() + GRACE
        for worker in everyone:
            leave(worker.process, deadline)
        self._parcel.close()

    def _start(self) -> None:
        try:
            with undisturbed():
                worker = _Worker(self._parcel, self._setup, self._started)
                self._workers.append(worker)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise pickle.PicklingError(_UNPICKLABLE.format(fn=self._job.fn, error=error)) from error
        self._started += 1
        self._watch.add(worker.link, (worker, False))
        self._watch.add(worker.process.sentinel, (worker, True))

    def _room(self, worker: _Worker) -> int:
        """Count the chunks that a worker can take: as many as travel together, and its share."""
        depth, has = self._pace.depth(), len(worker.chunks)
        if not worker.ready or 2 * has > depth:
            return 0
        limit = self._setup.max_tasks
        return depth - has if limit is None else min(depth - has, limit - worker.given)

    def _hand_out(self) -> None:
        if not self._backlog:
            return
        coming = sum(not worker.ready for worker in self._workers)
        for _ in range(min(self.size - len(self._workers), len(self._backlog) - coming)):
            self._start()
        for worker in sorted(self._workers, key=lambda worker: len(worker.chunks)):
            numbers = [self._backlog.popleft() for _ in range(min(self._room(worker), len(self._backlog)))]
            if numbers:
                worker.give(numbers)

    def _read(self, worker: _Worker, done: Done) -> None:
        """Read one message of a worker; one that ends in the middle is found by the worker's exit."""
        try:
            kind, number, head, parts = worker.link.receive()
        except (EOFError, OSError):
            self._watch.remove(worker.link)
            return
        now = time.monotonic()
        if kind in (HELLO, READY):
            worker.up, worker.ready, worker.since = True, kind == READY, now if kind == HELLO else None
            return
        done.append((number, open_answer(head, parts, partial(self._job.label, number))))
        worker.chunks.popleft()
        self._pace.note(now - (worker.since or now))
        worker.since = now if worker.chunks else None
        if worker.given == self._setup.max_tasks and not worker.chunks:
            self._dismiss(worker)
            worker.link.close()
            self._retired.append(worker)

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._watch.remove(worker.link)
        self._watch.remove(worker.process.sentinel)
        for old in [old for old in self._retired if old.process.exitcode is not None]:
            self._retired.remove(old)
            leave(old.process, 0.0)

    def _bury(self, worker: _Worker, done: Done) -> None:
        """Read what a dead worker still said, and deal with what it had."""
        while worker in self._workers and _readable(worker.link):
            before = len(done), worker.ready
            self._read(worker, done)
            if before == (len(done), worker.ready):
                break
        if worker in self._workers:
            worker.process.join(PATIENCE)
            code = worker.process.exitcode
            self._lose(worker, WorkerError(f"worker {worker.index} {obituary(code)} {self._whereabouts(worker, code)}"))

    def _lose(self, worker: _Worker, error: Exception) -> None:
        """Run the chunks of a dead worker again, or raise the error."""
        lost = worker.chunks[0] if worker.chunks else -1
        self._losses[lost] = self._losses.get(lost, 0) + 1
        if self._losses[lost] > self._setup.retries:
            raise error
        self._dismiss(worker)
        self._backlog.extendleft(reversed(worker.chunks))
        worker.link.close()
        leave(worker.process, 0.0)
        if not self._workers:
            self._start()

    def _patience(self) -> float:
        left = min(map(self._left, self._workers), default=PATIENCE)
        return min(PATIENCE, max(0.0, left))

    def _left(self, worker: _Worker) -> float:
        """Return how many seconds a worker still has for its chunk, for opening the job, or for its very start."""
        return math.inf if worker.since is None else worker.since + self._limit(worker) - time.monotonic()

    def _limit(self, worker: _Worker) -> float:
        limit = self._setup.timeout
        if limit is None:
            return math.inf
        return limit if worker.ready else max(limit, OPENING if worker.up else BIRTH)

    def _check(self, block: bool) -> None:
        """End the workers that take too long for their chunk."""
        late = [worker for worker in self._workers if self._left(worker) <= 0]
        for worker in late if block else ():
            worker.process.kill()
            where = self._job.label(worker.chunks[0] if worker.chunks else -1)
            told = f"worker {worker.index} was not done with {where} after {self._limit(worker)} s (timeout=)"
            self._lose(worker, TimeoutError(told))

    def _whereabouts(self, worker: _Worker, code: int | None) -> str:
        if worker.chunks:
            return f"at {self._job.label(worker.chunks[0])}{_HINT}"
        if worker.ready:
            return "between two chunks"
        return "at its start, before it had a chunk" + (AT_START if code == 1 else "")


def _readable(link: Link) -> bool:
    try:
        return bool(link.pipe.poll())
    except OSError:
        return False


_HINT = ". retries=N runs such a chunk again"
_UNPICKLABLE = (
    "the job cannot be sent to a worker process ({error}). Define the function {fn!r} at the top level of a module, "
    "not as a lambda or inside another function, or use mp_start_method='fork'"
)
AT_START = (
    ". If it failed before it had begun, its traceback is printed above: a worker must be able to import the "
    "main module (put the main code under `if __name__ == '__main__':`)"
)


def obituary(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
