"""Tell torch of the containers: its tree functions take them apart and put them together, `torch.load` accepts them.

The leaves of a node are its tensors; what it holds besides stays in the structure. A function over leaves may change
their shapes, and `torch.vmap` takes a dim away and gives another one, so the batch size of a node that is put together
is found again from its leaves: it is the old one where they still begin with it, and otherwise what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor
from torch._C._functorch import TransformType, get_dynamic_layer_stack_depth, maybe_get_level
from torch._functorch.predispatch import _add_batch_dim, _remove_batch_dim
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter, temporarily_pop_interpreter_stack
from torch.serialization import add_safe_globals
from torch.utils._pytree import MappingKey, SequenceKey, register_pytree_node

from tensordict import dims
from tensordict.aliases import Batch
from tensordict.core.core import Core
from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.kinds.nontensor import MetaData, NonTensorData, NonTensorStack
from tensordict.kinds.persistent import PersistentTensorDict
from tensordict.kinds.pool import Pool
from tensordict.kinds.unbatched import Unbatched, UnbatchedTensor
from tensordict.kinds.window import Window
from tensordict.meta import Meta
from tensordict.ops.store import copied_home
from tensordict.storage.sent import unpacked
from tensordict.storage.strings import opened

Turn = Callable[[Tensor, Batch], Tensor]


class _Spec:
    """What is left of a node without its leaves. Two are equal when trees of them can be paired leaf by leaf."""

    def __init__(self, meta: Meta, children: dict[str, Any]) -> None:
        self.meta, self.level = meta, get_dynamic_layer_stack_depth()
        self.keys = tuple(children)
        self.followers = {key: child for key, child in children.items() if _is_follower(child)}
        self.shapes = tuple(_shape(children[key]) for key in self.leaf_keys())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Spec) and self.keys == other.keys

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
    node = node._settled() if node._is_non_tensor else node
    return node._resize(lambda v: turn(v, batch) if isinstance(v, Tensor) else _followed(v, old, new, turn), batch)


def _shape(value: Any) -> Batch | None:
    return tuple(value.shape) if isinstance(value, (Tensor, Core)) else None  # type: ignore[union-attr]


# ---- the batch of a node that is put together


def _rebatched(values: Sequence[Any], spec: _Spec) -> tuple[Meta, Turn | None]:
    """Return the meta for new leaves, and what is done to the rows of followers (None: nothing)."""
    meta, depth = spec.meta, len(spec.meta.batch)
    shapes = zip(spec.shapes, map(_shape, values), strict=True)
    pairs = [(old, new) for old, new in shapes if old is not None and new is not None]
    level = get_dynamic_layer_stack_depth()
    if level and pairs:
        crossed = _entered(spec, pairs, level) if level > spec.level else _left(spec, pairs, level)
        if crossed is not None:
            return crossed
    if all(new[:depth] == meta.batch for _, new in pairs):
        return meta, None
    shared = max(0, depth + min(len(new) - len(old) for old, new in pairs))
    batch = dims.common([new[:shared] for _, new in pairs])
    return Meta(batch, meta.device, meta.names if len(batch) == depth else None), _refused


def _entered(spec: _Spec, pairs: Sequence[tuple[Batch, Batch]], level: int) -> tuple[Meta, Turn] | None:
    """Return the meta inside a vmapped function, which does not see the dim that is mapped over."""
    batch, device, names = spec.meta
    found = [d for d in range(len(batch)) if all(dims.drop(old, d) == new for old, new in pairs)]
    if not found:
        return None
    dim = found[0]
    names = dims.drop(names, dim) if names and len(found) == 1 else None
    inside = Meta(dims.drop(batch, dim), device, names if names and any(names) else None)
    return inside, lambda rows, _: _add_batch_dim(rows, _sure(found), level)


def _left(spec: _Spec, pairs: Sequence[tuple[Batch, Batch]], level: int) -> tuple[Meta, Turn] | None:
    """Return the meta of what a vmapped function returned, which has the mapped dim again; None within the function."""
    top: Any = retrieve_current_functorch_interpreter()
    if top.key() != TransformType.Vmap:
        return None
    (batch, device, names), size = spec.meta, top.batch_size()
    found = [d for d in range(len(batch) + 1) if all(dims.insert(old, d, size) == new for old, new in pairs)]
    if not found:
        return None
    dim = found[0]
    names = dims.insert(names, dim, None) if names and len(found) == 1 else None
    outside = Meta(dims.insert(batch, dim, size), device, names)
    return outside, lambda rows, _: _remove_batch_dim(rows, level, size, _sure(found))


def _sure(found: Sequence[int]) -> int:
    """Return the one dim that vmap can have mapped over; leaves do not tell between dims of equal sizes."""
    if len(found) > 1:
        raise RuntimeError(
            f"vmap cannot take a column of non-tensors along: dims {list(found)} have the same size, it may be mapped "
            f"over any of them. Leave the column out with exclude()."
        )
    return found[0]


def _refused(rows: Tensor, batch: Batch) -> Tensor:
    raise RuntimeError(
        f"the leaves have another batch size now, and a column of non-tensors of batch size {list(rows.shape)} cannot "
        f"follow to {list(batch)}. Leave the column out with exclude()."
    )


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
    level = get_dynamic_layer_stack_depth()
    # a transform that takes its inputs apart must not find that it has made them itself: they are joined below it
    with temporarily_pop_interpreter_stack() if level and not _is_of(level, node) else nullcontext():
        values, spec = _flatten(node._shallow())
    return values, (spec, node.stack_dim, node._name)


def _is_of(level: int, value: Any) -> bool:
    """Tell whether a leaf was made by the transform of a level."""
    if isinstance(value, Tensor):
        return bool(maybe_get_level(value) == level)
    return bool(value._fold(lambda child: _is_of(level, child), any))


def _flatten_stack_with_keys(node: Any) -> tuple[list[Any], Any]:
    values, context = _flatten_stack(node)
    spec = context[0]
    names: Any = map(SequenceKey, range(len(values))) if spec is None else map(MappingKey, spec.leaf_keys())
    return list(zip(names, values, strict=True)), context


def _are_alike(members: Sequence[Any]) -> bool:
    """Tell whether all members have the same keys, and values of the same shapes."""
    first, *rest = [{key: _shape(child) for key, child in member._raw_pairs()} for member in members]
    return all(first == other for other in rest)


def _unflatten_stack(values: Any, context: Any) -> Any:
    spec, dim, name = context
    if spec is None:
        return _unflatten_members(list(values), dim, name)
    node = _unflatten(values, spec)
    whole = node._meta.batch == spec.meta.batch and None not in map(_shape, node._dict.values())
    if get_dynamic_layer_stack_depth() or not whole:  # a function transform must find the same leaves again
        return node
    return LazyStackedTensorDict(*node.unbind(dim), stack_dim=dim, stack_dim_name=name)


def _unflatten_members(members: list[Any], dim: int, name: str | None) -> Any:
    node = object.__new__(LazyStackedTensorDict)
    node._tensordicts, node.stack_dim, node._name = members, dim, name
    return node


# ---- nodes in a store: their leaves are read, and what is put together is in memory


def _flatten_stored(node: Any) -> tuple[list[Any], _Spec]:
    return _flatten(node._dense())


def _flatten_stored_with_keys(node: Any) -> tuple[list[Any], _Spec]:
    return _flatten_with_keys(node._dense())


register_pytree_node(
    TensorDict,
    _flatten,
    _unflatten,
    serialized_type_name="tensordict.TensorDict",
    flatten_with_keys_fn=_flatten_with_keys,
)
register_pytree_node(
    LazyStackedTensorDict,
    _flatten_stack,
    _unflatten_stack,
    serialized_type_name="tensordict.LazyStackedTensorDict",
    flatten_with_keys_fn=_flatten_stack_with_keys,
)

for _kind in (PersistentTensorDict, Window):
    register_pytree_node(
        _kind,
        _flatten_stored,
        _unflatten,
        serialized_type_name=f"tensordict.{_kind.__name__}",
        flatten_with_keys_fn=_flatten_stored_with_keys,
    )

# unpickling these runs nothing but their own `__setstate__`
add_safe_globals(
    [TensorDict, LazyStackedTensorDict, NonTensorData, MetaData, NonTensorStack, Unbatched, UnbatchedTensor]
)
add_safe_globals([Meta, Pool, copied_home, opened, unpacked])
