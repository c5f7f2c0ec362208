"""`torch.func` and `torch.utils._pytree` over nodes: results are those of the dense words, never half consistent."""

from __future__ import annotations

import operator
import subprocess
import sys
from typing import Any

import pytest
import torch
from kinds import KINDS, STORED, assert_same, dense, held
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorClass, TensorDict

BATCH = (2, 3)

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it

# members with different keys have no joined leaves: torch.func gets the leaves of each member
every_kind = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "uneven"])


def numbers(kind: str) -> Any:
    """Return a node of a kind without its columns, which vmap cannot follow in every direction."""
    return KINDS[kind](BATCH).exclude("column", "text") if kind == "nested" else KINDS[kind](BATCH)


def consistent(node: Any) -> None:
    """Assert that every leaf and every nested node begins with the batch of its parent."""
    for value in node.values():
        assert getattr(value, "batch_size", value.shape)[: node.ndim] == node.batch_size
        if not isinstance(value, torch.Tensor) and value.keys():
            consistent(value)


# ---- vmap


@every_kind
@pytest.mark.parametrize("into", [0, 1])
@pytest.mark.parametrize("out", [0, 1])
def test_vmap_takes_a_dim_away_and_gives_it_back(kind: str, into: int, out: int) -> None:
    node = numbers(kind)
    seen = []

    def row(part: Any) -> Any:
        seen.append((part.batch_size, part.get("inner").batch_size, held(part, "word").shape, type(part)))
        return part + 1

    got = vmap(row, (into,), out)(node)
    inside = torch.Size(BATCH[:into] + BATCH[into + 1 :])
    assert seen[0][:3] == (inside, inside, inside)
    assert isinstance(got, TensorClass) is isinstance(node, TensorClass) is issubclass(seen[0][3], TensorClass)
    assert_same(got, (node + 1).movedim(into, out), "vmap")
    consistent(got)


@every_kind
def test_vmap_of_vmap_reaches_single_rows(kind: str) -> None:
    node = numbers(kind)

    def cell(part: Any) -> Any:
        assert part.batch_size == ()
        return part * 2

    assert_same(vmap(vmap(cell))(node), node * 2, "nested")
    assert_same(vmap(vmap(cell, 0, 0), 1, 1)(node), node * 2, "nested")
    assert_same(vmap(vmap(cell, 0, 0), 1, 0)(node), (node * 2).transpose(0, 1), "nested")


WORDS: dict[str, Any] = {
    "stack": lambda td: torch.stack([td, td + 1], -1),
    "cat": lambda td: torch.cat([td, td], -1),
    "unsqueeze": lambda td: td.unsqueeze(-1),
    "reshape": lambda td: td.reshape(1, 3),
    "rows": lambda td: td[torch.tensor([2, 0])],
    "row": lambda td: td[..., 1],
    "sum": lambda td: td.sum(-1),
    "set": lambda td: td.clone(False).set("x", td.get("x") * 3),
    "select": lambda td: td.select("x", "n", "inner", "word"),
    "arithmetic": lambda td: (td + 1) * td / 2,
    "constants": lambda td: torch.zeros_like(td),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1", "tensorclass", "tensorclass_of_lazy"])
def test_words_inside_vmap_are_those_on_rows(kind: str, word: str) -> None:
    node = KINDS[kind](BATCH)
    want = torch.stack([WORDS[word](row) for row in dense(BATCH).unbind(0)])
    assert_same(vmap(WORDS[word])(node), want, word)


def test_a_node_that_is_not_mapped_over_stays_as_it_is() -> None:
    td = dense(BATCH)

    def call(part: Any, x: torch.Tensor) -> Any:
        assert part.batch_size == BATCH
        return part * x, part

    mapped, same = vmap(call, (None, 0))(td, torch.arange(5.0))
    assert mapped.batch_size == same.batch_size == (5, *BATCH)
    assert_same(mapped[3], td * 3.0, "scaled")
    assert_same(same[1], td, "not mapped")


def test_a_dim_behind_the_batch_dims_can_be_mapped_over() -> None:
    td = TensorDict({"a": torch.arange(8.0).view(2, 4), "b": torch.zeros(2, 4, 3)}, [2])

    def call(part: Any) -> Any:
        assert part.batch_size == (2,)
        assert part["b"].shape == (2, 3)
        return part + 1

    got = vmap(call, (1,), 1)(td)
    consistent(got)
    assert torch.equal(got["a"], td["a"] + 1)


def test_parameters_of_an_ensemble_are_a_node() -> None:
    weights = TensorDict({"w": torch.randn(5, 2, 3), "b": torch.randn(5, 2)}, [5])
    x = torch.randn(3)
    got = vmap(lambda p, x: p["w"] @ x + p["b"], (0, None))(weights, x)
    assert torch.allclose(got, torch.stack([p["w"] @ x + p["b"] for p in weights]))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_vmap_in_chunks_is_vmap(size: int) -> None:
    td = dense((4, 3))
    got = vmap(lambda part: part * 2, chunk_size=size)(td)
    assert_same(got, td * 2, "chunks")
    assert_same(vmap(lambda part: part * 2, 0, 1, chunk_size=size)(td), (td * 2).transpose(0, 1), "chunks")


@pytest.mark.parametrize("into", [0, 1])
def test_a_column_of_objects_is_taken_along(into: int) -> None:
    td = TensorDict({"x": torch.zeros(2, 3), "s": NonTensorStack(*"abcdef").reshape(2, 3)}, [2, 3])
    got = vmap(lambda part: part + 1, into, into)(td)
    assert got["s"] == [["a", "b", "c"], ["d", "e", "f"]]
    got = vmap(lambda part: part + 1, into, 1 - into)(td)
    assert got["s"] == [["a", "d"], ["b", "e"], ["c", "f"]]


def test_a_column_that_could_go_wrong_is_refused() -> None:
    td = TensorDict({"x": torch.zeros(2, 2), "s": NonTensorStack(*"abcd").reshape(2, 2)}, [2, 2])
    with pytest.raises(RuntimeError, match=r"vmap cannot take a column .* dims \[0, 1\]"):
        vmap(lambda part: part + 1, 1)(td)
    with pytest.raises(RuntimeError, match=r"cannot follow to \[2\].*exclude"):
        pytree.tree_map(operator.itemgetter(0), td)


def test_names_follow_vmap() -> None:
    td = dense((2, 4))
    td.names = ["time", "space"]

    def call(part: Any) -> Any:
        assert part.names == ["space"]
        return part

    assert vmap(call)(td).names == [None, "space"]
    assert vmap(call, 0, 1)(td).names == ["space", None]


def test_vmap_over_tensors_is_that_of_torch() -> None:
    code = (
        "import torch; before = {k: v for k, v in vars(torch._functorch.vmap).items()}; import tensordict\n"
        "assert before == {k: v for k, v in vars(torch._functorch.vmap).items()}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# ---- derivatives


def loss(td: Any) -> torch.Tensor:
    return (td.get("x") ** 2).sum() + (td.get("inner").get("y") * 3).sin().sum()


class Pair(TensorClass):
    x: Any
    inner: Any


def floats(kind: str) -> Any:
    td = dense(BATCH).select("x", ("inner", "y"))
    if kind.startswith("lazy"):
        dim = int(kind[-1])
        return LazyStackedTensorDict(*td.unbind(dim), stack_dim=dim)
    return Pair.from_tensordict(td) if kind == "tensorclass" else td


differentiable = pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1", "tensorclass"])


@differentiable
def test_grad_is_a_node_of_gradients(kind: str) -> None:
    node = floats(kind)
    x, y = node.get("x"), node.get("inner").get("y")
    for got in (grad(loss)(node), grad_and_value(loss)(node)[0], vjp(loss, node)[1](torch.tensor(1.0).double())[0]):
        assert isinstance(got, TensorClass) is isinstance(node, TensorClass)
        assert got.batch_size == BATCH
        assert torch.allclose(got.get("x"), 2 * x)
        assert torch.allclose(got.get("inner").get("y"), 3 * (y * 3).cos())
    assert grad_and_value(loss)(node)[1] == loss(node)


@differentiable
def test_gradients_of_each_row(kind: str) -> None:
    node = floats(kind)
    got = vmap(grad(loss))(node)
    assert got.batch_size == BATCH
    assert torch.allclose(got.get("x"), 2 * node.get("x"))


@differentiable
@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(kind: str, jacobian: Any) -> None:
    node = floats(kind)
    if jacobian is jacfwd:  # torch wants the tangents that it makes to be of the same kind
        node = node.contiguous()
    got = jacobian(lambda td: td.get("x").sum(-1) ** 2)(node)
    consistent(got)
    want = jacobian(lambda x: x.sum(-1) ** 2)(node.get("x"))
    assert torch.allclose(got.get("x"), want)


def test_a_jacobian_of_a_node_is_a_node_of_nodes() -> None:
    td = TensorDict({"x": torch.randn(3), "y": torch.randn(3)}, [3])
    got = jacrev(lambda td: TensorDict({"s": td["x"] * td["y"]}, [3]))(td)
    assert torch.allclose(got["s"]["x"], td["y"].diag())
    assert torch.allclose(hessian(lambda td: (td["x"] * td["y"]).sum())(td)["x"]["y"], torch.eye(3))


def test_jvp_pairs_a_node_with_a_node_of_tangents() -> None:
    td = TensorDict({"x": torch.randn(3)}, [3])
    out, tangent = jvp(lambda td: td * td, (td,), (torch.ones_like(td),))
    assert torch.equal(out["x"], td["x"] ** 2)
    assert torch.equal(tangent["x"], 2 * td["x"])


def test_a_module_is_called_with_parameters_of_a_node() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    params = TensorDict(dict(net.named_parameters())).unflatten_keys(".")
    x = torch.randn(5, 3)

    def call(params: Any, x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, params.flatten_keys(".").to_dict(), (x,))

    assert torch.equal(call(params, x), net(x))
    got = grad(lambda p: call(p, x).sum())(params.detach())
    net(x).sum().backward()
    assert torch.allclose(got["0", "weight"], net[0].weight.grad)
    many = torch.stack([params.detach(), params.detach() * 2])
    assert torch.allclose(vmap(call, (0, None))(many, x)[1], call(params.detach() * 2, x))


@differentiable
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_takes_and_gives_nodes(kind: str, reentrant: bool) -> None:
    leaf = torch.randn(*BATCH, requires_grad=True)
    td = floats(kind).double()

    def part(x: torch.Tensor) -> Any:
        return (td * x.detach().new_ones(()).add(x.sum() * 0)).get("x") * x.exp()

    checkpoint(part, leaf, use_reentrant=reentrant).sum().backward()
    assert leaf.grad is not None
    if not reentrant:
        node = floats(kind).apply(lambda v: v.detach().requires_grad_())
        checkpoint(lambda td: td.exp() * 2, node, use_reentrant=False).get("x").sum().backward()
        leaves = node.tensordicts if hasattr(node, "tensordicts") else [node]
        assert all(member.get("x").grad is not None for member in leaves)


# ---- trees


@every_kind
def test_tree_functions_go_to_the_leaves(kind: str) -> None:
    node = KINDS[kind](BATCH)
    leaves, spec = pytree.tree_flatten(node)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    back = pytree.tree_unflatten(leaves, spec)
    stored = kind in STORED  # what is put together is in memory
    assert type(back) is (TensorDict if stored else type(node))
    assert_same(back, node, "round trip")
    assert stored or pytree.tree_flatten(back)[1] == spec
    doubled = pytree.tree_map(lambda one, two: one + two, node, node)
    assert_same(doubled, node * 2, "two trees")
    with_path, _ = pytree.tree_flatten_with_path(node)
    assert [leaf.shape for _, leaf in with_path] == [leaf.shape for leaf in leaves]


CHANGES: dict[str, Any] = {
    "sum": lambda v: v.sum(),
    "first": lambda v: v[0],
    "unsqueeze": lambda v: v.unsqueeze(0),
    "half": lambda v: v[:1],
    "flat": lambda v: v.reshape(-1),
    "last": lambda v: v.flatten(1).sum(-1),
    "gone": lambda v: v[:0],
}


@pytest.mark.parametrize("change", CHANGES)
@every_kind
def test_a_function_over_leaves_may_change_the_batch(kind: str, change: str) -> None:
    node = numbers(kind)
    got = pytree.tree_map(CHANGES[change], node)
    consistent(got)
    want = {"sum": (), "first": (3,), "unsqueeze": (1, 2, 3), "half": (1, 3), "gone": (0, 3)}.get(change)
    if want is not None:
        assert got.batch_size == want
    assert torch.equal(got.get("x"), CHANGES[change](node.get("x")))
    assert held(got, "word").shape == got.batch_size


def test_paths_of_leaves_are_keys() -> None:
    td = TensorDict({"a": 1, "b": {"c": 2}, "s": "text"})
    paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(td)[0]]
    assert paths == ["['a']", "['b']['c']"]


def test_trees_are_paired_by_key() -> None:
    td = TensorDict({"a": torch.zeros(2)}, [2])
    same = TensorDict({"a": torch.ones(2)}, names=None)
    assert pytree.tree_map(lambda one, two: one + two, td, same)["a"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="context mismatch"):
        pytree.tree_map(lambda one, two: one + two, td, TensorDict({"b": torch.zeros(2)}, [2]))


def test_a_tree_may_hold_anything_for_a_while() -> None:
    td = TensorDict({"a": torch.zeros(2, 3), "b": {"c": torch.zeros(2)}}, [2])
    ndims = pytree.tree_map(lambda v: v.ndim, td)
    assert pytree.tree_leaves(ndims) == [2, 1]


def test_a_ragged_stack_is_taken_apart_by_member() -> None:
    stack = LazyStackedTensorDict(
        TensorDict({"a": torch.zeros(2), "only": torch.ones(1)}), TensorDict({"a": torch.zeros(3)})
    )
    leaves, spec = pytree.tree_flatten(stack)
    assert [tuple(leaf.shape) for leaf in leaves] == [(2,), (1,), (3,)]
    back = pytree.tree_unflatten(leaves, spec)
    assert back[0]["only"].item() == 1
    got = pytree.tree_map(lambda v: v + 1, stack)
    assert [row["a"].sum().item() for row in got] == [2, 3]


def test_one_object_for_all_rows_stays_in_the_structure() -> None:
    td = TensorDict({"a": torch.zeros(2), "s": NonTensorData({"any": 1}, [2])}, [2])
    assert len(pytree.tree_leaves(td)) == 1
    assert pytree.tree_map(lambda v: v.sum(), td)["s"] == {"any": 1}
