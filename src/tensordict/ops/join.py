"""Join several nodes to one: stacked densely or lazily, or concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict import dims, errors, settings
from tensordict.core import coerce
from tensordict.core.core import Core, S, implements
from tensordict.meta import Meta


def stack(input: Sequence[S], dim: int = 0, *, out: S | None = None) -> S:
    """Stack tensordicts along a new batch dim, value by value.

    Args:
        input: tensordicts of one batch size with the same keys and shapes.
        dim: where the new dim stands.
        out: a tensordict that the result is written to.

    Returns:
        A container of the class of the first; lazy stacks stay lazy.

    Raises:
        RuntimeError: if there are none, or batch sizes or shapes differ; the message names the key.
        KeyError: if the keys differ.
        TypeError: if unrelated tensorclasses are mixed.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> torch.stack([TensorDict({"x": 1}), TensorDict({"x": 2})])["x"]
        tensor([1, 2])
    """
    if _tensors(input):
        return _joined(torch.stack, input, dim, out)  # type: ignore[no-any-return]
    if settings.lazy_legacy():
        return lazy_stack(input, dim, out=out)  # type: ignore[no-any-return]
    items = _nodes(input, "stack")
    first = items[0]
    return into(out, type(first)._stack(items, dims.wrap(dim, len(first._meta.batch) + 1)))  # type: ignore[no-any-return]


def cat(input: Sequence[S], dim: int = 0, *, out: S | None = None) -> S:
    """Concatenate tensordicts along a batch dim, value by value.

    Args:
        input: tensordicts with the same keys, and batch sizes that differ at most along ``dim``.
        dim: the batch dim.
        out: a tensordict that the result is written to.

    Raises:
        RuntimeError: if there are none, or batch sizes or shapes do not fit; the message names the key.
        KeyError: if the keys differ.
        TypeError: if unrelated tensorclasses are mixed.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"x": torch.arange(2)}, [2])
        >>> torch.cat([td, td])["x"]
        tensor([0, 1, 0, 1])
    """
    if _tensors(input):
        return _joined(torch.cat, input, dim, out)  # type: ignore[no-any-return]
    items = _nodes(input, "cat")
    first = items[0]
    return into(out, type(first)._cat(items, dims.wrap(dim, len(first._meta.batch))))  # type: ignore[no-any-return]


def lazy_stack(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Stack tensordicts along a new batch dim without copying: each stays as it is.

    Args:
        input: tensordicts with as many batch dims; keys and shapes may differ.
        dim: where the new dim stands.
        out: a tensordict that the result is written to.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, lazy_stack
        >>> lazy_stack([TensorDict({"x": torch.zeros(n)}) for n in (2, 3)])[1]["x"].shape
        torch.Size([3])
    """
    if _tensors(input):
        return _joined(torch.stack, input, dim, out)
    items = _nodes(input, "lazy_stack")
    d = dims.wrap(dim, len(items[0]._meta.batch) + 1)
    return into(out, items[0]._lazily(items, d))


def maybe_dense_stack(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Stack tensordicts densely if their keys and shapes match, and lazily otherwise.

    Args:
        input: tensordicts with as many batch dims.
        dim: where the new dim stands.
        out: a tensordict that the result is written to.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, maybe_dense_stack
        >>> type(maybe_dense_stack([TensorDict({"x": torch.zeros(n)}) for n in (2, 3)])).__name__
        'LazyStackedTensorDict'
    """
    try:
        return stack(input, dim, out=out)
    except (errors.ShapeMismatch, errors.KeysMismatch):
        return lazy_stack(input, dim, out=out)


def _tensors(items: Sequence[Any]) -> bool:
    """Tell whether these are torch's alone to join; a node among tensors is refused by `_nodes`."""
    return bool(len(items)) and isinstance(items[0], Tensor) and not any(isinstance(item, Core) for item in items)


def _joined(word: Any, items: Any, dim: int, out: Any) -> Any:
    return word(list(items), dim, out=out)


def _nodes(items: Sequence[Any], word: str) -> list[Any]:
    found = list(items)
    if not found:
        raise RuntimeError(f"{word} expects at least one tensordict, got none")
    if len(set(map(type, found))) == 1 and isinstance(found[0], Core):
        return found
    for at, item in enumerate(found):
        if not isinstance(item, Core):
            raise TypeError(
                f"{word} expects tensordicts only, got {item!r} of type {type(item).__name__} at number {at}"
            )
        if item._is_typed is not found[0]._is_typed:
            raise TypeError(
                f"{word} cannot join a {type(found[0]).__name__} and a {type(item).__name__}: one has fixed fields, "
                f"the other free keys; `to_tensordict` or `from_tensordict` make them alike"
            )
    return found


def into(out: Any, result: Any) -> Any:
    """Return a result, written to the memory of ``out`` if there is one."""
    if out is None:
        return result
    if isinstance(out, Core) and out._meta.batch != result._meta.batch:
        raise errors.ShapeMismatch(
            f"out must have the batch size of the result, {list(result._meta.batch)}, got {list(out._meta.batch)}"
        )
    return out.update_(result)


implements(torch.stack)(stack)
implements(torch.cat, torch.concat, torch.concatenate)(cat)


class Join(Core):
    """Requires: `_stack`, `_cat`, `_lazily`. Gives: the joining words as class methods."""

    stack = staticmethod(stack)
    cat = staticmethod(cat)
    lazy_stack = staticmethod(lazy_stack)
    maybe_dense_stack = staticmethod(maybe_dense_stack)


def need_same_keys(items: Sequence[Any]) -> None:
    """Raise unless all nodes have the keys of the first."""
    names = set(items[0]._keys())
    for at, item in enumerate(items):
        if names != set(item._keys()):
            raise errors.KeysMismatch(
                f"cannot join tensordicts with different keys: the first has {sorted(names)}, number {at} has "
                f"{sorted(item._keys())}. `lazy_stack` keeps each as it is."
            )


def mismatch(key: str, parts: Sequence[Any], error: Exception) -> RuntimeError:
    """Return the error for values at a key that torch cannot join."""
    shapes = sorted({tuple(coerce.shape_of(part)) for part in parts})
    if len(shapes) == 1 and -1 not in shapes[0]:
        return RuntimeError(f"cannot join the values at key {key!r}: {error}")
    return errors.ShapeMismatch(
        f"cannot join the values at key {key!r}: their shapes differ, {', '.join(map(str, map(list, shapes)))}. "
        f"`lazy_stack` keeps each as it is, `pad_sequence` pads them."
    )


def stacked_meta(items: Sequence[Any], dim: int) -> Meta:
    """Return the batch, device and names of a stack of nodes; raise if their batches differ."""
    first = items[0]._meta
    batch, device, names = first
    metas = [item._meta for item in items]
    for at, meta in enumerate(metas) if metas.count(first) < len(metas) else ():
        if meta.batch != batch:
            raise errors.ShapeMismatch(
                f"cannot stack tensordicts of different batch sizes: the first has {list(batch)}, "
                f"number {at} has {list(meta.batch)}"
            )
        if meta.device != device:
            device = None
    return Meta((*batch[:dim], len(items), *batch[dim:]), device, names and (*names[:dim], None, *names[dim:]))


def cat_meta(items: Sequence[Any], dim: int) -> Meta:
    """Return the batch, device and names of nodes one after the other; raise if other dims differ."""
    batch, device, names = items[0]._meta
    for at, item in enumerate(items):
        other = item._meta.batch
        if other == batch:
            continue
        if len(other) != len(batch) or (*other[:dim], *other[dim + 1 :]) != (*batch[:dim], *batch[dim + 1 :]):
            raise errors.ShapeMismatch(
                f"cannot concatenate tensordicts along dim {dim}: the first has batch size {list(batch)}, "
                f"number {at} has {list(other)}"
            )
    joined = (*batch[:dim], sum([item._meta.batch[dim] for item in items]), *batch[dim + 1 :])
    return Meta(joined, device if all([item._meta.device == device for item in items]) else None, names)


def alike(one: Any, other: Any) -> bool:
    """Tell whether two nodes can be stacked densely."""
    mine, theirs = dict(one._looks()), dict(other._looks())
    return mine.keys() == theirs.keys() and all(
        v.shape == theirs[k].shape and (alike(v, theirs[k]) if isinstance(v, Core) else v.dtype == theirs[k].dtype)
        for k, v in mine.items()
    )
