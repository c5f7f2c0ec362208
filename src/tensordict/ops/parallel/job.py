"""What every worker holds: the function, the source, and where results go. A task is then the number of a chunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .plan import Chunk, Plan
from .seeds import seeded


@dataclass(frozen=True)
class Job:
    """One call of `map` or `map_iter`.

    The function comes first so that one that cannot be pickled fails before the source is touched.
    """

    fn: Callable[[Any], Any]
    source: Any
    plan: Plan
    order: torch.Tensor | None = None
    out: Any = None
    seed: int | None = None

    def chunk(self, number: int) -> Chunk:
        """Return the chunk of this number."""
        return self.plan.chunk(number, self.order)

    def label(self, number: int) -> str:
        """Name a chunk in an error message; a negative number is what comes before the first."""
        return "its start" if number < 0 else self.chunk(number).label(self.plan.dim)

    def take(self, chunk: Chunk) -> Any:
        """Take the rows of *chunk* from the source, as a view where they are contiguous."""
        return self.source[place(self.plan, chunk)]

    def run(self, number: int) -> Any:
        """Call the function on a chunk."""
        chunk = self.chunk(number)
        return self.finish(chunk, self.take(chunk))

    def finish(self, chunk: Chunk, rows: Any) -> Any:
        """Call the function on the rows; with an ``out``, write the result there and return None."""
        if self.seed is None:
            result = self.fn(rows)
        else:
            with seeded(self.seed, chunk.number):
                result = self.fn(rows)
        if self.out is None or result is None:
            return result
        write_rows(self.out, self.plan, chunk, result)
        return None


def place(plan: Plan, chunk: Chunk) -> Any:
    """Return the index of *chunk*: a number for a single row, a slice, or a tensor of row numbers when shuffled.

    Example:
        >>> place(Plan(1, 5, 2, 3), Chunk(0, 0, 2))
        (slice(None, None, None), slice(0, 2, None))
        >>> place(Plan(0, 5, 2, 3), Chunk(0, 0, 2))
        slice(0, 2, None)
    """
    at: Any
    if chunk.rows is not None:
        at = int(chunk.rows[0]) if plan.single else chunk.rows
    else:
        at = chunk.start if plan.single else slice(chunk.start, chunk.stop)
    return (*(slice(None),) * plan.dim, at) if plan.dim else at


def check_out(out: Any, plan: Plan) -> None:
    """Raise, before anything runs, if *out* cannot take rows whatever their keys are.

    Raises:
        TypeError: *out* is neither a tensor nor a tensordict.
        ValueError: it has another number of rows.
        PermissionError: it was opened for reading.
        RuntimeError: a tensor that is expanded or requires gradients.
    """
    shape = getattr(out, "shape", None)
    if shape is None:
        raise TypeError(f"out must be a tensordict or a tensor, got a {type(out).__name__}")
    if len(shape) <= plan.dim or shape[plan.dim] != plan.size:
        raise ValueError(f"out must have {plan.size} rows along dim {plan.dim}, got shape {list(shape)!r}")
    if not isinstance(out, torch.Tensor):
        out._writable()
    elif (out.requires_grad and out.is_leaf) or any(n > 1 and not step for n, step in zip(shape, out.stride())):
        raise RuntimeError(
            "out cannot be written in place: it is expanded or requires gradients; pass its detached clone"
        )


def write_rows(out: Any, plan: Plan, chunk: Chunk, result: Any) -> None:
    """Write *result* to the rows of *chunk* in *out*, once it is known to fit: nothing is broadcast, no key is made.

    Raises:
        ValueError: the result, or one of its leaves, has another shape than its place.
        KeyError: the result has a key that *out* has not.
        TypeError: the result is a tensor and *out* is none, or the other way round.
    """
    shape = getattr(result, "shape", None)
    rows = chunk.stop - chunk.start
    if not plan.single and (shape is None or len(shape) <= plan.dim or shape[plan.dim] != rows):
        got = f"a {type(result).__name__}" if shape is None else f"shape {list(shape)!r}"
        raise ValueError(
            f"the result for {chunk.label(plan.dim)} cannot be written to out: expected {rows} rows along "
            f"dim {plan.dim}, got {got}"
        )
    at = place(plan, chunk)
    wrong = _misfit(out[at], result)
    if wrong is not None:
        error, words = wrong
        raise error(f"the result for {chunk.label(plan.dim)} cannot be written to out: {words}")
    out[at] = result


def _misfit(target: Any, result: Any) -> tuple[type[Exception], str] | None:
    """Say why *result* does not fit its place in ``out``, or return None."""
    if hasattr(result, "keys") != hasattr(target, "keys"):
        return TypeError, f"expected a {type(target).__name__}, got a {type(result).__name__}"
    if not hasattr(result, "keys"):
        if tuple(result.shape) == tuple(target.shape):
            return None
        return ValueError, f"expected shape {list(target.shape)!r}, got {list(result.shape)!r}"
    there = set(target.keys(True, True))
    for key in result.keys(True, True):
        if key not in there:
            return (
                KeyError,
                f"it has the key {key!r}, which out has not; there are {sorted(map(str, there))!r}",
            )
        want, got = target.get_item_shape(key), result.get_item_shape(key)
        if tuple(want) != tuple(got):
            return ValueError, f"at key {key!r}, expected shape {list(want)!r}, got {list(got)!r}"
    return None
