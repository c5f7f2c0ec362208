"""The typed and non-tensor classes, under the module name that programs import them from."""

from __future__ import annotations

from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.kinds.tensorclass import TensorClass, from_dataclass, is_tensorclass, tensorclass

__all__ = ["NonTensorData", "NonTensorStack", "TensorClass", "from_dataclass", "is_tensorclass", "tensorclass"]
