"""Non-tensors: any object can be a value, one for all rows or one a row, and follows the rows."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tensordict import NonTensorData, NonTensorStack, TensorDict, collate, lazy_stack

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
