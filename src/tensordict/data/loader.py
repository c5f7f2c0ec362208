"""The Loader: batches of the rows of a tensordict."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from tensordict.core.core import Core
from tensordict.data.buffers import Watch
from tensordict.data.crew import Caller, Crew
from tensordict.data.order import Blocks, order_of
from tensordict.data.process import METHODS, Pass, Recipe, Remote, Terms, hired
from tensordict.data.reader import Run, Task
from tensordict.data.schedule import Schedule
from tensordict.ops.parallel.cpus import usable_cpus

_LEAST = {"seed": None, "epoch": 0, "position": 0}


@dataclass(frozen=True)
class Stats:
    """What the newest pass over a `Loader` has done so far.

    Args:
        batches: how many batches were handed out.
        bytes: how many bytes of rows were read for them.
        waited: for how many seconds they were waited for, the first batch among them.

    Examples:
        >>> from tensordict.data import Stats
        >>> Stats(batches=2, bytes=64, waited=0.5)
        Stats(batches=2, bytes=64, waited=0.5)
    """

    batches: int = 0
    bytes: int = 0
    waited: float = 0.0


class Source(Protocol):
    """Where a pass takes its runs from."""

    def take(self) -> tuple[Run, float]:
        """Return the next run in order, and the seconds that it was waited for."""

    def close(self) -> None:
        """Free what the pass took."""


class Progress:
    """How far a pass over the loader has come."""

    def __init__(self, epoch: int, schedule: Schedule) -> None:
        self.epoch, self.schedule = epoch, schedule
        self.position = schedule.start
        self.finished = False
        self.batches = self.bytes = 0
        self.waited = 0.0


class Loader:
    """Iterate over batches of the rows of a tensordict, which threads read ahead.

    Every pass is one epoch, and the next pass is the next epoch. The order of the rows is a function of ``seed`` and
    the epoch alone. A batch has memory of its own, with the values of ``dataset[rows]``: rows of a lazy stack become
    dense where their keys and shapes allow it, those of a store are read.

    Args:
        dataset: a tensordict of any kind with a batch dim: in memory, lazy, memory-mapped, shared, in HDF5 or zarr, a
            tensorclass, rows of one of them.
        batch_size: how many rows a batch has, on each rank.
        shuffle: True for a random order of the rows, `Blocks` for one that reads neighbouring rows together.
        drop_last: leave out a last batch with fewer rows.
        seed: an integer that the random order comes from.
        transform: called with each batch, in the threads; what it returns is handed out.
        workers: how many threads read; 0 reads when a batch is asked for. "process" lets another process read and
            transform, with torch's default start method, or that of the name "fork", "spawn" or "forkserver".
        prefetch: how many batches a thread reads ahead. Small ones are read in runs of up to 64 batches or eight
            megabytes, and then so many runs.
        pin_memory: hand out batches in pinned memory.
        reuse_buffers: lend the buffers: a batch is valid until the next is asked for. "check" overwrites a batch
            then, and raises RuntimeError if one is still held later.
        rank: which rank this is; each gets its part of every global batch of ``batch_size * world_size`` rows. None
            asks `torch.distributed` where that is initialized.
        world_size: how many ranks there are.

    Raises:
        TypeError: if the dataset is no tensor collection, or an option has another type.
        ValueError: if the dataset has no rows dim, or an option is out of range.
        Exception: in a pass, what ``transform`` raised, with the number and the rows of its batch as the cause.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.data import Loader
        >>> data = TensorDict({"x": torch.arange(5)}, [5])
        >>> for batch in Loader(data, batch_size=2):
        ...     print(batch["x"])
        tensor([0, 1])
        tensor([2, 3])
        tensor([4])
        >>> loader = Loader(data, 2, shuffle=True, drop_last=True, seed=3)
        >>> len(loader), next(iter(loader))["x"].shape
        (2, torch.Size([2]))
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool | Blocks = False,
        drop_last: bool = False,
        seed: int = 0,
        transform: Callable[[Any], Any] | None = None,
        workers: int | str = 1,
        prefetch: int = 2,
        pin_memory: bool = False,
        reuse_buffers: bool | str = False,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        _check_dataset(dataset)
        if not isinstance(shuffle, (bool, Blocks)):
            raise TypeError(f"shuffle must be True, False or Blocks(...), got {shuffle!r}")
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {transform!r}")
        if reuse_buffers not in (True, False, "check"):
            raise ValueError(f"reuse_buffers must be True, False or 'check', got {reuse_buffers!r}")
        self.dataset, self.shuffle, self.transform = dataset, shuffle, transform
        self.batch_size = _whole("batch_size", batch_size, 1)
        self.drop_last, self.pin_memory, self.reuse_buffers = bool(drop_last), bool(pin_memory), reuse_buffers
        self.seed = _whole("seed", seed)
        self.workers = workers if workers in METHODS else _whole("workers", workers, 0)
        self.prefetch = _whole("prefetch", prefetch, 1)
        self.rank, self.world_size = _check_ranks(rank, world_size)
        self._epoch, self._start = 0, 0
        self._chosen = False  # whether the epoch of the next pass is, though nothing may be left of it
        self._progress: Progress | None = None
        self._pools: deque[Any] = deque()  # buffers that no pass uses
        self._helpers: deque[Any] = deque()  # and processes

    def __len__(self) -> int:
        """Return how many batches an epoch has, on each rank.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tensordict.data import Loader
            >>> len(Loader(TensorDict({"x": torch.arange(5)}, [5]), batch_size=2))
            3
        """
        return self._schedule(0).count

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass: the rest of the epoch that a loaded state is in, else a whole epoch.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tensordict.data import Loader
            >>> [len(batch) for batch in Loader(TensorDict({"x": torch.arange(3)}, [3]), batch_size=2)]
            [2, 1]
        """
        epoch, start = self._next()
        self._epoch, self._start, self._chosen = epoch, 0, False
        progress = self._progress = Progress(epoch, self._schedule(start))
        return _deliver(self._source(progress), progress, Watch() if self.reuse_buffers == "check" else None)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; where it is the one that a loaded state is in, the position stays.

        Args:
            epoch: a number, from 0.

        Raises:
            TypeError: if it is not an int.
            ValueError: if it is negative.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tensordict.data import Loader
            >>> loader = Loader(TensorDict({"x": torch.arange(3)}, [3]), batch_size=2, shuffle=True)
            >>> loader.set_epoch(4)
            >>> loader.state_dict()
            {'seed': 0, 'epoch': 4, 'position': 0}
        """
        _whole("epoch", epoch, 0)
        if self._progress is None and epoch == self._epoch:
            self._chosen = True
        elif epoch != self._next()[0]:
            self._epoch, self._start, self._progress = epoch, 0, None

    def state_dict(self) -> dict[str, int]:
        """Return where the newest pass is: three integers, from which any number of workers and ranks can go on.

        The position counts the rows that all ranks together have had in this epoch. What was read ahead and not handed
        out does not count.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tensordict.data import Loader
            >>> loader = Loader(TensorDict({"x": torch.arange(9)}, [9]), batch_size=2, seed=5)
            >>> batches = iter(loader)
            >>> _ = next(batches), next(batches)
            >>> loader.state_dict()
            {'seed': 5, 'epoch': 0, 'position': 4}
        """
        if self._progress is None:
            epoch, position = self._epoch, self._start
        elif self._progress.finished:
            epoch, position = self._next()
        else:
            epoch, position = self._progress.epoch, self._progress.position
        return {"seed": self.seed, "epoch": epoch, "position": position}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Let the next pass go on where a state says, at once: nothing is read again.

        Args:
            state_dict: what `state_dict` returned, of a loader with the same rows. With another number of ranks, the
                batches stay the same as long as ``batch_size * world_size`` does.

        Raises:
            ValueError: if it has other keys, or the position is not in the dataset; nothing has changed then.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tensordict.data import Loader
            >>> loader = Loader(TensorDict({"x": torch.arange(5)}, [5]), batch_size=2)
            >>> loader.load_state_dict({"seed": 0, "epoch": 0, "position": 4})
            >>> [batch["x"].tolist() for batch in loader]
            [[4]]
        """
        if set(state_dict) != set(_LEAST):
            raise ValueError(f"the state of a Loader has the keys {list(_LEAST)}, got {list(state_dict)}")
        seed, epoch, position = (_whole(f"state {key!r}", state_dict[key], least) for key, least in _LEAST.items())
        if position > len(self.dataset):
            raise ValueError(f"the state has position {position}, but the dataset has {len(self.dataset)} rows")
        self.seed, self._epoch, self._start, self._progress = seed, epoch, position, None
        self._chosen = False

    @property
    def stats(self) -> Stats:
        """Return what the newest pass has done so far.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> from tensordict.data import Loader
            >>> loader = Loader(TensorDict({"x": torch.arange(4)}, [4]), batch_size=2)
            >>> _ = list(loader)
            >>> loader.stats.batches, loader.stats.bytes
            (2, 32)
        """
        done = self._progress
        return Stats() if done is None else Stats(done.batches, done.bytes, done.waited)

    def __repr__(self) -> str:
        return f"Loader({len(self.dataset)} rows, batch_size={self.batch_size}, shuffle={self.shuffle!r})"

    def __getstate__(self) -> dict[str, Any]:
        epoch, start = self._next()
        return {
            **self.__dict__,
            "_epoch": epoch,
            "_start": start,
            "_progress": None,
            "_pools": deque(),
            "_helpers": deque(),
        }

    def _next(self) -> tuple[int, int]:
        """Return the epoch and the position of the next pass."""
        if self._progress is not None:  # whoever counts the batches does not ask for one after the last
            return self._epoch + (self._progress.batches >= self._progress.schedule.count), 0
        if self._start and self._start >= len(self.dataset) and not self._chosen:
            return self._epoch + 1, 0
        return self._epoch, self._start

    def _schedule(self, start: int) -> Schedule:
        rank, world = self.rank, self.world_size
        if world is None:
            there = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank, world = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if there else (0, 1)
        return Schedule(len(self.dataset), self.batch_size, self.drop_last, rank or 0, world, start)

    def _source(self, progress: Progress) -> Callable[[], Source]:
        schedule, ahead, single = progress.schedule, self.prefetch, self.reuse_buffers == "check"
        if isinstance(self.workers, str):
            recipe = Recipe(self.dataset, self.transform, ahead, max(1, min(4, usable_cpus() - 1)))
            finish = _pinning(None) if self.pin_memory else None
            terms = Terms(self.reuse_buffers, ahead, finish, self._helpers)
            job = Pass(schedule, self.shuffle, self.seed, progress.epoch, single)
            return lambda: Remote(hired(recipe, str(self.workers), self._helpers), job, terms)
        workers = self.workers
        order = order_of(schedule.size, self.shuffle, self.seed, progress.epoch)
        transform = _pinning(self.transform) if self.pin_memory else self.transform
        task = Task(self.dataset, order, schedule, transform, self.reuse_buffers, self._pools, single)
        return lambda: Crew(task, workers, ahead * workers) if workers else Caller(task)


def _deliver(begin: Callable[[], Source], progress: Progress, watch: Watch | None) -> Generator[Any, None, None]:
    """Yield the batches of a pass; whatever the end is, free what it took."""
    count = progress.schedule.count
    with closing(begin()) as source:
        while progress.batches < count:
            run, waited = source.take()
            progress.waited += waited
            progress.bytes += run.bytes
            while run.batches:
                batch = run.batches.popleft()
                if watch is not None:
                    watch.lend(progress.batches, run.rooms)
                progress.position = progress.schedule.after(progress.batches)
                progress.batches += 1
                yield batch
                del batch
                if watch is not None:
                    watch.asked()
            if run.error is not None:
                raise run.error
            run.give_back()
    progress.finished = True


def _check_dataset(dataset: Any) -> None:
    if not isinstance(dataset, Core) or dataset._is_non_tensor:
        raise TypeError(f"a Loader reads the rows of a tensordict, got {dataset!r} of type {type(dataset).__name__}")
    if not dataset._meta.batch:
        raise ValueError(f"a Loader needs a dataset with a batch dim, got batch size [] of {dataset!r}")


def _whole(name: str, value: Any, least: int | None = None) -> int:
    """Return an option that must be an int of some size."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return value


def _check_ranks(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    if (rank is None) != (world is None):
        raise ValueError(f"give rank and world_size, or neither; got rank={rank!r}, world_size={world!r}")
    if rank is not None and world is not None and _whole("rank", rank, 0) >= _whole("world_size", world, 1):
        raise ValueError(f"rank must be less than world_size, got rank={rank!r}, world_size={world!r}")
    return rank, world


def _pinning(transform: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """Return a transform whose results lie in pinned memory."""
    if not torch.accelerator.is_available():
        warnings.warn("pin_memory=True does nothing: there is no accelerator", UserWarning, stacklevel=4)
        return transform
    return lambda batch: pin_memory(batch if transform is None else transform(batch))
