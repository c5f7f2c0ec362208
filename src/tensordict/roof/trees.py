"""Tell torch of the containers: its tree functions keep them, and `torch.load` accepts them by default."""

from __future__ import annotations

from typing import Any

from torch.serialization import add_safe_globals
from torch.utils._pytree import MappingKey, register_pytree_node

from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.meta import Meta


def _flatten(node: Any) -> tuple[list[Any], Any]:
    return list(node._dict.values()), (list(node._dict), node._meta)


def _flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
    return [(MappingKey(key), child) for key, child in node._dict.items()], (list(node._dict), node._meta)


def _unflatten(values: Any, context: Any) -> Any:
    keys, meta = context
    node = object.__new__(TensorDict)
    node._dict, node._meta = dict(zip(keys, values, strict=True)), meta
    return node


def _flatten_stack(node: Any) -> tuple[list[Any], Any]:
    return list(node._tensordicts), (node.stack_dim, node._name)


def _unflatten_stack(values: Any, context: Any) -> Any:
    node = object.__new__(LazyStackedTensorDict)
    node._tensordicts = list(values)
    node.stack_dim, node._name = context
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
