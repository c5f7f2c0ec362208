"""The two faces of the parallel map: join the results (`run_map`), or yield them (`iter_map`)."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from .cpus import usable_cpus
from .crew import Caller, Crew, schedule
from .guests import AnyPool, Guests, is_threads, knows_main, width
from .job import Job, check_out, write_rows
from .plan import Plan, make_plan, whole_number
from .pool import Pool
from .seeds import draw_seed
from .wire import shares_by_name
from .worker import Setup


def run_map(
    source: Any,
    fn: Callable[[Any], Any],
    dim: int = 0,
    num_workers: int | None = None,
    *,
    out: Any = None,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    pool: AnyPool = None,
    generator: torch.Generator | None = None,
    max_tasks_per_child: int | None = None,
    worker_threads: int = 1,
    index_with_generator: bool = False,
    pbar: bool = False,
    mp_start_method: str | None = None,
    seed: int | None = None,
    retries: int = 0,
    timeout: float | None = None,
) -> Any:
    """Apply a function to chunks of rows in worker processes, and join the results along the same dim.

    Args:
        fn: takes a chunk, a tensordict; returns a tensordict, a tensor, a tuple of them, or None, which is skipped.
            Define it at the top level of a module: it is pickled.
        dim: the batch dim that is cut into chunks.
        num_workers: how many processes; None for one per usable CPU, 0 runs in this process.
        out: a tensordict that the results are written to; memory-mapped or shared, the workers write it themselves.
        chunksize: the rows of a chunk; 0 gives the rows one by one, without the dim.
        num_chunks: the number of chunks, instead. With neither, one chunk a worker.
        pool: a `multiprocessing.Pool` or any `concurrent.futures.Executor` (processes, threads, loky, MPI, Dask's
            ``client.get_executor()``, `RayExecutor`) to use; the arguments that describe workers are then ignored.
        generator: draws the seed of the workers. None uses a new `torch.Generator` and warns that this will change.
        max_tasks_per_child: replace a worker after so many chunks.
        worker_threads: the torch threads of each worker.
        index_with_generator: kept for `map_iter`'s sake: chunks are always cut when a worker takes them.
        pbar: show a progress bar, if tqdm is installed.
        mp_start_method: how workers start; None for the default of `torch.multiprocessing`.
        seed: seed torch, NumPy and ``random`` for each chunk from (seed, number of the chunk), so that results are the
            same for any number of workers, 0 included, any start method, and after a retry. Instead of ``generator``.
        retries: how often a chunk is run again whose worker died or took too long. It runs from its start, so that its
            rows of ``out`` are written again; what ``fn`` itself raises is not tried again.
        timeout: the seconds that a chunk may take in a worker process. In a pool of yours, which cannot be looked into,
            the seconds that may pass without any chunk done.

    Returns:
        The joined results, ``out``, or None when every result is None.

    Raises:
        WorkerError: if a worker dies; the message names the chunk, the exit code and what may help.
        TimeoutError: if a chunk takes too long.
        Exception: what ``fn`` raised, with the traceback of the worker as its cause.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"x": torch.arange(4)}, [4])
        >>> td.map(torch.neg, num_workers=0, chunksize=2, generator=torch.default_generator)["x"]
        tensor([ 0, -1, -2, -3])
    """
    mercy = _Mercy(seed, retries, timeout)
    workers = _Workers(pool, num_workers, generator, max_tasks_per_child, worker_threads, mp_start_method, mercy)
    plan = make_plan(tuple(source.shape), dim, chunksize, num_chunks, workers.size)
    if out is not None:
        check_out(out, plan)
    direct = out is not None and workers.reach(out)
    job = Job(fn, source, plan, None, out if direct else None, seed)
    results: list[Any] = [None] * plan.count
    events = _track(schedule(workers.hire(job), plan.count, ordered=False), plan.count, pbar)
    with contextlib.closing(events):
        for number, result in events:
            if out is None:
                results[number] = result
            elif result is not None:
                write_rows(out, plan, plan.chunk(number), result)
    return _join(results, plan) if out is None else out


def iter_map(
    source: Any,
    fn: Callable[[Any], Any],
    dim: int = 0,
    num_workers: int | None = None,
    *,
    shuffle: bool = False,
    chunksize: int | None = None,
    num_chunks: int | None = None,
    pool: AnyPool = None,
    generator: torch.Generator | None = None,
    max_tasks_per_child: int | None = None,
    worker_threads: int = 1,
    index_with_generator: bool = True,
    pbar: bool = False,
    mp_start_method: str | None = None,
    seed: int | None = None,
    retries: int = 0,
    timeout: float | None = None,
    prefetch: int = 2,
) -> Iterator[Any]:
    """Apply a function to chunks of rows in worker processes, and yield each result.

    Args:
        shuffle: take the rows from a random permutation, and yield results as they finish.
        index_with_generator: must be True with ``shuffle``.
        prefetch: how many chunks per worker may be under way or wait for you. Results are held no longer.
        fn, dim, num_workers, chunksize, num_chunks, pool, generator, max_tasks_per_child, worker_threads, pbar,
            mp_start_method, seed, retries, timeout: as for `map`.

    Yields:
        The result for each chunk, in the order of the chunks unless ``shuffle``. Leaving the loop stops the workers;
        where you keep the iterator, its ``close()`` does.

    Raises:
        RuntimeError: for ``shuffle`` without ``index_with_generator``.
        WorkerError: if a worker dies.
        TimeoutError: if a chunk takes too long.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"x": torch.arange(3)}, [3])
        >>> for part in td.map_iter(torch.neg, num_workers=0, chunksize=2, generator=torch.default_generator):
        ...     print(part["x"])
        tensor([ 0, -1])
        tensor([-2])
    """
    if shuffle and not index_with_generator:
        raise RuntimeError("shuffle=True needs index_with_generator=True: shuffled rows cannot be split in advance")
    ahead = whole_number("prefetch", prefetch, least=1)
    mercy = _Mercy(seed, retries, timeout)
    workers = _Workers(pool, num_workers, generator, max_tasks_per_child, worker_threads, mp_start_method, mercy)
    plan = make_plan(tuple(source.shape), dim, chunksize, num_chunks, workers.size)
    if not plan.size:
        plan = replace(plan, count=0)
    hire = workers.hire(Job(fn, source, plan, _permutation(plan.size, seed) if shuffle else None, None, seed))
    return _values(_track(schedule(hire, plan.count, ordered=not shuffle, ahead=ahead), plan.count, pbar))


def _permutation(size: int, seed: int | None) -> torch.Tensor:
    """Return the order of shuffled rows, which *seed* settles too."""
    return torch.randperm(size, generator=None if seed is None else torch.Generator().manual_seed(seed))


def _values(events: Generator[Any, None, None]) -> Iterator[Any]:
    with contextlib.closing(events):
        for _, result in events:
            yield result


@dataclass(frozen=True)
class _Mercy:
    """What is promised beyond a run without faults."""

    seed: int | None
    retries: int
    timeout: float | None

    def __post_init__(self) -> None:
        whole_number("retries", self.retries, least=0)
        if self.seed is not None:
            whole_number("seed", self.seed, least=0)
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {self.timeout!r}")


@dataclass(frozen=True)
class _Workers:
    """Who will run the chunks; nothing but *pool* is looked at when a pool is given."""

    pool: AnyPool
    num_workers: int | None
    generator: torch.Generator | None
    max_tasks: int | None
    threads: int
    method: str | None
    mercy: _Mercy

    def __post_init__(self) -> None:
        if self.pool is not None:
            if not (hasattr(self.pool, "submit") or hasattr(self.pool, "apply_async")):
                raise TypeError(
                    "pool must be a multiprocessing.Pool or a concurrent.futures.Executor, "
                    f"got {self.pool!r} of type {type(self.pool).__name__}"
                )
            return
        if self.num_workers is not None:
            whole_number("num_workers", self.num_workers, least=0)
        if self.max_tasks is not None:
            whole_number("max_tasks_per_child", self.max_tasks, least=1)
        whole_number("worker_threads", self.threads, least=1)
        torch.multiprocessing.get_context(self.method)

    @property
    def size(self) -> int:
        """Count the workers that chunks are planned for: at least one, the calling process included."""
        if self.pool is not None:
            return width(self.pool, self.num_workers or usable_cpus())
        return usable_cpus() if self.num_workers is None else max(1, self.num_workers)

    def reach(self, out: Any) -> bool:
        """Say whether what a worker writes to *out* is seen here: it lies in mapped files or in shared memory."""
        is_memmap = getattr(out, "is_memmap", None)
        if self.pool is not None and is_threads(self.pool):
            return True
        if is_memmap is not None and is_memmap():
            return self.pool is None or knows_main(self.pool) or getattr(out, "saved_path", None) is not None
        return bool(out.is_shared()) and (self.pool is None or (knows_main(self.pool) and shares_by_name()))

    def hire(self, job: Job) -> Callable[[], Crew]:
        """Draw the base seed now, and return what starts the workers."""
        mercy = self.mercy
        if self.pool is not None:
            return partial(Guests, job, self.pool, self.size, mercy.retries, mercy.timeout)
        if self.num_workers == 0:
            return partial(Caller, job)
        base = draw_seed(self._seeder()) if mercy.seed is None else mercy.seed
        setup = Setup(self.method, self.threads, base, self.max_tasks, mercy.retries, mercy.timeout)
        return partial(Pool, job, setup, min(self.size, job.plan.count))

    def _seeder(self) -> torch.Generator:
        if self.generator is not None:
            return self.generator
        warnings.warn(
            "without a generator, the workers of map and map_iter are seeded alike in every call. From version 0.17 on "
            "their seed will be drawn from torch's global generator. Pass generator=torch.default_generator to have "
            "that now, or generator=torch.Generator() to keep the present seeds.",
            FutureWarning,
            stacklevel=_levels_to_user(),
        )
        return torch.Generator()


def _levels_to_user() -> int:
    """Count the frames from the caller of this function to the first one outside the package."""
    package = __name__.partition(".")[0]
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == package:
        level, frame = level + 1, frame.f_back
    return level


def _track(events: Generator[Any, None, None], total: int, pbar: bool) -> Generator[Any, None, None]:
    """Pass the events on, with a progress bar where one is asked for and tqdm is installed."""
    with contextlib.closing(events):
        if pbar and importlib.util.find_spec("tqdm") is not None:
            from tqdm.auto import tqdm

            with tqdm(total=total, unit="chunk") as bar:
                for event in events:
                    bar.update()
                    yield event
        else:
            yield from events


def _join(results: list[Any], plan: Plan) -> Any:
    """Join what is not None along the dim; tuples are joined place by place."""
    kept = [(number, result) for number, result in enumerate(results) if result is not None]
    if not kept:
        return None
    first = kept[0][1]
    for number, result in kept:
        _check_joins(number, result, *kept[0], plan)
    if isinstance(first, tuple):
        if len({len(result) for _, result in kept}) > 1:
            raise TypeError(f"the tuples differ in length: {sorted({len(result) for _, result in kept})!r}")
        columns = [_join(list(column), plan) for column in zip(*(result for _, result in kept), strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    values = [result for _, result in kept]
    return torch.stack(values, plan.dim) if plan.single else torch.cat(values, plan.dim)


def _check_joins(number: int, result: Any, at: int, first: Any, plan: Plan) -> None:
    """Raise if the result of a chunk cannot be joined to the first one."""
    if isinstance(result, tuple) or isinstance(first, tuple):
        if type(result) is not type(first):
            raise TypeError(f"chunk {number} gave a {type(result).__name__}, chunk {at} a {type(first).__name__}")
    elif not hasattr(result, "shape"):
        raise TypeError(
            f"map joins tensors, tensordicts, and tuples of them; chunk {number} gave a {type(result).__name__}. "
            "Return one of these, or use map_iter, which yields any result"
        )
    elif not plan.single and len(result.shape) <= plan.dim:
        raise ValueError(
            f"the results cannot be joined along dim {plan.dim}: chunk {number} gave shape {list(result.shape)!r}. "
            "Keep the rows of the chunk, use chunksize=0 for one result a row, or map_iter, which joins nothing"
        )
