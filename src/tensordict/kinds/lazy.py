"""LazyStackedTensorDict: nodes that are stacked along a dim when, and only when, a value is read.

Members keep their own keys and shapes. A word that treats members alike is said to each; a dim rule applied to
positions tells where the stack dim goes; what mixes the stack dim with others makes a dense tensordict first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tensordict import dims, errors
from tensordict.aliases import NO_DEFAULT, Batch, Call, DeviceLike, Names, NestedKey, Rule, SizeLike
from tensordict.core.coerce import shape_of
from tensordict.core.core import Core
from tensordict.indexing import Plan, check_rows, plan
from tensordict.kinds.members import Members, mixed
from tensordict.kinds.route import Route, apart, fitted
from tensordict.meta import Meta, as_batch, as_names
from tensordict.ops import at_once
from tensordict.ops.convert import completed
from tensordict.ops.fit import writable
from tensordict.ops.join import alike
from tensordict.ops.listing import RowList
from tensordict.ops.store import LOADERS, NodeHome, node_home, open_room
from tensordict.storage.base import Record

if TYPE_CHECKING:
    from typing_extensions import Self

_NEW = -1  # a new dim among the positions of dims
_SAME = object()
_ALL = slice(None)


@final
class LazyStackedTensorDict(Members):
    """Stack tensordicts along a dim without copying: each keeps its own memory, keys and shapes.

    Args:
        *tensordicts: the members, with batch sizes of the same length.
        stack_dim: where the new dim stands in the batch size.
        hook_out: called with a tensor that is read by key; what it returns is handed out. Results of words have none.
        hook_in: called with a value that is set by key; what it returns is set.
        batch_size: checked against the batch size that follows from the members.
        device: move the members there.
        names: one name or None for each batch dim.
        stack_dim_name: the name of the stack dim.
        strict_shape: refuse members, now and later, whose batch sizes differ.

    Raises:
        RuntimeError: if the members have batch sizes of different lengths (or, with ``strict_shape``, different ones),
            or there are none.

    Examples:
        >>> import torch
        >>> from tensordict import LazyStackedTensorDict, TensorDict
        >>> clouds = [TensorDict({"points": torch.randn(n, 3)}) for n in (5, 2)]
        >>> stack = LazyStackedTensorDict(*clouds)
        >>> stack.batch_size, stack[1]["points"].shape
        (torch.Size([2]), torch.Size([2, 3]))
    """

    _tensordicts: list[Any]
    stack_dim: int
    _hook_out: Callable[[Any], Any] | None = None
    _hook_in: Callable[[Any], Any] | None = None
    _strict: bool = False

    if TYPE_CHECKING:  # a row may be a member, of any class

        def __iter__(self) -> Iterator[Any]: ...
        def gather_rows(self, index: Any, out: Any = None, *, threads: int = 1) -> Any: ...

    def __init__(
        self,
        *tensordicts: Any,
        stack_dim: int = 0,
        hook_out: Callable[[Any], Any] | None = None,
        hook_in: Callable[[Any], Any] | None = None,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        names: Sequence[str | None] | None = None,
        stack_dim_name: str | None = None,
        strict_shape: bool = False,
    ) -> None:
        if not tensordicts:
            raise RuntimeError("a lazy stack needs at least one tensordict")
        self._hook_out, self._hook_in, self._strict = hook_out, hook_in, strict_shape
        first = tensordicts[0]
        for at, member in enumerate(tensordicts):
            self._check_member(member, first, at)
        ndim = len(first._meta.batch)
        self.stack_dim = dims.wrap(stack_dim, ndim + 1, "stack_dim")
        self._tensordicts = list(tensordicts) if device is None else [m.to(device) for m in tensordicts]
        self._name = stack_dim_name
        if names is not None:
            self._stamp(self._meta._replace(names=as_names(names, ndim + 1)))
        if batch_size is not None and as_batch(batch_size) != self._meta.batch:
            raise RuntimeError(
                f"the members make a batch size of {list(self._meta.batch)}, got batch_size={batch_size!r}"
            )

    @property
    def tensordicts(self) -> list[Any]:
        """Return the members, in order.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> len(lazy_stack([TensorDict({"a": 1}), TensorDict({"a": 2})]).tensordicts)
            2
        """
        return self._tensordicts

    def _check_member(self, member: Any, first: Any, at: int) -> None:
        """Raise unless a node can stand beside the first member."""
        if not isinstance(member, Core):
            raise TypeError(
                f"a lazy stack holds tensordicts, got {member!r} of type {type(member).__name__} at number {at}"
            )
        batch, other = first._meta.batch, member._meta.batch
        if len(batch) != len(other) or (self._strict and batch != other):
            wanted = f"the batch size {list(batch)} (strict_shape=True)" if self._strict else f"{len(batch)} batch dims"
            raise errors.ShapeMismatch(
                f"cannot stack lazily: expected tensordicts with {wanted}, got {member!r} at number {at}"
            )

    @property
    def hook_out(self) -> Callable[[Any], Any] | None:
        """Return what is called with each tensor that is read by key, or None.

        Examples:
            >>> from tensordict import LazyStackedTensorDict, TensorDict
            >>> stack = LazyStackedTensorDict(TensorDict({"a": 1}), TensorDict({"a": 2}), hook_out=lambda x: x + 1)
            >>> stack["a"]
            tensor([2, 3])
        """
        return self._hook_out

    @property
    def hook_in(self) -> Callable[[Any], Any] | None:
        """Return what is called with each value that is set by key, or None.

        Examples:
            >>> from tensordict import LazyStackedTensorDict, TensorDict
            >>> stack = LazyStackedTensorDict(TensorDict({"a": 1}), TensorDict({"a": 2}), hook_in=lambda x: x * 2)
            >>> stack.set("a", stack["a"])["a"]
            tensor([2, 4])
        """
        return self._hook_in

    def _read_one(self, key: str) -> Any:
        found = super()._read_one(key)
        if isinstance(found, RowList) and not found.ragged:  # a joined column: what is written goes on to the members
            found.reach(lambda index, rows: self.set_at_(key, rows, index))
        return found

    def _shown(self, child: Any) -> Any:
        return child if self._hook_out is None else self._hook_out(child)

    def _sides(self, source: Any) -> Sequence[tuple[Any, Any]]:
        """Return each member with that of another lazy stack, in which values differ in shape, perhaps."""
        bare = source._bare() if isinstance(source, Core) else None
        if type(bare) is not LazyStackedTensorDict or bare.stack_dim != self.stack_dim:
            return ()
        return self._rows((bare,))

    def valid_keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return a view of the keys that all members have, as `keys` does.

        Args:
            include_nested: go into nested tensordicts; nested keys are tuples.
            leaves_only: leave out the nested tensordicts themselves.
            is_leaf: called with the class of a value; tells what counts as a leaf.
            sort: in alphabetical order.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> list(lazy_stack([TensorDict({"a": 1, "b": 1}), TensorDict({"a": 2})]).valid_keys())
            ['a']
        """
        return self.keys(include_nested, leaves_only, is_leaf, sort=sort)

    def get_nestedtensor(self, key: NestedKey, default: Any = NO_DEFAULT, *, layout: torch.layout | None = None) -> Any:
        """Return the values of the members as one nested tensor.

        Args:
            key: a string, or a tuple for a nested key.
            default: returned when a member lacks the key; without it, a missing key raises KeyError.
            layout: `torch.strided` (the default) or `torch.jagged`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict, lazy_stack
            >>> stack = lazy_stack([TensorDict({"a": torch.ones(n)}) for n in (1, 2)])
            >>> [len(row) for row in stack.get_nestedtensor("a", layout=torch.jagged).unbind()]
            [1, 2]
        """
        if default is not NO_DEFAULT and key not in self:
            return default
        return self._found(key, as_nested_tensor=True, layout=layout or torch.strided)

    @property
    def _meta(self) -> Meta:  # type: ignore[override]
        members = self._tensordicts
        batch, device, names = first = members[0]._meta
        metas = [member._meta for member in members]
        for member in members if metas.count(first) < len(metas) else ():
            if member._meta.batch != batch:
                other = member._meta.batch
                batch = tuple(a if a == b else -1 for a, b in zip(batch, other, strict=True))
            if member._meta.device != device:
                device = None
        if names or self._name:
            names = dims.insert(names or (None,) * len(batch), self.stack_dim, self._name)
        return Meta(dims.insert(batch, self.stack_dim, len(members)), device, names or None)

    def _again(self, members: Iterable[Any], dim: int | None = None, name: Any = _SAME) -> Any:
        """Return a lazy stack of other members."""
        node = object.__new__(LazyStackedTensorDict)
        node._tensordicts = list(members)
        node.stack_dim = self.stack_dim if dim is None else dim
        node._name = self._name if name is _SAME else name
        return node

    # ---- locks: nested nodes are stacked anew at each read, so the members hold the lock

    @property
    def _locked(self) -> bool:
        return self.__dict__.get("_locked", False) or all(m._locked for m in self._tensordicts)

    @_locked.setter
    def _locked(self, value: bool) -> None:
        self.__dict__["_locked"] = value

    def _live_lockers(self, parent: Any = None) -> Any:
        if self.__dict__.get("_locked"):
            return super()._live_lockers(parent)
        return tuple(ref for m in self._tensordicts for ref in m._live_lockers(parent))

    def _gate(self, what: str, *about: Any) -> None:
        super()._gate(what, *about)
        for member in self._tensordicts:
            member._gate(what, *about)

    @property
    def _home(self) -> Any:
        """Return where I was placed, or what my members have in common: parts of a placed stack are placed too."""
        own = self.__dict__.get("_home")
        homes = {own and (own.kind, own.mode) for own in (m._home for m in self._tensordicts)}
        if own is not None or len(homes) > 1 or None in homes:
            return own
        kind, mode = homes.pop()
        return NodeHome(kind, None, mode)

    @_home.setter
    def _home(self, value: Any) -> None:
        self.__dict__["_home"] = value

    # ---- verbs

    def _map(self, call: Call, many: Call | None = None) -> Self:
        members = self._tensordicts
        told = None if many is None else at_once.told(many, members)
        again: Self = self._again([call(m) for m in members] if told is None else told)
        return again

    def _each_at_once(self, many: Call, others: tuple[Any, ...]) -> bool:
        return False if others else at_once.changed_below(many, self._tensordicts)

    def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self:
        again: Self = self._again([call(*row) for row in self._rows(others)])
        return again

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        for member, *parts in self._rows(others):
            member._each(call, tuple(parts), many)
        return self

    def _match(self, trial: Any, others: tuple[Any, ...] = ()) -> None:
        for member, *parts in self._rows(others):
            member._match(trial, tuple(parts))

    def _rows(self, others: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Return each member with its part of the others: nodes, or tensors with as many dims as the batch."""
        dim, count = self.stack_dim, len(self._tensordicts)
        columns: list[Sequence[Any]] = []
        for other in others:
            if isinstance(other, Tensor) and other.ndim == self.ndim and other.shape[dim] == 1:
                columns.append(other.unbind(dim) * count)
            elif other.ndim == self.ndim and other.shape[dim] == count:
                columns.append(other.unbind(dim) if isinstance(other, Tensor) else other._members(dim))
            else:
                raise errors.ShapeMismatch(
                    f"batch sizes do not match: {list(self.batch_size)} on the left, {list(other.shape)} on the right"
                )
        return list(zip(self._tensordicts, *columns, strict=True))

    def _move(self, rule: Rule, call: Call) -> Any:
        ndim = len(self._meta.batch)
        positions = rule(tuple(range(ndim)), _NEW)
        if self.stack_dim not in positions:  # a squeezed stack dim: its one member is the result
            return self._tensordicts[0]._follow(self._member_positions(positions))
        inner = self._member_positions(dims.drop(positions, positions.index(self.stack_dim)))
        return self._again([m._follow(inner) for m in self._tensordicts], positions.index(self.stack_dim))

    def _member_positions(self, positions: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return positions among my dims as positions among the dims of a member."""
        return tuple(None if at == _NEW else at - (at > self.stack_dim) for at in positions)

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Any:
        own = self._meta.batch
        try:
            if -1 in own or self._uniform():
                return self._dense()._resize(call, batch, names)
        except errors.ShapeMismatch:
            if -1 in own:
                raise
        # the members differ: what the call does to row numbers says which of them go where
        rows = call(torch.arange(dims.numel(own)).reshape(own))
        found = self[torch.unravel_index(rows, own)]
        if names is not None:
            found._name_dims(names)
        return found

    def _uniform(self) -> bool:
        """Tell whether all members have the same keys, so that a dense node loses nothing."""
        common = self._keys()
        nodes = [*self._tensordicts, *map(self._look, common)]
        return all(len(m._keys()) == len(common) for m in self._tensordicts) and all(
            node._uniform() for node in nodes if isinstance(node, LazyStackedTensorDict)
        )

    def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Any:
        return self._dense()._reduce(call, batch, names)

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Any, ...]:
        ndim = len(self._meta.batch)
        if dim == self.stack_dim:
            if batches and len(batches[0]) < ndim:
                return tuple(self._tensordicts)
            sizes = [batch[dim] for batch in batches]
            starts = [sum(sizes[:at]) for at in range(len(sizes))]
            parts = [self._tensordicts[at : at + size] for at, size in zip(starts, sizes, strict=True)]
            return tuple(self._again(part) if part else self[(_ALL,) * dim + (slice(0, 0),)] for part in parts)
        gone = bool(batches) and len(batches[0]) < ndim
        inner = dim - (dim > self.stack_dim)
        sizes = [1 if gone else batch[dim] for batch in batches]
        rows = [m.unbind(inner) if gone else m.split(sizes, inner) for m in self._tensordicts]
        place = self.stack_dim - (gone and dim < self.stack_dim)
        return tuple(self._again(column, place) for column in zip(*rows, strict=True))

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return combine(call(m) for m in self._tensordicts)

    def _get(self, key: str) -> Any:
        parts = self._parts(key)
        try:
            if not isinstance(parts[0], Tensor):
                return self._named(parts[0]._lazily(parts, self.stack_dim))
            return torch.stack(parts, self.stack_dim)
        except (AttributeError, TypeError) as error:
            if not mixed(parts):
                raise
            raise TypeError(
                f"cannot stack the values at key {key!r}: some are tensors, and others are not. "
                f"Read them with get({key!r}, as_list=True)."
            ) from error
        except RuntimeError as error:
            shapes = sorted({tuple(shape_of(part)) for part in parts})
            if len(shapes) == 1 and -1 not in shapes[0]:
                raise
            raise errors.ShapeMismatch(
                f"cannot stack the values at key {key!r}: shapes differ, {', '.join(map(str, map(list, shapes)))}. "
                f"Read them with get({key!r}, as_list=True), as_nested_tensor=True or as_padded_tensor=True."
            ) from error

    def _named(self, node: Any) -> Any:
        """Return a node of my members' nodes, with the name of my stack dim."""
        if self._name is not None and not node._is_non_tensor:
            names = node.names
            node._name_dims((*names[: self.stack_dim], self._name, *names[self.stack_dim + 1 :]))
        return node

    def _parts(self, key: str) -> list[Any]:
        """Return the child of each member, by a shorter road where all are dense."""
        try:
            return [m._dict[key] for m in self._tensordicts]
        except (AttributeError, KeyError):
            pass  # of another kind, or without the key
        try:
            return [m._get(key) for m in self._tensordicts]
        except errors.MissingKey:
            have = [at for at, m in enumerate(self._tensordicts) if key in m._keys()]
            some = f"; only its members {have} have it" if have else ""
            missing = errors.missing_key(key, self._keys(), "LazyStackedTensorDict")
            raise errors.MissingKey(f"{missing}{some}") from None

    def _look(self, key: str) -> Any:
        part = self._tensordicts[0]._look(key)
        return part if isinstance(part, Tensor) else self._get(key)

    def _mark(self, key: str) -> Any:
        return tuple(m._mark(key) for m in self._tensordicts)

    def _set(self, key: str, child: Any) -> None:
        for member, part in zip(self._tensordicts, child.unbind(self.stack_dim), strict=True):
            member._set(key, part)

    def _del(self, key: str) -> None:
        for member in self._tensordicts:
            if key in member._keys():  # one may be there twice, as a member or as a node of several
                member._del(key)

    def _keys(self) -> list[str]:
        views = [m._keys() for m in self._tensordicts]
        first = views[0]
        if all([view == first for view in views]):
            return list(first)
        common = set(first).intersection(*views)
        return [k for k in first if k in common]

    def _nodes(self) -> list[Any]:
        return self._tensordicts

    def _stamp(self, meta: Meta) -> Self:
        names = meta.names
        self._name = None if names is None else names[self.stack_dim]
        inner_batch = dims.drop(meta.batch, self.stack_dim)
        inner_names = names and dims.drop(names, self.stack_dim)
        if len(meta.batch) <= self.stack_dim:
            raise RuntimeError(
                f"the batch size of a lazy stack has its stack dim {self.stack_dim}, got {list(meta.batch)}"
            )
        for member in self._tensordicts:
            sizes = tuple(own if new == -1 else new for own, new in zip(member._meta.batch, inner_batch, strict=False))
            member._stamp(Meta(sizes if -1 in inner_batch else inner_batch, meta.device, inner_names or None))
        return self

    def _name_dims(self, names: Names) -> None:
        self._name = None if names is None else names[self.stack_dim]
        inner = names and dims.drop(names, self.stack_dim)
        for member in self._tensordicts:
            member._name_dims(inner if inner and any(inner) else None)

    def _admits_batch(self, key: str, batch: Batch, nested: bool = True) -> None:
        own, dim = self._meta.batch, self.stack_dim
        if nested and own[: len(batch)] == batch:
            return
        if len(batch) <= dim or batch[dim] != own[dim]:
            raise errors.batch_mismatch(key, batch, own)
        for member in self._tensordicts:
            try:
                member._admits_batch(key, dims.drop(batch, dim), nested=False)
            except RuntimeError as error:
                raise errors.batch_mismatch(key, batch, own) from error

    def _set_batch(self, batch: Batch) -> None:
        for member in self._tensordicts:
            member._set_batch(dims.drop(batch, self.stack_dim))

    def _take(self, made: Any) -> None:
        dim = min(self.stack_dim, len(made._meta.batch) - 1)
        members = list(made._members(dim))
        if not members:
            raise RuntimeError(f"a lazy stack keeps at least one member: it cannot become {list(made.batch_size)}")
        self._tensordicts[:], self.stack_dim, self._name = members, dim, made.names[dim]

    def _like(self, children: dict[str, Any], meta: Meta) -> Any:
        return self._dense_kind(children, meta.batch, meta.device, meta.names and list(meta.names))

    def _emptied(self, meta: Meta) -> Any:
        if meta.batch != self._meta.batch:
            return super()._emptied(meta)
        return self._again([m.empty() for m in self._tensordicts])._stamp(meta)

    def is_contiguous(self) -> bool:
        """Return False: the rows lie in the memory of each member; `contiguous` joins them.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> lazy_stack([TensorDict({"a": 1}), TensorDict({"a": 2})]).is_contiguous()
            False
        """
        return False

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        once = {id(m): m for m in self._tensordicts}  # one may be there twice
        made = {at: m._restructure(call) for at, m in once.items()}
        return self._again([made[id(m)] for m in self._tensordicts])

    def _rekey(self, made: Any) -> None:
        for member, theirs in {id(m): (m, t) for m, t in zip(self._tensordicts, made._tensordicts)}.values():
            member._rekey(theirs)

    def _dense(self) -> Any:
        if -1 in self._meta.batch:
            raise errors.ShapeMismatch(f"cannot make a dense tensordict of batch size {list(self._meta.batch)}")
        return self._shallow()._dense()

    def _shallow(self) -> Any:
        """Return a dense node of my values; nested nodes among them stay lazy."""
        dense = object.__new__(self._dense_kind)
        dense._dict = {k: self._get(k) for k in self._keys()}
        dense._meta = self._meta
        return dense

    def _completed(self, padding: float | None) -> Any:
        return self._again(completed(self._tensordicts, padding))

    def _stacks(self) -> bool:
        """Tell whether the values of my members have the same keys and shapes, so that they can be stacked."""
        first, *rest = self._tensordicts
        return all(alike(first, member) for member in rest)

    def _members(self, dim: int) -> Sequence[Any]:
        return self._tensordicts if dim == self.stack_dim else self.unbind(dim)

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        return LazyStackedTensorDict(*items, stack_dim=dim)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        if any(item.ndim != first.ndim for item in items):
            raise errors.ShapeMismatch(f"cannot concatenate batch sizes {[list(item.batch_size) for item in items]}")
        if dim == first.stack_dim:
            return first._again([member for item in items for member in item._members(dim)])
        inner = dim - (dim > first.stack_dim)
        rows = zip(*(item._members(first.stack_dim) for item in items), strict=True)
        return first._again([torch.cat(list(row), inner) for row in rows])  # the compiler takes no tuple

    def _place(self, room: Any, kind: str, fill: bool) -> Any:
        if not room.resident and self._stacks():
            return self._shallow()._place(room, kind, fill)
        members = [m._place(room.child(str(n)), kind, fill) for n, m in enumerate(self._tensordicts)]
        device = self._meta.device
        room.meta = Record(
            "lazy", None, None if device is None else str(device), stack_dim=self.stack_dim, stack_name=self._name
        )
        placed = self._again(members)
        placed._home = node_home(room, kind)
        return placed

    def _adopt(self, placed: Any) -> None:
        for mine, theirs in zip(self._tensordicts, placed._tensordicts, strict=False):
            mine._adopt(theirs)
        self._tensordicts[len(placed._tensordicts) :] = []
        self._tensordicts += placed._tensordicts[len(self._tensordicts) :]
        self._home = placed._home

    @classmethod
    def _open(cls, room: Any) -> Any:
        record = room.meta
        members = [open_room(room.child(str(n))) for n in range(len(room.keys()))]
        node = LazyStackedTensorDict(*members, stack_dim=record.stack_dim, stack_dim_name=record.stack_name)
        node._home = node_home(room, "memmap")
        return node

    # ---- reading and writing by index: what names members only is answered without a look at them

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self.stack_dim == 0:
            try:
                return self._tensordicts[index]
            except IndexError:
                pass  # said below, with the batch size
        return super().__getitem__(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is int and self.stack_dim == 0 and -len(self._tensordicts) <= index < len(self._tensordicts):
            member = self._tensordicts[index]
            if isinstance(value, Core) and value._meta.batch == member._meta.batch:
                member[()] = value
                return
        super().__setitem__(index, value)

    def unbind(self, dim: int = 0) -> tuple[Any, ...]:
        return tuple(self._tensordicts) if dim == self.stack_dim else super().unbind(dim)

    def _index(self, plan: Plan) -> Any:
        return Route(self, plan).read()

    def _apart(self) -> Any:
        return apart(self)

    def _write(self, plan: Plan, value: Any) -> None:
        check_rows(plan, self._meta.batch)
        value = self._fitted(value, plan.batch)
        route = Route(self, plan)
        route.admit(value)
        route.write(value)

    def _fitted(self, value: Any, batch: Batch) -> Any:
        return fitted(self, value, batch)

    def _visited(self, visit: Any, others: tuple[Any, ...], path: tuple[str, ...]) -> Any:
        """Return what a visit makes of each member; joined values where the result has a batch size of its own."""
        if visit.batch is not None:
            return super()._visited(visit, others, path)
        members = self._tensordicts
        # what is no node is the default for one that is not there
        columns = [
            [row[1] for row in self._rows((other,))] if isinstance(other, Core) else [other] * len(members)
            for other in others
        ]
        found = [member._visited(visit, tuple(parts), path) for member, *parts in zip(members, *columns, strict=True)]
        if visit.in_place:
            return self
        if all(node is None for node in found):
            return None
        pairs = zip(members, found, strict=True)
        return self._again([member._like({}, member._meta) if node is None else node for member, node in pairs])

    def _admit(self, plan: Plan, value: Any) -> None:
        Route(self, plan).admit(self._fitted(value, plan.batch))

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        self._write(self._plan(items), value)
        return self

    def _read_at(self, key: str, index: Any) -> Any:
        try:
            return super()._read_at(key, index)
        except errors.ShapeMismatch:  # the rows that are asked for may be alike, where others are not
            rows = Route(self, plan(index, self._shape_at(key))).leaves(key)
            if rows is None:
                raise
            return self._shown(rows)

    def _write_at(self, key: str, value: Any, index: Any) -> None:
        if not isinstance(self._look(key), Tensor):
            super()._write_at(key, value, index)
            return
        Route(self, plan(index, self._shape_at(key))).write_leaf(key, writable(value))

    # ---- what only a list of members has

    def insert(self, index: int, tensordict: Any) -> None:
        """Insert a member before a position along the stack dim.

        Args:
            index: the position, as `list.insert` takes it.
            tensordict: a tensordict with as many batch dims as the members.

        Raises:
            RuntimeError: if the stack is locked or the batch dims do not fit.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> stack = lazy_stack([TensorDict({"a": 1})])
            >>> stack.insert(0, TensorDict({"a": 0}))
            >>> stack["a"]
            tensor([0, 1])
        """
        self._gate("insert a member")
        self._check_member(tensordict, self._tensordicts[0], index)
        self._tensordicts.insert(index, tensordict)

    def append(self, tensordict: Any) -> None:
        """Add a member at the end of the stack dim.

        Args:
            tensordict: a tensordict with as many batch dims as the members.

        Raises:
            RuntimeError: if the stack is locked or the batch dims do not fit.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> stack = lazy_stack([TensorDict({"a": 1})])
            >>> stack.append(TensorDict({"a": 2}))
            >>> stack["a"]
            tensor([1, 2])
        """
        self.insert(len(self._tensordicts), tensordict)

    def extend(self, tensordict: Iterable[Any]) -> None:
        """Add several members at the end of the stack dim.

        Args:
            tensordict: an iterable of tensordicts.

        Raises:
            RuntimeError: if the stack is locked or the batch dims do not fit.

        Examples:
            >>> from tensordict import TensorDict, lazy_stack
            >>> stack = lazy_stack([TensorDict({"a": 1})])
            >>> stack.extend([TensorDict({"a": 2}), TensorDict({"a": 3})])
            >>> stack.batch_size
            torch.Size([3])
        """
        members = list(tensordict)
        self._gate("insert members")
        for at, member in enumerate(members, len(self._tensordicts)):
            self._check_member(member, self._tensordicts[0], at)
        self._tensordicts.extend(members)


Core._lazy_kind = LazyStackedTensorDict


LOADERS["lazy"] = LazyStackedTensorDict._open
