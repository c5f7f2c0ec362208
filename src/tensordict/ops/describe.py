"""How a node is written down: its repr."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from tensordict import settings
from tensordict.core.core import Core

SHORT = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
_WIDTH = 100
_FACTS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "show_grad": ("requires_grad", lambda v: v.requires_grad),
    "show_is_contiguous": ("is_contiguous", lambda v: v.is_contiguous()),
    "show_is_view": ("is_view", lambda v: v._is_view()),
    "show_storage_size": ("storage_size", lambda v: v.untyped_storage().nbytes()),
}


class Describe(Core):
    """Requires: `_keys`, `_get`. Gives: `repr`."""

    def __repr__(self) -> str:
        options = settings.get_printoptions()
        head = [f"batch_size={list(self._meta.batch)}"] if options["show_batch_size"] else []
        if self._meta.device is not None and options["show_device"]:
            head.append(f"device={self._meta.device}")
        if self._meta.names is not None:
            head.append(f"names={list(self._meta.names)}")
        head += self._extra_repr()
        return f"{type(self).__name__}({', '.join([*head, 'fields=' + _fields(self, 0)])})"

    def _extra_repr(self) -> list[str]:
        return []

    def _peek(self, key: str) -> Any:
        """Return a child for the repr only."""
        return self._get(key)

    def _shown_keys(self) -> Iterable[str]:
        return self._keys()

    def _brief(self, depth: int, level: int) -> str:
        """Return a nested node in short: what its batch adds to that of the parent, and its fields."""
        extra = list(self._meta.batch[depth:])
        return f"{extra if extra else ''}{_fields(self, level)}"


def _fields(node: Any, level: int) -> str:
    keys = list(node._shown_keys())
    if settings.get_printoptions()["sort_keys"] == "alphabetical":
        keys.sort()
    lines = [f"{key}: {_child(node, key, level + 1)}" for key in keys]
    short = "{" + ", ".join(lines) + "}"
    if len(short) <= _WIDTH and "\n" not in short:
        return short
    pad = "    " * (level + 1)
    return "{\n" + ",\n".join(pad + line for line in lines) + "\n" + "    " * level + "}"


def _child(node: Any, key: str, level: int) -> str:
    child = node._peek(key)
    depth = len(node._meta.batch)
    if isinstance(child, Tensor):
        return brief(child, depth, node._meta.device)
    if isinstance(child, Core):
        return child._brief(depth, level)  # type: ignore[attr-defined,no-any-return]
    return str(child)


def brief(v: Tensor, depth: int, device: torch.device | None = None) -> str:
    """Return dtype and feature shape of a leaf, its device if it is not the usual one, and what the options ask for."""
    options = settings.get_printoptions()
    text = SHORT.get(v.dtype, str(v.dtype).removeprefix("torch.")) if options["show_dtype"] else ""
    if options["show_shape"]:
        text += "[jagged]" if v.is_nested else str(list(v.shape[depth:]))
    if options["show_field_device"] and v.device != (device or torch.device("cpu")):
        text += f"@{v.device}"
    return text + "".join(f" {name}={fact(v)}" for option, (name, fact) in _FACTS.items() if options[option])
