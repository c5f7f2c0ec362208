"""A tree before it is stored in one piece: what its nodes and leaves are, with nothing copied yet.

    node --_place--> Sketch: records, keys, tensors in order --arrange--> slots: where each tensor will lie
    slots --> one block of memory, or one file --Laid--> node over it

A kind of node is asked once what it stores; where that lies is arithmetic on shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tensordict.storage import layout
from tensordict.storage.base import Child, Record, Spec, offsets, padded, spec_of, view
from tensordict.storage.buffer import mark
from tensordict.storage.layout import Entry
from tensordict.storage.memory import Block, Blocked
from tensordict.storage.packed import record
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
        return self._keep(key, torch.zeros((), dtype=dtype).expand(tuple(shape)))

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


LAYOUTS = (None, "rows")


def arrange(sketch: Sketch, layout: str | None = None) -> tuple[list[Slot], int]:
    """Return where each tensor of a tree lies, and how many bytes they take in all.

    They follow each other, or with the layout ``"rows"`` the leaves that have a row for each row of the batch lie side
    by side, and the others follow.

    Raises:
        ValueError: there is no such layout, or the tree has no rows.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be 'rows' or None, got {layout!r}")
    specs = sketch.specs()
    beside = sorted(_with_rows(sketch, _row_count(sketch))) if layout else []
    starts, stride = record([specs[number] for number in beside])
    slots = {number: Slot(start, stride) for number, start in zip(beside, starts)}
    end = padded(stride * specs[beside[0]][0][0]) if beside else 0
    others = [number for number in range(len(specs)) if number not in slots]
    starts, total = offsets([specs[number] for number in others])
    slots |= {number: Slot(end + start) for number, start in zip(others, starts)}
    return [slots[number] for number in range(len(specs))], end + total


def _row_count(node: Sketch) -> int:
    while node.meta.kind == "tensorclass":
        node = node.nodes()[0]
    batch = node.meta.batch
    if not batch:
        raise ValueError(f"layout='rows' needs a batch dim, got a {node.meta.kind} of batch size {list(batch or ())}")
    return batch[0]


def _with_rows(node: Sketch, count: int) -> Iterator[int]:
    """Yield the numbers of the leaves whose first dim is that of the batch, and that nothing else is asked of."""
    kind = node.meta.kind
    if count < 2 or not (kind == "tensorclass" or (kind == "dense" and node.meta.batch)):
        return
    for numbers in node.places.values():
        if len(numbers) == 1 and node.tensors[numbers[0]].numel():
            yield numbers[0]
    for child in node.nodes():
        yield from _with_rows(child, count)


def pour(tensors: Sequence[Tensor], slots: Sequence[Slot], storage: torch.UntypedStorage) -> list[Tensor]:
    """Copy tensors to their slots in a block, and return those there."""
    room = [view(storage, slot.start, *spec_of(tensor), slot.stride) for tensor, slot in zip(tensors, slots)]
    with torch.no_grad():
        if room:
            torch._foreach_copy_(room, list(tensors))
    return room


def memory_of(sketch: Sketch) -> Laid:
    """Return the place of a tree in a block of memory that its tensors were copied to."""
    slots, total = arrange(sketch)
    return Laid(sketch, pour(sketch.tensors, slots, torch.UntypedStorage(total)))


def laid(sketch: Sketch, slots: Sequence[Slot], storage: torch.UntypedStorage, **about: Any) -> Laid:
    """Return the place of a tree whose tensors are in their slots in a mapped file, and note them at its home."""
    home: Any = storage
    pieces = []
    for (start, stride), tensor in zip(slots, sketch.tensors):
        shape, dtype = spec_of(tensor)
        home._home.note(start, shape)
        pieces.append(view(storage, start, shape, dtype, stride))
        if stride:
            home._home.records = (min(slots).start, stride, shape[0])
    return Laid(sketch, pieces, about)


class Laid:
    """A place for a sketched tree whose tensors are in their slots already: it hands out the leaves there.

    Only what users are told of the place differs: `kind`, `path`, `mode` and `layout`, as for `NodeHome`.
    """

    resident = True

    def __init__(self, sketch: Sketch, pieces: Sequence[Tensor], about: dict[str, Any] | None = None) -> None:
        self._sketch, self._pieces, self._about = sketch, pieces, about or {}
        self.__dict__.update(self._about)
        self.meta: Record | None = None

    def write(self, key: str, tensor: Tensor) -> Tensor:
        pieces = [self._pieces[number] for number in self._sketch.places[key]]
        if not pieces[0].is_cpu and self._sketch.meta.kind == "strings":
            return tensor  # strings are read by the CPU
        mark(pieces[0])
        if not tensor.is_nested:
            return pieces[0]
        dim = 0 if tensor.layout is torch.strided else tensor._ragged_idx  # type: ignore[attr-defined]
        return whole(Parts(pieces[0], pieces[1], dim))

    def child(self, key: str) -> Laid:
        return Laid(self._sketch.node(key), self._pieces, self._about)
