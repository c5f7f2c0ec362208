"""Unbatched tensors: a tensor that all rows share, as a leaf of a node with any batch size.

    td["u"] = UnbatchedTensor(t) --door--> Unbatched(t, batch) --td["u"]--> UnbatchedTensor(t)

Inside, it is a kind: words on dims change its batch size only, words that compute are said to the tensor. What users
hold is a tensor, which knows that it has no batch dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tensordict import dims, errors
from tensordict.aliases import Batch, Call, Names, Rule, SizeLike
from tensordict.core.core import PRESENTED
from tensordict.indexing import Plan, whole
from tensordict.kinds.nontensor import Opaque
from tensordict.meta import Meta, as_batch
from tensordict.ops.describe import brief
from tensordict.ops.store import LOADERS, node_home
from tensordict.storage.base import Record
from tensordict.storage.sent import Packed

if TYPE_CHECKING:
    from typing_extensions import Self


class UnbatchedTensor(Tensor):
    """Hold a tensor that is the same for all rows of the tensordict that it is set in.

    Indexing and shape words of the tensordict leave it as it is, words that compute are said to it, and a stack of
    equal ones is one. In itself it is an ordinary tensor; what is computed from unbatched tensors alone is one too.

    Args:
        data: a tensor, or what `torch.as_tensor` takes.
        batch_size: the batch size that it stands for; a tensordict gives it its own.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, UnbatchedTensor
        >>> td = TensorDict({"x": torch.zeros(4, 2), "scale": UnbatchedTensor([1.0, 2.0, 3.0])}, [4])
        >>> td[1:3]["scale"], td[1:3].get("scale").batch_size
        (UnbatchedTensor([1., 2., 3.]), torch.Size([2]))
    """

    _batch: Batch = ()

    def __new__(cls, data: Any, batch_size: SizeLike | None = None) -> UnbatchedTensor:
        return _presented(torch.as_tensor(data).as_subclass(Tensor), as_batch(batch_size))

    def __init__(self, data: Any, batch_size: SizeLike | None = None) -> None:
        """Do nothing: `__new__` has made it."""

    @property
    def batch_size(self) -> torch.Size:
        """The batch size that it stands for: that of the tensordict that it was read from."""
        return torch.Size(self._batch)

    @batch_size.setter
    def batch_size(self, value: SizeLike) -> None:
        self._batch = as_batch(value)

    def _held(self, meta: Meta) -> Unbatched:
        """Return me as a child of a node that has this meta."""
        return Unbatched(self.as_subclass(Tensor), meta)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # with a value a row beside it, the result has rows, and an index must reach them
        if all(_has_no_rows(arg) for arg in (*args, *(kwargs or {}).values())):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _has_no_rows(arg: Any) -> bool:
    if isinstance(arg, (list, tuple)):
        return all(map(_has_no_rows, arg))
    return not isinstance(arg, Tensor) or isinstance(arg, UnbatchedTensor) or not arg.ndim


def _presented(tensor: Tensor, batch: Batch) -> UnbatchedTensor:
    shown = tensor.as_subclass(UnbatchedTensor)
    shown._batch = batch
    return shown


@final
class Unbatched(Opaque):
    """A tensor with a batch size that it does not have itself: what `UnbatchedTensor` is inside a node."""

    _is_unbatched = True
    _tensor: Tensor

    def __init__(self, tensor: Tensor, meta: Meta) -> None:
        self._tensor, self._meta = tensor, meta
        PRESENTED.add(Unbatched)  # not before there is one: nobody else looks for them

    def _same(self, batch: Batch, names: Names = None) -> Self:
        return self._with(self._tensor, batch, names)

    def _with(self, tensor: Tensor, batch: Batch, names: Names = None) -> Self:
        node = object.__new__(Unbatched)
        node._tensor, node._meta = tensor, Meta(batch, self._meta.device and tensor.device, names)
        return node

    def _map(self, call: Call, many: Call | None = None) -> Self:
        return self._with(call(self._tensor), self._meta.batch, self._meta.names)

    def _zip(self, call: Call, others: tuple[Any, ...], many: Call | None = None) -> Self:
        if all(isinstance(other, Unbatched) or other.numel() == 1 for other in others):
            return self._map(lambda v: call(v, *map(_beside, others)))
        return call(self._spread(), *map(self._aligned, others))  # type: ignore[no-any-return]

    def _aligned(self, other: Any) -> Tensor:
        """Return what each row is computed with, its dims beside those of the tensor once a row."""
        if isinstance(other, Unbatched):
            return other._spread()
        lacking = len(self._meta.batch) + self._tensor.ndim - other.ndim
        return other.reshape(*other.shape, *(1,) * lacking)  # type: ignore[no-any-return]

    def _each(self, call: Call, others: tuple[Any, ...] = (), many: Call | None = None) -> Self:
        call(self._tensor, *map(_beside, others))
        return self

    def _match(self, trial: Any, others: tuple[Any, ...] = ()) -> None:
        parts = list(map(_beside, others))
        for part in parts:
            if part.ndim and part.shape != self._tensor.shape:
                raise self._unlike(part)
        trial("", self._tensor, *parts)

    def _move(self, rule: Rule, call: Call) -> Self:
        batch, _, names = self._meta
        return self._same(rule(batch, 1), names and rule(names, None))

    def _resize(self, call: Call, batch: Batch, names: Names = None) -> Self:
        return self._same(batch, names)

    _reduce = _resize

    def _split(self, call: Call, batches: Sequence[Batch], dim: int) -> tuple[Self, ...]:
        return tuple(self._same(batch) for batch in batches)

    def _fold(self, call: Call, combine: Callable[[Iterable[Any]], Any]) -> Any:
        return combine((call(self._tensor),))

    def _index(self, plan: Plan) -> Self:
        return self._same(plan.batch)

    def _stamp(self, meta: Meta) -> Self:
        self._meta = meta
        return self

    def _widen(self, key: str, batch: Batch) -> Self:
        return self._same(batch)

    _rebatched = _same

    def _admits_batch(self, key: str, batch: Batch, nested: bool = True) -> None:
        """Raise nothing: any batch size fits."""

    def _visited(self, visit: Any, others: tuple[Any, ...], path: tuple[str, ...]) -> Any:
        beside = [_beside(other) if isinstance(other, (Unbatched, Tensor)) else other for other in others]
        result = visit.call(path, [self._tensor, *beside])
        if visit.in_place:
            if result is not None and result is not self._tensor:
                self._tensor.copy_(result)
            return self
        if not isinstance(result, Tensor):
            return result
        return self._with(result, self._meta.batch if visit.batch is None else visit.batch)

    def _admit(self, plan: Plan, value: Any) -> None:
        theirs = value._tensor if isinstance(value, Unbatched) else value
        if not isinstance(value, Unbatched) or theirs.shape != self._tensor.shape:
            raise self._unlike(theirs)
        if self._home is not None and self._home.kind != "memory" and not whole(plan.items) and not _equal(self, value):
            raise RuntimeError(
                f"an unbatched tensor is one for all rows, so a row cannot have another one where it is stored "
                f"({self._home.kind}); write a clone() of the tensordict"
            )

    def _unlike(self, value: Any) -> RuntimeError:
        return errors.ShapeMismatch(
            f"expected an unbatched tensor of shape {list(self._tensor.shape)}, got {value!r}; set the key anew to "
            f"give it another shape"
        )

    def _written(self, items: tuple[Any, ...], value: Any) -> Any:
        """Write rows; where one gets a tensor of its own, return a tensor for each row."""
        self._writable()
        if whole(items):
            self._tensor.copy_(value._tensor)
        if _equal(self, value):
            return self
        rows = self._spread().clone()
        rows[items] = value._tensor
        return rows

    def _spread(self) -> Tensor:
        """Return the tensor once a row."""
        return self._tensor.expand(*self._meta.batch, *self._tensor.shape)

    def _given(self) -> UnbatchedTensor:
        return _presented(self._tensor, self._meta.batch)

    _entry = _given

    def _brief(self, depth: int, level: int) -> str:
        return brief(self._tensor, 0)

    @classmethod
    def _stack(cls, items: Sequence[Any], dim: int) -> Any:
        batch = dims.insert(items[0]._meta.batch, dim, len(items))
        return _joined(items, batch, lambda parts: torch.stack(parts, dim))

    @classmethod
    def _cat(cls, items: Sequence[Any], dim: int) -> Any:
        batch = dims.replaced(items[0]._meta.batch, dim, sum(item._meta.batch[dim] for item in items))
        return _joined(items, batch, lambda parts: torch.cat(parts, dim))

    def _place(self, room: Any, kind: str, fill: bool) -> Self:
        shape, dtype = tuple(self._tensor.shape), self._tensor.dtype
        leaf = room.write("data", self._tensor) if fill else room.create("data", shape, dtype)
        room.meta = Record("unbatched", self._meta.batch, None)
        node = self._with(leaf, self._meta.batch, self._meta.names)
        node._home = node_home(room, kind)
        return node

    def _adopt(self, placed: Any) -> None:
        self._tensor, self._meta, self._home = placed._tensor, placed._meta, placed._home

    @classmethod
    def _open(cls, room: Any) -> Self:
        node = cls(room.read("data"), Meta(room.meta.batch))
        node._home = node_home(room, "memmap")
        return node

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_tensor": Packed({"": self._tensor})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        PRESENTED.add(Unbatched)
        super().__setstate__({**state, "_tensor": state["_tensor"][""]})


def _beside(other: Any) -> Tensor:
    """Return what the tensor is computed with: another unbatched one, or a number in a tensor."""
    if isinstance(other, Unbatched):
        return other._tensor
    if isinstance(other, Tensor) and other.numel() == 1:
        return other.reshape(())
    raise TypeError(
        f"an unbatched tensor is one for all rows and cannot be combined with a value a row, got {other!r}; "
        f"exclude() it, or set a tensor with a value for each row in its place"
    )


def _equal(one: Unbatched, other: Any) -> bool:
    a, b = one._tensor, other._tensor
    return a is b or (a.dtype is b.dtype and a.device == b.device and torch.equal(a, b))


def _joined(items: Sequence[Any], batch: Batch, join: Callable[[list[Tensor]], Tensor]) -> Any:
    """Return unbatched tensors as one if they are equal, or else as a tensor with a value for each row."""
    first = items[0]
    if not all(isinstance(item, Unbatched) for item in items):
        raise TypeError(f"cannot join unbatched tensors and others, got {[type(item).__name__ for item in items]}")
    if all(_equal(first, item) for item in items):
        return first._same(batch)
    shapes = sorted({tuple(item._tensor.shape) for item in items})
    if len(shapes) > 1:
        raise errors.ShapeMismatch(f"cannot join unbatched tensors of different shapes: {list(map(list, shapes))}")
    return join([item._spread() for item in items])


LOADERS["unbatched"] = Unbatched._open
