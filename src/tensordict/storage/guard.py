"""What keeps a leaf that was mapped for reading as it is.

The file itself is safe: it is mapped privately, so that no write in this process reaches it, and none ends the process.
What is here refuses the write, so that nobody takes it for one that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy
import torch
from torch import Tensor

from tensordict.storage.memmap import Home, home_of
from tensordict.storage.sent import NestedHandle, handle, restore

# These change what a tensor says of itself, not what lies in the file.
_HARMLESS = frozenset(["requires_grad_", "share_memory_", "detach_", "rename_"]) | frozenset(
    ["t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_"]
)

Function = Callable[..., Any]


def read_only(tensor: Any) -> Home | None:
    """Return where a tensor is mapped from, if it may not be written; None for any other value."""
    if not isinstance(tensor, Tensor):
        return None
    owner: Any = tensor
    home = home_of(owner._values if tensor.layout is torch.jagged else tensor)
    return home if home is not None and home.mode == "r" else None


def refuse_write(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError if a call of torch, by its name and arguments, writes to a leaf that may not be written."""
    name = name.partition(".")[0]
    targets = [kwargs.get("out")]
    if kwargs.get("inplace") is True:
        targets.append(args[0] if args else kwargs.get("input"))
    if args and (name == "__setitem__" or (name[-1:] == "_" and name[-2:] != "__" and name not in _HARMLESS)):
        targets.append(args[0])
    for target in targets:
        for tensor in target if isinstance(target, (list, tuple)) else (target,):
            home = read_only(tensor)
            if home is not None:
                raise RuntimeError(
                    f"{name}: {home.path!r} was opened with mode='r' and cannot be written; "
                    "open it with mode='r+', or change a clone()"
                )


def frozen(array: numpy.ndarray[Any, Any], tensor: Any) -> numpy.ndarray[Any, Any]:
    """Return an array, made read-only if it lies in the memory of a tensor that may not be written."""
    if read_only(tensor) is not None:
        storage = tensor.untyped_storage()
        start = array.__array_interface__["data"][0] - storage.data_ptr()
        if 0 <= start < storage.nbytes():
            array.flags.writeable = False
    return array


# --- jagged tensors


def guarded(tensor: Any, handed: Function) -> Tensor:
    """Return a jagged tensor over the same memory that refuses to be written; `handed` wraps what operations return."""
    cls: Any = type(tensor)
    if hasattr(cls, "_handed"):
        return tensor  # type: ignore[no-any-return]
    made: Tensor = _guard_of(cls, handed)(
        tensor._values,
        tensor._offsets,
        lengths=tensor._lengths,
        _metadata_cache=tensor._metadata_cache,
        _ragged_idx=tensor._ragged_idx,
    )
    return made


@cache
def _guard_of(cls: Any, handed: Function) -> Any:
    # torch imports its class of jagged tensors only when there is one.
    def function(
        guard: Any,
        func: Function,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        refuse_write(name, args, kwargs or {})
        plain = tuple(cls if kind is guard else kind for kind in types)
        return handed(name, cls.__torch_function__(func, plain, args, kwargs or {}))

    members = {"__torch_function__": classmethod(function), "_handed": staticmethod(handed)}
    return type(cls.__name__, (cls,), {**members, "__reduce_ex__": _reduce, "__deepcopy__": _deep_copy})


def _reduce(tensor: Any, protocol: Any) -> Any:
    sent = handle(tensor)
    if sent is None:
        raise RuntimeError("cannot pickle a mapped tensor that requires gradients; detach it first")
    return _restore_guarded, (sent, tensor._handed)


def _restore_guarded(sent: NestedHandle, handed: Function) -> Tensor:
    return guarded(restore(sent), handed)


def _deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) not in memo:
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]
