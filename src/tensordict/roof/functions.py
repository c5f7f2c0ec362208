"""Functions at the top of the package that take one node or several."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensordict import dims, errors
from tensordict.aliases import DeviceLike, NestedKey, SizeLike
from tensordict.core import walk
from tensordict.core.core import Core
from tensordict.core.locks import filling
from tensordict.keys import unravel_key_to_tuple
from tensordict.kinds.collection import TensorCollection
from tensordict.kinds.dense import TensorDict
from tensordict.kinds.nontensor import NonTensor
from tensordict.ops.join import lazy_stack, maybe_dense_stack, stack
from tensordict.ops.ragged import lengths_mask, padded
from tensordict.storage.archive import is_archive, pack, renew, unpack

C = TypeVar("C", bound=TensorCollection)

KEY_SEPARATOR = "."
"""What joins the parts of a nested key where it must be one string."""

from_any = TensorDict.from_any
from_namedtuple = TensorDict.from_namedtuple
from_tuple = TensorDict.from_tuple
from_pytree = TensorDict.from_pytree
fromkeys = TensorDict.fromkeys
load = TensorDict.load_memmap
load_memmap = TensorDict.load_memmap
from_consolidated = TensorDict.from_consolidated


def memmap(data: C, prefix: str | os.PathLike[str] | None = None, copy_existing: bool = False, **options: Any) -> C:
    """Return a copy of a tensordict that lies in memory-mapped files; arguments and errors as for its word `memmap`.

    Examples:
        >>> import tempfile, torch, tensordict
        >>> td = tensordict.TensorDict({"x": torch.arange(3)}, [3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tensordict.save(td, folder)["x"]
        MemoryMappedTensor([0, 1, 2])
    """
    return data.memmap(prefix, copy_existing, **options)


save = memmap


def pack_memmap(
    prefix: str | os.PathLike[str],
    archive_path: str | os.PathLike[str],
    *,
    compression: str | int | None = None,
    compresslevel: int | None = None,
) -> pathlib.Path:
    """Write a folder that `memmap` wrote to one zip file, whole or not at all; return the path of the file.

    Args:
        prefix: the folder; files in it that are none of the tensordict's are left out.
        archive_path: the zip file, which is replaced if it is there.
        compression: None, which lets leaves be mapped in place, or "deflate", "bzip2" or "lzma".
        compresslevel: how hard to compress, as in `zipfile`.

    Raises:
        FileNotFoundError: if the folder holds no tensordict.
        OSError: if there is too little space.
        ValueError: for another compression.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import TensorDict, pack_memmap
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = TensorDict({"x": torch.arange(3)}, [3]).memmap(f"{folder}/data")
        ...     TensorDict.load_memmap(pack_memmap(f"{folder}/data", f"{folder}/data.zip"))["x"].tolist()
        [0, 1, 2]
    """
    path = os.path.abspath(archive_path)
    pack(os.path.abspath(prefix), path, compression, compresslevel)
    return pathlib.Path(path)


def unpack_memmap(archive_path: str | os.PathLike[str], prefix: str | os.PathLike[str]) -> pathlib.Path:
    """Write what an archive holds to a folder, in one step, after its checksums were compared; return the folder.

    Args:
        archive_path: the zip file.
        prefix: the folder; a tensordict that is saved there is replaced.

    Raises:
        ValueError: if the file is no archive of a tensordict, or is damaged.
        OSError: if there is too little space.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import TensorDict, unpack_memmap
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = TensorDict({"x": torch.arange(3)}, [3]).memmap(f"{folder}/data.zip", archive=True)
        ...     TensorDict.load_memmap(unpack_memmap(f"{folder}/data.zip", f"{folder}/data"))["x"].tolist()
        [0, 1, 2]
    """
    path = os.path.abspath(prefix)
    unpack(os.path.abspath(archive_path), path)
    return pathlib.Path(path)


def refresh_archive_checksums(archive_path: str | os.PathLike[str]) -> None:
    """Write the checksums of an archive anew, after leaves of it were written with ``mode="r+"``.

    Args:
        archive_path: the zip file; no other process may write to it meanwhile.

    Raises:
        ValueError: if the file is no archive of a tensordict.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import TensorDict, refresh_archive_checksums
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     td = TensorDict({"x": torch.zeros(3)}, [3]).memmap(f"{folder}/data.zip", archive=True)
        ...     _ = td.fill_("x", 7.0)
        ...     refresh_archive_checksums(f"{folder}/data.zip")
        ...     TensorDict.load_memmap(f"{folder}/data.zip", verify=True)["x"].tolist()
        [7.0, 7.0, 7.0]
    """
    renew(os.path.abspath(archive_path))


def is_memmap_archive(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is that of an archive of a tensordict.

    Args:
        path: any path.

    Examples:
        >>> from tensordict import is_memmap_archive
        >>> is_memmap_archive("/no/such/file")
        False
    """
    return is_archive(os.fspath(path))


def from_dict(d: Mapping[Any, Any], **options: Any) -> TensorDict:
    """Return a tensordict of a mapping.

    Args:
        d: keys to values; nested mappings become nested tensordicts.
        **options: as for `TensorDict.from_dict`.

    Examples:
        >>> from tensordict import from_dict
        >>> from_dict({"a": {"b": 1}})["a", "b"]
        tensor(1)
    """
    return TensorDict.from_dict(d, **options)


def from_h5(h5_file: str | os.PathLike[str], **options: Any) -> Any:
    """Open an HDF5 file as a `PersistentTensorDict`; values are read when they are asked for.

    Args:
        h5_file: the file.
        **options: those of `TensorDict.from_h5`.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import TensorDict, from_h5
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     TensorDict({"x": torch.arange(3)}, [3]).to_h5(f"{folder}/data.h5").close()
        ...     td = from_h5(f"{folder}/data.h5")
        ...     row = td[1]["x"]
        ...     td.close()
        >>> row
        tensor(1)
    """
    return TensorDict.from_h5(h5_file, **options)


def from_zarr(zarr_file: Any, **options: Any) -> Any:
    """Open a zarr group as a `PersistentTensorDict`; values are read when they are asked for.

    Args:
        zarr_file: a folder, a zip file, a URL, or anything else that zarr takes as a store.
        **options: those of `TensorDict.from_zarr`.

    Examples:
        >>> import tempfile, torch
        >>> from tensordict import TensorDict, from_zarr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = TensorDict({"x": torch.arange(3)}, [3]).to_zarr(f"{folder}/data.zarr")
        ...     from_zarr(f"{folder}/data.zarr")[1]["x"]
        tensor(1)
    """
    return TensorDict.from_zarr(zarr_file, **options)


def make_tensordict(
    input_dict: Mapping[Any, Any] | None = None,
    batch_size: SizeLike | None = None,
    device: DeviceLike = None,
    auto_batch_size: bool | None = None,
    **kwargs: Any,
) -> TensorDict:
    """Return a tensordict of a mapping or of keyword values.

    Args:
        input_dict: keys to values.
        batch_size: the batch size.
        device: the device.
        auto_batch_size: find the longest batch size that all values share.
        **kwargs: values by key.

    Examples:
        >>> import torch
        >>> from tensordict import make_tensordict
        >>> make_tensordict(a=torch.zeros(2, 3), b=torch.zeros(2), auto_batch_size=True).batch_size
        torch.Size([2])
    """
    values = {**(input_dict or {}), **kwargs}
    return TensorDict.from_dict(values, batch_size=batch_size, device=device, auto_batch_size=auto_batch_size)


def merge_tensordicts(*tensordicts: C, callback_exist: Callable[..., Any] | None = None) -> C:
    """Return a tensordict with the keys of several, nested ones merged.

    Args:
        *tensordicts: at least one; the value of a key that several have is that of the first.
        callback_exist: called with a key and the values that there are; its result is the value.

    Examples:
        >>> from tensordict import TensorDict, merge_tensordicts
        >>> merged = merge_tensordicts(TensorDict({"a": {"x": 1}}), TensorDict({"a": {"y": 2}}))
        >>> list(merged.keys(True, True))
        [('a', 'x'), ('a', 'y')]
    """
    if not tensordicts:
        raise RuntimeError("merge_tensordicts expects at least one tensordict, got none")
    result = tensordicts[0].clone(False)
    for other in tensordicts[1:]:
        _take_new(result, other)
    if callback_exist is not None:
        for key in list(result.keys(True, True)):
            found = [td.get(key) for td in tensordicts if key in td]
            if len(found) > 1:
                result.set(key, callback_exist(key, *found))
    return result


def _take_new(node: Any, other: Any) -> None:
    """Set what another node has at keys where there is nothing yet; what is there stays, whatever it is."""
    sides = node._sides(other)
    for mine, theirs in sides:
        _take_new(mine, theirs)
    for key, value in () if sides else other.items():
        inner = None if isinstance(value, Tensor) or value._is_non_tensor else value._held()
        if key not in node._keys():
            node.set(key, value if inner is None else inner.clone(False))
        elif inner is not None and is_tensor_collection(mine := node._get(key)) and not mine._is_non_tensor:
            _take_new(mine, inner)


def group_by(tensordict: C, key: NestedKey) -> tuple[Tensor, tuple[C, ...]]:
    """Return the different values of a key, sorted, and the rows of each.

    Args:
        tensordict: a tensordict with one batch dim.
        key: the key of one number a row.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, group_by
        >>> values, groups = group_by(TensorDict({"k": torch.tensor([1, 0, 1])}, [3]), "k")
        >>> values.tolist(), [len(group) for group in groups]
        ([0, 1], [1, 2])
    """
    column = tensordict.get(key)
    if tensordict.ndim != 1 or not isinstance(column, Tensor) or column.shape != tensordict.shape:
        raise RuntimeError(f"group_by expects one batch dim and one number a row at key {key!r}, got {column!r}")
    values, inverse = torch.unique(column, return_inverse=True)
    order = torch.argsort(inverse, stable=True)
    counts = torch.bincount(inverse, minlength=len(values))
    return values, tensordict[order].split(counts.tolist())


def dense_stack_tds(td_list: Any, dim: int | None = None) -> Any:
    """Return a dense stack of tensordicts, or of the members of a lazy stack.

    Args:
        td_list: tensordicts, or a lazy stack.
        dim: where the new dim stands; that of the lazy stack by default.

    Raises:
        ValueError: for a list without ``dim``.

    Examples:
        >>> from tensordict import TensorDict, dense_stack_tds
        >>> dense_stack_tds([TensorDict({"x": 1}), TensorDict({"x": 2})], dim=0)["x"]
        tensor([1, 2])
    """
    if isinstance(td_list, Core):
        return td_list.contiguous()  # type: ignore[attr-defined]
    if dim is None:
        raise ValueError("dense_stack_tds needs dim for a list of tensordicts")
    return stack([td.contiguous() for td in td_list], dim)


def pad(tensordict: C, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True) -> C:
    """Return the rows with padding before and after them along batch dims.

    Args:
        tensordict: the tensordict.
        pad_size: the rows before and after, a pair for each batch dim from the first.
        value: the number to pad with.
        inplace: put the result in the place of the values of the tensordict, and return it.
        safe: kept for programs that pass it; the sizes are checked in any case.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, pad
        >>> pad(TensorDict({"x": torch.ones(2)}, [2]), [1, 0])["x"]
        tensor([0., 1., 1.])
    """
    return tensordict.pad(pad_size, value, inplace, safe)


def pad_sequence(
    list_of_tensordicts: Sequence[Any],
    pad_dim: int = 0,
    padding_value: float = 0.0,
    out: Any = None,
    return_mask: bool | NestedKey = False,
    padding_side: str = "right",
) -> Any:
    """Stack tensordicts whose values differ in size along one dim, padding them to the greatest size.

    Args:
        list_of_tensordicts: the tensordicts or tensorclasses, with the same keys.
        pad_dim: the dim of the values to pad; values that do not have it are stacked as they are. A negative one is
            counted from the end of each value.
        padding_value: the number to pad with.
        out: a tensordict that the result is written to.
        return_mask: True puts bool tensors under "masks", a key under that key: True for a value, False for padding.
        padding_side: "right" pads after the values, "left" before.

    Raises:
        RuntimeError: if values differ in another dim; the message names the key.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, pad_sequence
        >>> pad_sequence([TensorDict({"x": torch.ones(n)}) for n in (1, 2)])["x"]
        tensor([[1., 0.],
                [1., 1.]])
    """
    items = list(list_of_tensordicts)
    if not items:
        raise RuntimeError("pad_sequence expects at least one tensordict, got none")
    # values that are padded along a batch dim change the batch size of the result
    bare = [_without_batch_from(item, max(pad_dim, 0)) for item in items]
    columns = {key: [item.get(key) for item in bare] for key in bare[0].keys(True, True, walk.is_leaf_nontensor)}
    columns = {key: parts for key, parts in columns.items() if all(_has_dim(part, pad_dim) for part in parts)}
    result = maybe_dense_stack([item.exclude(*columns) for item in bare])
    mask_key = "masks" if return_mask is True else return_mask
    for key, values in columns.items():
        dim = dims.wrap(pad_dim, values[0].ndim, "pad_dim")
        parts = [value.movedim(dim, 0) for value in values] if dim else values
        try:
            value = _padded(parts, padding_value, padding_side)
        except errors.ShapeMismatch as error:
            raise errors.ShapeMismatch(f"cannot pad key {key!r}: {error}") from None
        with filling(result):
            result.set(key, value.movedim(1, dim + 1))
            if mask_key and isinstance(value, Tensor):
                flags, lead = lengths_mask(parts, padding_side), bare[0].batch_size
                flags = flags.view(len(flags), *(1,) * len(lead), flags.shape[1]).expand(-1, *lead, -1)
                result.set((mask_key, key), flags)
    if any(item.ndim > max(pad_dim, 0) for item in items):
        result.auto_batch_size_(items[0].ndim + 1)
    return result if out is None else out.update_(result)


def _padded(parts: Sequence[Any], value: Any, side: str) -> Any:
    """Return values stacked along a new first dim, padded along their first one; objects that are added are None."""
    if all(isinstance(part, Tensor) for part in parts):
        return padded(parts, value, side, only_first=True)
    most = max(part.shape[0] for part in parts)
    more = [most - part.shape[0] for part in parts]
    return stack([part.pad((size, 0) if side == "left" else (0, size)) for part, size in zip(parts, more)])


def _without_batch_from(item: Any, dim: int) -> Any:
    """Return an item whose batch size ends before a dim."""
    if item.ndim <= dim:
        return item
    short = item.clone(False)
    short._give_batch(item.batch_size[:dim])
    for node in short.values(True):
        if isinstance(node, TensorCollection) and not node._is_non_tensor:
            node._give_batch(item.batch_size[:dim])
    return short


def _has_dim(value: Any, dim: int) -> bool:
    leaf = isinstance(value, Tensor) or is_non_tensor(value)
    return leaf and -value.ndim <= dim < value.ndim


def unpad_sequence(padded: Any, mask: Any = None, *, pad_dim: int = 0) -> Any:
    """Return the lazy stack that `pad_sequence` padded.

    Args:
        padded: the padded tensordict.
        mask: the tensordict of masks, one mask for all values of its size, or the key that holds the masks; None is
            the key "masks".
        pad_dim: the dim of the values that was padded.

    Raises:
        KeyError: if there are no masks.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, pad_sequence, unpad_sequence
        >>> batch = pad_sequence([TensorDict({"x": torch.ones(n)}) for n in (1, 2)], return_mask=True)
        >>> [len(row["x"]) for row in unpad_sequence(batch)]
        [1, 2]
    """
    given = isinstance(mask, (Tensor, Core))
    mask_key: Any = "masks" if mask is None else mask
    masks: Any = mask if given else padded.get(mask_key)
    if masks is None:
        raise KeyError(f"there are no masks at key {mask_key!r}; pass mask=")
    rows = padded if given else padded.exclude(mask_key)
    found = []
    for at, row in enumerate(_without_batch_from(rows, 1).unbind(0)):
        row = row.clone(False)
        for key, keep in _flags(masks, rows, pad_dim).items():
            value = row.get(key)
            dim = dims.wrap(pad_dim, value.ndim, "pad_dim")
            kept = value.movedim(dim, 0)[keep[at].view(keep.shape[1:-1].numel(), keep.shape[-1]).any(0)]
            row.set(key, kept.movedim(0, dim))
        found.append(row.auto_batch_size_(padded.ndim - 1))
    return lazy_stack(found)


def _flags(masks: Any, rows: Any, dim: int) -> dict[NestedKey, Tensor]:
    """Return the mask of each key; one mask is for all values that have as many steps."""
    each = isinstance(masks, Core)
    found = dict(masks.items(True, True)) if each else {}
    mask: Any = next(iter(found.values()), None) if each else masks
    for key, value in rows.items(True, True, walk.is_leaf_nontensor) if mask is not None else ():
        row: Any = value[0] if is_non_tensor(value) or not each else None  # objects have no mask of their own
        if _has_dim(row, dim) and row.shape[dim] == mask.shape[-1]:
            found[key] = mask
    return found


def is_tensor_collection(datatype: Any) -> bool:
    """Tell whether an object or a class is a tensor collection.

    Args:
        datatype: any object or class.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, is_tensor_collection
        >>> is_tensor_collection(TensorDict({})), is_tensor_collection(torch.zeros(2))
        (True, False)
    """
    return issubclass(datatype if isinstance(datatype, type) else type(datatype), TensorCollection)


def is_non_tensor(data: Any) -> bool:
    """Tell whether an object or a class is a non-tensor leaf.

    Args:
        data: any object or class.

    Examples:
        >>> from tensordict import NonTensorData, is_non_tensor
        >>> is_non_tensor(NonTensorData("a")), is_non_tensor("a")
        (True, False)
    """
    return issubclass(data if isinstance(data, type) else type(data), NonTensor)


def is_bool(*args: Any) -> bool:
    """Tell whether all leaves of all arguments are bools.

    Args:
        *args: tensors and tensordicts.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, is_bool
        >>> is_bool(TensorDict({"x": True}), torch.tensor(False))
        True
    """
    return _all_dtypes(args, lambda dtype: dtype is torch.bool)


def is_floating(*args: Any) -> bool:
    """Tell whether all leaves of all arguments are real floating-point numbers; arguments as for `is_bool`.

    Examples:
        >>> from tensordict import TensorDict, is_floating
        >>> is_floating(TensorDict({"x": 1.0})), is_floating(TensorDict({"x": 1j}))
        (True, False)
    """
    return _all_dtypes(args, lambda dtype: dtype.is_floating_point)


def is_inexact(*args: Any) -> bool:
    """Tell whether all leaves of all arguments are floating-point or complex numbers; arguments as for `is_bool`.

    Examples:
        >>> from tensordict import TensorDict, is_inexact
        >>> is_inexact(TensorDict({"x": 1.0, "y": 1j})), is_inexact(TensorDict({"x": 1}))
        (True, False)
    """
    return _all_dtypes(args, _inexact)


def is_integer(*args: Any) -> bool:
    """Tell whether all leaves of all arguments are integers, bools excluded; arguments as for `is_bool`.

    Examples:
        >>> from tensordict import TensorDict, is_integer
        >>> is_integer(TensorDict({"x": 1})), is_integer(TensorDict({"x": True}))
        (True, False)
    """
    return _all_dtypes(args, lambda dtype: dtype is not torch.bool and not _inexact(dtype))


def _inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _all_dtypes(args: Sequence[Any], test: Callable[[torch.dtype], bool]) -> bool:
    wrong = [arg for arg in args if not isinstance(arg, (Tensor, Core))]
    if wrong or not args:
        raise TypeError(f"expected tensors or tensordicts, got {wrong[0]!r}" if args else "expected tensors, got none")

    def holds(v: Any) -> bool:
        return bool(v._fold(holds, all)) if isinstance(v, Core) else test(v.dtype)

    return all(map(holds, args))


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    intersection: bool = False,
    msg: str = "",
    prefix: tuple[str, ...] = (),
) -> bool:
    """Raise unless two tensordicts have the same keys and close values.

    Args:
        actual: a tensordict.
        expected: another.
        rtol: the relative tolerance; by default that of `torch.testing.assert_close` for the dtype.
        atol: the absolute tolerance, likewise.
        equal_nan: two not-a-numbers are equal.
        intersection: compare the keys that both have only.
        msg: put before the message.
        prefix: put before each key in the message.

    Returns:
        True.

    Raises:
        AssertionError: if values differ; the message names the key.
        KeyError: if keys differ.

    Examples:
        >>> import torch
        >>> from tensordict import TensorDict, assert_close
        >>> assert_close(TensorDict({"x": torch.ones(2)}), TensorDict({"x": torch.ones(2) + 1e-8}))
        True
    """
    mine, theirs = set(actual.keys(True, True)), set(expected.keys(True, True))
    if mine != theirs and not intersection:
        raise errors.KeysMismatch(
            f"{msg}keys do not match: {sorted(map(str, mine - theirs))} only in actual, "
            f"{sorted(map(str, theirs - mine))} only in expected"
        )
    for key in sorted(mine & theirs, key=str):
        one, two = actual.get(key), expected.get(key)
        try:
            torch.testing.assert_close(one, two, rtol=rtol, atol=atol, equal_nan=equal_nan)
        except AssertionError as error:
            shown = (*prefix, *unravel_key_to_tuple(key)) if prefix else key
            raise AssertionError(f"{msg}values at key {shown!r} are not close: {error}") from None
    return True


assert_allclose_td = assert_close
