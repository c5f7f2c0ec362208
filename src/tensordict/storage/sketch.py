"""A tree before it is stored in one piece: what its nodes and leaves are, with nothing copied yet.

    node --_place--> Sketch: records, keys, tensors in order --arrange--> slots: where each tensor will lie
    slots --> one block of memory, or one file --Laid--> node over it

A kind of node is asked once what it stores; where that lies is arithmetic on shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict.storage import layout
from tensordict.storage.base import Child, Record, padded, spec_of
from tensordict.storage.buffer import pieces_of
from tensordict.storage.layout import Entry
from tensordict.storage.memory import Slot, pour, slots_of
from tensordict.storage.packed import record
from tensordict.storage.ragged import Parts, parts, whole


class Sketch:
    """Hold a tree in memory as it is handed in; every tensor is kept, none is copied.

    `tensors` are those of the whole tree, in order; `places` has the numbers of those of each leaf of this node. The
    numbers of leaves that are to be zeros are `blank`; those of the sizes of nested leaves and of objects are `apart`.

    >>> tree = Sketch()
    >>> leaf = torch.arange(3)
    >>> tree.write("x", leaf).data_ptr() == leaf.data_ptr(), tree.places
    (True, {'x': [0]})

    Raises:
        TypeError: a leaf has no dense layout.
    """

    resident = True

    def __init__(self, root: Sketch | None = None) -> None:
        self.tensors: list[Tensor] = [] if root is None else root.tensors
        self.blank: set[int] = set() if root is None else root.blank
        self.apart: set[int] = set() if root is None else root.apart
        self.places: dict[str, list[int]] = {}
        self.meta = Record()
        self._leaves: dict[str, Tensor] = {}
        self._children: dict[str, Sketch] = {}
        self._keys: dict[str, Child] = {}

    def create(self, key: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.blank.add(len(self.tensors))
        return self._keep(key, torch.zeros((), dtype=dtype).expand(tuple(shape)))

    def write(self, key: str, tensor: Tensor) -> Tensor:
        if tensor.is_nested:
            self.apart.add(len(self.tensors) + 1)
        elif tensor.layout is not torch.strided:
            raise TypeError(f"cannot place the leaf at key {key!r} of layout {tensor.layout}; make it dense first")
        return self._keep(key, tensor.detach())

    def _keep(self, key: str, leaf: Tensor) -> Tensor:
        number = len(self.tensors)
        if leaf.is_nested:
            self.places[key] = [number, number + 1]
            self.tensors += parts(leaf)[:2]
        else:
            self.places[key] = [number]
            self.tensors.append(leaf)
        self._leaves[key] = leaf
        self._keys[key] = "leaf"
        return leaf

    def read(self, key: str) -> Tensor:
        return self._leaves[key]

    def leaves(self) -> dict[str, Tensor]:
        return self._leaves

    def keys(self) -> dict[str, Child]:
        return self._keys

    def child(self, key: str) -> Sketch:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = Sketch(self)
            self._keys[key] = "node"
        return child

    def nodes(self) -> list[Sketch]:
        """Return the child nodes, in order."""
        return list(self._children.values())

    def entries(self) -> dict[str, Entry]:
        """Return what a `meta.json` says of each child."""
        found: dict[str, Entry] = {}
        taken: set[str] = set()
        for key, kind in self._keys.items():
            found[key] = entry = self._entry(key, kind, taken)
            taken.update(map(layout.folded, entry.files))
        return found

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
    specs = list(map(spec_of, sketch.tensors))
    if layout is None:
        return slots_of(specs)
    beside = sorted(_with_rows(sketch, _row_count(sketch)))
    starts, stride = record([specs[number] for number in beside])
    found = {number: Slot(start, *specs[number], stride) for number, start in zip(beside, starts)}
    others = [number for number in range(len(specs)) if number not in found]
    end = padded(stride * specs[beside[0]][0][0]) if beside else 0
    after, end = slots_of([specs[number] for number in others], end)
    found |= zip(others, after)
    return [found[number] for number in range(len(specs))], end


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


def memory_of(sketch: Sketch) -> Laid:
    """Return the place of a tree in a block of memory that its tensors were copied to."""
    slots, total = arrange(sketch)
    return laid(sketch, slots, pour(sketch.tensors, slots, torch.UntypedStorage(total)))


def laid(sketch: Sketch, slots: Sequence[Slot], pieces: Sequence[Tensor], *, block: bool = True, **about: Any) -> Laid:
    """Return the place of a tree whose tensors are in their slots in a block, and mark them as its leaves.

    Args:
        sketch: the tree.
        slots: where its tensors lie.
        pieces: the tensors there.
        block: whether the leaves are one block, which travels as one piece.
        **about: what users are told of the place.
    """
    if pieces and block:
        known = pieces_of(pieces[0].untyped_storage())
        known.update((slot.start, slot.nbytes) for at, slot in enumerate(slots) if at not in sketch.apart)
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
        values, *sizes = self._sketch.places[key]
        leaf = self._pieces[values]
        if not leaf.is_cpu and self._sketch.meta.kind == "strings":
            return tensor  # strings are read by the CPU
        if not sizes:
            return leaf
        dim = 0 if tensor.layout is torch.strided else tensor._ragged_idx  # type: ignore[attr-defined]
        return whole(Parts(leaf, self._pieces[sizes[0]], dim))

    def child(self, key: str) -> Laid:
        return Laid(self._sketch.child(key), self._pieces, self._about)
