"""A word in place that fails has changed nothing: neither values nor keys, on any kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kinds import KINDS, LEAVES, STORED, can_make

from tensordict import TensorDict, lazy_stack

BATCH = (2, 3)
ROWS = torch.tensor([0, 1])
MASK = torch.ones(BATCH, dtype=torch.bool)


def state(node: Any) -> Any:
    """Return the keys and the values of a node, those of each member of a lazy stack."""
    node = getattr(node, "_inner", node)
    members = getattr(node, "_tensordicts", None)
    if members is not None:
        return [state(member) for member in members]
    if isinstance(node, torch.Tensor):
        return node.tolist()
    if getattr(node, "_is_non_tensor", False):
        return repr(node)
    return {key: state(child) for key, child in node._raw_pairs()}


# `n` and `b` hold integers, `x` and `y` floats; the floats come first
VALUES: dict[str, Callable[[Any], Any]] = {
    "a function of floats": lambda td: td.exp_(),
    "a number that integers cannot hold": lambda td: td.add_(0.5),
    "a complex number": lambda td: td.add_(1j),
    "a tensor of one complex number": lambda td: td.mul_(torch.tensor(1j)),
    "a tensor": lambda td: td.add_(torch.full(BATCH, 0.5)),
    "a quotient": lambda td: td.div_(td.clone()),
    "an interpolation": lambda td: td.lerp_(td.clone(), 0.5),
    "a weighted quotient": lambda td: td.addcdiv_(td.clone(), td.clone()),
    "a number written to a row": lambda td: td.__setitem__(0, float("inf")),
    "a number written to some rows": lambda td: td.__setitem__(ROWS, 1j),
    "a number written to the rows of a mask": lambda td: td.__setitem__(MASK, 1j),
    "a number filled in": lambda td: td.masked_fill_(MASK, 1j),
    "a text": lambda td: td.__setitem__(0, "text"),
}
KEYS: dict[str, Callable[[Any], Any]] = {
    "select": lambda td: td.select("x", ("inner", "none"), inplace=True),
    "rename": lambda td: td.rename_key_(("inner", "none"), "z"),
    "rename into a leaf": lambda td: td.rename_key_(("inner", "b"), ("x", "z")),
    "rename into itself": lambda td: td.rename_key_("inner", ("inner", "z")),
    "rename to a key that is taken": lambda td: td.rename_key_(("inner", "b"), "x", safe=True),
    "flatten": lambda td: td.set("inner.b", torch.zeros(BATCH)).flatten_keys(".", inplace=True),
    "unflatten": lambda td: td.set("x.b", torch.zeros(BATCH)).unflatten_keys(".", inplace=True),
    "delete": lambda td: td.del_(("inner", "none")),
    "separate": lambda td: td.separates("x", ("inner", "none")),
}


@pytest.mark.parametrize("word", VALUES)
@pytest.mark.parametrize("kind", KINDS)
def test_values_stay_when_one_of_them_cannot_change(kind: str, word: str) -> None:
    if not can_make(kind, BATCH):
        pytest.skip(f"{kind} has no batch size {BATCH}")
    td = KINDS[kind](BATCH)
    before = state(td)
    with pytest.raises((RuntimeError, TypeError)):
        VALUES[word](td)
    assert state(td) == before


@pytest.mark.parametrize("word", KEYS)
@pytest.mark.parametrize("kind", KINDS)
def test_keys_stay_when_one_of_them_cannot_change(kind: str, word: str) -> None:
    if not can_make(kind, BATCH):
        pytest.skip(f"{kind} has no batch size {BATCH}")
    td = KINDS[kind](BATCH)
    if td.is_locked:
        td.unlock_()
    keys = {"flatten": "inner.b", "unflatten": "x.b"}
    if word in keys and not hasattr(type(td), "fields") and kind != "typed":
        td.set(keys[word], torch.zeros(BATCH))
    before = state(td)
    with pytest.raises((KeyError, RuntimeError, AttributeError, TypeError)):
        KEYS[word](td)
    assert state(td) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_one_number_is_written_to_all_leaves_or_to_none(kind: str) -> None:
    if not can_make(kind, BATCH):
        pytest.skip(f"{kind} has no batch size {BATCH}")
    td = KINDS[kind](BATCH)
    before = state(td)
    try:
        td[ROWS, ..., [0, 1]] = torch.tensor(0.5)
    except RuntimeError:
        assert state(td) == before
        return
    for key in LEAVES:  # rows one by one take any number, as torch has it
        leaf = KINDS["dense"](BATCH).get(key)
        leaf[0, 0], leaf[1, 1] = 0.5, 0.5
        assert torch.equal(td.get(key), leaf)


def stopped(word: Callable[[Any], Any], odd: torch.Tensor, message: str) -> None:
    """Assert that a word raises for one odd leaf, and changes neither it nor those before it, on any kind."""
    leaves = {"a": torch.ones(3), "n": {"b": torch.ones(3), "c": odd}}
    for make in (
        lambda: TensorDict({"a": torch.ones(3), "c": odd}, [3]),
        lambda: TensorDict(leaves, [3]),
        lambda: lazy_stack([TensorDict({"a": torch.ones(3)}, [3]), TensorDict(leaves, [3])]),
        lambda: TensorDict({"a": torch.ones(2, 3), "l": lazy_stack([TensorDict(leaves, [3])] * 2)}, [2]),
    ):
        td = make()
        before = state(td)
        with pytest.raises(RuntimeError, match=message):
            word(td)
        assert state(td) == before


IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "add_": lambda td: td.add_(1),
    "add_ a tensordict": lambda td: td.add_(td.detach().clone()),
    "neg_": lambda td: td.neg_(),
    "zero_": lambda td: td.zero_(),
    "update_": lambda td: td.update_(td.detach().clone() * 2),
    "write rows": lambda td: td.__setitem__(slice(None), 3),
    "write a tensordict": lambda td: td.__setitem__(slice(None), td.detach().clone() * 2),
}


@pytest.mark.parametrize("word", IN_PLACE)
def test_expanded_leaves_stop_a_word_before_it_starts(word: str) -> None:
    stopped(IN_PLACE[word], torch.ones(1).expand(3), "'c'.*expanded")


@pytest.mark.parametrize(
    "value", [5.0, torch.tensor(5.0), torch.full((3,), 5.0), TensorDict({"a": torch.full((3,), 5.0)}, [3])]
)
def test_rows_of_expanded_leaves_are_written_where_torch_writes_them(value: Any) -> None:
    td, leaf = TensorDict({"a": torch.zeros(3)}, [3]).expand(2, 3), torch.zeros(3).expand(2, 3)
    td[0] = value
    leaf[0] = 5.0
    assert torch.equal(td["a"], leaf)
    with pytest.raises(RuntimeError, match=r"'a'.*expanded"):
        td[:] = value
    with pytest.warns(UserWarning, match="expanded tensors is deprecated"):
        td[torch.tensor([1])] = value
    td[:] = td[:]  # as torch has it, nothing is written
    assert td.update_(td) is td


@pytest.mark.parametrize("word", IN_PLACE)
def test_leaves_that_require_a_gradient_stop_a_word_before_it_starts(word: str) -> None:
    stopped(IN_PLACE[word], torch.ones(3, requires_grad=True), "'c'.*requires a gradient")
    with torch.no_grad():
        td = TensorDict({"a": torch.ones(3), "c": torch.ones(3, requires_grad=True)}, [3])
        IN_PLACE[word](td)
        assert bool((td["a"] == td["c"]).all())


def test_keys_of_members_with_shapes_of_their_own_are_selected_in_place() -> None:
    stack = lazy_stack([TensorDict({"a": 1, "x": torch.ones(n), "n": {"b": 1}}) for n in (1, 2)])
    first = stack.tensordicts[0]
    assert stack.select("x", inplace=True) is stack
    assert stack.tensordicts[0] is first
    assert [list(member.keys()) for member in stack.tensordicts] == [["x"], ["x"]]
    assert [part.shape[-1] for part in stack.get("x", as_list=True)] == [1, 2]


def test_a_rename_that_one_member_refuses_changes_no_member() -> None:
    stack = lazy_stack([TensorDict({"a": 1, "n": {"b": 1}}), TensorDict({"a": 1, "n": {"b": 1}, "z": {}})])
    stack.tensordicts[1].set("z", 5)
    before = state(stack)
    with pytest.raises(KeyError, match="'z'"):
        stack.rename_key_("a", ("z", "a"))
    assert state(stack) == before
    assert stack.rename_key_(("n", "b"), ("m", "b")) is stack
    assert stack["m", "b"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", STORED[:1])
def test_a_selection_in_place_leaves_what_stays_in_a_store_where_it_is(kind: str) -> None:
    td = KINDS[kind](BATCH)
    want = td["inner", "y"]
    assert td.select(("inner", "y"), "x", inplace=True) is td
    assert sorted(map(str, td.keys(True, True))) == ["('inner', 'y')", "x"]
    assert torch.equal(td["inner", "y"], want)


def test_a_window_names_its_own_rows_and_dims() -> None:
    td = KINDS["persistent"]((4, 3))
    rows = td[1:3]
    with pytest.raises(IndexError, match=r"\[2, 3\]"):
        rows[torch.tensor([5])] = 0
    rows.names = ["p", "q"]
    assert rows["inner"].names == rows.clone()["inner"].names == ["p", "q"]
    assert rows[0]["inner"].names == ["q"]
