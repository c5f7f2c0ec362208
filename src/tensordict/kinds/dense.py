"""TensorDict: a dict of children with one batch size, all in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tensordict import errors, keys
from tensordict.aliases import Batch, Call, DeviceLike, Names, Rule, SizeLike
from tensordict.core import coerce
from tensordict.core.core import PRESENTED, Core
from tensordict.core.facts import Facts
from tensordict.dims import memo
from tensordict.indexing import Plan, check_rows, unled
from tensordict.kinds.collection import TensorDictBase
from tensordict.meta import Meta, as_batch, as_names
from tensordict.ops.at_once import PLAIN, all_writable, below, changed, made, twins
from tensordict.ops.fit import check_room, check_writable, filling, in_dtype, put
from tensordict.ops.gather import steps
from tensordict.ops.join import cat_meta, mismatch, need_same_keys, stacked_meta
from tensordict.ops.ragged import concatenated, is_nested, paired, told, write_rows
from tensordict.ops.rows import align
from tensordict.ops.store import LOADERS, adopt, node_home, open_room
from tensordict.storage.base import Record
from tensordict.storage.gathers import splits
from tensordict.storage.guard import read_only
from tensordict.storage.mapped import present
from tensordict.storage.packed import Records
from tensordict.storage.sent import Packed

if TYPE_CHECKING:
    from typing_extensions import Self

_new = object.__new__
_STRINGS = {str}
_at, _put = TensorDictBase.__getitem__, TensorDictBase.__setitem__


def _of(children: dict[str, Any], meta: Meta) -> TensorDict:
    node = _new(TensorDict)
    node._dict = children
    node._meta = meta
    return node


def _keep(names: Names, kept: tuple[int | None, ...]) -> Names:
    """Return the names of the dims that an index keeps."""
    if not names:
        return None
    left = tuple(None if dim is None else names[dim] for dim in kept)
    return left if any(left) else None


@final
class TensorDict(TensorDictBase):
    """Hold tensors and nested tensordicts under string keys, with a batch size that they share.

    Args:
        source: a mapping of keys (strings, or tuples for nested keys) to values, or another tensor collection.
        batch_size: the leading dims that all values share. Without it, that of ``source`` when it has one, else empty.
        device: move all values there, now and when they are set. None leaves each where it is.
        names: one name or None for each batch dim.
        non_blocking: passed to the move to ``device``.
        lock: lock the keys once it is built.
        **kwargs: values by key, instead of ``source``.

    Raises:
        RuntimeError: if the leading dims of a value are not the batch size.
        KeyError: if a key is not a string or a tuple of strings.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> td = TensorDict({"image": torch.zeros(4, 3, 8, 8), "meta": {"label": torch.arange(4)}}, batch_size=[4])
        >>> td[1:3]["meta", "label"]
        tensor([1, 2])
        >>> td.batch_size
        torch.Size([4])
    """

    _dict: dict[str, Any]
    _records = Records([])  # my leaves that lie side by side
    _row_meta: tuple[Meta, Meta] = (Meta(()), Meta(()))  # my meta, and that of my rows which was made for it

    def __init__(
        self,
        source: Mapping[Any, Any] | Any = None,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        names: Sequence[str | None] | None = None,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if source is not None and kwargs:
            raise TypeError(f"pass a source or keyword values, not both; got the keywords {sorted(kwargs)}")
        source = kwargs if source is None else source
        if batch_size is None and type(source) is not dict and isinstance(source, Facts):
            batch_size = source.batch_size
            names = source.names if names is None and source._meta.names else names
            device = source._meta.device if device is None else device
        batch = as_batch(batch_size)
        device = None if device is None else torch.device(device)
        self._dict = {}
        self._meta = Meta(batch, device, as_names(names, len(batch)))
        self._fill(source)
        if lock:
            self.lock_()

    def _fill(self, source: Any) -> None:
        if type(source) is not dict and not isinstance(source, (Mapping, Core)):
            raise TypeError(
                f"expected a mapping of keys to values, got {source!r} of type {type(source).__name__}; "
                f"`from_any` and `from_dict` convert other structures"
            )
        pairs = source if type(source) is dict or isinstance(source, Mapping) else dict(source._raw_pairs())
        if set(map(type, pairs)) <= _STRINGS:
            self._dict = coerce.children(pairs, self._meta)
            return
        for key, value in pairs.items():
            self.set(keys.unravel_key(key), value)

    if not TYPE_CHECKING:  # the short road to a leaf; the base tells the types

        def __getitem__(self, index: Any) -> Any:
            if type(index) is str and self._home is None:
                child = self._dict.get(index)
                if type(child) is Tensor:
                    return child
            return _at(self, index)

        def __setitem__(self, index: Any, value: Any) -> None:
            if type(index) is str and not self._locked and self._home is None:
                self._dict[index] = coerce.child(index, value, self._meta)
            else:
                _put(self, index, value)

    def _set_leaves(self, pairs: Iterable[tuple[Any, Any]]) -> bool:
        if self._home is not None:
            return super()._set_leaves(pairs)
        ready, meta = {}, self._meta
        for key, value in pairs:
            if type(key) is not str or not isinstance(value, Tensor):
                return False
            ready[key] = coerce.child(key, value, meta)
        if ready and self._locked:
            self._gate("set key {!r}", next(iter(ready)))
        self._dict.update(ready)
        return True

    # ---- verbs

    def _map(self, call: Call, many: Call | None = None) -> Self:
        leaves = self._dict
        if many is not None:
            found = made(many, list(leaves.values()))
            if found is not None:
                return _of(dict(zip(leaves, found)), self._meta)
        return self._like({k: call(v) for k, v in leaves.items()}, self._meta)

    def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self:
        mine = self._dict
        for other in others:
            if isinstance(other, Core):
                self._same_keys(other)
        if len(others) == 1 and isinstance(others[0], Core):
            get = others[0]._get
            if many is not None:
                found = made(many, list(mine.values()), list(map(get, mine)))
                if found is not None:
                    return _of(dict(zip(mine, found)), self._meta)
            return _of({k: call(v, get(k)) for k, v in mine.items()}, self._meta)
        return _of({k: call(v, *[_part(other, k, v) for other in others]) for k, v in mine.items()}, self._meta)

    def _same_keys(self, other: Any) -> None:
        mine, theirs = self._dict.keys(), other._keys()
        if mine != (theirs if isinstance(theirs, type(mine)) else set(theirs)):
            raise errors.KeysMismatch(
                f"keys do not match: {sorted(set(mine) - set(theirs))} only on the left, "
                f"{sorted(set(theirs) - set(mine))} only on the right"
            )

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        self._writable()
        if many is not None and self._each_at_once(many, others, sure=True):
            return self
        for k, v in self._dict.items():
            parts = tuple([_part(other, k, v) for other in others])
            call(v, *parts) if isinstance(v, Tensor) else v._each(call, parts, many)
        return self

    def _each_at_once(self, many: Call, others: tuple[Any, ...], sure: bool = False) -> bool:
        """Say a call in place to all leaves of the tree at once; tell whether all could hear it so."""
        if not others:
            leaves = below(self)
            return leaves is not None and all_writable(leaves) and changed(many, leaves, sure=sure)
        pairs = [found for found in (twins(self, other) for other in others) if found is not None]
        return len(pairs) == len(others) and changed(many, pairs[0][0], *[theirs for _, theirs in pairs], sure=sure)

    def _match(self, trial: Any, others: tuple[Any, ...] = ()) -> None:
        self._writable()
        leaves = None if others else below(self)
        if leaves is not None and all_writable(leaves):
            trial.alike(leaves)
            return
        for other in others:
            if isinstance(other, Core):
                self._same_keys(other)
        for k, v in self._dict.items():
            parts = tuple([_part(other, k, v) for other in others])
            trial(k, v, *parts) if isinstance(v, Tensor) else v._match(trial, parts)

    def _move(self, rule: Rule, call: Call) -> Self:
        batch, device, names = self._meta
        meta = Meta(rule(batch, 1), device, names and rule(names, None))
        return self._derived(self._told(call), meta)

    def _told(self, call: Call) -> dict[str, Any]:
        """Say a call that treats rows alike to each child."""
        try:
            return {k: call(v) for k, v in self._dict.items()}
        except (RuntimeError, ValueError) as error:  # torch knows few of these calls for nested tensors
            return told(self._dict, call, error)

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._derived(self._told(call), Meta(batch, self._meta.device, names))

    def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return _of({k: call(v) for k, v in self._dict.items()}, Meta(batch, self._meta.device, names))

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        _, device, names = self._meta
        if names and len(batches) and len(batches[0]) < len(names):
            names = (*names[:dim], *names[dim + 1 :])
        if not self._dict:
            return tuple(self._derived({}, Meta(batch, device, names)) for batch in batches)
        rows = zip(*self._told(call).values(), strict=True)
        ks = self._dict.keys()
        return tuple(
            self._derived(dict(zip(ks, row, strict=True)), Meta(batch, device, names))
            for row, batch in zip(rows, batches, strict=True)
        )

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return combine(call(v) for v in self._dict.values())

    def _index(self, plan: Plan) -> Self:
        _, device, names = self._meta
        if self._home is not None and self._home.layout and len(plan.items) == 1 and not plan.view:
            leaves = self._row_leaves()
            if not self._records.made_for(leaves):
                self._records = Records(leaves)
            if self._records.can_pick():
                return self._row_node(plan, iter(self._records.pick(plan.call)))  # type: ignore[no-any-return]
        if not self._dict:
            check_rows(plan, self._meta.batch)
        node = _of(self._told(plan.call), Meta(plan.batch, device, _keep(names, plan.kept)))
        if plan.view and self._home is not None:
            node._home = self._home
            node._locked = self._locked
        return node

    _read_rows = _index  # nodes below are told to read rows, too

    def _row_leaves(self) -> list[Tensor]:
        if self._only_leaves():
            return list(self._dict.values())
        leaves: list[Tensor] = []
        for v in self._dict.values():
            leaves += [v] if isinstance(v, Tensor) else v._row_leaves()
        return leaves

    def _row_child(self, plan: Plan, picked: Iterator[Any]) -> Any:
        return self._row_node(self._plan(plan.items), picked)

    def _row_node(self, plan: Plan, picked: Iterator[Any]) -> Any:
        _, device, names = self._meta
        children, beside = {}, {}
        for k, v in self._dict.items():
            children[k] = next(picked) if isinstance(v, Tensor) else v._row_child(plan, picked)
            if children[k] is None:
                beside[k] = v
        if beside:
            children |= _of(beside, self._meta)._told(plan.call)
        return _of(children, Meta(plan.batch, device, _keep(names, plan.kept)))

    def _row(self, index: int) -> Any:
        source, row = self._row_meta
        if source is not self._meta:
            source = self._meta
            row = Meta(source.batch[1:], source.device, _keep(source.names, tuple(range(1, self.ndim))))
            self._row_meta = (source, row)
        node = _new(TensorDict)
        node._dict = {k: v[index] for k, v in self._dict.items()}
        node._meta = row
        if self._home is not None:
            node._home = self._home
            node._locked = self._locked
        return node

    def _derived(self, children: dict[str, Any], meta: Meta) -> TensorDict:
        """Return a node whose leaves are views of mine: it shares my lock and my home."""
        node = _of(children, meta)
        if self._locked:
            node._locked = True
        if self._home is not None:
            node._home = self._home
        return node

    def _write(self, plan: Plan, value: Any) -> None:
        self._writable()
        if self._copy_at_once(value, plan):
            return
        check_rows(plan, self._meta.batch)
        if not isinstance(value, Core):
            self._pour(plan, value)
            return
        fresh = [k for k in value._keys() if k not in self._dict]
        if fresh:
            self._gate("write the new key {!r}", fresh[0])
        self._admit(plan, value)
        for k in fresh:
            self._dict[k] = self._room_for(plan, value._get(k))
        items = plan.items
        at = items[0] if len(items) == 1 else items
        for k, theirs in value._raw_pairs():
            mine = self._dict[k]
            if not isinstance(mine, Tensor):
                self._dict[k] = mine._written(items, theirs)
            elif mine.is_nested:
                write_rows(mine, items, theirs)
            else:
                mine[at] = theirs

    def _even(self) -> bool:
        return all(splits(v) if isinstance(v, Tensor) else v._even() for v in self._dict.values())

    def _into(self, reading: Any, out: Any) -> list[Call]:
        return steps(self, reading, out) if type(out) is TensorDict else super()._into(reading, out)

    def _pour_all(self, value: Any) -> bool:
        self._writable()
        return self._copy_at_once(value)

    def _copy_at_once(self, value: Any, plan: Plan | None = None) -> bool:
        """Copy all leaves of a tree into mine, or into views of mine; tell whether all were plain and alike."""
        if plan and not plan.view:
            return False
        found = twins(self, value, plan.call if plan and plan.items else None) if isinstance(value, Core) else None
        if found is None:
            return False
        torch._foreach_copy_(*found)
        return True

    def _pour(self, plan: Plan, value: Any) -> None:
        """Write a number or a tensor to rows of every leaf; it means nothing to non-tensors."""
        value = unled(value) if isinstance(value, Tensor) and value.ndim else value
        self._admit(plan, value)
        for v in self._dict.values():
            if is_nested(v):
                write_rows(v, plan.items, value)
            elif not getattr(v, "_is_non_tensor", False):
                v[plan.items] = in_dtype(value, v)

    def _write_at(self, key: str, value: Any, index: Any) -> None:
        leaf = self._dict[key]
        if not isinstance(leaf, Tensor) or leaf.is_nested:
            super()._write_at(key, value, index)
            return
        self._writable()
        put(key, leaf, index, value)

    def _admit(self, plan: Plan, value: Any) -> None:
        """Raise, before anything is written, if a value does not fit."""
        if not isinstance(value, (Tensor, Core)):
            self._match(filling(value, plan))
            return
        tail, depth, tensor = plan.batch, len(self._meta.batch), isinstance(value, Tensor)
        pairs: Any = value._raw_pairs() if isinstance(value, Core) else [(k, value) for k in self._dict]
        room = memo(lambda own: (*tail, *own[depth:]))
        for k, theirs in pairs:
            mine = self._dict.get(k)
            if type(mine) is Tensor and type(theirs) is Tensor and not (mine.is_nested or theirs.is_nested):
                wanted = room(mine.shape)
                check_writable(k, mine, plan, theirs)
                if theirs.shape != wanted or theirs.dtype is not mine.dtype:
                    check_room(k, wanted, theirs, None if plan.view else mine)
            elif mine is not None:
                self._admit_other(k, plan, theirs, tensor)

    def _admit_other(self, key: str, plan: Plan, value: Any, tensor: bool) -> None:
        """Raise if a value does not fit a child that is a node, or a leaf of some class of its own."""
        mine = self._dict[key]
        leaf = isinstance(mine, Tensor)
        odd = not leaf and isinstance(value, Core) and mine._is_non_tensor > value._is_non_tensor
        if not tensor and (odd or leaf is not isinstance(value, Tensor)):
            raise TypeError(f"cannot write at key {key!r}: expected a {type(mine).__name__}, got {value!r}")
        if is_nested(mine):
            for row, part in paired(mine, plan.items, value):
                check_room(key, tuple(row.shape), part)
        elif leaf:
            check_room(key, plan.batch + mine.shape[len(self._meta.batch) :], value)
        elif not mine._is_non_tensor or mine._is_unbatched:
            mine._admit(mine._plan(plan.items), value)

    def _room_for(self, plan: Plan, value: Any) -> Any:
        """Return zeros for a key that only the written value has."""
        shape = self._meta.batch + tuple(value.shape[len(plan.batch) :])
        return value.new_zeros(shape)

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        self._write(self._plan(items), value)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_dict": Packed(self._dict)}

    def _get(self, key: str) -> Any:
        try:
            return self._dict[key]
        except KeyError:
            raise errors.missing_key(key, self._dict, "TensorDict") from None

    def _names(self) -> Any:
        return self._dict.keys()

    def _items(self) -> Any:
        plain = self._home is None and (not PRESENTED or self._plain())
        return self._dict.items() if plain else super()._items()

    def _values_view(self) -> Any:
        plain = self._home is None and (not PRESENTED or self._plain())
        return self._dict.values() if plain else super()._values_view()

    def __contains__(self, key: Any) -> bool:
        return key in self._dict if type(key) is str else super().__contains__(key)

    def _pairs(self) -> Any:
        return self._dict.items() if self._plain() else super()._pairs()

    def _plain(self) -> bool:
        """Tell whether users get the children as they are."""
        return self._home is None and (not PRESENTED or PRESENTED.isdisjoint(map(type, self._dict.values())))

    def _nodes(self) -> list[Any]:
        return [] if self._only_leaves() else [v for v in self._dict.values() if isinstance(v, Core)]

    def _raw_pairs(self) -> Any:
        return self._dict.items()

    _looks = _raw_pairs

    def _only_leaves(self) -> bool:
        return set(map(type, self._dict.values())) == PLAIN

    def _read_one(self, key: str) -> Any:
        child = self._dict.get(key)
        if type(child) is Tensor:
            return child if self._home is None else present(child)
        return super()._read_one(key)

    def _set(self, key: str, child: Any) -> None:
        self._dict[key] = child
        if self._home is not None:  # no longer wholly there, though the other leaves still are
            self._home = self._home._replace(kind="mixed")

    def _del(self, key: str) -> None:
        del self._dict[key]

    def _keys(self) -> Collection[str]:
        return self._dict.keys()

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta
        return self

    def _like(self, children: dict[str, Any], meta: Meta) -> Self:
        node = _of(children, meta)
        if self._home is not None and self._home.mode == "r" and any(map(read_only, children.values())):
            node._home = self._home._replace(kind="mixed")
        return node

    def _rekeyed(self, children: dict[str, Any]) -> TensorDict:
        """Return a node of some of the same leaves under other keys; what may not be written stays so."""
        node = _of(children, self._meta)
        if self._home is not None:
            node._home = self._home._replace(kind="mixed")
        return node

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        return call(self)

    def _shown(self, child: Any) -> Any:
        return present(child) if self._home is not None else child

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        return _join(torch.stack, items, dim, stacked_meta(items, dim))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        return _join(torch.cat, items, dim, cat_meta(items, dim))

    def _place(self, room: Any, kind: str, fill: bool) -> Self:
        children = {}
        for k, v in self._dict.items():
            if not isinstance(v, Tensor):
                children[k] = v._place(room.child(k), kind, fill)
            elif v.is_nested:
                children[k] = room.write(k, v if fill else torch.zeros_like(v))
            elif not fill:
                children[k] = room.create(k, tuple(v.shape), v.dtype)
            elif v.is_meta:
                raise RuntimeError(f"cannot copy the value at key {k!r}: it is on the device 'meta', without memory")
            else:
                children[k] = room.write(k, v)
        return settled(children, self._meta, room, kind)  # type: ignore[no-any-return]

    def _adopt(self, placed: Any) -> None:
        shared = placed._home is not None and placed._home.kind == "shared"
        adopted = {k: adopt(self._dict.get(k), v, shared) for k, v in placed._dict.items()}
        self._dict.clear()
        self._dict.update(adopted)
        self._meta, self._home = placed._meta, placed._home

    @classmethod
    def _open(cls, room: Any) -> Any:
        record = room.meta
        meta = Meta(record.batch, None if record.device is None else torch.device(record.device), record.names)
        leaves = room.leaves()
        children = {
            k: leaves[k] if kind == "leaf" else coerce.child(k, open_room(room.child(k)), Meta(record.batch))
            for k, kind in room.keys().items()
        }
        node = _of(children, meta)
        node._home = node_home(room, "memmap")
        return node

    def _dense(self) -> Self:
        if all(isinstance(v, Tensor) for v in self._dict.values()):
            return self
        return self._map(lambda v: v if isinstance(v, Tensor) else v._dense())

    def _members(self, dim: int) -> Sequence[Any]:
        return self.unbind(dim)


def settled(children: dict[str, Any], meta: Meta, room: Any, kind: str) -> Any:
    """Write the record of a node whose children lie in a room, and return the node there."""
    batch, device, names = meta
    device = torch.device("cpu") if kind == "memmap" else device
    room.meta = Record("dense", batch, None if device is None else str(device), names)
    if not room.resident:
        return open_room(room)
    node = _of(children, Meta(batch, device, names))
    node._home = node_home(room, kind)
    return node


def _part(other: Any, key: str, child: Any) -> Any:
    """Return what an operand has for a child: its own child at the key, or a tensor lined up with the batch dims."""
    return align(other, child.ndim) if isinstance(other, Tensor) else other._get(key)


def _join(join: Call, items: Sequence[Any], dim: int, meta: Meta) -> Any:
    """Join the children of several nodes by key; the order of keys is that of the first."""
    joined: dict[str, Any] = {}
    for k, parts in _columns(items):
        try:
            joined[k] = join(parts, dim)
        except errors.ShapeMismatch as error:
            raise errors.ShapeMismatch(f"in {k!r}: {error}") from None
        except RecursionError:
            raise
        except (RuntimeError, ValueError) as error:
            if join is not torch.cat or dim or not any(map(is_nested, parts)):
                raise mismatch(k, parts, error) from error
            joined[k] = concatenated(parts)
    return _of(joined, meta)


def _columns(items: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return each key of the first node with the children that all nodes have there."""
    names = items[0]._keys()
    if set(map(type, items)) == {TensorDict}:
        dicts = [item._dict for item in items]
        try:
            if set(map(len, dicts)) == {len(names)}:
                return [(k, [leaves[k] for leaves in dicts]) for k in names]
        except KeyError:
            pass  # as many keys, but not the same: said below
    need_same_keys(items)
    return [(k, [item._get(k) for item in items]) for k in names]


Core._dense_kind = TensorDict
LOADERS["dense"] = TensorDict._open
