"""The typed and non-tensor classes, under the module name that programs import them from."""

from __future__ import annotations

from tensordict.kinds.nontensor import NonTensorData, NonTensorStack
from tensordict.kinds.tensorclass import TensorClass, is_tensorclass, tensorclass

__all__ = ["NonTensorData", "NonTensorStack", "TensorClass", "is_tensorclass", "tensorclass"]
