"""Random numbers of the workers: one stream per worker, or one per chunk for results that can be repeated."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator

import numpy as np
import torch

# The generators belong to the process: threads that seed them for a chunk take turns.
_turns = [threading.RLock()]
if hasattr(os, "register_at_fork"):  # a forked process has no thread that could hold the lock it copied
    os.register_at_fork(after_in_child=lambda: _turns.__setitem__(0, threading.RLock()))


def draw_seed(generator: torch.Generator) -> int:
    """Draw a base seed from *generator*, which advances it by one draw.

    Example:
        >>> draw_seed(torch.Generator()) == draw_seed(torch.Generator())
        True
    """
    drawn = torch.empty((), dtype=torch.int64, device=generator.device).random_(generator=generator)
    return int(drawn.item())


def seed_worker(base: int, index: int) -> None:
    """Seed torch and ``random`` with ``base + index``, and NumPy with a seed derived from both.

    Example:
        >>> seed_worker(7, 1)
        >>> torch.initial_seed()
        8
    """
    _seed_torch(base + index)
    random.seed(base + index)
    np.random.seed(np.random.SeedSequence((base, index)).generate_state(4))


@contextlib.contextmanager
def seeded(seed: int, number: int) -> Iterator[None]:
    """Run a block with torch, NumPy and ``random`` seeded from (seed, number), then give them back as they were.

    Example:
        >>> with seeded(3, 0):
        ...     first = torch.rand(())
        >>> with seeded(3, 0):
        ...     print(bool(torch.rand(()) == first))
        True
    """
    with _turns[0]:
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        # The sequence mixes its numbers, so near seeds and near chunks have nothing in common.
        low, high, *rest = np.random.SeedSequence((seed, number)).generate_state(8)
        try:
            _seed_torch(int(high) << 31 ^ int(low))
            random.seed(int(high) << 32 | int(low))
            np.random.seed(rest)
            yield
        finally:
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])


# Where torch was built for the CPU alone: `torch.manual_seed` takes 100 µs to seek other devices in vain.
_seed_torch = torch.manual_seed if torch.accelerator.current_accelerator() else torch.default_generator.manual_seed
