"""Tell torch of the containers: its tree functions take them apart and put them together, `torch.load` accepts them.

The leaves of a node are its tensors; what it holds besides stays in the structure. A function over leaves may change
their shapes, and `torch.vmap` takes a dim away and gives another one, so the batch size of a node that is put together
is found again from its leaves: it is the old one where they still begin with it, and otherwise what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._C import _functorch as functorch
from torch.serialization import add_safe_globals
from torch.utils._pytree import MappingKey, register_pytree_node

from tensordict import dims
from tensordict.aliases import Batch
from tensordict.core.core import Core
from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.meta import Meta

Turn = Callable[[Tensor, Batch], Tensor]


class _Spec:
    """What is left of a node without its leaves. Two are equal when trees of them can be paired leaf by leaf."""

    def __init__(self, meta: Meta, children: dict[str, Any]) -> None:
        self.meta, self.level = meta, functorch.maybe_current_level() or 0
        self.keys = tuple(children)
        self.followers = {key: child for key, child in children.items() if _is_follower(child)}
        self.shapes = tuple(_shape(children[key]) for key in self.leaf_keys())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Spec) and self.keys == other.keys and self.meta == other.meta

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{list(self.keys)}, batch_size={list(self.meta.batch)}"

    def leaf_keys(self) -> list[str]:
        return [key for key in self.keys if key not in self.followers]

    def children(self, values: Sequence[Any], batch: Batch, turn: Turn | None) -> dict[str, Any]:
        """Return values by key, and with them what stayed in the structure, brought to the batch."""
        given = dict(zip(self.leaf_keys(), values, strict=True))
        old = self.meta.batch
        followers = {
            key: _followed(child, old, batch, turn) if turn else child for key, child in self.followers.items()
        }
        return {key: followers[key] if key in followers else given[key] for key in self.keys}


def _is_follower(child: Any) -> bool:
    """Tell whether a child has no leaf of its own, so that its batch is what its parent says."""
    return isinstance(child, Core) and (child._is_non_tensor or child.is_empty())  # type: ignore[attr-defined]


def _followed(node: Any, old: Batch, new: Batch, turn: Turn) -> Any:
    batch = new + node._meta.batch[len(old) :]
    return node._resize(lambda v: turn(v, batch) if isinstance(v, Tensor) else _followed(v, old, new, turn), batch)


def _shape(value: Any) -> Batch | None:
    return tuple(value.shape) if isinstance(value, (Tensor, Core)) else None  # type: ignore[union-attr]


# ---- the batch of a node that is put together


def _rebatched(values: Sequence[Any], spec: _Spec) -> tuple[Meta, Turn | None]:
    """Return the meta for new leaves, and what is done to the rows of followers (None: nothing)."""
    meta, now = spec.meta, functorch.maybe_current_level() or 0
    pairs = [
        (old, new)
        for old, new in zip(spec.shapes, map(_shape, values), strict=True)
        if old is not None and new is not None
    ]
    if now:
        crossed = _entered(meta, values, now) if now > spec.level else _left(meta, values, pairs, now)
        if crossed is not None:
            return crossed
    depth = len(meta.batch)
    if all(new[:depth] == meta.batch for _, new in pairs):
        return meta, None
    shared = max(0, depth + min(len(new) - len(old) for old, new in pairs))
    batch = _common([new[:shared] for _, new in pairs])
    return Meta(batch, meta.device, meta.names if len(batch) == depth else None), _first_row


def _entered(meta: Meta, values: Sequence[Any], now: int) -> tuple[Meta, Turn] | None:
    """Return the meta inside a vmapped function, which does not see the dim that is mapped over."""
    taken = {functorch.maybe_get_bdim(leaf) for leaf in _mapped(values, now)}
    dim = taken.pop() if len(taken) == 1 else len(meta.batch)
    if dim >= len(meta.batch):
        return None
    names = meta.names and dims.drop(meta.names, dim)
    inside = Meta(dims.drop(meta.batch, dim), meta.device, names if names and any(names) else None)
    return inside, lambda rows, _: functorch._add_batch_dim(rows, dim, now)


def _left(
    meta: Meta, values: Sequence[Any], pairs: Sequence[tuple[Batch, Batch]], now: int
) -> tuple[Meta, Turn] | None:
    """Return the meta of what a vmapped function returned, which has the mapped dim again; None within the function."""
    top = functorch.peek_interpreter_stack()
    if not pairs or top.key() != functorch.TransformType.Vmap or _mapped(values, now):
        return None
    size = functorch.CVmapInterpreterPtr(top).batchSize()
    places = range(len(meta.batch) + 1)
    dim = next((d for d in places if all(dims.insert(old, d, size) == new for old, new in pairs)), None)
    if dim is None:
        return None
    outside = Meta(dims.insert(meta.batch, dim, size), meta.device, meta.names and dims.insert(meta.names, dim, None))
    return outside, lambda rows, _: functorch._remove_batch_dim(rows, now, size, dim)


def _mapped(values: Sequence[Any], level: int) -> list[Tensor]:
    """Return the leaves that the vmap of a level maps over."""
    found = []
    for value in values:
        if isinstance(value, Core):
            found += _mapped([child for _, child in value._raw_pairs()], level)
        elif isinstance(value, Tensor) and functorch.is_batchedtensor(value):
            found += [value] if functorch.maybe_get_level(value) == level else []
    return found


def _common(shapes: Sequence[Batch]) -> Batch:
    """Return the sizes that all shapes begin with."""
    same = 0
    for sizes in zip(*shapes):
        if len(set(sizes)) > 1:
            break
        same += 1
    return shapes[0][:same]


def _first_row(rows: Tensor, batch: Batch) -> Tensor:
    """Return rows for a batch that has nothing to do with the old one: they all take the first value."""
    return rows.reshape(-1)[0].expand(batch) if rows.numel() else rows.new_zeros(batch)


# ---- dense nodes


def _flatten(node: Any) -> tuple[list[Any], _Spec]:
    spec = _Spec(node._meta, node._dict)
    return [node._dict[key] for key in spec.leaf_keys()], spec


def _flatten_with_keys(node: Any) -> tuple[list[Any], _Spec]:
    values, spec = _flatten(node)
    return [(MappingKey(key), value) for key, value in zip(spec.leaf_keys(), values, strict=True)], spec


def _unflatten(values: Any, spec: _Spec) -> Any:
    values = list(values)
    meta, turn = _rebatched(values, spec)
    node = object.__new__(TensorDict)
    node._dict, node._meta = spec.children(values, meta.batch, turn), meta
    return node


# ---- lazy stacks: their leaves are their values, so that a dim means the same as for a dense node


def _flatten_stack(node: Any) -> tuple[list[Any], Any]:
    if not _are_alike(node._tensordicts):
        return list(node._tensordicts), (None, node.stack_dim, node._name)
    spec = _Spec(node._meta, {key: node._get(key) for key in node._keys()})
    return [node._get(key) for key in spec.leaf_keys()], (spec, node.stack_dim, node._name)


def _are_alike(members: Sequence[Any]) -> bool:
    """Tell whether all members have the same keys, and values of the same shapes."""
    first, *rest = [{key: _shape(child) for key, child in member._raw_pairs()} for member in members]
    return all(first == other for other in rest)


def _unflatten_stack(values: Any, context: Any) -> Any:
    spec, dim, name = context
    if spec is None:
        return _unflatten_members(list(values), dim, name)
    node = _unflatten(values, spec)
    if node._meta.batch != spec.meta.batch or None in map(_shape, node._dict.values()):
        return node
    return LazyStackedTensorDict(*node.unbind(dim), stack_dim=dim, stack_dim_name=name)


def _unflatten_members(members: list[Any], dim: int, name: str | None) -> Any:
    node = object.__new__(LazyStackedTensorDict)
    node._tensordicts, node.stack_dim, node._name = members, dim, name
    return node


register_pytree_node(
    TensorDict,
    _flatten,
    _unflatten,
    serialized_type_name="tensordict.TensorDict",
    flatten_with_keys_fn=_flatten_with_keys,
)
register_pytree_node(
    LazyStackedTensorDict, _flatten_stack, _unflatten_stack, serialized_type_name="tensordict.LazyStackedTensorDict"
)

# unpickling these runs nothing but their own `__setstate__`
add_safe_globals([TensorDict, LazyStackedTensorDict, NonTensorData, NonTensorStack, Meta])
