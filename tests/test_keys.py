"""Keys: nested paths, views that follow, and the words that add, remove, rename and regroup them, on every kind."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from tensordict import (
    LazyStackedTensorDict,
    TensorDict,
    is_leaf_nontensor,
    unravel_key,
    unravel_key_list,
    unravel_key_to_tuple,
)

names = st.text(string.ascii_lowercase + "_.", min_size=1, max_size=3)
paths = st.lists(names, min_size=1, max_size=4).map(tuple)


def lazy(td: TensorDict) -> Any:
    return LazyStackedTensorDict(*(row.clone() for row in td.unbind(0)))


MAKERS: dict[str, Callable[[TensorDict], Any]] = {"dense": lambda td: td, "lazy": lazy}
kinds = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def tree() -> TensorDict:
    return TensorDict(
        {"a": torch.arange(2), "b": {"c": torch.ones(2), "d": {"e": torch.zeros(2, 3)}}, "s": "text"}, [2]
    )


# ---- the form of keys


def _nest(draw: Any, path: tuple[str, ...]) -> Any:
    """Return a path with some of its parts grouped in tuples."""
    if len(path) == 1:
        return draw(st.sampled_from([path[0], path, (path,)]))
    cut = draw(st.integers(1, len(path) - 1))
    return (_nest(draw, path[:cut]), _nest(draw, path[cut:]))


@hypothesis.given(st.data(), paths)
def test_any_grouping_of_a_path_is_the_same_key(data: Any, path: tuple[str, ...]) -> None:
    key = _nest(data.draw, path)
    assert unravel_key_to_tuple(key) == path
    assert unravel_key(key) == (path if len(path) > 1 else path[0])
    assert unravel_key_list([key, path]) == [unravel_key(path)] * 2


@pytest.mark.parametrize("key", [(), 1, None, ("a", 1), ("a", ()), b"a", ["a"]])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(KeyError, match="a key must be a string"):
        unravel_key_to_tuple(key)


@hypothesis.given(st.dictionaries(paths, st.integers(-9, 9), max_size=6))
def test_a_tree_gives_back_the_leaves_that_were_set(values: dict[tuple[str, ...], int]) -> None:
    clashing = [one for one in values for other in values if one != other and one == other[: len(one)]]
    hypothesis.assume(not clashing)
    td = TensorDict({}, [])
    for path, value in values.items():
        td[path] = value
    assert {unravel_key_to_tuple(key): int(value) for key, value in td.items(True, True)} == values
    assert set(td.keys(True, True, sort=True)) == {unravel_key(path) for path in values}
    for path in values:
        assert path in td
        assert path in td.keys(True)
    for path in values:
        del td[path]
    assert td.is_empty()


# ---- views


@kinds
def test_views_follow_later_changes(make: Any) -> None:
    td = make(tree())
    top, deep, leaves, values = td.keys(), td.keys(True), td.keys(True, True), td.values()
    assert set(top) == {"a", "b", "s"}
    assert set(deep) == {"a", "b", ("b", "c"), ("b", "d"), ("b", "d", "e"), "s"}
    assert set(leaves) == {"a", ("b", "c"), ("b", "d", "e")}
    td["b", "new"] = torch.zeros(2)
    del td["a"]
    assert set(top) == {"b", "s"}
    assert ("b", "new") in deep
    assert set(leaves) == {("b", "c"), ("b", "d", "e"), ("b", "new")}
    assert len(top) == len(values) == 2
    assert len(leaves) == 3


@kinds
def test_views_pair_keys_and_values_in_one_order(make: Any) -> None:
    td = make(tree())
    for deep in (False, True):
        for leaves_only in (False, True):
            for sort in (False, True):
                ks = list(td.keys(deep, leaves_only, sort=sort))
                items = list(td.items(deep, leaves_only, sort=sort))
                values = list(td.values(deep, leaves_only, sort=sort))
                assert [key for key, _ in items] == ks
                assert len(values) == len(ks) == len(td.keys(deep, leaves_only))
                assert [type(value) for value in values] == [type(value) for _, value in items]
                for key, value in items:
                    if isinstance(value, torch.Tensor):
                        assert torch.equal(value, td.get(key))


def test_views_work_like_sets() -> None:
    keys = tree().keys()
    assert keys == {"a", "b", "s"}
    assert keys & {"a", "x"} == {"a"}
    assert keys | {"x"} == {"a", "b", "s", "x"}
    assert keys - {"a"} == {"b", "s"}
    assert {"a", "x"} - keys == {"x"}
    assert keys ^ {"a"} == {"b", "s"}
    assert keys.isdisjoint({"x"})


def test_is_leaf_says_what_is_a_leaf() -> None:
    td = tree()
    assert set(td.keys(True, True, is_leaf=is_leaf_nontensor)) == {"a", ("b", "c"), ("b", "d", "e"), "s"}
    assert set(td.keys(True, True, is_leaf=lambda kind: True)) == {"a", "b", "s"}


# ---- words that change keys


@kinds
def test_select_keeps_what_is_named_and_nothing_is_copied(make: Any) -> None:
    td = make(tree())
    got = td.select("a", ("b", "d", "e"))
    assert set(got.keys(True, True)) == {"a", ("b", "d", "e")}
    assert got.batch_size == td.batch_size
    assert got["b"].batch_size == td["b"].batch_size
    assert type(got) is type(td)
    assert set(td.keys(True, True)) == {"a", ("b", "c"), ("b", "d", "e")}
    got["a"].add_(1) if make is MAKERS["dense"] else got.tensordicts[0]["a"].add_(1)
    assert int(td["a"][0]) == 1
    assert set(td.select("b").keys(True, True)) == {("b", "c"), ("b", "d", "e")}
    assert set(td.select("b", ("b", "c")).keys(True, True)) == {("b", "c"), ("b", "d", "e")}
    assert list(td.select("a", "x", strict=False).keys()) == ["a"]
    with pytest.raises(KeyError, match="'x'"):
        td.select("a", "x")


@kinds
def test_exclude_is_the_rest_of_select(make: Any) -> None:
    td = make(tree())
    assert set(td.exclude("a", ("b", "d")).keys(True, True)) == {("b", "c")}
    assert set(td.exclude(("b", "d", "e")).keys(True)) == {"a", "b", ("b", "c"), ("b", "d"), "s"}
    assert set(td.exclude("nothing", ("b", "nothing")).keys(True)) == set(td.keys(True))
    assert set(td.keys(True, True)) == {"a", ("b", "c"), ("b", "d", "e")}


@kinds
def test_select_and_exclude_in_place_return_self(make: Any) -> None:
    td = make(tree())
    assert td.select("a", "b", inplace=True) is td
    assert set(td.keys()) == {"a", "b"}
    assert td.exclude("a", inplace=True) is td
    assert set(td.keys()) == {"b"}


@kinds
def test_renaming_moves_a_value(make: Any) -> None:
    td = make(tree())
    want = td["a"].clone()
    assert td.rename_key_("a", "z") is td
    assert "a" not in td
    assert torch.equal(td["z"], want)
    td.rename_key_("z", ("n", "m"))
    assert torch.equal(td["n", "m"], want)
    td.rename_key_(("n", "m"), ("n", "k"))
    assert set(td["n"].keys()) == {"k"}
    td.rename_key_(("n", "k"), "c")
    assert torch.equal(td["c"], want)
    assert td["n"].is_empty()
    td.rename_key_("c", "c")
    assert torch.equal(td["c"], want)


def test_a_renamed_key_comes_last() -> None:
    assert list(TensorDict({"a": 1, "b": 2, "c": 3}).rename_key_("b", "x").keys()) == ["a", "c", "x"]


@kinds
def test_renaming_to_a_key_that_is_taken(make: Any) -> None:
    td = make(tree())
    with pytest.raises(KeyError, match="'b'"):
        td.rename_key_("a", "b", safe=True)
    assert set(td.keys()) == {"a", "b", "s"}
    td.rename_key_("a", "b")
    assert set(td.keys()) == {"b", "s"}
    assert torch.equal(td["b"], torch.arange(2))
    with pytest.raises(KeyError, match="'missing'"):
        td.rename_key_("missing", "x")
    assert set(td.keys()) == {"b", "s"}


def test_unflattening_into_a_node_leaves_that_node_as_it_is() -> None:
    td = TensorDict({"a": {"z": torch.zeros(2)}, "a.b": torch.ones(2), "a.c.d": torch.ones(2)}, [2])
    made = td.unflatten_keys(".")
    assert sorted(made.keys(True, True)) == [("a", "b"), ("a", "c", "d"), ("a", "z")]
    assert list(td["a"].keys()) == ["z"]
    for clash in ({"a": 1, "a.b": 2}, {"a.b": 1, "a": 2}, {"a.b": 1, "a.b.c": 2}):
        with pytest.raises(KeyError, match=r"clashes|there twice"):
            TensorDict(clash).unflatten_keys(".")


@kinds
@pytest.mark.parametrize("separator", [".", "/", "__"])
def test_flattening_keys_and_back(make: Any, separator: str) -> None:
    td = make(tree())
    flat = td.flatten_keys(separator)
    assert set(flat.keys()) == {"a", f"b{separator}c", f"b{separator}d{separator}e", "s"}
    back = flat.unflatten_keys(separator)
    assert set(back.keys(True)) == set(td.keys(True))
    assert (back == td).all()
    assert back["b"].batch_size == td["b"].batch_size
    assert type(back) is type(flat) is type(td)
    assert td.flatten_keys(separator, inplace=True) is td
    assert set(td.keys()) == set(flat.keys())
    assert td.unflatten_keys(separator, inplace=True) is td
    assert set(td.keys(True)) == set(back.keys(True))


@pytest.mark.parametrize("inplace", [False, True])
def test_keys_that_become_one_are_refused(inplace: bool) -> None:
    flat = TensorDict({"a": {"b": 1}, "a.b": 2})
    with pytest.raises(KeyError, match=r"'a\.b'"):
        flat.flatten_keys(".", inplace=inplace)
    assert set(flat.keys(True, True)) == {("a", "b"), "a.b"}
    for source in ({"a": 1, "a.b": 2}, {"a.b": 2, "a": 1}):
        td = TensorDict(source)
        with pytest.raises(KeyError, match="'a'"):
            td.unflatten_keys(".", inplace=inplace)
        assert set(td.keys(True, True)) == {"a", "a.b"}


@kinds
def test_pop_removes_and_returns(make: Any) -> None:
    td = make(tree())
    assert torch.equal(td.pop("a"), torch.arange(2))
    assert torch.equal(td.pop(("b", "c")), torch.ones(2))
    popped = td.pop("s")  # the node, as `get` gives it
    assert popped.batch_size == td.batch_size and popped.tolist() == ["text", "text"]
    assert set(td.keys(True)) == {"b", ("b", "d"), ("b", "d", "e")}
    assert td.pop("a", None) is None
    assert td.pop(("b", "x", "y"), 3) == 3
    with pytest.raises(KeyError, match="'a'"):
        td.pop("a")
    td.clear().set("s", "last")
    key, popped = td.popitem()
    assert (key, popped.tolist()) == ("s", ["last", "last"])


@kinds
def test_update_merges_and_replaces(make: Any) -> None:
    td = make(tree())
    assert td.update({"a": torch.full((2,), 7), "b": {"x": torch.ones(2)}, ("b", "d", "y"): torch.ones(2)}) is td
    assert set(td.keys(True, True)) == {"a", ("b", "c"), ("b", "d", "e"), ("b", "x"), ("b", "d", "y")}
    assert td["a"].tolist() == [7, 7]
    td.update(TensorDict({"b": {"c": torch.zeros(2)}}, [2]), new=torch.ones(2))
    assert td["b", "c"].tolist() == [0, 0]
    assert "new" in td
    td.update({"a": torch.zeros(2), "c": torch.zeros(2)}, keys_to_update=["c"])
    assert td["a"].tolist() == [7, 7]
    td.update({"b": torch.zeros(2)})
    assert isinstance(td["b"], torch.Tensor)


@kinds
def test_update_with_a_bad_value_changes_nothing_before_it(make: Any) -> None:
    td = make(tree())
    with pytest.raises(RuntimeError, match="'bad'"):
        td.update({"bad": torch.zeros(3)})
    assert set(td.keys()) == {"a", "b", "s"}


@kinds
def test_update_in_place_writes_the_memory_that_is_there(make: Any) -> None:
    td = make(tree())
    leaf = td["b", "c"] if make is MAKERS["dense"] else td.tensordicts[0]["b", "c"]
    td.update_(td.clone().fill_(("b", "c"), 5.0))
    assert float(leaf.reshape(-1)[0]) == 5
    td.update({"b": {"c": torch.full((2,), 6.0)}}, inplace=True)
    assert float(leaf.reshape(-1)[0]) == 6
    with pytest.raises(KeyError, match="'x'"):
        td.update_({"a": torch.zeros(2, dtype=torch.long), "x": torch.zeros(2)})
    assert td["a"].tolist() == [0, 1]
    td.update_at_({"a": torch.tensor(9)}, 1)
    assert td["a"].tolist() == [0, 9]


@kinds
def test_setdefault_sets_only_what_is_missing(make: Any) -> None:
    td = make(tree())
    assert torch.equal(td.setdefault("a", torch.zeros(2)), torch.arange(2))
    assert torch.equal(td.setdefault(("b", "z"), torch.full((2,), 4)), torch.full((2,), 4))
    assert torch.equal(td["b", "z"], torch.full((2,), 4))


@kinds
def test_get_and_defaults(make: Any) -> None:
    td = make(tree())
    assert td.get("x") is None
    assert td.get(("b", "x"), 1) == 1
    assert td.get(("x", "y"), 1) == 1
    assert ("b", "x") not in td
    assert ("a", "x") not in td
    with pytest.raises(KeyError, match="'x'"):
        td["x"]
    with pytest.raises(KeyError, match="'x'"):
        td["b", "x"]


@kinds
def test_set_copies_only_in_place(make: Any) -> None:
    td = make(tree())
    value = torch.full((2,), 3)
    td.set("a", value)
    assert td["a"].tolist() == [3, 3]
    td.set("a", torch.full((2,), 8), inplace=True)
    assert td["a"].tolist() == [8, 8]
    td.set_("a", torch.full((2,), 9))
    assert td["a"].tolist() == [9, 9]
    td.fill_("a", 4)
    assert td["a"].tolist() == [4, 4]
    assert td.get_at("a", 1) == 4
    with pytest.raises(KeyError, match="'missing'"):
        td.set_("missing", value)


@kinds
def test_empty_keeps_the_batch_and_the_structure(make: Any) -> None:
    td = make(tree())
    assert td.empty().batch_size == td.batch_size
    assert not list(td.empty().keys())
    assert set(td.empty(recurse=True).keys(True)) >= {"b", ("b", "d")}
    assert td.empty(recurse=True).exclude("s").is_empty()


@kinds
def test_apply_reaches_every_leaf_by_its_key(make: Any) -> None:
    td = make(tree())
    seen: set[Any] = set()
    got = td.named_apply(lambda key, v: (seen.add(key), v + 1)[1], nested_keys=True)
    assert seen == {"a", ("b", "c"), ("b", "d", "e")}
    for key, value in td.items(True, True):
        assert torch.equal(got[key], value + 1)
    assert got.batch_size == td.batch_size
    assert torch.equal(td.apply(lambda one, two: one + two, td.clone())["a"], td["a"] * 2)
    td.apply(lambda v: v * 0, inplace=True)
    assert not td["b", "c"].any()


@hypothesis.given(
    st.dictionaries(names.filter(lambda name: "." not in name), st.integers(-9, 9), min_size=1), st.data()
)
def test_select_and_exclude_part_the_keys(values: dict[str, int], data: Any) -> None:
    td = TensorDict(values)
    chosen = data.draw(st.lists(st.sampled_from(sorted(values)), unique=True))
    assert set(td.select(*chosen).keys()) == set(chosen)
    assert set(td.exclude(*chosen).keys()) == set(values) - set(chosen)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("key", ["b", ("n", "b")])
def test_an_update_with_one_wrong_value_changes_nothing(key: Any, inplace: bool) -> None:
    td = TensorDict({"a": torch.zeros(2), "b": torch.zeros(2), "n": {"b": torch.zeros(2)}}, [2])
    with pytest.raises(RuntimeError, match="'b'"):
        td.update({"a": torch.ones(2), key: torch.ones(3)}, inplace=inplace)
    assert not td.any()
