"""Torch's kernels for lists of leaves: when they know as much as the words for each leaf, and what they make."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tensordict.aliases import Call
from tensordict.ops.fit import PRECISE, expanded

PLAIN = {Tensor}
_EXACT = PRECISE | {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
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
    return all_plain(leaves) and _writable(leaves)


def _writable(leaves: list[Tensor]) -> bool:
    return all(map(_packed, leaves)) or not any(map(expanded, leaves))


def made(many: Call, *leaves: list[Any]) -> Any:
    """Return what a kernel makes of plain leaves, or None where it knows less than the word for each."""
    if not all(map(all_plain, leaves)):
        return None
    try:
        return many(*leaves)
    except RuntimeError:  # no such dtypes: the kernel for each leaf knows, or says what is wrong
        return None


def changed(many: Call, leaves: list[Tensor], *theirs: list[Tensor], sure: bool = False) -> bool:
    """Change writable leaves by a kernel; tell whether it is done, for all of them, or not begun.

    An error after some leaves have changed would be one too many: unless it is `sure` that there is none, the dtypes
    must be those that know every word. Narrow floats compute with a number otherwise than alone.
    """
    if not {v.dtype for part in (leaves, *theirs) for v in part} <= (_EXACT if sure else PRECISE):
        return False
    try:
        many(leaves, *theirs)
    except NotImplementedError:  # said before the first: one of them is nested
        return False
    return True


def below(node: Any) -> list[Tensor] | None:
    """Return the leaves of a tree of dense nodes, to be changed; None if a node of another kind is among them."""
    table = node.__dict__.get("_dict")
    if table is None:
        return None
    node._writable()
    found: list[Any] = []
    for child in table.values():
        more = [child] if isinstance(child, Tensor) else below(child)
        if more is None:
            return None
        found += more
    return found


def beside(node: Any, other: Any) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the leaves of a tree of dense nodes, to be changed, and those of another tree with the same keys."""
    mine, theirs = node.__dict__.get("_dict"), other.__dict__.get("_dict")
    if mine is None or theirs is None or mine.keys() != theirs.keys():
        return None
    node._writable()
    leaves, twins = list(mine.values()), [theirs[key] for key in mine]
    if set(map(type, leaves)) == PLAIN:
        return leaves, twins
    found: tuple[list[Any], list[Any]] = [], []
    for one, two in zip(leaves, twins):
        tensors = isinstance(one, Tensor) + isinstance(two, Tensor)
        more = ([one], [two]) if tensors == 2 else None if tensors else beside(one, two)
        if more is None:
            return None
        found[0].extend(more[0])
        found[1].extend(more[1])
    return found


def twins(node: Any, other: Any, view: Call | None = None) -> tuple[list[Tensor], list[Tensor]] | None:
    """Return the leaves of a tree, or views of them, and those of another tree to change them with.

    None if not all are plain and writable, or keys or shapes differ.
    """
    found = beside(node, other)
    if found is None or not all_plain(found[0] + found[1]):
        return None
    leaves, theirs = found
    try:
        leaves = leaves if view is None else list(map(view, leaves))
        alike = [v.shape for v in leaves] == [v.shape for v in theirs]
    except RuntimeError:  # rows of nested tensors are written one by one, and strided ones have no shape
        return None
    return (leaves, theirs) if alike and _writable(leaves) else None


def _tables(members: list[Any]) -> list[dict[str, Any]]:
    """Return the children of nodes that are all dense, or nothing."""
    tables = [m.__dict__.get("_dict") for m in members]
    return [] if any([table is None for table in tables]) else tables


def told(many: Call, members: list[Any]) -> list[Any] | None:
    """Return what a kernel makes of dense nodes, or None if not all their children are plain leaves."""
    tables = _tables(members)
    answers = made(many, [leaf for leaves in tables for leaf in leaves.values()])
    if answers is None:
        return None
    found = iter(answers)
    return [m._like(dict(zip(leaves, found)), m._meta) for m, leaves in zip(members, tables)]


def changed_below(many: Call, members: list[Any]) -> bool:
    """Change the leaves of trees of dense nodes by a kernel; tell whether it is done."""
    trees = list(map(below, members))
    leaves = [leaf for tree in trees for leaf in tree or ()]
    return None not in trees and all_writable(leaves) and changed(many, leaves)
