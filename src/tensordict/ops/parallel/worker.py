"""What runs in a worker process: open the job, then answer the numbers of chunks until the pipe ends."""

from __future__ import annotations

import array
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import reduction
from multiprocessing.connection import wait
from typing import Any, cast

import torch

from .job import Job
from .link import HAS_BLOCKS, HELLO, READY, Block, Link
from .seeds import seed_worker
from .wire import GOOD, answer, fault, loads, split_job

# The parent's ends of all pipes of this process. A forked worker closes its copies: while it held them, a sibling
# would not see the end of file when the parent dies.
ends: weakref.WeakSet[Link] = weakref.WeakSet()


@dataclass(frozen=True)
class Setup:
    """How workers start and how much is forgiven.

    Start method, torch threads, base seed, chunks until a worker is replaced, how often a lost chunk is run again, and
    the seconds that a chunk may take.
    """

    method: str | None
    threads: int
    seed: int
    max_tasks: int | None
    retries: int
    timeout: float | None


class Parcel:
    """The job on its way: inherited as it is, or pickled with the process and opened where an error can be told.

    Its large parts are copied once, to a block that all workers map; only the head is pickled for each. Both go
    through memory: starting a process writes the rest to a pipe, and a long write to a worker that has died at its
    start, because it cannot import the main module, would never end.
    """

    def __init__(self, job: Job | None, content: Any = None) -> None:
        self._job, self._content = job, content
        self._large: Block | None = None
        self._kept: Any = None

    def __reduce__(self) -> Any:
        head, parts = split_job(self._job)
        if not HAS_BLOCKS:
            tensors = [torch.frombuffer(part, dtype=torch.uint8).clone() for part in (head, *parts)]
            self._kept = tensors  # until the process has started: their memory goes with the last reference
            return Parcel, (None, tensors)
        if self._large is None:
            self._large = Block.write(parts)
        elif self._large.lengths != [part.nbytes for part in parts]:
            raise RuntimeError("the source or the function changed its tensors while workers were being replaced")
        if self._kept is not None:
            self._kept.close()
        self._kept = Block.write([head])
        return Parcel, (None, [(reduction.DupFd(b.descriptor), b.lengths) for b in (self._kept, self._large)])

    def open(self) -> Job:
        """Return the job, in the worker."""
        if self._content is None:
            return cast(Job, self._job)
        if not HAS_BLOCKS:
            head, *parts = [memoryview(tensor.numpy()) for tensor in self._content]
        else:
            blocks = [Block(handle.detach(), lengths) for handle, lengths in self._content]
            head, *parts = [part for block in blocks for part in block.parts()]
            for block in blocks:
                block.close()
        return cast(Job, loads(head, parts))

    def close(self) -> None:
        """Free the memory, in the parent."""
        for block in (self._large, self._kept if HAS_BLOCKS else None):
            if block is not None:
                block.close()
        self._large = self._kept = None


def start_process(
    target: Callable[..., None], args: tuple[Any, ...], method: str | None, name: str
) -> tuple[Link, Any]:
    """Start a process that gets one end of a pipe before its other arguments; return our end, and the process."""
    context: Any = torch.multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    link = Link(ours)
    ends.add(link)
    process = context.Process(target=target, args=(theirs, *args), daemon=True, name=name)
    try:
        with _deaf():
            process.start()
    except BaseException:
        link.close()
        raise
    finally:
        theirs.close()
    return link, process


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Let a process be born deaf to Ctrl-C, which would else end it before it can ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def settle() -> None:
    """Make this new process one that its parent ends, and that ends when the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for end in list(ends):
        end.close()
    threading.Thread(target=die_with_parent, daemon=True).start()


def leave(process: Any, deadline: float) -> None:
    """Wait for a process until the deadline, then kill it."""
    process.join(max(0.0, deadline - time.monotonic()))
    if process.exitcode is None:
        process.kill()
        process.join()
    process.close()


def serve(pipe: Any, parcel: Parcel, setup: Setup, index: int) -> None:
    """Be a worker until the parent closes the pipe or dies."""
    settle()
    work = partial(_work, pipe, parcel, setup, index)
    if setup.threads == 1:
        work()
    else:
        # OpenMP keeps its team per thread. In a forked process the main thread believes in a team that was not
        # copied, and its first parallel loop would wait for ever; a new thread makes a new team.
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    started_us = os.getppid() == parent.pid
    # A process that was forked beside us may hold the parent's end of the sentinel, so look at its number as well.
    while not wait([parent.sentinel], 1.0) and (not started_us or os.getppid() == parent.pid):
        pass
    os._exit(1)


def _work(pipe: Any, parcel: Parcel, setup: Setup, index: int) -> None:
    """Answer chunks until the pipe ends or breaks: the parent has no more, or is gone."""
    torch.set_num_threads(setup.threads)
    gc.freeze()  # what a forked process inherited is no garbage: to look at it copies it
    with contextlib.suppress(EOFError, OSError), contextlib.closing(Link(pipe)) as link:
        link.say(HELLO)
        try:
            job = parcel.open()
        except Exception as error:
            link.send(-1, *fault(error))
            return
        seed_worker(setup.seed, index)
        link.say(READY)
        good = True
        while True:
            for number in array.array("q", link.pipe.recv_bytes()) if good else ():
                sent = answer(partial(job.run, number), partial(job.label, number))
                link.send(number, *sent)
                if not (good := sent[0][:1] == GOOD):
                    break  # that was the last: the parent raises it
