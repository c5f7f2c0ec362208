"""Pure rules on tuples that have one entry a dim.

A rule takes the entries and the entry of a new dim. The same rule is applied to sizes (new: 1), to names (new: None)
and to positions, which tells a lazy stack where its dim goes. No torch here, so that the rules stay easy to test.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensordict.aliases import Batch, Rule

Entries = tuple[Any, ...]


def memo(rule: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a rule that remembers its last answer: the leaves of a node often have one shape."""
    last: Any = None
    answer: Any = None

    def call(value: Any) -> Any:
        nonlocal last, answer
        if value != last:
            last, answer = value, rule(value)
        return answer

    return call


def wrap(dim: int, ndim: int, what: str = "dim") -> int:
    """Return a dim counted from the front; negative dims count from the end of the batch dims."""
    if not -ndim <= dim < ndim:
        span = f"[{-ndim}, {ndim - 1}]" if ndim else "no value: there are no batch dims"
        raise IndexError(f"{what} {dim} is out of range: expected {span}")
    return dim % ndim


def wrap_all(dims: Iterable[int], ndim: int) -> tuple[int, ...]:
    """Return several dims counted from the front, each at most once."""
    wrapped = tuple([wrap(dim, ndim) for dim in dims])
    if len(set(wrapped)) < len(wrapped):
        raise RuntimeError(f"a dim appears more than once in {tuple(dims)!r}")
    return wrapped


def insert(entries: Entries, dim: int, new: Any) -> Entries:
    return (*entries[:dim], new, *entries[dim:])


def drop(entries: Entries, *dims: int) -> Entries:
    return tuple([entry for at, entry in enumerate(entries) if at not in dims])


def inserting(dim: int) -> Rule:
    return lambda entries, new: insert(entries, dim, new)


def dropping(*dims: int) -> Rule:
    return lambda entries, new: drop(entries, *dims)


def ordering(order: Sequence[int]) -> Rule:
    return lambda entries, new: tuple([entries[at] for at in order])


def swapped(ndim: int, first: int, second: int) -> tuple[int, ...]:
    """Return the order of dims after two of them change places."""
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def moved(ndim: int, source: Sequence[int], destination: Sequence[int]) -> tuple[int, ...]:
    """Return the order of dims after those of ``source`` went to the places of ``destination``."""
    if len(source) != len(destination):
        raise RuntimeError(f"expected as many destinations as sources, got {len(source)} and {len(destination)}")
    order: list[int | None] = [None] * ndim
    for at, to in zip(source, destination, strict=True):
        order[to] = at
    rest = iter([dim for dim in range(ndim) if dim not in source])
    return tuple(next(rest) if at is None else at for at in order)


def numel(batch: Batch) -> int:
    return math.prod(batch)


def infer(shape: Sequence[int], count: int) -> Batch:
    """Return a shape of ``count`` elements with its one -1 resolved."""
    shape = tuple(shape)
    holes = shape.count(-1)
    if holes > 1 or (shape and min(shape) < -1):
        raise RuntimeError(f"only one dim can be -1, and no other negative; got shape {list(shape)}")
    if holes:
        known = -math.prod(shape)
        if known == 0 or count % known:
            raise RuntimeError(f"shape {list(shape)} is invalid for a batch of {count} elements")
        shape = tuple(count // known if size == -1 else size for size in shape)
    if math.prod(shape) != count:
        raise RuntimeError(f"shape {list(shape)} is invalid for a batch of {count} elements")
    return shape


def expand(batch: Batch, shape: Sequence[int]) -> Batch:
    """Return the batch after an expansion to ``shape``, in which -1 keeps a size."""
    lead = len(shape) - len(batch)
    if lead < 0:
        raise RuntimeError(f"cannot expand a batch size of {list(batch)} to {list(shape)}: it has fewer dims")
    out = []
    for at, size in enumerate(shape):
        own = batch[at - lead] if at >= lead else None
        if size == -1 and own is None:
            raise RuntimeError(f"cannot expand to {list(shape)}: -1 is not allowed for a leading dim that is new")
        if own not in (None, 1, size) and size != -1:
            raise RuntimeError(f"cannot expand a batch size of {list(batch)} to {list(shape)}: size {own} is not 1")
        out.append(own if size == -1 else size)
    return tuple(out)  # type: ignore[arg-type]


def split_sizes(size: int, split_size: int | Sequence[int]) -> list[int]:
    """Return the sizes of the parts when a dim of ``size`` is split."""
    if isinstance(split_size, int):
        if split_size <= 0 and not (split_size == 0 and size == 0):
            raise RuntimeError(f"split_size must be positive, got {split_size}")
        if size == 0:
            return [0]
        return [min(split_size, size - start) for start in range(0, size, split_size)]
    sizes = list(split_size)
    if sum(sizes) != size or any(part < 0 for part in sizes):
        raise RuntimeError(f"split sizes must be non-negative and sum to {size}, the size of the dim; got {sizes}")
    return sizes


def common(shapes: Sequence[Batch]) -> Batch:
    """Return the sizes that all shapes begin with."""
    if shapes and all([shape == shapes[0] for shape in shapes]):
        return shapes[0]
    batch: Batch = ()
    for sizes in zip(*shapes):  # the shortest shape ends it
        if len(set(sizes)) > 1:
            break
        batch += sizes[:1]
    return batch


def replaced(batch: Batch, dim: int, size: int) -> Batch:
    return (*batch[:dim], size, *batch[dim + 1 :])


def flattened(batch: Batch, start: int, end: int) -> Batch:
    return (*batch[:start], math.prod(batch[start : end + 1]), *batch[end + 1 :])


def reduced(batch: Batch, dims: Sequence[int], keepdim: bool) -> Batch:
    """Return the batch after a reduction over ``dims``."""
    if keepdim:
        return tuple(1 if at in dims else size for at, size in enumerate(batch))
    return drop(batch, *dims)


def sizes(args: Sequence[Any]) -> tuple[int, ...]:
    """Return sizes or dims given as separate numbers or as one sequence."""
    if len(args) == 1 and not isinstance(args[0], int):
        return tuple(args[0])
    return tuple(args)
