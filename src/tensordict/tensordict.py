"""The tensordicts and what is done with several of them, under the module name that programs import them from."""

from __future__ import annotations

from tensordict.base import NO_DEFAULT, NestedKey, TensorDictBase, is_tensor_collection
from tensordict.functional import dense_stack_tds, make_tensordict, merge_tensordicts, pad, pad_sequence
from tensordict.kinds.dense import TensorDict
from tensordict.kinds.lazy import LazyStackedTensorDict
from tensordict.memmap import MemoryMappedTensor
from tensordict.tensorclass import is_tensorclass

__all__ = [
    "NO_DEFAULT",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "NestedKey",
    "TensorDict",
    "TensorDictBase",
    "dense_stack_tds",
    "is_tensor_collection",
    "is_tensorclass",
    "make_tensordict",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
]
