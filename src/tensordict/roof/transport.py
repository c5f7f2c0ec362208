"""How a batch travels from a DataLoader worker to the main process: in one piece, however many leaves it has.

    worker: node --wire.split--> head + memory of its leaves --(pipe, or one block without a name)--> main: node

torch sends one file descriptor a tensor, which costs more than the bytes of most batches, and keeps it open as long as
the batch lives. A block is mapped and its descriptor closed at once. Anything else that is sent (datasets, queues) goes
torch's way, so that shared memory stays shared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any

from torch.utils.data import get_worker_info

from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.ops.parallel.link import HAS_BLOCKS, Block
from tensordict.ops.parallel.wire import dumps, loads, split

_INLINE = 1 << 18  # bytes; below, the pipe is faster than passing a descriptor


def _reduce(node: Any) -> Any:
    """Return how a node is pickled for another process."""
    if get_worker_info() is None:
        return node.__reduce_ex__(2)
    head, parts = split(node)
    if HAS_BLOCKS and sum(part.nbytes for part in parts) > _INLINE:
        with contextlib.suppress(OSError):  # no memory or no descriptor for it: the pipe takes it
            block = Block.write(parts)
            with contextlib.closing(block):
                return _open, (bytes(head), DupFd(block.descriptor), block.lengths)
    return loads, (bytes(dumps(node)) if parts else bytes(head),)


def _open(head: bytes, handle: Any, lengths: Sequence[int]) -> Any:
    """Return the node that lies in a block; it stays there, and what is written to it is seen here only."""
    with contextlib.closing(Block(handle.detach(), lengths)) as block:
        return loads(head, block.parts())


ForkingPickler.register(TensorDict, _reduce)
ForkingPickler.register(LazyStackedTensorDict, _reduce)
