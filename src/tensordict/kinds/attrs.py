"""TensorAttrs: what `attrs` says of a leaf."""

from __future__ import annotations

from typing import Any, final

import torch

from tensordict.core.core import Core
from tensordict.kinds.tensorclass import TensorClass


@final
class TensorAttrs(TensorClass, nocast=True):
    """Hold the device, the dtype and the shape of a tensor; `to` moves and casts to the first two.

    Args:
        tgt_device: the device, or None.
        tgt_dtype: the dtype, or None.
        tgt_shape: the shape, or None.

    Examples:
        >>> import torch
        >>> from tensordict import TensorAttrs, TensorDict
        >>> TensorDict({"x": 1}).to(TensorAttrs(tgt_dtype=torch.float64))["x"]
        tensor(1., dtype=torch.float64)
    """

    tgt_device: torch.device | None = None
    tgt_dtype: torch.dtype | None = None
    tgt_shape: torch.Size | None = None

    def _targets(self) -> dict[tuple[str, ...], dict[str, Any]]:
        asked = {"device": self.tgt_device, "dtype": self.tgt_dtype}
        return {(): {name: value for name, value in asked.items() if value is not None}}


Core._attrs_kind = TensorAttrs
