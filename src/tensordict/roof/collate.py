"""Make one batch of the samples of a DataLoader.

Importing this module teaches torch's default `collate_fn` about tensor collections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

from tensordict.aliases import NestedKey
from tensordict.core.core import Core
from tensordict.core.walk import find
from tensordict.keys import unravel_key_to_tuple
from tensordict.kinds.collection import TensorCollection
from tensordict.ops.join import maybe_dense_stack
from tensordict.ops.ragged import check_first, jagged, lengths_mask, padded

Path = tuple[str, ...]


def collate(
    batch: Any,
    *,
    pad_keys: Mapping[NestedKey, float] | None = None,
    nested_keys: Sequence[NestedKey] | None = None,
    mask_key: NestedKey | None = None,
) -> Any:
    """Make one batch of a list of samples: dense where shapes match, lazy otherwise.

    Args:
        batch: samples: tensordicts or tensorclasses, tuples or dicts that hold them, or whatever torch's default
            `collate_fn` takes. A batch that was read with one index operation is returned as it is.
        pad_keys: for each key that is padded along its first dim, the number to pad with.
        nested_keys: keys that become jagged nested tensors.
        mask_key: with ``pad_keys``, where masks are put: True for a value, False for padding, under the same keys.

    Raises:
        TypeError: if unrelated tensorclasses are mixed.
        KeyError: if a sample lacks a padded or nested key.
        ValueError: if a key is padded and nested, or ``mask_key`` is the key of a value or comes without ``pad_keys``.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, collate
        >>> samples = [TensorDict({"ids": torch.ones(n)}) for n in (1, 2)]
        >>> batch = collate(samples, pad_keys={"ids": 0}, mask_key="mask")
        >>> batch["ids"].tolist(), batch["mask", "ids"].tolist()
        ([[1.0, 0.0], [1.0, 1.0]], [[True, False], [True, True]])
    """
    plan = _Ragged(pad_keys, nested_keys, mask_key)
    return _collate(batch, plan)


class _Ragged:
    """Which keys are padded, with what, and which become nested tensors."""

    def __init__(
        self,
        pad_keys: Mapping[NestedKey, float] | None,
        nested_keys: Sequence[NestedKey] | None,
        mask_key: NestedKey | None,
    ) -> None:
        if pad_keys is not None and not isinstance(pad_keys, Mapping):
            raise TypeError(f"pad_keys must map each key to the number to pad with, got {pad_keys!r}")
        if isinstance(nested_keys, str):
            raise TypeError(f"nested_keys must be a list of keys, got the string {nested_keys!r}")
        if mask_key is not None and not pad_keys:
            raise ValueError(f"mask_key={mask_key!r} needs pad_keys: there is no padding to mask")
        self.pad = {unravel_key_to_tuple(key): value for key, value in (pad_keys or {}).items()}
        self.nest = [unravel_key_to_tuple(key) for key in nested_keys or ()]
        self.mask = None if mask_key is None else unravel_key_to_tuple(mask_key)
        both = sorted(set(self.pad) & set(self.nest))
        if both:
            raise ValueError(f"keys {both} are in both pad_keys and nested_keys")

    def __bool__(self) -> bool:
        return bool(self.pad or self.nest)

    def join(self, samples: Sequence[Any]) -> Any:
        """Return the batch of samples that are nodes."""
        if not self:
            return maybe_dense_stack(samples)
        chosen = [*self.pad, *self.nest]
        parts = {path: [_part(sample, path) for sample in samples] for path in chosen}
        if self.mask is not None and any(find(sample, self.mask) is not None for sample in samples):
            raise ValueError(f"mask_key={'.'.join(self.mask)!r} is the key of a value in a sample")
        rest = maybe_dense_stack([sample.exclude(*chosen) for sample in samples])
        for path in chosen:
            rest.set(path, self._ragged(path, parts[path]))
            if self.mask is not None and path in self.pad:
                rest.set((*self.mask, *path), lengths_mask(parts[path]))
        return rest

    def _ragged(self, path: Path, parts: list[Tensor]) -> Tensor:
        if path in self.nest:
            return jagged(parts)
        try:
            check_first(parts)
            return padded(parts, self.pad[path])
        except RuntimeError as error:
            raise RuntimeError(f"cannot pad key {_shown(path)!r}: {error}") from None


def _part(sample: Any, path: Path) -> Tensor:
    found = None if find(sample, path) is None else sample.get(path)
    if not isinstance(found, Tensor):
        raise KeyError(f"collate got the key {_shown(path)!r}, but a sample holds {found!r} there; expected a tensor")
    return found


def _shown(path: Path) -> Any:
    return path[0] if len(path) == 1 else path


def _collate(batch: Any, plan: _Ragged) -> Any:
    if isinstance(batch, Core):
        return batch
    if not batch:
        return batch
    first = batch[0]
    if isinstance(first, Core):
        return plan.join(batch)
    if isinstance(first, Mapping):
        joined = {key: _collate([sample[key] for sample in batch], plan) for key in first}
        try:
            return type(first)(joined)  # type: ignore[call-arg]
        except TypeError:
            return joined
    if isinstance(first, (tuple, list)):
        return _columns(batch, first, plan)
    return default_collate(batch)


def _columns(batch: Any, first: Any, plan: _Ragged) -> Any:
    if any(len(sample) != len(first) for sample in batch):
        raise RuntimeError(f"samples differ in length: {sorted({len(sample) for sample in batch})}")
    columns = [_collate(list(column), plan) for column in zip(*batch, strict=True)]
    if hasattr(first, "_fields"):
        return type(first)(*columns)
    return tuple(columns) if isinstance(first, tuple) else columns


def _default(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return _collate(batch, _Ragged(None, None, None))


default_collate_fn_map[TensorCollection] = _default
