"""Torch's kernels for lists of leaves: when they know as much as the words for each leaf, and what they make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict.aliases import Call
from tensordict.ops.fit import PRECISE, expanded

PLAIN = {Tensor}
_packed = Tensor.is_contiguous
_transform = torch._C._functorch.peek_interpreter_stack
"""Return the `torch.func` transform that runs, or None."""


def all_plain(leaves: list[Any]) -> bool:
    """Tell whether kernels for lists can take leaves.

    They have no batching rules for `torch.func`, and for the backward pass they keep more than those for one leaf, or
    have none.
    """
    if set(map(type, leaves)) != PLAIN or _transform() is not None:
        return False
    return not (torch.is_grad_enabled() and any([v.requires_grad for v in leaves]))


def all_writable(leaves: list[Any]) -> bool:
    """Tell whether kernels for lists can change leaves, which is known for sure of packed ones."""
    return all_plain(leaves) and (all(map(_packed, leaves)) or not any(map(expanded, leaves)))


def made(many: Call, *leaves: list[Any]) -> Any:
    """Return what a kernel makes of plain leaves, or None where it knows less than the word for each."""
    if not all(map(all_plain, leaves)):
        return None
    try:
        return many(*leaves)
    except RuntimeError:  # no such dtypes: the kernel for each leaf knows, or says what is wrong
        return None


def changed(many: Call, leaves: list[Tensor], *theirs: list[Tensor]) -> bool:
    """Change writable leaves by a kernel; tell whether it is done, for all of them, or not begun."""
    dtypes = {v.dtype for v in leaves} if not theirs else {v.dtype for v in leaves + theirs[0]}
    if not dtypes <= PRECISE:  # an error after some leaves have changed would be one too many
        return False
    try:
        many(leaves, *theirs)
    except NotImplementedError:  # said before the first: one of them is nested
        return False
    return True


def _below(members: list[Any]) -> list[dict[str, Any]]:
    """Return the children of nodes that are all dense, or nothing."""
    tables = [m.__dict__.get("_dict") for m in members]
    return [] if any([table is None for table in tables]) else tables


def told(many: Call, members: list[Any]) -> list[Any] | None:
    """Return what a kernel makes of dense nodes, or None if not all their children are plain leaves."""
    tables = _below(members)
    answers = made(many, [leaf for leaves in tables for leaf in leaves.values()])
    if answers is None:
        return None
    found = iter(answers)
    return [m._like(dict(zip(leaves, found)), m._meta) for m, leaves in zip(members, tables)]


def changed_below(many: Call, members: list[Any]) -> bool:
    """Change the leaves of dense nodes by a kernel; tell whether it is done."""
    leaves = [leaf for leaves in _below(members) for leaf in leaves.values()]
    for member in members:
        member._writable()
    return all_writable(leaves) and changed(many, leaves)
