"""Reading a tensordict's repr: keys, shapes, dtypes and devices; the values are not in it."""

from __future__ import annotations

import ast
import re
from typing import Any

import torch

from tensordict.kinds.dense import TensorDict
from tensordict.ops.describe import SHORT

_DTYPES = {name: dtype for dtype, short in SHORT.items() for name in (short, str(dtype))}
_NODE = re.compile(r"\w+\((.*)\)", re.DOTALL)
_SHORT_NODE = re.compile(r"\w*(?:\[([\d, ]*)\])?\{(.*)\}", re.DOTALL)
_SHORT_LEAF = re.compile(r"(\w+)\[([\d, ]*)\](?:@([\w:]+))?(?: .*)?")


def parse_tensor_dict_string(s: str) -> TensorDict:
    """Return a tensordict of zeros with the keys, shapes, dtypes and devices that a repr shows.

    Args:
        s: what `repr` gives, or a longer form in which leaves are written as ``Tensor(shape=..., dtype=...)``.

    Raises:
        ValueError: for any other text, and for values that are not tensors.

    Examples:
        >>> from tensordict import parse_tensor_dict_string
        >>> td = parse_tensor_dict_string("TensorDict(batch_size=[2], fields={x: f32[3], n: {y: i64[]}})")
        >>> td["x"].shape, td["n", "y"].dtype
        (torch.Size([2, 3]), torch.int64)
    """
    match = _NODE.fullmatch(s.strip())
    facts = _pairs(match[1], "=") if match else {}
    if "batch_size" not in facts or "fields" not in facts:
        raise ValueError(f"expected the repr of a tensordict, with a batch size and fields, got {s!r}")
    device, names = facts.get("device", "None"), ast.literal_eval(facts.get("names", "None"))
    td = TensorDict({}, _sizes(facts["batch_size"]), None if device == "None" else device, names)
    return _filled(td, facts["fields"].removeprefix("{").removesuffix("}"))


def _filled(td: TensorDict, fields: str) -> TensorDict:
    for key, text in _pairs(fields, ":").items():
        td.set(key, _child(text, td))
    return td


def _child(text: str, parent: TensorDict) -> Any:
    """Return the zeros or the node that a field stands for."""
    device = parent.device
    if (leaf := _SHORT_LEAF.fullmatch(text)) and leaf[1] in _DTYPES:
        shape = (*parent.batch_size, *_sizes(leaf[2]))
        return torch.zeros(shape, dtype=_DTYPES[leaf[1]], device=leaf[3] or device)
    if node := _SHORT_NODE.fullmatch(text):
        return _filled(TensorDict({}, (*parent.batch_size, *_sizes(node[1] or "")), device), node[2])
    long = _NODE.fullmatch(text)
    facts = _pairs(long[1], "=") if long else {}
    if "fields" in facts:
        return parse_tensor_dict_string(text)
    if "shape" in facts and facts.get("dtype") in _DTYPES:
        where = facts.get("device", device)
        return torch.zeros(_sizes(facts["shape"]), dtype=_DTYPES[facts["dtype"]], device=where)
    raise ValueError(f"cannot read {text!r} as a tensor of known shape and dtype, or as a nested tensordict")


def _pairs(text: str, sign: str) -> dict[str, str]:
    """Return the names and values between the commas that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    split = [part.partition(sign) for part in parts if part.strip()]
    return {name.strip(): value.strip() for name, _, value in split}


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"-?\d+", text)))
