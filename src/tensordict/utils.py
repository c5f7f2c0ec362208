"""Small helpers that programs import by name from here."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Buffer

from tensordict import indexing
from tensordict.aliases import DeviceLike, NestedKey, SizeLike
from tensordict.core.core import Core
from tensordict.keys import is_nested_key, unravel_key, unravel_key_list, unravel_key_to_tuple
from tensordict.kinds.tensorclass import is_tensorclass
from tensordict.meta import as_batch
from tensordict.ops.convert import LinkedList
from tensordict.roof.functions import KEY_SEPARATOR, assert_allclose_td, assert_close, is_bool, is_non_tensor
from tensordict.roof.parsing import parse_tensor_dict_string
from tensordict.settings import (
    capture_non_tensor_stack,
    get_printoptions,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_lazy_legacy,
    set_list_to_stack,
    set_printoptions,
)

__all__ = [
    "KEY_SEPARATOR",
    "Buffer",
    "DeviceType",
    "IndexType",
    "LinkedList",
    "NestedKey",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "expand_as_right",
    "expand_right",
    "get_printoptions",
    "is_bool",
    "is_nested_key",
    "is_non_tensor",
    "is_seq_of_nested_key",
    "is_tensorclass",
    "lazy_legacy",
    "list_to_stack",
    "logger",
    "parse_tensor_dict_string",
    "set_capture_non_tensor_stack",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

DeviceType = DeviceLike
IndexType = Any
"""What a tensordict is indexed with: see `TensorDict.__getitem__`."""

logger = logging.getLogger("tensordict")


def expand_right(tensor: Any, shape: SizeLike) -> Any:
    """Return a tensor expanded to a shape, its own dims being the first.

    Args:
        tensor: a tensor or a tensordict.
        shape: a shape that begins with that of the tensor, or with sizes that those of one expand to.

    Raises:
        RuntimeError: if it does not.

    Examples:
        >>> import torch
        >>> from tensordict.utils import expand_right
        >>> expand_right(torch.tensor([1, 2]), (2, 3))
        tensor([[1, 1, 1],
                [2, 2, 2]])
    """
    wanted = as_batch(shape)
    own = tuple(tensor.shape)
    if len(own) > len(wanted) or any(size not in (1, to) for size, to in zip(own, wanted)):
        raise RuntimeError(f"a tensor of shape {list(own)} does not expand on the right to shape {list(wanted)}")
    for _ in range(len(wanted) - len(own)):
        tensor = tensor.unsqueeze(-1)
    return tensor.expand(wanted)


def expand_as_right(tensor: Any, dest: Any) -> Any:
    """Return a tensor expanded to the shape of another, its own dims being the first.

    Args:
        tensor: a tensor or a tensordict.
        dest: a tensor or a tensordict, whose batch size is taken.

    Raises:
        RuntimeError: if the shape does not begin with that of the tensor.

    Examples:
        >>> import torch
        >>> from tensordict.utils import expand_as_right
        >>> expand_as_right(torch.tensor([1, 2]), torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """
    return expand_right(tensor, dest.shape)


def is_seq_of_nested_key(seq: Any) -> bool:
    """Tell whether a value is an iterable of nested keys.

    Args:
        seq: any object.

    Examples:
        >>> from tensordict.utils import is_seq_of_nested_key
        >>> is_seq_of_nested_key(["a", ("b", "c")]), is_seq_of_nested_key([1])
        (True, False)
    """
    return isinstance(seq, Iterable) and not isinstance(seq, (Tensor, Core)) and all(map(is_nested_key, seq))


def _zip_strict(*iterables: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    return zip(*iterables, strict=True)


def _unravel_key_to_tuple(key: Any) -> tuple[str, ...]:
    return unravel_key_to_tuple(key) if is_nested_key(key) else ()


def _getitem_batch_size(batch_size: SizeLike, index: Any) -> torch.Size:
    return torch.Size(indexing.plan(index, as_batch(batch_size)).batch)


_is_tensorclass = is_tensorclass
_is_non_tensor = is_non_tensor
_LockedSchema: type = tuple  # pickles of the published package name it
