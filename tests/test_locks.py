"""Locks: a locked node keeps its keys, here and below; values change in place; a parent's lock is its own to lift."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict


class Box(TensorClass):
    a: Any
    b: Any


def dense() -> TensorDict:
    return TensorDict({"a": torch.zeros(2), "b": {"c": torch.zeros(2)}}, [2])


def lazy() -> Any:
    return LazyStackedTensorDict(*(row.clone() for row in dense().unbind(0)))


def box() -> Box:
    return Box.from_tensordict(dense())


MAKERS: dict[str, Callable[[], Any]] = {"dense": dense, "lazy": lazy, "tensorclass": box}
kinds = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)

REFUSED: dict[str, Callable[[Any], Any]] = {
    "td[key] = v": lambda td: td.set("a", torch.ones(2)),
    "set nested": lambda td: td.set(("b", "c"), torch.ones(2)),
    "set new": lambda td: td.set(("b", "n", "m"), torch.ones(2)),
    "del": lambda td: td.del_("a"),
    "del nested": lambda td: td.del_(("b", "c")),
    "pop": lambda td: td.pop("a"),
    "rename": lambda td: td.rename_key_("a", "b"),
    "rename nested": lambda td: td.rename_key_(("b", "c"), "a"),
    "update": lambda td: td.update({"a": torch.ones(2)}),
    "update nested": lambda td: td.update({"b": {"c": torch.ones(2)}}),
    "setdefault": lambda td: td["b"].setdefault("x", torch.ones(2)),
    "select": lambda td: td.select("a", inplace=True),
    "exclude": lambda td: td.exclude("a", inplace=True),
    "nested set": lambda td: td["b"].set("c", torch.ones(2)),
    "nested del": lambda td: td["b"].del_("c"),
}
ALLOWED: dict[str, Callable[[Any], Any]] = {
    "set_": lambda td: td.set_("a", torch.ones(2)),
    "set_ nested": lambda td: td.set_(("b", "c"), torch.ones(2)),
    "update_": lambda td: td.update_({"a": torch.ones(2)}),
    "fill_": lambda td: td.fill_("a", 1.0),
    "zero_": lambda td: td.zero_(),
    "add_": lambda td: td.add_(1),
    "td[index] = v": lambda td: td.__setitem__(0, 1),
    "set_at_": lambda td: td.set_at_("a", 1.0, 0),
    "set in place": lambda td: td.set("a", torch.ones(2), inplace=True),
    "update in place": lambda td: td.update({"a": torch.ones(2)}, inplace=True),
    "select": lambda td: td.select("a").set("b", torch.ones(2)),
    "exclude": lambda td: td.exclude("a").set("a", torch.ones(2)),
    "clone": lambda td: td.clone().set("a", torch.ones(2)),
    "copy": lambda td: td.copy().set("a", torch.ones(2)),
    "compute": lambda td: (td + 1).set("a", torch.ones(2)),
}


@kinds
@pytest.mark.parametrize("word", REFUSED)
def test_a_locked_node_refuses_changes_of_keys(make: Any, word: str) -> None:
    td = make().lock_()
    keys, before = set(td.keys(True)), td.clone()
    with pytest.raises(RuntimeError, match="locked"):
        REFUSED[word](td)
    assert set(td.keys(True)) == keys
    assert (td == before).all()


@kinds
@pytest.mark.parametrize("word", ALLOWED)
def test_a_locked_node_allows_what_leaves_its_keys(make: Any, word: str) -> None:
    td = make().lock_()
    keys = set(td.keys(True))
    ALLOWED[word](td)
    assert set(td.keys(True)) == keys
    assert td.is_locked


@kinds
def test_locks_reach_down_and_lift(make: Any) -> None:
    td = make()
    inner = td["b"]
    assert not td.is_locked
    assert td.lock_() is td
    assert td.is_locked
    assert td["b"].is_locked
    assert td.unlock_() is td
    assert not td.is_locked
    assert not td["b"].is_locked
    td["b"].set("c", torch.ones(2))
    assert not inner.is_locked


@kinds
def test_the_property_locks_and_unlocks(make: Any) -> None:
    td = make()
    td.is_locked = True
    assert td.is_locked
    td.is_locked = False
    td.set("a", torch.ones(2))
    assert not td.is_locked


@kinds
def test_contexts_put_the_lock_back(make: Any) -> None:
    td = make().lock_()
    with td.unlock_() as same:
        assert same is td
        td.set("a", torch.ones(2))
    assert td.is_locked
    with pytest.raises(ZeroDivisionError), td.unlock_():
        1 / 0  # noqa: B018
    assert td.is_locked
    td.unlock_()
    with td.lock_():
        assert td.is_locked
    assert not td.is_locked


def test_a_child_cannot_be_unlocked_below_a_locked_parent() -> None:
    child = TensorDict({"x": torch.zeros(2)}, [2])
    parent = TensorDict({}, [2])
    parent["child"] = child
    parent.lock_()
    assert child.is_locked
    with pytest.raises(RuntimeError, match="parent"):
        child.unlock_()
    assert child.is_locked
    assert parent.is_locked
    parent.unlock_()
    assert not child.is_locked


def test_a_member_of_a_locked_stack_is_locked() -> None:
    stack = lazy().lock_()
    member = stack.tensordicts[0]
    assert member.is_locked
    assert member["b"].is_locked
    with pytest.raises(RuntimeError, match="locked"):
        member["new"] = torch.zeros(())
    with pytest.raises(RuntimeError, match="locked"):
        stack.append(member.clone())
    with pytest.raises(RuntimeError, match="parent"):
        member.unlock_()


def test_two_parents_lock_together() -> None:
    child = TensorDict({"x": torch.zeros(())})
    one, two = TensorDict({}), TensorDict({})
    one["child"] = two["child"] = child
    one.lock_()
    two.lock_()
    one.unlock_()
    assert child.is_locked
    two.unlock_()
    assert not child.is_locked


def test_a_parent_that_is_gone_locks_no_more() -> None:
    child = TensorDict({"x": torch.zeros(())})
    parent = TensorDict({})
    parent["child"] = child
    parent.lock_()
    del parent
    gc.collect()
    child.unlock_()["y"] = torch.zeros(())
    assert set(child.keys()) == {"x", "y"}


@kinds
def test_a_pickled_lock_is_a_lock(make: Any) -> None:
    back = pickle.loads(pickle.dumps(make().lock_()))
    assert back.is_locked
    assert back["b"].is_locked
    back.unlock_()
    assert not back["b"].is_locked


def test_views_of_a_locked_node_are_locked() -> None:
    td = dense().lock_()
    for view in (td.unsqueeze(0), td.reshape(1, 2), *td.unbind(0)):
        assert view.is_locked


def test_a_context_needs_a_lock_word() -> None:
    with pytest.raises(TypeError, match="lock_"), dense():
        pass
