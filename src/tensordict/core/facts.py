"""What every node tells of itself: batch size, device, names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import torch

from tensordict import errors
from tensordict.aliases import Batch, Names, SizeLike
from tensordict.core.coerce import shape_of
from tensordict.core.core import Core
from tensordict.meta import Meta, as_batch, as_names

if TYPE_CHECKING:
    from typing_extensions import Self


class Facts(Core):
    """Requires: `_meta`, `_stamp`, `_keys`, `_get`. Gives: the properties that words of all families read."""

    @classmethod
    def _received(cls, node: Any) -> Self:
        """Return a node that was made of something else as this class wants it; a tensorclass wraps it."""
        return node  # type: ignore[no-any-return]

    def _held(self) -> Any:
        """Return what a parent holds of me, and gives back to its users by `_given`."""
        return self

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
        return self._meta.batch

    @batch_size.setter
    def batch_size(self, value: SizeLike) -> None:
        self._give_batch(value)

    def _give_batch(self, value: SizeLike) -> None:
        """Set the batch size; words do, also where a user may not set attributes."""
        batch = as_batch(value)
        self._admits_batch(type(self).__name__, batch, nested=False)
        self._set_batch(batch)

    def _set_batch(self, batch: Batch) -> None:
        """Set a batch size that fits, here and in nested nodes that are shorter."""
        names = self._meta.names
        if names is not None:
            names = (names + (None,) * len(batch))[: len(batch)]
        self._stamp(Meta(batch, self._meta.device, names))
        if self._only_leaves():
            return
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
        fits = None
        for name, child in self._looks():
            if isinstance(child, Facts):
                child._admits_batch(name, batch)
            elif (shape := shape_of(child)) != fits:
                if shape[: len(batch)] != batch:
                    raise errors.batch_mismatch(name, batch, tuple(shape))
                fits = shape

    def _rebatched(self, batch: Batch) -> Any:
        """Return me with another batch size, for a parent that got it; most kinds change in place."""
        self._give_batch(batch)
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
        return self._meta.batch

    @overload
    def size(self, dim: None = None) -> torch.Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> torch.Size | int:
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
        return max(1, self._meta.batch.numel())

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
        self._give_names(value)

    def _give_names(self, value: Sequence[str | None] | None) -> None:
        self._name_dims(as_names(value, len(self._meta.batch)))

    def _name_dims(self, names: Names) -> None:
        """Name the batch dims, here and in nested nodes, which keep the names of dims of their own."""
        self._stamp(self._meta._replace(names=names))
        n = len(self._meta.batch)
        for child in self._nodes():
            if isinstance(child, Facts) and not child._is_non_tensor:
                both = (*(names or (None,) * n), *child.names[n:])
                child._name_dims(both if any(both) else None)

    def refine_names(self, *names: Any) -> Self:
        """Name batch dims that have no name; return self.

        Args:
            *names: one name or None for each batch dim; Ellipsis stands for the dims that are not mentioned.

        Raises:
            RuntimeError: if a dim that has a name would get another.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, [2, 3]).refine_names(..., "time").names
            [None, 'time']
        """
        own = self.names
        if Ellipsis in names:
            at = names.index(Ellipsis)
            tail = len(names) - at - 1
            names = (*names[:at], *own[at : len(own) - tail], *names[at + 1 :])
        wanted = as_names(names, len(own)) or (None,) * len(own)
        for have, want in zip(own, wanted):
            if have is not None and have != want:
                raise RuntimeError(f"cannot refine the names {own} to {list(wanted)}: {have!r} would become {want!r}")
        self._give_names(wanted)
        return self

    def rename(self, *names: str | None, **rename_map: str | None) -> Self:
        """Return the same values with other names of batch dims.

        Args:
            *names: the names of all batch dims.
            **rename_map: old names to new ones.

        Raises:
            RuntimeError: if a name of ``rename_map`` is not there.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, [2], names=["x"]).rename(x="y").names
            ['y']
        """
        renamed: Self = self.clone(False).rename_(*names, **rename_map)  # type: ignore[attr-defined]
        return renamed

    def rename_(self, *names: str | None, **rename_map: str | None) -> Self:
        """Change the names of batch dims; return self. Arguments and errors as for `rename`.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}, [2], names=["x"]).rename_("y").names
            ['y']
        """
        unknown = sorted(set(rename_map) - {name for name in self.names if name is not None})
        if unknown:
            raise RuntimeError(f"there are no batch dims named {unknown}; the names are {self.names}")
        self._give_names(names or [rename_map.get(name, name) if name else name for name in self.names])
        return self
