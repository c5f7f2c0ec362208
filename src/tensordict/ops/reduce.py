"""Reductions over batch dims, over the features of each row, or over everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from tensordict import dims
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.ops.rows import dress

if TYPE_CHECKING:
    from typing_extensions import Self

Dims: TypeAlias = "int | Sequence[int] | str | None"


def _reduction(name: str, value: str) -> Any:
    """Return a reduction word: over all elements of each leaf, over batch dims, or over the features of each row."""

    def word(self: Any, dim: Dims = None, keepdim: bool = False, **kwargs: Any) -> Any:
        total = kwargs.pop("reduce", None)
        if total:
            return _over_leaves(self, name, dim, keepdim, kwargs)
        if dim is None:
            return self._reduce(lambda v: getattr(v, name)(**kwargs), ())
        if isinstance(dim, str):
            return _over_features(self, name, dim, kwargs)
        over = dims.wrap_all((dim,) if isinstance(dim, int) else dim, self.ndim)
        kwargs["keepdim"] = keepdim
        batch, names = self._meta.batch, self._meta.names
        left = names if keepdim or names is None else dims.drop(names, *over)
        args = over[0] if len(over) == 1 else over
        return self._reduce(lambda v: getattr(v, name)(args, **kwargs), dims.reduced(batch, over, keepdim), left)

    dress(
        word,
        name,
        f"""Return {value} of each leaf.

        Args:
            dim: the batch dim or dims to reduce over; "feature" reduces each row to one number; None reduces all.
            keepdim: keep a reduced batch dim with size one.
            dtype: the dtype of the result, where torch takes one.
            reduce: True reduces over the leaves too, to one tensor.

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
    return word


def _over_features(self: Any, name: str, dim: str, kwargs: dict[str, Any]) -> Any:
    if dim != "feature":
        raise ValueError(f"dim must be batch dims or 'feature', got {dim!r}")
    n = self.ndim

    def call(v: Any) -> Any:
        if isinstance(v, Core):
            return _over_features(v, name, dim, kwargs)
        rows = v.reshape(*v.shape[:n], -1)
        return getattr(rows, name)(n, **kwargs)

    return self._map(call)


def _over_leaves(self: Any, name: str, dim: Dims, keepdim: bool, kwargs: dict[str, Any]) -> Tensor:
    leaves: list[Tensor] = list(self.values(True, True))
    if dim is None:
        return getattr(torch.cat([leaf.reshape(-1) for leaf in leaves]), name)(**kwargs)  # type: ignore[no-any-return]
    if dim == "feature":
        n = self.ndim
        rows = torch.cat([leaf.reshape(*leaf.shape[:n], -1) for leaf in leaves], -1)
        return getattr(rows, name)(n, **kwargs)  # type: ignore[no-any-return]
    parts = list(getattr(self, name)(dim, keepdim, **kwargs).values(True, True))
    stacked = torch.stack(torch.broadcast_tensors(*parts))
    return getattr(stacked, name)(0)  # type: ignore[no-any-return]


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

    def all(self, dim: int | None = None) -> Any:
        """Tell whether all elements are True: one bool, or along a batch dim a tensordict of bools.

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

    def any(self, dim: int | None = None) -> Any:
        """Tell whether any element is True: one bool, or along a batch dim a tensordict of bools.

        Args:
            dim: the batch dim; None (default) for all elements of all leaves.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([True, False])}, [2]).any(dim=0)["x"]
            tensor(True)
        """
        return _logical(self, "any", dim)

    def norm(self, *, dtype: torch.dtype | None = None) -> Self:
        """Return the Euclidean norm of each leaf.

        Args:
            dtype: the dtype to compute in.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.tensor([3.0, 4.0])}, [2]).norm()["x"]
            tensor(5.)
        """
        return self._reduce(lambda v: v.norm(dtype=dtype), ())


def _logical(self: Any, name: str, dim: int | None) -> Any:
    if dim is None:
        return self._fold(lambda v: bool(getattr(v, name)()), all if name == "all" else any)
    d = dims.wrap(dim, self.ndim)
    names = self._meta.names
    return self._reduce(
        lambda v: getattr(v, name)(dim=d), dims.drop(self._meta.batch, d), names and dims.drop(names, d)
    )
