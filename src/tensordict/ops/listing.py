"""The rows of a column as a list that writes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class RowList(list[Any]):
    """The rows of a column as a list; assigning to a row of it writes the column, and where that was joined from."""

    def __init__(self, column: Any, then: Callable[[tuple[Any, ...], Any], object] | None = None) -> None:
        super().__init__(column.tolist())
        self._column = column
        self.reach(then)

    @property
    def ragged(self) -> bool:
        """Tell whether the rows are of different lengths, and views of different columns."""
        return -1 in self._column._meta.batch

    def reach(self, then: Callable[[tuple[Any, ...], Any], object] | None) -> None:
        """Say what is told of rows that were written: their index, and the rows."""
        self._then = then
        if len(self._column._meta.batch) > 1:
            super().__setitem__(slice(None), map(self._row, range(len(self))))

    def _row(self, at: int) -> RowList:
        then = self._then
        return RowList(self._column[at], None if then is None else lambda index, rows: then((at, *index), rows))

    def __setitem__(self, index: Any, value: Any) -> None:
        nested = len(self._column._meta.batch) > 1
        if isinstance(index, slice):
            value = list(value)
            if nested:
                for at, row in zip(range(len(self))[index], value, strict=True):
                    self[at] = row
                return
        self._column[index] = value
        super().__setitem__(index, self._row(range(len(self))[index]) if nested else value)
        if self._then is not None:
            self._then((index,), self._column[index])

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)
