"""`torch.compile(fullgraph=True)` over words on every kind in memory: one graph, compiled once, the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kinds import KINDS, assert_same, dense
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree as pytree

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, lazy_stack

BATCH = (2, 3)


def named(batch: tuple[int, ...]) -> TensorDict:
    td = dense(batch)
    td.names = ["time", None]
    return td


def column(batch: tuple[int, ...]) -> TensorDict:
    td = dense(batch)
    td["column"] = NonTensorStack(*map(str, range(6))).reshape(batch)
    return td


def lazy_of_nested(batch: tuple[int, ...]) -> Any:
    """Return a lazy stack of members that hold lazy stacks."""
    return LazyStackedTensorDict(*(row.clone() for row in KINDS["lazy1"](batch).unbind(0)))


MAKERS: dict[str, Callable[[tuple[int, ...]], Any]] = {
    **{kind: KINDS[kind] for kind in ("dense", "lazy0", "lazy1", "tensorclass")},
    # whether rows of an unbatched tensor stay one is a question of values, which no graph can answer
    "nested": lambda batch: KINDS["nested"](batch).exclude("scale"),
    "named": named,
    "column": column,
    "tensorclass_of_lazy": KINDS["tensorclass_of_lazy"],
    "lazy_of_nested": lazy_of_nested,
    "locked": lambda batch: dense(batch).lock_(),
}


def build(td: Any) -> Any:
    made = TensorDict({"x": td.get("x") + 1, "n": td.get("n"), "inner": td.get("inner"), "word": "w"}, td.batch_size)
    made["fresh", "y"] = made["x"] * 2
    made.update({"x": made["fresh", "y"] - 1}).set("n", made["n"] + 1)
    del made["fresh"]
    return made.rename_key_("n", "m").rename_key_("m", "n")


def change(td: Any) -> Any:
    new = td.clone()
    new.set("x", new.get("x") * 2).update({"n": new.get("n") + 1})
    new.set(("inner", "more"), new.get("x")).update_({"x": new.get("x") + 3})
    return new.select("x", "n", "inner", "word")


def shape(td: Any) -> Any:
    wide = td.unsqueeze(0).permute(2, 1, 0).transpose(0, 1).movedim(0, 1).squeeze(-1)
    return wide.flatten(0, 1).unflatten(0, (3, 2)).reshape(-1).view(2, 3).expand(4, 2, 3)


def compute(td: Any) -> Any:
    return ((td.exp() + td * 2 - 1) / (td + 1)).clamp(-5, 500) ** 2


def in_place(td: Any) -> Any:
    return td.clone().add_(1).mul_(2).zero_().sub_(td)


def join(td: Any) -> Any:
    both = torch.cat([torch.stack([td, td * 2], 0), torch.stack([td * 3], 0)], 0)
    return lazy_stack([both[0], both[1]], 1)


def part(td: Any) -> Any:
    first, *_ = td.unbind(0)
    left, right = td.split([1, 2], 1)
    return torch.stack([first, *torch.cat([right, left, td.chunk(3, 1)[0]], 1)[:, :3].unbind(0)])


def index(td: Any) -> Any:
    return torch.stack([td[0], td[-1], td[1, ...], td[None, :, :][0, 1], td[:, ::2][0][[0, 1, 0]]])


def context(td: Any) -> Any:
    new = td.clone().lock_()
    with new.unlock_(), new.view(-1) as flat:
        flat.set("x", flat.get("x") + 1)
    return new


def lock(td: Any) -> Any:
    new = td.clone().lock_()
    return new.unlock_().set("x", new.get("x") + 1).lock_()


def reduce(td: Any) -> Any:
    return td.sum(0, keepdim=True).expand(2, 3) + td.amax(1, keepdim=True).expand(2, 3)


def leaves(td: Any) -> Any:
    total = sum(value.sum() for value in td.values(True, True))
    return td.apply(lambda v: v + total).named_apply(lambda key, v: v * len(key))


def keys(td: Any) -> Any:
    return td.to_tensordict().flatten_keys(".").unflatten_keys(".").exclude("nothing")


def cast(td: Any) -> Any:
    return td.to(torch.float32).double().detach().contiguous()


def choose(td: Any) -> Any:
    return td.where(td.get("x") > 0.5, torch.zeros_like(td)).masked_fill(td.get("x") > 0.7, 1.0)


def move(td: Any) -> Any:
    return td.roll(1, 0).flip(1).gather(1, torch.zeros(2, 2, dtype=torch.long)).repeat(1, 2)


def tree(td: Any) -> Any:
    return pytree.tree_map(lambda v: v * 2, td)


def vmap(td: Any) -> Any:
    return torch.vmap(lambda row: row * 2, 1, 1)(td)


def setitem(td: Any) -> Any:
    new = td.clone()
    new[0] = td[1]
    new[:, 1:] = td[:, :2] * 2
    return new


def facts(td: Any) -> Any:
    assert td.batch_size == BATCH
    assert (len(td), td.ndim, td.numel(), td.shape[1]) == (2, 2, 6, 3)
    assert td.device is None or td.device.type == "cpu"
    return td if "x" in td.keys() and td.get("none") is None and not td.is_empty() else None  # noqa: SIM118


WORDS = (
    build, change, shape, compute, in_place, join, part, index, context, lock, reduce, leaves, keys, cast, choose, move,
    tree, vmap, setitem, facts,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    assert_same(got, want, "compiled")


PAIRS = [(word, kind) for word in WORDS for kind in ("dense", "lazy0", "tensorclass")]
MIXES = [
    (word, kind) for word in (change, part, setitem) for kind in ("nested", "tensorclass_of_lazy", "lazy_of_nested")
]


@pytest.mark.parametrize("word, kind", PAIRS + MIXES, ids=lambda value: getattr(value, "__name__", value))
def test_words_are_one_graph_that_is_compiled_once(word: Callable[[Any], Any], kind: str) -> None:
    counter = CompileCounter()
    compiled = torch.compile(word, fullgraph=True, backend=counter)
    for _ in range(3):
        same(compiled(MAKERS[kind](BATCH)), word(MAKERS[kind](BATCH)))
    assert counter.frame_count <= 1


def chain(td: Any) -> Any:
    wide = change(td).unsqueeze(0).exp()
    return torch.cat([wide, wide * 2]).sum(0).reshape(-1)[:4] + 1


@pytest.mark.parametrize("kind", MAKERS)
def test_words_are_traced_by_autograd_ahead_of_time(kind: str) -> None:
    compiled = torch.compile(chain, fullgraph=True, backend="aot_eager")
    node = MAKERS[kind](BATCH) / 1000
    same(compiled(node), chain(node))


def test_gradients_flow_through_what_is_compiled() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    compiled = torch.compile(lambda td: (td.exp() * 2).view(-1)[1:], fullgraph=True, backend="aot_eager")
    compiled(TensorDict({"x": torch.ones(2, 3), "y": {"z": x}}, [2, 3]))["y", "z"].sum().backward()
    want = torch.autograd.grad(x.exp().mul(2).view(-1)[1:].sum(), x)[0]
    assert x.grad is not None
    assert torch.allclose(x.grad, want)


@pytest.mark.parametrize("kind", ["dense", "tensorclass", "column"])
def test_a_batch_size_may_be_dynamic(kind: str) -> None:
    counter = CompileCounter()

    def words(td: Any) -> Any:
        return torch.stack([td.unsqueeze(1).squeeze(1) + 1, td * 2], 1)[1:].transpose(0, 1)

    compiled = torch.compile(words, fullgraph=True, backend=counter, dynamic=True)
    for size in (5, 6, 9, 4):
        td = dense((size,))
        got = compiled(td)
        assert got.batch_size == (2, size - 1)
        assert_same(got, words(td), "dynamic")
    assert counter.frame_count <= 2


def test_a_marked_dim_is_dynamic() -> None:
    counter = CompileCounter()
    compiled = torch.compile(lambda x: TensorDict({"x": x}, [x.shape[0]]).exp()[1:], fullgraph=True, backend=counter)
    for size in (5, 6, 9):
        x = torch.randn(size, 2)
        torch._dynamo.mark_dynamic(x, 0)
        got = compiled(x)
        assert got.batch_size == (size - 1,)
        assert torch.equal(got["x"], x.exp()[1:])
    assert counter.frame_count == 1


def test_members_are_picked_by_numbers_that_are_known() -> None:
    def words(stack: Any) -> Any:
        return torch.stack([stack[0], stack[-1]]), stack[1:], stack.tensordicts[0]

    stack = LazyStackedTensorDict(TensorDict({"x": torch.ones(2)}), TensorDict({"x": torch.zeros(2)}))
    got = torch.compile(words, fullgraph=True, backend="eager")(stack)
    assert [part["x"].sum().item() for part in got] == [2, 0, 2]
