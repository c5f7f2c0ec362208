"""The order of the rows in an epoch: a function of seed, epoch and position, and of nothing else.

    positions 0, 1, 2, ... --order--> rows

Up to a few million rows the order is a permutation that torch draws. Above, it is computed where it is asked for, so
that 1e9 rows take no array of 1e9 numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy
import torch

LISTED = 1 << 22
"""Up to so many rows a permutation is drawn as a whole; it takes 8 bytes a row."""

_ROUNDS = 8
_MASK = (1 << 64) - 1
_WIDE = numpy.uint64
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Order = Callable[[Any], Any]
"""Gives the rows at positions, both as arrays of int64."""


def mixed(*numbers: int) -> int:
    """Return 64 bits that depend on all bits of some integers: Steele, Lea and Flood's splitmix64, once for each.

    >>> hex(mixed(0)), hex(mixed(0, 1)) == hex(mixed(1, 0))
    ('0xe220a8397b1dcdaf', False)
    """
    state = 0
    for number in numbers:
        state = (state + number + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * _FIRST) & _MASK
        state = ((state ^ (state >> 27)) * _SECOND) & _MASK
        state ^= state >> 31
    return state


class Permutation:
    """Be a seeded permutation of ``range(size)`` that is computed where it is asked for and takes no memory.

    A position is written as two digits, and eight rounds add to one digit a hash of the other: the generalised Feistel
    network of J. Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002. What falls out of the
    range, fewer than ``2 * sqrt(size)`` numbers, goes through again (their "cycle walking"). It is a bijection
    for any size and mixes well; it is no cipher.

    Args:
        size: how many numbers there are, at most ``2 ** 62``.
        seed: an integer; another seed gives another permutation.

    Raises:
        ValueError: if the size is negative or too large.

    Examples:
        >>> import numpy
        >>> from tensordict.data import Permutation
        >>> sorted(Permutation(5, seed=1)(numpy.arange(5)).tolist())
        [0, 1, 2, 3, 4]
        >>> Permutation(10**12, seed=0)(numpy.array([0, 1])).tolist()
        [483258170051, 91046922560]
    """

    def __init__(self, size: int, seed: int = 0) -> None:
        if not 0 <= size <= 1 << 62:
            raise ValueError(f"the size of a permutation must be from 0 to 2**62, got {size!r}")
        self.size, self.seed = size, seed
        low = max(1, math.isqrt(size))
        self._digits = _WIDE(-(-size // low) or 1), _WIDE(low)
        self._keys = [_WIDE(mixed(seed, size, number)) for number in range(_ROUNDS)]

    def __len__(self) -> int:
        return self.size

    def __call__(self, positions: Any) -> Any:
        """Return the numbers at positions, as an array of int64.

        Args:
            positions: an array of integers from 0 to ``size - 1``.

        Examples:
            >>> import numpy
            >>> from tensordict.data import Permutation
            >>> Permutation(1)(numpy.array([0, 0])).tolist()
            [0, 0]
        """
        found = self._once(numpy.asarray(positions).astype(_WIDE))
        outside = numpy.flatnonzero(found >= self.size)
        while len(outside):
            found[outside] = self._once(found[outside])
            outside = outside[found[outside] >= self.size]
        return found.astype(numpy.int64)

    def _once(self, numbers: Any) -> Any:
        high, low = numpy.divmod(numbers, self._digits[1])
        for at, key in enumerate(self._keys):
            if at % 2:
                low = (low + _hash(high, key)) % self._digits[1]
            else:
                high = (high + _hash(low, key)) % self._digits[0]
        return high * self._digits[1] + low


def _hash(digits: Any, key: Any) -> Any:
    """Return 32 bits for each digit: splitmix64's mixing of digit and key."""
    bits = digits * _WIDE(_GOLDEN) + key
    bits ^= bits >> _WIDE(30)
    bits *= _WIDE(_FIRST)
    bits ^= bits >> _WIDE(27)
    bits *= _WIDE(_SECOND)
    return bits >> _WIDE(32)


def listed(size: int, seed: int) -> Any:
    """Return a permutation drawn by torch, as an array."""
    generator = torch.Generator().manual_seed(seed >> 1)  # torch takes 63 bits of either sign, and we have 64
    return torch.randperm(size, generator=generator).numpy()


def permutation(size: int, seed: int) -> Order:
    """Return the permutation for a number of rows."""
    return listed(size, seed).__getitem__ if size <= LISTED else Permutation(size, seed)


@dataclass(frozen=True)
class Blocks:
    """Shuffle blocks of neighbouring rows, and then the rows of some blocks among each other.

    For storage that reads neighbours at the price of one row: chunks of HDF5 and zarr, spinning disks, object stores. A
    loader over such a store reads each block once, and holds the rows of a group of ``mix`` blocks in memory.

    Args:
        rows: how many rows a block has; best the length of a chunk, or a multiple of it.
        mix: the rows of so many blocks are shuffled together.

    Raises:
        ValueError: if one of them is less than one.

    Examples:
        >>> from tensordict.data import Blocks
        >>> Blocks(rows=256)
        Blocks(rows=256, mix=16)
    """

    rows: int
    mix: int = 16

    def __post_init__(self) -> None:
        for name, value in (("rows", self.rows), ("mix", self.mix)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} of Blocks must be an int of at least 1, got {value!r}")


class BlockOrder:
    """The order of an epoch by blocks; `group` and `ranges` tell a reader which rows belong together."""

    def __init__(self, size: int, blocks: Blocks, seed: int) -> None:
        self.size, self.rows, self.mix, self.seed = size, blocks.rows, blocks.mix, seed
        self.count = -(-size // blocks.rows)
        self.lacks = self.count * blocks.rows - size  # rows that the last block is short of
        self.place = mixed(seed, 1) % max(self.count, 1)  # where the last block stands among the others
        self._order = permutation(max(self.count - 1, 1), mixed(seed, 2))
        self._within = lru_cache(4)(lambda group: listed(self.span(group)[1], mixed(self.seed, 3, group)))

    def start(self, slot: Any) -> Any:
        """Return the position at which the block at a place begins."""
        return slot * self.rows - (slot > self.place) * self.lacks

    def span(self, group: int) -> tuple[int, int]:
        """Return the first position of a group and how many it has."""
        first, last = group * self.mix, min((group + 1) * self.mix, self.count)
        begin = int(self.start(first))
        return begin, int(self.start(last)) - begin

    def slots(self, positions: Any) -> Any:
        """Return the place among the blocks of each position."""
        after = positions >= self.start(self.place) + self.rows - self.lacks
        return numpy.where(after, positions + self.lacks, positions) // self.rows

    def blocks(self, slots: Any) -> Any:
        """Return the block that stands at each place."""
        others = self._order(numpy.maximum(slots - (slots > self.place), 0) % max(self.count - 1, 1))
        return numpy.where(slots == self.place, self.count - 1, others)

    def groups(self, positions: Any) -> list[tuple[int, Any]]:
        """Return each group that positions fall in, in their order, with their places among its rows."""
        if not len(positions):
            return []
        group = self.slots(positions) // self.mix
        cuts = [0, *(numpy.flatnonzero(numpy.diff(group)) + 1).tolist(), len(positions)]
        found = []
        for a, b in pairwise(cuts):
            number = int(group[a])
            found.append((number, self._within(number)[positions[a:b] - self.span(number)[0]]))
        return found

    def ranges(self, group: int) -> list[tuple[int, int]]:
        """Return the rows of a group as ranges, one for each of its blocks."""
        slots = numpy.arange(group * self.mix, min((group + 1) * self.mix, self.count))
        starts = (self.blocks(slots) * self.rows).tolist()
        return [(at, min(at + self.rows, self.size)) for at in starts]

    def __call__(self, positions: Any) -> Any:
        parts = []
        for group, places in self.groups(positions):
            at = places + self.span(group)[0]
            slots = self.slots(at)
            parts.append(self.blocks(slots) * self.rows + at - self.start(slots))
        return numpy.concatenate(parts) if parts else positions


def order_of(size: int, shuffle: bool | Blocks, seed: int, epoch: int) -> Order:
    """Return the order of an epoch."""
    key = mixed(seed, epoch)
    if isinstance(shuffle, Blocks):
        return BlockOrder(size, shuffle, key)
    return permutation(size, key) if shuffle else _same


def _same(positions: Any) -> Any:
    return positions
