"""Nodes whose values lie in a store and are read when they are asked for, and windows on their rows.

A word that computes reads the values and says the word to what was read; a word in place reads, is said, and writes
back. An index gives a window: a view of a source and an index, which reads and writes only its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from tensordict.aliases import Batch, Call
from tensordict.indexing import Plan, check_rows
from tensordict.kinds.collection import TensorDictBase
from tensordict.kinds.dense import _of, settled
from tensordict.meta import Meta

if TYPE_CHECKING:
    from typing_extensions import Self

_AT_ONCE = 16 << 20  # bytes of a leaf that are in memory when it is copied to another home


class Stored(TensorDictBase):
    """Requires: `_get`, `_look`, `_keys`, `_rows`, `_write`. Gives: the other verbs, by reading first."""

    _moves = False

    if TYPE_CHECKING:

        def _rows(self, key: str, items: tuple[Any, ...]) -> Any: ...

    def _dense(self) -> Any:
        children = {key: v if isinstance(v, Tensor) else v._dense() for key, v in self._raw_pairs()}
        return _of(children, self._meta)

    def __deepcopy__(self, memo: Any) -> Any:
        return self._dense()

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        self._writable()
        self._write(self._plan(()), self._dense()._each(call, others, many))
        return self

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Any, ...]:
        before, start, parts = (slice(None),) * dim, 0, []
        for batch in batches:
            stop = start + (batch[dim] if len(batch) == self.ndim else 1)
            rows: Any = slice(start, stop) if len(batch) == self.ndim else start
            at = (*before, rows)
            parts.append(self[at])
            start = stop
        return tuple(parts)

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return combine(call(self._get(key)) for key in self._keys())

    def _index(self, plan: Plan) -> Any:
        check_rows(plan, self._meta.batch)
        return Window(self, plan)

    def _batch_of(self, plan: Plan) -> Any:
        rows = self._index(plan)
        return rows if get_worker_info() is None else rows._dense()

    def _resident(self) -> bool:
        return False

    def _even(self) -> bool:
        return True

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        self._write(self._plan(items), value)
        return self

    def _admit(self, plan: Plan, value: Any) -> None:
        self._outline()._admit(plan, value)

    def _outline(self) -> Any:
        """Return my keys and shapes as tensors without memory."""
        return _of(dict(self._looks()), self._meta)

    def _visited(self, visit: Any, others: tuple[Any, ...], path: tuple[str, ...]) -> Any:
        dense = self._dense()
        result = dense._visited(visit, others, path)
        if not visit.in_place:
            return result
        self._write(self._plan(()), dense)
        return self

    def _take(self, made: Any) -> None:
        raise TypeError(
            f"a {type(self).__name__} cannot change its shape in place: its values lie in a store. Use what the word "
            f"returns without inplace=True, which is in memory"
        )

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        return call(self)

    def _rekey(self, made: Any) -> None:
        mine, theirs = set(self._keys()), dict(made._raw_pairs())
        for key, child in theirs.items():  # what is there already stays where it is
            if key not in mine or not isinstance(child, Tensor):
                self._set(key, child)
        for key in mine - set(theirs):
            self._del(key)

    def _rekeyed(self, children: dict[str, Any]) -> Any:
        return _of(children, self._meta)

    def _like(self, children: dict[str, Any], meta: Meta) -> Any:
        return _of(children, meta)

    def _members(self, dim: int) -> Sequence[Any]:
        return self.unbind(dim)

    def _peek(self, key: str) -> Any:
        return self._look(key)  # nothing is read for a repr

    def _place(self, room: Any, kind: str, fill: bool) -> Any:
        if not fill or kind in ("memory", "shared"):
            return (self._dense() if fill else self._outline())._place(room, kind, fill)
        children = {}
        for key, look in self._looks():
            if isinstance(look, Tensor):
                children[key] = self._poured(room, key, look)
            else:
                children[key] = self._get(key)._place(room.child(key), kind, True)
        return settled(children, self._meta, room, kind)

    def _poured(self, room: Any, key: str, look: Tensor) -> Any:
        """Copy a leaf to a room, a large one some rows at a time."""
        if look.nbytes <= _AT_ONCE or not self._meta.batch:
            return room.write(key, self._get(key))
        leaf, count = room.create(key, tuple(look.shape), look.dtype), max(1, _AT_ONCE // look[0].nbytes)
        for start in range(0, len(look), count):
            rows = (slice(start, start + count),)
            if isinstance(leaf, Tensor):
                leaf[rows] = self._rows(key, rows)
            else:
                leaf.write(rows, self._rows(key, rows))
        room.filled(key)
        return leaf

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        return cls._dense_kind._stack([item._dense() for item in items], dim)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        return cls._dense_kind._cat([item._dense() for item in items], dim)


def _read_first(name: str) -> Call:
    """Return the verb that is said to all that is read."""
    return lambda self, *args: getattr(self._dense(), name)(*args)


for _name in "_map _zip _match _move _resize _reduce".split():
    setattr(Stored, _name, _read_first(_name))


@final
class Window(Stored):
    """Rows of a tensordict in a store: read when they are asked for, and written through.

    A window cannot remove keys; a new key that is set in it is made in the source, with zeros in the other rows.
    """

    def __init__(self, source: Any, plan: Plan) -> None:
        self._source, self._view = source, plan
        names = source._meta.names
        kept = names and tuple(None if dim is None else names[dim] for dim in plan.kept)
        self._meta = Meta(plan.batch, source._meta.device, kept if kept and any(kept) else None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _window, (self._source, self._view.items, self._meta)

    @property
    def _locked(self) -> bool:
        return bool(self._source._locked)

    @_locked.setter
    def _locked(self, value: bool) -> None:
        raise RuntimeError("a window of rows is locked with its source; lock or unlock that")

    @property
    def _home(self) -> Any:
        return self._source._home

    def _nodes(self) -> list[Any]:
        return []

    def _keys(self) -> Any:
        return self._source._keys()

    def _get(self, key: str) -> Any:
        child = self._source._rows(key, self._view.items)
        names = self._meta.names
        if names and not isinstance(child, Tensor) and not child._is_non_tensor:
            child._name_dims((*names, *child.names[len(names) :]))
        return child

    def _peek(self, key: str) -> Any:
        seen = self._source._peek(key)
        return seen if isinstance(seen, str) and self._meta.batch else self._look(key)

    def _look(self, key: str) -> Any:
        look = self._source._look(key)
        return look[self._view.items] if isinstance(look, Tensor) else look[self._view.items or ...]

    def _rows(self, key: str, items: tuple[Any, ...]) -> Any:
        both = through(self._view.items, items, self._source._meta.batch)
        if both is not None:
            return self._source._rows(key, both)
        return self._get(key)[items]

    def _write(self, plan: Plan, value: Any) -> None:
        check_rows(plan, self._meta.batch)
        both = through(self._view.items, plan.items, self._source._meta.batch)
        if both is not None:
            self._source._write(self._source._plan(both), value)
            return
        part = self._dense()
        part._write(plan, value)
        self._source._write(self._view, part)

    def _set(self, key: str, child: Any) -> None:
        self._source._write(self._view, _of({key: child}, self._meta))

    def _del(self, key: str) -> None:
        raise RuntimeError(f"cannot delete key {key!r} of some rows; delete it in the tensordict that they belong to")

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta
        return self


def _window(source: Any, items: tuple[Any, ...], meta: Meta) -> Any:
    return Window(source, source._plan(items))._stamp(meta)


def through(first: tuple[Any, ...], then: tuple[Any, ...], batch: Batch) -> tuple[Any, ...] | None:
    """Return the one index that does what two do, one after the other; None where no such index exists.

    >>> through((slice(10, 20), 3), (slice(None, None, 2),), (100, 5))
    (slice(10, 20, 2), 3)
    """
    if not all(map(_simple, first)) or any(item is None or isinstance(item, bool) for item in then):
        return None
    if len(_lists(first)) > 1:  # paired, row by row
        return None
    rest, both = iter(then), []
    for item, size in zip((*first, *[slice(None)] * (len(batch) - len(first))), batch):
        if isinstance(item, slice):
            both.append(_pick(range(size)[item], next(rest, slice(None))))
        else:
            both.append(item[next(rest, slice(None))] if isinstance(item, Tensor) and item.ndim else item)
    return None if len(_lists(both)) > 1 else tuple(both)


def _lists(items: Iterable[Any]) -> list[Tensor]:
    return [item for item in items if isinstance(item, Tensor) and item.ndim]


def _simple(item: Any) -> bool:
    """Tell whether an item of an index takes one dim and gives at most one."""
    return not (item is None or isinstance(item, bool) or (isinstance(item, Tensor) and item.ndim > 1))


def _pick(rows: range, item: Any) -> Any:
    """Return rows of rows, as an item of an index."""
    if isinstance(item, Tensor):
        return rows.start + rows.step * torch.where(item < 0, item + len(rows), item)
    if not isinstance(item, slice):
        return rows[item]
    picked = rows[item]
    return slice(picked.start, picked.stop, picked.step) if picked else slice(0, 0)
