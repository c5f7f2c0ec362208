"""Make one batch of the samples of a DataLoader.

Importing this module teaches torch's default `collate_fn` about tensor collections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

from tensordict import errors
from tensordict.aliases import NestedKey
from tensordict.core.core import Core
from tensordict.core.locks import filling
from tensordict.core.walk import find
from tensordict.keys import unravel_key_to_tuple
from tensordict.kinds.collection import TensorCollection
from tensordict.ops.join import cat, lazy_stack, maybe_dense_stack
from tensordict.ops.ragged import jagged, lengths_mask, padded

Path = tuple[str, ...]


def collate(
    batch: Any,
    *,
    pad_keys: Mapping[NestedKey, float] | None = None,
    nested_keys: Sequence[NestedKey] | None = None,
    mask_key: NestedKey | None = None,
    padding_side: str = "right",
    pad_to_multiple_of: int = 1,
    cat_dim: int | None = None,
) -> Any:
    """Make one batch of a list of samples: dense where shapes match, lazy otherwise.

    Args:
        batch: samples: tensordicts or tensorclasses, tuples or dicts that hold them, or whatever torch's default
            `collate_fn` takes. A batch that was read with one index operation is returned as it is.
        pad_keys: for each key that is padded along its first dim, the number to pad with.
        nested_keys: keys that become jagged nested tensors; those of equal sizes can be computed with together.
        mask_key: with ``pad_keys``, where masks are put: True for a value, False for padding, under the same keys.
        padding_side: "right" pads after the values, "left" before.
        pad_to_multiple_of: the padded size is the least multiple of this that is large enough.
        cat_dim: the samples are batches themselves: concatenate them along this batch dim, instead of stacking them.
            Keys are then padded or nested row by row, along the dim after the batch dim.

    Raises:
        TypeError: if unrelated tensorclasses are mixed.
        KeyError: if a sample lacks a padded or nested key.
        ValueError: if a key is padded and nested, or ``mask_key`` is the key of a value or comes without ``pad_keys``,
            or samples with other than one batch dim are concatenated with padded or nested keys.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, collate
        >>> samples = [TensorDict({"ids": torch.ones(n)}) for n in (1, 2)]
        >>> batch = collate(samples, pad_keys={"ids": 0}, mask_key="mask")
        >>> batch["ids"].tolist(), batch["mask", "ids"].tolist()
        ([[1.0, 0.0], [1.0, 1.0]], [[True, False], [True, True]])
        >>> collate([TensorDict({"x": torch.ones(n)}, [n]) for n in (1, 2)], cat_dim=0).batch_size
        torch.Size([3])
    """
    if pad_keys is not None and not isinstance(pad_keys, Mapping):
        raise TypeError(f"pad_keys must map each key to the number to pad with, got {pad_keys!r}")
    if isinstance(nested_keys, str):
        raise TypeError(f"nested_keys must be a list of keys, got the string {nested_keys!r}")
    return _collate(
        batch, _Plan(pad_keys or {}, nested_keys or (), mask_key, (padding_side, pad_to_multiple_of), cat_dim)
    )


class _Plan:
    """Which keys are padded, with what and how, which become nested tensors, and how the rest is joined."""

    def __init__(
        self,
        pad_keys: Mapping[NestedKey, float],
        nested_keys: Sequence[NestedKey],
        mask_key: NestedKey | None,
        how: tuple[str, int],
        cat_dim: int | None,
    ) -> None:
        self.side, self.multiple = how
        if self.side not in ("left", "right"):
            raise ValueError(f"padding_side must be 'left' or 'right', got {self.side!r}")
        if type(self.multiple) is not int or self.multiple < 1:
            raise ValueError(f"pad_to_multiple_of must be a positive int, got {self.multiple!r}")
        if not pad_keys and (mask_key is not None or self.multiple > 1):
            what = f"pad_to_multiple_of={self.multiple}" if mask_key is None else f"mask_key={mask_key!r}"
            raise ValueError(f"{what} needs pad_keys: nothing is padded")
        self.pad = {unravel_key_to_tuple(key): value for key, value in pad_keys.items()}
        self.nest = [unravel_key_to_tuple(key) for key in nested_keys]
        self.mask = None if mask_key is None else unravel_key_to_tuple(mask_key)
        self.dim = cat_dim
        both = sorted(set(self.pad) & set(self.nest))
        if both:
            raise ValueError(f"keys {both} are in both pad_keys and nested_keys")

    def join(self, samples: Sequence[Any]) -> Any:
        """Return the batch of samples that are nodes."""
        chosen = [*self.pad, *self.nest]
        if not chosen:
            return self._joined(samples)
        if self.dim is not None and any(sample.ndim != 1 for sample in samples):
            raise ValueError(
                f"padded and nested keys are concatenated of samples with one batch dim, got batch sizes "
                f"{[list(sample.batch_size) for sample in samples]}"
            )
        parts = {path: self._rows([_part(sample, path) for sample in samples]) for path in chosen}
        if self.mask is not None and any(find(sample, self.mask) is not None for sample in samples):
            raise ValueError(f"mask_key={'.'.join(self.mask)!r} is the key of a value in a sample")
        rest = self._joined([sample.exclude(*chosen) for sample in samples])
        with filling(rest):
            for path in chosen:
                rest.set(path, self._ragged(path, parts[path]))
                if self.mask is not None and path in self.pad:
                    rest.set((*self.mask, *path), self._filled(lengths_mask(parts[path], self.side), False))
        return rest

    def _joined(self, samples: Sequence[Any]) -> Any:
        if self.dim is None:
            return maybe_dense_stack(samples)
        try:
            return cat(samples, self.dim)
        except (errors.ShapeMismatch, errors.KeysMismatch):
            return lazy_stack([row for sample in samples for row in sample.unbind(self.dim)], self.dim)

    def _rows(self, parts: list[Tensor]) -> list[Tensor]:
        return parts if self.dim is None else [row for part in parts for row in part.unbind(0)]

    def _ragged(self, path: Path, parts: list[Tensor]) -> Tensor:
        try:
            if path in self.nest:
                return jagged(parts)
            return self._filled(padded(parts, self.pad[path], self.side, only_first=True), self.pad[path])
        except RuntimeError as error:
            raise RuntimeError(f"cannot pad or nest key {_shown(path)!r}: {error}") from None

    def _filled(self, value: Tensor, fill: float) -> Tensor:
        """Return padded values, with more padding up to the size that is asked for."""
        more = -value.shape[1] % self.multiple
        if not more:
            return value
        extra = value.new_full((len(value), more, *value.shape[2:]), fill)
        return torch.cat([extra, value] if self.side == "left" else [value, extra], 1)


def _part(sample: Any, path: Path) -> Tensor:
    found = None if find(sample, path) is None else sample.get(path)
    if not isinstance(found, Tensor):
        raise KeyError(f"collate got the key {_shown(path)!r}, but a sample holds {found!r} there; expected a tensor")
    return found


def _shown(path: Path) -> Any:
    return path[0] if len(path) == 1 else path


def _collate(batch: Any, plan: _Plan) -> Any:
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


def _columns(batch: Any, first: Any, plan: _Plan) -> Any:
    if any(len(sample) != len(first) for sample in batch):
        raise RuntimeError(f"samples differ in length: {sorted({len(sample) for sample in batch})}")
    columns = [_collate(list(column), plan) for column in zip(*batch, strict=True)]
    if hasattr(first, "_fields"):
        return type(first)(*columns)
    return tuple(columns) if isinstance(first, tuple) else columns


_PLAIN = _Plan({}, (), None, ("right", 1), None)


def _default(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return _collate(batch, _PLAIN)


default_collate_fn_map[TensorCollection] = _default
