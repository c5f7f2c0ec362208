"""The tensor without rows, under the module name that pickles of the published package know it by."""

from __future__ import annotations

from tensordict.kinds.unbatched import UnbatchedTensor

__all__ = ["UnbatchedTensor"]
