"""The tensordict in a store, under the module name that programs import it from."""

from __future__ import annotations

from tensordict.kinds.persistent import PersistentTensorDict

__all__ = ["PersistentTensorDict"]
