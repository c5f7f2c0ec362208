"""Pools and executors that the user made: `multiprocessing`, `concurrent.futures`, loky, MPI, Dask, Ray.

    here                                            a worker of theirs
    ticket: the job, pickled once  -- each task -->  opened once per process
    the number of a chunk, or its rows  --------->  job.run, or job.finish
    unpickled  <------------------------ bytes ---  the answer

A source that lies in files travels as their names, so that only numbers follow it; of one in memory each chunk's rows
travel, once. In threads nothing is pickled at all.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing.pool
import os
import pickle
import queue
import threading
import time
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from .crew import Done, run_here
from .job import Job
from .plan import Chunk
from .wire import WorkerError, answer, dumps, loads, open_answer, split, split_by_value

LOOKAHEAD = 2  # chunks per worker that an executor may hold
LOOK = 0.2  # seconds between two looks at the workers of a pool
HANDLE = 1 << 14  # bytes; a pickled source of at most this size is its name, or as good as one
_COPY = b""  # instead of rows: take them from the job, and copy them, since an object store is read only
KEPT = 2  # jobs that a worker keeps open

AnyPool = Any  # a `multiprocessing.pool.Pool` or a `concurrent.futures.Executor`, and what answers to the same words


class Ticket(NamedTuple):
    """What every task carries: a name for the job, and the job, pickled; or a reference to that in an object store."""

    name: str
    content: Any


def width(pool: AnyPool, otherwise: int) -> int:
    """Return the number of workers of a pool, where it tells."""
    for name in ("_processes", "_max_workers", "size"):
        number = getattr(pool, name, None)
        if isinstance(number, int) and number > 0:
            return number
    client: Any = getattr(pool, "_client", None)
    return sum(client.nthreads().values()) if hasattr(client, "nthreads") else otherwise


def is_threads(pool: AnyPool) -> bool:
    """Say whether the workers of a pool are threads of this process."""
    return isinstance(pool, multiprocessing.pool.ThreadPool | concurrent.futures.ThreadPoolExecutor)


def knows_main(pool: AnyPool) -> bool:
    """Say whether the workers of a pool find what this program's main module defines, and its shared memory."""
    return isinstance(pool, multiprocessing.pool.Pool | concurrent.futures.ProcessPoolExecutor)


@dataclass
class _Task:
    """A chunk that was submitted, and how often it was lost."""

    number: int
    losses: int = 0
    future: Any = None


class Guests:
    """A crew that is not ours: it is handed tasks, and neither started nor stopped."""

    def __init__(self, job: Job, pool: AnyPool, size: int, retries: int, timeout: float | None) -> None:
        self._job, self._pool, self.size = job, pool, size
        self._retries, self._timeout = retries, timeout
        self._tasks: dict[int, _Task] = {}
        self._done: queue.SimpleQueue[tuple[_Task, Any, BaseException | None]] = queue.SimpleQueue()
        self._progress = time.monotonic()
        self._staff = _Staff(pool)
        self._by_value = not knows_main(pool)
        self._rows_travel = self._stored = False
        self._shared = not self._by_value and _is_shared(job.source)
        self._ticket = None if is_threads(pool) else self._make_ticket()

    def busy(self) -> int:
        """Count the chunks that the pool holds."""
        return len(self._tasks)

    def wants(self) -> int:
        """The pool queues what its workers cannot take yet."""
        return LOOKAHEAD * self.size - len(self._tasks)

    def submit(self, numbers: Sequence[int]) -> None:
        """Hand chunks to the pool."""
        for number in numbers:
            if not self._tasks:
                self._progress = time.monotonic()
            self._tasks[number] = task = _Task(number)
            try:
                self._send(task)
            except concurrent.futures.BrokenExecutor as error:
                self._lose(task, error)

    def collect(self, block: bool) -> Done:
        """Unpack what has finished.

        Raises:
            Exception: what the function raised.
            WorkerError: the pool lost a chunk, and it may not be run again.
            TimeoutError: no chunk has finished for too long.
        """
        done: Done = []
        while (self._tasks and not done) or not self._done.empty():
            try:
                self._staff.lost()
                task, result, error = self._done.get(timeout=self._patience()) if block else self._done.get_nowait()
            except queue.Empty:
                if not block:
                    break
                self._check()
                continue
            self._progress = time.monotonic()
            task.future = None  # it knows the task too: a circle would keep the result in the cluster
            if error is not None:
                self._lose(task, error)
            elif self._tasks.pop(task.number, None) is not None:
                done.append((task.number, self._open(task.number, result)))
        return done

    def close(self, finished: bool) -> None:
        """The pool stays the user's; what it has not begun is taken back where that is possible."""
        for task in self._tasks.values():
            if task.future is not None:
                task.future.cancel()

    def _make_ticket(self) -> Ticket:
        """Pickle the job; without its source when that is no handle, unless the pool has a place for it."""
        name = uuid.uuid4().hex
        without = self._guarded(self._dumps, replace(self._job, source=None))
        if not self._shared:
            head, parts = self._guarded(split_by_value if self._by_value else split, self._job)
            if len(head) - len(without) + sum(part.nbytes for part in parts) <= HANDLE:
                return Ticket(name, self._guarded(self._dumps, self._job) if parts else bytes(head))
            if hasattr(self._pool, "put"):
                self._stored = True
                return Ticket(name, self._pool.put([np.frombuffer(part, np.uint8) for part in (head, *parts)]))
        self._rows_travel = True
        return Ticket(name, without)

    def _dumps(self, value: object) -> bytes:
        return bytes(dumps(value, by_value=self._by_value))

    def _guarded(self, pickled: Callable[[Any], Any], job: Job) -> Any:
        job = replace(job, order=None)  # its numbers go with the tasks
        try:
            return pickled(job)
        except Exception as error:
            told = (
                f"the job cannot be sent to a {type(self._pool).__name__} ({error}). Define the function {job.fn!r} at "
                "the top level of a module, not as a lambda or inside another function"
            )
            raise pickle.PicklingError(told) from error

    def _rows(self, chunk: Chunk) -> Any:
        """Return what a task carries of the source: nothing, bytes, or for shared memory the rows, as handles."""
        if not self._rows_travel:
            return _COPY if self._stored else None
        taken = self._job.take(chunk)
        return taken if self._shared else self._dumps(taken)

    def _send(self, task: _Task) -> None:
        back = partial(self._back, task)
        call: Callable[..., Any]
        if self._ticket is None:
            call, args = run_here, (self._job, task.number)
        else:
            chunk = self._job.chunk(task.number)
            rows = self._rows(chunk)
            if chunk.rows is not None:
                chunk = chunk._replace(rows=chunk.rows.numpy().tobytes())
            call, args = _run_guest, (*self._ticket, chunk, rows, self._by_value)  # type: ignore[assignment]
        if hasattr(self._pool, "apply_async"):
            self._pool.apply_async(
                call, args, callback=partial(back, None), error_callback=lambda error: back(error, None)
            )
        else:
            task.future = self._pool.submit(call, *args)
            task.future.add_done_callback(lambda future: back(_error_of(future), future))

    def _back(self, task: _Task, error: BaseException | None, result: Any) -> None:
        # called in a thread of the pool: what is in a future is only read where it is there
        value = result.result() if error is None and hasattr(result, "result") else result
        self._done.put((task, value, error))

    def _open(self, number: int, result: Any) -> Any:
        if self._ticket is None:
            return result
        return open_answer(result, (), partial(self._job.label, number))

    def _lose(self, task: _Task, error: BaseException) -> None:
        """Run a chunk again that the pool lost, or raise; what a function raised in a thread is no loss."""
        if self._ticket is None:
            raise error
        task.losses += 1
        told = WorkerError(f"{type(self._pool).__name__} lost {self._job.label(task.number)}: {error!r}")
        if task.losses > self._retries:
            raise told from error
        try:
            self._send(task)
        except Exception:
            raise told from error

    def _patience(self) -> float:
        if self._timeout is None:
            return self._staff.look
        return min(self._staff.look, max(0.001, self._progress + self._timeout - time.monotonic()))

    def _check(self) -> None:
        oldest = self._job.label(min(self._tasks))
        if self._staff.lost():
            told = f"a worker process of the given pool died while chunks were under way, {oldest} or one after it"
            raise WorkerError(f"{told}; a multiprocessing.Pool cannot tell which, nor run it again")
        if self._timeout is not None and time.monotonic() - self._progress >= self._timeout:
            raise TimeoutError(f"no chunk was done for {self._timeout} s; the oldest under way is {oldest}")


class _Staff:
    """The processes of a `multiprocessing.Pool`, which replaces dead ones silently and forgets their tasks."""

    def __init__(self, pool: AnyPool) -> None:
        known = isinstance(pool, multiprocessing.pool.Pool) and not is_threads(pool)
        self._pool = pool if known else None
        self._seen: dict[int, Any] = {}
        self._retires = known and pool._maxtasksperchild is not None
        # one that retires leaves with exit code 0, so each must be seen before it goes: none lives for so short
        self.look = LOOK / 100 if self._retires else LOOK
        self._dead = False
        self.lost()

    def lost(self) -> bool:
        """Say whether one has died since the first look."""
        if self._pool is not None:
            present = {id(process): process for process in list(self._pool._pool)}
            gone = [process for key, process in self._seen.items() if key not in present]
            self._seen = present
            self._dead = self._dead or any(not self._retires or process.exitcode for process in gone)
        return self._dead


def _error_of(future: Any) -> BaseException | None:
    if future.cancelled():
        return concurrent.futures.CancelledError()
    error: BaseException | None = future.exception()
    return error


# The jobs that this process has opened. Threads of one worker may ask at once.
_jobs: OrderedDict[str, Job] = OrderedDict()
_opening = threading.Lock()


# OpenMP keeps its team per thread. In a forked process the main thread believes in a team that was not copied, and its
# first parallel loop would wait for ever; another thread makes a team of its own.
_aside: list[concurrent.futures.ThreadPoolExecutor] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _aside.__setitem__(slice(None), [_one_thread()]))


def _one_thread() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(1)


def _run_guest(name: str, content: Any, chunk: Chunk, rows: Any, by_value: bool) -> bytes:
    """Answer one chunk in a worker of the user's."""

    def pack(result: object, kind: bytes) -> bytes:
        return bytes(dumps(result, kind, by_value))

    def run() -> Any:
        job = _open_job(name, content)
        if rows is None or (isinstance(rows, bytes) and rows == _COPY):
            taken = job.take(there) if rows is None else job.take(there).clone()
        else:
            taken = loads(rows) if isinstance(rows, bytes) else rows
        return job.finish(there, taken)

    there = chunk
    if chunk.rows is not None:
        there = chunk._replace(rows=torch.frombuffer(bytearray(chunk.rows), dtype=torch.int64))
    call = partial(answer, run, lambda: f"chunk {chunk.number}", pack)
    in_team = _aside and torch.get_num_threads() > 1
    data: bytes = _aside[0].submit(call).result() if in_team else call()
    return data


def _open_job(name: str, content: Any) -> Job:
    with _opening:
        job = _jobs.get(name)
        if job is None:
            head, *parts = [memoryview(part) for part in ([content] if isinstance(content, bytes) else content)]
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The given buffer is not writable")
                job = _jobs[name] = loads(head, parts)
            while len(_jobs) > KEPT:
                _jobs.popitem(last=False)
        return job


def _is_shared(source: Any) -> bool:
    return bool(source.is_shared()) and not getattr(source, "is_memmap", bool)()
