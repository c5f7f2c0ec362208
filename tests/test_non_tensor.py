"""Non-tensors: any object can be a value, one for all rows or one a row, and follows the rows."""

from __future__ import annotations

import copy
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tensordict import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorStack,
    TensorClass,
    TensorDict,
    capture_non_tensor_stack,
    collate,
    lazy_stack,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_list_to_stack,
)

WORDS = ["a", "b", "c", "d"]
JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=4), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)


class Thing:
    """An object that knows only its own identity."""


def column(words: list[Any] | None = None) -> TensorDict:
    words = list(WORDS) if words is None else words
    return TensorDict({"x": torch.arange(len(words)), "word": words}, [len(words)])


@pytest.mark.parametrize("value", ["text", None, b"bytes", {1, 2}, Thing(), Thing, len, frozenset("a"), 1j, object()])
def test_what_is_set_is_what_comes_back(value: Any) -> None:
    td = TensorDict({}, [3])
    td.set_non_tensor("it", value)
    assert td["it"] is value
    assert td.get_non_tensor("it") is value
    td["n", "it"] = NonTensorData(value)
    assert td["n", "it"] is value
    assert td[0]["it"] is value
    assert td[1:].clone()["it"] is value
    assert torch.stack([td, td])[0, 0]["it"] is value
    assert TensorDict({"it": NonTensorData(value)})["it"] is value


def test_a_string_needs_no_wrapping_and_a_mapping_can_be_one_value() -> None:
    td = TensorDict({"it": "text"}, [2])
    assert td["it"] == "text"
    td["it"] = NonTensorData({"a": 1})
    assert td["it"] == {"a": 1}
    assert td[0]["it"] == {"a": 1}


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6), st.data())
def test_a_list_is_a_column_and_follows_every_index(words: list[str], data: st.DataObject) -> None:
    td = column(words)
    size = len(words)
    assert list(td["word"]) == words
    at = data.draw(st.integers(-size, size - 1))
    assert td[at]["word"] == words[at]
    rows = data.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=5))
    for index in (rows, torch.tensor(rows)):
        assert list(td[index]["word"]) == [words[n] for n in rows]
        assert td[index]["x"].tolist() == [n % size for n in rows]
    mask = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    assert list(td[torch.tensor(mask)]["word"]) == [word for word, keep in zip(words, mask, strict=True) if keep]
    start, stop = data.draw(st.tuples(st.integers(-7, 7), st.integers(-7, 7)))
    step = data.draw(st.integers(1, 3))
    assert list(td[start:stop:step]["word"]) == words[start:stop:step]


@given(st.lists(st.lists(st.text(max_size=2), min_size=2, max_size=2), min_size=1, max_size=3))
def test_columns_stack_cat_split_and_reshape_like_tensors(rows: list[list[str]]) -> None:
    parts = [column(row) for row in rows]
    stacked, joined = torch.stack(parts), torch.cat(parts)
    flat = [word for row in rows for word in row]
    assert stacked.get("word").tolist() == rows
    assert torch.stack(parts, 1).get("word").tolist() == [list(pair) for pair in zip(*rows, strict=True)]
    assert list(joined["word"]) == flat
    assert joined.reshape(len(rows), 2).get("word").tolist() == rows
    assert list(stacked.reshape(-1)["word"]) == flat
    assert stacked.transpose(0, 1).get("word").tolist() == [list(pair) for pair in zip(*rows, strict=True)]
    assert [list(part["word"]) for part in joined.split(2)] == rows
    assert [row["word"] for row in joined.unbind(0)] == flat
    assert [list(part["word"]) for part in stacked.unbind(0)] == rows
    assert stacked[0, 1]["word"] == rows[0][1]
    assert list(stacked[:, 1]["word"]) == [row[1] for row in rows]
    assert stacked.unsqueeze(0).squeeze(0).get("word").tolist() == rows


def test_samples_of_strings_are_collated_to_a_column() -> None:
    samples = [TensorDict({"x": n, "word": word}) for n, word in enumerate(WORDS)]
    for batch in (collate(samples), torch.stack(samples), next(iter(DataLoader(samples, batch_size=4)))):  # type: ignore[arg-type]
        assert list(batch["word"]) == WORDS
        assert batch[2]["word"] == "c"
    assert [row["word"] for row in lazy_stack(samples)] == WORDS
    assert list(lazy_stack(samples)["word"]) == WORDS
    ragged = [TensorDict({"x": torch.ones(n), "word": word}) for n, word in enumerate(WORDS)]
    assert list(collate(ragged)["word"]) == WORDS
    assert list(collate(ragged, pad_keys={"x": 0})["word"]) == WORDS


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_reads_the_rows_of_a_column(workers: int) -> None:
    options: Any = {"num_workers": 1, "multiprocessing_context": "fork"} if workers else {}
    batches = list(DataLoader(column(), batch_size=3, **options))
    assert [list(batch["word"]) for batch in batches] == [["a", "b", "c"], ["d"]]


@given(st.lists(JSON.filter(lambda value: not isinstance(value, (list, bool))), min_size=1, max_size=4))
def test_pickles_and_copies_hold_the_values(values: list[Any]) -> None:
    td = TensorDict({"it": NonTensorStack(*values), "one": NonTensorData(values[0])}, [len(values)])
    for again in (pickle.loads(pickle.dumps(td)), copy.deepcopy(td), copy.copy(td), td.clone(), td.clone(False)):
        assert list(again["it"]) == values
        assert again["one"] == values[0]
        assert again.batch_size == td.batch_size


@pytest.mark.parametrize("values", [WORDS, ["a", None, "b"], [{"k": [1]}, {"k": [2]}], ["é\n", "", "\0"]])
def test_files_hold_the_values(values: list[Any], tmp_path: Path) -> None:
    td = TensorDict({"x": torch.arange(len(values)), "n": {"it": NonTensorStack(*values)}, "one": "run"}, [len(values)])
    for saved in (td.memmap(tmp_path), TensorDict.load_memmap(tmp_path), TensorDict.load_memmap(tmp_path, mode="r")):
        assert list(saved["n", "it"]) == values
        assert saved["one"] == "run"
        assert saved[1]["n", "it"] == values[1]
    again = pickle.loads(pickle.dumps(TensorDict.load_memmap(tmp_path)))
    assert list(again["n", "it"]) == values
    grid = torch.stack([td, td]).memmap(tmp_path / "grid")
    assert grid.get(("n", "it")).tolist() == [values, values]
    assert TensorDict.load_memmap(tmp_path / "grid")[1, 0]["n", "it"] == values[0]


ROWS = {"int": 1, "negative": -3, "slice": slice(1, 2), "list": [1], "tensor": torch.tensor([1])}


@pytest.mark.parametrize("how", ROWS)
@pytest.mark.parametrize("same", [False, True])
def test_a_row_assignment_changes_that_row_only(how: str, same: bool) -> None:
    source = column(["z"] * 4 if same else list(WORDS))
    if same:
        source["word"] = "z"
    before = [row["word"] for row in source]
    for again in (
        source.clone(),
        copy.deepcopy(source),
        pickle.loads(pickle.dumps(source)),
        torch.cat([source[:2], source[2:]]),
    ):
        new = TensorDict({"x": 9, "word": "new"})
        again[ROWS[how]] = new if how in ("int", "negative") else new.unsqueeze(0)
        assert [row["word"] for row in again] == [before[0], "new", *before[2:]]
        assert again["x"].tolist() == [0, 9, 2, 3]
        assert [row["word"] for row in source] == before


def test_an_indexed_copy_does_not_write_to_its_source() -> None:
    source = column()
    for picked in (source[[0, 1]], source[torch.tensor([True, True, False, False])], source[torch.tensor([0, 1])]):
        picked[0] = TensorDict({"x": 9, "word": "new"})
        assert list(picked["word"]) == ["new", "b"]
        assert list(source["word"]) == WORDS


def test_values_that_refuse_to_compare_are_kept_apart() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = object.__hash__

    one, two = Odd(), Odd()
    td = torch.stack([TensorDict({"it": NonTensorData(one)}), TensorDict({"it": NonTensorData(two)})])
    assert td[0]["it"] is one
    assert td[1]["it"] is two
    td[0] = TensorDict({"it": NonTensorData(two)})
    assert td[0]["it"] is two


def test_words_that_compute_leave_objects_alone() -> None:
    td = column()
    for got in (td + 1, td.to(torch.float64), td.neg(), td.exp(), td.detach(), td.contiguous(), td.cpu()):
        assert list(got["word"]) == WORDS
    td.zero_()
    assert list(td["word"]) == WORDS
    assert td["x"].sum() == 0


def test_wrong_lengths_are_errors_that_name_the_key() -> None:
    td = TensorDict({}, [3])
    with pytest.raises(RuntimeError, match="'word'"):
        td["word"] = ["a", "b"]
    assert not list(td.keys())


def test_stacks_and_values_tell_what_they_hold() -> None:
    one = NonTensorData("cat", batch_size=[2])
    assert one.data == "cat"
    assert one.tolist() == ["cat", "cat"]
    assert one.batch_size == (2,)
    words = NonTensorStack("a", "b")
    assert words.tolist() == words.data == ["a", "b"]
    assert words.batch_size == (2,)
    assert "a" in repr(words)
    assert "cat" in repr(one)
    assert NonTensorStack("a", "b")[1].tolist() == "b"
    both = NonTensorStack(words, NonTensorStack("c", "d"), stack_dim=1)
    assert both.tolist() == [["a", "c"], ["b", "d"]]


def test_equality_is_by_row() -> None:
    one, two = column(), column(["a", "x", "c", "d"])
    assert (one == one.clone()).all()
    assert not (one == two).all()


# ---- one value, and a description of all rows


def test_metadata_stays_one_through_joins_of_equal_ones() -> None:
    def about(text: str) -> TensorDict:
        return TensorDict({"x": torch.zeros(2), "run": MetaData(text)}, [2])

    for got in (torch.stack([about("a"), about("a")]), torch.cat([about("a"), about("a")]), about("a")[[0, 1, 1]]):
        assert type(got.get("run")) is MetaData
        assert got.get("run").batch_size == got.batch_size
        assert got["run"] == "a"
    assert torch.stack([about("a"), about("b")])["run"] == [["a", "a"], ["b", "b"]]
    assert torch.cat([about("a"), about("b")])["run"] == ["a", "a", "b", "b"]
    td = about("a")
    td[1] = about("b")[0]
    assert td["run"] == ["a", "b"]
    assert torch.stack([MetaData(1), NonTensorData(1)]).tolist() == [1, 1]


@pytest.mark.parametrize("kind", [NonTensorData, MetaData])
def test_the_published_constructors_and_conversions(kind: Any, tmp_path: Path) -> None:
    one = kind("a", batch_size=[2])
    assert kind(kind("a")).data == "a"
    assert isinstance(one, NonTensorDataBase)
    assert [field.name for field in kind.fields()] == ["data"]
    made = kind.from_tensordict(TensorDict({}, [3], names=["t"]), {"data": [1]})
    assert (type(made), made.data, made.batch_size, made.names) == (kind, [1], (3,), ["t"])
    assert kind.from_tensordict(TensorDict({"data": one}, [2])).tolist() == ["a", "a"]
    for wrong in ({}, {"data": 1, "more": 2}):
        with pytest.raises(KeyError, match="one field, 'data'"):
            kind.from_tensordict(TensorDict({}), wrong)
    for column_of in (one.maybe_to_stack(), NonTensorStack.from_nontensordata(one)):
        assert type(column_of) is NonTensorStack
        assert column_of.tolist() == ["a", "a"]
        assert column_of.maybe_to_stack() is column_of
        assert NonTensorStack.from_nontensordata(column_of) is column_of
    alone = kind("a")
    assert alone.maybe_to_stack() is alone
    assert one.extend(kind("b", [1])).tolist() == ["a", "a", "b"]
    assert type(one.extend(one)) is kind
    td = TensorDict({"it": one, "x": torch.zeros(2)}, [2])
    td.memmap(tmp_path)
    for again in (TensorDict.load_memmap(tmp_path), pickle.loads(pickle.dumps(td)), td.clone()):
        assert type(again.get("it")) is kind
        assert again["it"] == "a"


def test_values_that_are_equal_but_of_another_type_are_kept() -> None:
    td = TensorDict({"x": torch.zeros(2), "flag": NonTensorData(True)}, [2])
    td[0] = TensorDict({"x": 1.0, "flag": NonTensorData(1)})
    assert [type(value) for value in td["flag"]] == [int, bool]


# ---- switches


def test_a_list_is_one_value_when_the_switch_says_so() -> None:
    @set_list_to_stack(False)
    def make() -> TensorDict:
        assert not list_to_stack()
        return TensorDict({"it": ["a", "b"]}, [3])

    assert make()[0]["it"] == ["a", "b"]
    assert list_to_stack()
    with set_list_to_stack(False):
        assert TensorDict({"it": ["a", "b", "c"]}, [3])[0]["it"] == ["a", "b", "c"]
        with set_list_to_stack(True):
            assert TensorDict({"it": ["a", "b", "c"]}, [3])[0]["it"] == "a"
        assert list_to_stack(allow_none=True) is False
    assert list_to_stack(allow_none=True) is None
    assert TensorDict({}, [2]).set_non_tensor("it", ["a", "b"])[1]["it"] == ["a", "b"]


def test_a_stack_of_equal_values_is_one_when_the_switch_says_so() -> None:
    same, other = [NonTensorData("a", [2])] * 2, [NonTensorData("a"), NonTensorData("b")]
    assert capture_non_tensor_stack(allow_none=True) is None
    assert type(torch.stack(same)) is NonTensorStack
    with set_capture_non_tensor_stack(True):
        assert capture_non_tensor_stack()
        got = torch.stack(same, 1)
        assert type(got) is NonTensorData
        assert got.batch_size == (2, 2)
        assert torch.stack(other).tolist() == ["a", "b"]
        switch = set_capture_non_tensor_stack(False)
        switch.set()
        assert type(torch.stack(same)) is NonTensorStack
    assert not capture_non_tensor_stack()


# ---- files


class Bomb:
    def __reduce__(self) -> Any:
        return open, (os.environ["BOMB"], "w")


@pytest.mark.parametrize("place", ["value", "row"])
def test_a_pickle_is_refused_by_default_and_never_runs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOMB", str(tmp_path / "ran"))
    bomb = NonTensorData(Bomb(), [2]) if place == "value" else NonTensorStack(Bomb(), "a")
    TensorDict({"x": torch.zeros(2), "n": {"it": bomb}}, [2]).memmap(tmp_path / "td")
    file = "other.pickle" if place == "value" else "pickle.pkl"
    for options in ({}, {"allow_pickle": False}, {"mode": "r"}):
        with pytest.raises(RuntimeError, match=rf"key \('n', 'it'\).*{file}.*allow_pickle=True"):
            TensorDict.load_memmap(tmp_path / "td", **options)
    assert not (tmp_path / "ran").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        TensorDict.load_memmap(tmp_path / "td", allow_pickle=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, frozenset("a"), 1j, {1: "key"}, [b"in a list"]])
def test_what_json_cannot_hold_is_pickled(value: Any, tmp_path: Path) -> None:
    td = TensorDict({"one": NonTensorData(value, [2]), "row": NonTensorStack(value, None)}, [2])
    td.memmap(tmp_path)
    again = TensorDict.load_memmap(tmp_path, allow_pickle=True)
    assert again["one"] == value
    assert again["row"] == [value, None]


def test_json_gives_tuples_back_as_lists(tmp_path: Path) -> None:
    TensorDict({"one": NonTensorData({"a": (1, "b")})}).memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["one"] == {"a": [1, "b"]}


@pytest.mark.parametrize("word", ["sum", "mean", "prod", "std", "any", "all", "logsumexp", "min", "max"])
def test_a_reduction_keeps_the_object_of_all_rows_and_no_other(word: str) -> None:
    td = TensorDict({"x": torch.rand(2, 3), "n": {"w": [["a", "b", "c"], ["d", "e", "f"]]}}, [2, 3])
    for want in (None, "a"):
        found = getattr(td, word)(dim=1)
        found = found.values if word in ("min", "max") else found
        assert found["n", "w"] == want and found.batch_size == (2,)
        td["n", "w"] = [["a", "a", "a"], ["a", "a", "a"]]


def test_new_rows_of_a_column_have_no_value() -> None:
    td = TensorDict({"x": torch.rand(3), "w": ["a", "b", "c"]}, [3])
    for size in (2, 3, 4):
        assert td.new_zeros(size)["w"] == [None] * size
    assert td["w"] == ["a", "b", "c"]


def test_ragged_rows_of_objects_are_read_as_lists() -> None:
    rows = lazy_stack([TensorDict({"w": ["a", "b"]}, [2]), TensorDict({"w": ["c", "d", "e"]}, [3])])
    assert rows["w"] == [["a", "b"], ["c", "d", "e"]]


def test_a_row_of_the_list_that_a_lazy_stack_gives_reaches_the_member() -> None:
    stack = lazy_stack([TensorDict({"s": word, "n": {"s": word}}) for word in "abc"])
    stack["s"][0] = "new"
    stack["n", "s"][1:] = ["x", ["a", "list"]]
    assert [m["s"] for m in stack.tensordicts] == ["new", "b", "c"]
    assert [m["n", "s"] for m in stack.tensordicts] == ["a", "x", ["a", "list"]]
    columns = lazy_stack([TensorDict({"w": NonTensorStack(*words)}, [len(words)]) for words in ("ab", "cd")])
    columns["w"][0][1] = "new"
    columns["w"][1] = ["x", "y"]
    assert [m["w"] for m in columns.tensordicts] == [["a", "new"], ["x", "y"]]
    ragged = lazy_stack([TensorDict({"w": NonTensorStack(*words)}, [len(words)]) for words in ("ab", "c")])
    ragged["w"][0][1] = "new"
    ragged["w"][1:] = [["x"]]
    assert ragged["w"] == [["a", "new"], ["x"]] == [m["w"] for m in ragged.tensordicts]


def test_rows_of_rows_are_lists_that_write_too() -> None:
    td = TensorDict({"w": NonTensorStack(*"abcdef").reshape(2, 3)}, [2, 3])
    rows = td["w"]
    rows[0][1] = "x"
    rows[1] = ["y", "y", "y"]
    rows[1][-1] = "z"
    assert td["w"] == rows == [["a", "x", "c"], ["y", "y", "z"]]
    rows[:] = [["1", "2", "3"], ["4", "5", "6"]]
    assert td[1]["w"] == ["4", "5", "6"]
    with pytest.raises(ValueError, match="shorter"):
        rows[:] = [["1", "2", "3"]]


class Word(TensorClass):
    """A tensorclass with an object."""

    w: str


def test_a_row_of_a_field_of_a_lazy_stack_reaches_the_member() -> None:
    stack = lazy_stack([Word("a"), Word("b")])
    stack.w[0] = "new"
    assert (stack.w, stack[0].w) == (["new", "b"], "new")


@pytest.mark.parametrize("flatten", [False, True])
def test_a_state_dict_keeps_objects_as_they_are(flatten: bool) -> None:
    def make(word: str, rows: list[str], numbers: Any) -> TensorDict:
        nested = {"z": NonTensorData(numbers, batch_size=[2]), "x": torch.zeros(2)}
        return TensorDict({"word": word, "rows": rows, "n": nested}, [2])

    saved = make("q", ["a", "b"], [1, 2])
    state = saved.state_dict(flatten=flatten)
    assert (state["word"], state["rows"]) == ("q", ["a", "b"])
    loaded = make("old", ["c", "d"], 3).load_state_dict(state)
    assert (loaded["word"], loaded["rows"]) == ("q", ["a", "b"])
    assert loaded[0]["n", "z"] == loaded[1]["n", "z"] == [1, 2]
    tensors = [torch.tensor(1.0), torch.tensor(2.0)]
    assert TensorDict({"o": tensors[0]}).load_state_dict({"o": tensors[1]})["o"] == 2.0


TAKES: dict[str, Any] = {
    "update": lambda node, value: node.update(value),
    "update_": lambda node, value: node.update_(value),
    "copy_": lambda node, value: node.copy_(value),
    "data": lambda node, value: setattr(node, "data", value._given()),
}


@pytest.mark.parametrize("word", TAKES)
def test_a_non_tensor_takes_the_value_of_another(word: str) -> None:
    td = TensorDict({"one": NonTensorData("a", [2]), "rows": ["a", "b"], "n": {"one": MetaData(1, [2])}}, [2])
    TAKES[word](td.get("one"), NonTensorData("z", [2]))
    TAKES[word](td.get("rows"), NonTensorStack("x", "y"))
    TAKES[word](td.get(("n", "one")), MetaData(2, [2]))
    assert (td["one"], td["rows"], td["n", "one"]) == ("z", ["x", "y"], 2)
    TAKES[word](td[1].get("rows"), NonTensorData("row"))
    assert td["rows"] == ["x", "row"]
    with pytest.raises(TypeError, match="holds one value, 'z'"):
        td.get("one").update(NonTensorStack("p", "q"))
    assert td["one"] == "z"


def test_a_non_tensor_opened_for_reading_is_not_updated(tmp_path: Path) -> None:
    TensorDict({"one": NonTensorData("a", [2]), "rows": ["a", "b"]}, [2]).memmap(tmp_path)
    td = TensorDict.load_memmap(tmp_path, mode="r")
    for key, value in (("one", NonTensorData("z", [2])), ("rows", NonTensorStack("x", "y"))):
        with pytest.raises(PermissionError, match="mode='r'"):
            td.get(key).update(value)
    assert (td["one"], td["rows"]) == ("a", ["a", "b"])


def test_a_non_tensor_alone_is_its_object() -> None:
    one, rows = NonTensorData({"k": 1}, [2]), NonTensorStack("a", "b")
    assert (one.to_dict(), rows.to_dict(), one.to_dict(tolist_first=True)) == ({"k": 1}, ["a", "b"], [{"k": 1}] * 2)
    for node in (one, rows):
        assert type(node.empty()) is type(node.to_tensordict()) is type(node)
        assert node.empty().data == node.to_tensordict().data == node.data
        assert not node.is_empty()


@pytest.mark.parametrize(
    ("values", "batch"), [(["a", "b"], [2]), ([["a", "b"], ["c", "d"]], [2, 2]), ([["a"], ["b", "c"]], [2]), ([], [0])]
)
def test_a_column_of_a_list(values: list[Any], batch: list[int]) -> None:
    column = NonTensorStack.from_list(values)
    assert (list(column.batch_size), column.tolist()) == (batch, values)
