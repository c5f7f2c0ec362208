"""The bases of all containers, and what programs import beside them."""

from __future__ import annotations

from tensordict.aliases import NO_DEFAULT, NestedKey
from tensordict.core.walk import default_is_leaf, is_leaf_nontensor
from tensordict.kinds.collection import TensorCollection, TensorDictBase
from tensordict.roof.functions import is_tensor_collection

__all__ = [
    "NO_DEFAULT",
    "NestedKey",
    "TensorCollection",
    "TensorDictBase",
    "default_is_leaf",
    "is_leaf_nontensor",
    "is_tensor_collection",
]

_default_is_leaf = default_is_leaf
_is_leaf_nontensor = is_leaf_nontensor
