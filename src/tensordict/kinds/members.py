"""What a list of nodes tells of values that do not stack: a column for each key, read as a list, nested or padded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict import dims, errors
from tensordict.core.coerce import shape_of
from tensordict.kinds.collection import TensorDictBase
from tensordict.ops.listing import RowList
from tensordict.ops.ragged import jagged, padded


def mixed(parts: Sequence[Any]) -> bool:
    """Tell whether some values are tensors, and others are not."""
    return len({isinstance(part, Tensor) for part in parts}) > 1


def _uneven(parts: Sequence[Any]) -> bool:
    """Tell whether values make no column: some are tensors only, or nodes have different numbers of batch dims."""
    return mixed(parts) or (not isinstance(parts[0], Tensor) and len({len(part._meta.batch) for part in parts}) > 1)


class _Column(list[Any]):
    """One value for each member of a lazy stack, in place of a tensor that would hold all of them."""

    def unbind(self, dim: int) -> list[Any]:
        return self


class Members(TensorDictBase):
    """Requires: `_tensordicts`, `stack_dim`, `_parts`. Gives: words on values that may differ in shape by member."""

    if TYPE_CHECKING:
        _tensordicts: list[Any]
        stack_dim: int
        _hook_in: Callable[[Any], Any] | None

    @abstractmethod
    def _parts(self, key: str) -> list[Any]:
        """Return the child of each member."""

    def _door(self, key: str, value: Any) -> Any:
        value = value if self._hook_in is None else self._hook_in(value)
        if isinstance(value, (list, tuple)) and self._lists_rows(value):
            return _Column([m._door(key, row) for m, row in zip(self._tensordicts, value, strict=True)])
        return super()._door(key, value)

    def _lists_rows(self, value: Sequence[Any]) -> bool:
        """Tell whether a list holds a tensor for each member, of shapes that do not stack."""
        mine = self.stack_dim == 0 and len(value) == len(self._tensordicts)
        return mine and all(isinstance(row, Tensor) for row in value) and len({shape_of(row) for row in value}) > 1

    def _drop_empty(self, kept: Iterable[Any] = ()) -> None:
        for member in self._tensordicts:  # what is empty in one may hold something in another
            member._drop_empty(kept)

    def _shape_at(self, key: str, differs: Callable[[Any], int] = max) -> tuple[int, ...]:
        """Return the shape of a value; of sizes in which members differ, the greatest."""
        shapes = [m._shape_at(key, differs) for m in self._tensordicts]
        sizes = [size[0] if len(set(size)) == 1 else differs(size) for size in zip(*shapes)]
        return dims.insert(tuple(sizes), self.stack_dim, len(shapes))

    def _given(self) -> Any:
        """Return rows of objects as lists, where the numbers of rows differ; whatever else as it is."""
        return RowList(self) if self._tensordicts[0]._is_non_tensor else self

    # ---- repr and ragged values

    def _extra_repr(self) -> list[str]:
        common = set(self._keys())
        own = {at: sorted(set(m._keys()) - common) for at, m in enumerate(self._tensordicts)}
        some = {at: keys for at, keys in own.items() if keys}
        return [f"stack_dim={self.stack_dim}", *([f"not_in_all={some}"] if some else [])]

    def _brief(self, depth: int, level: int) -> str:
        columns = all(m._is_non_tensor for m in self._tensordicts)
        return self._tensordicts[0]._brief(depth, level) if columns else super()._brief(depth, level)

    def _peek(self, key: str) -> Any:
        parts = [m._peek(key) for m in self._tensordicts]
        if isinstance(parts[0], str) or _uneven(parts):
            return parts[0] if isinstance(parts[0], str) else "mixed"
        if isinstance(parts[0], Tensor) and len({(part.shape, part.dtype) for part in parts}) > 1:
            first, depth = parts[0], len(self._meta.batch) - 1
            same = all(part.ndim == first.ndim for part in parts)
            sizes = zip(*(part.shape[depth:] for part in parts), strict=True) if same else ()
            return f"{first.dtype}{[size[0] if len(set(size)) == 1 else -1 for size in sizes]}".removeprefix("torch.")
        return self._get(key)

    def _read_as(self, key: str, **options: Any) -> Any:
        """Return the values of the members as a list, as a nested tensor, or padded to one shape."""
        if not any(options.get(f"as_{how}") for how in ("list", "nested_tensor", "padded_tensor")):
            return self._get(key)
        parts = self._parts(key)
        if options.get("as_list"):
            return parts
        if not all(isinstance(part, Tensor) and not part.is_nested for part in parts):
            raise TypeError(f"only plain tensors are nested or padded, got others at key {key!r}; use as_list=True")
        try:
            if options.get("as_nested_tensor"):
                jag = options.get("layout") in (None, torch.jagged)
                return jagged(parts) if jag else torch.nested.as_nested_tensor(parts, layout=options["layout"])
            value, side = options.get("padding_value", 0.0), options.get("padding_side", "right")
            return padded(parts, value, side).movedim(0, self.stack_dim)
        except errors.ShapeMismatch as error:
            raise errors.ShapeMismatch(f"at key {key!r}: {error}") from None
