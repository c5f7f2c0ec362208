"""The words `map` and `map_iter`: the parallel map takes whatever answers to the words of a tensor."""

from __future__ import annotations

from tensordict.core.core import Core
from tensordict.ops.parallel.mapper import iter_map, run_map


class Parallel(Core):
    """Requires: indexing, joining and pickling. Gives: `map` and `map_iter`."""

    map = run_map
    map_iter = iter_map
