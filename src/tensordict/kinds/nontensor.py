"""Non-tensors: any object as a leaf that follows the batch.

NonTensorData is one value for all rows. NonTensorStack is a column: a list of values, and an index tensor of the batch
shape that says which value each row has. Whatever a word does to a tensor, it does to the index tensor, by the same
call; the values are never touched. Words that compute (`abs`, `+`) leave both as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tensordict import dims, errors, settings
from tensordict.aliases import Batch, Call, DeviceLike, Names, Rule, SizeLike
from tensordict.core.core import Core
from tensordict.indexing import Plan, plan
from tensordict.kinds.collection import TensorCollection
from tensordict.meta import Meta, as_batch, as_names
from tensordict.ops.store import LOADERS
from tensordict.storage.base import Record

if TYPE_CHECKING:
    from typing_extensions import Self


class NonTensor(TensorCollection):
    """What both non-tensor kinds share: they compute nothing, and have no keys."""

    _is_non_tensor = True

    def _map(self, call: Call, many: Call | None = None) -> Self:
        return self._fresh()

    def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self:
        return self._fresh()

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        return self

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return combine(())

    def _keys(self) -> tuple[str, ...]:
        return ()

    def _get(self, key: str) -> Any:
        raise errors.missing_key(key, (), type(self).__name__)

    def _set(self, key: str, child: Any) -> None:
        raise TypeError(f"a {type(self).__name__} has no keys, so {key!r} cannot be set in it")

    def numpy(self) -> Any:
        return self._given()

    def _restructure(self, call: Callable[[Any], Any]) -> Any:
        return self

    def _admit(self, plan: Plan, value: Any) -> None:
        return None

    def _dense(self) -> Self:
        return self

    def _lazily(self, items: Sequence[Any], dim: int) -> Any:
        if any(item._meta.batch != self._meta.batch for item in items):
            return self._lazy_kind(*items, stack_dim=dim)
        return self._stack(items, dim)

    def _place(self, room: Any, kind: str, fill: bool) -> Self:
        room.meta = self._record()
        return self._fresh()

    def _adopt(self, placed: Any) -> None:
        return None

    def _take(self, made: Any) -> None:
        self.__dict__.update(made.__dict__)

    def _brief(self, depth: int, level: int) -> str:
        return "column" if isinstance(self, NonTensorStack) else type(self._given()).__name__

    def _rebatched(self, batch: Batch) -> Any:
        return self if self._meta.batch[: len(batch)] == batch else self._widen("", batch)

    def _admits_batch(self, key: str, batch: Batch, nested: bool = True) -> None:
        own = self._meta.batch
        if own[: len(batch)] != batch[: len(own)]:
            raise errors.batch_mismatch(key, batch, own)

    def _settled(self) -> NonTensor:
        """Return me as one value for all rows if that is what I am, so that I can follow to any batch."""
        return self

    def _widen(self, key: str, batch: Batch) -> Any:
        own = self._meta.batch
        return self.reshape(*own, *(1,) * (len(batch) - len(own))).expand(*batch)

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
        if settings.capture_non_tensor_stack() and all(_one_value(item, first) for item in items):
            return first.unsqueeze(dim).expand(*dims.insert(first._meta.batch, dim, len(items)))
        return NonTensorStack._join(items, lambda rows: torch.stack(rows, dim), first._meta.device)

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        first, size = items[0], sum(item._meta.batch[dim] for item in items)
        if all(_one_value(item, first) for item in items):
            return first._same(dims.replaced(first._meta.batch, dim, size))
        return NonTensorStack._join(items, lambda rows: torch.cat(rows, dim), first._meta.device)

    if TYPE_CHECKING:

        def _fresh(self) -> Self: ...
        def _record(self) -> Record: ...
        def _flat(self) -> list[Any]: ...
        def _as_column(self) -> NonTensorStack: ...


@final
class NonTensorData(NonTensor):
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

    def __init__(
        self,
        data: Any,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        names: Sequence[str | None] | None = None,
    ) -> None:
        batch = as_batch(batch_size)
        self._value = data
        self._meta = Meta(batch, None if device is None else torch.device(device), as_names(names, len(batch)))

    @property
    def data(self) -> Any:
        """Return the object.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData("cat").data
            'cat'
        """
        return self._value

    def _same(self, batch: Batch, names: Names = None) -> Self:
        node = object.__new__(NonTensorData)
        node._value = self._value
        node._meta = Meta(batch, self._meta.device, names)
        return node

    def _fresh(self) -> Self:
        return self._same(self._meta.batch, self._meta.names)

    def _move(self, rule: Rule, call: Call) -> Self:
        batch, _, names = self._meta
        return self._same(rule(batch, 1), names and rule(names, None))

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._same(batch, names)

    def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._same(batch, names)

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        return tuple(self._same(batch) for batch in batches)

    def _index(self, plan: Plan) -> Self:
        return self._same(plan.batch)

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta
        return self

    def _write(self, plan: Plan, value: Any) -> None:
        if self._written(plan.items, value) is not self:
            raise TypeError(
                f"cannot write {value!r} to rows of NonTensorData: it holds one value, {self._value!r}, for all rows. "
                f"Write through the tensordict that holds it, or hold a NonTensorStack."
            )

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        theirs = value._flat() if isinstance(value, NonTensor) else [value]
        if all(_same_value(item, self._value) for item in theirs):
            return self
        return self._as_column()._written(items, value)

    def _given(self) -> Any:
        return self._value

    def _record(self) -> Record:
        return Record("non-tensor", self._meta.batch, None, data=self._value)

    @classmethod
    def _open(cls, room: Any) -> Self:
        return cls(room.meta.data, room.meta.batch)

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
        return NonTensorStack._of([self._value], rows, self._meta)

    def tolist(self, **_: Any) -> Any:
        """Return the object, or (nested) lists of it in the shape of the batch.

        Examples:
            >>> from tensordict import NonTensorData
            >>> NonTensorData(1).tolist()
            1
        """
        return self._as_column().tolist() if self._meta.batch else self._value

    def __repr__(self) -> str:
        return f"NonTensorData(data={self._value!r}, batch_size={self.batch_size})"

    @classmethod
    def _of_list(cls, values: list[Any], meta: Meta) -> Any:
        """Return a list as a column: its outer dims are batch dims as far as the parent has any, at least one."""
        return NonTensorStack._of_values(values, max(len(meta.batch), 1), meta.device)


def _one_value(item: Any, first: Any) -> bool:
    """Tell whether two non-tensors are one value each, and the same."""
    one_each = isinstance(item, NonTensorData) and isinstance(first, NonTensorData)
    return one_each and _same_value(item._value, first._value)


def _same_value(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
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

    _values: list[Any]  # only ever appended to, so copies and views share it
    _rows: Tensor

    def __init__(self, *values: Any, stack_dim: int = 0) -> None:
        nodes = [v if isinstance(v, NonTensor) else NonTensorData(v) for v in values]
        made: Any = (
            self._stack(nodes, stack_dim) if nodes else self._of([], torch.zeros(0, dtype=torch.long), Meta((0,)))
        )
        self.__dict__.update(made.__dict__)

    @classmethod
    def _of(cls, values: list[Any], rows: Tensor, meta: Meta) -> Self:
        node = object.__new__(cls)
        node._values, node._rows = values, rows
        node._meta = Meta(tuple(rows.shape), meta.device, meta.names)
        return node

    @classmethod
    def _of_values(cls, values: list[Any], depth: int, device: torch.device | None) -> Self:
        shape, flat = [len(values)], values
        while len(shape) < depth and flat and all(isinstance(v, list) for v in flat) and len({*map(len, flat)}) == 1:
            shape.append(len(flat[0]))
            flat = [item for inner in flat for item in inner]
        rows = torch.arange(len(flat)).reshape(shape)
        return cls._of([_plain(v) for v in flat], rows, Meta((), device))

    @classmethod
    def _join(cls, items: Sequence[Any], join: Callable[[list[Tensor]], Tensor], device: torch.device | None) -> Self:
        values: list[Any] = []
        rows = []
        for item in items:
            column = item._as_column()
            rows.append(column._rows + len(values))
            values += column._values
        return cls._of(values, join(rows), Meta((), device))

    def _again(self, rows: Tensor, names: Names = None) -> Self:
        return self._of(self._values, rows, Meta((), self._meta.device, names))

    def _fresh(self) -> Self:
        return self._again(self._rows.clone(), self._meta.names)

    def _move(self, rule: Rule, call: Call) -> Self:
        names = self._meta.names
        return self._again(call(self._rows), names and rule(names, None))

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._again(call(self._rows), names)

    def _reduce(self, call: Call, batch: Batch, names: Names = None) -> Self:
        # a reduction has no meaning for objects: rows of the result take the first value along the reduced dims
        flat = self._rows.reshape(-1)[:1] if self._rows.numel() else torch.zeros(1, dtype=torch.long)
        return self._again(flat.expand(batch) if batch else flat.reshape(()), names)

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        return tuple(self._again(rows) for rows in call(self._rows))

    def _index(self, plan: Plan) -> Any:
        return self._again(plan.call(self._rows))

    def _stamp(self, meta: Meta) -> Self:
        self._meta = Meta(tuple(self._rows.shape), meta.device, meta.names)
        return self

    def _write(self, plan: Plan, value: Any) -> None:
        self._written(plan.items, value)

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        column = value._as_column() if isinstance(value, NonTensor) else NonTensorData(value)._as_column()
        self._rows[items] = column._rows + len(self._values)
        self._values.extend(column._values)
        return self

    def _given(self) -> Any:
        if not self._meta.batch:
            return self._flat()[0]
        return RowList(self)

    def _record(self) -> Record:
        return Record("non-tensor-stack", self._meta.batch, None, data=self.tolist(), stack_dim=0)

    @classmethod
    def _open(cls, room: Any) -> Any:
        record = room.meta
        depth = len(record.batch) if record.batch is not None else 1
        return cls._of_values(record.data, depth, None)

    def _settled(self) -> NonTensor:
        values = self._values
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
        values = self._values
        return [values[at] for at in self._rows.reshape(-1).tolist()]

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

    stack_dim = 0

    @property
    def data(self) -> Any:
        """Return the objects as lists, like `tolist`.

        Examples:
            >>> from tensordict import NonTensorStack
            >>> NonTensorStack("a", "b").data
            ['a', 'b']
        """
        return self.tolist()

    def __repr__(self) -> str:
        return f"NonTensorStack({self.tolist()!r}, batch_size={self.batch_size})"


def _plain(value: Any) -> Any:
    return value._given() if isinstance(value, NonTensor) else value


class RowList(list[Any]):
    """The rows of a column as a list; assigning to a row of it writes the column."""

    def __init__(self, column: NonTensorStack) -> None:
        super().__init__(column.tolist())
        self._column = column

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(index, value)
        at = plan(index, self._column._meta.batch).items
        self._column._written(at, _plain_column(value) if isinstance(index, slice) else value)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _plain_column(value: Any) -> Any:
    return NonTensorStack._of_values(list(value), 1, None)


Core._non_tensor_kind = NonTensorData
LOADERS["non-tensor"] = NonTensorData._open
LOADERS["non-tensor-stack"] = NonTensorStack._open
