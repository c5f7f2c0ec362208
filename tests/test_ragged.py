"""Ragged data: lazy stacks against the dense ones and against lists, nested tensors as leaves, the way of a batch."""

from __future__ import annotations

import copy
import pathlib
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    TensorClass,
    TensorDict,
    collate,
    dense_stack_tds,
    lazy_stack,
    maybe_dense_stack,
    merge_tensordicts,
    pad,
    pad_sequence,
    unpad_sequence,
)
from tensordict.ops.ragged import jagged

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")

LAYOUTS = [torch.jagged, torch.strided]
SIZES = (3, 5, 2, 4)


class Words(TensorClass):
    """Ragged tensors and a word a row."""

    x: Tensor | None = None
    w: str = ""
    j: Tensor | None = None


def dense(batch: tuple[int, ...]) -> TensorDict:
    rows = torch.arange(torch.Size(batch).numel()).reshape(batch)
    return TensorDict({"x": rows.float(), "n": {"y": torch.stack([rows, rows + 100], -1)}, "s": "text"}, batch)


def lazy(td: TensorDict, dims: tuple[int, ...]) -> Any:
    """Return a copy of the data as a lazy stack of lazy stacks, along the given dims."""
    if not dims:
        return td.clone()
    rest = tuple(dim - (dim > dims[0]) for dim in dims[1:])
    return LazyStackedTensorDict(*(lazy(row, rest) for row in td.unbind(dims[0])), stack_dim=dims[0])


def clouds(*sizes: int) -> list[TensorDict]:
    return [TensorDict({"p": torch.full((n, 2), float(n)), "k": n, "n": {"q": torch.arange(n)}}) for n in sizes]


def nested(layout: torch.layout, sizes: tuple[int, ...] = SIZES) -> TensorDict:
    rows = [torch.arange(n) + 10 * at for at, n in enumerate(sizes)]
    make = partial(torch.nested.as_nested_tensor, layout=layout)
    inner = {"z": make([row.float().unsqueeze(-1) for row in rows])}
    return TensorDict({"ids": make(rows), "y": torch.arange(len(sizes)), "n": inner}, [len(sizes)])


def listed(value: Any) -> Any:
    return [row.tolist() for row in value.unbind(0)] if value.is_nested else value.tolist()


# ---- a lazy stack equals the dense one

DIMS = [(0,), (1,), (2,), (0, 1), (1, 0), (2, 0), (1, 2, 0)]


@st.composite
def indices(draw: st.DrawFn, batch: tuple[int, ...] = (2, 3, 2)) -> Any:
    """Draw an index of any kind that fits a batch size."""
    index: list[Any] = []
    for size in batch[: draw(st.integers(0, len(batch)))]:
        numbers = st.lists(st.integers(-size, size - 1), min_size=2, max_size=2)
        kinds: list[st.SearchStrategy[Any]] = [
            st.integers(-size, size - 1),
            st.builds(slice, st.integers(0, size), st.integers(0, size), st.integers(1, 2)),
            st.just(slice(None)),
            numbers,
            numbers.map(torch.tensor),
            st.lists(st.booleans(), min_size=size, max_size=size).map(torch.tensor),
        ]
        index.append(draw(st.one_of(kinds)))
    masks = [item for item in index if isinstance(item, torch.Tensor) and item.dtype is torch.bool]
    if masks and sum(isinstance(item, (list, torch.Tensor)) for item in index) > 1:
        index = [item for item in index if not isinstance(item, list) and not isinstance(item, torch.Tensor)]
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), None)
    if draw(st.booleans()):
        index.append(...)
    return tuple(index)


def assert_equal(got: Any, want: Any) -> None:
    assert got.batch_size == want.batch_size
    for key in ("x", ("n", "y")):
        assert torch.equal(got.get(key), want.get(key)), key
    assert got.get("n").batch_size == want.get("n").batch_size


@given(st.sampled_from(DIMS), indices())
def test_a_lazy_stack_reads_as_the_dense_one(dims: tuple[int, ...], index: Any) -> None:
    td = dense((2, 3, 2))
    assert_equal(lazy(td, dims)[index], td[index])


@given(st.sampled_from(DIMS), indices(), st.sampled_from(["node", "dict", "number", "broadcast"]))
def test_a_lazy_stack_is_written_as_the_dense_one(dims: tuple[int, ...], index: Any, kind: str) -> None:
    td = dense((2, 3, 2))
    stack = lazy(td, dims)
    rows = torch.empty(2, 3, 2)[index].shape
    value: Any = dense(tuple(rows)).exclude("s") * -1 - 1
    if kind == "number":
        value = -5
    elif kind == "dict":
        value = value.to_dict()
    elif kind == "broadcast":
        value = (dense(()).exclude("s") - 7).expand(*rows)
    numbers = torch.arange(12).reshape(2, 3, 2)[index].reshape(-1).tolist()
    if len(set(numbers)) < len(numbers):  # which of two writes to one row wins is torch's secret
        value = -5
    td[index] = value
    stack[index] = value
    assert_equal(stack, td)
    assert stack.is_contiguous() == lazy(td, dims).is_contiguous()


MOVES: dict[str, Callable[[Any], Any]] = {
    "unsqueeze": lambda v: v.unsqueeze(1),
    "squeeze": lambda v: v.unsqueeze(0).squeeze(0),
    "permute": lambda v: v.permute(2, 0, 1),
    "transpose": lambda v: v.transpose(0, 2),
    "movedim": lambda v: v.movedim(0, -1),
    "flatten": lambda v: v.flatten(0, 1),
    "reshape": lambda v: v.reshape(-1),
    "expand": lambda v: v.expand(2, 2, 3, 2),
    "unbind": lambda v: v.unbind(1)[2],
    "split": lambda v: v.split([1, 2], 1)[1],
    "stack": lambda v: torch.stack([v, v + 1], 1),
    "cat": lambda v: torch.cat([v, v], 2),
    "gather": lambda v: v.gather(0, torch.zeros(1, 3, 2, dtype=torch.long)),
    "+": lambda v: v + v.clone(),
    "abs": lambda v: (v - 3).abs(),
    "apply": lambda v: v.apply(lambda x: x * 2),
    "update": lambda v: v.update({"x": v.get("x") * 3}),
    "sum": lambda v: v.sum(1),
    "copy": copy.deepcopy,
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "dense": lambda v: v.contiguous(),
    "densify": lambda v: v.densify(),
    "padded": lambda v: v.to_padded_tensor(),
}


@given(st.sampled_from(DIMS), st.sampled_from(sorted(MOVES)))
def test_a_word_on_a_lazy_stack_equals_the_word_on_the_dense_one(dims: tuple[int, ...], word: str) -> None:
    td = dense((2, 3, 2))
    assert_equal(MOVES[word](lazy(td, dims)), MOVES[word](td))


# ---- a heterogeneous one equals the list of its members


@st.composite
def members(draw: st.DrawFn) -> list[TensorDict]:
    found = []
    for at in range(draw(st.integers(1, 4))):
        size = draw(st.integers(0, 3))
        td = TensorDict({"a": torch.full((size, 2), float(at)), "k": at, "n": {"q": torch.arange(size)}})
        for key in draw(st.sets(st.sampled_from(["own", "other"]))):
            td[key] = torch.ones(at)
            td["n", key] = torch.zeros(at)
        found.append(td)
    return found


MEMBERWISE: dict[str, Callable[[Any], Any]] = {
    "abs": lambda v: v.abs(),
    "+ 1": lambda v: v + 1,
    "+ self": lambda v: v + v,
    "clone": lambda v: v.clone(),
    "double": lambda v: v.double(),
    "detach": lambda v: v.detach(),
    "apply": lambda v: v.apply(lambda x: x - 1),
    "in place": lambda v: v.clone().add_(1).mul_(2),
    "exclude": lambda v: v.exclude("own", ("n", "other")),
    "select": lambda v: v.select("a", ("n", "q")),
    "flatten_keys": lambda v: v.flatten_keys("."),
    "zeros_like": lambda v: torch.zeros_like(v),
    "set": lambda v: v.clone().set("k", v["k"] * 2),
    "pickle": lambda v: pickle.loads(pickle.dumps(v)),
    "deepcopy": copy.deepcopy,
    "to": lambda v: v.to("cpu"),
}


def assert_members(stack: Any, wanted: list[Any]) -> None:
    assert isinstance(stack, LazyStackedTensorDict)
    assert len(stack.tensordicts) == len(wanted)
    for got, want in zip(stack.tensordicts, wanted, strict=True):
        assert set(got.keys(True, True)) == set(want.keys(True, True))
        for key, value in want.items(True, True):
            assert torch.equal(got[key], value)
            assert got[key].dtype is value.dtype


@given(members(), st.sampled_from(sorted(MEMBERWISE)))
def test_a_word_on_a_heterogeneous_stack_is_said_to_each_member(items: list[TensorDict], word: str) -> None:
    call = MEMBERWISE[word]
    assert_members(call(lazy_stack(items)), [call(item) for item in items])


@given(members(), st.data())
def test_rows_of_a_heterogeneous_stack_are_those_of_the_list(items: list[TensorDict], data: st.DataObject) -> None:
    stack, numbers = lazy_stack(items), st.integers(-len(items), len(items) - 1)
    at = data.draw(numbers)
    assert stack[at] is items[at]
    assert all(one is two for one, two in zip(stack.unbind(0), items, strict=True))
    assert all(one is two for one, two in zip(stack, items, strict=True))
    rows = data.draw(st.lists(numbers, min_size=1, max_size=4))
    for index in (rows, torch.tensor(rows)):
        assert_members(stack[index], [items[row] for row in rows])
    mask = torch.tensor([item["k"] % 2 == 0 for item in items])
    assert_members(stack[mask], [item for item, keep in zip(items, mask, strict=True) if keep])
    assert_members(torch.cat([stack, stack]), items * 2)
    square = torch.stack([stack, stack])
    assert square.batch_size == (2, len(items))
    assert_members(square[1], items)
    assert_members(square.transpose(0, 1)[:, 0], items)
    for row, item in zip(square.reshape(-1), items * 2, strict=True):
        assert set(row.keys(True, True)) == set(item.keys(True, True))
        assert all(torch.equal(row[key], item[key]) for key in item.keys(True, True))


@given(members(), st.data())
def test_a_heterogeneous_stack_is_written_row_by_row(items: list[TensorDict], data: st.DataObject) -> None:
    stack, at = lazy_stack(items).clone(), data.draw(st.integers(0, len(items) - 1))
    stack[at] = items[at] * 2
    want = [item * 2 if row == at else item for row, item in enumerate(items)]
    assert_members(stack, want)
    stack[:] = lazy_stack(items)
    assert_members(stack, items)
    stack[[at]] = 0
    assert_members(stack, [item * 0 if row == at else item for row, item in enumerate(items)])
    stack["a"] = lazy_stack(items).get("k")  # a new value of one shape for all
    assert stack["a"].tolist() == list(range(len(items)))


def test_a_failed_write_to_a_ragged_stack_changes_no_member_and_names_key_and_shapes() -> None:
    stack = lazy_stack(clouds(1, 2, 3))
    before = [member.clone() for member in stack.tensordicts]
    with pytest.raises(RuntimeError, match=r"'p'.*\[2, 2\].*\[3, 2\]"):
        stack[:2] = lazy_stack(clouds(1, 3))
    assert_members(stack, before)


def test_a_key_of_some_members_is_not_among_the_keys_of_the_stack() -> None:
    stack = lazy_stack([TensorDict({"a": 1, "b": 2, "n": {"x": 1}}), TensorDict({"a": 3, "n": {"y": 1}})])
    assert list(stack.keys()) == list(stack.valid_keys()) == ["a", "n"]
    assert "b" not in stack
    assert stack.get("b") is None
    assert stack.get("b", "none") == stack.get(("n", "x"), "none") == stack.get_nestedtensor("b", "none") == "none"
    for read in (lambda: stack["b"], lambda: stack.get_nestedtensor("b"), lambda: stack.pop("b")):
        with pytest.raises(KeyError, match=r"'b' not found in LazyStackedTensorDict.*\[0\] have it"):
            read()
    assert "not_in_all={0: ['b']}" in repr(stack)
    assert [list(member.keys()) for member in (stack + 1).tensordicts] == [["a", "b", "n"], ["a", "n"]]
    assert [list(row.keys()) for row in stack.reshape(2, 1).unbind(0)[0].unbind(0)] == [["a", "b", "n"]]
    assert stack.contiguous().keys() == {"a", "n"}
    stack["b"] = torch.tensor([5, 6])
    assert stack["b"].tolist() == [5, 6]


READS: list[tuple[dict[str, Any], Any]] = [
    ({"as_list": True}, [[[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]),
    ({"as_nested_tensor": True}, [[[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]),
    ({"as_nested_tensor": True, "layout": torch.strided}, [[[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]),
    ({"as_padded_tensor": True}, [[[1.0, 1.0], [0.0, 0.0]], [[2.0, 2.0], [2.0, 2.0]]]),
    (
        {"as_padded_tensor": True, "padding_side": "left", "padding_value": 9},
        [[[9.0, 9.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]],
    ),
]


@pytest.mark.parametrize("options, want", READS)
def test_values_of_different_shapes_are_read_as_asked(options: Any, want: Any) -> None:
    stack = lazy_stack(clouds(1, 2))
    got = stack.get("p", **options)
    assert ([part.tolist() for part in got] if isinstance(got, list) else listed(got)) == want
    if isinstance(got, torch.Tensor) and got.is_nested:
        assert got.layout is options.get("layout", torch.jagged)
    assert stack.get("nope", "none", **options) == "none"
    with pytest.raises(RuntimeError, match=r"'p'.*\[1, 2\], \[2, 2\]"):
        stack["p"]
    with pytest.raises(TypeError, match="as_lists"):
        stack.get("p", as_lists=True)


def test_values_are_padded_along_every_dim_that_differs() -> None:
    stack = LazyStackedTensorDict(*(TensorDict({"a": torch.ones(2, n, 4 - n)}, [2]) for n in (1, 3)), stack_dim=1)
    padded = stack.get("a", as_padded_tensor=True)
    assert padded.shape == (2, 2, 3, 3)
    assert padded[:, 0].sum((1, 2)).tolist() == padded[:, 1].sum((1, 2)).tolist() == [3, 3]
    assert torch.equal(stack.to_padded_tensor()["a"], padded)
    with pytest.raises(RuntimeError, match=r"'a'.*\[2\], \[2, 2\]"):
        lazy_stack([TensorDict({"a": torch.ones(2)}), TensorDict({"a": torch.ones(2, 2)})]).get(
            "a", as_padded_tensor=True
        )


def test_a_ragged_stack_becomes_dense_where_it_can() -> None:
    stack = lazy_stack(clouds(2, 1))
    assert listed(stack.densify(torch.jagged)["n", "q"]) == [[0, 1], [0]]
    assert stack.densify()["p"].layout is torch.strided
    assert stack.to_padded_tensor(7)["n", "q"].tolist() == [[0, 1], [0, 7]]
    assert type(dense_stack_tds(lazy_stack(clouds(2, 2)))) is TensorDict
    assert type(maybe_dense_stack(clouds(2, 2))) is TensorDict
    assert type(maybe_dense_stack(clouds(2, 1))) is LazyStackedTensorDict
    words: list[Callable[[], Any]] = [
        stack.contiguous,
        lambda: dense_stack_tds(stack),
        lambda: stack.sum(0),
        lambda: torch.stack(clouds(2, 1)),
    ]
    for word in words:
        with pytest.raises(RuntimeError, match=r"'p'.*\[1, 2\], \[2, 2\]"):
            word()


def test_members_come_and_go() -> None:
    stack = lazy_stack(clouds(1))
    one, two, three = clouds(2, 3, 4)
    stack.append(two)
    stack.insert(1, one)
    stack.extend([three])
    assert stack["k"].tolist() == [1, 2, 3, 4]
    stack.update({"k": torch.arange(4)})
    assert two["k"] == 2
    for wrong, error in ((3, TypeError), (TensorDict({}, [2]), RuntimeError)):
        with pytest.raises(error):
            stack.extend([one, wrong])  # type: ignore[list-item]
    assert len(stack) == 4
    with pytest.raises(RuntimeError, match="locked"):
        stack.lock_().append(one)


def test_strict_shapes_and_hooks() -> None:
    rows = [TensorDict({"a": torch.ones(n)}, [n]) for n in (1, 2)]
    assert LazyStackedTensorDict(*rows).batch_size == (2, -1)
    with pytest.raises(RuntimeError, match="strict_shape"):
        LazyStackedTensorDict(*rows, strict_shape=True)
    strict = LazyStackedTensorDict(rows[0], strict_shape=True, stack_dim_name="time")
    assert strict.names == ["time", None]
    with pytest.raises(RuntimeError, match="strict_shape"):
        strict.append(rows[1])
    hooked = LazyStackedTensorDict(*clouds(1, 1), hook_out=lambda v: v + 1, hook_in=lambda v: v * 10)
    assert hooked["k"].tolist() == hooked.get("k").tolist() == dict(hooked.items())["k"].tolist() == [2, 2]
    hooked["k"] = torch.tensor([3, 4])
    assert [member["k"].item() for member in hooked.tensordicts] == [30, 40]
    assert hooked.hook_in is not None
    assert (hooked + 0).hook_out is None
    assert (hooked + 0)["k"].tolist() == [30, 40]


def test_a_nested_lazy_stack_stays_lazy_below() -> None:
    td = TensorDict({"n": lazy_stack(clouds(1, 2)), "y": torch.arange(2)}, [2])
    assert td[1]["n", "p"].shape == (2, 2)
    assert isinstance((td + 1).get("n"), LazyStackedTensorDict)
    td[0] = {"n": {"p": torch.zeros(1, 2)}}
    assert td["n"][0]["p"].tolist() == [[0, 0]]
    grid = torch.stack([td, td.clone()])
    assert grid.batch_size == (2, 2)
    assert grid[:, 1]["n", "p"].shape == (2, 2, 2)
    assert [row["n", "p"].shape[0] for row in grid.reshape(-1).unbind(0)] == [1, 2, 1, 2]


# ---- nested tensors as leaves

PICKS: dict[str, Any] = {
    "int": 1,
    "negative": -1,
    "slice": slice(1, 3),
    "steps": slice(0, 4, 2),
    "nothing": slice(0, 0),
    "list": [2, 0],
    "empty": [],
    "tensor": torch.tensor([3, 1, -3]),
    "mask": torch.tensor([True, False, False, True]),
    "tuple": (slice(2, None),),
    "dots": ...,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("index", PICKS.values(), ids=PICKS)
def test_rows_of_a_nested_leaf(layout: torch.layout, index: Any) -> None:
    td = nested(layout)
    numbers = torch.arange(4)[index].tolist()
    whole, deep, got = listed(td["ids"]), listed(td["n", "z"]), td[index]
    rows = whole[numbers] if isinstance(numbers, int) else [whole[at] for at in numbers]
    assert listed(got["ids"]) == rows
    assert listed(got["n", "z"]) == (deep[numbers] if isinstance(numbers, int) else [deep[at] for at in numbers])
    assert got["y"].tolist() == numbers
    assert got.batch_size == torch.empty(4)[index].shape
    if not isinstance(numbers, int):
        assert got["ids"].layout is layout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_words_that_move_rows_of_a_nested_leaf(layout: torch.layout) -> None:
    td = nested(layout)
    whole = listed(td["ids"])
    assert [listed(part["ids"]) for part in td.split([1, 3])] == [whole[:1], whole[1:]]
    assert [listed(part["ids"]) for part in td.chunk(2)] == [whole[:2], whole[2:]]
    assert [row["ids"].tolist() for row in td] == whole
    assert listed(torch.cat([td, td[1:]])["ids"]) == whole + whole[1:]
    assert listed(td.index_select(0, torch.tensor([2, 2]))["ids"]) == [whole[2]] * 2
    assert listed(td[:1].expand(2)["n", "z"]) == listed(td["n", "z"])[:1] * 2
    assert listed(td.to_lazystack(0).densify(layout)["ids"]) == whole
    assert td.__getitems__([3, 1])["ids"].unbind(0)[1].tolist() == whole[1]
    for word in (lambda: td.unsqueeze(0), lambda: td.reshape(2, 2), lambda: td[None], lambda: torch.stack([td, td])):
        with pytest.raises(RuntimeError, match="'ids'"):
            word()
    assert torch.stack(td.unbind(0)[:1])["ids"].tolist() == [whole[0]]
    assert isinstance(maybe_dense_stack([td, td]), LazyStackedTensorDict)
    with pytest.raises(RuntimeError, match=r"'ids'.*\[4, -1\]"):
        lazy_stack([td, td])["ids"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_a_nested_leaf_are_written_in_place(layout: torch.layout) -> None:
    td = nested(layout)
    whole = listed(td["ids"])
    td[1] = {"ids": torch.full((5,), 9)}
    td[[2, 0]] = td[[2, 0]] * 0
    td[3:] = -1
    assert listed(td["ids"]) == [[0] * 3, [9] * 5, [0] * 2, [-1] * 4]
    td.update_(nested(layout))
    assert listed(td["ids"]) == whole
    td.add_(td)
    assert listed(td["ids"]) == [[2 * v for v in row] for row in whole]
    before = listed(td["ids"]), td["y"].tolist()
    for index, value in ((0, torch.ones(2, dtype=torch.long)), (slice(0, 2), nested(layout, (3, 4))["ids"])):
        batch = torch.empty(4)[index].shape
        wrong = TensorDict({"y": torch.full(batch, 5), "ids": value}, batch)
        with pytest.raises(RuntimeError, match=r"'ids'.*\[(3|5)\].*\[(2|4)\]"):
            td[index] = wrong
    assert (listed(td["ids"]), td["y"].tolist()) == before
    with pytest.raises(RuntimeError, match="'y'"):
        td[0] = {"y": td["ids"]}


@pytest.mark.parametrize("index", [[0, 1], [1], torch.tensor([0, 1]), torch.tensor([True, True])])
def test_rows_that_are_picked_by_number_are_copies(index: Any) -> None:
    rows = [torch.ones(2, 2), torch.ones(3, 2)]
    for whole in (torch.nested.nested_tensor(rows, layout=torch.jagged), torch.nested.nested_tensor(rows)):
        td = TensorDict({"x": whole}, [2])
        td[index].zero_()
        assert sum(float(row.sum()) for row in td["x"].unbind()) == 10
    td = TensorDict({"x": torch.nested.nested_tensor(rows, layout=torch.jagged)}, [2])
    td[0:1].zero_()
    assert td["x"].values().sum() == 6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_casts_and_pickles_of_a_nested_leaf(layout: torch.layout) -> None:
    td = nested(layout)
    whole = listed(td["ids"])
    for made in (td.clone(), copy.deepcopy(td), pickle.loads(pickle.dumps(td)), td.to("cpu"), td.contiguous()):
        assert listed(made["ids"]) == whole
        assert made["ids"].layout is layout
    assert td.double()["ids"].dtype is torch.float64
    assert td.to(torch.int32)["n", "z"].dtype is torch.int32
    assert listed(td.abs()["ids"]) == whole
    assert "[jagged]" in repr(td)
    assert td.exclude("y").auto_batch_size_().batch_size == (4,)
    assert td.to_padded_tensor()["ids"].shape == (4, 5)
    if layout is torch.jagged:  # torch has no strided ones there
        assert td.to("meta")["ids"].device.type == "meta"


@pytest.mark.parametrize("batch", [[3], [4, 3], [4, 5]])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_first_dim_of_a_nested_leaf_is_a_batch_dim(layout: torch.layout, batch: list[int]) -> None:
    with pytest.raises(RuntimeError, match=r"'ids'.*\[4, -1\]"):
        TensorDict({"ids": nested(layout)["ids"]}, batch)


def test_gradients_reach_the_rows_of_a_nested_leaf() -> None:
    for layout in LAYOUTS:
        rows = [torch.ones(n, requires_grad=True) for n in (2, 3)]
        td = TensorDict({"x": torch.nested.as_nested_tensor(rows, layout=layout)}, [2])
        (td[[1, 1]]["x"].unbind(0)[0] * 3).sum().backward()
        assert rows[0].grad is not None
        assert rows[1].grad is not None
        assert (rows[0].grad.tolist(), rows[1].grad.tolist()) == ([0, 0], [3, 3, 3])


def test_jagged_leaves_of_equal_sizes_compute_together_after_rows_joins_and_files(tmp_path: pathlib.Path) -> None:
    rows = [torch.arange(n) for n in SIZES]
    both = {key: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for key in ("a", "b")}
    td = TensorDict(both, [4])  # torch cannot multiply these two
    collated = collate([TensorDict({"a": row, "b": row}) for row in rows], nested_keys=["a", "b"])
    for made in (
        td[:],
        td[[3, 0]],
        td[1:],
        torch.cat([td, td]),
        TensorDict.load_memmap(_saved(td, tmp_path)),
        collated,
    ):
        made = made[[0, 1]]
        assert listed(made["a"] * made["b"]) == [[v * v for v in row] for row in listed(made["a"])]


def _saved(td: TensorDict, path: pathlib.Path) -> str:
    return td.memmap(path).saved_path


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_any_dim_of_a_jagged_leaf_may_be_the_ragged_one(dim: int, tmp_path: pathlib.Path) -> None:
    rows = [torch.randn(*(n if at == dim else 2 for at in (1, 2, 3))) for n in (4, 1, 3)]
    td = TensorDict({"x": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, [3])
    stack = lazy_stack([TensorDict({"x": row}) for row in rows]).densify(torch.jagged)
    saved = TensorDict.load_memmap(_saved(td, tmp_path))
    for made in (td, stack, saved, td.clone().share_memory_(), td.clone().memmap_(), torch.cat([td[:1], td[1:]])):
        for order in ([0, 1, 2], [2, 0], [1]):
            got = made[order]["x"]
            assert got.layout is torch.jagged
            assert all(torch.equal(one, rows[at]) for one, at in zip(got.unbind(0), order, strict=True))


def test_a_jagged_leaf_with_gaps_between_rows() -> None:
    gaps = torch.nested.nested_tensor_from_jagged(torch.arange(10), torch.tensor([0, 4, 10]), torch.tensor([2, 3]))
    td = TensorDict({"x": gaps}, [2])
    for made in (td, td[[0, 1]], td[:], torch.cat([td[:1], td[1:]]), td.clone().memmap_()):
        assert listed(made["x"]) == [[0, 1], [4, 5, 6]]


# ---- where nested leaves live


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nested_leaves_are_saved_and_loaded(layout: torch.layout, tmp_path: pathlib.Path) -> None:
    td = nested(layout)
    whole = listed(td["ids"])
    td.memmap(tmp_path)
    loaded = TensorDict.load_memmap(tmp_path)
    assert loaded.is_memmap()
    assert (listed(loaded["ids"]), listed(loaded["n", "z"])) == (whole, listed(td["n", "z"]))
    assert loaded["ids"].layout is layout
    loaded[0] = {"ids": torch.full((3,), 7)}
    assert listed(TensorDict.load_memmap(tmp_path, mode="r")["ids"])[0] == [7] * 3
    other = pickle.loads(pickle.dumps(loaded))
    other[3] = {"ids": torch.full((4,), 8)}
    assert listed(loaded["ids"])[3] == [8] * 4
    assert listed(td.memmap_like(tmp_path / "like")["ids"]) == [[0] * n for n in SIZES]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", ["share_memory_", "memmap_"])
def test_nested_leaves_lie_in_one_block(layout: torch.layout, place: str) -> None:
    td = getattr(nested(layout), place)()
    assert td.is_shared() is (place == "share_memory_")
    assert listed(td["ids"]) == listed(nested(layout)["ids"])
    assert listed(td["n", "z"]) == listed(nested(layout)["n", "z"])
    assert td["ids"].layout is layout


def set_first(tds: Any, done: Any) -> None:
    for td in tds:
        td[0] = {"ids": torch.full((3,), 7)}
    done.put([listed(td["n", "z"]) for td in tds])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_another_process_writes_to_shared_nested_leaves(method: str) -> None:
    context: Any = mp.get_context(method)
    tds, done = [nested(layout).share_memory_() for layout in LAYOUTS], context.Queue()
    process = context.Process(target=set_first, args=(tds, done))
    process.start()
    assert done.get(timeout=120) == [listed(td["n", "z"]) for td in tds]
    process.join()
    assert [listed(td["ids"])[0] for td in tds] == [[7, 7, 7]] * 2


def test_a_buffer_of_shapes_is_a_nested_tensor_in_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.memmap"
    buffer = MemoryMappedTensor.zeros(torch.tensor([[2, 3], [1, 4]]), dtype=torch.uint8, filename=path)
    buffer[1].fill_(9)
    assert [row.tolist() for row in buffer.unbind(0)] == [[[0] * 3] * 2, [[9] * 4]]
    assert path.read_bytes() == bytes([0] * 6 + [9] * 4)


# ---- the way of a batch


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: int) -> Any:
        return self.items[at]


JOINS: dict[str, Callable[[Any], Any]] = {
    "lazy": lazy_stack,
    "collate": collate,
    "padded": partial(collate, pad_keys={"p": 0}, mask_key="mask"),
    "jagged": partial(collate, nested_keys=["p", ("n", "q")]),
}


def points(batch: Any) -> list[Any]:
    """Return the points of each row of a batch, whatever its form."""
    if "mask" in batch:
        return [row[keep].tolist() for row, keep in zip(batch["p"], batch["mask", "p"], strict=True)]
    return [row["p"].tolist() for row in batch.unbind(0)]


def every_join(samples: Any) -> dict[str, Any]:
    return {name: join(samples) for name, join in JOINS.items()}


def loaders(method: str | None) -> dict[str, Any]:
    return {} if method is None else {"num_workers": 1, "multiprocessing_context": method}


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_ragged_batches_go_through_a_loader(method: str | None) -> None:
    items = clouds(1, 3, 2, 2, 4)
    batches = list(DataLoader(Samples(items), batch_size=2, collate_fn=every_join, **loaders(method)))
    for join in JOINS:
        got = [row for batch in batches for row in points(batch[join])]
        assert got == [item["p"].tolist() for item in items], join


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_a_tensordict_with_nested_leaves_is_a_dataset(method: str | None) -> None:
    td = nested(torch.jagged)
    td["strided"] = nested(torch.strided)["ids"]
    batches = list(DataLoader(td, batch_size=3, **loaders(method)))  # type: ignore[arg-type]
    for key in ("ids", "strided", ("n", "z")):
        assert [row for batch in batches for row in listed(batch[key])] == listed(td[key])


@pytest.mark.parametrize("join", JOINS)
def test_a_ragged_batch_is_moved_pinned_and_saved(join: str, tmp_path: pathlib.Path) -> None:
    batch = JOINS[join](clouds(1, 3, 2))
    assert batch.to("meta").is_meta
    assert batch.to("meta").batch_size == (3,)
    assert points(batch.to("cpu")) == points(batch)
    if torch.cuda.is_available():
        assert batch.pin_memory().is_pinned()
        assert points(batch.to("cuda").to("cpu")) == points(batch)
    else:
        assert not batch.is_pinned()
        with pytest.raises(RuntimeError, match="accelerator"):
            batch.pin_memory()
    batch.memmap(tmp_path)
    assert points(TensorDict.load_memmap(tmp_path)) == points(batch)
    assert points(batch.clone().memmap_()) == points(batch.clone().share_memory_()) == points(batch)
    assert points(pickle.loads(pickle.dumps(batch))) == points(batch)


# ---- padding: torch's own functions are the oracle

rows_of_any_size = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@given(rows_of_any_size, st.sampled_from(["left", "right"]), st.integers(-3, 3))
def test_pad_sequence_is_torchs_own_with_masks(sizes: list[int], side: str, value: int) -> None:
    items = clouds(*sizes)
    got = pad_sequence(items, padding_value=value, padding_side=side, return_mask=True)
    for key in ("p", ("n", "q")):
        longest = max(sizes)
        for row, item, mask in zip(got[key], items, got.get(("masks", key)), strict=True):
            missing = longest - len(item[key])
            before = [0, 0] * (row.ndim - 1)
            amount = [*before, missing, 0] if side == "left" else [*before, 0, missing]
            assert torch.equal(row, torch.nn.functional.pad(item[key], amount, value=value))
            ones = torch.ones(len(item[key]), dtype=torch.bool)
            assert torch.equal(mask, torch.nn.functional.pad(ones, amount[-2:], value=False))
    for row, item in zip(unpad_sequence(got).unbind(0), items, strict=True):
        assert set(row.keys(True, True)) == set(item.keys(True, True))
        assert all(torch.equal(row[key], item[key]) for key in item.keys(True, True))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_other_dims_and_batch_dims(side: str) -> None:
    wide = [TensorDict({"a": torch.ones(2, n), "k": torch.ones(2)}) for n in (1, 3)]
    for dim in (1, -1):
        got = pad_sequence([item.select("a") for item in wide], dim, padding_side=side, return_mask=True)
        assert got["a"].shape == (2, 2, 3)
        assert [row["a"].shape for row in unpad_sequence(got, pad_dim=dim)] == [(2, 1), (2, 3)]
    got = pad_sequence(wide, 1, padding_side=side)
    assert got["k"].shape == (2, 2)
    batches = [TensorDict({"a": torch.ones(n, 2), "n": TensorDict({"b": torch.ones(n)}, [n])}, [n]) for n in (1, 3)]
    got = pad_sequence(batches, padding_side=side, return_mask="where")
    assert got.batch_size == got["n"].batch_size == (2, 3)
    for mask in ("where", got["where"], got["where", "a"]):
        rows = unpad_sequence(got if isinstance(mask, str) else got.exclude("where"), mask).unbind(0)
        assert [row.batch_size for row in rows] == [(1,), (3,)]
        assert [row["n", "b"].shape for row in rows] == [(1,), (3,)]
    with pytest.raises(RuntimeError, match=r"'a'.*\[2, 1\], \[2, 3\]"):
        pad_sequence(wide)
    with pytest.raises(ValueError, match="middle"):
        pad_sequence(wide, 1, padding_side="middle")


def test_pad_adds_rows_in_place_if_asked() -> None:
    td = TensorDict({"x": torch.ones(2, 3), "n": {"y": torch.ones(2)}}, [2])
    got = pad(td, [1, 2], value=5)
    assert got["n", "y"].tolist() == [5, 1, 1, 5, 5]
    assert torch.equal(got["x"], torch.nn.functional.pad(td["x"], [0, 0, 1, 2], value=5))
    assert td.batch_size == (2,)
    assert pad(td, [1, 2], 5, inplace=True) is td
    assert td.batch_size == (5,)
    assert td["n", "y"].tolist() == [5, 1, 1, 5, 5]


def test_a_nested_leaf_is_flipped_and_rolled_in_a_tensorclass_too() -> None:
    for node in (td := TensorDict({"j": jagged([torch.arange(n) for n in (1, 2, 3)])}, [3]), Words.from_tensordict(td)):
        assert [row.tolist() for row in node.flip(0)["j"].unbind()] == [[0, 1, 2], [0, 1], [0]]
        assert [row.tolist() for row in node.roll(1, 0)["j"].unbind()] == [[0, 1, 2], [0], [0, 1]]


@pytest.mark.parametrize("dim", [1, 2])
def test_a_jagged_leaf_without_rows_keeps_its_other_sizes(dim: int, tmp_path: pathlib.Path) -> None:
    row = torch.ones(2, 5) if dim == 1 else torch.ones(5, 2)
    full = TensorDict({"j": jagged([row], dim)}, [1])
    none = full[:0]
    none.memmap(tmp_path / "a").memmap(tmp_path / "b")
    saved = TensorDict.load_memmap(tmp_path / "b")
    for found in (saved, none.clone().share_memory_(), pickle.loads(pickle.dumps(none.clone().share_memory_()))):
        assert found.batch_size == (0,) and found["j"].shape[3 - dim] == 5
        assert torch.equal(torch.cat([found, full])["j"].unbind()[0], row)


def test_classes_read_and_change_ragged_values_as_tensordicts_do() -> None:
    rows = lazy_stack([Words(torch.arange(n), f"w{n}") for n in (1, 3)])
    assert [part.tolist() for part in rows.get("x", as_list=True)] == [[0], [0, 1, 2]]
    assert rows.get("x", as_padded_tensor=True, padding_value=-1).tolist() == [[0, -1, -1], [0, 1, 2]]
    assert rows.get("x", as_nested_tensor=True).is_nested
    more = rows.apply(lambda v: v + 1)
    assert type(more) is Words and more[1].x.tolist() == [1, 2, 3] and more.w == ["w1", "w3"]
    assert type(rows.densify(torch.jagged)) is Words and type(rows.to_padded_tensor()) is Words
    grid = lazy_stack([Words(torch.zeros(2, 3, n), "w", batch_size=[2]) for n in (1, 4)])
    grid.batch_size = [2, 2, 3]
    assert grid[0].batch_size == (2, 3)


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_with_objects_are_padded_and_back(side: str) -> None:
    words = [[f"w{at}" for at in range(n)] for n in (1, 3)]
    items = [TensorDict({"x": torch.ones(len(w)), "w": w, "one": "s"}, [len(w)]) for w in words]
    batch = pad_sequence(items, return_mask=True, padding_side=side)
    row = [None, None, "w0"] if side == "left" else ["w0", None, None]
    assert batch.batch_size == (2, 3) and batch["w"] == [row, words[1]] and batch["one"] == [["s"] * 3] * 2
    assert [list(found["w"]) for found in unpad_sequence(batch)] == words
    assert [list(found["w"]) for found in unpad_sequence(batch, batch["masks", "x"])] == words


def test_padding_a_dim_after_the_batch_dims_keeps_them() -> None:
    items = [TensorDict({"x": torch.ones(2, n), "w": ["a", "b"]}, [2]) for n in (1, 3)]
    batch = pad_sequence(items, 1, return_mask=True)
    assert batch.batch_size == (2, 2) and batch["w"] == [["a", "b"], ["a", "b"]]
    assert batch["masks", "x"].sum(-1).tolist() == [[1, 1], [3, 3]]
    back = unpad_sequence(batch, pad_dim=1)
    assert [found["x"].shape for found in back] == [(2, 1), (2, 3)]


def test_a_row_of_a_lazy_stack_is_written_to_its_member_only() -> None:
    members = [TensorDict({"x": torch.zeros(2), "w": "a"}) for _ in range(3)]
    rows = lazy_stack(members)
    rows[-1] = TensorDict({"x": torch.ones(2), "w": "b"})
    assert rows["x"].sum(1).tolist() == [0, 0, 2] and rows["w"] == ["a", "a", "b"]
    for wrong in ({"x": torch.ones(5), "w": "c"}, {"x": torch.ones(2), "w": torch.ones(())}):
        with pytest.raises((RuntimeError, TypeError)):
            rows[0] = TensorDict(wrong)
    assert members[0]["x"].sum() == 0 and members[0]["w"] == "a"
    with pytest.raises(IndexError):
        rows[3] = members[0]


@pytest.mark.parametrize("index", [(..., True), (True, 0), (slice(None), True), (None, 0), (True, [1, 0])], ids=str)
def test_rows_written_beside_a_new_dim_take_their_objects_along(index: Any) -> None:
    def rows(word: str, number: float) -> TensorDict:
        return TensorDict({"x": torch.full((2,), number), "s": word, "n": {"s": word}}, [2])

    dense = rows("a", 0.0)
    stack = lazy_stack([row.clone() for row in dense.unbind(0)])
    value = rows("b", 1.0)[index]
    stack[index] = value
    dense[index] = value
    assert stack["x"].tolist() == dense["x"].tolist()
    for key in ("s", ("n", "s")):
        assert stack.get(key).tolist() == dense.get(key).tolist()


def some(*samples: dict[str, Any], batch: tuple[int, ...] = ()) -> Any:
    return lazy_stack([TensorDict(sample, batch) for sample in samples])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_densify_keeps_keys_of_some_members(layout: torch.layout) -> None:
    one, other = (
        {"a": torch.ones(2), "n": {"b": torch.ones(3)}, "s": "text"},
        {"a": torch.ones(2), "c": torch.ones(2, 4)},
    )
    dense = some(one, other, one).densify(layout)
    assert type(dense) is TensorDict and dense.batch_size == (3,)
    assert {str(key) for key in dense.keys(True)} == {"a", "n", "('n', 'b')", "s", "c"}
    assert [tuple(row.shape) for row in dense["n", "b"].unbind()] == [(3,), (0,), (3,)]
    assert [tuple(row.shape) for row in dense["c"].unbind()] == [(0, 4), (2, 4), (0, 4)]
    assert dense["s"] == ["text", None, "text"]
    with_batch = some({"c": torch.ones(3, 4)}, {}, batch=(3,)).densify(layout)
    assert [tuple(row.shape) for row in with_batch["c"].unbind()] == [(3, 4), (3, 0)]
    with pytest.raises(RuntimeError, match=r"'c'.*no dim that could be empty"):
        some({"c": torch.ones(())}, {}).densify(layout)
    grid = lazy_stack([some(one, one), some(other, other)]).densify(layout)
    assert [tuple(row.shape) for row in grid["c"].unbind()] == [(2, 0, 4), (2, 2, 4)] and grid["s"][1] == [None, None]
    with pytest.raises(RuntimeError, match="shapes differ"):
        lazy_stack([some(one, other), some(other, one)]).densify(layout)


def test_padding_keeps_keys_of_some_members() -> None:
    padded = some(
        {"a": torch.ones(2), "c": torch.tensor(3.0)}, {"a": torch.ones(1), "b": torch.ones(2)}
    ).to_padded_tensor(-1)
    assert padded["a"].tolist() == [[1, 1], [1, -1]]
    assert padded["c"].tolist() == [3, -1] and padded["b"].tolist() == [[-1, -1], [1, 1]]


def ragged(*lengths: int, plus: float = 0.0) -> LazyStackedTensorDict:
    """A stack of a ragged and a dense value, on two levels."""
    rows = [{"a": torch.full((n,), n + plus), "b": torch.tensor(n + plus)} for n in lengths]
    return lazy_stack([TensorDict({**row, "n": {"a": row["a"] * 10}}) for row in rows])


def in_lists(stack: Any) -> dict[Any, list[Any]]:
    return {key: [row[key].tolist() for row in stack.unbind(0)] for key in sorted(stack.keys(True, True), key=str)}


RAGGED_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda td, other: td.update(other),
    "update in place": lambda td, other: td.update(other, inplace=True),
    "update with clones": lambda td, other: td.update(other, clone=True),
    "update_": lambda td, other: td.update_(other),
    "replace": lambda td, other: td.replace(other),
    "copy_": lambda td, other: td.copy_(other),
    "assign": lambda td, other: td.__setitem__(slice(None), other) or td,
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("word", RAGGED_UPDATES)
def test_a_ragged_stack_takes_the_values_of_another(word: str, nested: bool) -> None:
    mine, other = ragged(1, 2, 3), ragged(1, 2, 3, plus=0.5)
    if not nested:
        assert in_lists(RAGGED_UPDATES[word](mine, other)) == in_lists(other)
        return
    outer = TensorDict({"s": mine, "x": torch.zeros(3)}, [3])
    made = RAGGED_UPDATES[word](outer, TensorDict({"s": other, "x": torch.ones(3)}, [3]))
    assert in_lists(made["s"]) == in_lists(other)
    assert made["x"].tolist() == [1.0, 1.0, 1.0]


def test_an_update_of_a_ragged_stack_takes_some_keys_only_if_asked() -> None:
    mine = ragged(1, 2).update(ragged(3, 4), keys_to_update=["b", ("n", "a")])
    assert [row["a"].shape[0] for row in mine.unbind(0)] == [1, 2]
    assert [row["n", "a"].shape[0] for row in mine.unbind(0)] == [3, 4]
    assert mine["b"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("inplace", [False, True])
def test_an_update_that_a_member_refuses_changes_no_member(inplace: bool) -> None:
    mine = lazy_stack([TensorDict({"a": torch.zeros(2), "b": torch.zeros(2)}, [2]) for _ in range(2)])
    good = TensorDict({"a": torch.ones(2), "b": torch.ones(2)}, [2])
    bad = TensorDict({"a": torch.ones(2), "b": torch.ones(2, 3)}, [2])
    other = lazy_stack([good, bad])
    if inplace:
        with pytest.raises(RuntimeError, match="'b'"):
            mine.update(other, inplace=True)
    else:
        mine[1].lock_()
        with pytest.raises(RuntimeError, match="locked"):
            mine.update(other)
    assert all((row == 0).all() for row in mine.unbind(0))


def test_merging_ragged_stacks_keeps_what_the_first_has() -> None:
    merged = merge_tensordicts(ragged(1, 2), ragged(3, 4).rename_key_("b", "c"))
    assert in_lists(merged)["a"] == [[1.0], [2.0, 2.0]]
    assert merged["c"].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_ragged_tensors_is_one_for_each_member(kind: type) -> None:
    rows = kind([torch.ones(2), torch.ones(1), torch.ones(4)])
    by_set, by_item, by_update = ragged(1, 2, 3), ragged(1, 2, 3), ragged(1, 2, 3)
    by_set.set("c", rows)
    by_item["n", "c"] = rows
    by_update.update({"a": rows})
    assert [row["c"].shape[0] for row in by_set.unbind(0)] == [2, 1, 4]
    assert [row["n", "c"].shape[0] for row in by_item.unbind(0)] == [2, 1, 4]
    assert [row["a"].shape[0] for row in by_update.unbind(0)] == [2, 1, 4]
    assert by_set.get("c", as_list=True)[2].tolist() == [1.0] * 4


def test_what_is_known_of_a_ragged_stack_without_joining_it() -> None:
    stack = ragged(1, 2, 3)
    assert stack.get_item_shape("a") == torch.Size([3, -1])
    assert stack.get_item_shape(("n", "a")) == torch.Size([3, -1])
    assert stack.get_item_shape("b") == torch.Size([3])
    assert not stack.is_contiguous()
    assert type(stack.empty()) is LazyStackedTensorDict
    assert stack.empty().batch_size == torch.Size([3])
    assert in_lists(stack.empty().set("a", [torch.ones(1), torch.ones(2), torch.ones(3)]))["a"][1] == [1.0, 1.0]
    assert list(stack.empty(recurse=True).keys()) == ["n"]
    assert stack.fill_("a", 7.0).get("a", as_list=True)[1].tolist() == [7.0, 7.0]
    with pytest.raises(KeyError, match="'zz'"):
        stack.fill_("zz", 1.0)


def test_what_is_empty_in_one_member_only_stays_in_the_others() -> None:
    stack = lazy_stack([TensorDict({"n": {}, "a": 1}), TensorDict({"n": {"b": 2}, "a": 1})])
    stack.filter_empty_()
    assert [list(member.keys(True, True)) for member in stack.tensordicts] == [["a"], [("n", "b"), "a"]]
    td = TensorDict({"l": lazy_stack([TensorDict({"n": {}}), TensorDict({"n": {"b": 2}})])}, [2])
    td.filter_empty_()
    assert td["l"].tensordicts[1]["n", "b"] == 2
    rest = lazy_stack([TensorDict({"n": {"c": 1}}), TensorDict({"n": {"b": 2, "c": 1}})])
    assert rest.separates(("n", "c"))["n", "c"].tolist() == [1, 1]
    assert rest.tensordicts[1]["n", "b"] == 2


def test_nodes_with_different_numbers_of_batch_dims_are_shown_and_kept() -> None:
    members = [TensorDict({"n": TensorDict({"c": torch.zeros(3)}, batch)}, []) for batch in ([], [3])]
    stack = lazy_stack(members)
    assert "n: mixed" in repr(stack)
    assert stack.filter_empty_() is stack
    assert (stack + 1)[1]["n", "c"].tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="'n'"):
        stack["n"]


def test_a_mapping_replaces_a_ragged_value() -> None:
    stack = ragged(1, 2, 3)
    assert list(stack.replace({"a": {"x": torch.zeros(3)}})["a"].keys()) == ["x"]
    assert stack.update({"a": {}})["a"].is_empty() and [row["a"].batch_size for row in stack.unbind(0)] == [()] * 3
