"""Every word that has a derivative has the right one, by finite differences, on every kind that is in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_words import COMPUTES, INDICES, JOINS, MOVES, PARTS, REDUCES, ROWS, SHAPES
from torch import Tensor

from tensordict import LazyStackedTensorDict, PackLayout, TensorClass, TensorDict

BATCH = (2, 2)
Node = Any
Word = Callable[[Any], Any]


class Pair(TensorClass):
    """A tensorclass with the leaves of `dense`."""

    x: Tensor
    inner: TensorDict


def dense(x: Tensor, y: Tensor) -> TensorDict:
    return TensorDict({"x": x, "inner": {"y": y}}, BATCH)


def lazy(dim: int) -> Callable[[Tensor, Tensor], Node]:
    def make(x: Tensor, y: Tensor) -> Node:
        rows = zip(x.unbind(dim), y.unbind(dim), strict=True)
        members = [TensorDict({"x": one, "inner": {"y": two}}, one.shape) for one, two in rows]
        return LazyStackedTensorDict(*members, stack_dim=dim)

    return make


MAKERS: dict[str, Callable[[Tensor, Tensor], Node]] = {
    "dense": dense,
    "lazy0": lazy(0),
    "lazy1": lazy(1),
    "tensorclass": lambda x, y: Pair(x=x, inner={"y": y}, batch_size=BATCH),
}

UNARY = """abs acos asin atan cos cosh erf erfc exp expm1 frac lgamma log log10 log1p log2 neg reciprocal relu rsqrt
sigmoid sin sinh sqrt square tan tanh""".split()
ROW = torch.tensor([True, False])
MORE: dict[str, Word] = {
    **{name: lambda v, name=name: getattr(v / 4, name)() for name in UNARY},
    "lerp": lambda v: v.lerp(v * v, 0.25),
    "addcmul": lambda v: v.addcmul(v, v + 1, value=2),
    "addcdiv": lambda v: v.addcdiv(v, v + 1, value=2),
    "pow": lambda v: v.pow(3),
    "rsub": lambda v: 1 - v.mul(v).sub(1, alpha=2),
    "softmax": lambda v: v.softmax(0),
    "logsumexp": lambda v: v.logsumexp((0, 1)),
    "sum of all": lambda v: v.sum(),
    "var": lambda v: v.var(dim=0),
    "std": lambda v: v.std(dim=1, correction=0),
    "prod": lambda v: v.prod(dim=1),
    "amax": lambda v: v.amax(dim=(0, 1)),
    "norm": lambda v: v.norm(),
    "quantile": lambda v: v.quantile(0.3, 0),
    "atleast_3d": lambda v: torch.atleast_3d(v),
    "rot90": lambda v: v.rot90(),
}
NODES: dict[str, Word] = {  # words that a leaf has too, but not with the dims of its features
    "gather": lambda v: v.gather(1, torch.tensor([[0, 0, 1], [1, 0, 0]])),
    "masked_select": lambda v: v.masked_select(ROW),
    "masked_fill": lambda v: v.masked_fill(ROW, 0.5),
    "where": lambda v: v.where(ROW, v * v),
    "pad": lambda v: v.pad([1, 0, 0, 2], 0.5),
    "repeat": lambda v: v.repeat(2, 3),
    "tile": lambda v: v.tile((2, 1)),
    "flatten in place": lambda v: v.flatten(inplace=True),
    "gather in place": lambda v: v.gather(0, torch.tensor([[1, 0]]), inplace=True),
    "clamp to out": lambda v: v.clamp(0.1, 9.0, out=v * 0),
    "sum by other keys": lambda v: v.sum(dim=0, key_transform={"x": "inner", "inner": "x", "y": "z"}.get),
    "to_tensordict": lambda v: v.to_tensordict(),
    "pack and unpack": lambda v: unpacked(*v.pack(0)),
    "set at an index": lambda v: written(v.clone()),
}


def unpacked(flat: Tensor, layout: PackLayout) -> Any:
    return layout.unpack(flat * flat)


def written(node: Node) -> Node:
    node[0] = node[1] * 2
    return node


def differentiable(word: Word) -> bool:
    """Tell whether torch gives what a word makes of a double leaf a derivative that a double can check."""
    leaf = (torch.rand(*BATCH, dtype=torch.float64) + 0.1).requires_grad_()
    made = word(leaf)
    parts = made if isinstance(made, tuple) else (made,)
    if not all(part.requires_grad and part.dtype == torch.float64 for part in parts):
        return False
    try:
        torch.autograd.grad(sum(part.sum() for part in parts), leaf)
    except RuntimeError as error:
        if "not implemented" in str(error):  # torch has no derivative for it
            return False
        raise
    return True


TABLES: dict[str, dict[str, Word]] = {
    "moves": MOVES,
    "rows": ROWS,
    "indices": INDICES,
    "computes": COMPUTES,
    "joins": JOINS,
    "reduces": REDUCES,
    "parts": PARTS,
    "more": MORE,
}


def leaves(made: Any) -> tuple[Tensor, ...]:
    """Return the leaves of a result, or of the several nodes that it is."""
    nodes = made if isinstance(made, tuple) else (made,)
    return tuple(leaf for node in nodes for leaf in node.values(True, True))


def check(word: Word, kind: str) -> bool:
    """Compare the derivatives of all leaves of the result with finite differences."""
    x = torch.linspace(0.21, 1.87, math.prod(BATCH), dtype=torch.float64).reshape(BATCH).requires_grad_()
    y = torch.linspace(2.83, 0.33, 2 * math.prod(BATCH), dtype=torch.float64).reshape(*BATCH, 2).requires_grad_()
    return torch.autograd.gradcheck(lambda *parts: leaves(word(MAKERS[kind](*parts))), (x, y))


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("table", TABLES)
def test_words_have_the_derivatives_of_torch(table: str, kind: str) -> None:
    words = {name: word for name, word in TABLES[table].items() if differentiable(word)}
    assert len(words) > 3
    wrong = [name for name, word in words.items() if not check(word, kind)]
    assert not wrong


@pytest.mark.parametrize("kind", MAKERS)
def test_words_of_nodes_have_the_right_derivatives(kind: str) -> None:
    shapes = {name: lambda v, call=call: call(v, BATCH, ()) for name, call in SHAPES.items()}
    words = {**NODES, **shapes}
    if kind == "tensorclass":  # its fields are fixed
        del words["sum by other keys"]
    wrong = [name for name, word in words.items() if not check(word, kind)]
    assert not wrong


@pytest.mark.parametrize("kind", MAKERS)
def test_detach_cuts_the_graph_and_a_second_derivative_goes_through(kind: str) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    node = MAKERS[kind](x, x.unsqueeze(-1) * 2)
    assert not node.detach().requires_grad
    total = (node**3).sum(reduce=True)
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.allclose(first, 27 * x.detach() ** 2)
    assert torch.allclose(second, 54 * x.detach())
