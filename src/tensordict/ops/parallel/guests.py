"""Pools and executors that the user made: `multiprocessing`, `concurrent.futures`, loky, MPI, Dask, Ray.

    here                                                      a worker of theirs
    ticket: the job, pickled once  ------- each task ------>  opened once per process
    the numbers of some chunks, or their rows  ------------>  job.run, or job.finish, for each
    unpickled  <------------------------- seconds, bytes ---  the answers

The job lies in one place: a block of memory that processes of this machine map, or the object store of a cluster. One
that is small, because its source lies in files, travels with each task to a cluster. Where there is no such place, each
chunk's rows travel, once. In threads nothing is pickled at all.
"""

from __future__ import annotations

import concurrent.futures
import math
import multiprocessing.pool
import os
import pickle
import queue
import threading
import time
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
import torch

from .crew import Done, run_here
from .job import Job
from .link import HAS_BLOCKS, Block, Place
from .pace import Pace
from .wire import BAD, WorkerError, answer, dumps, fault, loads, open_answer, split, split_by_value, split_nearby

LOOKAHEAD = 2  # tasks per worker that an executor may hold
LOOK = 0.2  # seconds between two looks at the workers of a pool
HANDLE = 1 << 14  # bytes; a pickled source of at most this size is its name, or as good as one
SHARE = 0.25  # of the free memory of this machine, or of what a worker of Dask may take, is for a copy of the source
LOAD = 1 << 20  # bytes of rows that travel together, unless one chunk has more
LONG = 1e-2  # seconds after which a task comes back with the chunks that are done
SPARE = 3  # times that a chunk is run again whose source was lost with the workers of a cluster
KEPT = 2  # jobs that a worker keeps open
IDLE = 10.0  # seconds that it keeps one which nobody uses
GOING, OVER = b"\0", b"\1"

AnyPool = Any  # a `multiprocessing.pool.Pool` or a `concurrent.futures.Executor`, and what answers to the same words
Answers = tuple[float, list[Any]]  # the seconds that some chunks took, and an answer for each


class Ticket(NamedTuple):
    """What every task carries: a name for the job, and the job, pickled, or where that is to be found."""

    name: str
    content: Any


class Nearby(NamedTuple):
    """A block of memory of this machine, and the lengths of its parts."""

    place: Place
    lengths: list[int]

    def opened(self) -> tuple[list[Any], Callable[[], bool]]:
        """Map the block; return its parts but for the first, and what tells whether that says that all is over."""
        with self.place.opened() as descriptor:
            parts = Block(descriptor, self.lengths).parts()[1:]
            # as memory of our own, its page would be a copy as soon as something on it is written
            flag: Any = torch.from_file(f"/proc/self/fd/{descriptor}", shared=True, size=1, dtype=torch.uint8).numpy()
        return parts, lambda: bool(flag[0])


class Load(NamedTuple):
    """What else a task carries: the numbers of chunks, their part of a permutation, their rows if these travel."""

    numbers: range
    order: bytes | None
    rows: bytes | None
    by_value: bool


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


def is_nearby(pool: AnyPool) -> bool:
    """Say whether the workers of a pool are processes of this machine, which find blocks of memory by their name."""
    return HAS_BLOCKS and (knows_main(pool) or isinstance(getattr(pool, "_processes", None), dict))


@dataclass
class _Task:
    """Chunks that were submitted together, and how often they were lost."""

    numbers: range
    losses: int = 0
    future: Any = None


class Guests:
    """A crew that is not ours: it is handed tasks, and neither started nor stopped."""

    def __init__(self, job: Job, pool: AnyPool, size: int, retries: int, timeout: float | None) -> None:
        self._job, self._pool, self.size = job, pool, size
        self._retries, self._timeout = retries, timeout
        self._tasks: dict[int, _Task] = {}  # by the number of their first chunk
        self._busy, self._together = 0, 1
        self._pace, self._weight = Pace(), 0
        self._done: queue.SimpleQueue[tuple[_Task, Callable[[], Answers]]] = queue.SimpleQueue()
        self._progress = time.monotonic()
        self._staff = _Staff(pool)
        self._by_value = not knows_main(pool)
        self._over, self._block = threading.Event(), cast(Block | None, None)
        self._rows_travel = False
        self._parts: list[Any] = []
        self._ticket = None if is_threads(pool) else self._make_ticket()

    def busy(self) -> int:
        """Count the chunks that the pool holds."""
        return self._busy

    def wants(self, room: int, most: int) -> int:
        """Fill the queue of the pool; chunks that travel together wait for each other."""
        # each worker gets some of what may be under way
        self._together = together = min(self._depth(), -(-most // self.size))
        wanted = min(room, LOOKAHEAD * self.size * self._depth() - self._busy)
        if wanted < together:
            return 0 if room < most else wanted
        return wanted - wanted % together

    def submit(self, numbers: range) -> None:
        """Hand chunks to the pool."""
        if not self._busy:
            self._progress = time.monotonic()
        for start in range(0, len(numbers), self._together):
            self._begin(_Task(numbers[start : start + self._together]))

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
                task, result = self._done.get(timeout=self._patience()) if block else self._done.get_nowait()
            except queue.Empty:
                if not block:
                    break
                self._check()
                continue
            self._progress = time.monotonic()
            task.future = None  # it knows the task too: a circle would keep the result in the cluster
            if self._tasks.pop(task.numbers.start, None) is None:
                continue
            self._busy -= len(task.numbers)
            try:
                answers = result()
            except Exception as error:
                self._lose(task, error)
            else:
                done += self._open(task, *answers)
        return done

    def close(self, finished: bool) -> None:
        """The pool stays the user's; what it has not begun is taken back where that is possible."""
        self._over.set()
        if self._block is not None:
            os.pwrite(self._block.descriptor, OVER, 0)
            self._block.close()
        for task in self._tasks.values():
            if task.future is not None:
                task.future.cancel()

    def _depth(self) -> int:
        """Count the chunks that travel together when there are enough."""
        return max(1, min(self._pace.depth(), LOAD // max(1, self._weight)))

    def _make_ticket(self) -> Ticket:
        """Pickle the job, and put it where the workers find it; without its source when there is no such place."""
        name, nearby = uuid.uuid4().hex, is_nearby(self._pool)
        pickled = split_by_value if self._by_value else split_nearby if nearby else split
        head, parts = self._guarded(pickled, self._job)
        size = len(head) + sum(part.nbytes for part in parts)
        if nearby and size <= SHARE * _free_memory():
            self._block = Block.write([memoryview(GOING), head, *parts])
            return Ticket(name, Nearby(Place.of(self._block.descriptor), self._block.lengths))
        if size <= HANDLE:
            return Ticket(name, bytes(head))
        self._parts = [np.frombuffer(part, np.uint8) for part in (head, *parts)]
        stored = _stored(self._pool, self._parts)
        if stored is not None:
            return Ticket(name, stored)
        without = self._guarded(self._dumps, replace(self._job, source=None))
        self._rows_travel = size - len(without) > HANDLE
        return Ticket(name, without if self._rows_travel else self._guarded(self._dumps, self._job))

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

    def _load(self, numbers: range) -> Load:
        order = rows = None
        if self._job.order is not None:
            order = self._job.order[self._job.plan.rows(numbers)].numpy().tobytes()
        if self._rows_travel:
            rows = self._dumps([self._job.take(self._job.chunk(number)) for number in numbers])
            self._weight = len(rows) // len(numbers)
        return Load(numbers, order, rows, self._by_value)

    def _begin(self, task: _Task) -> None:
        """Hand a task to the pool; one that cannot take it has lost it."""
        self._tasks[task.numbers.start] = task
        self._busy += len(task.numbers)
        call: Callable[..., Any] = _run_here if self._ticket is None else _run_there
        here = self._job, task.numbers, self._over.is_set
        args = here if self._ticket is None else (*self._ticket, self._load(task.numbers))
        put = self._done.put
        if hasattr(self._pool, "apply_async"):
            lost = lambda error: put((task, partial(_fail, error)))
            self._pool.apply_async(call, args, callback=lambda made: put((task, lambda: made)), error_callback=lost)
            return
        try:
            task.future = self._pool.submit(call, *args)
        except concurrent.futures.BrokenExecutor as error:
            put((task, partial(_fail, error)))
        else:
            task.future.add_done_callback(lambda future: put((task, future.result)))

    def _open(self, task: _Task, seconds: float, answers: list[Any]) -> Done:
        """Return the results, and send what was not done in time again."""
        self._pace.note(seconds / len(answers))
        done, left = task.numbers[: len(answers)], task.numbers[len(answers) :]
        if self._ticket is not None:
            answers = [open_answer(data, (), partial(self._job.label, at)) for at, data in zip(done, answers)]
        if left:
            self._begin(_Task(left))
        return list(zip(done, answers))

    def _lose(self, task: _Task, error: Exception) -> None:
        """Run chunks again that the pool lost, each alone, or raise; what a function raised in a thread is no loss."""
        if self._ticket is None:
            raise error
        where = self._job.label(task.numbers.start)
        if len(task.numbers) > 1:
            where += f" or one of the {len(task.numbers) - 1} after it"
        told = WorkerError(f"{type(self._pool).__name__} lost {where}: {error!r}")
        # Dask runs a task again by itself, but not when all that had the source are gone
        gone = isinstance(error, concurrent.futures.CancelledError)
        if task.losses >= self._retries + (SPARE if gone else 0):
            raise told from error
        try:
            if gone and getattr(self._ticket.content, "status", None) == "cancelled":
                self._ticket = self._ticket._replace(content=_stored(self._pool, self._parts))
            for number in task.numbers:
                self._begin(_Task(range(number, number + 1), task.losses + 1))
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


def _fail(error: BaseException) -> NoReturn:
    raise error


def _stored(pool: AnyPool, parts: list[Any]) -> Any:
    """Put the parts of a job to the object store of a cluster and return the reference; None where there is no room."""
    if hasattr(pool, "put"):
        return pool.put(parts)
    client: Any = getattr(pool, "_client", None)
    if not hasattr(client, "scatter"):
        return None
    limits = [worker["memory_limit"] or math.inf for worker in client.scheduler_info()["workers"].values()]
    if sum(part.nbytes for part in parts) > SHARE * min(limits, default=math.inf):
        return None
    return client.scatter([parts], broadcast=True, hash=False)[0]


def _free_memory() -> float:
    with open("/proc/meminfo") as file:  # wherever there are blocks
        return next((float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")), math.inf)


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


# ---- in a worker of theirs

# The jobs that this process has opened, what tells that one is over, and when each was last asked for. Threads of one
# worker may ask at once.
_jobs: OrderedDict[str, tuple[Job, Callable[[], bool], float]] = OrderedDict()
_opening = threading.Lock()
_aside: list[concurrent.futures.ThreadPoolExecutor] = []


def _begin_again() -> None:
    """Start anew in a forked process."""
    global _opening
    _jobs.clear()
    _opening = threading.Lock()
    # OpenMP keeps its team per thread. In a forked process the main thread believes in a team that was not copied, and
    # its first parallel loop would wait for ever; another thread makes a team of its own.
    _aside[:] = [concurrent.futures.ThreadPoolExecutor(1)]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)


def _run_here(job: Job, numbers: range, over: Callable[[], bool]) -> Answers:
    """Answer chunks in a thread of this process."""
    return _stint(partial(run_here, job), numbers, over)


def _run_there(name: str, content: Any, load: Load) -> Answers:
    """Answer chunks in a process."""
    call = partial(_answers, name, content, load)
    return _aside[0].submit(call).result() if _aside and torch.get_num_threads() > 1 else call()


def _stint(run: Callable[[int], Any], numbers: range, over: Callable[[], bool]) -> Answers:
    """Run chunks until all are done, nobody wants them any more, one went wrong, or it takes long."""
    began, made = time.perf_counter(), []
    for number in numbers:
        if over():
            break
        made.append(run(number))
        if time.perf_counter() - began > LONG or (isinstance(made[-1], bytes) and made[-1][:1] == BAD):
            break
    return time.perf_counter() - began, made


def _answers(name: str, content: Any, load: Load) -> Answers:
    def pack(result: object, kind: bytes) -> bytes:
        return bytes(dumps(result, kind, load.by_value))

    try:
        job, over = _open_job(name, content)
        rows = None if load.rows is None else loads(load.rows)
    except Exception as error:
        return 0.0, [fault(error, pack)]
    order = None if load.order is None else torch.frombuffer(bytearray(load.order), dtype=torch.int64)
    first = job.plan.rows(load.numbers).start
    stored = isinstance(content, list)  # an object store is read only

    def finish(number: int) -> Any:
        chunk = job.chunk(number)
        if order is not None:
            chunk = chunk._replace(rows=order[chunk.start - first : chunk.stop - first])
        if rows is not None:
            return job.finish(chunk, rows[number - load.numbers.start])
        taken = job.take(chunk)
        return job.finish(chunk, taken.clone() if stored else taken)

    return _stint(lambda number: answer(partial(finish, number), partial(job.label, number), pack), load.numbers, over)


def _open_job(name: str, content: Any) -> tuple[Job, Callable[[], bool]]:
    with _opening:
        if name in _jobs:
            job, over, _ = _jobs[name]
        else:
            job, over = _unpacked(content)
            if not _jobs:
                threading.Thread(target=_forget, args=(IDLE,), daemon=True).start()
            while len(_jobs) >= KEPT:
                _jobs.popitem(last=False)
        _jobs[name] = job, over, time.monotonic()
        return job, over


def _unpacked(content: Any) -> tuple[Job, Callable[[], bool]]:
    over: Callable[[], bool] = bool
    if isinstance(content, Nearby):
        content, over = content.opened()
    head, *parts = [memoryview(part) for part in ([content] if isinstance(content, bytes) else content)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return loads(head, parts), over


def _forget(idle: float) -> None:
    """Drop each job that was not asked for lately, and with it the memory that it may hold."""
    left = True
    while left:
        time.sleep(idle / 4)
        with _opening:
            for name in [name for name, (_, _, asked) in _jobs.items() if time.monotonic() - asked > idle]:
                del _jobs[name]
            left = bool(_jobs)
