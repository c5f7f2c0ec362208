"""How a batch travels from a DataLoader worker to the main process: in one piece, however many leaves it has.

    worker: node --wire.dumps--> bytes --(pipe, or one shared block when long)--> main: wire.loads --> node

torch sends one file descriptor a tensor, which costs more than the bytes of most batches, and keeps it open as long as
the batch lives. Anything else that is sent (datasets, queues) goes torch's way, so that shared memory stays shared.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.ops.parallel.wire import dumps, loads
from tensordict.storage.memory import share

_INLINE = 1 << 20  # bytes; below, the pipe is as fast as passing a descriptor


def _reduce(node: Any) -> Any:
    """Return how a node is pickled for another process."""
    if get_worker_info() is None:
        return node.__reduce_ex__(2)
    data = dumps(node)
    if len(data) <= _INLINE:
        return loads, (bytes(data),)
    return _open, tuple(share([torch.frombuffer(data, dtype=torch.uint8)]))


def _open(block: Tensor) -> Any:
    """Return the node that lies in a shared block; it is copied out, so the block goes at once."""
    array: Any = block.numpy()
    return loads(memoryview(array))


ForkingPickler.register(TensorDict, _reduce)
ForkingPickler.register(LazyStackedTensorDict, _reduce)
