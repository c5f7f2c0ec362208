"""One table of words, said to every kind: the answer is that of the dense kind, which is torch's own on each leaf."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from kinds import KINDS, LEAVES, STORED, assert_same, can_make, held, node_class

from tensordict import TensorClass, TensorDict

BATCHES = [(2, 3), (1, 3), (2, 1), (3, 2, 1), (0, 3), (2, 0)]

# Words on the first dims of a batch of two or more dims: the same call is said to a leaf and to a node.
# A word whose shape arguments name all dims is written with `at`, which adds the other batch dims and the features.
MOVES: dict[str, Any] = {
    "unsqueeze 0": lambda v: v.unsqueeze(0),
    "unsqueeze 1": lambda v: v.unsqueeze(1),
    "unsqueeze 2": lambda v: v.unsqueeze(2),
    "squeeze 0": lambda v: v.squeeze(0),
    "squeeze 1": lambda v: v.squeeze(1),
    "squeeze (0, 1)": lambda v: v.squeeze((0, 1)),
    "transpose": lambda v: v.transpose(0, 1),
    "swapaxes": lambda v: v.swapaxes(1, 0),
    "movedim": lambda v: v.movedim(0, 1),
    "movedim pairs": lambda v: v.movedim((0, 1), (1, 0)),
    "torch.unsqueeze": lambda v: torch.unsqueeze(v, 1),
    "torch.squeeze": lambda v: torch.squeeze(v, 0),
    "torch.transpose": lambda v: torch.transpose(v, 0, 1),
    "torch.movedim": lambda v: torch.movedim(v, 1, 0),
}
ROWS: dict[str, Any] = {
    "flatten": lambda v: v.flatten(0, 1),
    "flatten one": lambda v: v.flatten(1, 1),
    "torch.flatten": lambda v: torch.flatten(v, 0, 1),
    "unflatten": lambda v: v.unflatten(1, (1, -1)) if v.shape[1] else v.unflatten(1, (0, 2)),
    "flip": lambda v: v.flip(0),
    "flip both": lambda v: v.flip((0, 1)),
    "torch.flip": lambda v: torch.flip(v, (1,)),
    "roll": lambda v: v.roll(1, 1),
    "roll both": lambda v: v.roll((1, 2), (0, 1)),
    "narrow": lambda v: v.narrow(1, 0, min(2, v.shape[1])),
    "index_select": lambda v: v.index_select(1, torch.arange(v.shape[1]).repeat(2)),
    "repeat_interleave": lambda v: v.repeat_interleave(2, 1),
    "torch.narrow": lambda v: torch.narrow(v, 0, 0, v.shape[0]),
    "torch.index_select": lambda v: torch.index_select(v, 0, torch.zeros(min(v.shape[0], 1), dtype=torch.long)),
}
INDICES: dict[str, Any] = {
    "[:]": lambda v: v[:],
    "[1:]": lambda v: v[1:],
    "[::2]": lambda v: v[::2],
    "[:0]": lambda v: v[:0],
    "[None]": lambda v: v[None],
    "[:, None]": lambda v: v[:, None],
    "[:, 1:]": lambda v: v[:, 1:],
    "[list]": lambda v: v[[0, 0] if v.shape[0] else []],
    "[tensor]": lambda v: v[torch.arange(v.shape[0]).flip(0)],
    "[:, tensor]": lambda v: v[:, torch.arange(v.shape[1]).flip(0)],
    "[grid]": lambda v: v[torch.zeros(2, min(2, v.shape[0]), dtype=torch.long)],
    "[mask]": lambda v: v[torch.arange(v.shape[0]) % 2 == 0],
    "[mask of two dims]": lambda v: v[torch.ones(v.shape[:2], dtype=torch.bool)],
    "[tensor, tensor]": lambda v: v[torch.arange(v.shape[0]), torch.zeros(1, dtype=torch.long)] if v.shape[1] else v,
    "[True]": lambda v: v[True],
}
COMPUTES: dict[str, Any] = {
    "abs": lambda v: v.abs(),
    "torch.abs": lambda v: torch.abs(v),
    "-": lambda v: -v,
    "abs()": lambda v: abs(v),
    "+ 1": lambda v: v + 1,
    "1 + ": lambda v: 1 + v,
    "* 2": lambda v: v * 2,
    "2 -": lambda v: 2 - v,
    "/ 2": lambda v: v / 2,
    "1 /": lambda v: 1 / (v + 1),
    "// 2": lambda v: v // 2,
    "% 2": lambda v: v % 2,
    "** 2": lambda v: v**2,
    "2 **": lambda v: 2 ** (v / 1000),
    "+ self": lambda v: v + v,
    "* self": lambda v: v * v.clone(),
    "> 1": lambda v: v > 1,
    "== self": lambda v: v == v,
    "!= 1": lambda v: v != 1,
    "exp": lambda v: (v / 1000).exp(),
    "sqrt": lambda v: v.sqrt(),
    "torch.log1p": lambda v: torch.log1p(v),
    "clamp": lambda v: v.clamp(1, 2),
    "maximum": lambda v: v.maximum(v + 1),
    "isnan": lambda v: v.isnan(),
    "logical_not": lambda v: v.logical_not(),
    "torch.add": lambda v: torch.add(v, v, alpha=2),
    "zeros_like": lambda v: torch.zeros_like(v),
    "full_like": lambda v: torch.full_like(v, 3),
    "in place": lambda v: v.clone().add_(1).mul_(2),
    "exp_ in place": lambda v: (v / 100).exp_(),
    "+= on a clone": lambda v: _iadd(v.clone()),
    "float": lambda v: v.float(),
    "to(int64)": lambda v: v.to(torch.int64),
    "bool": lambda v: v.bool(),
    "clone": lambda v: v.clone(),
    "torch.clone": lambda v: torch.clone(v),
    "detach": lambda v: v.detach(),
    "cpu": lambda v: v.to(v.dtype if isinstance(v, torch.Tensor) else "cpu"),
    "contiguous": lambda v: v.contiguous(),
}
JOINS: dict[str, Any] = {
    "stack 0": lambda v: torch.stack([v, v + 1], 0),
    "stack 1": lambda v: torch.stack([v, v + 1], 1),
    "stack 2": lambda v: torch.stack([v, v + 1], 2),
    "cat 0": lambda v: torch.cat([v, v + 1], 0),
    "cat 1": lambda v: torch.cat([v, v + 1, v], 1),
    "concat": lambda v: torch.concat([v, v], 0),
}
REDUCES: dict[str, Any] = {
    "sum 0": lambda v: v.sum(0),
    "sum 1 keepdim": lambda v: v.sum(1, keepdim=True),
    "sum both": lambda v: v.sum((0, 1)),
    "mean 1": lambda v: v.double().mean(1),
    "all 0": lambda v: v.bool().all(0),
    "any 1": lambda v: v.bool().any(1),
}
PARTS: dict[str, Any] = {
    "unbind 0": lambda v: v.unbind(0),
    "unbind 1": lambda v: v.unbind(1),
    "torch.unbind": lambda v: torch.unbind(v, 0),
    "split": lambda v: v.split(1, 1),
    "split sizes": lambda v: v.split([0, v.shape[0]], 0),
    "torch.split": lambda v: torch.split(v, 2, 0),
    "chunk": lambda v: v.chunk(2, 1),
    "torch.chunk": lambda v: torch.chunk(v, 2, 0),
    "tensor_split": lambda v: v.tensor_split(2, 1),
}
ONE_TO_ONE = {**MOVES, **ROWS, **INDICES, **COMPUTES, **JOINS, **REDUCES}

# Words that say something to each member of a lazy stack, which therefore stays one.
KEEPS_MEMBERS = {*MOVES, *COMPUTES, *JOINS, "[:]", "[1:]", "[None]", "[:, None]", "[:, 1:]", "[list]", "[tensor]"} - {
    "squeeze 0",
    "squeeze 1",
    "squeeze (0, 1)",
    "torch.squeeze",
    "contiguous",
}

# Words that pick rows without a copy: of a node in a store, they read nothing.
WINDOWS = {*INDICES, "narrow", "torch.narrow"}


DENSE = ("dense", "tensorclass", "mapped", "shared", "tensorclass_of_mapped", "tensorclass_of_shared", "typed")


def _iadd(v: Any) -> Any:
    v += 1
    return v


def cases() -> list[Any]:
    return [
        pytest.param(kind, batch, id=f"{kind}-{batch}") for kind in KINDS for batch in BATCHES if can_make(kind, batch)
    ]


def said(word: Any, leaf: torch.Tensor) -> Any:
    """Return what torch makes of a word, or None where it refuses it."""
    try:
        return word(leaf)
    except (IndexError, RuntimeError, ValueError):
        return None


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("word", ONE_TO_ONE)
def test_the_dense_kind_says_to_each_leaf_what_torch_says(word: str, batch: tuple[int, ...]) -> None:
    call, td = ONE_TO_ONE[word], KINDS["dense"](batch)
    probe = said(call, torch.zeros(batch, dtype=torch.float64))
    if probe is None:
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            call(td)
        return
    got = call(td)
    assert type(got) is TensorDict
    assert got.batch_size == probe.shape
    for key in LEAVES:
        want = call(td[key])
        assert got[key].dtype == want.dtype
        assert torch.allclose(got[key], want, 0, 0, equal_nan=True), key
    assert got.get("inner").batch_size == probe.shape
    assert held(got, "word").shape == probe.shape


@pytest.mark.parametrize("kind, batch", [case for case in cases() if not case.id.startswith("dense")])
def test_every_kind_answers_as_the_dense_kind(kind: str, batch: tuple[int, ...]) -> None:
    for word, call in ONE_TO_ONE.items():
        node, td = KINDS[kind](batch), KINDS["dense"](batch)
        node.names = td.names = ["a", "b", "c"][: len(batch)]
        if said(call, torch.zeros(batch, dtype=torch.float64)) is None:
            with pytest.raises((IndexError, RuntimeError, ValueError)):
                call(node)
            continue
        got, want = call(node), call(td)
        assert_same(got, want, word)
        assert isinstance(got, TensorClass) is isinstance(node, TensorClass), word
        if kind in STORED:
            reads = node_class(got) == ("Window" if word in WINDOWS else "TensorDict")
            assert reads or got is node, word
        elif word in KEEPS_MEMBERS and (math.prod(got.batch_size) or not math.prod(batch)):  # no rows, no members
            assert node_class(got) == node_class(node), word


@pytest.mark.parametrize("kind, batch", cases())
def test_every_kind_parts_as_torch_does(kind: str, batch: tuple[int, ...]) -> None:
    for word, call in PARTS.items():
        node, td = KINDS[kind](batch), KINDS["dense"](batch)
        parts = call(node)
        shapes = [tuple(part.shape) for part in call(torch.zeros(batch))]
        assert [tuple(part.batch_size) for part in parts] == shapes, word
        for key in LEAVES:
            for part, want in zip(parts, call(td[key]), strict=True):
                assert torch.equal(part.get(key), want), (word, key)
        assert all(isinstance(part, TensorClass) is isinstance(node, TensorClass) for part in parts), word


SHAPES: dict[str, Any] = {
    "reshape(-1)": lambda v, batch, rest: v.reshape(-1, *rest),
    "reshape": lambda v, batch, rest: v.reshape(1, *batch, 1, *rest),
    "view": lambda v, batch, rest: v.view(*batch, 1, *rest),
    "torch.reshape": lambda v, batch, rest: torch.reshape(v, (math.prod(batch), *rest)),
    "expand": lambda v, batch, rest: v.expand(4, *batch, *rest),
    "broadcast_to": lambda v, batch, rest: torch.broadcast_to(v, (2, *batch, *rest)),
    "permute": lambda v, batch, rest: v.permute(*_turned(batch, rest)),
    "torch.permute": lambda v, batch, rest: torch.permute(v, _turned(batch, rest)),
    "repeat": lambda v, batch, rest: v.repeat(2, *(1,) * (len(batch) - 1), *(1,) * len(rest)),
}


def _turned(batch: tuple[int, ...], rest: tuple[int, ...]) -> tuple[int, ...]:
    n = len(batch)
    return (*reversed(range(n)), *range(n, n + len(rest)))


@pytest.mark.parametrize("kind, batch", cases())
def test_words_of_whole_shapes(kind: str, batch: tuple[int, ...]) -> None:
    for word, call in SHAPES.items():
        if said(lambda v, call=call: call(v, batch, ()), torch.zeros(batch)) is None:
            continue
        node, td = KINDS[kind](batch), KINDS["dense"](batch)
        got = call(node, batch, ())
        assert got.batch_size == call(torch.zeros(batch), batch, ()).shape, word
        for key in LEAVES:
            leaf = td[key]
            assert torch.equal(got.get(key), call(leaf, batch, tuple(leaf.shape[len(batch) :]))), (word, key)
        assert isinstance(got, TensorClass) is isinstance(node, TensorClass), word


@pytest.mark.parametrize("kind, batch", [case for case in cases() if case.values[0] in DENSE])
def test_operands_line_up_with_batch_dims(kind: str, batch: tuple[int, ...]) -> None:
    for shape in (batch, batch[1:], (*batch[:-1], 1)):
        operand = torch.arange(1.0, 1 + math.prod(shape), dtype=torch.float64).reshape(shape)
        td = KINDS["dense"](batch)
        wide = operand.expand(batch)
        for word, call in {"+": lambda a, b: a + b, "*": lambda a, b: b * a, "mul": lambda a, b: a.mul(b)}.items():
            got = call(KINDS[kind](batch), operand)
            for key in LEAVES:
                lined = wide.reshape(*batch, *(1,) * (td[key].ndim - len(batch)))
                assert torch.equal(got.get(key), call(td[key], lined)), (word, key)


@pytest.mark.parametrize("kind, batch", [case for case in cases() if math.prod(case.values[1])])
def test_answers_of_python(kind: str, batch: tuple[int, ...]) -> None:
    node = KINDS[kind](batch)
    assert len(node) == batch[0]
    assert [row.batch_size for row in node] == [batch[1:]] * batch[0]
    assert node.numel() == math.prod(batch)
    assert (node == node).all()
    assert not (node != node).any()
    assert not (node == node + 1).all()
    assert not node.is_empty()
    assert not node.requires_grad
    assert str(list(batch)) in repr(node)
    assert set(LEAVES) <= set(node.keys(True, True))
