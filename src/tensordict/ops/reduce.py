"""Reductions over batch dims, over the features of each row, or over everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

import torch
from torch import Tensor

from tensordict import dims
from tensordict.aliases import Batch, Call, Names, NestedKey
from tensordict.core import walk
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.keys import unravel_key_to_tuple
from tensordict.ops.join import into
from tensordict.ops.rows import Reduction, dress, register

if TYPE_CHECKING:
    from typing_extensions import Self

Dims: TypeAlias = "int | Sequence[int] | str | None"
Rekey: TypeAlias = "Callable[[str], NestedKey] | None"


def _reduction(name: str, value: str) -> Reduction:
    """Return a reduction word: over all elements of each leaf, over batch dims, or over the features of each row."""

    def word(self: Any, dim: Dims = None, keepdim: bool = False, *, reduce: bool | None = None, **kwargs: Any) -> Any:
        transform = kwargs.pop("key_transform", None)
        if reduce:
            return _over_leaves(self, name, dim, keepdim, kwargs)
        named = None if dim == () or dim == [] else dim  # no dims are all of them, as in torch
        return _rekeyed(_reduced(self, name, named, keepdim, kwargs), transform)

    dress(
        word,
        name,
        f"""Return {value} of each leaf.

        Args:
            dim: the batch dim or dims to reduce over; "feature" reduces each row to one number; None reduces all.
            keepdim: keep a reduced batch dim with size one.
            reduce: True reduces over the leaves too, to one tensor.
            **kwargs: what torch's word takes, such as ``dtype`` or ``correction``; and ``key_transform``, which is
                called with each key of the result and returns the key, or nested key, that stands for it.

        Raises:
            IndexError: if a dim is not a batch dim.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> x = torch.arange(6.0).view(2, 3)
            >>> td = TensorDict({{"x": x}}, [2])
            >>> torch.equal(td.{name}(dim=0)["x"], x.{name}(0))
            True
        """,
    )
    return cast(Reduction, word)


def _rekeyed(node: Any, transform: Rekey) -> Any:
    """Return a node whose values and nested nodes have the keys that a function gives them."""
    return node if transform is None else node._restructure(partial(_put_anew, transform=transform))


def _put_anew(node: Any, transform: Callable[[str], NestedKey]) -> Any:
    made = node._rekeyed({})
    for key, child in node._raw_pairs():
        path = unravel_key_to_tuple(transform(key))
        if walk.find(made, path) is not None:
            raise KeyError(f"key_transform gives two values the key {path!r}, the second at key {key!r}")
        made.set(path, _rekeyed(child, transform) if isinstance(child, Core) else child)
    return made


def _reduced(self: Any, name: str, dim: Dims, keepdim: bool, kwargs: dict[str, Any]) -> Any:
    """Return a reduction over all elements, over batch dims, or over the features of each row."""
    if dim is None:
        return _over_all(self, name, keepdim, kwargs)
    if isinstance(dim, str):
        if keepdim:
            raise TypeError("keepdim=True says nothing with dim='feature': no batch dim is reduced; leave it out")
        return _over_features(self, name, dim, kwargs)
    over = dims.wrap_all((dim,) if isinstance(dim, int) else dim, self.ndim)
    batch, names = self._meta.batch, self._meta.names
    left = names if keepdim or names is None else dims.drop(names, *over)
    args = over[0] if len(over) == 1 else over
    out = dims.reduced(batch, over, keepdim)
    if not (kwargs or keepdim):
        return self._reduce(lambda v: getattr(v, name)(args), out, left)
    said = {**kwargs, "keepdim": keepdim}
    return self._reduce(lambda v: getattr(v, name)(args, **said), out, left)


def _over_all(self: Any, name: str, keepdim: bool, kwargs: dict[str, Any]) -> Any:
    """Return a reduction over all elements of each leaf; kept dims have size one, those of features too."""
    if not keepdim:
        return self._reduce(lambda v: getattr(v, name)(**kwargs), ())

    def call(v: Any) -> Any:
        if isinstance(v, Core):
            return _over_all(v, name, True, kwargs)
        return getattr(v, name)(**kwargs).reshape((1,) * v.ndim)

    return self._reduce(call, (1,) * self.ndim, self._meta.names)


def _over_features(self: Any, name: str, dim: str, kwargs: dict[str, Any]) -> Any:
    if dim != "feature":
        raise ValueError(f"dim must be batch dims or 'feature', got {dim!r}")
    n = 0 if self._is_unbatched else self.ndim

    def call(v: Any) -> Any:
        if isinstance(v, Core):
            return _over_features(v, name, dim, kwargs)
        return getattr(_rows(v, n), name)(dim=n, **kwargs)

    return self._map(call)


def _rows(leaf: Tensor, n: int) -> Tensor:
    """Return a leaf with one dim after its ``n`` batch dims, also where there are no elements."""
    return leaf.flatten(n) if leaf.ndim > n else leaf.unsqueeze(n)


def _over_leaves(self: Any, name: str, dim: Dims, keepdim: bool, kwargs: dict[str, Any]) -> Tensor:
    """Return a reduction over the leaves too, to one tensor."""
    if not walk.leaves(self):
        raise ValueError(f"{name}(reduce=True) makes one tensor of all leaves, but there are none")
    if dim is None:
        rows, at = torch.cat([leaf.reshape(-1) for leaf in walk.leaves(self)]), 0
    elif isinstance(dim, str):
        n = self.ndim
        rows, at = torch.cat([_rows(leaf, n) for leaf in self.values(True, True)], n), n
    else:
        return _over_dims_and_leaves(self, name, (dim,) if isinstance(dim, int) else tuple(dim), keepdim, kwargs)
    return getattr(rows, name)(dim=at, **kwargs)  # type: ignore[no-any-return]


def _over_dims_and_leaves(self: Any, name: str, dim: tuple[int, ...], keepdim: bool, kwargs: dict[str, Any]) -> Tensor:
    """Return a reduction over batch dims and leaves at once: a deviation of deviations would be something else."""
    over = dims.wrap_all(dim, self.ndim)
    leaves = list(self.values(True, True))
    most, n = max((leaf.ndim for leaf in leaves), default=0), self.ndim
    wide = [leaf.reshape(leaf.shape[:n] + (1,) * (most - leaf.ndim) + leaf.shape[n:]) for leaf in leaves]
    first = (0, *(d + 1 for d in over))
    rows = torch.stack(torch.broadcast_tensors(*wide)).movedim(first, tuple(range(len(first)))).flatten(0, len(over))
    result = getattr(rows, name)(dim=0, **kwargs)
    for d in sorted(over) if keepdim else ():
        result = result.unsqueeze(d)
    return result  # type: ignore[no-any-return]


class Reduce(Facts):
    """Requires: `_reduce`, `_map`, `_fold`. Gives: sums, means, extremes, `all`, `any`, norms."""

    sum = _reduction("sum", "the sum")
    nansum = _reduction("nansum", "the sum, not-a-numbers counted as zero,")
    mean = _reduction("mean", "the mean")
    nanmean = _reduction("nanmean", "the mean of what is a number")
    std = _reduction("std", "the standard deviation")
    var = _reduction("var", "the variance")
    amax = _reduction("amax", "the maximum")
    amin = _reduction("amin", "the minimum")

    @overload
    def prod(
        self,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: Literal[True],
    ) -> Tensor: ...
    @overload
    def prod(
        self,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: Literal[False] | None = None,
    ) -> Self: ...
    def prod(
        self,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
        reduce: bool | None = None,
    ) -> Any:
        """Return the product of each leaf.

        Args:
            dim: the batch dim or dims to reduce over; "feature" reduces each row to one number; None reduces all.
            keepdim: keep a reduced batch dim with size one.
            dtype: the dtype of the result.
            reduce: True reduces over the leaves too, to one tensor.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([2.0, 3.0])}, [2]).prod(dim=0)["x"]
            tensor(6.)
        """
        kwargs: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
        if reduce:
            return _over_leaves(self, "prod", dim, keepdim, kwargs)
        if isinstance(dim, (str, int)) or not dim:
            return _reduced(self, "prod", None if dim == () or dim == [] else dim, keepdim, kwargs)
        result = self  # torch takes one dim at a time
        for d in sorted(dims.wrap_all(dim, self.ndim), reverse=True):
            result = _reduced(result, "prod", d, keepdim, kwargs)
        return result

    def max(
        self, dim: Dims = None, keepdim: bool = False, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Return the maximum of each leaf; along a batch dim, the pair of values and indices.

        Args:
            dim: the batch dim; "feature" for each row; None (default) for all elements.
            keepdim: keep the reduced batch dim with size one.
            reduce: True reduces over the leaves too, to one tensor.
            return_indices: False leaves out the indices.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([2.0, 3.0])}, [2]).max(dim=0).indices["x"]
            tensor(1)
        """
        return _extreme(self, "max", dim, keepdim, reduce, return_indices)

    def min(
        self, dim: Dims = None, keepdim: bool = False, *, reduce: bool | None = None, return_indices: bool = True
    ) -> Any:
        """Return the minimum of each leaf; along a batch dim, the pair of values and indices.

        Args:
            dim: the batch dim; "feature" for each row; None (default) for all elements.
            keepdim: keep the reduced batch dim with size one.
            reduce: True reduces over the leaves too, to one tensor.
            return_indices: False leaves out the indices.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([2.0, 3.0])}, [2]).min(dim=0).values["x"]
            tensor(2.)
        """
        return _extreme(self, "min", dim, keepdim, reduce, return_indices)

    def cummax(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Return the maximum so far along a batch dim, as the pair of values and indices.

        Args:
            dim: the batch dim.
            reduce: True takes the maximum over the leaves too, and returns one tensor.
            return_indices: False leaves out the indices.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([2.0, 1.0, 3.0])}, [3]).cummax(0).values["x"]
            tensor([2., 2., 3.])
        """
        return _cumulative(self, "cummax", dim, reduce, return_indices)

    def cummin(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Return the minimum so far along a batch dim, as the pair of values and indices.

        Args:
            dim: the batch dim.
            reduce: True takes the minimum over the leaves too, and returns one tensor.
            return_indices: False leaves out the indices.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([2.0, 1.0, 3.0])}, [3]).cummin(0).values["x"]
            tensor([2., 1., 1.])
        """
        return _cumulative(self, "cummin", dim, reduce, return_indices)

    def logsumexp(self, dim: Dims = None, keepdim: bool = False, *, out: Any = None) -> Self:
        """Return the logarithm of the sum of exponentials of each leaf.

        Args:
            dim: the batch dim or dims; None (default) for all batch dims.
            keepdim: keep a reduced batch dim with size one.
            out: a tensordict that the result is written to.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).logsumexp(0)["x"]
            tensor(0.6931)
        """
        over = tuple(range(self.ndim)) if dim is None else dim
        return into(out, _reduced(self, "logsumexp", over, keepdim, {}))  # type: ignore[no-any-return]

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Self:
        """Return exponentials that sum to one along a batch dim.

        Args:
            dim: the batch dim.
            dtype: the dtype of the result.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).softmax(0)["x"]
            tensor([0.5000, 0.5000])
        """
        d = dims.wrap(dim, self.ndim)
        return self._reduce(lambda v: v.softmax(d, dtype=dtype), self._meta.batch, self._meta.names)

    @overload
    def quantile(
        self,
        q: float | Tensor,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: Literal[True],
        key_transform: Rekey = None,
    ) -> Tensor: ...
    @overload
    def quantile(
        self,
        q: float | Tensor,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: Literal[False] | None = None,
        key_transform: Rekey = None,
    ) -> Self: ...
    def quantile(
        self,
        q: float | Tensor,
        dim: Dims = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: bool | None = None,
        key_transform: Rekey = None,
    ) -> Any:
        """Return quantiles of each leaf.

        Args:
            q: a probability, or a 1-d tensor of several, which adds a dim in front.
            dim: the batch dim; "feature" for each row; None (default) for all elements.
            keepdim: keep the reduced batch dim with size one.
            interpolation: as `torch.quantile` takes it.
            reduce: True reduces over the leaves too, to one tensor.
            key_transform: called with each key of the result; returns the key, or nested key, that stands for it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([1.0, 2.0, 4.0])}, [3]).quantile(0.5, 0)["x"]
            tensor(2.)
        """
        if reduce:
            every = torch.cat([leaf.reshape(-1) for leaf in walk.leaves(self)])
            return every.quantile(q, interpolation=interpolation)
        if isinstance(dim, str):
            made = _over_features(self, "quantile", dim, {"q": q, "interpolation": interpolation})
        else:
            made = _quantiles(self, q, dim, keepdim, interpolation)
        return _rekeyed(made, key_transform)

    @overload
    def all(self, dim: None = None) -> bool: ...
    @overload
    def all(self, dim: int) -> Self: ...
    def all(self, dim: int | None = None) -> Any:
        """Tell whether all elements are True: one bool, or along a batch dim a tensordict of bools.

        A Python bool depends on values: `torch.compile(fullgraph=True)` refuses it, as ``bool(tensor)``; give it a dim.

        Args:
            dim: the batch dim; None (default) for all elements of all leaves.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.tensor([True, False])}, [2])
            >>> td.all(), td.any()
            (False, True)
        """
        return _logical(self, "all", dim)

    @overload
    def any(self, dim: None = None) -> bool: ...
    @overload
    def any(self, dim: int) -> Self: ...
    def any(self, dim: int | None = None) -> Any:
        """Tell whether any element is True: one bool, or along a batch dim a tensordict of bools.

        A Python bool depends on values: `torch.compile(fullgraph=True)` refuses it, as ``bool(tensor)``; give it a dim.

        Args:
            dim: the batch dim; None (default) for all elements of all leaves.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([True, False])}, [2]).any(dim=0)["x"]
            tensor(True)
        """
        return _logical(self, "any", dim)

    def norm(self, *, out: Any = None, dtype: torch.dtype | None = None, key_transform: Rekey = None) -> Self:
        """Return the Euclidean norm of each leaf.

        Args:
            out: a tensordict that the result is written to.
            dtype: the dtype to compute in.
            key_transform: called with each key of the result; returns the key, or nested key, that stands for it.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([3.0, 4.0])}, [2]).norm()["x"]
            tensor(5.)
        """
        return into(out, _rekeyed(self._reduce(lambda v: v.norm(dtype=dtype), ()), key_transform))  # type: ignore[no-any-return]


def _extreme(self: Any, name: str, dim: Dims, keepdim: bool, reduce: bool | None, return_indices: bool) -> Any:
    if reduce:
        return _over_leaves(self, f"a{name}", dim, keepdim, {})
    if dim is None or isinstance(dim, str):
        return _reduced(self, f"a{name}", dim, keepdim, {})
    if not return_indices:
        return _reduced(self, f"a{name}", dim, keepdim, {})
    d = _one_dim(name, dim, self.ndim)
    batch, names = dims.reduced(self._meta.batch, (d,), keepdim), self._meta.names
    left = names if keepdim or names is None else dims.drop(names, d)
    deeper = partial(_extreme, name=name, dim=d, keepdim=keepdim, reduce=None, return_indices=True)
    return _pair(self, (name, d, keepdim), deeper, batch, left)


def _one_dim(name: str, dim: int | Sequence[int], ndim: int) -> int:
    """Return the one dim of a word that takes no more."""
    over = dims.wrap_all((dim,) if isinstance(dim, int) else dim, ndim)
    if len(over) != 1:
        raise TypeError(f"{name} works along one dim, got {tuple(over)}; amax and amin take several")
    return over[0]


def _cumulative(self: Any, name: str, dim: int, reduce: bool | None, return_indices: bool) -> Any:
    d = dims.wrap(dim, self.ndim)
    deeper = partial(_cumulative, name=name, dim=d, reduce=None, return_indices=True)
    both = _pair(self, (name, d), deeper, self._meta.batch, self._meta.names)
    if reduce:
        return _over_leaves(both.values, f"a{name[3:]}", (), False, {})
    return both if return_indices else both.values


def _pair(self: Any, said: tuple[Any, ...], deeper: Call, batch: Batch, names: Names) -> Any:
    """Return values and indices, as torch's own named pair; `deeper` takes a node that far with few frames."""
    found: list[Any] = []
    name, *arguments = said

    def keep(v: Any) -> Any:
        found.append(deeper(v) if isinstance(v, Core) else getattr(v, name)(*arguments))
        return found[-1].values

    values = self._reduce(keep, batch, names)
    pairs = iter(found)  # children come in the same order again
    indices = self._reduce(lambda v: next(pairs).indices, batch, names)
    kind = getattr(torch.return_types, name)
    return kind((values, indices))


def _quantiles(self: Any, q: float | Tensor, dim: Any, keepdim: bool, interpolation: str) -> Any:
    """Return quantiles over all elements or along a batch dim; several add a dim in front."""
    front = tuple(q.shape) if isinstance(q, Tensor) else ()
    if dim is None:
        batch = (*front, *(1,) * self.ndim) if keepdim else front
        return self._reduce(lambda v: _leaf_quantile(v, q, None, keepdim, interpolation), batch)
    d, names = _one_dim("quantile", dim, self.ndim), self._meta.names
    left = names and (*(None,) * len(front), *(names if keepdim else dims.drop(names, d)))
    batch = (*front, *dims.reduced(self._meta.batch, (d,), keepdim))
    return self._reduce(lambda v: _leaf_quantile(v, q, d, keepdim, interpolation), batch, left)


def _leaf_quantile(v: Any, q: float | Tensor, dim: int | None, keepdim: bool, interpolation: str) -> Any:
    return v.quantile(q, dim, keepdim, interpolation=interpolation)


def _logical(self: Any, name: str, dim: int | None) -> Any:
    if dim is None:
        return self._fold(lambda v: bool(getattr(v, name)()), all if name == "all" else any)
    d = dims.wrap(dim, self.ndim)
    names = self._meta.names
    return self._reduce(
        lambda v: getattr(v, name)(dim=d), dims.drop(self._meta.batch, d), names and dims.drop(names, d)
    )


register("all", "any", "max", "min", "prod", "cummax", "cummin", "logsumexp", "quantile", "softmax")
