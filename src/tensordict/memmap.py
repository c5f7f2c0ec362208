"""The memory-mapped tensor, under the module name that programs import it from."""

from __future__ import annotations

from tensordict.storage.mapped import MemoryMappedTensor

__all__ = ["MemoryMappedTensor"]
