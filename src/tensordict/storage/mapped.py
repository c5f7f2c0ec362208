"""The tensor that a user is handed for a mapped leaf."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from tensordict.storage.base import byte_count, view
from tensordict.storage.guard import frozen, guarded, read_only, refuse_write
from tensordict.storage.memmap import (
    allocate_anonymous,
    attach,
    copy_leaf,
    home_of,
    leaf_of,
    lies_at,
    new_leaf,
)
from tensordict.storage.memory import block
from tensordict.storage.ragged import Parts, whole
from tensordict.storage.sent import Handle, handle, restore

Path = str | os.PathLike[str]

_VIEWS = frozenset(["__getitem__", "unbind", "split", "chunk"])


class MemoryMappedTensor(torch.Tensor):
    """Hold a tensor whose memory is a file, so that processes can share it and it may exceed the memory.

    Indexing, ``unbind``, ``split`` and ``chunk`` keep the class where they return a view of the file, and so does every
    view of a file that was opened with ``mode="r"``, which cannot be written; other operations return a plain tensor.
    Pickling sends the name of the file and which part of it, whatever the size; a deep copy is plain, in memory.

    Args:
        source: what to copy: a tensor, or what `torch.as_tensor` takes.
        dtype: the dtype of the copy; that of `source` by default.
        shape: a shape to broadcast to.
        filename: the file to write; a temporary file that goes with its last tensor by default.

    Examples:
        >>> from tensordict import MemoryMappedTensor
        >>> m = MemoryMappedTensor([0.0, 1.5, 3.0])
        >>> m[1:]
        MemoryMappedTensor([1.5000, 3.0000])
        >>> m + 1
        tensor([1.0000, 2.5000, 4.0000])
    """

    def __new__(
        cls,
        source: Any,
        *,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        filename: Path | None = None,
    ) -> MemoryMappedTensor:
        return cls.from_tensor(torch.as_tensor(source, dtype=dtype), filename=filename, shape=shape)

    # --- making

    @classmethod
    def from_tensor(
        cls,
        input: Tensor,
        *,
        filename: Path | None = None,
        existsok: bool = False,
        copy_existing: bool = False,
        copy_data: bool = True,
        shape: Sequence[int] | None = None,
    ) -> MemoryMappedTensor:
        """Copy a tensor into a file and map it.

        Args:
            input: the tensor to copy. One that is mapped already comes back as it is, without a copy.
            filename: the file to write; a temporary file by default.
            existsok: replace a file that is there.
            copy_existing: copy `input` even if it is mapped already.
            copy_data: when false, only shape and dtype of `input` count, and the file is all zeros.
            shape: a shape to broadcast `input` to.

        Raises:
            RuntimeError: the file exists, `input` is mapped from another file, or it requires gradients.
            OSError: there is too little space.
        """
        if not isinstance(input, Tensor):
            raise TypeError(f"expected a tensor, got {type(input).__name__}; convert it with torch.as_tensor first")
        if input.requires_grad:
            raise RuntimeError("a tensor that requires gradients cannot be memory-mapped; detach it first")
        path = None if filename is None else os.path.abspath(filename)
        home = home_of(input)
        if home is not None and not copy_existing:
            if path is None or lies_at(input, path):
                return input.as_subclass(cls)
            raise RuntimeError(
                f"the tensor is mapped from {home.path!r} already; pass copy_existing=True to copy it to {path!r}"
            )
        source = input if shape is None else input.expand(tuple(shape))
        if not copy_data:
            return _blank(cls, tuple(source.shape), source.dtype, path, existsok)
        if path is None:
            plain = source.as_subclass(Tensor) if home is None else source.clone()
            return block([plain], allocate_anonymous)[0].as_subclass(cls)
        _require_free(path, existsok)
        return copy_leaf(path, source).as_subclass(cls)

    @classmethod
    def from_filename(
        cls,
        filename: Path,
        dtype: torch.dtype,
        shape: Sequence[int],
        index: Any = None,
        mode: str | None = None,
    ) -> MemoryMappedTensor:
        """Map a file that is there.

        Args:
            filename: the file; it must hold exactly the bytes of a contiguous tensor of this dtype and shape.
            index: when given, the tensor is indexed with it; an index that copies gives a tensor in a temporary file.
            mode: ``"r+"`` (the default) writes to the file; ``"r"`` refuses in-place writes.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is too short or too long; the message gives the bytes expected and found.
        """
        shape = tuple(shape)
        storage = attach(os.path.abspath(filename), byte_count(shape, dtype), mode or "r+")
        leaf = leaf_of(storage, 0, shape, dtype)
        if index is not None:
            leaf = leaf[index]
            if home_of(leaf) is None:
                (leaf,) = block([leaf], allocate_anonymous)
        return leaf.as_subclass(cls)

    @classmethod
    def from_storage(
        cls,
        storage: torch.UntypedStorage | torch.TypedStorage,
        *,
        dtype: torch.dtype | None = None,
        shape: Sequence[int] | None = None,
        index: Any = None,
        filename: Path | None = None,
    ) -> MemoryMappedTensor:
        """Return a tensor over a mapped storage, or over a copy of any other storage in a file.

        Args:
            storage: where the bytes are, from its beginning.
            dtype: how to read them; by default the dtype of a typed storage, or the default dtype.
            shape: the shape; by default one dim over the whole storage.
            index: when given, the tensor is indexed with it.
            filename: the file to copy to; a temporary file by default.

        Raises:
            ValueError: the storage is too small for the shape.
        """
        if isinstance(storage, torch.TypedStorage):
            dtype = dtype or storage.dtype
            raw: torch.UntypedStorage = storage.untyped()
        else:
            raw = storage
        dtype = dtype or torch.get_default_dtype()
        shape = (raw.nbytes() // dtype.itemsize,) if shape is None else tuple(shape)
        if byte_count(shape, dtype) > raw.nbytes():
            raise ValueError(f"{list(shape)} of {dtype} takes {byte_count(shape, dtype)} bytes, got {raw.nbytes()}")
        leaf = cls.from_tensor(view(raw, 0, shape, dtype), filename=filename, existsok=True)
        return leaf if index is None else leaf[index]  # type: ignore[return-value]

    @classmethod
    def empty(cls, *shape: Any, dtype: torch.dtype | None = None, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of zeros in a file, like `zeros`: a new file has no other content."""
        return cls.zeros(*shape, dtype=dtype, filename=filename)

    @classmethod
    def zeros(cls, *shape: Any, dtype: torch.dtype | None = None, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of zeros in a sparse file.

        >>> MemoryMappedTensor.zeros(2, dtype=torch.int32)
        MemoryMappedTensor([0, 0], dtype=torch.int32)

        Args:
            shape: sizes, or one sequence of sizes; a tensor of shape [rows, dims] with the sizes of each row makes a
                strided nested tensor.
            dtype: the default dtype of torch by default.
            filename: the file to make; a temporary file by default.

        Raises:
            RuntimeError: the file exists.
        """
        path = None if filename is None else os.path.abspath(filename)
        dtype = dtype or torch.get_default_dtype()
        if len(shape) == 1 and isinstance(shape[0], Tensor) and shape[0].ndim == 2:
            values = _blank(cls, (int(shape[0].prod(1).sum()),), dtype, path, False)
            return whole(Parts(values.as_subclass(Tensor), shape[0].long())).as_subclass(cls)
        return _blank(cls, _sizes(shape), dtype, path, False)

    @classmethod
    def ones(cls, *shape: Any, dtype: torch.dtype | None = None, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of ones in a file; arguments as for `zeros`."""
        return cls.full(*shape, fill_value=1, dtype=dtype or torch.get_default_dtype(), filename=filename)

    @classmethod
    def full(
        cls,
        *shape: Any,
        fill_value: complex | None = None,
        dtype: torch.dtype | None = None,
        filename: Path | None = None,
    ) -> MemoryMappedTensor:
        """Make a tensor of one value in a file: ``full(2, 3, fill_value=4)`` or ``full((2, 3), 4)``.

        Args:
            shape: sizes, or one sequence of sizes.
            fill_value: the value.
            dtype: the dtype that `torch.full` chooses for the value by default.
            filename: the file to make; a temporary file by default.
        """
        if fill_value is None and len(shape) == 2 and isinstance(shape[0], Sequence):
            return cls.full(shape[0], fill_value=shape[-1], dtype=dtype, filename=filename)
        if fill_value is None:
            raise TypeError("full() needs a fill_value")
        value = torch.full((), fill_value, dtype=dtype)
        return cls.from_tensor(value, shape=_sizes(shape), filename=filename)

    @classmethod
    def empty_like(cls, input: Tensor, *, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of zeros with the shape and dtype of another, in a file."""
        return cls.zeros(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def zeros_like(cls, input: Tensor, *, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of zeros with the shape and dtype of another, in a file."""
        return cls.zeros(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def ones_like(cls, input: Tensor, *, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of ones with the shape and dtype of another, in a file."""
        return cls.ones(input.shape, dtype=input.dtype, filename=filename)

    @classmethod
    def full_like(cls, input: Tensor, fill_value: complex, *, filename: Path | None = None) -> MemoryMappedTensor:
        """Make a tensor of one value with the shape and dtype of another, in a file."""
        return cls.full(input.shape, fill_value=fill_value, dtype=input.dtype, filename=filename)

    # --- saying

    @property
    def filename(self) -> str:
        """The absolute path of the file.

        Raises:
            RuntimeError: the tensor has lost its mapping, as after ``m.data = other``.
        """
        home = home_of(self)
        if home is None:
            raise RuntimeError("this tensor is not mapped from a file")
        return home.path

    @property
    def parent_shape(self) -> torch.Size:
        """The shape of the whole leaf that this tensor is a part of."""
        home = home_of(self)
        leaf = home.leaf_at(int(self.storage_offset()) * self.itemsize) if home else None
        return self.shape if leaf is None else torch.Size(leaf[1])

    def is_shared(self) -> bool:
        """Tell whether other processes see the same memory: always, for it is a file."""
        return True

    def share_memory_(self) -> MemoryMappedTensor:
        """Do nothing: the file is shared already."""
        return self

    # --- copying

    def __reduce_ex__(self, protocol: Any) -> Any:
        sent = handle(self)
        if sent is None:
            raise RuntimeError(
                "cannot pickle a mapped tensor that is not a leaf of the autograd graph; detach it first"
            )
        return _restore_mapped, (sent,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            copy = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = copy
        return memo[id(self)]  # type: ignore[no-any-return]

    # --- operations

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        for kind in types:
            if kind is not cls and not issubclass(kind, Tensor):
                return NotImplemented
        name = getattr(func, "__name__", "")
        if kwargs or name[-1:] == "_" or "." in name:
            refuse_write(name, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return frozen(result, args[0]) if isinstance(result, numpy.ndarray) else _handed(name, result)


def present(tensor: Tensor) -> Tensor:
    """Return what a user is handed for a leaf: a `MemoryMappedTensor` over the same memory, if it is mapped.

    A nested tensor comes back as it is, unless it may not be written: then it becomes one that refuses.
    """
    if tensor.is_nested:
        if read_only(tensor) is None:
            return tensor
        return tensor.as_subclass(MemoryMappedTensor) if tensor.layout is torch.strided else guarded(tensor, _handed)
    return tensor if home_of(tensor) is None else tensor.as_subclass(MemoryMappedTensor)


def _handed(name: str, result: Any) -> Any:
    """Return a result as users get it: some views keep the class, and all views of what may not be written do."""
    if type(result) in (tuple, list):
        return type(result)(_handed(name, item) for item in result)
    if isinstance(result, Tensor) and (name in _VIEWS or read_only(result) is not None):
        return present(result)
    return result


def _restore_mapped(sent: Handle) -> Tensor:
    return restore(sent).as_subclass(MemoryMappedTensor)


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape


def _require_free(path: str, existsok: bool) -> None:
    if not existsok and os.path.lexists(path):
        raise RuntimeError(f"the file {path!r} already exists; pass existsok=True to replace it")


def _blank(
    cls: type[MemoryMappedTensor], shape: tuple[int, ...], dtype: torch.dtype, path: str | None, existsok: bool
) -> MemoryMappedTensor:
    if path is None:
        leaf = leaf_of(allocate_anonymous(byte_count(shape, dtype)), 0, shape, dtype)
    else:
        _require_free(path, existsok)
        leaf = new_leaf(path, shape, dtype)
    return leaf.as_subclass(cls)
