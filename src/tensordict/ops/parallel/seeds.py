"""Random numbers of the workers: one base seed per call, one stream per worker."""

from __future__ import annotations

import random

import numpy as np
import torch


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
    torch.manual_seed(base + index)
    random.seed(base + index)
    np.random.seed(np.random.SeedSequence((base, index)).generate_state(4))
