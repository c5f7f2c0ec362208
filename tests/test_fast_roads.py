"""A fast road skips known work: it gives what the plain one gives, dtype by dtype, or the same error."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict import TensorDict
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
