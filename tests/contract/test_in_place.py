"""Words that take effect in place, or write to a given tensordict, or put results under other keys: on every kind."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from kinds import KINDS, LEAVES, STORED, assert_same, can_make

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    is_leaf_nontensor,
    pad,
)

BATCHES = [(2, 3), (1, 3), (3, 2, 1)]
FIRST = {2: torch.tensor([True, False]), 1: torch.tensor([True]), 3: torch.tensor([True, False, True])}
SHAPES: dict[str, Any] = {
    "flatten": lambda v, **o: v.flatten(0, 1, **o),
    "flatten all": lambda v, **o: v.flatten(**o),
    "flatten none": lambda v, **o: v.flatten(None, None, **o),
    "unflatten": lambda v, **o: v.unflatten(1, (1, -1), **o),
    "repeat": lambda v, **o: v.repeat(2, *(1,) * (v.ndim - 1), **o),
    "repeat_interleave": lambda v, **o: v.repeat_interleave(2, dim=0, **o),
    "repeat_interleave all": lambda v, **o: v.repeat_interleave(2, **o),
    "roll": lambda v, **o: v.roll(1, 0, **o),
    "roll all": lambda v, **o: v.roll(1, **o),
    "masked_select": lambda v, **o: v.masked_select(FIRST[v.shape[0]], **o),
    "masked_select all": lambda v, **o: v.masked_select(torch.ones(v.shape, dtype=torch.bool), **o),
    "gather": lambda v, **o: v.gather(1, torch.zeros(v.shape[0], 1, *v.shape[2:], dtype=torch.long), **o),
    "pad": lambda v, **o: v.pad([0, 1, 1, 2], 3.0, **o),
}


def cases() -> list[Any]:
    return [(kind, batch) for kind in KINDS for batch in BATCHES if kind not in STORED and can_make(kind, batch)]


@pytest.mark.parametrize("kind", STORED)
def test_a_node_in_a_store_refuses_shape_words_in_place(kind: str) -> None:
    node = KINDS[kind]((2, 3))
    with pytest.raises(TypeError, match="in place"):
        node.flatten(inplace=True)
    assert node.batch_size == (2, 3)


def made(kind: str, batch: tuple[int, ...]) -> Any:
    node = KINDS[kind](batch)
    node.unlock_()  # mapped and shared ones are locked
    node.names = ["a", "b", "c"][: len(batch)]
    return node


@pytest.mark.parametrize("kind, batch", cases())
@pytest.mark.parametrize("word", SHAPES)
def test_a_shape_word_in_place_leaves_me_with_its_result(word: str, kind: str, batch: tuple[int, ...]) -> None:
    call, node = SHAPES[word], made(kind, batch)
    want = call(made(kind, batch))
    assert call(node, inplace=True) is node
    assert_same(node, want, word)
    if kind == "nested":
        for key in ("one", "column"):
            assert node.get(key).tolist() == want.get(key).tolist()
        assert node["wide"].batch_size == want["wide"].batch_size
        assert (node["point"] == want["point"]).all()


@pytest.mark.parametrize("kind, batch", cases())
def test_in_place_is_refused_when_any_part_is_locked(kind: str, batch: tuple[int, ...]) -> None:
    for lock in (lambda node: node.lock_(), lambda node: node.get("inner").lock_()):
        node = made(kind, batch)
        lock(node)
        if not (node.is_locked or node.get("inner").is_locked):
            continue  # the nested node of a lazy stack is made anew at each read
        for word, call in SHAPES.items():
            with pytest.raises(RuntimeError, match=r"cannot change values and batch size in place: .* locked"):
                call(node, inplace=True)
            assert node.batch_size == batch, word
        assert_same(node, made(kind, batch), "refused")


def test_nested_tensordicts_stay_the_objects_that_they_are() -> None:
    td = made("dense", (2, 3))
    inner = td["inner"]
    assert td.flatten(inplace=True)["inner"] is inner
    assert inner.batch_size == (6,)
    assert pad(td, [1, 0], 9.0, inplace=True) is td
    assert td["x"][0] == 9.0
    assert inner["y"].shape[0] == 7


@pytest.mark.parametrize("node", [NonTensorStack(*"abcdef").reshape(2, 3), NonTensorData("a", [2, 3])])
def test_non_tensors_change_in_place(node: Any) -> None:
    want = node.roll(1, 0).flatten().tolist()
    assert node.roll(1, 0, inplace=True).flatten(inplace=True) is node
    assert node.tolist() == want


def test_a_lazy_stack_stays_one_and_keeps_a_member() -> None:
    node = made("lazy0", (2, 3))
    assert node.flatten(inplace=True) is node
    assert type(node) is LazyStackedTensorDict
    assert len(node.tensordicts) == 6
    with pytest.raises(RuntimeError, match=r"keeps at least one member: it cannot become \[0\]"):
        node.masked_select(torch.zeros(6, dtype=torch.bool), inplace=True)
    assert len(node) == 6


def test_rows_of_a_batch_that_lost_its_names_stack_without_names() -> None:
    rows = made("dense", (2, 3)).flatten().unbind(0)
    stack = LazyStackedTensorDict(*rows)
    assert stack.names == [None]
    assert stack[torch.zeros(6, dtype=torch.bool)].batch_size == (0,)
    assert TensorDict({"x": torch.ones(2)}, [2], names=["a"]).sum(dim=0).unsqueeze(0)[:1].names == [None]


# ---- out

OUTS: dict[str, Any] = {
    "clamp": lambda v, **o: v.clamp(1, 2, **o),
    "clamp min": lambda v, **o: v.clamp(min=1, **o),
    "gather": lambda v, **o: v.gather(0, torch.zeros(1, *v.shape[1:], dtype=torch.long), **o),
    "where": lambda v, **o: v.where(FIRST[v.shape[0]], v + 1, **o),
    "stack": lambda v, **o: torch.stack([v, v], 0, **o),
}
FLOAT_OUTS: dict[str, Any] = {
    "logsumexp": lambda v, **o: v.logsumexp(0, **o),
    "norm": lambda v, **o: v.norm(**o),
}


@pytest.mark.parametrize("kind, batch", cases())
def test_results_are_written_to_the_memory_of_out(kind: str, batch: tuple[int, ...]) -> None:
    for word, call in {**OUTS, **FLOAT_OUTS}.items():
        node = KINDS[kind](batch)
        node = node.double() if word in FLOAT_OUTS else node
        want = call(node)
        out = torch.zeros_like(want)
        leaf = out.get("x")
        assert call(node, out=out) is out, word
        for key in LEAVES:
            assert torch.allclose(out.get(key), want.get(key)), (word, key)
        if type(out) is TensorDict:
            assert leaf is out.get("x"), word


@pytest.mark.parametrize("word", OUTS)
def test_out_of_another_batch_size_or_other_keys_is_refused(word: str) -> None:
    td = KINDS["dense"]((2, 3))
    with pytest.raises(RuntimeError, match=r"out must have the batch size of the result, \[.*\], got \[7\]"):
        OUTS[word](td, out=TensorDict({}, [7]))
    with pytest.raises(KeyError, match="'x' not found"):
        OUTS[word](td, out=OUTS[word](td).exclude("x"))


def test_where_gives_out_another_batch_size_when_asked() -> None:
    td = TensorDict({"x": torch.arange(3.0)}, [3])
    out = TensorDict({"x": torch.zeros(5)}, [5])
    assert td.where(td["x"] > 0, 9.0, out=out, update_batch_size=True) is out
    assert out.batch_size == (3,)
    assert out["x"].tolist() == [9.0, 1.0, 2.0]
    with pytest.raises(RuntimeError, match="locked"):
        td.where(td["x"] > 0, 9.0, out=TensorDict({"x": torch.zeros(5)}, [5]).lock_(), update_batch_size=True)


def test_clamp_needs_a_bound() -> None:
    with pytest.raises(RuntimeError, match="needs min, max or both"):
        TensorDict({"x": torch.ones(2)}).clamp()


# ---- key_transform

KEYED: dict[str, Any] = {
    "sum": lambda v, **o: v.sum(dim=0, **o),
    "mean of all": lambda v, **o: v.mean(**o),
    "std": lambda v, **o: v.std(dim=1, correction=0, **o),
    "var of rows": lambda v, **o: v.var(dim="feature", correction=0, **o),
    "amax": lambda v, **o: v.amax(dim=(0, 1), keepdim=True, **o),
    "quantile": lambda v, **o: v.quantile(0.5, dim=0, **o),
    "quantiles of all": lambda v, **o: v.quantile(torch.tensor([0.1, 0.2], dtype=torch.double), **o),
    "quantile of rows": lambda v, **o: v.quantile(0.5, dim="feature", **o),
    "norm": lambda v, **o: v.norm(**o),
}


@pytest.mark.parametrize(
    "kind, batch", [(k, b) for k, b in cases() if k not in ("nested", "typed", "uneven") and "tensorclass" not in k]
)
def test_results_stand_under_transformed_keys(kind: str, batch: tuple[int, ...]) -> None:
    for word, call in KEYED.items():
        node = KINDS[kind](batch).double()
        want = call(node)
        got = call(node, key_transform=lambda key: ("new", key) if key == "x" else f"{key}_{key}")
        assert got.batch_size == want.batch_size, word
        assert got.names == want.names, word
        assert sorted(map(str, got.keys(True, True))) == sorted(
            map(str, [("new", "x"), "n_n", ("inner_inner", "y_y"), ("inner_inner", "b_b")])
        )
        for old, new in {"x": ("new", "x"), "n": "n_n", ("inner", "y"): ("inner_inner", "y_y")}.items():
            one, two = want.get(old), got.get(new)
            assert torch.allclose(one, two, equal_nan=True), (word, old)
        assert got["word_word"] == want["word"]


class Swapped(TensorClass):
    x: torch.Tensor
    y: torch.Tensor


def test_fields_of_a_tensorclass_transform_to_its_fields() -> None:
    point = Swapped(x=torch.ones(2, 3), y=torch.zeros(2, 3), batch_size=[2, 3])
    swapped = point.sum(dim=0, key_transform={"x": "y", "y": "x"}.get)
    assert type(swapped) is Swapped
    assert (swapped.y == 2).all()
    assert not swapped.x.any()
    with pytest.raises(AttributeError, match="no field"):
        point.sum(dim=0, key_transform=lambda key: key * 2)


def test_two_values_under_one_key_are_an_error() -> None:
    with pytest.raises(KeyError, match=r"two values the key \('n',\), the second at key 'n'"):
        KINDS["dense"]((2, 3)).sum(dim=0, key_transform=lambda key: "n")
    with pytest.raises(KeyError, match="'z' holds a tensor"):
        TensorDict({"a": torch.ones(2), "b": torch.ones(2)}, [2]).norm(key_transform={"a": "z", "b": ("z", "b")}.get)


# ---- torch's own names of parameters


@pytest.mark.parametrize("kind, batch", cases())
def test_torch_functions_take_the_names_of_torch(kind: str, batch: tuple[int, ...]) -> None:
    node, n, x = KINDS[kind](batch), len(batch), torch.zeros(batch)
    wide, flat = (4, *batch), (math.prod(batch),)
    calls: list[Any] = [
        lambda v: torch.swapaxes(v, axis0=0, axis1=1),
        lambda v: torch.swapdims(v, dim0=0, dim1=1),
        lambda v: torch.transpose(v, dim0=0, dim1=-1),
        lambda v: torch.broadcast_to(v, size=wide),
        lambda v: torch.reshape(v, shape=flat),
        lambda v: torch.permute(v, dims=tuple(reversed(range(n)))),
        lambda v: torch.flatten(v, start_dim=0, end_dim=1),
        lambda v: torch.unflatten(v, dim=1, sizes=(1, -1)),
        lambda v: torch.movedim(v, source=0, destination=1),
        lambda v: torch.flip(v, dims=(0,)),
        lambda v: torch.roll(v, shifts=1, dims=0),
        lambda v: torch.repeat_interleave(v, repeats=2, dim=0),
        lambda v: torch.tile(v, dims=(2,)),
        lambda v: v.swapdims(dim0=0, dim1=1),
        lambda v: v.expand(size=wide),
        lambda v: v.flip(dims=(0, 1)),
    ]
    for at, call in enumerate(calls):
        assert call(node).batch_size == call(x).shape, at
    assert node.swapdims(axis0=0, axis1=1).batch_size == node.swapaxes(axis0=1, axis1=0).batch_size
    assert node.broadcast_to(shape=wide).batch_size == wide
    assert node.reshape(size=flat).batch_size == flat
    if kind != "side_by_side":  # rows with gaps between them have no view of fewer dims, as in torch
        assert node.view(size=flat).batch_size == flat


def leaves_of(node: Any) -> dict[Any, torch.Tensor]:
    return {key: torch.as_tensor(node.get(key)).clone() for key in LEAVES}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", ["apply", "apply_", "named_apply", "other", "default"])
def test_apply_in_place_copies_what_is_returned_into_every_leaf(kind: str, word: str) -> None:
    node = KINDS[kind]((2, 3))
    was = leaves_of(node)
    home = None if kind in STORED else node.get("x").data_ptr() if isinstance(node, TensorDict) else None
    made = {
        "apply": lambda: node.apply(lambda v: v * 2, inplace=True),
        "apply_": lambda: node.apply_(lambda v: v * 2),
        "named_apply": lambda: node.named_apply(lambda key, v: v * 2, inplace=True),
        "other": lambda: node.apply(lambda v, other: v + other, KINDS[kind]((2, 3)), inplace=True),
        "default": lambda: node.apply(
            lambda v, other: v * 2 if other is None else v + other, node.select("x"), inplace=True, default=None
        ),
    }[word]()
    assert made is node
    for key, value in was.items():
        assert torch.equal(torch.as_tensor(node.get(key)), value * 2), key
    assert home is None or node.get("x").data_ptr() == home


def ragged() -> LazyStackedTensorDict:
    return LazyStackedTensorDict(
        *(TensorDict({"a": torch.ones(n), "n": {"b": torch.ones(n, 2)}, "s": "text", f"own{n}": 1.0}) for n in (1, 2))
    )


@pytest.mark.parametrize("within", [False, True])
def test_apply_in_place_reaches_the_members_of_a_ragged_stack(within: bool) -> None:
    stack = ragged()
    held = [(m["a"], m["n", "b"], m[f"own{n}"]) for n, m in enumerate(stack.tensordicts, 1)]
    node: Any = TensorDict({"inner": stack}, [2]) if within else stack
    seen: list[Any] = []
    node.named_apply(lambda key, v: seen.append((key, tuple(v.shape))) or v + 4, inplace=True)
    assert seen == [("a", (1,)), ("b", (1, 2)), ("own1", ()), ("a", (2,)), ("b", (2, 2)), ("own2", ())]
    for member, leaves in zip(stack.tensordicts, held, strict=True):
        assert member["a"] is leaves[0]
        assert all((leaf == 5).all() for leaf in leaves)
    stack.named_apply(lambda key, v: None if key == "a" else v.zero_(), inplace=True)
    assert [m["a"].tolist() for m in stack.tensordicts] == [[5], [5, 5]]
    assert [m["n", "b"].sum().item() for m in stack.tensordicts] == [0, 0]


def test_apply_in_place_writes_nested_nodes_and_non_tensors_that_a_function_returns() -> None:
    td = TensorDict(
        {"a": torch.ones(2), "n": {"b": torch.ones(2)}, "s": "old", "u": UnbatchedTensor(torch.ones(3))}, [2]
    )
    leaf, below, shared = td["a"], td["n", "b"], td["u"]
    td.apply(lambda v: v * 2, inplace=True, call_on_nested=True)
    assert (leaf.tolist(), below.tolist(), shared.tolist()) == ([2, 2], [2, 2], [2, 2, 2])
    td.named_apply(lambda key, v: NonTensorData("new") if key == "s" else None, inplace=True, is_leaf=is_leaf_nontensor)
    assert td["s"] == "new" and td["a"] is leaf


def test_apply_in_place_checks_shapes_before_it_writes() -> None:
    td = TensorDict({"a": torch.ones(2), "b": torch.ones(2)}, [2])
    with pytest.raises(RuntimeError, match="key 'b'"):
        td.named_apply(lambda key, v: torch.zeros(2 if key == "a" else 3), inplace=True)
    assert td["a"].tolist() == [1, 1]


def test_apply_with_a_default_is_about_my_own_keys() -> None:
    td = TensorDict({"a": torch.ones(2)}, [2])
    more = TensorDict({"a": torch.ones(2), "b": torch.ones(2), "n": {"c": torch.ones(2)}}, [2])
    for inplace in (False, True):
        made = td.apply(lambda mine, theirs: mine + theirs, more, default=None, inplace=inplace)
        assert list(made.keys()) == ["a"] and made["a"].tolist() == [2, 2]
    assert more["a"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", ["new", ("inner", "new"), ("none", "new"), ("x", "new"), ("inner", "y", "new")])
@pytest.mark.parametrize("value", [torch.ones(2, 3), "text", {"deep": torch.ones(2, 3)}], ids=["leaf", "text", "node"])
def test_writing_in_place_to_a_key_that_is_not_there_is_a_key_error(kind: str, key: Any, value: Any) -> None:
    node = KINDS[kind]((2, 3))
    keys = sorted(map(str, node.keys(True)))
    for write in (lambda: node.set_(key, value), lambda: node.set_at_(key, value, 0)):
        with pytest.raises(KeyError):
            write()
        assert sorted(map(str, node.keys(True))) == keys
    assert_same(node, KINDS[kind]((2, 3)), "set_")


INDICES: list[Any] = [
    0,
    (1, 2),
    (slice(None), -1),
    (0, slice(None), 1),
    (..., 0),
    (None, 1),
    (slice(None), [0, 2], 1),
    ([0, 1], slice(0, 2)),
    ([1, 0], [0, 2]),
    (torch.tensor([[0, 1], [1, 1]]), 0),
    torch.tensor([True, False]),
    (slice(None), torch.tensor([True, False, True])),
    torch.tensor([[True, False, True], [False, False, True]]),
    (True, 0, slice(1, None)),
    ([0, 1], slice(None), [1, 0]),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_set_at_writes_what_get_at_reads(kind: str, index: Any) -> None:
    for key in ("n", ("inner", "y")):
        node = KINDS[kind]((2, 3))
        want = torch.as_tensor(node.get(key)).clone()
        rows = torch.as_tensor(node.get_at(key, index))
        assert torch.equal(rows, want[index])
        fill = torch.arange(rows.numel(), dtype=rows.dtype).reshape(rows.shape) + 500
        for value in (fill, 7, fill[..., -1:] if rows.ndim else fill):
            want[index] = value
            assert node.set_at_(key, value, index) is node
            assert torch.equal(torch.as_tensor(node.get(key)), want)
        with pytest.raises(RuntimeError):
            node.set_at_(key, torch.zeros(9, dtype=rows.dtype), index)
        assert torch.equal(torch.as_tensor(node.get(key)), want)
    with pytest.raises(IndexError):
        node.set_at_("x", 0, (0, 0, 0))


@pytest.mark.parametrize("key", ["column", "text", "one", "about", "word"])
@pytest.mark.parametrize("index", [0, (0, 1), (slice(None), 1), [1], ([0, 1], [0, 2]), ...], ids=str)
def test_set_at_writes_objects_to_the_rows_of_a_column(key: str, index: Any) -> None:
    node = KINDS["nested"]((2, 3))
    want = numpy.empty((2, 3), object)
    want[...] = [[node[row].get(key).tolist()[at] for at in range(3)] for row in range(2)]
    want[index] = "new"
    assert node.set_at_(key, "new", index).get(key).tolist() == want.tolist()
    node.set_at_(key, node.get_at(key, index), index)
    assert node.get(key).tolist() == want.tolist()


def test_get_at_and_set_at_need_rows_alike_only_where_they_reach() -> None:
    stack = LazyStackedTensorDict(*(TensorDict({"a": torch.arange(n)}) for n in (2, 3, 3)))
    assert stack.get_at("a", 0).tolist() == [0, 1]
    assert stack.get_at("a", slice(1, None)).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert stack.get_at("a", (slice(None), 1)).tolist() == [1, 1, 1]
    assert stack.get_at("a", [2, 1]).shape == (2, 3)
    with pytest.raises(RuntimeError, match="shapes differ"):
        stack.get_at("a", slice(2))
    stack.set_at_("a", torch.tensor([7, 8]), 0).set_at_("a", -1, (slice(None), -1)).set_at_("a", 5, ([1, 2], 0))
    assert [m["a"].tolist() for m in stack.tensordicts] == [[7, -1], [5, 1, -1], [5, 1, -1]]
    with pytest.raises(RuntimeError, match="key 'a'"):
        stack.set_at_("a", torch.zeros(3, dtype=torch.long), slice(None))
    assert stack[0]["a"].tolist() == [7, -1]


@pytest.mark.parametrize("write", ["set_", "update_", "[:]", "copy_"])
def test_one_object_that_is_written_to_all_rows_stays_one(write: str, tmp_path: Any) -> None:
    new = TensorDict({"s": "new"}, [2])
    writes: dict[str, Any] = {
        "set_": lambda node: node.set_("s", "new"),
        "update_": lambda node: node.update_(new),
        "[:]": lambda node: node.__setitem__(slice(None), new),
        "copy_": lambda node: node.copy_(new),
    }
    for node in (TensorDict({"s": "old"}, [2]), TensorDict({"s": "old"}, [2]).memmap(tmp_path)):
        writes[write](node)
        assert node["s"] == "new" and type(node.get("s")) is NonTensorData
        assert node.get("s").batch_size == (2,)
    assert TensorDict.load_memmap(tmp_path)["s"] == "new"
