"""The lazy stack, under the private module name that some programs import it from."""

from __future__ import annotations

from tensordict.kinds.lazy import LazyStackedTensorDict

__all__ = ["LazyStackedTensorDict"]
