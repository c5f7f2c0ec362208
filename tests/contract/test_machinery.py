"""What Python and torch do with any object, done to every kind: copy, pickle, save, map, differentiate, compile."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from kinds import KINDS, LEAVES, STORED, assert_same, batched, dense, node_class
from torch.utils import _pytree as pytree

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, UnbatchedTensor

BATCH = (2, 3)


class Pair(TensorClass):
    x: Any
    inner: Any


every_kind = pytest.mark.parametrize("kind", KINDS)


def assert_equal(got: Any, node: Any) -> None:
    assert type(got) is type(node)
    assert node_class(got) == node_class(node)
    assert set(got.keys(True)) == set(node.keys(True))
    assert_same(got, node, "round trip")
    assert got["word"] == node["word"]
    for key in ("one", "about", "column", "text"):
        if key in node:
            assert got[key] == node[key]
            assert type(got.get(key)) is type(node.get(key))
    if "scale" in node:
        assert type(got["scale"]) is UnbatchedTensor
        assert torch.equal(got["scale"], node["scale"])
        assert got.get("scale").batch_size == got.batch_size


# ---- copies


@every_kind
def test_a_copy_shares_leaves_and_a_deep_copy_does_not(kind: str) -> None:
    node = KINDS[kind](BATCH)
    shallow, deep = copy.copy(node), copy.deepcopy(node)
    stored = kind in STORED  # copies of nodes in a store are in memory
    assert_equal(shallow, node.clone() if stored else node)
    assert_equal(deep, node.clone() if stored else node)
    before = node["x"].clone()
    deep.zero_()
    assert torch.equal(node["x"], before)
    if stored:
        return
    shallow.zero_()
    assert not node["x"].any()
    assert not node["inner", "y"].any()


@every_kind
def test_a_copy_has_keys_of_its_own(kind: str) -> None:
    node = KINDS[kind](BATCH)
    for other in (copy.copy(node), node.clone(), node.clone(False)):
        other.unlock_() if other.is_locked else None
        del other["n"]
        del other["inner", "y"]
    assert set(LEAVES) <= set(node.keys(True, True))


def test_a_deep_copy_keeps_a_leaf_that_is_there_twice_one() -> None:
    leaf = torch.zeros(2)
    td = copy.deepcopy(TensorDict({"a": leaf, "b": {"c": leaf}}, [2]))
    td["a"].add_(1)
    assert td["b", "c"].tolist() == [1, 1]


# ---- pickles and files


@every_kind
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_gives_back_the_node(kind: str, protocol: int) -> None:
    node = KINDS[kind](BATCH)
    node.names = ["time", None]
    back = pickle.loads(pickle.dumps(node, protocol))
    assert_equal(back, node)
    assert back.names == ["time", None]
    assert back.is_locked == node.is_locked


@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1"])
def test_saved_nodes_load_by_default(kind: str) -> None:
    node = KINDS[kind](BATCH)
    file = io.BytesIO()
    torch.save(node, file)
    file.seek(0)
    assert_equal(torch.load(file), node)


def test_a_saved_column_of_strings_loads_by_default() -> None:
    node = dense(BATCH)
    node["many"] = [["a", "b", "c"], ["d", "e", "f"]]
    file = io.BytesIO()
    torch.save(node, file)
    file.seek(0)
    back = torch.load(file)
    assert back["many"] == [["a", "b", "c"], ["d", "e", "f"]]


# ---- trees


@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1", "nested", "mapped", "shared"])
def test_tree_map_says_a_function_to_each_leaf(kind: str) -> None:
    node = KINDS[kind](BATCH)
    got = pytree.tree_map_only(torch.Tensor, lambda v: v + 1, node)
    assert type(got) is type(node)
    for key in LEAVES:
        assert torch.equal(got.get(key), node.get(key) + 1), key
    leaves, spec = pytree.tree_flatten(node)
    assert_equal(pytree.tree_unflatten(leaves, spec), node)


# ---- gradients

PATHS: dict[str, Any] = {
    "view": lambda td: td.unsqueeze(0).transpose(0, 2).reshape(-1),
    "rows": lambda td: td[torch.tensor([1, 0, 1])],
    "mask": lambda td: td[torch.tensor([[True, False, True], [False, True, True]])],
    "slice": lambda td: td[:, 1:],
    "stack": lambda td: torch.stack([td, td * 2], 1),
    "cat": lambda td: torch.cat([td, td.exp()], 1),
    "split": lambda td: td.split(2, 1)[1],
    "unbind": lambda td: td.unbind(1)[2],
    "expand": lambda td: td.expand(4, 2, 3),
    "arithmetic": lambda td: (td + 1) * td / 2 - td**2,
    "reduce": lambda td: td.mean(0),
    "where": lambda td: td.clamp(0.3, 0.6),
}


@pytest.mark.parametrize("word", PATHS)
@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1", "tensorclass", "tensorclass_of_lazy"])
def test_gradients_are_those_of_the_leaf(kind: str, word: str) -> None:
    call = PATHS[word]
    td = dense(BATCH)
    leaves = {"x": td["x"].requires_grad_(), "inner": {"y": td["inner", "y"].requires_grad_()}}
    node = TensorDict(leaves, BATCH)
    if "lazy" in kind:
        dim = int(kind == "lazy1")
        node = LazyStackedTensorDict(*node.unbind(dim), stack_dim=dim)
    if "tensorclass" in kind:
        node = Pair.from_tensordict(node)
    got = call(node)
    (got.get("x").sum() + got.get("inner").get("y").sum()).backward()
    for leaf in (leaves["x"], leaves["inner"]["y"]):
        same = leaf.detach().clone().requires_grad_()
        (same.expand(4, *same.shape) if word == "expand" else same if word == "view" else call(same)).sum().backward()
        assert torch.allclose(leaf.grad, same.grad)


# ---- compile


def chain(node: Any) -> Any:
    one = node.unsqueeze(0).transpose(0, 1)
    two = (one.exp() + one * 2 - 1).clamp(-5, 500)
    both = torch.stack([two, two + 1], 0)
    return both[0, :, 0], both.reshape(-1)[1:4], both[:, 1:]


def rows(node: Any) -> Any:
    return node[torch.tensor([1, 0, 1])], node[:, [2, 0]]


@pytest.mark.parametrize("kind", ["dense", "lazy0", "nested", "tensorclass"])
def test_the_compiler_traces_words_in_one_graph(kind: str) -> None:
    torch._dynamo.reset()
    node = batched(KINDS[kind](BATCH) / 1000)
    # which member of a lazy stack a row number in a tensor means is not known while tracing
    for words in (chain,) if kind in ("lazy0", "nested") else (chain, rows):
        got = torch.compile(words, fullgraph=True, backend="eager")(node)
        for one, two in zip(got, words(node), strict=True):
            assert_same(one, two, words.__name__)
            assert isinstance(one, TensorClass) is isinstance(node, TensorClass)


def test_the_compiler_traces_building_reading_and_writing() -> None:
    def build(x: torch.Tensor, y: torch.Tensor) -> Any:
        td = TensorDict({"x": x, "n": {"y": y}}, [2])
        td["z"] = td["x"] + td["n", "y"]
        td["n", "w"] = td["z"] * 2
        td.update({"x": x * 0})
        first, second = td.unbind(0)
        return torch.cat([first.unsqueeze(0), second.unsqueeze(0)]).exclude("x").sum(0)

    torch._dynamo.reset()
    x, y = torch.arange(2.0), torch.ones(2)
    got = torch.compile(build, fullgraph=True, backend="eager")(x, y)
    assert (got == build(x, y)).all()
    assert got["n", "w"].item() == 6
