"""All leaves side by side in one tensor, and the layout that takes them apart again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tensordict import dims, errors
from tensordict.aliases import NestedKey
from tensordict.core import walk
from tensordict.core.core import Core
from tensordict.keys import unravel_key_to_tuple

Nested = tuple[NestedKey, Sequence[int], Any]


@dataclass(frozen=True)
class PackLayout:
    """Say which columns of a packed tensor are which leaf; layouts compare and hash by value.

    Args:
        keys: the keys of the leaves, in the order of their columns.
        shapes: the shape of each leaf after the batch dims.
        dim: the dim of the columns; negative ones count from the end.
        nested: for each nested tensordict its key, the sizes that it adds to the batch, and its tensorclass or None.
        device: the device of the tensordict, or None.
        cls: the tensorclass of the whole, or None.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flat, layout = TensorDict({"x": torch.zeros(4, 2), "y": torch.ones(4)}, [4]).pack()
        >>> layout.keys, layout.offsets, layout.numel
        (('x', 'y'), (0, 2), 3)
        >>> layout.unpack(flat[:2])["x"].shape
        torch.Size([2, 2])
    """

    keys: tuple[NestedKey, ...]
    shapes: tuple[torch.Size, ...]
    dim: int = -1
    nested: tuple[Nested, ...] = ()
    device: torch.device | None = None
    cls: Any = None
    offsets: tuple[int, ...] = field(init=False, compare=False)
    numel: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.shapes):
            raise ValueError(f"a layout has one shape for each key, got {self.keys!r} and {self.shapes!r}")
        shapes = tuple(map(torch.Size, self.shapes))
        nested = tuple((key, torch.Size(extra), cls) for key, extra, cls in self.nested)
        *offsets, numel = itertools.accumulate((shape.numel() for shape in shapes), initial=0)
        values = tuple(self.keys), shapes, self.dim, nested, self.device, self.cls, tuple(offsets), numel
        self.__dict__.update(zip(self.__dataclass_fields__, values, strict=True))

    def unpack(self, flat: Tensor) -> Any:
        """Return the tensordict of a packed tensor; the leaves are views of it.

        Args:
            flat: a tensor with the columns of this layout along its dim; all other dims are the batch size.

        Raises:
            ValueError: if it has another number of columns.

        Examples:
            >>> import torch
            >>> from tensordict import PackLayout
            >>> PackLayout(("x", ("n", "y")), ((2,), ())).unpack(torch.arange(3))["n", "y"]
            tensor(2)
        """
        at = dims.wrap(self.dim, flat.ndim)
        if flat.shape[at] != self.numel:
            raise ValueError(
                f"expected {self.numel} columns along dim {self.dim}, got a tensor of shape {list(flat.shape)}"
            )
        columns = flat.movedim(at, -1).split([shape.numel() for shape in self.shapes], -1)
        batch = tuple(dims.drop(tuple(flat.shape), at))
        root: Any = Core._dense_kind({}, batch, None if self.device is None else flat.device)
        below = sorted(self.nested, key=lambda one: len(unravel_key_to_tuple(one[0])))
        for key, extra, _ in below:
            root.set(key, Core._dense_kind({}, (*batch, *extra), root.device))
        for key, shape, column in zip(self.keys, self.shapes, columns, strict=True):
            root.set(key, column.unflatten(-1, shape) if shape else column.squeeze(-1))
        for key, _, cls in reversed(below):
            if cls is not None:
                root.set(key, cls._received(root.get(key)))
        return root if self.cls is None else self.cls._received(root)


def packed(node: Any, dim: int, layout: PackLayout | None) -> tuple[Tensor, PackLayout]:
    """Return the leaves of a node in one tensor, and their layout."""
    batch, n = node._meta.batch, len(node._meta.batch)
    place = dims.wrap(dim, n + 1) - n - 1
    leaves, nested = _parts(node)
    cls, shapes = type(node) if node._is_typed else None, {key: leaf.shape[n:] for key, leaf in leaves.items()}
    own = PackLayout(tuple(shapes), tuple(shapes.values()), place, tuple(nested), node._meta.device, cls)
    layout = own if layout is None else layout
    known = dict(zip(layout.keys, layout.shapes, strict=True))
    if set(known) != set(shapes):
        raise errors.KeysMismatch(f"cannot pack keys {list(shapes)} by a layout with keys {list(known)}")
    if known != shapes or layout.dim not in (place, place + n + 1):
        raise ValueError(f"cannot pack shapes {shapes} along dim {dim} by a layout of {known} along {layout.dim}")
    columns = [leaves[key].flatten(n) if known[key] else leaves[key].unsqueeze(n) for key in known]
    flat = torch.cat(columns, -1) if columns else torch.zeros(*batch, 0, device=node._meta.device)
    return flat.movedim(-1, place).contiguous(), layout


def _parts(node: Any) -> tuple[dict[NestedKey, Tensor], list[Nested]]:
    """Return the leaves in alphabetical order of their keys, and the nested nodes as a layout has them."""
    leaves: dict[NestedKey, Tensor] = {}
    nested: list[Nested] = []
    for path, child in sorted(walk.pairs(node, True, False, walk.default_is_leaf), key=lambda pair: ".".join(pair[0])):
        key: NestedKey = path[0] if len(path) == 1 else path
        if isinstance(child, Tensor):
            leaves[key] = child
        elif child._is_non_tensor:
            raise TypeError(f"cannot pack the non-tensor at key {key!r}; `filter_non_tensor_data` leaves them out")
        else:
            extra = child._meta.batch[len(node._meta.batch) :]
            nested.append((key, extra, type(child) if child._is_typed else None))
    dtypes = {key: leaf.dtype for key, leaf in leaves.items()}
    if len(set(dtypes.values())) > 1:
        raise TypeError(f"cannot pack leaves of different dtypes, got {dtypes}; cast them first")
    return leaves, nested
