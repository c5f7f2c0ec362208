"""A fast road skips known work: it gives what the plain one gives, dtype by dtype, or the same error."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict import NonTensorData, TensorClass, TensorDict, lazy_stack
from tensordict.core import walk
from tensordict.ops.pointwise import Pointwise

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
UNARY = sorted(
    name
    for name in vars(Pointwise)
    if not name.startswith("_") and hasattr(torch, f"_foreach_{name}") and hasattr(torch, f"_foreach_{name}_")
)
BINARY = {
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "clamp_max",
    "clamp_min",
    "maximum",
    "minimum",
    "lerp",
    "addcmul",
    "addcdiv",
}
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
NUMBERS = [True, 2, -1, 2.5, 1 + 2j, 0.1, 1e300, float("nan"), float("-inf"), 2**31, 2**60, 2**70]


def leaf(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0, 1, 2]).to(dtype) if dtype is torch.bool else torch.tensor([0.5, 1, 3]).to(dtype)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or the class of its error."""
    try:
        return call()
    except (RuntimeError, TypeError, OverflowError) as error:
        return type(error)


def agree(ours: Any, plain: Any) -> bool:
    if isinstance(ours, type) or isinstance(plain, type):
        return ours is plain
    return ours["x"].dtype is plain.dtype and torch.allclose(ours["x"], plain, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_words_at_once_equal_the_word_for_each_leaf(dtype: torch.dtype) -> None:
    x = leaf(dtype)
    td = TensorDict({"x": x, "y": x.clone()}, [3])
    wrong = [
        name for name in sorted(set(UNARY) - BINARY) if not agree(outcome(getattr(td, name)), outcome(getattr(x, name)))
    ]
    assert not wrong


@pytest.mark.parametrize("call", OPERATORS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_at_once_equal_the_operator_for_each_leaf(dtype: torch.dtype, call: Callable[..., Any]) -> None:
    x = leaf(dtype)
    td = TensorDict({"x": x, "y": x.clone()}, [3])
    operands = [(number, number) for number in NUMBERS] + [
        (TensorDict({"x": leaf(other), "y": leaf(other)}, [3]), leaf(other)) for other in DTYPES
    ]
    wrong = [
        plain
        for operand, plain in operands
        if not agree(outcome(lambda: call(td, operand)), outcome(lambda: call(x, plain)))  # noqa: B023
    ]
    assert not wrong


IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv]


def stored(call: Callable[..., Any], value: Any, operand: Any) -> Any:
    """Return what a value is after an operator in place, and the class of the error if there was one."""
    error = outcome(lambda: call(value, operand))
    return value, error if isinstance(error, type) else None


@pytest.mark.parametrize("call", IN_PLACE, ids=lambda call: call.__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_in_place_equal_those_of_each_leaf_and_apply_once(dtype: torch.dtype, call: Any) -> None:
    operands: list[tuple[Any, Any]] = [(number, number) for number in NUMBERS]
    operands += [(TensorDict({"w": leaf(d), "x": leaf(d)}, [3]), leaf(d)) for d in DTYPES]
    for operand, plain in operands:
        td = TensorDict({"w": leaf(torch.float32), "x": leaf(dtype)}, [3])
        (_, error), (x, wrong) = stored(call, td, operand), stored(call, leaf(dtype), plain)
        w, refused = stored(call, leaf(torch.float32), plain)
        assert (error is None) is (wrong is None and refused is None), (operand, error, wrong)
        if error is None:
            assert agree(td, x)
            assert torch.allclose(td["w"], w, equal_nan=True)
        else:  # refused by one: the other has changed once, or not at all
            assert any(torch.allclose(td["w"], one, equal_nan=True) for one in (w, leaf(torch.float32)))


def test_words_at_once_have_gradients_and_batching_rules() -> None:
    x = torch.tensor([0.5, 1.0], requires_grad=True)
    (TensorDict({"x": x}, [2]).exp() * 2)["x"].sum().backward()
    assert torch.allclose(x.grad, 2 * x.detach().exp())
    mapped = torch.vmap(lambda row: (TensorDict({"x": row}) + 1).exp()["x"])(torch.zeros(3, 2))
    assert torch.allclose(mapped, torch.ones(3, 2).exp())


def test_whole_copies_at_once_keep_dtypes_and_memory() -> None:
    td = TensorDict({"x": torch.zeros(3), "y": torch.zeros(3, dtype=torch.int64)}, [3])
    before = td["x"].data_ptr()
    td.update_(TensorDict({"x": torch.arange(3), "y": torch.arange(3.0)}, [3]))
    assert td["x"].tolist() == [0, 1, 2]
    assert td["y"].dtype is torch.int64
    assert td["x"].data_ptr() == before


class Pair(TensorClass):
    """A node that no kernel for lists looks into."""

    p: torch.Tensor


def grown(kind: str, dtypes: list[torch.dtype], plus: float) -> TensorDict:
    """A tree of dense nodes, or with a node of another kind in it."""
    at = iter(range(1, 100))
    trunk = {f"x{i}": torch.full((2, 3), next(at) + plus).to(dtype) for i, dtype in enumerate(dtypes)}
    deep = {key: value + 1 for key, value in trunk.items()}
    tree: dict[str, Any] = {**trunk, "n": {**deep, "m": {"y": torch.full((2,), 3 + plus)}}}
    other: dict[str, Any] = {
        "dense": {},
        "lazy": {"k": lazy_stack([TensorDict({"z": torch.full((n,), n + plus)}) for n in (1, 2)])},
        "class": {"k": Pair(torch.full((2,), 5 + plus), batch_size=[2])},
        "object": {"k": NonTensorData("word", [2])},
    }
    return TensorDict({**tree, **other[kind]}, [2])


TREES: dict[str, Callable[[Any, Any], Any]] = {
    "neg_": lambda v, w: v.neg_(),
    "zero_": lambda v, w: v.zero_(),
    "abs_": lambda v, w: v.abs_(),
    "sqrt_": lambda v, w: v.sqrt_(),
    "add_": lambda v, w: v.add_(2),
    "mul_": lambda v, w: v.mul_(0.5),
    "add_ a tree": lambda v, w: v.add_(w),
    "mul_ a tree": lambda v, w: v.mul_(w),
    "lerp_": lambda v, w: v.lerp_(w, 0.25),
    "addcmul_": lambda v, w: v.addcmul_(w, w, value=2),
    "addcdiv_": lambda v, w: v.addcdiv_(w, w, value=2),
    "copy_": lambda v, w: v.copy_(w),
}


@pytest.mark.parametrize("word", TREES)
@pytest.mark.parametrize("kind", ["dense", "lazy", "class", "object"])
@pytest.mark.parametrize("dtypes", [[torch.float32], [torch.float32, torch.int64], [torch.float16, torch.float64]])
def test_words_in_place_on_trees_are_those_of_each_leaf_or_change_none(
    word: str, kind: str, dtypes: list[torch.dtype]
) -> None:
    td, other = grown(kind, dtypes, 0.0), grown(kind, dtypes, 1.0)
    before, wanted, failed = td.clone(), [], False
    leaves = list(zip(_leaves(td.clone()), _leaves(other), strict=True))
    for mine, theirs in leaves:
        try:
            wanted.append(TREES[word](mine, theirs))
        except RuntimeError:
            failed = True
    if failed:
        with pytest.raises(RuntimeError):
            TREES[word](td, other)
        wanted = _leaves(before)
    else:
        TREES[word](td, other)
    for mine, expected in zip(_leaves(td), wanted, strict=True):
        assert mine.dtype is expected.dtype and torch.equal(mine, expected)


@pytest.mark.parametrize("write", ["update_", "[:]", "[1]"])
def test_trees_are_copied_into_trees_or_change_nothing(write: str) -> None:
    def put(td: TensorDict, value: TensorDict) -> None:
        if write == "update_":
            td.update_(value)
        elif write == "[:]":
            td[:] = value
        else:
            td[1] = value[1]

    td, other = grown("dense", [torch.float32, torch.int64], 0.0), grown("dense", [torch.float32, torch.int64], 1.0)
    homes = [leaf.data_ptr() for leaf in _leaves(td)]
    put(td, other)
    assert [leaf.data_ptr() for leaf in _leaves(td)] == homes
    assert (td[1] == other[1]).all() and bool((td == other).all()) is (write != "[1]")
    wrong = other.clone() + 1
    wrong["n", "m"].set("y", torch.zeros(2, 5))
    kept = td.clone()
    with pytest.raises(RuntimeError, match="'y'"):
        put(td, wrong)
    assert (td == kept).all()


def _leaves(td: TensorDict) -> list[torch.Tensor]:
    return walk.leaves(td)
