"""A word on a tensordict is torch's own word on every leaf: random trees, dtypes and batch shapes, a table of words.

Words that only move rows are checked against a tensor of row numbers: torch's own word on it says which row goes where,
in every leaf alike. Words that compute are checked against torch's own on each leaf. When torch refuses a leaf, the
tensordict refuses too; nothing else is refused.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "20"))
DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64, torch.complex64]
BATCHES: list[tuple[int, ...]] = [(), (1,), (3,), (0,), (2, 3), (3, 1), (1, 1), (0, 2), (2, 0), (2, 1, 3), (2, 3, 2)]
Shape = tuple[int, ...]
properties = hypothesis.settings(
    max_examples=EXAMPLES,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)


# ---- random trees


def values(shape: Shape, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return small numbers that repeat at no regular distance."""
    return ((torch.arange(math.prod(shape)) * 7 + seed) % 11 - 3).to(dtype).reshape(shape)


def a_tree(draw: Any, batch: Shape, depth: int, dtypes: list[torch.dtype]) -> TensorDict:
    node = TensorDict({}, batch)
    for at in range(draw(st.integers(0, 3 if depth else 5))):
        shape = (*batch, *draw(st.sampled_from([(), (2,), (1, 3), (0,)])))
        node[f"leaf{at}"] = values(shape, draw(st.sampled_from(dtypes)), draw(st.integers(0, 10)))
    for at in range(draw(st.integers(0, min(depth, 2)))):
        wide = (*batch, *draw(st.sampled_from([(), (), (2,), (1, 2)])))
        node[f"node{at}"] = a_tree(draw, wide, draw(st.integers(0, depth - 1)), dtypes)
    return node


def tree(data: Any, least: int = 0, dtypes: list[torch.dtype] | None = None) -> TensorDict:
    """Draw a tensordict with at least so many batch dims, some of them named."""
    batch = data.draw(st.sampled_from([batch for batch in BATCHES if len(batch) >= least]))
    node = a_tree(data.draw, batch, data.draw(st.integers(0, 3)), dtypes or DTYPES)
    if data.draw(st.booleans()):
        node.names = [data.draw(st.sampled_from([name, name, None])) for name in "xyz"[: len(batch)]]
    return node


def another(node: TensorDict, shift: int = 1) -> TensorDict:
    """Return a tree of the same shapes and dtypes with other values."""
    return node.apply(lambda v: values(tuple(v.shape), v.dtype, shift), filter_empty=False)


# ---- the comparison


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return (
        one.dtype == two.dtype
        and one.shape == two.shape
        and (torch.equal(one, two) or torch.allclose(one, two, equal_nan=True))
    )


def leaves(node: TensorDict) -> list[torch.Tensor]:
    return list(node.values(True, True))


def refused(call: Callable[[torch.Tensor], Any], node: TensorDict) -> bool:
    """Tell whether torch refuses a call on one of the leaves."""
    for leaf in leaves(node):
        try:
            call(leaf)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            return True
    return False


def check(
    got: Any, node: TensorDict, call: Callable[[torch.Tensor], torch.Tensor], batch: Callable[[Shape], Shape]
) -> None:
    """Assert that each leaf is what the call makes of it, and each batch size what the rule makes of it."""
    assert tuple(got.batch_size) == tuple(batch(tuple(node.batch_size)))
    assert set(got.keys()) == set(node.keys())
    for key, child in node.items():
        if isinstance(child, torch.Tensor):
            assert same(got[key], call(child)), key
        else:
            check(got[key], child, call, batch)


def agree(
    word: Callable[[TensorDict], Any],
    node: TensorDict,
    call: Callable[[torch.Tensor], torch.Tensor],
    batch: Callable[[Shape], Shape] = lambda own: own,
) -> Any:
    """Return what a word makes of a tree after checking it; None if torch refuses a leaf and the tree refuses too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of too few elements for a deviation, of the imaginary part that a cast drops
        if refused(call, node):
            with pytest.raises((RuntimeError, IndexError, TypeError, ValueError, NotImplementedError)):
                word(node)
            return None
        got = word(node)
        check(got, node, call, batch)
    return got


# ---- words that move rows


def dim(draw: Any, batch: Shape, extra: int = 0) -> int:
    n = len(batch) + extra
    return int(draw(st.integers(-n, n - 1)))


def order(draw: Any, batch: Shape) -> list[int]:
    return list(draw(st.permutations(range(len(batch)))))


def factors(draw: Any, count: int) -> Shape:
    """Return a shape of so many elements."""
    shapes = [(count,), (1, count), (count, 1)] + [(count // by, by) for by in (2, 3) if count % by == 0]
    return tuple(draw(st.sampled_from(shapes)))


def holed(draw: Any, shape: Shape) -> Shape:
    """Return a shape in which one size may be left to torch."""
    if 0 in shape or not draw(st.booleans()):
        return shape
    at = draw(st.integers(0, len(shape) - 1))
    return (*shape[:at], -1, *shape[at + 1 :])


def reshaping(draw: Any, count: int) -> Shape:
    return () if count == 1 and draw(st.booleans()) else holed(draw, factors(draw, count))


def span(draw: Any, batch: Shape) -> tuple[int, int]:
    low = draw(st.integers(0, len(batch) - 1))
    return low, draw(st.integers(low, len(batch) - 1))


def unflattening(draw: Any, batch: Shape) -> tuple[int, Shape]:
    d = dim(draw, batch)
    return d, holed(draw, factors(draw, batch[d]))


def expansion(draw: Any, batch: Shape) -> Shape:
    own = tuple(draw(st.sampled_from([2, 0])) if size == 1 and draw(st.booleans()) else size for size in batch)
    return (*draw(st.sampled_from([(), (2,), (1, 2)])), *own)


def picks(draw: Any, batch: Shape) -> tuple[int, torch.Tensor]:
    d = dim(draw, batch)
    count = 4 if batch[d] else 0
    rows = draw(st.lists(st.integers(0, max(batch[d] - 1, 0)), max_size=count))
    return d, torch.tensor(rows, dtype=torch.long)


def gathering(draw: Any, batch: Shape) -> tuple[int, torch.Tensor]:
    d = dim(draw, batch) % len(batch)
    shape = [draw(st.integers(0, size)) if at != d else 3 * bool(size) for at, size in enumerate(batch)]
    return d, values(tuple(shape), torch.long, 3) % max(batch[d], 1)


def taken(draw: Any, batch: Shape) -> tuple[int, int, int]:
    d = dim(draw, batch)
    start = draw(st.integers(0, batch[d]))
    return d, start, draw(st.integers(0, batch[d] - start))


def _numbers(draw: Any, batch: Shape) -> Shape:
    return tuple(draw(st.integers(0, 2)) for _ in batch)


def _plane(draw: Any, batch: Shape) -> tuple[int, list[int]]:
    return draw(st.integers(-5, 5)), order(draw, batch)[:2]


Arguments = Callable[[Any, Shape], tuple[Any, ...]]
ROWS: dict[str, tuple[int, Arguments]] = {
    "permute": (0, lambda draw, batch: (order(draw, batch),)),
    "transpose": (1, lambda draw, batch: (dim(draw, batch), dim(draw, batch))),
    "swapaxes": (1, lambda draw, batch: (dim(draw, batch), dim(draw, batch))),
    "swapdims": (1, lambda draw, batch: (dim(draw, batch), dim(draw, batch))),
    "movedim": (1, lambda draw, batch: (dim(draw, batch), dim(draw, batch))),
    "moveaxis": (2, lambda draw, batch: (order(draw, batch)[:2], order(draw, batch)[:2])),
    "unsqueeze": (0, lambda draw, batch: (dim(draw, batch, 1),)),
    "squeeze": (0, lambda draw, batch: (dim(draw, batch),) if batch and draw(st.booleans()) else ()),
    "flatten": (1, span),
    "unflatten": (1, unflattening),
    "reshape": (0, lambda draw, batch: (reshaping(draw, math.prod(batch)),)),
    "view": (0, lambda draw, batch: (reshaping(draw, math.prod(batch)),)),
    "expand": (0, lambda draw, batch: (expansion(draw, batch),)),
    "broadcast_to": (0, lambda draw, batch: (expansion(draw, batch),)),
    "flip": (1, lambda draw, batch: tuple(order(draw, batch)[: draw(st.integers(1, 2))])),
    "fliplr": (2, lambda draw, batch: ()),
    "flipud": (1, lambda draw, batch: ()),
    "rot90": (2, _plane),
    "roll": (1, lambda draw, batch: (draw(st.integers(-4, 4)), draw(st.sampled_from([None, dim(draw, batch)])))),
    "repeat": (1, _numbers),
    "tile": (0, lambda draw, batch: (_numbers(draw, draw(st.sampled_from([batch, (1, *batch), batch[1:]]))),)),
    "repeat_interleave": (
        1,
        lambda draw, batch: (draw(st.integers(0, 3)), draw(st.sampled_from([None, dim(draw, batch)]))),
    ),
    "index_select": (1, picks),
    "gather": (1, gathering),
    "narrow": (1, taken),
    "atleast_1d": (0, lambda draw, batch: ()),
    "atleast_2d": (0, lambda draw, batch: ()),
    "atleast_3d": (0, lambda draw, batch: ()),
}
PARTS: dict[str, Arguments] = {
    "split": lambda draw, batch: (draw(st.integers(1, 3)), dim(draw, batch)),
    "chunk": lambda draw, batch: (draw(st.integers(1, 4)), dim(draw, batch)),
    "tensor_split": lambda draw, batch: (draw(st.sampled_from([1, 2, 4, [1], [0, 2]])), dim(draw, batch)),
    "unbind": lambda draw, batch: (dim(draw, batch),),
}


def said(name: str) -> Callable[..., Any]:
    """Return a word as a function: torch's when tensors do not have it as a method."""
    return getattr(torch.Tensor, name, None) or getattr(torch, name)  # type: ignore[no-any-return]


def numbers(batch: Shape) -> torch.Tensor:
    return torch.arange(math.prod(batch)).reshape(batch)


def check_rows(got: Any, node: TensorDict, rows: torch.Tensor) -> None:
    """Assert that a tree has those rows of another, in the shape of the row numbers."""
    n = node.ndim
    check(
        got,
        node,
        lambda v: v.reshape(math.prod(v.shape[:n]), *v.shape[n:])[rows],
        lambda own: (*rows.shape, *own[n:]),
    )


@pytest.mark.parametrize("word", ROWS)
@properties
@hypothesis.given(data=st.data())
def test_words_that_move_rows_move_them_as_torch_does(word: str, data: Any) -> None:
    least, arguments = ROWS[word]
    node = tree(data, least)
    args = arguments(data.draw, tuple(node.batch_size))
    check_rows(getattr(node, word)(*args), node, said(word)(numbers(tuple(node.batch_size)), *args))


@pytest.mark.parametrize("word", PARTS)
@properties
@hypothesis.given(data=st.data())
def test_words_that_part_rows_part_them_as_torch_does(word: str, data: Any) -> None:
    node = tree(data, 1)
    args = PARTS[word](data.draw, tuple(node.batch_size))
    want = said(word)(numbers(tuple(node.batch_size)), *args)
    got = getattr(node, word)(*args)
    assert len(got) == len(want)
    for part, rows in zip(got, want, strict=True):
        check_rows(part, node, rows)


@properties
@hypothesis.given(data=st.data(), word=st.sampled_from([torch.stack, torch.cat]))
def test_joined_trees_have_joined_leaves(data: Any, word: Any) -> None:
    node = tree(data, int(word is torch.cat))
    extra = int(word is torch.stack)
    d = dim(data.draw, tuple(node.batch_size), extra) % (node.ndim + extra)
    other = another(node)
    got = word([node, other, node], d)
    pairs = {id(v): w for v, w in zip(leaves(node), leaves(other), strict=True)}
    want = word([torch.empty(node.batch_size)] * 3, d).shape
    n = node.ndim
    check(got, node, lambda v: word([v, pairs[id(v)], v], d), lambda own: (*want, *own[n:]))


# ---- names

NAMED: list[tuple[Callable[[TensorDict], Any], list[str | None]]] = [
    (lambda td: td.permute(2, 0, 1), ["z", "x", "y"]),
    (lambda td: td.transpose(0, 2), ["z", "y", "x"]),
    (lambda td: td.movedim(0, -1), ["y", "z", "x"]),
    (lambda td: td.unsqueeze(1), ["x", None, "y", "z"]),
    (lambda td: td.squeeze(), ["x", "z"]),
    (lambda td: td.flatten(0, 1), [None, "z"]),
    (lambda td: td.unflatten(2, (3, 1)), ["x", "y", None, None]),
    (lambda td: td.expand(5, 2, 4, 3), [None, "x", "y", "z"]),
    (lambda td: td.atleast_3d(), ["x", "y", "z"]),
    (lambda td: td[0].squeeze().atleast_3d(), [None, "z", None]),
    (lambda td: td.flip(0, 1), ["x", "y", "z"]),
    (lambda td: td.roll(1), ["x", "y", "z"]),
    (lambda td: td.rot90(1, (0, 2)), ["z", "y", "x"]),
    (lambda td: td.repeat(2, 1, 1), ["x", "y", "z"]),
    (lambda td: td.tile((2, 2)), ["x", "y", "z"]),
    (lambda td: td.repeat_interleave(2, dim=0), ["x", "y", "z"]),
    (lambda td: td.index_select(0, torch.tensor([1])), ["x", "y", "z"]),
    (lambda td: td.gather(0, torch.zeros(1, 1, 3, dtype=torch.long)), ["x", "y", "z"]),
    (lambda td: td.pad([1, 0]), ["x", "y", "z"]),
    (lambda td: td.reshape(6), [None]),
    (lambda td: td[0], ["y", "z"]),
    (lambda td: td[:, None, 0], ["x", None, "z"]),
    (lambda td: td[[0, 1]], ["x", "y", "z"]),
    (lambda td: td[..., [0, 1]], ["x", "y", "z"]),
    (lambda td: td[torch.tensor([True, False])], ["x", "y", "z"]),
    (lambda td: td[torch.tensor([[0, 1]])], [None, None, "y", "z"]),
    (lambda td: td[[0, 1], [0, 0]], [None, "z"]),
    (lambda td: td[True], [None, "x", "y", "z"]),
    (lambda td: td.split(1, 1)[0], ["x", "y", "z"]),
    (lambda td: td.unbind(1)[0], ["x", "z"]),
    (lambda td: torch.stack([td, td], 1), ["x", None, "y", "z"]),
    (lambda td: torch.cat([td, td], 1), ["x", "y", "z"]),
    (lambda td: td.sum(1), ["x", "z"]),
    (lambda td: td.sum((0, 2), keepdim=True), ["x", "y", "z"]),
    (lambda td: td.mean(keepdim=True), ["x", "y", "z"]),
    (lambda td: td.max(0).values, ["y", "z"]),
    (lambda td: td.cummax(0).values, ["x", "y", "z"]),
    (lambda td: td.quantile(0.5, 2), ["x", "y"]),
    (lambda td: td.quantile(torch.tensor([0.5, 0.1]), 2), [None, "x", "y"]),
    (lambda td: td.softmax(0), ["x", "y", "z"]),
    (lambda td: td == td, ["x", "y", "z"]),
    (lambda td: td.where(torch.ones(2, 1, 3, dtype=torch.bool), 0), ["x", "y", "z"]),
    (lambda td: td.double(), ["x", "y", "z"]),
]


@pytest.mark.parametrize("at", range(len(NAMED)))
def test_names_travel_here_and_in_nested_nodes(at: int) -> None:
    word, names = NAMED[at]
    inner = TensorDict({"b": torch.zeros(2, 1, 3, 4)}, [2, 1, 3])
    wide = TensorDict({"c": torch.zeros(2, 1, 3, 4)}, [2, 1, 3, 4])
    node = TensorDict({"a": torch.zeros(2, 1, 3), "inner": inner, "wide": wide}, [2, 1, 3], names=["x", "y", "z"])
    got = word(node)
    assert got.names == names
    assert got["inner"].names == names


def test_names_that_are_set_reach_nested_nodes() -> None:
    deep = TensorDict({"b": torch.zeros(2, 3)}, [2, 3], names=[None, "k"])
    node = TensorDict({"inner": {"deep": deep}}, [2])
    node.names = ["x"]
    assert (node["inner"].names, node["inner", "deep"].names) == (["x"], ["x", "k"])
    renamed = node.rename(x="y")
    assert (renamed["inner"].names, renamed["inner", "deep"].names) == (["y"], ["y", "k"])
    assert (node["inner"].names, node["inner", "deep"].names) == (["x"], ["x", "k"])


# ---- words that compute

UNARY = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac isfinite isinf isnan isneginf isposinf isreal "
    "lgamma log log10 log1p log2 logical_not neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square "
    "tan tanh trunc"
).split()
BINARY = (
    "add sub mul div pow clamp_min clamp_max maximum minimum logical_and logical_or logical_xor bitwise_and".split()
)
TENSORS_ONLY = {"maximum", "minimum", "logical_and", "logical_or", "logical_xor"}  # torch gives these no numbers
OPERATORS = "__add__ __sub__ __mul__ __truediv__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__".split()
CASTS = "bool double float half int long".split()


@pytest.mark.parametrize("word", UNARY)
@properties
@hypothesis.given(data=st.data())
def test_unary_words_are_those_of_each_leaf(word: str, data: Any) -> None:
    node = tree(data)
    got = agree(lambda td: getattr(td, word)(), node, lambda v: getattr(v, word)())
    assert got is None or got.names == node.names


def fitted(value: Any, leaf: torch.Tensor) -> Any:
    """Return an operand that has batch dims as torch wants it beside a leaf."""
    if not isinstance(value, torch.Tensor) or not value.ndim:
        return value
    return value.reshape(*value.shape, *(1,) * (leaf.ndim - value.ndim))


def operand(data: Any, batch: Shape) -> Any:
    """Draw a number, or a tensor that broadcasts against the batch dims."""
    number = data.draw(st.sampled_from([2, 0.5, True, -1]))
    if not batch or data.draw(st.booleans()):
        return number
    sizes = tuple(1 if data.draw(st.booleans()) else size for size in batch)
    return values(sizes, data.draw(st.sampled_from(DTYPES)), 5)


@pytest.mark.parametrize("word", BINARY + OPERATORS)
@properties
@hypothesis.given(data=st.data())
def test_binary_words_take_numbers_and_tensors_of_the_batch(word: str, data: Any) -> None:
    node = tree(data)
    value = operand(data, tuple(node.batch_size))

    def call(v: torch.Tensor) -> Any:
        beside = fitted(value, v)
        if word in TENSORS_ONLY and not isinstance(beside, torch.Tensor):
            beside = torch.tensor(beside, dtype=torch.result_type(v, beside))
        return getattr(v, word)(beside)

    agree(lambda td: getattr(td, word)(value), node, call)


@pytest.mark.parametrize("word", BINARY + OPERATORS)
@properties
@hypothesis.given(data=st.data())
def test_binary_words_pair_tensordicts_by_key(word: str, data: Any) -> None:
    node = tree(data)
    other = another(node)
    pairs = {id(v): w for v, w in zip(leaves(node), leaves(other), strict=True)}
    agree(lambda td: getattr(td, word)(other), node, lambda v: getattr(v, word)(pairs[id(v)]))


@pytest.mark.parametrize("word", CASTS)
@properties
@hypothesis.given(data=st.data())
def test_casts_are_those_of_each_leaf(word: str, data: Any) -> None:
    agree(lambda td: getattr(td, word)(), tree(data), lambda v: getattr(v, word)())


@properties
@hypothesis.given(data=st.data())
def test_masks_choose_rows(data: Any) -> None:
    node = tree(data)
    sizes = tuple(1 if data.draw(st.booleans()) else size for size in node.batch_size)
    mask = values(sizes, torch.long, data.draw(st.integers(0, 9))) > 0
    number = data.draw(st.sampled_from([1, 0]))
    agree(lambda td: td.masked_fill(mask, number), node, lambda v: v.masked_fill(fitted(mask, v), number))
    agree(lambda td: td.where(mask, number), node, lambda v: v.where(fitted(mask, v), number))
    other = another(node)
    pairs = {id(v): w for v, w in zip(leaves(node), leaves(other), strict=True)}
    agree(lambda td: td.where(mask, other), node, lambda v: v.where(fitted(mask, v), pairs[id(v)]))


@properties
@hypothesis.given(data=st.data())
def test_padding_is_that_of_each_leaf(data: Any) -> None:
    node = tree(data, 1)
    n = node.ndim
    sizes = data.draw(st.lists(st.integers(0, 2), min_size=2 * n, max_size=2 * n))
    flat = [size for at in reversed(range(n)) for size in sizes[2 * at : 2 * at + 2]]

    def call(v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(v, [0, 0] * (v.ndim - n) + flat, value=1)

    want = call(torch.empty(node.batch_size)).shape
    agree(lambda td: td.pad(sizes, value=1), node, call, lambda own: (*want, *own[n:]))


# ---- reductions

REDUCTIONS = "sum nansum mean nanmean prod std var amax amin logsumexp".split()


def reduced(own: Shape, over: Any, keepdim: bool) -> Shape:
    return tuple(torch.empty(own).sum(over, keepdim).shape if own else ())


@pytest.mark.parametrize("word", REDUCTIONS)
@properties
@hypothesis.given(data=st.data(), keepdim=st.booleans())
def test_reductions_over_batch_dims_are_those_of_each_leaf(word: str, data: Any, keepdim: bool) -> None:
    node = tree(data, 1)
    over: Any = tuple(order(data.draw, tuple(node.batch_size))[: data.draw(st.integers(1, 3))])
    over = over[0] if word == "prod" or data.draw(st.booleans()) else over
    if data.draw(st.booleans()) and isinstance(over, int):
        over -= node.ndim

    def call(v: torch.Tensor) -> torch.Tensor:
        front = over % node.ndim if isinstance(over, int) else over
        return getattr(v, word)(front, keepdim=keepdim)  # type: ignore[no-any-return]

    n = node.ndim
    want = reduced(tuple(node.batch_size), over, keepdim)
    agree(lambda td: getattr(td, word)(over, keepdim), node, call, lambda own: (*want, *own[n:]))


@pytest.mark.parametrize("word", [word for word in REDUCTIONS if word != "logsumexp"])
@properties
@hypothesis.given(data=st.data(), keepdim=st.booleans())
def test_reductions_over_everything_are_those_of_each_leaf(word: str, data: Any, keepdim: bool) -> None:
    node = tree(data)

    def call(v: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(v, word)()
        return found.reshape((1,) * v.ndim) if keepdim else found

    agree(lambda td: getattr(td, word)(keepdim=keepdim), node, call, lambda own: (1,) * len(own) if keepdim else ())


@pytest.mark.parametrize("word", [word for word in REDUCTIONS if word != "logsumexp"])
@properties
@hypothesis.given(data=st.data())
def test_reductions_over_features_leave_one_number_a_row(word: str, data: Any) -> None:
    node = tree(data)

    def check_node(got: Any, own: TensorDict) -> None:
        assert got.batch_size == own.batch_size
        for key, child in own.items():
            if isinstance(child, torch.Tensor):
                rows = child.flatten(own.ndim) if child.ndim > own.ndim else child.unsqueeze(-1)
                assert same(got[key], getattr(rows, word)(own.ndim)), key
            else:
                check_node(got[key], child)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = getattr(node, word)(dim="feature")
        except (RuntimeError, IndexError, NotImplementedError):
            # torch refuses some dtypes, and the extremes of no elements
            assert any(v.dtype not in (torch.float32, torch.float64) or not v.numel() for v in leaves(node))
            return
        check_node(got, node)


@pytest.mark.parametrize("word", "max min cummax cummin".split())
@properties
@hypothesis.given(data=st.data())
def test_extremes_come_with_their_places(word: str, data: Any) -> None:
    node = tree(data, 1)
    d = dim(data.draw, tuple(node.batch_size)) % node.ndim
    n = node.ndim
    own = tuple(node.batch_size)
    want = own if word.startswith("cum") else own[:d] + own[d + 1 :]
    for part in ("values", "indices"):
        agree(
            lambda td, part=part: getattr(getattr(td, word)(d), part),
            node,
            lambda v, part=part: getattr(getattr(v, word)(d), part),
            lambda batch: (*want, *batch[n:]),
        )


@pytest.mark.parametrize("word", ["all", "any"])
@properties
@hypothesis.given(data=st.data())
def test_logical_reductions_are_those_of_each_leaf(word: str, data: Any) -> None:
    node = tree(data, 1)
    d = dim(data.draw, tuple(node.batch_size)) % node.ndim
    n, own = node.ndim, tuple(node.batch_size)
    want = own[:d] + own[d + 1 :]
    agree(lambda td: getattr(td, word)(d), node, lambda v: getattr(v, word)(d), lambda batch: (*want, *batch[n:]))
    every = [bool(getattr(v, word)()) for v in leaves(node)]
    assert getattr(node, word)() is (all(every) if word == "all" else any(every))


@properties
@hypothesis.given(data=st.data())
def test_a_softmax_is_that_of_each_leaf(data: Any) -> None:
    node = tree(data, 1, [torch.float32, torch.float64])
    d = dim(data.draw, tuple(node.batch_size)) % node.ndim
    agree(lambda td: td.softmax(d), node, lambda v: v.softmax(d))


@properties
@hypothesis.given(data=st.data())
def test_a_number_is_written_into_rows_of_one_value(data: Any) -> None:
    node = tree(data, 1, [torch.float32, torch.int64])
    hypothesis.assume(node.batch_size[0])
    row = data.draw(st.integers(-node.batch_size[0], node.batch_size[0] - 1))
    for key in node.keys(True, True):
        want = node[key].clone()
        want[row] = 7
        assert same(node.set_at_(key, 7, row)[key], want)


# ---- the kinds: a lazy stack inside and a tensorclass outside give what the dense tree gives


class Held(TensorClass):
    """A tensorclass that holds a random tree."""

    lone: torch.Tensor
    held: Any


def as_kind(data: Any, node: TensorDict) -> Any:
    """Return a tree as a lazy stack, in a tensorclass, or with nested nodes as lazy stacks."""
    kind = data.draw(st.sampled_from(["lazy", "tensorclass", "inside"]))
    sizes = tuple(node.batch_size)
    if kind == "tensorclass":
        return Held(lone=values(sizes, torch.float32, 2), held=node.clone(), batch_size=sizes)
    if kind == "lazy" and sizes and min(sizes):
        return lazily(node, data.draw(st.integers(0, len(sizes) - 1)))
    for key, child in list(node.items()):
        if isinstance(child, TensorDict) and min(child.batch_size, default=0):
            node[key] = lazily(child, data.draw(st.integers(0, child.ndim - 1)))
    return node


def lazily(node: TensorDict, dim: int) -> Any:
    return LazyStackedTensorDict(*(row.clone() for row in node.unbind(dim)), stack_dim=dim)


def leaves_of(node: Any) -> dict[Any, torch.Tensor]:
    return {key: torch.as_tensor(value) for key, value in node.items(True, True)}


KIND_WORDS = [word for word in ROWS if word not in ("view", "gather")]


@pytest.mark.parametrize("word", KIND_WORDS)
@properties
@hypothesis.given(data=st.data())
def test_every_kind_moves_rows_as_torch_does(word: str, data: Any) -> None:
    least, arguments = ROWS[word]
    node = as_kind(data, tree(data, least))
    batch = tuple(node.batch_size)
    args = arguments(data.draw, batch)
    rows, got = said(word)(numbers(batch), *args), getattr(node, word)(*args)
    assert tuple(got.batch_size) == tuple(rows.shape)
    made = leaves_of(got)
    for key, leaf in leaves_of(node).items():
        flat = leaf.reshape(math.prod(batch), *leaf.shape[len(batch) :])
        assert same(made[key], flat[rows]), key


KIND_COMPUTES: dict[str, Callable[[Any, int], Any]] = {
    "+": lambda v, d: v + 2,
    "*": lambda v, d: v * 0.5,
    "==": lambda v, d: v == 1,
    "abs": lambda v, d: v.abs(),
    "square": lambda v, d: v.square(),
    "double": lambda v, d: v.double(),
    "clamp_min": lambda v, d: v.clamp_min(1),
    "sum": lambda v, d: v.sum(d),
    "mean": lambda v, d: v.mean(d, keepdim=True),
    "amax": lambda v, d: v.amax(d),
    "prod": lambda v, d: v.prod(d, keepdim=True),
    "any": lambda v, d: v.any(d),
    "cummax": lambda v, d: v.cummax(d)[0],
}


@pytest.mark.parametrize("word", KIND_COMPUTES)
@properties
@hypothesis.given(data=st.data())
def test_every_kind_computes_what_torch_computes(word: str, data: Any) -> None:
    node = as_kind(data, tree(data, 1, [dtype for dtype in DTYPES if not dtype.is_complex]))
    d = data.draw(st.integers(0, node.ndim - 1))

    def call(v: Any) -> Any:
        return KIND_COMPUTES[word](v, d)

    before = leaves_of(node)
    errors = (RuntimeError, IndexError, TypeError, NotImplementedError)
    try:
        want = {key: call(leaf) for key, leaf in before.items()}
    except errors:
        with pytest.raises(errors):
            call(node)
        return
    made = leaves_of(call(node))
    assert made.keys() == want.keys()
    for key, leaf in want.items():
        assert same(made[key], leaf), key


@pytest.mark.parametrize("word", ["add", "mul", "maximum", "__lt__"])
@properties
@hypothesis.given(data=st.data())
def test_every_kind_broadcasts_tensors_against_its_batch_dims(word: str, data: Any) -> None:
    node = as_kind(data, tree(data, 1, [torch.float32, torch.int64]))
    sizes = tuple(1 if data.draw(st.booleans()) else size for size in node.batch_size)
    value = values(sizes, data.draw(st.sampled_from([torch.float32, torch.int64, torch.bool])), 5)
    made = leaves_of(getattr(node, word)(value))
    for key, leaf in leaves_of(node).items():
        assert same(made[key], getattr(leaf, word)(fitted(value, leaf))), key


@properties
@hypothesis.given(data=st.data())
def test_every_kind_reads_and_writes_rows(data: Any) -> None:
    node = as_kind(data, tree(data, 1))
    size = node.batch_size[0]
    mask = values((size,), torch.long, data.draw(st.integers(0, 9))) > 0
    rows = data.draw(st.lists(st.integers(-size, size - 1), max_size=3)) if size else []
    choices: list[Any] = [mask, mask.numpy(), rows, torch.tensor(rows, dtype=torch.long), slice(None, None, 2), None]
    index: Any = data.draw(st.sampled_from([*choices, Ellipsis, True, range(size), (Ellipsis, None)]))
    plain = torch.tensor(index, dtype=torch.long) if isinstance(index, (list, range)) else index
    plain = torch.from_numpy(plain) if hasattr(plain, "__array__") and not torch.is_tensor(plain) else plain
    n = node.ndim
    got, before = leaves_of(node[index]), {key: leaf.clone() for key, leaf in leaves_of(node).items()}
    for key, leaf in before.items():
        assert same(got[key], leaf.unsqueeze(n) if isinstance(plain, tuple) else leaf[plain]), key
    if not isinstance(plain, tuple):
        node[index] = 0
        for key, leaf in leaves_of(node).items():
            before[key][plain] = 0
            assert same(leaf, before[key]), key
