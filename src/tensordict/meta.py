"""What a node knows of itself besides its children: one immutable record, shared by pointer."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tensordict.aliases import Batch, Names


class Meta(NamedTuple):
    """The batch size, the device (None when free) and the names of the batch dims (None when none is named)."""

    batch: Batch
    device: torch.device | None = None
    names: Names = None


EMPTY = Meta(())
