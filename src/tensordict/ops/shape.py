"""Words on the batch dims: dims moved, mixed, split; rows read and written by index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch import Tensor

from tensordict import dims, indexing, keys
from tensordict.aliases import Batch
from tensordict.core.coerce import shape_of
from tensordict.core.core import Core, S, implements
from tensordict.core.facts import Facts
from tensordict.core.locks import leads_back
from tensordict.dims import memo
from tensordict.indexing import Plan
from tensordict.ops.join import into
from tensordict.ops.rows import align, register

if TYPE_CHECKING:
    from typing_extensions import Self

F = TypeVar("F", bound="Shape")


class Shape(Facts):
    """Requires: `_move`, `_resize`, `_split`, `_index`, `_write`. Gives: the words on batch dims."""

    # ---- reading and writing by index

    def __len__(self) -> int:
        batch = self._meta.batch
        return batch[0] if batch else 0

    def __iter__(self) -> Iterator[Any]:
        if not self._meta.batch:
            raise TypeError(
                f"a {type(self).__name__} without batch dims cannot be iterated: iterate over its .keys(), .values() "
                f"or .items()"
            )
        return iter(self.unbind(0))

    @overload
    def __getitem__(self, index: str | tuple[str, ...]) -> Any: ...
    @overload
    def __getitem__(self, index: Any) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        if type(index) is str:
            return self._read_one(index)  # type: ignore[attr-defined]
        path = keys.as_path(index) if type(index) is tuple else ()
        if path:
            return self._read_path(path)  # type: ignore[attr-defined]
        batch = self._meta.batch
        try:
            if type(index) is int and batch and -batch[0] <= index < batch[0]:
                return self._row(index)
            return self._index(indexing.plan(index, batch))
        except IndexError as error:
            raise indexing.explain(index, batch, error) from None

    def _row(self, index: int) -> Any:
        """Return one row along the first batch dim; kinds may have a shorter road."""
        return self._index(indexing.plan(index, self._meta.batch))

    def __getitems__(self, rows: Sequence[int]) -> Any:
        """Return a batch of rows with one index operation: what a `DataLoader` calls.

        Args:
            rows: row numbers along the first batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(4)}, [4]).__getitems__([3, 0])["x"]
            tensor([3, 0])
        """
        return self._batch_of(indexing.rows(rows, self._meta.batch))

    def _batch_of(self, plan: Plan) -> Any:
        """Return a batch of rows as a `DataLoader` gets it."""
        return self._index(plan)

    def __setitem__(self, index: Any, value: Any) -> None:
        if type(index) is str or (type(index) is tuple and keys.is_nested_key(index)):
            self.set(index, value)  # type: ignore[attr-defined]
            return
        plan = self._plan(index)
        if isinstance(value, dict):
            value = self._dense_kind(value, written_batch(value, plan.batch))
        if isinstance(value, Core) and value._meta.batch != plan.batch and -1 not in plan.batch:
            value = value.expand(*plan.batch)  # type: ignore[attr-defined]
        self._write(plan, value)

    def _plan(self, index: Any) -> Plan:
        try:
            return indexing.plan(index, self._meta.batch)
        except IndexError as error:
            raise indexing.explain(index, self._meta.batch, error) from None

    # ---- dims moved, inserted, dropped

    def unsqueeze(self, dim: int) -> Self:
        """Return a view with a new batch dim of size one.

        Args:
            dim: where the new dim stands, in ``[-ndim - 1, ndim]``.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 2)}, [3]).unsqueeze(0).batch_size
            torch.Size([1, 3])
        """
        batch = self._meta.batch
        d = dims.wrap(dim, len(batch) + 1)
        return leads_back(self._move(dims.inserting(d), lambda v: v.unsqueeze(d)), self, "reshape", batch)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Return a view without a batch dim of size one, or without all of them.

        Args:
            dim: the dim or dims; one whose size is not one stays. None (default) drops every dim of size one.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(1, 3, 1)}, [1, 3, 1]).squeeze().batch_size
            torch.Size([3])
        """
        batch = self._meta.batch
        wanted = range(len(batch)) if dim is None else (dim,) if isinstance(dim, int) else dim
        gone = tuple([d for d in dims.wrap_all(wanted, len(batch)) if batch[d] == 1])
        said: Any = gone[0] if len(gone) == 1 else gone
        made = self._move(dims.dropping(*gone), lambda v: v.squeeze(said)) if gone else self
        return leads_back(made, self, "reshape", batch)

    def permute(self, *args: Any, dims: Any = None) -> Self:
        """Return a view with the batch dims in another order.

        Args:
            *args: the dims in their new order, as numbers or as one sequence.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4, 2)}, [3, 4]).permute(1, 0).batch_size
            torch.Size([4, 3])
        """
        return _permute(self, _sizes(args, dims))

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Return a view with two batch dims exchanged.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4)}, [3, 4]).transpose(0, 1).batch_size
            torch.Size([4, 3])
        """
        n = len(self._meta.batch)
        a, b = dims.wrap(dim0, n), dims.wrap(dim1, n)
        made = self._move(dims.ordering(dims.swapped(n, a, b)), lambda v: v.transpose(a, b))
        return leads_back(made, self, "transpose", a, b)

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Return a view with two batch dims exchanged: `transpose`, by another name.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4)}, [3, 4]).swapaxes(0, 1).batch_size
            torch.Size([4, 3])
        """
        return self.transpose(axis0, axis1)

    def swapdims(self, axis0: Any = None, axis1: Any = None, *, dim0: Any = None, dim1: Any = None) -> Self:
        """Return a view with two batch dims exchanged: `transpose`, by another name.

        Args:
            axis0: a dim, or ``dim0``, as torch calls it.
            axis1: another dim, or ``dim1``, as torch calls it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4)}, [3, 4]).swapdims(0, 1).batch_size
            torch.Size([4, 3])
        """
        return self.transpose(dim0 if axis0 is None else axis0, dim1 if axis1 is None else axis1)

    def movedim(self, source: Any, destination: Any) -> Self:
        """Return a view with batch dims moved to other places.

        Args:
            source: a dim or a sequence of dims.
            destination: where they go, likewise.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, 3, 4)}, [2, 3, 4]).movedim(0, -1).batch_size
            torch.Size([3, 4, 2])
        """
        n = len(self._meta.batch)
        start = dims.wrap_all((source,) if isinstance(source, int) else source, n)
        end = dims.wrap_all((destination,) if isinstance(destination, int) else destination, n)
        return _permute(self, dims.moved(n, start, end))

    moveaxis = movedim

    def _unpermuted(self, *order: int) -> Self:
        """Return a view with the dims in the order that they had before they were permuted to an order."""
        return _permute(self, [order.index(d) for d in range(len(order))])

    def _follow(self, positions: tuple[int | None, ...]) -> Any:
        """Return a view whose dims are those at ``positions``; None stands for a new dim; others have size one."""
        n = len(self._meta.batch)
        kept = [p for p in positions if p is not None]
        node = self
        for gone in reversed([d for d in range(n) if d not in kept]):
            node = node.squeeze(gone)
        order = [sorted(kept).index(p) for p in kept]
        if order != sorted(order):
            node = _permute(node, order)
        for at, p in enumerate(positions):
            node = node.unsqueeze(at) if p is None else node
        return node

    # ---- dims mixed

    def view(self, *shape: Any, size: Any = None, batch_size: Any = None) -> Self:
        """Return a view with another batch size of as many elements.

        Args:
            *shape: sizes as numbers or as one sequence; one of them may be -1. A dtype views the leaves as that dtype.

        Raises:
            RuntimeError: if the sizes do not fit, or a leaf cannot be viewed so without a copy.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(4, 2)}, [4]).view(2, -1).batch_size
            torch.Size([2, 2])
        """
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            dtype = shape[0]
            return self._map(lambda v: v.view(dtype))
        return _reshaped(self, "view", _sizes(shape, size, batch_size))

    def reshape(self, *args: Any, shape: Any = None, size: Any = None) -> Self:
        """Return the same rows with another batch size of as many elements; a copy only where a view is impossible.

        Args:
            *args: sizes as numbers or as one sequence; one of them may be -1.
            shape: the same, by keyword.
            size: likewise.

        Raises:
            RuntimeError: if the sizes do not fit.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, 3)}, [2, 3]).reshape(-1).batch_size
            torch.Size([6])
        """
        return _reshaped(self, "reshape", _sizes(args, shape, size))

    def flatten(self, start_dim: int | None = None, end_dim: int | None = None, *, inplace: bool = False) -> Self:
        """Return the rows with a span of batch dims made one.

        Args:
            start_dim: the first dim of the span; None for the first of all.
            end_dim: the last dim of the span; None for the last of all.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2, 3, 4)}, [2, 3, 4]).flatten(0, 1).batch_size
            torch.Size([6, 4])
        """
        batch = self._meta.batch
        n = max(len(batch), 1)
        a, b = dims.wrap(start_dim or 0, n), dims.wrap(-1 if end_dim is None else end_dim, n)
        if not batch:
            return _settled(self, self.unsqueeze(0), inplace)
        if a > b:
            raise RuntimeError(f"start_dim {start_dim} comes after end_dim {end_dim} (batch size {list(batch)})")
        names = self._meta.names
        left = names and (*names[:a], None, *names[b + 1 :])
        made = self._resize(lambda v: v.flatten(a, b), dims.flattened(batch, a, b), left) if a < b else self
        return _settled(self, leads_back(made, self, "reshape", batch), inplace)

    def unflatten(self, dim: int, unflattened_size: Any, *, inplace: bool = False) -> Self:
        """Return the rows with one batch dim made several.

        Args:
            dim: the batch dim.
            unflattened_size: the sizes that it becomes; one of them may be -1.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(6)}, [6]).unflatten(0, (2, 3)).batch_size
            torch.Size([2, 3])
        """
        batch, names = self._meta.batch, self._meta.names
        d = dims.wrap(dim, len(batch))
        inner = dims.infer(tuple(unflattened_size), batch[d])
        left = names and (*names[:d], *(None,) * len(inner), *names[d + 1 :])
        made = self._resize(lambda v: v.unflatten(d, inner), (*batch[:d], *inner, *batch[d + 1 :]), left)
        return _settled(self, leads_back(made, self, "reshape", batch), inplace)

    def expand(self, *args: Any, size: Any = None) -> Self:
        """Return a view with dims of size one repeated without a copy, and new dims in front.

        Args:
            *args: the new batch size, as numbers or as one sequence; -1 keeps a size.
            size: the same, by keyword.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(1, 5)}, [1]).expand(4, 3).batch_size
            torch.Size([4, 3])
        """
        batch, names = self._meta.batch, self._meta.names
        n = len(batch)
        out = dims.expand(batch, _sizes(args, size))
        left = names and (None,) * (len(out) - n) + names
        full = memo(lambda own: (*out, *own[n:]))
        return self._resize(
            (lambda v: v.expand(*full(v.shape))) if out else (lambda v: v.expand(v.shape[n:])), out, left
        )

    def broadcast_to(self, *args: Any, shape: Any = None, size: Any = None) -> Self:
        """Return a view expanded to a batch size: `expand`, by another name.

        Args:
            *args: the new batch size, as numbers or as one sequence; -1 keeps a size.
            shape: the same, by keyword.
            size: likewise.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(1)}, [1]).broadcast_to([4, 3]).batch_size
            torch.Size([4, 3])
        """
        return self.expand(_sizes(args, shape, size))

    def expand_as(self, other: Any) -> Self:
        """Return a view expanded to the batch size of another.

        Args:
            other: a tensordict or a tensor, whose shape is taken.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(1)}, [1]).expand_as(torch.zeros(4, 3)).batch_size
            torch.Size([4, 3])
        """
        return self.expand(*other.shape)

    # ---- one to many

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return one view for each row along a batch dim.

        Args:
            dim: the batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> [int(row["x"]) for row in TensorDict({"x": torch.arange(3)}, [3]).unbind(0)]
            [0, 1, 2]
        """
        batch = self._meta.batch
        d = dims.wrap(dim, len(batch))
        return self._split(lambda v: v.unbind(d), (dims.drop(batch, d),) * batch[d], d)

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Return views of consecutive rows.

        Args:
            split_size: the rows of each view (the last may be smaller), or a list with the size of each.
            dim: the batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> [len(part) for part in TensorDict({"x": torch.arange(5)}, [5]).split(2)]
            [2, 2, 1]
        """
        batch = self._meta.batch
        d = dims.wrap(dim, len(batch))
        sizes = dims.split_sizes(batch[d], split_size)
        batches = [dims.replaced(batch, d, size) for size in sizes]
        said: Any = split_size if isinstance(split_size, int) else sizes
        # torch's `split` of a tensor takes a detour through Python, the word for a list of sizes does not
        return self._split(
            lambda v: v.split_with_sizes(sizes, d) if isinstance(v, Tensor) else v.split(said, d), batches, d
        )

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Return at most a number of views of consecutive rows, equal in size but for the last.

        Args:
            chunks: how many.
            dim: the batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> [len(part) for part in TensorDict({"x": torch.arange(5)}, [5]).chunk(2)]
            [3, 2]
        """
        if chunks < 1:
            raise ValueError(f"chunks must be at least 1, got {chunks}")
        size = self._meta.batch[dims.wrap(dim, len(self._meta.batch))]
        return self.split(max(-(-size // chunks), 1), dim) if size else self.split([0] * chunks, dim)

    def narrow(self, dim: int, start: int, length: int) -> Self:
        """Return a view of consecutive rows along a batch dim.

        Args:
            dim: the batch dim.
            start: the first row; negative ones count from the end.
            length: how many rows.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(5)}, [5]).narrow(0, 1, 2)["x"]
            tensor([1, 2])
        """
        batch = self._meta.batch
        d = dims.wrap(dim, len(batch))
        first = start + batch[d] if start < 0 else start
        if first < 0 or length < 0 or first + length > batch[d]:
            raise RuntimeError(f"rows {start} to {start + length} exceed dim {dim} of size {batch[d]}")
        return self[(slice(None),) * d + (slice(first, first + length),)]  # type: ignore[no-any-return]

    def index_select(self, dim: int, index: Tensor) -> Self:
        """Return the rows that an index tensor names, along a batch dim.

        Args:
            dim: the batch dim.
            index: a 1-d integer tensor of row numbers.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(4)}, [4]).index_select(0, torch.tensor([3, 1]))["x"]
            tensor([3, 1])
        """
        batch = self._meta.batch
        d = dims.wrap(dim, len(batch))
        items = (slice(None),) * d + (index,)
        out = dims.replaced(batch, d, index.shape[0])
        plan = Plan(lambda v: v.index_select(d, index), items, out, tuple(range(len(batch))), False, d)
        return self._index(plan)._apart()

    def gather(self, dim: int, index: Tensor, out: Any = None, *, inplace: bool = False) -> Self:
        """Return for each position of an index tensor the row that it names along a batch dim.

        Args:
            dim: the batch dim.
            index: an integer tensor with as many dims as the batch.
            out: a tensordict that the result is written to.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.arange(4).view(2, 2)}, [2, 2])
            >>> td.gather(1, torch.tensor([[0], [1]]))["x"]
            tensor([[0],
                    [3]])
        """
        n = len(self._meta.batch)
        d = dims.wrap(dim, n)
        if index.ndim != n:
            raise RuntimeError(
                f"gather expects an index with {n} dims, one for each batch dim, got {list(index.shape)}"
            )
        wide = memo(lambda own: align(index, len(own)).expand(*index.shape, *own[n:]))

        def call(v: Any) -> Any:
            if isinstance(v, Core):
                return v.gather(d, index) if v.ndim == n else _gather_rows(v, d, index)  # type: ignore[attr-defined]
            return v.gather(d, wide(v.shape))

        made = self._resize(call, tuple(index.shape), self._meta.names)._apart()
        return into(out, _settled(self, made, inplace))  # type: ignore[no-any-return]

    def flip(self, *dims_: Any, dims: Any = None) -> Self:
        """Return the rows in reverse order along batch dims.

        Args:
            dims: a dim or several.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(3)}, [3]).flip(0)["x"]
            tensor([2, 1, 0])
        """
        return _flip(self, _sizes(dims_, dims))

    def roll(self, shifts: Any, dims: Any = None, *, inplace: bool = False) -> Self:
        """Return the rows shifted along batch dims, those that fall off coming in at the other end.

        Args:
            shifts: by how many rows, a number or one for each dim.
            dims: the dim or dims; None rolls the flattened batch.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(3)}, [3]).roll(1, 0)["x"]
            tensor([2, 0, 1])
        """
        return _settled(self, _roll(self, shifts, dims), inplace)

    def repeat_interleave(
        self, repeats: Any, dim: int | None = None, *, output_size: int | None = None, inplace: bool = False
    ) -> Self:
        """Return each row repeated, next to itself.

        Args:
            repeats: how often, a number or a tensor with one number a row.
            dim: the batch dim; None flattens the batch first.
            output_size: the size of the result along the dim, when it is known.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(2)}, [2]).repeat_interleave(2, dim=0)["x"]
            tensor([0, 0, 1, 1])
        """
        if dim is None or (not self.ndim and dim in (0, -1)):
            return _settled(self, self.flatten().repeat_interleave(repeats, 0, output_size=output_size), inplace)
        size = self._meta.batch[dims.wrap(dim, self.ndim)]
        times = repeats if isinstance(repeats, Tensor) else torch.tensor(repeats)
        rows = torch.arange(size).repeat_interleave(times.to("cpu"), 0, output_size=output_size)
        made = self.index_select(dim, rows if self._meta.device is None else rows.to(self._meta.device))
        return _settled(self, made, inplace)

    def repeat(self, *repeats: Any, inplace: bool = False) -> Self:
        """Return the rows repeated along each batch dim.

        Args:
            *repeats: how often, one number for each batch dim, and before those one for each new dim in front.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(2)}, [2]).repeat(2)["x"]
            tensor([0, 1, 0, 1])
        """
        times, batch, n = _sizes(repeats), self._meta.batch, self.ndim
        if len(times) < n:
            raise ValueError(f"expected one number for each of the {n} batch dims or more, got {list(times)}")
        new = len(times) - n
        out = tuple(size * by for size, by in zip((*(1,) * new, *batch), times, strict=True))
        names = self._meta.names and (*(None,) * new, *self._meta.names)
        made = self._resize(lambda v: v.repeat((*times, *(1,) * (v.ndim - n))), out, names)
        return _settled(self, made._apart(), inplace)

    def atleast_1d(self) -> Self:
        """Return a view with at least one batch dim; new ones have size one.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": 1}).atleast_1d().batch_size
            torch.Size([1])
        """
        return _at_least(self, torch.atleast_1d)

    def atleast_2d(self) -> Self:
        """Return a view with at least two batch dims; new ones have size one.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": [1, 2, 3]}, [3]).atleast_2d().batch_size
            torch.Size([1, 3])
        """
        return _at_least(self, torch.atleast_2d)

    def atleast_3d(self) -> Self:
        """Return a view with at least three batch dims, where `torch.atleast_3d` puts them.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": [1, 2, 3]}, [3]).atleast_3d().batch_size
            torch.Size([1, 3, 1])
        """
        return _at_least(self, torch.atleast_3d)

    def fliplr(self) -> Self:
        """Return the rows in reverse order along the second batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(4).view(2, 2)}, [2, 2]).fliplr()["x"].tolist()
            [[1, 0], [3, 2]]
        """
        return self.flip(1)

    def flipud(self) -> Self:
        """Return the rows in reverse order along the first batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(3)}, [3]).flipud()["x"]
            tensor([2, 1, 0])
        """
        return self.flip(0)

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Return the rows rotated by right angles in the plane of two batch dims.

        Args:
            k: how many right angles, from the first dim towards the second.
            dims: the two dims.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(4).view(2, 2)}, [2, 2]).rot90()["x"].tolist()
            [[1, 3], [0, 2]]
        """
        return _rotated(self, k, dims)

    def tile(self, *times: Any, dims: Sequence[int] | None = None) -> Self:
        """Return the rows repeated along each batch dim; missing numbers in front are one.

        Args:
            *times: how often, one number for each of the last batch dims, or more than there are.
            dims: the same as one sequence.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(2)}, [2]).tile((2,))["x"]
            tensor([0, 1, 0, 1])
        """
        wanted = _sizes(times, dims)
        return self.repeat(*(1,) * (self.ndim - len(wanted)), *wanted)

    def masked_select(self, mask: Tensor, *, inplace: bool = False) -> Self:
        """Return the rows of a mask, along one dim in place of the dims of the mask.

        Args:
            mask: a bool tensor over the leading batch dims.
            inplace: put the result in the place of my own values and batch size, and return self.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.arange(3)}, [3]).masked_select(torch.tensor([True, False, True]))["x"]
            tensor([0, 2])
        """
        return _settled(self, self[mask]._apart(), inplace)

    def pad(self, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True) -> Self:
        """Return the rows with padding before and after them along batch dims.

        Args:
            pad_size: the rows before and after, a pair for each batch dim from the first.
            value: the number to pad with.
            inplace: put the result in the place of my own values and batch size, and return self.
            safe: kept for programs that pass it; the sizes are checked in any case.

        Raises:
            RuntimeError: if there are more pairs than batch dims, or half a pair.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2)}, [2]).pad([0, 1], value=9.0)["x"]
            tensor([1., 1., 9.])
        """
        return _settled(self, _padded(self, pad_size, value), inplace)

    def _take(self, made: Any) -> None:
        """Take the values and the batch of a result of mine; nested nodes stay the objects that they are."""
        self._stamp(made._meta)
        for key, child in made._raw_pairs():
            mine: Any = self._get(key) if key in self._keys() else None
            if isinstance(child, Shape) and type(mine) is type(child) and not child._is_non_tensor:
                mine._take(child)
            else:
                self._set(key, child)

    def to_lazystack(self, dim: int = 0) -> Any:
        """Return a lazy stack of the rows along a batch dim, which are views.

        Args:
            dim: the batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> type(TensorDict({"x": torch.zeros(2)}, [2]).to_lazystack()).__name__
            'LazyStackedTensorDict'
        """
        d = dims.wrap(dim, self.ndim)
        rows = self.unbind(d)
        return rows[0]._lazily(rows, d)

    def tensor_split(self, indices_or_sections: Any, dim: int = 0) -> tuple[Self, ...]:
        """Return views of consecutive rows, cut into sections or at given rows.

        Args:
            indices_or_sections: a number of sections that need not divide the size, or the rows at which to cut.
            dim: the batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> [len(part) for part in TensorDict({"x": torch.arange(5)}, [5]).tensor_split(3)]
            [2, 2, 1]
        """
        d = dims.wrap(dim, self.ndim)
        parts = torch.empty(self._meta.batch[d], 0).tensor_split(indices_or_sections, 0)
        return self.split([len(part) for part in parts], d)


def _settled(self: F, made: F, inplace: bool) -> F:
    """Return a result, or with ``inplace`` me after I took its values and its batch."""
    if not inplace:
        return made
    _need_open(self)
    self._take(made)
    return self


def _need_open(node: Any) -> None:
    node._gate("change values and batch size in place")
    for below in node._nodes():
        _need_open(below)


def _sizes(args: Sequence[Any], *named: Any) -> tuple[int, ...]:
    """Return sizes or dims given one by one, as one sequence, or under one of several names."""
    return dims.sizes(args or [value for value in named if value is not None])


def _permute(self: S, order: Sequence[int]) -> S:
    n = len(self._meta.batch)
    wanted = dims.wrap_all(order, n)
    if len(wanted) != n:
        raise RuntimeError(f"permute expects {n} dims, one for each batch dim, got {list(order)}")
    full = memo(lambda ndim: (*wanted, *range(n, ndim)))
    made = self._move(dims.ordering(wanted), (lambda v: v.permute(*full(v.ndim))) if wanted else (lambda v: v))
    return leads_back(made, self, "_unpermuted", *wanted)


def _reshaped(self: S, name: str, shape: Sequence[int]) -> S:
    batch = self._meta.batch
    n, out = len(batch), dims.infer(shape, dims.numel(batch))
    if out == batch:
        return leads_back(self, self, "reshape", batch)
    if out:  # sizes one by one are read faster than a tuple of them, but there may be none
        full = memo(lambda own: (*out, *own[n:]))
        made = self._resize(lambda v: getattr(v, name)(*full(v.shape)), out)
    else:
        made = self._resize(lambda v: getattr(v, name)(v.shape[n:]), out)
    return leads_back(made, self, "reshape", batch)


def _flip(self: S, over: Sequence[int]) -> S:
    wrapped = dims.wrap_all(over, len(self._meta.batch))
    return self._resize(lambda v: v.flip(wrapped), self._meta.batch, self._meta.names)._apart()


def _roll(self: F, shifts: Any, over: Any) -> F:
    if over is None:
        return _roll_all(self, shifts, self.ndim)
    wrapped = dims.wrap_all((over,) if isinstance(over, int) else over, self.ndim)
    return self._resize(lambda v: v.roll(shifts, wrapped), self._meta.batch, self._meta.names)._apart()


def _roll_all(self: F, shifts: Any, n: int) -> F:
    """Roll the first ``n`` dims as one."""

    def call(v: Any) -> Any:
        if isinstance(v, Core):
            return _roll_all(v, shifts, n)  # type: ignore[type-var]
        return v.reshape(-1, *v.shape[n:]).roll(shifts, 0).reshape(v.shape) if v.numel() else v.clone()

    return self._resize(call, self._meta.batch, self._meta.names)._apart()


def _at_least(self: F, function: Any) -> F:
    """Return a view with the dims that torch gives to a tensor of this batch size."""
    own = torch.empty(tuple(range(2, self.ndim + 2)), device="meta")  # no size is one, so ones are new dims
    node = self
    for at, size in enumerate(function(own).shape):
        node = node.unsqueeze(at) if size == 1 else node
    return node


def _rotated(self: F, k: int, plane: Sequence[int]) -> F:
    a, b = dims.wrap_all(plane, self.ndim)
    if k % 4 == 2:
        return self.flip(a, b)
    if k % 4 == 0:
        return self.clone()  # type: ignore[attr-defined,no-any-return]
    turned = self.transpose(a, b)
    return turned.flip(a if k % 4 == 1 else b)


def _padded(self: F, pad_size: Sequence[int], value: float) -> F:
    batch = self._meta.batch
    if len(pad_size) % 2 or len(pad_size) > 2 * len(batch):
        raise RuntimeError(
            f"pad_size must hold a pair of numbers for each of at most {len(batch)} batch dims, got {list(pad_size)}"
        )
    pairs = [(pad_size[at], pad_size[at + 1]) for at in range(0, len(pad_size), 2)]
    pairs += [(0, 0)] * (len(batch) - len(pairs))
    out = tuple(before + size + after for size, (before, after) in zip(batch, pairs))
    flat = [number for pair in reversed(pairs) for number in pair]

    def call(v: Any) -> Any:
        if isinstance(v, Core):
            return v.pad(pad_size, value)  # type: ignore[attr-defined]
        return torch.nn.functional.pad(v, [0, 0] * (v.ndim - len(batch)) + flat, value=value)

    return self._rearrange(call, out, self._meta.names)


def _gather_rows(node: Any, dim: int, index: Tensor) -> Any:
    """Gather a node that has more batch dims than the index."""
    extra = node.shape[index.ndim :]
    return node.gather(dim, index.reshape(*index.shape, *(1,) * len(extra)).expand(*index.shape, *extra))


def written_batch(value: Mapping[Any, Any], batch: Batch) -> Batch:
    """Return the batch size of a dict that is written at an index: the whole one when its values have it, else none."""
    return batch if all(_has_batch(v, batch) for v in value.values()) else ()


def _has_batch(value: Any, batch: Batch) -> bool:
    if isinstance(value, Mapping):
        return all(_has_batch(v, batch) for v in value.values())
    if isinstance(value, (bool, int, float, complex)):  # one number is written to all rows
        return not batch
    return not isinstance(value, (Tensor, Facts)) or tuple(shape_of(value)[: len(batch)]) == batch


register(
    *"unsqueeze squeeze permute transpose swapaxes swapdims movedim moveaxis reshape flatten".split(),
    *"broadcast_to unbind split chunk tensor_split narrow index_select gather masked_select numel".split(),
    *"flip fliplr flipud roll rot90 tile repeat_interleave atleast_1d atleast_2d atleast_3d".split(),
)
implements(torch.unflatten)(lambda node, dim, sizes: node.unflatten(dim, sizes))
