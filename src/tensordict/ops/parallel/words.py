"""The words `map` and `map_iter`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensordict.core.core import Core
from tensordict.ops.parallel.mapper import iter_map, run_map


class Parallel(Core):
    """Requires: indexing, joining and pickling. Gives: `map` and `map_iter`."""

    def map(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        out: Any = None,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
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
            pool: a `multiprocessing.Pool` to use; the arguments that describe workers are then ignored.
            generator: draws the seed of the workers. None uses a new `torch.Generator` and warns that this will change.
            max_tasks_per_child: replace a worker after so many chunks.
            worker_threads: the torch threads of each worker.
            index_with_generator: kept for `map_iter`'s sake: chunks are always cut when a worker takes them.
            pbar: show a progress bar, if tqdm is installed.
            mp_start_method: how workers start; None for the default of `torch.multiprocessing`.

        Returns:
            The joined results, ``out``, or None when every result is None.

        Raises:
            WorkerError: if a worker dies; the message names the chunk, the exit code and what may help.
            Exception: what ``fn`` raised, with the traceback of the worker as its cause.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(4)}, [4])
            >>> td.map(torch.neg, num_workers=0, chunksize=2, generator=torch.default_generator)["x"]
            tensor([ 0, -1, -2, -3])
        """
        return run_map(
            self,
            fn,
            dim,
            num_workers,
            out=out,
            chunksize=chunksize,
            num_chunks=num_chunks,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            index_with_generator=index_with_generator,
            pbar=pbar,
            mp_start_method=mp_start_method,
        )

    def map_iter(
        self,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        shuffle: bool = False,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = True,
        pbar: bool = False,
        mp_start_method: str | None = None,
    ) -> Iterator[Any]:
        """Apply a function to chunks of rows in worker processes, and yield each result.

        Args:
            shuffle: take the rows from a random permutation, and yield results as they finish.
            index_with_generator: must be True with ``shuffle``.
            fn, dim, num_workers, chunksize, num_chunks, pool, generator, max_tasks_per_child, worker_threads, pbar,
                mp_start_method: as for `map`.

        Yields:
            The result for each chunk, in the order of the chunks unless ``shuffle``. Workers run a few chunks ahead.

        Raises:
            RuntimeError: for ``shuffle`` without ``index_with_generator``.
            WorkerError: if a worker dies.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(3)}, [3])
            >>> for part in td.map_iter(torch.neg, num_workers=0, chunksize=2, generator=torch.default_generator):
            ...     print(part["x"])
            tensor([ 0, -1])
            tensor([-2])
        """
        return iter_map(
            self,
            fn,
            dim,
            num_workers,
            shuffle=shuffle,
            chunksize=chunksize,
            num_chunks=num_chunks,
            pool=pool,
            generator=generator,
            max_tasks_per_child=max_tasks_per_child,
            worker_threads=worker_threads,
            index_with_generator=index_with_generator,
            pbar=pbar,
            mp_start_method=mp_start_method,
        )
