"""Words that make a node: of a size like this one, of keys, of Python's own structures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tensordict import dims
from tensordict.aliases import NO_DEFAULT, DeviceLike, NestedKey, SizeLike
from tensordict.core.core import Core
from tensordict.core.facts import Facts

if TYPE_CHECKING:
    from typing_extensions import Self


def _new(self: Any, name: str, size: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    n = self.ndim
    device = kwargs.get("device", NO_DEFAULT)
    said = {key: value for key, value in kwargs.items() if value is not NO_DEFAULT and value is not None}

    def call(v: Any) -> Any:
        return getattr(v, name)((*size, *v.shape[n:]), *args, **said)

    made = self._dense()._reduce(call, size)
    return made if device is NO_DEFAULT else made._stamp(made._meta._replace(device=device and torch.device(device)))


class Make(Facts):
    """Requires: `_reduce`, the constructors. Gives: `new_*`, `fromkeys`, `from_*` of Python's own structures."""

    def new_zeros(self, *size: Any, dtype: torch.dtype | None = None, device: Any = NO_DEFAULT) -> Self:
        """Return zeros of another batch size, with the keys and features of this tensordict.

        Args:
            *size: the batch size, as numbers or as one sequence.
            dtype: the dtype of all leaves; None for that of each.
            device: the device; that of each leaf by default.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2, 3)}, [2]).new_zeros(5)["x"].shape
            torch.Size([5, 3])
        """
        return _new(self, "new_zeros", dims.sizes(size), (), {"dtype": dtype, "device": device})  # type: ignore[no-any-return]

    def new_ones(self, *size: Any, dtype: torch.dtype | None = None, device: Any = NO_DEFAULT) -> Self:
        """Return ones of another batch size, with the keys and features of this tensordict; arguments as `new_zeros`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_ones(3)["x"]
            tensor([1., 1., 1.])
        """
        return _new(self, "new_ones", dims.sizes(size), (), {"dtype": dtype, "device": device})  # type: ignore[no-any-return]

    def new_empty(self, *size: Any, dtype: torch.dtype | None = None, device: Any = NO_DEFAULT) -> Self:
        """Return memory of another batch size, not yet written; arguments as `new_zeros`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_empty(3).batch_size
            torch.Size([3])
        """
        return _new(self, "new_empty", dims.sizes(size), (), {"dtype": dtype, "device": device})  # type: ignore[no-any-return]

    def new_full(
        self, size: SizeLike, fill_value: float, *, dtype: torch.dtype | None = None, device: Any = NO_DEFAULT
    ) -> Self:
        """Return a number everywhere, in another batch size.

        Args:
            size: the batch size.
            fill_value: the number.
            dtype: the dtype of all leaves; None for that of each.
            device: the device; that of each leaf by default.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_full([3], 7.0)["x"]
            tensor([7., 7., 7.])
        """
        return _new(self, "new_full", dims.sizes((size,)), (fill_value,), {"dtype": dtype, "device": device})  # type: ignore[no-any-return]

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None, device: Any = NO_DEFAULT) -> Any:
        """Return a copy of data, with the dtypes and devices of this tensordict.

        Args:
            data: a tensordict or a mapping with keys of this tensordict.
            dtype: the dtype of all leaves; None for that of each.
            device: the device; that of each leaf by default.

        Raises:
            KeyError: if a key is not in this tensordict.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_tensor({"x": [1, 2, 3]})["x"]
            tensor([1., 2., 3.])
        """
        found = {}
        said = {} if device is NO_DEFAULT else {"device": device}
        for key, value in data.items():
            mine = self._get(key)
            if isinstance(value, Tensor) and not isinstance(mine, Core):
                found[key] = (
                    value.detach().clone().to(dtype=dtype or mine.dtype, device=said.get("device", mine.device))
                )
            else:
                found[key] = mine.new_tensor(value, dtype=dtype, **said)
        return self._dense_kind(found, data.batch_size if isinstance(data, Facts) else None)

    @classmethod
    def fromkeys(cls, keys: Iterable[NestedKey], value: Any = 0) -> Any:
        """Return a tensordict with the same value under each key.

        Args:
            keys: the keys.
            value: the value.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.fromkeys(["a", ("b", "c")], 1)["b", "c"]
            tensor(1)
        """
        return cls._dense_kind(dict.fromkeys(keys, value))

    @classmethod
    def from_dict(
        cls,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Any:
        """Return a tensordict of a mapping.

        Args:
            input_dict: keys to values; nested mappings become nested tensordicts.
            auto_batch_size: find the longest batch size that all values share.
            batch_size: the batch size.
            device: the device.
            batch_dims: with ``auto_batch_size``, at most so many dims.
            names: the names of the batch dims.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict.from_dict({"x": torch.zeros(3, 4), "y": torch.zeros(3)}, auto_batch_size=True).batch_size
            torch.Size([3])
        """
        node = cls._dense_kind(input_dict, batch_size, device)
        if auto_batch_size or (batch_dims is not None and batch_size is None):
            node.auto_batch_size_(batch_dims)
        if names is not None:
            node.names = names
        return node

    def from_dict_instance(self, input_dict: Mapping[Any, Any], **kwargs: Any) -> Any:
        """Return a tensordict of a mapping; arguments as for `from_dict`.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}).from_dict_instance({"x": 1})["x"]
            tensor(1)
        """
        return self.from_dict(input_dict, **kwargs)

    @classmethod
    def from_list(
        cls, input: Sequence[Any], *, device: DeviceLike = None, names: Any = None, lazy: bool | None = None
    ) -> Any:
        """Return the stack of a list of mappings: dense if their keys and shapes match, lazy otherwise.

        Args:
            input: mappings or tensordicts, one a row.
            device: the device.
            names: the names of the batch dims.
            lazy: True for a lazy stack, False to insist on a dense one.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_list([{"x": 1}, {"x": 2}])["x"]
            tensor([1, 2])
        """
        rows = [row if isinstance(row, Core) else cls._dense_kind(row, None, device) for row in input]
        words = {None: "maybe_dense_stack", True: "lazy_stack", False: "stack"}
        node = getattr(cls._dense_kind, words[lazy])(rows)
        if names is not None:
            node.names = names
        return node

    @classmethod
    def from_tuple(cls, obj: tuple[Any, ...], *, batch_size: SizeLike | None = None, device: DeviceLike = None) -> Any:
        """Return a tensordict of a tuple, the positions being the keys.

        Args:
            obj: the tuple.
            batch_size: the batch size.
            device: the device.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_tuple((1, 2))["1"]
            tensor(2)
        """
        return cls._dense_kind(_structure(obj), batch_size, device)

    @classmethod
    def from_namedtuple(cls, named_tuple: Any, *, batch_size: SizeLike | None = None, device: DeviceLike = None) -> Any:
        """Return a tensordict of a named tuple, the field names being the keys.

        Args:
            named_tuple: the named tuple.
            batch_size: the batch size.
            device: the device.

        Examples:
            >>> import collections
            >>> from tensordict import TensorDict
            >>> TensorDict.from_namedtuple(collections.namedtuple("Point", "x y")(1, 2))["y"]
            tensor(2)
        """
        return cls._dense_kind(_structure(named_tuple), batch_size, device)

    @classmethod
    def from_any(
        cls,
        obj: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: DeviceLike = None,
        batch_size: SizeLike | None = None,
    ) -> Any:
        """Return a tensordict of mappings, named tuples, tuples and dataclasses, nested in any way.

        Args:
            obj: the object; a value that is none of these is returned as a tensor or as it is.
            auto_batch_size: find the longest batch size that all values share.
            batch_dims: with ``auto_batch_size``, at most so many dims.
            device: the device.
            batch_size: the batch size.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_any({"a": (1, {"b": 2})})["a", "1", "b"]
            tensor(2)
        """
        found = _structure(obj)
        if not isinstance(found, dict):
            return found
        return cls.from_dict(
            found, auto_batch_size=auto_batch_size, batch_dims=batch_dims, device=device, batch_size=batch_size
        )


def _structure(obj: Any) -> Any:
    """Return nested mappings, tuples and dataclasses as nested dicts."""
    if isinstance(obj, (Core, type)):
        return obj
    if isinstance(obj, Mapping):
        return {key: _structure(value) for key, value in obj.items()}
    if dataclasses.is_dataclass(obj):
        return {field.name: _structure(getattr(obj, field.name)) for field in dataclasses.fields(obj)}
    if isinstance(obj, tuple):
        names = getattr(obj, "_fields", None) or map(str, range(len(obj)))
        return {name: _structure(value) for name, value in zip(names, obj)}
    return obj
