"""Strided nested tensors in two files: the elements of all rows, and the sizes of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tensordict.storage.base import byte_count
from tensordict.storage.memmap import copy_leaf, leaf_of, map_file, nested_over


def sizes_of(tensor: Tensor) -> Tensor:
    """Return the sizes of the rows of a strided nested tensor, shape [rows, dims of a row]."""
    sizes = tensor._nested_tensor_size()
    # Without rows torch gives a scalar of another dtype.
    return sizes if sizes.dim() == 2 else torch.zeros(0, 0, dtype=torch.int64)


def write_nested(path: str, sizes_path: str, tensor: Tensor) -> Tensor:
    """Write a strided nested tensor to two files and return the nested tensor over them.

    Raises:
        ValueError: the layout is jagged.
        OSError: there is too little space.
    """
    if tensor.layout is not torch.strided:
        raise ValueError("a jagged nested tensor cannot be stored; store its values and offsets")
    sizes = sizes_of(tensor)
    values = tensor.detach().contiguous().values()
    copy_leaf(sizes_path, sizes.contiguous())
    return nested_over(copy_leaf(path, values), sizes)


def read_nested(path: str, sizes_path: str, shape: Sequence[int], dtype: torch.dtype, mode: str) -> Tensor:
    """Map a nested tensor; `shape` is that of the sizes: the number of rows, and the dims of each.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is shorter or longer than the sizes say, or a size is negative.
    """
    sizes_bytes = byte_count(shape, torch.int64)
    sizes = leaf_of(map_file(sizes_path, sizes_bytes, "r"), 0, shape, torch.int64).clone()
    rows = sizes.tolist()
    if any(size < 0 for row in rows for size in row):
        raise ValueError(f"{sizes_path!r} holds a negative size")
    count = sum(map(math.prod, rows))
    return nested_over(leaf_of(map_file(path, count * dtype.itemsize, mode), 0, (count,), dtype), sizes)
