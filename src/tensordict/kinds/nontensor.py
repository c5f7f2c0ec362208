"""Non-tensors: any object as a leaf that follows the batch.

NonTensorData and MetaData are one value for all rows. NonTensorStack is a column: a pool of values, and an index tensor
of the batch shape that says which value each row has. Whatever a word does to a tensor, it does to the index tensor, by
the same call; the values are never touched. Words that compute (`abs`, `+`) leave both as they are.

    NonTensorStack --_rows--> Pool: Strings (two tensors, see storage/strings.py), then objects in a list
"""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tensordict import dims, errors, settings
from tensordict.aliases import Batch, Call, DeviceLike, Names, Rule, SizeLike
from tensordict.core.core import Core
from tensordict.indexing import Plan, whole
from tensordict.kinds.collection import TensorCollection
from tensordict.kinds.pool import LONG, Pool
from tensordict.meta import Meta, as_batch, as_names
from tensordict.ops.listing import RowList
from tensordict.ops.store import LOADERS, node_home
from tensordict.storage.base import Record
from tensordict.storage.folder import Folder
from tensordict.storage.strings import PARTS, Strings

if TYPE_CHECKING:
    from typing_extensions import Self


_ZERO = torch.zeros(1)
_SHOWN = 100  # values in a repr


class Opaque(TensorCollection):
    """What the kinds share that hold something of their own instead of children: they have no keys."""

    _is_non_tensor = True
    _has_rows = False

    def _keys(self) -> tuple[str, ...]:
        return ()

    def _get(self, key: str) -> Any:
        raise errors.missing_key(key, (), type(self).__name__)

    def _set(self, key: str, child: Any) -> None:
        raise TypeError(f"a {type(self).__name__} has no keys, so {key!r} cannot be set in it")

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        return self

    def _admit(self, plan: Plan, value: Any) -> None:
        return None

    def _dense(self) -> Self:
        return self

    def _even(self) -> bool:
        return True

    def _lazily(self, items: Sequence[Any], dim: int) -> Any:
        if any(item._meta.batch != self._meta.batch for item in items):
            return self._lazy_kind(*items, stack_dim=dim)
        return self._stack(items, dim)

    def _take(self, made: Any) -> None:
        self.__dict__.update(made.__dict__)

    def _rebatched(self, batch: Batch) -> Any:
        return self if self._meta.batch[: len(batch)] == batch else self._widen("", batch)

    def _admits_batch(self, key: str, batch: Batch, nested: bool = True) -> None:
        own = self._meta.batch
        if own[: len(batch)] != batch[: len(own)]:
            raise errors.batch_mismatch(key, batch, own)

    def _settled(self) -> Any:
        """Return me as one value for all rows if that is what I am, so that I can follow to any batch."""
        return self

    def _widen(self, key: str, batch: Batch) -> Any:
        own = self._meta.batch
        return self.reshape(*own, *(1,) * (len(batch) - len(own))).expand(*batch)

    def _visited(self, visit: Any, others: tuple[Any, ...], path: tuple[str, ...]) -> Any:
        return self if visit.batch is None else self._rebatched(visit.batch)


class NonTensor(Opaque):
    """What the non-tensor kinds share: they compute nothing."""

    _captures = False  # whether a stack of equal values is always one value

    def _map(self, call: Call, many: Call | None = None) -> Self:
        return self._fresh()

    def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self:
        return self._fresh()

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        return self

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return combine(())

    def numpy(self) -> Any:
        return self._given()

    def update(self, input_dict_or_td: Any = None, *args: Any, **kwargs: Any) -> Self:
        """Take the object, or the objects, of another non-tensor, or an object itself; return self.

        Raises:
            TypeError: if this holds one object for all rows, and the other one a row.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData("a").update(NonTensorData("b")).data
            'b'
        """
        self._write(self._plan(()), input_dict_or_td)
        return self

    def _pour_all(self, value: Any) -> bool:
        self.update(value)
        return True

    def _emptied(self, meta: Meta) -> Any:
        return self._fresh()

    def is_empty(self) -> bool:
        return False

    def to_dict(self, *, retain_none: bool = True, convert_tensors: bool = False, tolist_first: bool = False) -> Any:
        return self.tolist() if tolist_first else self.data

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        return self._fresh()

    def where(
        self, condition: Tensor, other: Any, *, out: Any = None, pad: Any = None, update_batch_size: bool = False
    ) -> Any:
        if not isinstance(other, NonTensor) or _one_value(self, other):
            return self._fresh()
        return NonTensorStack._join(
            [self, other], lambda rows: torch.where(condition, rows[0], rows[1]), self._meta.device
        )

    def _place(self, room: Any, kind: str, fill: bool) -> Any:
        room.meta = self._record()
        return self._housed(self._fresh(), room, kind)

    def _housed(self, node: Any, room: Any, kind: str) -> Any:
        node._home = node_home(room, kind)
        return node

    def _adopt(self, placed: Any) -> None:
        self._meta, self._home = placed._meta, placed._home

    def _writable(self) -> None:
        super()._writable()
        home = self._home
        if home is not None and home.path is not None and (home.kind in ("consolidated", "archive") or home.layout):
            raise PermissionError(
                f"cannot write objects or strings to {home.path!r}: they have no room to grow in a file that "
                f"holds the whole tree; write a clone() of the tensordict, and consolidate it again"
            )

    def _brief(self, depth: int, level: int) -> str:
        return "column" if isinstance(self, NonTensorStack) else type(self._given()).__name__

    def _compare(self, call: Call, other: Any) -> Tensor:
        """Return a bool tensor of the batch shape: which rows compare true by value."""
        theirs = other._flat() if isinstance(other, NonTensor) else [other] * dims.numel(self._meta.batch)
        equal = [bool(call(a, b)) for a, b in zip(self._flat(), theirs, strict=True)]
        return torch.tensor(equal, dtype=torch.bool, device=self._meta.device).reshape(self._meta.batch)

    def __eq__(self, other: Any) -> Any:
        return self._compare(operator.eq, other)

    def __ne__(self, other: Any) -> Any:
        return self._compare(operator.ne, other)

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        first = items[0]
        if any(item._meta.batch != first._meta.batch for item in items):
            raise errors.ShapeMismatch(f"batch sizes differ: {[list(item.batch_size) for item in items]}")
        if (first._captures or settings.capture_non_tensor_stack()) and all(_one_value(item, first) for item in items):
            return first._same(dims.insert(first._meta.batch, dim, len(items)))
        if not first._meta.batch:
            return NonTensorStack._of_values([item._given() for item in items], 1, first._meta.device)
        return NonTensorStack._join(items, lambda rows: torch.stack(rows, dim), first._meta.device)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        first, size = items[0], sum(item._meta.batch[dim] for item in items)
        if all(_one_value(item, first) for item in items):
            return first._same(dims.replaced(first._meta.batch, dim, size))
        return NonTensorStack._join(items, lambda rows: torch.cat(rows, dim), first._meta.device)

    if TYPE_CHECKING:
        data: Any

        def _fresh(self) -> Self: ...
        def _record(self) -> Record: ...
        def _flat(self) -> list[Any]: ...
        def _as_column(self) -> NonTensorStack: ...


class NonTensorDataBase(NonTensor):
    """Be the base of what holds one object for all rows: `NonTensorData` and `MetaData`.

    Examples:
        >>> from tensordict import MetaData, NonTensorDataBase
        >>> isinstance(MetaData("cat"), NonTensorDataBase)
        True
    """

    _kind = "non-tensor"
    _own: Any
    _cell: NonTensorStack | None = None  # the row of a column that I am a view of, without dims

    @property
    def _value(self) -> Any:
        return self._own if self._cell is None else self._cell._flat()[0]

    def __init__(
        self,
        data: Any,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        batch = as_batch(batch_size)
        self._own = data._given() if isinstance(data, NonTensor) else data
        self._meta = Meta(batch, None if device is None else torch.device(device), as_names(names, len(batch)))

    @property
    def data(self) -> Any:
        """Return the object; set it to hold another one.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData("cat").data
            'cat'
        """
        return self._value

    @data.setter
    def data(self, value: Any) -> None:
        self.update(value)

    def _same(self, batch: Batch, names: Names = None) -> Self:
        node = object.__new__(type(self))
        node._own = self._value
        node._meta = Meta(batch, self._meta.device, names)
        return node

    def _fresh(self) -> Self:
        return self._same(self._meta.batch, self._meta.names)

    def _move(self, rule: Rule, call: Call) -> Self:
        batch, _, names = self._meta
        return self._same(rule(batch, 1), names and rule(names, None))

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._same(batch, names)

    _reduce = _resize

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        return tuple(self._same(batch) for batch in batches)

    def _index(self, plan: Plan) -> Self:
        return self._same(plan.batch)

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta
        return self

    def _write(self, plan: Plan, value: Any) -> None:
        made = self._written(plan.items, value)
        if type(made) is not type(self):
            raise TypeError(
                f"cannot write {value!r} to rows of {type(self).__name__}: it holds one value, {self._value!r}, for "
                f"all rows. Write through the tensordict that holds it, or hold a NonTensorStack."
            )
        if made is not self:
            self._take(made)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_own": self._value, "_cell": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "non_tensordict" in state:  # a pickle of the published package
            node = state["tensordict"]
            held = {**dict(node.items()), **state["non_tensordict"]}
            state = {"_own": held["data"], "_meta": node._meta}
        super().__setstate__(state)

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        if self._cell is not None:
            self._cell._written(items, value)
            return self
        if whole(items) and not isinstance(value, NonTensorStack):
            return self._rewritten(value._value if isinstance(value, NonTensorDataBase) else value)
        theirs = value._flat() if isinstance(value, NonTensor) else [value]
        if all(_same_value(item, self._value) for item in theirs):
            return self
        column = self._as_column()
        column._home = self._home
        return column._written(items, value)

    def _rewritten(self, value: Any) -> Self:
        """Return me with another object for all rows, in my files too if I have some."""
        if _same_value(value, self._value):
            return self
        self._writable()
        node = self._fresh()
        node._own, node._home = value, self._home
        home = self._home
        if home is not None and home.kind == "memmap" and home.path is not None and os.path.isdir(home.path):
            node._place(Folder(home.path, "w"), home.kind, True)
        return node

    def _given(self) -> Any:
        return self._value

    def _record(self) -> Record:
        return Record(self._kind, self._meta.batch, None, data=self._value)

    @classmethod
    def _open(cls, room: Any) -> Self:
        node = cls(room.meta.data, room.meta.batch)
        return node._housed(node, room, "memmap")  # type: ignore[no-any-return]

    def _flat(self) -> list[Any]:
        """Return the object once a row, the rows in C order.

        Examples:
            >>> from tensordict import NonTensorData, NonTensorStack
            >>> NonTensorData("a", [2])._flat()
            ['a', 'a']
        """
        return [self._value] * dims.numel(self._meta.batch)

    def _as_column(self) -> NonTensorStack:
        """Return the same rows as a column, so that each can have a value of its own.

        Examples:
            >>> from tensordict import NonTensorData, NonTensorStack
            >>> NonTensorData("a", [2])._as_column().tolist()
            ['a', 'a']
        """
        rows = torch.zeros(self._meta.batch, dtype=torch.long)
        return NonTensorStack._of(Pool([self._value]), rows, self._meta)

    def maybe_to_stack(self) -> Any:
        """Return the same rows as a column with one value a row, or self when there are no batch dims.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData("a", [2]).maybe_to_stack()
            NonTensorStack(['a', 'a'], batch_size=torch.Size([2]))
        """
        return NonTensorStack.from_nontensordata(self)

    def extend(self, tensordict: Any) -> Any:
        """Return a column of my rows and those of another non-tensor, along the first batch dim.

        Args:
            tensordict: a non-tensor with a batch dim.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData("a", [1]).extend(NonTensorData("b", [2])).tolist()
            ['a', 'b', 'b']
        """
        return torch.cat([self, tensordict])  # type: ignore[list-item]

    @classmethod
    def fields(cls) -> tuple[dataclasses.Field[Any], ...]:
        """Return the fields as those of a dataclass: there is one, ``data``.

        Examples:
            >>> from tensordict import NonTensorData
            >>> [field.name for field in NonTensorData.fields()]
            ['data']
        """
        return dataclasses.fields(_Fields)

    @classmethod
    def from_tensordict(
        cls, tensordict: Any, non_tensordict: dict[str, Any] | None = None, safe: bool | None = None
    ) -> Self:
        """Return the non-tensor whose object lies at the key ``"data"`` of a tensordict.

        Args:
            tensordict: gives the batch size, and the object unless ``non_tensordict`` does.
            non_tensordict: a dict with the object at ``"data"``.
            safe: kept for programs that pass it; keys are always checked.

        Raises:
            KeyError: if neither has the key, or one has others.

        Examples:
            >>> from tensordict import NonTensorData, TensorDict
            >>> NonTensorData.from_tensordict(TensorDict({"data": "a"}, [2])).tolist()
            ['a', 'a']
        """
        found = {key: tensordict[key] for key in tensordict._keys()} | (non_tensordict or {})
        if list(found) != ["data"]:
            raise KeyError(f"{cls.__name__} has one field, 'data'; got the keys {sorted(found)}")
        meta = tensordict._meta
        return cls(found["data"], meta.batch, meta.device, meta.names)

    def tolist(self, **_: Any) -> Any:
        """Return the object, or (nested) lists of it in the shape of the batch.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData(1).tolist()
            1
        """
        return self._as_column().tolist() if self._meta.batch else self._value

    def __repr__(self) -> str:
        return f"{type(self).__name__}(data={self._value!r}, batch_size={self.batch_size})"

    @classmethod
    def _of_list(cls, values: list[Any], meta: Meta) -> Any:
        """Return a list as a column: its outer dims are batch dims as far as the parent has any, at least one."""
        return NonTensorStack._of_values(values, max(len(meta.batch), 1), meta.device)


@final
class NonTensorData(NonTensorDataBase):
    """Hold one object as a leaf: a string, None, a dict, or anything else, the same for all rows.

    Args:
        data: the object.
        batch_size: the batch size that it stands for.
        device: kept for consistency with tensors; the object never moves.
        names: one name or None for each batch dim.

    Examples:
        >>> from tensordict import NonTensorData
        >>> label = NonTensorData("cat", batch_size=[2])
        >>> label.data, label.tolist()
        ('cat', ['cat', 'cat'])
    """


@final
class MetaData(NonTensorDataBase):
    """Hold one object that describes all rows: a stack of equal ones stays one, and never becomes a value a row.

    Args:
        data: the object.
        batch_size: the batch size that it stands for.
        device: kept for consistency with tensors; the object never moves.
        names: one name or None for each batch dim.

    Examples:
        >>> import torch
        >>> from tensordict import MetaData
        >>> torch.stack([MetaData("run 1"), MetaData("run 1")])
        MetaData(data='run 1', batch_size=torch.Size([2]))
    """

    _kind = "non-tensor-meta"
    _captures = True


def _one_value(item: Any, first: Any) -> bool:
    """Tell whether two non-tensors are one value each, and the same."""
    one_each = isinstance(item, NonTensorDataBase) and type(item) is type(first)
    return one_each and _same_value(item._value, first._value)


def _same_value(one: Any, other: Any) -> bool:
    try:
        return one is other or (type(one) is type(other) and bool(one == other))
    except Exception:  # objects may refuse to compare; then they are different values
        return False


@final
class NonTensorStack(NonTensor):
    """Hold one object a row: a column of strings, or of anything else.

    Args:
        *values: the objects, or NonTensorData, in order.
        stack_dim: where the new dim stands when the values have batch dims themselves.

    Examples:
        >>> from tensordict import NonTensorStack
        >>> words = NonTensorStack("a", "b", "c")
        >>> words[1:].tolist()
        ['b', 'c']
    """

    _has_rows = True
    _pool: Pool
    _order: Tensor | None  # None as long as nobody asked: row n of the batch, in C order, has value n of the pool
    _root: NonTensorStack | None = None  # the column that lies in a folder, when my rows may be rows of it

    def __init__(self, *values: Any, stack_dim: int = 0) -> None:
        nodes = [v if isinstance(v, NonTensor) else NonTensorData(v) for v in values]
        made: Any = self._stack(nodes, stack_dim) if nodes else self._of(Pool([]), None, Meta((0,)))
        self.__dict__.update(made._as_column().__dict__)

    @classmethod
    def _of(cls, pool: Pool, rows: Tensor | None, meta: Meta) -> Self:
        node = object.__new__(cls)
        node._pool, node._order = pool, rows
        node._meta = meta if rows is None else Meta(tuple(rows.shape), meta.device, meta.names)
        return node

    @classmethod
    def _of_values(cls, values: list[Any], depth: int, device: torch.device | None) -> Self:
        shape, flat = [len(values)], values
        while len(shape) < depth and flat and all(isinstance(v, list) for v in flat) and len({*map(len, flat)}) == 1:
            shape.append(len(flat[0]))
            flat = [item for inner in flat for item in inner]
        return cls._of(Pool.of(flat), None, Meta(tuple(shape), device))

    @classmethod
    def from_nontensordata(cls, non_tensor: Any) -> Any:
        """Return a non-tensor as a column with one value a row, or as it is when there are no batch dims.

        Args:
            non_tensor: a `NonTensorData`; a column comes back as it is.

        Examples:
            >>> from tensordict import NonTensorData, NonTensorStack
            >>> NonTensorStack.from_nontensordata(NonTensorData("a", [2])).tolist()
            ['a', 'a']
        """
        return non_tensor._as_column() if non_tensor._meta.batch else non_tensor

    @classmethod
    def from_list(cls, input: Sequence[Any], **_: Any) -> Any:
        """Return a column of a list of objects; lists in it that are of one length make further batch dims.

        Args:
            input: the objects, one a row, or lists of such.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> NonTensorStack.from_list([["a", "b", "c"], ["d", "e", "f"]]).batch_size
            torch.Size([2, 3])
        """
        return cls._of_values(list(input), sys.maxsize, None)

    def maybe_to_stack(self) -> Self:
        """Return self: it is a column already.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> NonTensorStack("a", "b").maybe_to_stack().tolist()
            ['a', 'b']
        """
        return self

    @property
    def _rows(self) -> Tensor:
        rows = self._order
        if rows is None:
            batch = self._meta.batch
            rows = self._order = torch.arange(dims.numel(batch)).reshape(batch)
        return rows

    @classmethod
    def _join(cls, items: Sequence[Any], join: Callable[[list[Tensor]], Tensor], device: torch.device | None) -> Self:
        columns = [item._as_column() for item in items]
        pool = columns[0]._pool
        if all(column._pool is pool for column in columns):
            return cls._of(pool, join([column._rows for column in columns]), Meta((), device))
        pools, rows, size = [], [], 0
        for column in columns:
            slim = column._slim()
            pools.append(slim._pool)
            rows.append(slim._rows + size)
            size += len(slim._pool)
        return cls._of(Pool.join(pools), join(rows), Meta((), device))

    def _slim(self) -> NonTensorStack:
        """Return the same rows over a pool without values that none of them has, if there may be more than a few."""
        pool, count = self._pool, dims.numel(self._meta.batch)
        if self._order is None:
            return self._of(pool.first(count), None, self._meta)
        return self if count >= len(pool) else self._of(Pool.of(self._flat()), None, self._meta)

    def _again(self, rows: Tensor, names: Names = None) -> Any:
        """Return some of my rows as a column, and a single one as a value, which still writes to me."""
        node = self._of(self._pool, rows, Meta((), self._meta.device, names))
        if self._home is not None:
            node._home, node._root = self._home, self if self._root is None else self._root
        return node if rows.ndim else node._alone()

    def _alone(self) -> NonTensorData:
        value = object.__new__(NonTensorData)
        value._cell, value._meta = self, self._meta
        return value

    def _fresh(self) -> Self:
        return self._of(self._pool, None if self._order is None else self._order.clone(), self._meta)

    def _move(self, rule: Rule, call: Call) -> Any:
        names = self._meta.names
        return self._again(call(self._rows), names and rule(names, None))

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Any:
        return self._again(call(self._rows), names)

    def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Any:
        if batch == self._meta.batch:
            return self._of(self._pool, self._rows.clone(), self._meta._replace(names=names))
        # objects have no sum: the one that all rows have is that of the result, and those that differ leave none
        one: Any = self._settled() if dims.numel(self._meta.batch) else self
        if one is not self:  # no row needs to be looked at
            return one._same(batch, names)
        values = self._flat()
        same = bool(values) and all(_same_value(value, values[0]) for value in values)
        return NonTensorData(values[0] if same else None, batch, self._meta.device, names and list(names))

    def _rearrange(self, call: Call, batch: Batch, names: Names = None) -> Self:
        rows = call(self._rows)
        fresh = call(self._rows + 1) == rows  # new rows, which do not follow the others, have no value
        pool = self._pool  # whether there are such rows is not asked: the compiler could not answer
        if not pool.objects or pool.objects[-1] is not None:
            pool = Pool([*pool.objects, None], pool.strings)
        return self._of(pool, torch.where(fresh, len(pool) - 1, rows), self._meta._replace(names=names))

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Any, ...]:
        return tuple(self._again(rows) for rows in call(self._rows))

    def _index(self, plan: Plan) -> Any:
        if not plan.view:
            node = self._of(self._pool, self._picked(plan), Meta((), self._meta.device))
            return node if plan.batch else node._alone()
        return self._again(plan.call(self._rows))

    def _picked(self, plan: Plan) -> Tensor:
        """Return the rows that an index picks; one index tensor picks of all rows without making them."""
        items, batch = _on_cpu(plan.items), self._meta.batch
        same = all(map(operator.is_, items, plan.items))
        if same and self._order is None and len(batch) == len(items) == 1 and isinstance(items[0], Tensor):
            plan.call(_ZERO.expand(batch))  # raises for rows that are not there
            return items[0] % batch[0]
        return plan.call(self._rows) if same else self._rows[items]

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta._replace(batch=self._meta.batch)
        return self

    def _write(self, plan: Plan, value: Any) -> None:
        rows = isinstance(value, list) and plan.batch and settings.list_to_stack()
        self._written(plan.items, self._of_values(value, len(plan.batch), None) if rows else value)

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        self._writable()
        column = (value if isinstance(value, NonTensor) else NonTensorData(value))._as_column()
        if column._pool is self._pool:
            self._rows[_on_cpu(items)] = column._rows.clone()
        else:
            column = column._slim()
            self._rows[_on_cpu(items)] = column._rows + len(self._pool)
            self._pool.objects.extend(column._pool.take(None))
        self._save()
        return self

    def _save(self) -> None:
        """Write the folder that I lie in anew, if the rows that were written are those of the column in it."""
        root = self if self._root is None else self._root
        home = root._home
        if home is None or home.kind != "memmap" or home.path is None or not os.path.isdir(home.path):
            return
        if root is self or root._rows.untyped_storage().data_ptr() == self._rows.untyped_storage().data_ptr():
            root._place(Folder(home.path, "w"), home.kind, True)

    def _given(self) -> Any:
        return RowList(self) if self._meta.batch else self._flat()[0]

    def _record(self) -> Record:
        return Record("non-tensor-stack", self._meta.batch, None, data=self.tolist(), stack_dim=0)

    def _as_strings(self) -> Strings | None:
        """Return my values in tensors, in the order of the rows, if they are strings, and many."""
        pool = self._pool
        if pool.strings is None:
            return Strings.of(self._flat()) if dims.numel(self._meta.batch) >= LONG else None
        if pool.objects:
            return Strings.of(self._flat())
        rows = None if self._order is None else self._order.reshape(-1)
        same = rows is None or torch.equal(rows, torch.arange(len(pool)))  # made by a reader, and never changed
        return pool.strings if same else pool.strings.pick(rows)  # type: ignore[arg-type]

    def _place(self, room: Any, kind: str, fill: bool) -> Any:
        strings = self._as_strings()
        if strings is None or not room.resident:  # such a store has strings of its own
            return super()._place(room, kind, fill)
        stored = [room.write(name, tensor) for name, tensor in strings.tensors().items()]
        room.meta = Record("strings", self._meta.batch, None)
        return self._housed(self._of(Pool([], strings.moved(*stored)), None, self._meta), room, kind)

    def _adopt(self, placed: Any) -> None:
        super()._adopt(placed)
        self._pool, self._order, self._root = placed._pool, placed._order, None

    @classmethod
    def _open(cls, room: Any) -> Any:
        record, parts = room.meta, room.keys()
        if record.kind != "strings":
            node = cls._of_values(record.data, len(record.batch) if record.batch is not None else 1, None)
            return node._housed(node, room, "memmap")
        strings = Strings(*(room.read(name) for name in PARTS if name in parts or name != "valid"), where=room.path)
        if len(strings) != dims.numel(record.batch):
            raise ValueError(f"{room.path!r} holds {len(strings)} strings for a batch size of {list(record.batch)}")
        node = cls._of(Pool([], strings), None, Meta(record.batch))
        return node._housed(node, room, "memmap")

    def __getstate__(self) -> dict[str, Any]:
        node = self if self._pool.in_place else self._slim()
        state = {**super().__getstate__(), "_pool": node._pool, "_order": node._order, "_root": None}
        if node._order is not None:
            state["_order"] = node._order.clone()  # a view would bring all that it is a view of
        if self._root is not None:
            state["_home"] = None  # a part of what lies there
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "tensordicts" in state:  # a pickle of the published package
            state = NonTensorStack(*state["tensordicts"], stack_dim=state["stack_dim"]).__dict__
        super().__setstate__(state)

    def _settled(self) -> NonTensor:
        values = self._pool.objects if self._pool.strings is None else []
        if not values or not all(_same_value(value, values[0]) for value in values):
            return self
        return NonTensorData(values[0], self._meta.batch, self._meta.device)

    def _flat(self) -> list[Any]:
        """Return the objects, the rows in C order.

        Examples:
            >>> from tensordict import NonTensorData, NonTensorStack
            >>> NonTensorStack("a", "b")._flat()
            ['a', 'b']
        """
        if self._order is None:
            return self._pool.take(None)[: dims.numel(self._meta.batch)]
        return self._pool.take(self._order.reshape(-1))

    def _as_column(self) -> NonTensorStack:
        """Return self.

        Examples:
            >>> from tensordict import NonTensorData, NonTensorStack
            >>> NonTensorStack("a", "b")._as_column().tolist()
            ['a', 'b']
        """
        return self

    def tolist(self, **_: Any) -> Any:
        """Return the objects as (nested) lists in the shape of the batch.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> NonTensorStack("a", "b").tolist()
            ['a', 'b']
        """
        flat = self._flat()
        for size in reversed(self._meta.batch[1:]):
            flat = [flat[at : at + size] for at in range(0, len(flat), size)] if size else []
        return flat if self._meta.batch else flat[0]

    @property
    def tensordicts(self) -> list[Any]:
        """Return one NonTensorData (or stack) a row.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> [row.tolist() for row in NonTensorStack("a", "b").tensordicts]
            ['a', 'b']
        """
        return list(self.unbind(0))

    @property
    def stack_dim(self) -> int:
        """Return the dim along which rows differ, as that of a lazy stack: the first.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> NonTensorStack("a", "b").stack_dim
            0
        """
        return 0

    @property
    def data(self) -> Any:
        """Return the objects as lists, like `tolist`; set it to a list of one object a row.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> NonTensorStack("a", "b").data
            ['a', 'b']
        """
        return self.tolist()

    @data.setter
    def data(self, value: Any) -> None:
        self.update(value)

    def __repr__(self) -> str:
        short = dims.numel(self._meta.batch) <= _SHOWN
        values = repr(self.tolist()) if short else f"[{', '.join(map(repr, self.flatten()[:3]._flat()))}, ...]"
        return f"NonTensorStack({values}, batch_size={self.batch_size})"


def _on_cpu(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the items of an index where rows are, whatever the device of the tensors beside them."""
    return tuple(item.cpu() if isinstance(item, Tensor) and not item.is_cpu else item for item in items)


@dataclasses.dataclass
class _Fields:
    data: Any


Core._non_tensor_kind = NonTensorData
LOADERS["non-tensor"] = NonTensorData._open
LOADERS["non-tensor-meta"] = MetaData._open
LOADERS["non-tensor-stack"] = LOADERS["strings"] = NonTensorStack._open
