"""Torch functions that take a node do what the word does to each leaf; unknown ones get torch's error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kinds import KINDS, assert_same, dense

BATCH = (2, 3)
ROWS = torch.tensor([[0, 2], [1, 0]])
MASK = torch.tensor([[True, False, True], [False, False, True]])

# what is said to a node, and what it must be: a function of the dense node, or of each of its leaves
FUNCTIONS: dict[str, Any] = {
    "stack": lambda td: torch.stack([td, td], 1),
    "cat": lambda td: torch.cat([td, td], 1),
    "unbind": lambda td: torch.unbind(td, 1)[2],
    "split": lambda td: torch.split(td, 2, 1)[0],
    "split sizes": lambda td: torch.split(td, [1, 2], 1)[1],
    "chunk": lambda td: torch.chunk(td, 3, 1)[1],
    "clone": torch.clone,
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": lambda td: torch.full_like(td, 3),
    "where": lambda td: torch.where(MASK, td, td + 1),
    "gather": lambda td: torch.gather(td, 1, ROWS),
    "squeeze": lambda td: torch.squeeze(td[:1], 0),
    "unsqueeze": lambda td: torch.unsqueeze(td, -1),
    "permute": lambda td: torch.permute(td, (1, 0)),
    "reshape": lambda td: torch.reshape(td, (3, 2)),
    "flatten": lambda td: torch.flatten(td, 0, 1),
    "unflatten": lambda td: torch.unflatten(td, 1, (3, 1)),
    "flip": lambda td: torch.flip(td, (0,)),
    "roll": lambda td: torch.roll(td, 1, 0),
    "sum": lambda td: torch.sum(td, 0),
    "prod": lambda td: torch.prod(td, 0),
    "amax": lambda td: torch.amax(td, 0),
    "amin": lambda td: torch.amin(td, 0),
    "fliplr": torch.fliplr,
    "rot90": lambda td: torch.rot90(td, 1, (0, 1)),
    "tile": lambda td: torch.tile(td, (2, 1)),
    "atleast_3d": torch.atleast_3d,
    "masked_select": lambda td: torch.masked_select(td, MASK),
    "cummax": lambda td: torch.cummax(td, 1).values,
    "exp": torch.exp,
    "abs": torch.abs,
    "add": lambda td: torch.add(td, 1),
    "mul": lambda td: torch.mul(td, td),
    "maximum": lambda td: torch.maximum(td, td * 2),
    "clamp": lambda td: torch.clamp(td, 0, 1),
}

numeric = ["dense", "lazy0", "lazy1", "tensorclass", "tensorclass_of_lazy"]


@pytest.mark.parametrize("kind", numeric)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_torch_function_takes_every_kind(name: str, kind: str) -> None:
    assert_same(FUNCTIONS[name](KINDS[kind](BATCH)), FUNCTIONS[name](dense(BATCH)), name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_torch_function_does_to_a_node_what_it_does_to_a_leaf(name: str) -> None:
    td = dense(BATCH)
    want = FUNCTIONS[name](td.get("x"))
    assert torch.equal(FUNCTIONS[name](td).get("x"), want)
    assert FUNCTIONS[name](td).batch_size == want.shape


FLOATS = {"mean": torch.mean, "std": torch.std, "var": torch.var, "max": torch.max, "min": torch.min}


@pytest.mark.parametrize("kind", numeric)
@pytest.mark.parametrize("name", FLOATS)
def test_reductions_of_floats(name: str, kind: str) -> None:
    td = KINDS[kind](BATCH).exclude("n", ("inner", "b"))
    got, want = FLOATS[name](td, 1), FLOATS[name](dense(BATCH).get("x"), 1)
    got, want = (got, want) if isinstance(want, torch.Tensor) else (got.values, want.values)
    assert torch.allclose(got.get("x"), want)


@pytest.mark.parametrize("kind", numeric)
@pytest.mark.parametrize("function", [torch.rand_like, torch.randn_like, torch.empty_like])
def test_random_and_empty_twins_have_the_structure(function: Any, kind: str) -> None:
    td = KINDS[kind](BATCH).exclude("n", ("inner", "b"))
    got = function(td)
    assert type(got) is type(td)
    assert got.batch_size == BATCH
    assert got.get("inner").get("y").shape == td.get("inner").get("y").shape


@pytest.mark.parametrize("kind", numeric)
def test_all_and_any_take_nodes(kind: str) -> None:
    td = KINDS[kind](BATCH) >= 0
    assert torch.all(td, 0).get("x").all()
    assert torch.any(td, 0).get("x").all()


@pytest.mark.parametrize("kind", ["dense", "lazy0", "tensorclass"])
def test_an_unknown_function_gets_the_error_of_torch(kind: str) -> None:
    for function in (torch.linalg.inv, torch.nn.functional.relu6, torch.fft.fft):
        with pytest.raises(TypeError, match="torch_function__"):
            function(KINDS[kind](BATCH))
