"""How an index of a lazy stack reaches its members, and how what they answer is put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tensordict.aliases import Batch
from tensordict.core.core import Core
from tensordict.errors import KeysMismatch, ShapeMismatch
from tensordict.indexing import Plan, unled
from tensordict.ops.fit import check_room, poured, widened

_ALL = slice(None)


class Route:
    """How an index of a lazy stack reaches its members: which ones, by what items, and where the results stand."""

    def __init__(self, stack: Any, plan: Plan) -> None:
        self.source, self.plan, self.dim = stack, plan, stack.stack_dim
        self.stack, items = _without_bools(stack, plan.items)
        self.members = self.stack._tensordicts
        before, self.own, after = _around(items, self.stack.stack_dim)
        self.rest, self._sides = (*before, *after), (before, after)
        if isinstance(self.own, Tensor) and not self.own.ndim:
            self.own = int(self.own)
        # index tensors beside that of the stack dim are paired with it, element by element
        self.paired = isinstance(self.own, Tensor) and any(isinstance(i, Tensor) and i.ndim for i in self.rest)

    def read(self) -> Any:
        if isinstance(self.own, int):
            return _pick(self.members[self.own], self.rest)
        if isinstance(self.own, slice):
            place = self._place()
            picked = self.members[self.own]
            if not picked:
                return self._nothing()
            if self._parted():
                return self.source._dense()._index(self.plan)
            return self.stack._again([_pick(m, self.rest) for m in picked], place)
        rows = list(self._rows())
        if not rows:
            return self._nothing()
        picked = [_pick(self.members[at], rest) for at, rest in rows]
        place = self.plan.place
        name = self.source._name if self.plan.kept[place] == self.dim else None
        return _nest(self.stack, picked, self._shape(), place, name)

    def _nothing(self) -> Any:
        """Return the empty selection: dense, since a lazy stack has at least one member."""
        first = self.source._tensordicts[0].unsqueeze(self.dim)._dense()
        shape = list(first.batch_size)
        shape[self.dim] = len(self.members)
        rows = first.expand(*shape)
        return rows._stamp(rows._meta._replace(names=self.source._meta.names))._index(self.plan)

    def _shape(self) -> tuple[int, ...]:
        tensors = [i for i in (self.own, *self.rest) if isinstance(i, Tensor) and i.ndim]
        return tuple(torch.broadcast_shapes(*(i.shape for i in tensors)) if len(tensors) > 1 else tensors[0].shape)

    def _rows(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the member and the items for it, for every element of the advanced index."""
        if not self.paired:
            for at in self.own.reshape(-1).tolist():
                yield at, self.rest
            return
        shape = self._shape()
        columns = [
            i.expand(shape).reshape(-1).tolist() if isinstance(i, Tensor) and i.ndim else None
            for i in (self.own, *self.rest)
        ]
        for n, at in enumerate(columns[0] or ()):
            rest = zip(self.rest, columns[1:], strict=True)
            yield at, tuple(item if column is None else column[n] for item, column in rest)

    def parts(self, value: Any) -> Iterator[tuple[Any, tuple[Any, ...], Any]]:
        """Yield every member that is written, the items for it, and its part of the value."""
        if isinstance(self.own, int):
            yield self.members[self.own], self.rest, value
        elif isinstance(self.own, slice):
            picked = self.members[self.own]
            for m, part in zip(picked, _unbind(value, self._place(), len(picked)), strict=True):
                yield m, self.rest, part
        else:
            rows, shape, place = list(self._rows()), self._shape(), self.plan.place
            flat = value.flatten(place, place + len(shape) - 1) if _batched(value) and len(shape) > 1 else value
            for (at, rest), part in zip(rows, _unbind(flat, place, len(rows)), strict=True):
                yield self.members[at], rest, part

    def leaves(self, key: str) -> Tensor | None:
        """Return the rows of one value, or None where those of different members are not alike."""
        if isinstance(self.own, int):
            return self.members[self.own]._read_at(key, self.rest)  # type: ignore[no-any-return]
        rows = [member._read_at(key, rest) for member, rest, _ in self.parts(0)]
        if len({row.shape for row in rows}) != 1 or self._parted():
            return None
        joined, place = torch.stack(rows, self._place()), self._place()
        return joined if isinstance(self.own, slice) else joined.unflatten(place, self._shape())

    def write_leaf(self, key: str, value: Any) -> None:
        """Write rows of one value: those of each member to its own."""
        if self._parted():
            whole = self.source._get(key)
            whole[self.plan.items] = value
            parts: Any = (
                (m, (), part) for m, part in zip(self.source._tensordicts, whole.unbind(self.dim), strict=True)
            )
        else:
            parts = self.parts(self._filling(key, value) if isinstance(value, Tensor) else value)
        found = list(parts)
        for member, rest, part in found:  # raise before anything is written
            if isinstance(part, Tensor):
                check_room(key, tuple(member._read_at(key, rest).shape), part)
        for member, rest, part in found:
            member._write_at(key, part, rest)

    def _parted(self) -> bool:
        """Tell whether the stack dim may part index tensors, so that torch decides where their dims stand."""
        both = all(any(isinstance(i, Tensor) for i in side) for side in self._sides)
        return both and isinstance(self.own, slice)

    def _place(self) -> int:
        return self.plan.kept.index(self.dim) if isinstance(self.own, slice) else self.plan.place

    def _filling(self, key: str, value: Tensor) -> Tensor:
        """Return a value with the dims of the rows that it is written to, in full along those that members part."""
        sizes, value = self.plan.batch, unled(value)
        if not value.ndim or isinstance(self.own, int):
            return value
        count = 1 if isinstance(self.own, slice) else len(self._shape())
        lead, own = len(sizes) - value.ndim, range(self._place(), self._place() + count)
        return widened(key, value, tuple(size if at < lead or at in own else -1 for at, size in enumerate(sizes)))

    def admit(self, value: Any) -> None:
        for member, rest, part in self.parts(value):
            member._admit(member._plan(rest), part)

    def write(self, value: Any) -> None:
        for member, rest, part in self.parts(value):
            member[rest] = part
        if self.stack is not self.source:
            for mine, view in zip(self.source._tensordicts, self.members, strict=True):
                _hand_back(mine, view)


def _hand_back(node: Any, view: Any) -> None:
    """Give a node the non-tensors that were written to a view of it: leaves share their memory, objects do not."""
    for key, child in view._raw_pairs():
        if not isinstance(child, Tensor):
            mine = node._get(key)
            if child._is_non_tensor:
                node._set(key, child.reshape(*mine._meta.batch))
            else:
                _hand_back(mine, child)


def _without_bools(stack: Any, items: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return a stack with a new dim for every bool of an index, and the index with row numbers for the bools."""
    said: list[Any] = []
    at = 0
    for item in items:
        if isinstance(item, bool):
            stack = stack.unsqueeze(at)
            item = torch.zeros(int(item), dtype=torch.long)
        at += item is not None
        said.append(item)
    return stack, tuple(said)


def _around(items: tuple[Any, ...], dim: int) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
    """Return the items before, at and after the one that addresses a dim."""
    at = -1
    for n, item in enumerate(items):
        at += item is not None
        if at == dim:
            return items[:n], item, items[n + 1 :]
    return items, _ALL, ()


def _pick(member: Any, items: tuple[Any, ...]) -> Any:
    return member if all(type(item) is slice and item == _ALL for item in items) else member[items]


def _batched(value: Any) -> bool:
    return isinstance(value, Core) or (isinstance(value, Tensor) and value.ndim > 0)


def _unbind(value: Any, dim: int, count: int) -> Sequence[Any]:
    return value.unbind(dim) if _batched(value) else [value] * count


def _nest(stack: Any, flat: list[Any], shape: tuple[int, ...], dim: int, name: str | None) -> Any:
    """Return nodes in a grid: lazy stacks of lazy stacks along the dims of an index tensor."""
    for size in reversed(shape[1:]):
        flat = [stack._again(flat[at : at + size], dim, None) for at in range(0, len(flat), size)]
    return stack._again(flat, dim, name)


def apart(rows: Any) -> Any:
    """Return rows of a lazy stack in memory of their own: dense where their keys and shapes allow it."""
    uniform = getattr(rows, "_uniform", None)
    if uniform is None:  # there are none, or they were read densely
        return rows
    try:
        return rows._dense() if uniform() else rows.clone()
    except (ShapeMismatch, KeysMismatch):
        return rows.clone()


def fitted(stack: Any, value: Any, batch: Batch) -> Any:
    """Return what is written with the batch of the rows that it is written to; numbers stay as they are."""
    if isinstance(value, Tensor) and value.ndim and -1 not in batch:
        value = stack._dense_kind(poured(stack, unled(value)), ())
    if not isinstance(value, Core) or value._meta.batch == batch or -1 in batch:
        return value
    present, depth = stack._keys(), len(stack._meta.batch) - 1
    children = {}
    for key in value._keys():
        child, mine = value._get(key), stack._look(key) if key in present else None
        if isinstance(child, Tensor) and isinstance(mine, Tensor):
            room = (*batch, *mine.shape[depth:])
            if child.ndim < len(room) or tuple(child.shape[: len(batch)]) != batch:
                child = widened(key, child, room)
        elif mine is not None and tuple(child.shape[: len(batch)]) != batch:
            child = mine._fitted(child, batch) if hasattr(mine, "_fitted") else child.expand(batch)
        children[key] = child
    return stack._dense_kind(children, batch)
