"""Ray as an executor. Dask has one of its own: ``client.get_executor()``."""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable
from typing import Any


class RayExecutor(concurrent.futures.Executor):
    """Run calls as tasks of a Ray cluster, as ``pool=`` of `map` and `map_iter`.

    A task whose worker or node dies is run again by Ray, three times unless ``max_retries`` says otherwise. The dataset
    goes to the object store once, as one buffer that all workers of a node read where it lies.

    Args:
        options: what ``ray.remote`` takes, such as ``num_cpus``, ``num_gpus``, ``max_retries``, ``resources``.

    Examples:
        >>> from tensordict import RayExecutor, TensorDict
        >>> def squares_on_a_cluster(td: TensorDict) -> TensorDict:
        ...     return td.map(torch.square, pool=RayExecutor(num_cpus=1), chunksize=100)

    Raises:
        ImportError: at the first use, if Ray is not installed; ``pip install tensordict[ray]`` brings it.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options

    @functools.cached_property
    def _ray(self) -> Any:
        import ray

        if not ray.is_initialized():
            ray.init()
        return ray

    @property
    def size(self) -> int:
        """Count the tasks that the cluster can run at once."""
        cpus = self._ray.cluster_resources().get("CPU", 1) / self._options.get("num_cpus", 1)
        return max(1, int(cpus))

    def put(self, value: object) -> Any:
        """Put a value to the object store, and return the reference that a call takes in its place."""
        return self._ray.put(value)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run a call somewhere, and return its future."""
        return self._remote(fn).remote(*args, **kwargs).future()  # type: ignore[no-any-return]

    @functools.lru_cache(8)  # noqa: B019 - an executor lives as long as the program
    def _remote(self, fn: Callable[..., Any]) -> Any:
        return self._ray.remote(**self._options)(fn) if self._options else self._ray.remote(fn)
