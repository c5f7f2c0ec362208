"""Nested dicts of tensors that behave like one tensor, and are datasets."""

from tensordict._version import __version__
from tensordict.aliases import NO_DEFAULT, NestedKey
from tensordict.core.walk import default_is_leaf, is_leaf_nontensor
from tensordict.keys import unravel_key, unravel_key_list, unravel_key_to_tuple
from tensordict.kinds.collection import TensorCollection, TensorDictBase
from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.kinds.tensorclass import TensorClass, is_tensorclass, tensorclass
from tensordict.ops.join import cat, lazy_stack, maybe_dense_stack, stack
from tensordict.ops.parallel import WorkerError
from tensordict.roof import trees as trees
from tensordict.roof.collate import collate
from tensordict.storage.mapped import MemoryMappedTensor

__all__ = [
    "NO_DEFAULT",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "NestedKey",
    "NonTensorData",
    "NonTensorStack",
    "TensorClass",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "WorkerError",
    "__version__",
    "cat",
    "collate",
    "default_is_leaf",
    "is_leaf_nontensor",
    "is_tensorclass",
    "lazy_stack",
    "maybe_dense_stack",
    "stack",
    "tensorclass",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]
