"""Memory for batches, used again as soon as nobody holds it.

Fresh memory costs more than the copy into it: the system clears each page when it is first touched.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import Any

from tensordict.ops.gather import fresh_room

_TRIES = 8  # how many buffers are looked at before a new one is made
_SPARE = 8  # how many buffers of a size are kept for each one that a run of batches takes


class Pool:
    """Buffers of one thread: one is given out again when no tensor holds it any more.

    Args:
        noted: give each run of batches the list of its buffers, which holds them.
    """

    def __init__(self, noted: bool = False) -> None:
        self._noted = noted
        self._rooms: list[Any] = []
        self._kept: dict[int, deque[Any]] = {}
        self._taken: dict[int, int] = {}
        self._most: dict[int, int] = {}

    def begin(self) -> list[Any]:
        """Begin a run of batches; return the list of its buffers, if that is asked for."""
        self._taken.clear()
        self._rooms = []
        return self._rooms

    def room(self, size: int) -> Any:
        """Return an array of so many bytes."""
        found = self._room(size)
        if self._noted:
            self._rooms.append(found)
        return found

    def give_back(self, rooms: list[Any]) -> None:
        """Nothing is given back: that nobody holds a buffer is seen."""

    def _room(self, size: int) -> Any:
        kept = self._kept.setdefault(size, deque())
        taken = self._taken[size] = self._taken.get(size, 0) + 1
        self._most[size] = max(taken, self._most.get(size, 0))
        for _ in range(min(_TRIES, len(kept))):
            if _idle(kept, 0):
                kept.rotate(-1)
                return kept[-1]
            kept.rotate(-1)
        made = fresh_room(size)
        kept.append(made)
        if len(kept) > _SPARE * self._most[size]:
            kept.popleft()  # whoever holds it has it
        return made


def _idle(arrays: Any, at: int) -> bool:
    """Tell whether an array is in this list and nowhere else."""
    return sys.getrefcount(arrays[at]) <= _ALONE


_one = [fresh_room(1)]
_ALONE = sys.getrefcount(_one[0])
"""What is counted for an array that is in one list and nowhere else."""


class Loans:
    """Buffers that are lent: given out again when they are given back, whoever still looks at them."""

    def __init__(self) -> None:
        self._free: dict[int, deque[Any]] = {}
        self._lent: list[Any] = []

    def begin(self) -> list[Any]:
        """Begin a run of batches; return the list of its buffers."""
        self._lent = []
        return self._lent

    def room(self, size: int) -> Any:
        """Return an array of so many bytes."""
        free = self._free.setdefault(size, deque())
        found = free.popleft() if free else fresh_room(size)
        self._lent.append(found)
        return found

    def give_back(self, lent: list[Any]) -> None:
        """Take buffers back; another thread may do so."""
        for array in lent:
            self._free[array.nbytes].append(array)
        lent.clear()


class Watch:
    """Makes misuse of lent batches visible: overwrites a batch when its loan ends, and finds those held for longer."""

    def __init__(self) -> None:
        self._lent: tuple[int, list[Any]] = 0, []
        self._ended: tuple[int, list[Any]] = 0, []

    def lend(self, number: int, rooms: list[Any]) -> None:
        """Note a batch that is handed out, and its buffers."""
        self._lent = number, rooms

    def asked(self) -> None:
        """End the loan of the last batch, because the next one is asked for.

        Raises:
            RuntimeError: if the one before is still held.
        """
        number, rooms = self._ended
        if _held(rooms) and gc.collect() >= 0 and _held(rooms):
            raise RuntimeError(
                f"batch {number} was lent until batch {number + 1} was asked for, and it is still held: clone() what "
                f"you keep, or pass reuse_buffers=False"
            )
        rooms.clear()
        self._ended = self._lent
        for room in self._ended[1]:
            room.fill(255)  # the largest number of each dtype without a sign, -1 of one with, and of floats none


def _held(rooms: list[Any]) -> bool:
    """Tell whether a tensor holds one of some buffers, beside this list and the pool."""
    return any(sys.getrefcount(rooms[at]) > _ALONE + 1 for at in range(len(rooms)))
