"""Words that make a node: of a size like this one, of keys, of Python's own structures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tensordict import dims
from tensordict.aliases import NO_DEFAULT, DeviceLike, NestedKey, SizeLike
from tensordict.core import coerce
from tensordict.core.core import Core
from tensordict.core.facts import Facts
from tensordict.meta import Meta, as_batch

if TYPE_CHECKING:
    from typing_extensions import Self

M = TypeVar("M", bound="Make")


class _Said(NamedTuple):
    """What is said to torch's own `new_*` of each leaf."""

    dtype: torch.dtype | None
    device: Any
    requires_grad: bool = False
    layout: torch.layout = torch.strided
    pin_memory: bool | None = None

    def options(self) -> dict[str, Any]:
        """Return what differs from the leaf's own."""
        said = {name: value for name, value in self._asdict().items() if value is not NO_DEFAULT and value}
        return said if self.layout is not torch.strided else {k: v for k, v in said.items() if k != "layout"}


def _new(self: M, name: str, size: tuple[int, ...], said: _Said, *fill: Any) -> M:
    if self._is_non_tensor and not self._is_unbatched:  # new rows of a column have no value
        return self._rearrange(lambda v: v.new_zeros(size), size)
    n, options = self.ndim, said.options()
    made: Any = self._dense()._reduce(lambda v: getattr(v, name)((*size, *v.shape[n:]), *fill, **options), size)
    if said.device is not NO_DEFAULT:
        made._stamp(made._meta._replace(device=said.device and torch.device(said.device)))
    return made  # type: ignore[no-any-return]


def _like_leaf(leaf: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Return a copy of a value, by the options of torch's `new_*`."""
    made = leaf.new_empty(value.shape, **{**options, "requires_grad": False}).copy_(value)
    return made.requires_grad_(options.get("requires_grad", False))


class Make(Facts):
    """Requires: `_reduce`, the constructors. Gives: `new_*`, `fromkeys`, `from_*` of Python's own structures."""

    def new_zeros(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: Any = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return zeros of another batch size, with the keys and features of this tensordict.

        Args:
            *size: the batch size, as numbers or as one sequence.
            dtype: the dtype of all leaves; None for that of each.
            device: the device; that of each leaf by default.
            requires_grad: the leaves require gradients.
            layout: of the leaves.
            pin_memory: put the leaves in page-locked memory.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.ones(2, 3)}, [2]).new_zeros(5)["x"].shape
            torch.Size([5, 3])
        """
        said = _Said(dtype, device, requires_grad, layout, pin_memory)
        return _new(self, "new_zeros", dims.sizes(size), said)

    def new_ones(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: Any = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return ones of another batch size, with the keys and features of this tensordict; arguments as `new_zeros`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_ones(3)["x"]
            tensor([1., 1., 1.])
        """
        said = _Said(dtype, device, requires_grad, layout, pin_memory)
        return _new(self, "new_ones", dims.sizes(size), said)

    def new_empty(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: Any = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return memory of another batch size, not yet written; arguments as `new_zeros`.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_empty(3).batch_size
            torch.Size([3])
        """
        said = _Said(dtype, device, requires_grad, layout, pin_memory)
        return _new(self, "new_empty", dims.sizes(size), said)

    def new_full(
        self,
        size: SizeLike,
        fill_value: float,
        *,
        dtype: torch.dtype | None = None,
        device: Any = NO_DEFAULT,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return a number everywhere, in another batch size.

        Args:
            size: the batch size.
            fill_value: the number.
            dtype: the dtype of all leaves; None for that of each.
            device: the device; that of each leaf by default.
            requires_grad: the leaves require gradients.
            layout: of the leaves.
            pin_memory: put the leaves in page-locked memory.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_full([3], 7.0)["x"]
            tensor([7., 7., 7.])
        """
        said = _Said(dtype, device, requires_grad, layout, pin_memory)
        return _new(self, "new_full", dims.sizes((size,)), said, fill_value)

    def new_tensor(
        self,
        data: Any,
        *,
        dtype: torch.dtype | None = None,
        device: Any = NO_DEFAULT,
        requires_grad: bool = False,
        pin_memory: bool | None = None,
    ) -> Self:
        """Return a copy of data, with the dtypes and devices of this tensordict.

        Args:
            data: a tensordict or a mapping with keys of this tensordict; anything else is the value of every leaf.
            dtype: the dtype of all leaves; None for that of each.
            device: the device; that of each leaf by default.
            requires_grad: the leaves require gradients.
            pin_memory: put the leaves in page-locked memory.

        Raises:
            KeyError: if a key is not in this tensordict.

        Examples:
            >>> import torch
            >>> from tensordict import TensorDict
            >>> TensorDict({"x": torch.zeros(2)}, [2]).new_tensor({"x": [1, 2, 3]})["x"]
            tensor([1., 2., 3.])
        """
        options = _Said(dtype, device, requires_grad, pin_memory=pin_memory).options()
        batch = data.batch_size if isinstance(data, Facts) else None
        if not isinstance(data, (Mapping, Facts)):
            batch = torch.as_tensor(data).shape
            data = {key: data for key, mine in self._raw_pairs() if not getattr(mine, "_is_non_tensor", False)}
        found = {}
        for key, value in data.items():
            mine = self._get(key)
            if getattr(mine, "_is_non_tensor", False):
                found[key] = value
            elif isinstance(value, Tensor) and not isinstance(mine, Core):  # torch's word warns of a tensor
                found[key] = _like_leaf(mine, value.detach(), **options)
            else:
                found[key] = mine.new_tensor(value, **options)
        return self._received(self._dense_kind(found, batch))

    @classmethod
    def fromkeys(cls, keys: Iterable[NestedKey], value: Any = 0) -> Self:
        """Return a tensordict with the same value under each key.

        Args:
            keys: the keys.
            value: the value.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.fromkeys(["a", ("b", "c")], 1)["b", "c"]
            tensor(1)
        """
        return cls._received(cls._dense_kind(dict.fromkeys(keys, value)))

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
    ) -> Self:
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
            node._give_names(names)
        return cls._received(node)

    def from_dict_instance(
        self,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
    ) -> Self:
        """Return a tensordict of a mapping, of the class of this one; arguments as for `from_dict`.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict({}).from_dict_instance({"x": 1})["x"]
            tensor(1)
        """
        return self.from_dict(
            input_dict,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )

    @classmethod
    def from_list(
        cls,
        input: Sequence[Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: SizeLike | None = None,
        device: DeviceLike = None,
        batch_dims: int | None = None,
        names: Sequence[str | None] | None = None,
        lazy: bool | None = None,
    ) -> Self:
        """Return the stack of a list of mappings: dense if their keys and shapes match, lazy otherwise.

        Args:
            input: mappings or tensordicts, one a row.
            auto_batch_size: find the longest batch size that the values of each row share.
            batch_size: the batch size of the result, which begins with the number of rows.
            device: the device.
            batch_dims: with ``auto_batch_size``, at most so many dims of the result.
            names: the names of the batch dims.
            lazy: True for a lazy stack, False to insist on a dense one.

        Raises:
            ValueError: if ``batch_size`` does not begin with the number of rows.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_list([{"x": 1}, {"x": 2}])["x"]
            tensor([1, 2])
        """
        batch = None if batch_size is None else as_batch(batch_size)
        if batch is not None and batch[:1] != (len(input),):
            raise ValueError(f"batch_size must begin with the number of rows, {len(input)}, got {list(batch)}")
        inner = batch and batch[1:]
        rows: list[Any] = [row if isinstance(row, Core) else cls._dense_kind(row, inner, device) for row in input]
        if auto_batch_size or (batch_dims is not None and batch is None):
            for row in rows:
                row.auto_batch_size_(None if batch_dims is None else batch_dims - 1)
        words = {None: "maybe_dense_stack", True: "lazy_stack", False: "stack"}
        node = getattr(cls._dense_kind, words[lazy])(rows)
        if names is not None:
            node._give_names(names)
        return cls._received(node)

    @classmethod
    def from_tuple(
        cls,
        obj: tuple[Any, ...],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: DeviceLike = None,
        batch_size: SizeLike | None = None,
    ) -> Self:
        """Return a tensordict of a tuple, the positions being the keys.

        Args:
            obj: the tuple.
            auto_batch_size: find the longest batch size that all values share.
            batch_dims: with ``auto_batch_size``, at most so many dims.
            device: the device.
            batch_size: the batch size.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_tuple((1, 2))["1"]
            tensor(2)
        """
        return _made(cls, obj, auto_batch_size, batch_dims, device, batch_size)  # type: ignore[no-any-return]

    @classmethod
    def from_namedtuple(
        cls,
        named_tuple: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: DeviceLike = None,
        batch_size: SizeLike | None = None,
    ) -> Self:
        """Return a tensordict of a named tuple, the field names being the keys.

        Args:
            named_tuple: the named tuple.
            auto_batch_size: find the longest batch size that all values share.
            batch_dims: with ``auto_batch_size``, at most so many dims.
            device: the device.
            batch_size: the batch size.

        Examples:
            >>> import collections
            >>> from tensordict import TensorDict
            >>> TensorDict.from_namedtuple(collections.namedtuple("Point", "x y")(1, 2))["y"]
            tensor(2)
        """
        return _made(cls, named_tuple, auto_batch_size, batch_dims, device, batch_size)  # type: ignore[no-any-return]

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
            obj: the object. A list becomes a tensor, a lazy stack or a stack of non-tensors, as it does under a key; a
                value that is none of these is returned as it is.
            auto_batch_size: find the longest batch size that all values share.
            batch_dims: with ``auto_batch_size``, at most so many dims.
            device: the device.
            batch_size: the batch size.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_any({"a": (1, {"b": 2})})["a", "1", "b"]
            tensor(2)
        """
        return _made(cls, obj, auto_batch_size, batch_dims, device, batch_size)

    @classmethod
    def from_dataclass(
        cls,
        dataclass: Any,
        *,
        dest_cls: Any = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        as_tensorclass: bool = False,
        device: DeviceLike = None,
        batch_size: SizeLike | None = None,
    ) -> Any:
        """Return a tensordict of an instance of a dataclass, the field names being the keys.

        Args:
            dataclass: the instance; with ``as_tensorclass`` a dataclass too, whose tensorclass is returned.
            dest_cls: with ``as_tensorclass``, the tensorclass to make.
            auto_batch_size: find the longest batch size that all values share.
            batch_dims: with ``auto_batch_size``, at most so many dims.
            as_tensorclass: return a tensorclass that derives from the dataclass, see `tensordict.from_dataclass`.
            device: the device.
            batch_size: the batch size.

        Raises:
            TypeError: if it is no instance of a dataclass.

        Examples:
            >>> import dataclasses
            >>> from tensordict import TensorDict
            >>> Point = dataclasses.make_dataclass("Point", ["x", "y"])
            >>> TensorDict.from_dataclass(Point(1, 2))["y"]
            tensor(2)
        """
        said = (auto_batch_size, batch_dims, device, batch_size)
        if as_tensorclass:
            names = ("auto_batch_size", "batch_dims", "device", "batch_size")
            return cls._typed_kind(dataclass, dest_cls=dest_cls, **dict(zip(names, said)))
        if isinstance(dataclass, (type, Core)) or not dataclasses.is_dataclass(dataclass):
            raise TypeError(
                f"from_dataclass expects an instance of a dataclass, got {dataclass!r}; as_tensorclass=True takes "
                f"a dataclass too"
            )
        return _made(cls, dataclass, *said)

    @classmethod
    def from_pytree(
        cls,
        pytree: Any,
        *,
        batch_size: SizeLike | None = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
    ) -> Any:
        """Return a tensordict of nested lists, tuples, named tuples and dicts, which `to_pytree` gives back.

        Args:
            pytree: the structure; a value that is none of these is returned as it is.
            batch_size: the batch size.
            auto_batch_size: find the longest batch size that all values share.
            batch_dims: with ``auto_batch_size``, at most so many dims.

        Examples:
            >>> from tensordict import TensorDict
            >>> td = TensorDict.from_pytree({"a": [1, (2, 3)]})
            >>> td["a", "1", "0"], td.to_pytree()
            (tensor(2), {'a': [tensor(1), (tensor(2), tensor(3))]})
        """
        return _made(cls, _marked(pytree), auto_batch_size, batch_dims, None, batch_size)

    def to_pytree(self) -> Any:
        """Return the lists, tuples and dicts that `from_pytree` was given; any other tensordict as it is.

        Examples:
            >>> from tensordict import TensorDict
            >>> TensorDict.from_pytree((1, [2])).to_pytree()
            (tensor(1), [tensor(2)])
        """
        if self._is_non_tensor:
            return self._given()
        if _PYTREE not in self._keys():
            return self
        kind = self._get(_PYTREE)._given()
        found = {
            key: child.to_pytree() if isinstance(child, Make) else self._shown(child)
            for key, child in self._raw_pairs()
            if key != _PYTREE
        }
        if issubclass(kind, dict):
            return kind(found)
        values = [found[str(at)] for at in range(len(found))] if not hasattr(kind, "_fields") else found.values()
        return kind(*values) if hasattr(kind, "_fields") else kind(values)


_PYTREE = "_pytree_type"


def _made(cls: Any, obj: Any, auto_batch_size: bool, batch_dims: int | None, device: Any, batch_size: Any) -> Any:
    """Return the tensordict of an object, or an object that has no parts as it is."""
    found = _structure(obj)
    if isinstance(found, list):
        found = coerce.convert(found, Meta((), None if device is None else torch.device(device)))
    if not isinstance(found, dict):
        return cls._received(found) if isinstance(found, Core) else found
    maker = cls._dense_kind if cls._moves is False else cls  # what lies in a file needs its name
    return maker.from_dict(
        found, auto_batch_size=auto_batch_size, batch_dims=batch_dims, device=device, batch_size=batch_size
    )


def _marked(tree: Any) -> Any:
    """Return nested lists, tuples and dicts as dicts that name the class that they were."""
    if isinstance(tree, Mapping):
        parts = {key: _marked(value) for key, value in tree.items()}
    elif isinstance(tree, (list, tuple)):
        names = getattr(tree, "_fields", None) or map(str, range(len(tree)))
        parts = {name: _marked(value) for name, value in zip(names, tree)}
    else:
        return tree
    return {**parts, _PYTREE: type(tree)}


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
