"""Cut one dimension into numbered chunks: arithmetic only, no tensor is touched here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Chunk(NamedTuple):
    """One task: rows ``start:stop`` of the dimension, or the numbers in ``rows`` when the plan is shuffled."""

    number: int
    start: int
    stop: int
    rows: Any = None

    def label(self, dim: int) -> str:
        """Name the chunk in an error message.

        Example:
            >>> Chunk(3, 6, 8).label(0)
            'chunk 3 (rows 6:8 of dim 0)'
        """
        where = f"{self.start}:{self.stop}"
        shuffled = "" if self.rows is None else " of the permutation"
        return f"chunk {self.number} (rows {where}{shuffled} of dim {dim})"


@dataclass(frozen=True)
class Plan:
    """How a dimension is cut: ``count`` chunks of ``step`` rows, the last one shorter; or rows one by one."""

    dim: int
    size: int
    step: int
    count: int
    single: bool = False

    def chunk(self, number: int, order: Any = None) -> Chunk:
        """Return the chunk of this number; *order* is a permutation of the rows.

        Example:
            >>> make_plan((5,), 0, chunksize=2).chunk(2)
            Chunk(number=2, start=4, stop=5, rows=None)
        """
        start = min(number * self.step, self.size)
        stop = min(start + self.step, self.size)
        return Chunk(number, start, stop, None if order is None else order[start:stop])

    def rows(self, numbers: range) -> slice:
        """Return the rows that neighbouring chunks have together.

        Example:
            >>> make_plan((5,), 0, chunksize=2).rows(range(1, 3))
            slice(2, 5, None)
        """
        return slice(self.chunk(numbers.start).start, self.chunk(numbers.stop - 1).stop)


def make_plan(
    shape: tuple[int, ...], dim: int, chunksize: int | None = None, num_chunks: int | None = None, workers: int = 1
) -> Plan:
    """Plan the chunks of *dim* as ``split(chunksize)`` or ``chunk(num_chunks)`` of torch would cut it.

    Without both there is one chunk per worker, and never an empty one where there are rows. ``chunksize=0`` takes
    the rows one by one.

    Example:
        >>> make_plan((3, 8), -1, num_chunks=3)
        Plan(dim=1, size=8, step=3, count=3, single=False)

    Raises:
        ValueError: both numbers are given, or one is out of range.
        IndexError: there is no such dim.
        TypeError: a number is not an int.
    """
    at = _positive_dim(shape, dim)
    size = shape[at]
    if chunksize is not None and num_chunks is not None:
        raise ValueError(f"give chunksize or num_chunks, not both: got {chunksize!r} and {num_chunks!r}")
    if chunksize is not None:
        step = whole_number("chunksize", chunksize, least=0)
        if step == 0:
            return Plan(at, size, 1, size, single=True)
        return Plan(at, size, step, max(1, -(-size // step)))
    parts = max(1, min(workers, size)) if num_chunks is None else whole_number("num_chunks", num_chunks, least=1)
    step = -(-size // parts)
    return Plan(at, size, step, -(-size // step) if step else parts)


def whole_number(name: str, value: object, *, least: int) -> int:
    """Return *value* when it is an int of at least *least*, else say which argument is wrong.

    Example:
        >>> whole_number("chunksize", 4, least=0)
        4

    Raises:
        TypeError: it is not an int.
        ValueError: it is too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an int, got {value!r} of type {type(value).__name__}")
    number = int(value.__index__())
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number!r}")
    return number


def _positive_dim(shape: tuple[int, ...], dim: int) -> int:
    ndim = len(shape)
    number = whole_number("dim", dim, least=-(2**31))
    if not -ndim <= number < ndim:
        allowed = f"expected {-ndim} to {ndim - 1}" if ndim else "it has no dim to cut"
        raise IndexError(f"dim {number!r} is out of range for shape {list(shape)!r}: {allowed}")
    return number % ndim
