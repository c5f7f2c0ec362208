"""What every node tells of itself: batch size, device, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensordict import errors
from tensordict.aliases import Batch, SizeLike
from tensordict.core.core import Core
from tensordict.meta import Meta, as_batch, as_names


class Facts(Core):
    """Requires: `_meta`, `_stamp`, `_keys`, `_get`. Gives: the properties that words of all families read."""

    @property
    def batch_size(self) -> torch.Size:
        """Return the batch size: the leading dims that all values share; set it to change what counts as batch.

        Raises:
            RuntimeError: when set to sizes that are not the leading dims of every value.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> td = TensorDict({"x": torch.zeros(3, 4)}, [3])
            >>> td.batch_size = [3, 4]
            >>> td.batch_size
            torch.Size([3, 4])
        """
        return torch.Size(self._meta.batch)

    @batch_size.setter
    def batch_size(self, value: SizeLike) -> None:
        batch = as_batch(value)
        self._admits_batch(type(self).__name__, batch, nested=False)
        names = self._meta.names
        if names is not None:
            names = (names + (None,) * len(batch))[: len(batch)]
        self._stamp(Meta(batch, self._meta.device, names))
        for key in self._keys():
            child = self._look(key)
            if isinstance(child, Facts) and child._meta.batch[: len(batch)] != batch:
                self._set(key, self._get(key)._rebatched(batch))

    def _admits_batch(self, key: str, batch: Batch, nested: bool = True) -> None:
        """Raise unless my batch size can be set to this one, or as the child at a key begins with it."""
        own = self._meta.batch
        if nested and own[: len(batch)] == batch:
            return
        if nested and batch[: len(own)] != own:
            raise errors.batch_mismatch(key, batch, own)
        for name in self._keys():
            child = self._look(name)
            if isinstance(child, Facts):
                child._admits_batch(name, batch)
            elif tuple(child.shape[: len(batch)]) != batch:
                raise errors.batch_mismatch(name, batch, tuple(child.shape))

    def _rebatched(self, batch: Batch) -> Any:
        """Return me with another batch size, for a parent that got it; most kinds change in place."""
        self.batch_size = batch
        return self

    @property
    def shape(self) -> torch.Size:
        """Return the batch size.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4)}, [3]).shape
            torch.Size([3])
        """
        return torch.Size(self._meta.batch)

    def size(self, dim: int | None = None) -> Any:
        """Return the batch size, or its size along a dim.

        Args:
            dim: a batch dim, or None.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4)}, [3]).size(0)
            3
        """
        return self.batch_size if dim is None else self.batch_size[dim]

    @property
    def ndim(self) -> int:
        """Return the number of batch dims.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(3, 4)}, [3]).ndim
            1
        """
        return len(self._meta.batch)

    batch_dims = ndim

    def dim(self) -> int:
        """Return the number of batch dims.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, [3]).dim()
            1
        """
        return len(self._meta.batch)

    ndimension = dim

    def numel(self) -> int:
        """Return the number of rows: the product of the batch size, at least one.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, [3, 2]).numel()
            6
        """
        return max(1, self.batch_size.numel())

    @property
    def device(self) -> torch.device | None:
        """Return the device that all values are on, or None when each is where it is.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, device="cpu").device
            device(type='cpu')
        """
        return self._meta.device

    @property
    def names(self) -> list[str | None]:
        """Return the names of the batch dims, None for one without a name; set it to rename them.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, [3, 2], names=["time", None]).names
            ['time', None]
        """
        return list(self._meta.names or (None,) * len(self._meta.batch))

    @names.setter
    def names(self, value: Sequence[str | None] | None) -> None:
        self._stamp(self._meta._replace(names=as_names(value, len(self._meta.batch))))
