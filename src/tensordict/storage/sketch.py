"""A tree before it is stored in one piece: what its nodes and leaves are, with nothing copied yet.

    node --_place--> Sketch: records, keys, tensors in order --arrange--> slots: where each tensor will lie
    slots --> one block of memory, or one file --Laid--> node over it

A kind of node is asked once what it stores; where that lies is arithmetic on shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict.storage import layout
from tensordict.storage.base import Child, Record, Spec, offsets, spec_of, view
from tensordict.storage.buffer import mark
from tensordict.storage.layout import Entry
from tensordict.storage.memory import Block, Blocked
from tensordict.storage.ragged import Parts, parts, whole


class Slot(NamedTuple):
    """Where the elements of a tensor lie in a block: the first byte, and the bytes from row to row (0: no gaps)."""

    start: int
    stride: int = 0


class Sketch(Blocked):
    """Hold a tree as it is handed in; every tensor is kept, none is copied.

    >>> tree = Sketch()
    >>> leaf = torch.arange(3)
    >>> tree.write("x", leaf).data_ptr() == leaf.data_ptr(), tree.places
    (True, {'x': [0]})

    Raises:
        TypeError: a leaf has no dense layout.
    """

    def __init__(self, tensors: list[Tensor] | None = None) -> None:
        super().__init__(Block(torch.UntypedStorage))
        self.tensors: list[Tensor] = [] if tensors is None else tensors
        self.places: dict[str, list[int]] = {}

    def _begin(self) -> Sketch:
        return Sketch(self.tensors)

    def create(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self._keep(key, torch.empty(tuple(shape), dtype=dtype, device="meta"))

    def write(self, key: str, tensor: Tensor) -> Tensor:
        if not tensor.is_nested and tensor.layout is not torch.strided:
            raise TypeError(f"cannot place the leaf at key {key!r} of layout {tensor.layout}; make it dense first")
        return self._keep(key, tensor.detach())

    def _keep(self, key: str, leaf: Tensor) -> Tensor:
        pieces = list(parts(leaf)[:2]) if leaf.is_nested else [leaf]
        self.places[key] = list(range(len(self.tensors), len(self.tensors) + len(pieces)))
        self.tensors += pieces
        self._children.pop(key, None)
        self._leaves[key] = leaf
        self._keys[key] = "leaf"
        return leaf

    def specs(self) -> list[Spec]:
        """Return the shapes and dtypes of all tensors of the tree, in order."""
        return list(map(spec_of, self.tensors))

    def entries(self) -> dict[str, Entry]:
        """Return what a `meta.json` says of each child."""
        found: dict[str, Entry] = {}
        taken: set[str] = set()
        for key, kind in self._keys.items():
            found[key] = entry = self._entry(key, kind, taken)
            taken.update(map(layout.folded, entry.files))
        return found

    def node(self, key: str) -> Sketch:
        """Return the child node at a key."""
        child = self._children[key]
        assert isinstance(child, Sketch)
        return child

    def nodes(self) -> list[Sketch]:
        """Return the child nodes, in order."""
        return [self.node(key) for key, kind in self._keys.items() if kind == "node"]

    def leaves(self) -> list[Tensor]:
        """Return the leaves of this node, in order."""
        return [self._leaves[key] for key, kind in self._keys.items() if kind == "leaf"]

    def _entry(self, key: str, kind: Child, taken: set[str]) -> Entry:
        if kind == "node":
            record = self._children[key].meta
            batch = record.batch if record.kind.startswith("non-tensor") else None
            return Entry(layout.free_name(key, kind, taken), type=layout.type_name(record), batch=batch)
        leaf = self._leaves[key]
        file = layout.free_name(key, kind, taken, nested=leaf.is_nested)
        if not leaf.is_nested:
            return Entry(file, *spec_of(leaf))
        given = parts(leaf)
        return Entry(file, tuple(given.sizes.shape), leaf.dtype, nested=True, jagged_dim=given.jagged_dim)


def arrange(sketch: Sketch) -> tuple[list[Slot], int]:
    """Return where each tensor of a tree lies when they follow each other, and how many bytes they take."""
    starts, total = offsets(sketch.specs())
    return [Slot(start) for start in starts], total


def pour(tensors: Sequence[Tensor], slots: Sequence[Slot], storage: torch.UntypedStorage) -> None:
    """Copy tensors to their slots in a block."""
    room = [view(storage, slot.start, *spec_of(tensor), slot.stride) for tensor, slot in zip(tensors, slots)]
    with torch.no_grad():
        if room:
            torch._foreach_copy_(room, list(tensors))


class Laid:
    """A place for a sketched tree whose tensors are in their slots already: it hands out the leaves there.

    Only what users are told of the place differs: `kind`, `path`, `mode` and `layout`, as for `NodeHome`.
    """

    resident = True

    def __init__(
        self, sketch: Sketch, slots: Sequence[Slot], storage: torch.UntypedStorage, about: dict[str, Any] | None = None
    ) -> None:
        self._sketch, self._slots, self._storage, self._about = sketch, slots, storage, about or {}
        self.__dict__.update(self._about)
        self.meta: Record | None = None

    def write(self, key: str, tensor: Tensor) -> Tensor:
        if self._storage.device.type != "cpu" and self._sketch.meta.kind == "strings":
            return tensor  # strings are read by the CPU
        pieces = [self._piece(number) for number in self._sketch.places[key]]
        mark(pieces[0])
        if not tensor.is_nested:
            return pieces[0]
        dim = 0 if tensor.layout is torch.strided else tensor._ragged_idx  # type: ignore[attr-defined]
        return whole(Parts(pieces[0], pieces[1], dim))

    def _piece(self, number: int) -> Tensor:
        (start, stride), spec = self._slots[number], spec_of(self._sketch.tensors[number])
        home: Any = getattr(self._storage, "_home", None)
        if home is not None:
            home.leaves[start] = spec[0]
        return view(self._storage, start, *spec, stride)

    def child(self, key: str) -> Laid:
        return Laid(self._sketch.node(key), self._slots, self._storage, self._about)
