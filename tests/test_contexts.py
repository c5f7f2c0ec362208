"""`with` right after a word: what changed in its result is written back, and locks come back."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorClass, TensorDict

BATCH = (4, 3, 1)


class Sample(TensorClass):
    x: Any
    y: Any
    new: Any = None


def dense() -> TensorDict:
    x = torch.arange(12.0).reshape(BATCH)
    return TensorDict({"x": x, "y": {"z": torch.stack([x, -x], -1)}}, BATCH)


def lazy(dim: int) -> LazyStackedTensorDict:
    return LazyStackedTensorDict(*(row.clone() for row in dense().unbind(dim)), stack_dim=dim)


MAKERS: dict[str, Callable[[], Any]] = {
    "dense": dense,
    "lazy0": lambda: lazy(0),
    "lazy1": lambda: lazy(1),
    "tensorclass": lambda: Sample.from_tensordict(dense()),
    "tensorclass_of_lazy": lambda: Sample.from_tensordict(lazy(0)),
}

WORDS: dict[str, Callable[[Any], Any]] = {
    "view": lambda td: td.view(-1),
    "view as it is": lambda td: td.view(4, 3, 1),
    "reshape": lambda td: td.reshape(2, 6),
    "flatten": lambda td: td.flatten(0, 1),
    "flatten one dim": lambda td: td.flatten(0, 0),
    "unflatten": lambda td: td.unflatten(0, (2, 2)),
    "unsqueeze": lambda td: td.unsqueeze(1),
    "squeeze": lambda td: td.squeeze(-1),
    "squeeze all": lambda td: td.squeeze(),
    "squeeze nothing": lambda td: td.squeeze(0),
    "permute": lambda td: td.permute(1, 2, 0),
    "transpose": lambda td: td.transpose(0, 1),
    "swapaxes": lambda td: td.swapaxes(0, -1),
    "movedim": lambda td: td.movedim(0, 2),
    "unlock_": lambda td: td.unlock_(),
}

every_kind = pytest.mark.parametrize("kind", MAKERS)


def leaves(td: Any) -> dict[Any, torch.Tensor]:
    return {key: value.clone() for key, value in td.items(True, True)}


@every_kind
@pytest.mark.parametrize("word", WORDS)
def test_what_changes_inside_is_written_back(kind: str, word: str) -> None:
    td = MAKERS[kind]()
    before = leaves(td)
    with WORDS[word](td) as inside:
        inside.set("x", inside.get("x") + 1)
        inside.set(("y", "deep"), inside.get("x") * 2)
        inside.set("new", inside.get("x") * 3)
    assert type(td) is type(MAKERS[kind]())
    assert td.batch_size == BATCH
    assert td.get("y").batch_size == BATCH
    assert torch.equal(td.get("x"), before["x"] + 1)
    assert torch.equal(td.get(("y", "deep")), td.get("x") * 2)
    assert torch.equal(td.get("new"), td.get("x") * 3)
    assert torch.equal(td.get(("y", "z")), before["y", "z"])


@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1"])
def test_flattened_keys_come_back_nested(kind: str) -> None:
    td = MAKERS[kind]()
    with td.flatten_keys(".") as flat:
        flat["y.z"] = flat["y.z"] + 1
        flat["y.other"] = flat["x"] * 2
    assert set(td.keys(True, True)) == {"x", ("y", "z"), ("y", "other")}
    assert torch.equal(td["y", "z"], MAKERS[kind]()["y", "z"] + 1)


@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1"])
def test_nested_keys_come_back_flat(kind: str) -> None:
    td = MAKERS[kind]().flatten_keys(".")
    with td.unflatten_keys(".") as nested:
        nested["y", "other"] = nested["x"] * 2
    assert set(td.keys()) == {"x", "y.z", "y.other"}


@every_kind
@pytest.mark.parametrize("word", ["view", "unsqueeze", "flatten"])
def test_an_error_inside_writes_nothing_back(kind: str, word: str) -> None:
    td = MAKERS[kind]()
    before = leaves(td)

    def fail() -> None:
        with WORDS[word](td) as inside:
            inside.set("x", inside.get("x") + 1)
            inside.set("new", inside.get("x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert set(td.keys(True, True)) == set(before)
    assert all(torch.equal(value, before[key]) for key, value in td.items(True, True))


@pytest.mark.parametrize("word", WORDS)
def test_values_that_stay_are_the_same_tensors(word: str) -> None:
    td = dense()
    x, z = td["x"], td["y", "z"]
    with WORDS[word](td) as inside:
        inside["new"] = torch.ones(inside.batch_size)
    assert td["x"] is x
    assert td["y", "z"] is z


def test_members_of_a_stack_keep_what_stays() -> None:
    stack = lazy(0)
    kept = [member["x"] for member in stack.tensordicts]
    with stack.unsqueeze(1) as inside:
        inside["new"] = torch.ones(inside.batch_size)
    assert "new" in stack
    # a member is seen through views, so what it keeps is its memory
    assert [m["x"].data_ptr() for m in stack.tensordicts] == [x.data_ptr() for x in kept]


def test_gradients_flow_through_what_is_written_back() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    td = TensorDict({"x": x}, [2, 3])
    with td.view(-1) as flat:
        flat["y"] = flat["x"] * torch.arange(6.0)
    assert td["x"] is x
    td["y"].sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.arange(6.0).view(2, 3))


def test_non_tensors_are_written_back() -> None:
    td = dense()
    td["word"] = "a"
    with td.view(-1) as flat:
        flat["word"] = "b"
        flat["column"] = NonTensorStack(*map(str, range(12)))
    assert td["word"] == "b"
    assert td["column"] == [
        [["0"], ["1"], ["2"]],
        [["3"], ["4"], ["5"]],
        [["6"], ["7"], ["8"]],
        [["9"], ["10"], ["11"]],
    ]


def test_the_names_of_the_source_stay() -> None:
    td = dense()
    td.names = ["a", "b", None]
    with td.permute(1, 0, 2) as turned:
        turned["new"] = torch.ones(turned.batch_size)
    assert td.names == ["a", "b", None]


def test_contexts_nest() -> None:
    td = dense().lock_()
    with td.unlock_(), td.view(-1) as flat:
        with flat.unflatten(0, (3, 4)) as inner:
            inner["new"] = torch.ones(3, 4)
        assert flat["new"].shape == (12,)
    assert td.is_locked
    assert td["new"].shape == BATCH


def test_lock_contexts_nest() -> None:
    td = dense()
    with td.lock_():
        with td.unlock_():
            with td.lock_():
                assert td.is_locked
            assert not td.is_locked
            td["new"] = torch.ones(BATCH)
        assert td.is_locked
    assert not td.is_locked


@pytest.mark.parametrize("locked", [True, False])
def test_a_lock_context_that_changes_nothing_undoes_nothing(locked: bool) -> None:
    td = TensorDict({"a": 1}, lock=locked)
    with td.lock_() if locked else td.unlock_():
        assert td.is_locked is locked
    assert td.is_locked is locked


def test_a_lock_of_long_ago_is_no_context() -> None:
    td = TensorDict({"a": 1}, lock=True)
    with td.lock_():
        assert td.is_locked
    assert td.is_locked


def test_a_view_that_is_unlocked_still_leads_back() -> None:
    td = dense()
    with td.view(-1).unlock_() as flat:
        flat["new"] = flat["x"]
    assert td["new"].shape == BATCH


def test_a_locked_source_refuses_new_keys() -> None:
    td = dense().lock_()
    with pytest.raises(RuntimeError, match="locked"), td.flatten_keys(".") as flat:
        flat["new"] = torch.ones(BATCH)
    assert set(td.keys()) == {"x", "y"}


WITHOUT_A_WAY_BACK: dict[str, Callable[[Any], Any]] = {
    "itself": lambda td: td,
    "clone": lambda td: td.clone(),
    "select": lambda td: td.select("x"),
    "arithmetic": lambda td: td + 1,
    "row": lambda td: td[0],
    "expand": lambda td: td.expand(2, *BATCH),
}


@pytest.mark.parametrize("word", WITHOUT_A_WAY_BACK)
def test_other_words_are_no_contexts(word: str) -> None:
    with pytest.raises(TypeError, match="context manager only right after"), WITHOUT_A_WAY_BACK[word](dense()):
        pass


def test_what_it_was_made_from_must_be_there() -> None:
    with pytest.raises(RuntimeError, match="is gone"), dense().view(-1):
        pass


def test_a_view_does_not_keep_what_it_was_made_from() -> None:
    td = dense()
    gone = weakref.ref(td)
    view = td.view(-1)
    del td
    gc.collect()
    assert gone() is None
    assert view["x"].shape == (12,)


def test_a_copy_of_a_view_is_no_context() -> None:
    view = dense().view(-1)
    for other in (copy.copy(view), copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        with pytest.raises(TypeError, match="context manager"), other:
            pass
