"""Batches of the rows of a tensordict, read ahead and in an order that can be resumed."""

from tensordict.data.loader import Loader, Stats
from tensordict.data.order import Blocks, Permutation

__all__ = ["Blocks", "Loader", "Permutation", "Stats"]
