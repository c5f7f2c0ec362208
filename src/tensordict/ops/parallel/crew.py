"""Who works on the chunks: our own processes (`pool`), a pool of the user's, or the calling process.

A crew takes a chunk when it is free and hands back what has finished. `schedule` drives any crew:

    chunks --submit--> crew --collect--> ready --> consumer (in order, or as they finish)
"""

from __future__ import annotations

import multiprocessing.pool
import queue
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from .plan import Chunk, Plan
from .wire import WorkerError, answer, open_answer

LOOKAHEAD = 2  # chunks per worker that may be under way or wait for the consumer
PATIENCE = 1.0  # seconds between two looks at the workers' health, and for a worker to leave


@dataclass(frozen=True)
class Job:
    """What every worker holds from its start: the function, the source, and where results go.

    The function comes first so that one that cannot be pickled fails before the source is touched.
    """

    fn: Callable[[Any], Any]
    source: Any
    plan: Plan
    out: Any = None

    def take(self, chunk: Chunk) -> Any:
        """Take the rows of *chunk* from the source, as a view where they are contiguous."""
        return self.source[place(self.plan, chunk)]

    def run(self, chunk: Chunk) -> Any:
        """Call the function on the chunk; with an ``out``, write the result there and return None."""
        result = self.fn(self.take(chunk))
        if self.out is None or result is None:
            return result
        write_rows(self.out, self.plan, chunk, result)
        return None


def place(plan: Plan, chunk: Chunk) -> tuple[Any, ...]:
    """Return the index of *chunk*: a number for a single row, a slice, or a tensor of row numbers when shuffled.

    Example:
        >>> place(Plan(1, 5, 2, 3), Chunk(0, 0, 2))
        (slice(None, None, None), slice(0, 2, None))
    """
    at: Any
    if chunk.rows is not None:
        at = int(chunk.rows[0]) if plan.single else torch.from_numpy(chunk.rows)
    else:
        at = chunk.start if plan.single else slice(chunk.start, chunk.stop)
    return (*(slice(None),) * plan.dim, at)


def write_rows(out: Any, plan: Plan, chunk: Chunk, result: Any) -> None:
    """Write *result* to the rows of *chunk* in *out*.

    Raises:
        ValueError: the result has another number of rows than the chunk.
    """
    shape = getattr(result, "shape", None)
    rows = chunk.stop - chunk.start
    if not plan.single and (shape is None or len(shape) <= plan.dim or shape[plan.dim] != rows):
        got = f"a {type(result).__name__}" if shape is None else f"shape {list(shape)!r}"
        raise ValueError(
            f"the result for {chunk.label(plan.dim)} cannot be written to out: expected {rows} rows along "
            f"dim {plan.dim}, got {got}"
        )
    out[place(plan, chunk)] = result


class Crew(Protocol):
    """Workers that take one chunk each."""

    size: int

    def free(self) -> bool:
        """Say whether a worker can take a chunk now."""

    def busy(self) -> int:
        """Count the chunks under way."""

    def submit(self, chunk: Chunk) -> None:
        """Give *chunk* to a free worker."""

    def collect(self, block: bool) -> list[tuple[Chunk, Any]]:
        """Return what has finished, after waiting for at least one when *block* is set."""

    def close(self, finished: bool) -> None:
        """Let the workers go: politely when all work is *finished*, else at once."""


def schedule(
    hire: Callable[[], Crew], chunks: Iterator[Chunk], *, ordered: bool
) -> Generator[tuple[Chunk, Any], None, None]:
    """Start a crew, yield (chunk, result) for every chunk, and let the crew go, whatever the end is."""
    crew = hire()
    ready: dict[int, tuple[Chunk, Any]] = {}
    following = next(chunks, None)
    head, finished = 0, False
    try:
        while following is not None or ready or crew.busy():
            while following is not None and crew.free() and crew.busy() + len(ready) < LOOKAHEAD * crew.size:
                crew.submit(following)
                following = next(chunks, None)
            number = head if ordered else next(iter(ready), -1)
            block = number not in ready
            if not block:
                head += 1
                yield ready.pop(number)
            ready.update((chunk.number, (chunk, result)) for chunk, result in crew.collect(block))
        finished = True
    finally:
        crew.close(finished)


class Caller:
    """The calling process as a crew of one."""

    size = 1

    def __init__(self, job: Job) -> None:
        self._job = job
        self._chunks: list[Chunk] = []

    def free(self) -> bool:
        """A chunk is taken when none waits."""
        return not self._chunks

    def busy(self) -> int:
        """Count the chunk that waits."""
        return len(self._chunks)

    def submit(self, chunk: Chunk) -> None:
        """Keep *chunk* until it is asked for: nothing runs ahead of the consumer."""
        self._chunks.append(chunk)

    def collect(self, block: bool) -> list[tuple[Chunk, Any]]:
        """Run the chunk that waits."""
        if not (block and self._chunks):
            return []
        chunk = self._chunks.pop()
        return [(chunk, self._job.run(chunk))]

    def close(self, finished: bool) -> None:
        """Nothing was started."""


class Guests:
    """A pool that the user made and keeps: each task carries the function and its slice."""

    def __init__(self, job: Job, pool: multiprocessing.pool.Pool) -> None:
        self._job, self._pool = job, pool
        self.size: int = pool._processes  # type: ignore[attr-defined]
        self._under_way = 0
        self._done: queue.SimpleQueue[tuple[Chunk, bytes | BaseException]] = queue.SimpleQueue()
        self._staff = self._names()
        self._retires = pool._maxtasksperchild is not None  # type: ignore[attr-defined]

    def free(self) -> bool:
        """The pool queues what its workers cannot take yet."""
        return self._under_way < LOOKAHEAD * self.size

    def busy(self) -> int:
        """Count the chunks that the pool holds."""
        return self._under_way

    def submit(self, chunk: Chunk) -> None:
        """Hand the function and the slice to the pool."""
        self._pool.apply_async(
            _run_guest,
            (self._job.fn, self._job.take(chunk), partial(chunk.label, self._job.plan.dim)),
            callback=lambda data: self._done.put((chunk, data)),
            error_callback=lambda error: self._done.put((chunk, error)),
        )
        self._under_way += 1

    def collect(self, block: bool) -> list[tuple[Chunk, Any]]:
        """Unpack one finished chunk.

        Raises:
            Exception: what the function raised, or what kept the pool from sending the task.
            WorkerError: a worker of the pool died, so its chunk would never finish.
        """
        while self._under_way:
            try:
                chunk, data = self._done.get(timeout=PATIENCE if block else 0)
            except queue.Empty:
                if not block:
                    break
                self._check_alive()
                continue
            self._under_way -= 1
            if isinstance(data, BaseException):
                raise data
            return [(chunk, open_answer(data, partial(chunk.label, self._job.plan.dim)))]
        return []

    def close(self, finished: bool) -> None:
        """The pool stays the user's."""

    def _check_alive(self) -> None:
        # The pool replaces a dead worker silently and forgets its task; one that retires its workers looks the same.
        if self._staff != self._names() and not self._retires:
            raise WorkerError("a worker process of the given pool died while chunks were under way")

    def _names(self) -> set[str]:
        return {process.name for process in self._pool._pool}  # type: ignore[attr-defined]


def _run_guest(fn: Callable[[Any], Any], rows: Any, label: Callable[[], str]) -> bytes:
    return bytes(answer(partial(fn, rows), label))
