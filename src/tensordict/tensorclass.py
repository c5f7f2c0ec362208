"""The typed and non-tensor classes, under the module name that programs import them from."""

from __future__ import annotations

from tensordict.kinds.nontensor import MetaData, NonTensorData, NonTensorDataBase, NonTensorStack
from tensordict.kinds.tensorclass import TensorClass, from_dataclass, is_tensorclass, tensorclass
from tensordict.roof.functions import is_non_tensor

__all__ = [
    "MetaData",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "TensorClass",
    "from_dataclass",
    "is_non_tensor",
    "is_tensorclass",
    "tensorclass",
]
