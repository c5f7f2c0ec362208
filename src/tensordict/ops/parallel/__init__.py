"""Apply a function to chunks of a node in worker processes."""

from __future__ import annotations

from .cluster import RayExecutor
from .mapper import iter_map, run_map
from .wire import WorkerError

__all__ = ["RayExecutor", "WorkerError", "iter_map", "run_map"]
