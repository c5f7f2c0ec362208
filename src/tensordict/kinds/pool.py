"""What the rows of columns of objects point to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tensordict.core.core import Core
from tensordict.storage.sent import handle
from tensordict.storage.strings import Strings

LONG = 1000
"""How many strings are worth two tensors instead of a list of objects."""


class Pool:
    """What the rows of columns point to: strings in tensors, then objects in a list that is only ever appended to.

    Copies and views of a column share it.
    """

    __slots__ = ("objects", "strings")

    def __init__(self, objects: list[Any], strings: Strings | None = None) -> None:
        self.objects, self.strings = objects, strings

    @classmethod
    def of(cls, values: list[Any]) -> Pool:
        """Return a pool of these values: many strings go into tensors."""
        strings = Strings.of(values) if len(values) >= LONG else None
        if strings is not None:
            return cls([], strings)
        return cls([v._given() if isinstance(v, Core) else v for v in values])

    def __reduce__(self) -> Any:
        return Pool, (self.objects, self.strings)

    def __len__(self) -> int:
        return (0 if self.strings is None else len(self.strings)) + len(self.objects)

    @property
    def in_place(self) -> bool:
        """Tell whether other processes that receive the pool find it where it is, in shared memory or in files."""
        return self.strings is not None and not self.objects and handle(self.strings.data) is not None

    def take(self, rows: Tensor | None) -> list[Any]:
        """Return the values of some rows; None for the whole pool."""
        objects, strings = self.objects, self.strings
        if strings is None:
            return list(objects) if rows is None else [objects[at] for at in rows.tolist()]
        if rows is None:
            return strings.take() + objects
        count = len(strings)
        found: list[Any] = strings.take(rows.clamp(max=count - 1) if objects else rows)
        for at in (rows >= count).nonzero()[:, 0].tolist() if objects else ():
            found[at] = objects[int(rows[at]) - count]
        return found

    def first(self, count: int) -> Pool:
        """Return the first values, as they were before others were appended."""
        if count == len(self):
            return self
        return Pool(self.objects[:count]) if self.strings is None else Pool([], self.strings)

    @staticmethod
    def join(pools: Sequence[Pool]) -> Pool:
        """Return the values of several pools in one."""
        columns = [pool.strings for pool in pools if not pool.objects]
        if len(columns) == len(pools) and None not in columns:
            return Pool([], Strings.join(columns))  # type: ignore[arg-type]
        return Pool.of([value for pool in pools for value in pool.take(None)])
