"""Promises that several sources keep together, one test each."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from kinds import KINDS, STORED, batched, can_make
from test_words import test_operands_line_up_with_batch_dims as operands_line_up
from torch.utils import _pytree as pytree

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    TensorClass,
    TensorDict,
    is_tensor_collection,
    lazy_stack,
    merge_tensordicts,
)


class Pt(TensorClass):
    x: torch.Tensor


LAZY = ("lazy0", "lazy1", "nested", "tensorclass_of_lazy")


def tree() -> TensorDict:
    return TensorDict({"a": torch.arange(2), "b": {"c": torch.ones(2)}}, [2])


def lazy() -> Any:
    return LazyStackedTensorDict(*(row.clone() for row in tree().unbind(0)))


@pytest.mark.parametrize("batch", [(2, 3), (1, 3), (2, 1), (3, 2, 1), (2, 0)])
@pytest.mark.parametrize("kind", LAZY)
def test_operands_line_up_with_the_batch_dims_of_lazy_stacks(kind: str, batch: tuple[int, ...]) -> None:
    if can_make(kind, batch):
        operands_line_up(kind, batch)


@pytest.mark.parametrize("kind", ["dense", *LAZY])
def test_where_and_masks_line_up_with_batch_dims(kind: str) -> None:
    node, td = KINDS[kind]((2, 3)), KINDS["dense"]((2, 3))
    mask = torch.tensor([[True, False, True], [False, False, True]])
    for key in ("x", "n", ("inner", "y")):
        leaf = td[key]
        wide = mask.reshape(2, 3, *(1,) * (leaf.ndim - 2)).expand(leaf.shape)
        assert torch.equal(node.where(mask, 0).get(key), leaf.where(wide, 0))
        assert torch.equal(node.where(mask, node + 1).get(key), leaf.where(wide, leaf + 1))
        assert torch.equal(node.where(mask, torch.zeros(3, dtype=leaf.dtype)).get(key), leaf.where(wide, 0))
        assert torch.equal(node.masked_fill(mask, 7).get(key), leaf.masked_fill(wide, 7))
        assert torch.equal(batched(node).clone().masked_fill_(mask, 7).get(key), leaf.masked_fill(wide, 7))
        assert torch.equal(batched(node).clone().add_(mask.long()).get(key), leaf + wide.long())


def test_a_row_out_of_range_is_found_before_anything_is_written() -> None:
    td = TensorDict({"x": torch.zeros(4, 3)}, [4, 3])
    with pytest.raises(IndexError, match=r"batch size \[4, 3\]"):
        td[torch.tensor([0, 9])] = 1
    with pytest.raises(IndexError):
        td[0, torch.tensor([0, 9])] = TensorDict({"x": torch.ones(2)}, [2])
    assert not td["x"].any()


def test_a_number_written_to_rows_leaves_non_tensors_alone() -> None:
    td = TensorDict({"x": torch.zeros(3), "w": NonTensorStack("a", "b", "c"), "d": "k"}, [3])
    td[0] = 1
    assert td["x"].tolist() == [1, 0, 0]
    assert td["w"] == ["a", "b", "c"]
    assert td["d"] == "k"


@pytest.mark.parametrize("make", [tree, lazy])
def test_nested_dicts_are_written_in_place(make: Any) -> None:
    td = make()
    td.update_({"b": {"c": torch.full((2,), 5.0)}})
    assert td["b", "c"].tolist() == [5, 5]
    td.update_at_({"b": {"c": torch.tensor(1.0)}}, 1)
    assert td["b", "c"].tolist() == [5, 1]


def test_rows_of_a_value_are_written_to_the_members_of_a_lazy_stack() -> None:
    td = lazy()
    td.set_at_("a", 7, 0)
    td.set_at_(("b", "c"), torch.full((), 8.0), 1)
    assert td["a"].tolist() == [7, 1]
    assert td["b", "c"].tolist() == [1, 8]


@pytest.mark.parametrize("make", [tree, lazy])
def test_apply_takes_the_same_node_twice(make: Any) -> None:
    td = make()
    assert torch.equal(td.apply(lambda one, two: one + two, td)["b", "c"], td["b", "c"] * 2)


def test_the_batch_size_of_a_lazy_stack_can_grow_into_its_leaves() -> None:
    td = LazyStackedTensorDict(*TensorDict({"x": torch.zeros(2, 3, 4), "n": {"y": torch.ones(2, 3)}}, [2]).unbind(0))
    td.batch_size = [2, 3]
    assert td.batch_size == td["n"].batch_size == (2, 3)
    assert td[:, 1]["x"].shape == (2, 4)
    with pytest.raises(RuntimeError, match=r"\[2, 3, 4\]"):
        td.batch_size = [2, 3, 4]
    assert td.batch_size == (2, 3)
    with pytest.raises(RuntimeError, match=r"\[3\].*\[2, 3\]"):
        td.batch_size = [3]
    td.batch_size = [2]
    assert td.batch_size == (2,)


@pytest.mark.parametrize("make", [lambda td: td, lambda td: LazyStackedTensorDict(*td.unbind(0))])
def test_a_tensor_is_written_to_each_leaf_as_torch_does_or_not_at_all(make: Any) -> None:
    td = make(TensorDict({"a": torch.zeros(3, 2, 5), "n": {"b": torch.zeros(3, 2, 5)}, "w": "word"}, [3, 2]))
    td[0:2] = torch.arange(5.0)
    assert torch.equal(td["n", "b"][1, 1], torch.arange(5.0))
    assert not td["a"][2].any()
    with pytest.raises(RuntimeError, match=r"'a'.*\[2, 2, 5\].*\[4\]"):
        td[0:2] = torch.ones(4)
    td = make(TensorDict({"a": torch.zeros(3, 5), "n": {"b": torch.zeros(3)}}, [3]))
    with pytest.raises(RuntimeError, match=r"'b'.*\[5\]"):
        td[0:2] = torch.ones(5)
    assert not td["a"].any()


def test_rows_of_members_with_batch_sizes_of_their_own_are_written() -> None:
    ragged = LazyStackedTensorDict(*(TensorDict({"x": torch.zeros(n)}, [n]) for n in (1, 2)))
    ragged[1] = TensorDict({"x": torch.ones(2)}, [2])
    ragged[0] = 5
    assert [part.tolist() for part in ragged.get("x", as_list=True)] == [[5], [1, 1]]
    with pytest.raises(RuntimeError, match=r"'x'.*\[2\].*\[3\]"):
        ragged[1] = TensorDict({"x": torch.ones(3)}, [3])


def test_update_is_all_or_nothing() -> None:
    td = TensorDict({"a": torch.zeros(2)}, [2])
    with pytest.raises(RuntimeError):
        td.update({"a": torch.ones(2), "b": torch.zeros(3)})
    assert not td["a"].any()


def test_update_meets_an_inner_lock_first() -> None:
    td = TensorDict({"a": {"x": torch.zeros(2)}, "b": torch.zeros(2)}, [2])
    td["a"].lock_()
    with pytest.raises(RuntimeError):
        td.update({"b": torch.ones(2), "a": {"x": torch.ones(2)}})
    assert not td["b"].any()


def test_a_failed_nested_set_makes_no_nodes() -> None:
    td = TensorDict({}, [2])
    with pytest.raises(RuntimeError):
        td.set(("n", "m", "k"), torch.zeros(3))
    assert not list(td.keys(True))


@pytest.mark.parametrize("target", ["leaf", "locked"])
def test_a_failed_rename_loses_nothing(target: str) -> None:
    td = TensorDict({"a": torch.zeros(2) if target == "leaf" else {"x": torch.zeros(2)}, "b": torch.zeros(2)}, [2])
    if target == "locked":
        td["a"].lock_()
    with pytest.raises((KeyError, RuntimeError)):
        td.rename_key_("b", ("a", "y"))
    assert "b" in td


def test_a_failed_add_in_place_changes_nothing() -> None:
    td = TensorDict({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.long)}, [2])
    with pytest.raises(RuntimeError):
        td.add_(TensorDict({"a": torch.ones(2), "b": torch.ones(2) * 1.5}, [2]))
    assert not td["a"].any()


def test_a_tensorclass_is_a_tree() -> None:
    node = Pt(x=torch.zeros(2), batch_size=[2])
    assert pytree.tree_map_only(torch.Tensor, lambda v: v + 1, node).x.tolist() == [1, 1]


def test_a_tensorclass_is_loaded_by_torch_without_asking() -> None:
    file = io.BytesIO()
    torch.save(Pt(x=torch.ones(2), batch_size=[2]), file)
    file.seek(0)
    assert torch.load(file).x.tolist() == [1, 1]


def test_a_tensor_on_the_left_of_a_torch_function() -> None:
    assert torch.add(torch.ones(2), TensorDict({"x": torch.zeros(2)}, [2]))["x"].tolist() == [1, 1]


def test_masks_address_the_leading_batch_dims_first() -> None:
    td = TensorDict({"a": torch.zeros(2, 2, 3), "n": {"b": torch.zeros(2, 2)}}, [2, 2])
    rows = torch.tensor([True, False])
    assert td.masked_fill(rows, 1)["n", "b"].tolist() == [[1, 1], [0, 0]]
    assert (td + 1).where(rows, td)["a"].sum() == 6
    assert td.clone().masked_fill_(rows, 1)["a"].sum() == 6
    tall = TensorDict({"a": torch.zeros(3, 2)}, [3, 2])
    assert tall.masked_fill(rows, 1)["a"].tolist() == [[1, 0]] * 3  # it fits the last dim alone


def test_where_pads_keys_of_one_side_and_writes_out() -> None:
    one, two = TensorDict({"a": torch.ones(2), "b": torch.ones(2)}, [2]), TensorDict({"a": torch.zeros(2)}, [2])
    rows = torch.tensor([True, False])
    with pytest.raises(KeyError, match="'b'"):
        one.where(rows, two)
    found = one.where(rows, two, pad=7)
    assert found["a"].tolist() == [1, 0]
    assert found["b"].tolist() == [1, 7]
    out = one.clone()
    assert one.where(rows, one * 2, out=out) is out
    assert out["b"].tolist() == [1, 2]


def test_joins_take_plain_tensors_too() -> None:
    parts = [torch.zeros(2), torch.ones(2)]
    assert torch.equal(TensorDict.stack(parts), torch.stack(parts))
    assert torch.equal(TensorDict.cat(parts), torch.cat(parts))
    assert torch.equal(TensorDict.lazy_stack(parts), torch.stack(parts))
    assert torch.equal(TensorDict.maybe_dense_stack(parts), torch.stack(parts))


# ---- joins, written values and reductions over leaves


@pytest.mark.parametrize("word", [torch.stack, torch.cat, lazy_stack])
def test_a_tensor_is_not_joined_with_a_tensordict(word: Any) -> None:
    td = TensorDict({"a": torch.zeros(2)}, [2])
    for items in ([torch.zeros(2), td], [td, torch.zeros(2)]):
        with pytest.raises(TypeError, match="expects tensordicts only"):
            word(items)


@pytest.mark.parametrize("kind", KINDS)
def test_leading_dims_of_size_one_do_not_matter_in_what_is_written(kind: str) -> None:
    for index, shape in ((1, (1,)), ((0, 2), (1, 1)), (slice(0, 1), (1, 1, 3))):
        node = KINDS[kind]((2, 3)).select("x")
        want = node["x"].clone()
        want[index] = torch.full(shape, 9.0, dtype=want.dtype)
        node[index] = torch.full(shape, 9.0, dtype=want.dtype)
        assert torch.equal(node["x"], want)


def test_a_number_is_written_in_the_dtype_of_the_leaf() -> None:
    td = TensorDict({"b": torch.tensor([False, True]), "n": {"i": torch.tensor([1, 2])}}, [2])
    td.set_at_("b", 0.5, torch.tensor([0, 0])).set_at_(("n", "i"), 7.9, torch.tensor([1]))
    assert (td["b"].tolist(), td["n", "i"].tolist()) == ([True, True], [1, 7])


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("over", [0, -1, (0, 1)])
@pytest.mark.parametrize("word", ["std", "var", "mean", "nanmean", "sum", "prod", "amax"])
def test_a_reduction_over_dims_and_leaves_is_one_reduction(word: str, over: Any, keepdim: bool) -> None:
    x = torch.tensor([[1.0, 5.0, 2.0], [7.0, 4.0, float("nan") if word == "nanmean" else 9.0]])
    td = TensorDict({"a": x, "n": {"b": x.flip(0) * 2 + 1}}, [2, 3])
    dims = tuple(d % 2 for d in (over if isinstance(over, tuple) else (over,)))
    rows = torch.cat(
        [v.movedim(dims, tuple(range(len(dims)))).flatten(0, len(dims) - 1) for v in td.values(True, True)]
    )
    want = getattr(rows, word)(0)
    if keepdim:
        want = want.reshape([1 if d in dims else size for d, size in enumerate((2, 3))])
    got = getattr(td, word)(over, keepdim=keepdim, reduce=True)
    assert got.shape == want.shape
    assert torch.allclose(got, want)


def test_apply_gives_its_default_for_a_missing_node_too() -> None:
    td = TensorDict({"a": 1, "n": {"c": 2, "m": {}}}, [])
    got = td.apply(lambda x, y: x if y is None else x + y, td.select("a"), default=None)
    assert (got["a"].item(), got["n", "c"].item()) == (2, 2)


def test_a_tensor_stays_when_keys_are_flattened_whatever_counts_as_a_leaf() -> None:
    td = TensorDict({"a": 1, "n": {"c": 2}}, [])
    assert list(td.flatten_keys(is_leaf=is_tensor_collection).keys()) == ["a", "n"]
    assert list(td.keys(True, True, is_leaf=is_tensor_collection)) == ["n"]


# ---- stacks whose values differ in shape


def ragged() -> LazyStackedTensorDict:
    return LazyStackedTensorDict(*(TensorDict({"n": {"c": torch.zeros(n), "d": torch.tensor(1)}}) for n in (2, 3)))


def test_facts_of_a_ragged_stack_need_no_joined_values() -> None:
    node = ragged()
    assert (("n", "c") in node, node.is_empty(), node.dtype, node.depth) == (True, False, None, 1)
    assert node.bytes() == 2 * 4 + 3 * 4 + 2 * 8
    mixed = lazy_stack([TensorDict({"a": torch.tensor(True)}), TensorDict({"a": torch.tensor(2)})])
    assert mixed.bytes() == 1 + 8


def test_values_of_a_ragged_stack_can_be_removed() -> None:
    node = ragged()
    del node["n", "c"]
    assert [list(member.keys(True, True)) for member in node.tensordicts] == [[("n", "d")]] * 2
    with pytest.raises(KeyError, match="'c'"):
        node.del_(("n", "c"))


@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1"])
def test_a_tensor_of_one_number_is_written_in_the_dtype_of_the_leaf(kind: str) -> None:
    node = KINDS[kind]((2, 3)).select("x")
    want, mask = node["x"].clone(), torch.tensor([[True, False, True], [False, False, True]])
    node[mask] = torch.tensor(2)
    want[mask] = torch.tensor(2)
    assert torch.equal(node["x"], want)


def test_a_number_is_written_to_rows_of_a_nested_node() -> None:
    td = TensorDict({"n": TensorDict({"q": torch.zeros(2, 3)}, [2, 3])}, [2])
    assert td.set_at_("n", 1, 0)["n", "q"].tolist() == [[1, 1, 1], [0, 0, 0]]


def deep(levels: int, bottom: Any) -> TensorDict:
    """Return a tree of one leaf a level, and another one at the bottom."""
    td = TensorDict({"x": bottom}, [2])
    for _ in range(levels):
        td = TensorDict({"n": td, "x": torch.arange(2.0)}, [2])
    return td


DEEP: dict[str, Any] = {
    "exp": lambda td: td.exp(),
    "add": lambda td: td + td,
    "add_": lambda td: td.add_(1),
    "eq": lambda td: td == td,
    "sum": lambda td: td.sum(0),
    "amax": lambda td: td.amax(0),
    "max": lambda td: td.max(0),
    "min": lambda td: td.min(0),
    "cummax": lambda td: td.cummax(0),
    "std": lambda td: td.std(0),
    "int": lambda td: td[0],
    "slice": lambda td: td[:1],
    "rows": lambda td: td[torch.tensor([-1, 0])],
    "list": lambda td: td[[1, 0]],
    "mask": lambda td: td[torch.tensor([True, False])],
    "masked_select": lambda td: td.masked_select(torch.tensor([True, False])),
    "write": lambda td: td.__setitem__(0, td[1]),
    "update_": lambda td: td.update_(td.clone()),
    "reshape": lambda td: td.reshape(1, 2),
    "permute": lambda td: td.permute(0),
    "split": lambda td: td.split(1),
    "unbind": lambda td: td.unbind(0),
    "unsqueeze": lambda td: td.unsqueeze(0),
    "stack": lambda td: torch.stack([td, td]),
    "cat": lambda td: torch.cat([td, td]),
    "lazy": lambda td: lazy_stack([td, td])[:, 0],
    "clone": lambda td: td.clone(),
    "to": lambda td: td.to(torch.float64),
    "apply": lambda td: td.apply(lambda v: v + 1),
    "apply_": lambda td: td.apply_(lambda v: v + 1),
    "where": lambda td: td.where(torch.tensor([True, False]), 0.0),
    "flatten_keys": lambda td: td.flatten_keys(),
    "keys": lambda td: list(td.keys(True, True)),
    "to_dict": lambda td: TensorDict(td.to_dict(), [2]),
    "lock": lambda td: td.lock_().unlock_(),
    "repr": repr,
}


@pytest.mark.parametrize("word", DEEP)
def test_words_reach_150_levels_down(word: str) -> None:
    td = deep(150, torch.arange(2.0))
    with_frames(lambda: DEEP[word](td))


def with_frames(call: Any) -> Any:
    """Call as from the top of a program: what runs the tests has frames of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


class Broken(torch.Tensor):
    """A tensor that counts what it is asked for, and does none of it."""

    asked = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in ("__get__", "dim", "size"):
            return super().__torch_function__(func, types, args, kwargs or {})
        cls.asked += 1
        raise RuntimeError("broken")


@pytest.mark.parametrize("word", sorted(set(DEEP) - {"keys", "flatten_keys", "to_dict", "lock", "repr", "permute"}))
def test_an_error_at_the_bottom_is_found_once(word: str) -> None:
    asked = []
    for levels in (2, 12):
        td = deep(levels, torch.arange(2.0).as_subclass(Broken))
        Broken.asked = 0
        with pytest.raises(RuntimeError, match="broken"):
            DEEP[word](td)
        asked.append(Broken.asked)
    assert asked[0] == asked[1] <= 4


@pytest.mark.parametrize("word", ["stack", "cat", "slice", "rows", "exp", "max"])
def test_too_many_levels_are_a_recursion_error(word: str) -> None:
    td = deep(400, torch.arange(2.0))
    with pytest.raises(RecursionError):
        DEEP[word](td)


def split_of(*key_sets: Any, **options: Any) -> list[list[str]]:
    td = TensorDict({"a": 1, "b": 2, "n": {"c": 3, "d": 4}})
    return [sorted(map(str, part.keys(True, True))) for part in td.split_keys(*key_sets, **options)]


C, D = "('n', 'c')", "('n', 'd')"


@pytest.mark.parametrize("inplace", [False, True])
def test_split_keys_puts_a_value_into_the_first_set_that_names_it(inplace: bool) -> None:
    assert split_of(["b", "a"], [("n", "c")], inplace=inplace) == [["a", "b"], [C], [D]]
    assert split_of([("n", "c")], ["n"], inplace=inplace) == [[C], [D], ["a", "b"]]
    assert split_of(["n"], [("n", "c"), "a"], strict=False, inplace=inplace) == [[C, D], ["a"], ["b"]]
    assert split_of(["a"], ["a", "b"], strict=False, inplace=inplace) == [["a"], ["b"], [C, D]]
    for sets in ((["a"], ["a"]), (["n"], [("n", "c")]), (["a", "none"],)):
        with pytest.raises(KeyError):
            split_of(*sets, inplace=inplace)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inplace", [False, True])
def test_the_parts_of_split_keys_are_all_there_is(kind: str, inplace: bool) -> None:
    td = KINDS[kind]((2, 3)) if kind in ("persistent", "window") else KINDS[kind]((2, 3)).clone()
    if (inplace and kind in ("window", "typed")) or "tensorclass" in kind:
        return  # these cannot lose keys
    was = {key: torch.as_tensor(td.get(key)).clone() for key in ("x", "n", ("inner", "y"), ("inner", "b"))}
    parts = td.split_keys([("inner", "y")], ["inner", "x"], inplace=inplace, strict=False)
    homes = {("inner", "y"): 0, ("inner", "b"): 1, "x": 1, "n": 2}
    for key, value in was.items():
        assert [at for at, part in enumerate(parts) if key in part.keys(True)] == [homes[key]], key
        assert torch.equal(torch.as_tensor(parts[homes[key]].get(key)), value)
    assert not inplace or parts[-1] is td


@pytest.mark.parametrize("kind", [*KINDS, "ragged"])
def test_tile_and_repeat_take_numbers_as_torch_does(kind: str) -> None:
    if kind == "ragged":
        td: Any = lazy_stack([TensorDict({"n": torch.arange(n)}) for n in (1, 2)])
        assert [row["n"].tolist() for row in td.tile(2)] == [[0], [0, 1], [0], [0, 1]]
        assert [row["n"].tolist() for row in td.repeat(2, 1)[1]] == [[0], [0, 1]]
        return
    td = KINDS[kind]((2, 3))
    leaf = torch.as_tensor(td.get("n"))
    for times in ((2,), (2, 1), (2, 1, 3), (0,)):
        want = leaf.tile(*times, 1)
        for got in (td.tile(*times), td.tile(times), td.tile(dims=times), torch.tile(td, times)):
            assert torch.equal(torch.as_tensor(got.get("n")), want)
            assert got.batch_size == want.shape[:-1]
        if len(times) > 1:
            assert torch.equal(torch.as_tensor(td.repeat(*times).get("n")), want)
    with pytest.raises(ValueError, match="one number for each"):
        td.repeat(2)


def test_merging_keeps_the_first_value_whatever_it_is() -> None:
    word, leaf, node = (TensorDict({"a": value}, [2]) for value in ("text", torch.ones(2), {"q": torch.ones(2)}))
    for first in (word, leaf, node):
        for other in (word, leaf, node):
            merged = merge_tensordicts(first, other.clone().set("b", torch.zeros(2)))
            assert type(merged.get("a")) is type(first.get("a")) and "b" in merged
    both = merge_tensordicts(node, TensorDict({"a": {"q": torch.zeros(2), "r": "new"}}, [2]))
    assert both["a", "q"].tolist() == [1, 1] and both["a", "r"] == "new" and list(node["a"].keys()) == ["q"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensordict_is_not_written_over_an_object(kind: str) -> None:
    node = KINDS[kind]((2, 3))
    with pytest.raises((TypeError, ValueError), match="'word'"):
        node.set_("word", TensorDict({"q": torch.ones(2, 3)}, [2, 3]))
    assert torch.as_tensor(node.get("x")).shape == (2, 3) and node["word"] in ("w", [["w"] * 3] * 2)


@pytest.mark.parametrize("word", ["sum", "mean", "std", "amax", "nansum", "prod"])
@pytest.mark.parametrize("dim", [None, 0, "feature"])
def test_one_number_of_no_leaves_is_a_clear_error(word: str, dim: Any) -> None:
    with pytest.raises(ValueError, match=rf"{word}\(reduce=True\).*none"):
        getattr(TensorDict({"s": "text"}, [2]), word)(dim=dim, reduce=True)


def test_a_node_in_a_lazy_stack_has_the_names_of_the_stack() -> None:
    stack = LazyStackedTensorDict(*(TensorDict({"n": {"a": torch.ones(3)}}, [3]) for _ in range(2)), stack_dim=1)
    stack.names = ["x", "y"]
    assert stack["n"].names == ["x", "y"] == stack.contiguous()["n"].names
    stack.names = None
    assert stack["n"].names == [None, None]


@pytest.mark.parametrize("batch, dim", [((2, 3), 2), ((2, 3), 0)])
def test_index_tensors_on_one_side_of_the_stack_dim_keep_a_stack_lazy(batch: tuple[int, ...], dim: int) -> None:
    members = [
        TensorDict({"a": torch.arange(6 * n).reshape(2, 3, n), f"own{n}": torch.ones(2, 3)}, batch) for n in (1, 2)
    ]
    stack = LazyStackedTensorDict(*members, stack_dim=dim)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    index = (slice(None), mask) if dim == 0 else mask
    rows = stack[index]
    assert type(rows) is LazyStackedTensorDict and rows.batch_size == ((2, 3) if dim == 0 else (3, 2))
    for row, member in zip(rows.unbind(rows.stack_dim), members, strict=True):
        assert torch.equal(row["a"], member["a"][mask])


MIXED: dict[str, Any] = {
    "dense": lambda: TensorDict({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.bool)}, [2]),
    "nested": lambda: TensorDict({"n": {"a": torch.ones(2)}, "m": {"b": torch.ones(2, dtype=torch.bool)}}, [2]),
    "lazy": lambda: lazy_stack(
        [TensorDict({"a": torch.ones(2)}), TensorDict({"a": torch.ones(2), "b": torch.ones(1, dtype=torch.bool)})]
    ),
}


@pytest.mark.parametrize("kind", MIXED)
@pytest.mark.parametrize("word", ["exp_", "sqrt_", "reciprocal_"])
def test_a_word_in_place_that_one_leaf_refuses_changes_none(kind: str, word: str) -> None:
    td = MIXED[kind]()
    before = td.clone()
    with pytest.raises(RuntimeError):
        getattr(td.apply(lambda v: v * 2 if v.is_floating_point() else v, inplace=True), word)()
    with pytest.raises(RuntimeError):
        td += 0.5
    with pytest.raises(RuntimeError):
        td.mul_(torch.tensor(0.5))
    doubled = before.apply(lambda v: v * 2 if v.is_floating_point() else v)
    assert all(torch.equal(one, two) for one, two in zip(leaves_below(td), leaves_below(doubled), strict=True))


def leaves_below(td: Any) -> list[torch.Tensor]:
    rows = td.tensordicts if isinstance(td, LazyStackedTensorDict) else [td]
    return [leaf for row in rows for leaf in row.values(True, True)]


def test_an_intersection_leaves_objects_as_they_are() -> None:
    td = TensorDict({"a": torch.ones(2), "s": "text", "n": {"s": "more", "b": torch.ones(2)}}, [2])
    got = td.add(td.exclude("a"), default="intersection")
    assert (got["s"], got["n", "s"], got["n", "b"].tolist(), "a" in got) == ("text", "more", [2, 2], False)


def test_unflattened_keys_are_nodes_of_their_own() -> None:
    td = TensorDict({"n": {"c": torch.ones(2)}, "m.x": torch.ones(2)}, [2])
    made = td.unflatten_keys()
    made.set(("n", "new"), torch.zeros(2))
    assert list(td["n"].keys()) == ["c"] and made["n", "c"] is td["n", "c"]


def test_a_member_that_is_there_twice_is_renamed_once() -> None:
    row = TensorDict({"a": torch.ones(2)}, [2])
    stack = lazy_stack([row, row])
    assert list(stack.rename_key_("a", "b", safe=True).keys()) == ["b"] == list(row.keys())


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"lazy0", "grid", "uneven", "tensorclass_of_lazy"}))
def test_a_dtype_that_an_index_tensor_refuses_changes_no_leaf(kind: str) -> None:
    node = KINDS[kind]((2, 3))
    rows = {"x": torch.zeros(2, 3, dtype=torch.double), "n": torch.zeros(2, 3, 2)}
    with pytest.raises(RuntimeError, match="dtype"):
        node.update_at_(rows, torch.tensor([1, 0]))
    assert_unchanged(node, KINDS[kind]((2, 3)))


def assert_unchanged(node: Any, want: Any) -> None:
    for key in ("x", "n", ("inner", "y")):
        assert torch.equal(torch.as_tensor(node.get(key)), torch.as_tensor(want.get(key)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in STORED])
def test_to_the_device_that_it_is_on_is_the_tensordict_itself(kind: str) -> None:
    td = KINDS[kind]((2, 3)).to("cpu")
    assert td.to("cpu") is td
    assert td.cpu() is td
    assert td.to(torch.device("cpu"), non_blocking=True) is td
    assert td.to("cpu", torch.float64) is not td
    assert td.to("cpu", batch_size=[2, 3]) is not td
    made = td.to("cpu", copy=True)
    assert made is not td
    assert made["x"].data_ptr() != td["x"].data_ptr()


def test_a_move_never_shares_nodes_with_its_source() -> None:
    td = TensorDict({"n": TensorDict({"a": torch.zeros(2)}, [2], device="cpu")}, [2])
    moved = td.to("cpu")
    moved["n"]["b"] = torch.ones(2)
    assert list(td["n"].keys()) == ["a"]
    stack = lazy_stack([TensorDict({"a": torch.zeros(2)}, device="cpu"), TensorDict({"a": torch.zeros(2)})])
    moved = stack.to("cpu")
    moved["b"] = torch.ones(2)
    assert list(stack.keys()) == ["a"]
    assert stack.device is None


def test_gather_wants_an_index_with_as_many_dims_as_the_batch() -> None:
    for td in (TensorDict({}, [1, 2, 3]), TensorDict({"x": torch.zeros(1, 2, 3)}, [1, 2, 3])):
        with pytest.raises(RuntimeError, match=r"3 dims.*\[2, 3\]"):
            td.gather(-1, torch.zeros(2, 3, dtype=torch.long))


def test_flatten_of_no_dims_takes_the_dims_that_torch_takes() -> None:
    for td in (TensorDict({"x": 1}), TensorDict({})):
        assert td.flatten().batch_size == td.flatten(0, -1).batch_size == (1,)
        with pytest.raises(IndexError):
            td.flatten(0, 1)


def test_a_node_of_several_members_loses_a_key_once() -> None:
    def stack() -> Any:
        td = TensorDict({"n": {"c": torch.zeros(2)}}, [2])
        return lazy_stack([td, td.exclude("a")])

    td = stack()
    assert td.pop(("n", "c")).shape == (2, 2)
    assert list(td["n"].keys()) == []
    td = stack().rename_key_(("n", "c"), ("n", "d"))
    assert td["n", "d"].shape == (2, 2)
    assert list(td["n"].keys()) == ["d"]
    assert list(stack().del_(("n", "c"))["n"].keys()) == []


@pytest.mark.parametrize("word", ["sum", "mean", "prod", "amax", "nansum", "std"])
@pytest.mark.parametrize("kind", ["dense", "lazy0", "lazy1", "persistent"])
def test_a_reduction_over_no_dims_is_one_over_all(kind: str, word: str) -> None:
    td, plain = KINDS[kind]((2, 3)).select("x", "inner").double(), KINDS["dense"]((2, 3)).double()
    for dim in ((), []):
        made = getattr(td, word)(dim=dim)
        assert made.batch_size == made["inner"].batch_size == ()
        assert made["x"] == getattr(plain["x"], word)()
        assert made["inner", "y"] == getattr(plain["inner", "y"], word)()
    kept = getattr(td, word)(dim=(), keepdim=True)
    assert kept.batch_size == (1, 1)
    assert kept["inner", "y"].shape == (1,) * plain["inner", "y"].ndim


def test_logsumexp_without_dims_is_over_the_batch_dims() -> None:
    td = TensorDict({"x": torch.arange(6.0).reshape(2, 3)}, [2])
    assert torch.equal(td.logsumexp()["x"], td["x"].logsumexp(0))
