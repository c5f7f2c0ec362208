"""Batches that another process reads and transforms, with threads of its own, so that this one is not disturbed.

    parent                                            child
    start(dataset, transform)  ------------------->   listens
    begin(pass)  --------------------------------->   crew of threads reads runs of batches
    make slots   <------------ need(bytes) --------   a run is larger than a slot
    slots  --------------------------------------->   copies the bytes of a run into a free slot
    rebuild batches on the slot  <--- run ----------
    free(slot)  ---------------------------------->

The slots are one block of shared memory. The parent waits on the pipe and on the end of the child at once, so a child
that dies is an error and not a hang; the child ends when the pipe does, or when it gets another parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from tensordict.data.buffers import Pool
from tensordict.data.crew import Crew
from tensordict.data.order import Blocks, mixed, order_of
from tensordict.data.reader import Run, Task
from tensordict.data.schedule import Schedule
from tensordict.ops.parallel.link import Link
from tensordict.ops.parallel.pool import AT_START, obituary
from tensordict.ops.parallel.wire import WorkerError, dumps, fault, loads, open_answer, split
from tensordict.ops.parallel.worker import Parcel, leave, settle, start_process
from tensordict.storage.base import view
from tensordict.storage.memory import allocate_shared

METHODS = ("process", "fork", "spawn", "forkserver")
_ALIGN = 64
_PATIENCE = 1.0  # seconds between two looks at the other side
_UNPICKLABLE = (
    "the dataset or the transform cannot be sent to a process ({error}). Define the transform at the top level of a "
    "module, not as a lambda or inside another function, or use threads (workers=1)"
)


class Recipe(NamedTuple):
    """What a child holds from its start."""

    dataset: Any
    transform: Any
    ahead: int
    threads: int


class Pass(NamedTuple):
    """One pass over the dataset; with `single`, each batch is read alone."""

    schedule: Schedule
    shuffle: bool | Blocks
    seed: int
    epoch: int
    single: bool


class Terms(NamedTuple):
    """How the parent hands batches out: in lent memory or not, how many runs lie ready, what is done to them last."""

    reuse: bool | str
    ahead: int
    finish: Callable[[Any], Any] | None
    idle: deque[Helper]


class Packet(NamedTuple):
    """A run on its way: `head` is the pickle of its batches, whose large tensors lie in a slot, or its error."""

    batches: int
    size: int
    place: tuple[int, int] | None
    spans: list[tuple[int, int]]
    head: bytes
    failed: str | None = None


class Helper:
    """The child and the pipe to it, as the parent holds them."""

    def __init__(self, recipe: Recipe, method: str) -> None:
        if multiprocessing.current_process().daemon:
            raise RuntimeError("a worker process may not start a process of its own: pass workers=1 here")
        parcel = Parcel(recipe)  # type: ignore[arg-type]
        self._owner = os.getpid()
        self._block: Tensor | None = None
        self._size = self._generation = 0
        try:
            self.link, self.process = start_process(
                _serve, (parcel,), None if method == "process" else method, "loader"
            )
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise pickle.PicklingError(_UNPICKLABLE.format(error=error)) from error
        finally:
            parcel.close()
        self.end = weakref.finalize(self, _end, self.process, self.link, os.getpid())

    def alive(self) -> bool:
        """Tell whether the child can be used: it has not ended, and this is the process that it belongs to."""
        return os.getpid() == self._owner and self.process.exitcode is None

    def say(self, kind: str, value: Any) -> None:
        """Send the child a message; that it is dead is found when its answer is waited for."""
        with contextlib.suppress(OSError):
            self.link.pipe.send((kind, value))

    def make_slots(self, size: int, count: int) -> None:
        """Make room for runs of so many bytes, instead of what room there was."""
        self._size = -(-size * 5 // 4 // _ALIGN) * _ALIGN
        self._block = view(allocate_shared(self._size * count), 0, (count, self._size), torch.uint8)
        self._generation += 1
        self.say("slots", (self._block, self._generation))

    def slot(self, place: tuple[int, int]) -> Any:
        """Return the bytes of a slot, or None for a slot of a block that has been replaced."""
        assert self._block is not None
        return self._block[place[1]].numpy()

    def receive(self) -> Any:
        """Return the next message of the child.

        Raises:
            WorkerError: the child died.
        """
        pipe = self.link.pipe
        while pipe not in wait([pipe, self.process.sentinel], _PATIENCE):
            if self.process.exitcode is not None and not pipe.poll():
                raise self._died()
        try:
            return pickle.loads(self.link.receive()[2])
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> WorkerError:
        self.process.join(_PATIENCE)
        code = self.process.exitcode
        return WorkerError(f"the process of the Loader {obituary(code)}" + (AT_START if code == 1 else ""))


def _end(process: Any, link: Link, owner: int) -> None:
    """End a child; a forked copy of the parent does nothing."""
    if os.getpid() != owner:
        return
    link.close()
    process.terminate()
    leave(process, time.monotonic() + _PATIENCE)


def hired(recipe: Recipe, method: str, idle: deque[Helper]) -> Helper:
    """Return a child that no pass uses, or a new one."""
    while idle:
        helper = idle.pop()
        if helper.alive():
            return helper
    return Helper(recipe, method)


class Remote:
    """The runs of a pass that a child reads."""

    def __init__(self, helper: Helper, job: Pass, terms: Terms) -> None:
        self._helper, self._job, (reuse, ahead, self._finish, self._idle) = helper, job, terms
        self._lend, self._count = reuse is True, ahead + 2
        self._pool = Pool(noted=reuse == "check")
        self._first = 0
        self._fine = True
        helper.say("begin", job)

    def take(self) -> tuple[Run, float]:
        """Return the next run in order, and the seconds that it was waited for."""
        began = time.perf_counter()
        self._fine = False
        while isinstance(packet := self._helper.receive(), int):
            self._helper.make_slots(packet, self._count)
        run = Run(self._first, packet.batches)
        run.bytes = packet.size
        self._first += packet.batches
        if packet.failed is None:
            made = self._rebuilt(packet, run)
            run.batches.extend(made if self._finish is None else map(self._finish, made))
            self._fine = True
        else:
            try:
                open_answer(packet.head, [], lambda: str(packet.failed))
            except Exception as error:
                run.error = error
        return run, time.perf_counter() - began

    def _rebuilt(self, packet: Packet, run: Run) -> Any:
        buffers: list[Any] = []
        if packet.place is not None:
            slot = self._helper.slot(packet.place)
            buffers = [memoryview(slot[start:stop]) for start, stop in packet.spans]
            if self._lend:
                run.pool, run.rooms = _Slots(self._helper), [packet.place]
            else:
                run.rooms = self._pool.begin()
                buffers = [self._copied(part) for part in buffers]
                self._helper.say("free", packet.place)
        whole, content = loads(packet.head, buffers)
        if not whole:
            return content
        return (content,) if packet.batches == 1 else content.split(self._job.schedule.batch)

    def _copied(self, part: Any) -> Any:
        room = self._pool.room(part.nbytes)
        room[...] = numpy.frombuffer(part, numpy.uint8)
        return memoryview(room)

    def close(self) -> None:
        """Keep the child for the next pass after a whole one; end it when the pass was left."""
        if self._fine and self._first >= self._job.schedule.count:
            self._idle.append(self._helper)
        else:
            self._helper.end()


class _Slots:
    """Where slots are given back."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper

    def give_back(self, places: list[Any]) -> None:
        for place in places:
            self._helper.say("free", place)
        places.clear()


# ---- the child


class _Child:
    """The sender of a child: it reads the runs of a pass and copies them into slots."""

    def __init__(self, link: Link, recipe: Recipe) -> None:
        self._link, self._recipe = link, recipe
        self._pools: deque[Any] = deque()
        self._free: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._block: Tensor | None = None
        self._generation = 0

    def slots(self, block: Tensor, generation: int) -> None:
        """Take new slots instead of the old ones."""
        self._block, self._generation = block, generation
        for number in range(len(block)):
            self._free.put((generation, number))

    def free(self, place: tuple[int, int]) -> None:
        """Take a slot back."""
        self._free.put(place)

    def run(self, job: Pass) -> None:
        """Read all runs of a pass, and send them."""
        dataset, transform, ahead, threads = self._recipe
        seed = mixed(job.seed, job.epoch)
        torch.manual_seed(seed >> 1)
        random.seed(seed)
        numpy.random.seed(seed & 0xFFFFFFFF)
        order = order_of(job.schedule.size, job.shuffle, job.seed, job.epoch)
        task = Task(dataset, order, job.schedule, transform, True, self._pools, job.single, whole=transform is None)
        with contextlib.closing(Crew(task, threads, ahead)) as crew:
            done = 0
            while done < job.schedule.count:
                run, _ = crew.take()
                done += run.count
                failed = self._sent(run)
                run.give_back()
                if failed:
                    return

    def _sent(self, run: Run) -> bool:
        """Send a run; tell whether it ended with an error."""
        if run.batches:
            whole = self._recipe.transform is None
            try:
                head, buffers = split((whole, run.batches[0] if whole else list(run.batches)))
            except Exception as error:
                run.error = pickle.PicklingError(f"what the transform returned cannot be pickled: {error}")
            else:
                count = run.count if whole else len(run.batches)
                place, spans = self._laid(buffers)
                self._send(Packet(count, run.bytes, place, spans, bytes(head)))
        if run.error is None:
            return False
        raised = run.error if isinstance(run.error, Exception) else WorkerError(repr(run.error))
        self._send(Packet(0, 0, None, [], bytes(fault(raised, dumps)), where(raised)))
        return True

    def _laid(self, buffers: list[memoryview]) -> tuple[tuple[int, int] | None, list[tuple[int, int]]]:
        """Copy buffers into a free slot; return where they lie, or that they are to be sent inline."""
        spans, total = [], 0
        for part in buffers:
            spans.append((total, total + part.nbytes))
            total += -(-part.nbytes // _ALIGN) * _ALIGN
        if not total:
            return None, []
        if self._block is None or total > self._block.shape[1]:
            self._send(total)
        while True:
            place = self._free.get()
            if place[0] == self._generation and self._block is not None and total <= self._block.shape[1]:
                break
        slot: Any = self._block[place[1]].numpy()
        for part, (start, stop) in zip(buffers, spans):
            slot[start:stop] = numpy.frombuffer(part, numpy.uint8)
        return place, spans

    def _send(self, message: Any) -> None:
        self._link.send(0, memoryview(pickle.dumps(message, protocol=5)), [])


def where(error: BaseException) -> str:
    """Return where an error happened, as its first cause says."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def _serve(pipe: Any, parcel: Any) -> None:
    """Be a child until the parent closes the pipe or dies."""
    settle()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):
        link = Link(pipe)
        try:
            child = _Child(link, parcel.open())
        except Exception as error:
            packet = Packet(0, 0, None, [], bytes(fault(error, dumps)), "its start")
            link.send(0, memoryview(pickle.dumps(packet)), [])
            return
        while True:
            _heard(child, *pipe.recv())
    os._exit(0)  # threads that read or wait are not waited for


def _heard(child: _Child, kind: str, value: Any) -> None:
    if kind == "begin":
        threading.Thread(target=_running, args=(child, value), daemon=True).start()
    elif kind == "slots":
        child.slots(*value)
    else:
        child.free(value)


def _running(child: _Child, job: Pass) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        child.run(job)
