"""Worker processes that hold the job from their start; a task is a chunk's numbers, and an answer is bytes.

    parent                                   worker
    start(job)  -- inherited or pickled -->  seed, wait
    send(chunk) ------- one pipe --------->  job.run(chunk)
    wait([pipes, sentinels])  <-- bytes ---  answer
    close the pipe ----------------------->  end of file: exit

The parent waits on the pipe and the exit of every worker at once, so a worker that dies is an error and not a hang.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import weakref
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn, cast

import torch

from .crew import PATIENCE, Job
from .plan import Chunk
from .seeds import seed_worker
from .wire import WorkerError, answer, fault, loads, open_answer, receive, send

# The parent's ends of all pipes of this process. A forked worker closes its copies: while it held them, a sibling
# would not see the end of file when the parent dies.
_ends: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True)
class Setup:
    """How workers start: start method, torch threads, base seed, chunks until a worker is replaced."""

    method: str | None
    threads: int
    seed: int
    max_tasks: int | None


class _Worker:
    """One process, its pipe, and the chunk it works on."""

    def __init__(self, job: Job, setup: Setup, index: int) -> None:
        context: Any = torch.multiprocessing.get_context(setup.method)
        self.index, self.done = index, 0
        self.chunk: Chunk | None = None
        self.pipe, theirs = context.Pipe()
        _ends.add(self.pipe)
        self.process: Any = context.Process(
            target=_serve, args=(theirs, _Parcel(job), setup, index), daemon=True, name=f"map-worker-{index}"
        )
        try:
            self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.pipe.close()
            raise pickle.PicklingError(_UNPICKLABLE.format(fn=job.fn, error=error)) from error
        finally:
            theirs.close()

    def leave(self, patient: bool) -> None:
        """End the process: let it exit by itself when *patient*, else stop it now."""
        self.pipe.close()
        if not patient:
            self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()


class Pool:
    """A crew of processes of our own."""

    def __init__(self, job: Job, setup: Setup, size: int) -> None:
        self.size = size
        self._job, self._setup, self._started = job, setup, 0
        self._owner = os.getpid()
        self._workers: list[_Worker] = []
        self._retired: list[_Worker] = []
        if multiprocessing.current_process().daemon:
            raise RuntimeError("a worker process may not start workers of its own: pass num_workers=0 here")
        try:
            for _ in range(size):
                self._start()
        except BaseException:
            self.close(finished=False)
            raise

    def free(self) -> bool:
        """Say whether a worker has no chunk."""
        return any(worker.chunk is None for worker in self._workers)

    def busy(self) -> int:
        """Count the workers that have a chunk."""
        return sum(worker.chunk is not None for worker in self._workers)

    def submit(self, chunk: Chunk) -> None:
        """Send the numbers of *chunk* to a free worker; one that has done its share is replaced by a new one."""
        worker = next(worker for worker in self._workers if worker.chunk is None)
        if worker.done == self._setup.max_tasks:
            worker = self._replace(worker)
        worker.chunk = chunk
        try:
            worker.pipe.send_bytes(pickle.dumps(tuple(chunk), protocol=5))
        except OSError:
            self._mourn(worker)

    def collect(self, block: bool) -> list[tuple[Chunk, Any]]:
        """Read the answers that have arrived.

        Raises:
            Exception: what the function raised in the worker, with the worker's traceback as its cause.
            WorkerError: a worker died.
        """
        busy = {worker.pipe: worker for worker in self._workers if worker.chunk is not None}
        answers = self._read(busy, None if block else 0)
        return [(chunk, open_answer(data, partial(chunk.label, self._job.plan.dim))) for chunk, data in answers]

    def close(self, finished: bool) -> None:
        """End every process; in a forked copy of the owner, which shares the numbers of the processes, do nothing."""
        if os.getpid() != self._owner:
            return
        everyone, self._workers, self._retired = self._workers + self._retired, [], []
        for worker in everyone:  # all are told before any is waited for
            worker.pipe.close()
            if not finished and worker.process.exitcode is None:
                worker.process.terminate()
        for worker in everyone:
            worker.leave(finished)

    def _start(self) -> _Worker:
        worker = _Worker(self._job, self._setup, self._started)
        self._started += 1
        self._workers.append(worker)
        return worker

    def _replace(self, worker: _Worker) -> _Worker:
        self._workers.remove(worker)
        worker.pipe.close()
        for old in [old for old in self._retired if old.process.exitcode is not None]:
            self._retired.remove(old)
            old.leave(patient=True)
        self._retired.append(worker)
        return self._start()

    def _read(self, busy: dict[Any, _Worker], timeout: float | None) -> list[tuple[Chunk, bytes | bytearray]]:
        """Wait for pipes and exits; an answer that has arrived is read before its worker is found dead."""
        exits = {worker.process.sentinel: worker for worker in busy.values()}
        answers: list[tuple[Chunk, bytes | bytearray]] = []
        while busy and not answers:
            events: list[Any] = wait([*busy, *exits], PATIENCE if timeout is None else timeout)
            for event in events:
                worker = busy.get(event) or exits[event]
                if event in busy or worker.pipe not in events:
                    answers.append(self._receive(worker, event in busy))
            if timeout is not None:
                break
            # A process that the function left behind may hold the dead worker's pipe open: look at the exits too.
            for worker in () if answers else busy.values():
                if worker.process.exitcode is not None:
                    self._mourn(worker)
        return answers

    def _receive(self, worker: _Worker, readable: bool) -> tuple[Chunk, bytes | bytearray]:
        try:
            data = receive(worker.pipe) if readable or worker.pipe.poll() else None
        except (EOFError, OSError):
            data = None
        if data is None or worker.chunk is None:
            self._mourn(worker)
        chunk, worker.chunk = worker.chunk, None
        worker.done += 1
        return chunk, data

    def _mourn(self, worker: _Worker) -> NoReturn:
        worker.process.join(PATIENCE)
        code = worker.process.exitcode
        where = "between two chunks" if worker.chunk is None else f"at {worker.chunk.label(self._job.plan.dim)}"
        raise WorkerError(
            f"worker {worker.index} {_obituary(code)} {where}" + (_AT_START if code == 1 and not worker.done else "")
        )


_UNPICKLABLE = (
    "the job cannot be sent to a worker process ({error}). Define the function {fn!r} at the top level of a module, "
    "not as a lambda or inside another function, or use mp_start_method='fork'"
)
_AT_START = (
    ". If it failed before the function ran, its traceback is printed above: a worker must be able to import the "
    "main module (put the main code under `if __name__ == '__main__':`)"
)


def _obituary(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


class _Parcel:
    """The job on its way: inherited as it is, or pickled with the process and opened where an error can be told.

    The bytes go through shared memory: starting a process writes the rest to a pipe, and a long write to a worker
    that has died at its start, because it cannot import the main module, would never end.
    """

    def __init__(self, job: Job | None, block: torch.Tensor | None = None) -> None:
        self._job, self._block = job, block

    def __reduce__(self) -> Any:
        # Kept here until the process has started: its memory goes with the last reference.
        self._block = torch.frombuffer(bytearray(ForkingPickler.dumps(self._job)), dtype=torch.uint8)
        return _Parcel, (None, self._block)

    def open(self) -> Job:
        return cast(Job, self._job if self._block is None else loads(memoryview(self._block.numpy())))  # type: ignore[arg-type]


def _serve(pipe: Any, parcel: _Parcel, setup: Setup, index: int) -> None:
    """Be a worker until the parent closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in list(_ends):
        end.close()
    work = partial(_work, pipe, parcel, setup, index)
    if setup.threads == 1:
        work()
    else:
        # OpenMP keeps its team per thread. In a forked process the main thread believes in a team that was not
        # copied, and its first parallel loop would wait for ever; a new thread makes a new team.
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def _work(pipe: Any, parcel: _Parcel, setup: Setup, index: int) -> None:
    """Answer chunks until the pipe ends or breaks: the parent has no more, or is gone."""
    torch.set_num_threads(setup.threads)
    with contextlib.suppress(EOFError, OSError):
        try:
            job = parcel.open()
        except Exception as error:
            pipe.recv_bytes()
            send(pipe, fault(error))
            return
        seed_worker(setup.seed, index)
        while True:
            chunk = Chunk(*pickle.loads(pipe.recv_bytes()))
            send(pipe, answer(partial(job.run, chunk), partial(chunk.label, job.plan.dim)))
