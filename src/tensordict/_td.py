"""The tensordict, under the private module name that some programs import it from."""

from __future__ import annotations

from tensordict.base import TensorDictBase, is_tensor_collection
from tensordict.kinds.dense import TensorDict
from tensordict.utils import _unravel_key_to_tuple as _unravel_key_to_tuple

__all__ = ["TensorDict", "TensorDictBase", "is_tensor_collection"]
