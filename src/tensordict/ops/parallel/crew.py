"""Who works on the chunks: our own processes (`pool`), a pool or executor of the user's (`guests`), or the caller.

A crew takes the numbers of chunks and hands back what has finished. `schedule` drives any crew:

    numbers --submit--> crew --collect--> ready --> consumer (in order, or as they finish)
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from .job import Job

Done = list[tuple[int, Any]]  # the numbers of chunks, and their results


class Crew(Protocol):
    """Workers that run chunks."""

    size: int

    def busy(self) -> int:
        """Count the chunks that were submitted and not collected."""

    def wants(self, room: int, most: int) -> int:
        """Count the chunks, of at most *room*, that would keep the workers busy until the next look at them.

        Args:
            room: how many may be submitted.
            most: how many may be under way or wait for the consumer, those included that are.
        """

    def submit(self, numbers: range) -> None:
        """Take chunks; they are begun in this order."""

    def collect(self, block: bool) -> Done:
        """Return what has finished, after waiting for at least one when *block* is set."""

    def close(self, finished: bool) -> None:
        """Let the workers go: politely when all work is *finished*, else at once."""


def schedule(
    hire: Callable[[], Crew], count: int, *, ordered: bool, ahead: int = sys.maxsize
) -> Generator[tuple[int, Any], None, None]:
    """Start a crew, yield (number, result) for every chunk, and let the crew go, whatever the end is.

    Args:
        hire: starts the crew.
        count: how many chunks there are.
        ordered: yield in the order of the numbers, not as the chunks finish.
        ahead: how many chunks per worker may be under way or wait for the consumer.
    """
    crew: Crew | None = None
    ready: dict[int, Any] = {}
    begun, given, finished = 0, 0, False
    try:
        with undisturbed():
            crew = hire()
        while given < count:
            most = min(ahead * crew.size, count - given)
            room = most - crew.busy() - len(ready)
            wanted = crew.wants(room, most) if room > 0 else 0
            if wanted < room and crew.busy():
                ready.update(crew.collect(block=False))
                wanted = crew.wants(room, most)
            if wanted > 0:
                crew.submit(range(begun, begun + wanted))
                begun += wanted
            number = given if ordered else next(iter(ready), -1)
            if number in ready:
                given += 1
                yield number, ready.pop(number)
            else:
                ready.update(crew.collect(block=True))
        finished = True
    finally:
        if crew is not None:
            with undisturbed():
                crew.close(finished)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Put Ctrl-C off until the block is done: it may start or end processes, which are never to be left half way."""
    here = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if here else None
    if before is None:
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


class Caller:
    """The calling process as a crew of one."""

    size = 1

    def __init__(self, job: Job) -> None:
        self._job = job
        self._numbers: list[int] = []

    def busy(self) -> int:
        """Count the chunk that waits."""
        return len(self._numbers)

    def wants(self, room: int, most: int) -> int:
        """A chunk is taken when none waits."""
        return 1 - len(self._numbers)

    def submit(self, numbers: range) -> None:
        """Keep the chunk until it is asked for: nothing runs ahead of the consumer."""
        self._numbers.extend(numbers)

    def collect(self, block: bool) -> Done:
        """Run the chunk that waits."""
        return [(number, run_here(self._job, number)) for number in self._pop(block)]

    def close(self, finished: bool) -> None:
        """Nothing was started."""

    def _pop(self, block: bool) -> list[int]:
        return [self._numbers.pop()] if block else []


def run_here(job: Job, number: int) -> Any:
    """Run a chunk in this process; an error gets a note that names the chunk.

    Raises:
        Exception: what the function raised.
    """
    try:
        return job.run(number)
    except Exception as error:
        if sys.version_info >= (3, 11):
            error.add_note(f"at {job.label(number)}")
        raise
