"""Long columns of strings lie in two tensors: they answer as a list does, and travel as tensors do."""

from __future__ import annotations

import io
import json
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tensordict import NonTensorData, NonTensorStack, TensorDict
from tensordict.kinds.nontensor import LONG, Pool
from tensordict.meta import Meta
from tensordict.storage.strings import Strings

METHODS = ["fork", "spawn", "forkserver"]
TEXT = st.none() | st.text(st.characters(codec="utf-8"), max_size=4)
WORDS = [None if n % 97 == 1 else f"{n}é" * (n % 4) for n in range(LONG + 5)]


def column(values: list[Any]) -> Any:
    """Return a column in the form of long ones, however short it is; a list where no tensors can hold it."""
    strings = Strings.of(values)
    pool = Pool(list(values)) if strings is None else Pool([], strings)
    return NonTensorStack._of(pool, None, Meta((len(values),)))


def long() -> TensorDict:
    return TensorDict({"x": torch.arange(len(WORDS)), "n": {"word": WORDS}}, [len(WORDS)])


def in_tensors(td: Any) -> bool:
    pool = td.get(("n", "word"))._pool
    return pool.strings is not None and not pool.objects


# ---- the buffer


@given(st.lists(TEXT, max_size=12), st.data())
def test_tensors_hold_the_strings_of_a_list(values: list[Any], data: st.DataObject) -> None:
    strings = Strings.of(values)
    if not any(isinstance(value, str) for value in values):
        assert strings is None
        return
    assert strings is not None
    assert len(strings) == len(values)
    assert strings.take() == values
    rows = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=9))
    at = torch.tensor(rows, dtype=torch.long)
    assert strings.take(at) == [values[row] for row in rows]
    assert strings.pick(at).take() == [values[row] for row in rows]
    both = Strings.join([strings, strings.pick(at), Strings.of(["z"])])  # type: ignore[list-item]
    assert both.take() == [*values, *[values[row] for row in rows], "z"]
    assert pickle.loads(pickle.dumps(both)).take() == both.take()
    tensors = strings.tensors()
    assert bytes(tensors["bytes"].tolist()) == "".join(value or "" for value in values).encode()
    assert ("valid" in tensors) is (None in values)


@pytest.mark.parametrize("values", [["a", 1], [], [None], ["\ud800"], ["a", b"b"], [type("S", (str,), {})("a")]])
def test_anything_else_is_left_to_a_list(values: list[Any]) -> None:
    assert Strings.of(values) is None
    words = NonTensorStack(*values * LONG)
    assert words.tolist() == values * LONG
    assert [type(word) for word in words.tolist()] == [type(value) for value in values] * LONG


def test_many_rows_are_read_piece_by_piece() -> None:
    values = [str(n) for n in range(70_000)]
    strings = Strings.of(values)
    assert strings is not None
    order = torch.randperm(len(values))
    assert strings.take(order) == [values[at] for at in order.tolist()]
    assert strings.pick(order).take() == [values[at] for at in order.tolist()]
    assert strings.take() == values


DAMAGE: dict[str, Any] = {
    "end": lambda b, o: (b, o + 1),
    "order": lambda b, o: (b, torch.tensor([0, 3, 1, 4])),
    "negative": lambda b, o: (b, torch.tensor([0, -3, 1, 4])),
    "beyond": lambda b, o: (b, torch.tensor([0, 1 << 40, 3, 4])),
    "utf-8": lambda b, o: (b | 0x80, o),
    "type": lambda b, o: (b, o.int()),
    "empty": lambda b, o: (b, o[:0]),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_an_error_and_not_a_crash(how: str) -> None:
    data, offsets = torch.tensor(list(b"abcd"), dtype=torch.uint8), torch.tensor([0, 1, 2, 4])
    with pytest.raises(ValueError, match="the strings in 'here' are damaged"):
        Strings(*DAMAGE[how](data, offsets), where="here").take(torch.tensor([0, 1, 2]))


# ---- a column against an array of objects


def same(got: Any, want: Any) -> None:
    assert got.tolist() == want.tolist()
    assert tuple(got.batch_size) == want.shape


SHAPES: dict[str, Any] = {
    "reshape": (lambda c: c.reshape(-1), lambda a: a.reshape(-1)),
    "grid": (lambda c: c.reshape(3, 2), lambda a: a.reshape(3, 2)),
    "turned": (lambda c: c.transpose(0, 1), lambda a: a.swapaxes(0, 1)),
    "flip": (lambda c: c.flip(0), lambda a: a[::-1]),
    "unsqueeze": (lambda c: c.unsqueeze(1), lambda a: a[:, None]),
    "expand": (lambda c: c.expand(2, 2, 3), lambda a: numpy.broadcast_to(a, (2, 2, 3))),
    "stack": (lambda c: torch.stack([c, c.flip(1)], 1), lambda a: numpy.stack([a, a[:, ::-1]], 1)),
    "cat": (lambda c: torch.cat([c, c[:1]]), lambda a: numpy.concatenate([a, a[:1]])),
    "cat others": (lambda c: torch.cat([c, column(["q", "é", None])[None]]), lambda a: numpy.vstack([a, QEN])),
    "cat objects": (lambda c: torch.cat([c, NonTensorStack(1, "é", b"")[None]]), lambda a: numpy.vstack([a, ODD])),
    "unbind": (lambda c: c.unbind(1)[2], lambda a: a[:, 2]),
    "split": (lambda c: c.split(2, 1)[1], lambda a: a[:, 2:]),
    "roll": (lambda c: c.roll(1, 0), lambda a: numpy.roll(a, 1, 0)),
    "flip both": (lambda c: c.flip((0, 1)), lambda a: a[::-1, ::-1]),
    "rot90": (lambda c: c.rot90(1, (0, 1)), lambda a: numpy.rot90(a)),
    "roll all": (lambda c: c.roll(1), lambda a: numpy.roll(a, 1)),
    "pad": (lambda c: c.pad([1, 0, 0, 2], 7), lambda a: numpy.pad(a, [(1, 0), (0, 2)], constant_values=None)),
    "where": (lambda c: c.where(torch.from_numpy(MASK), c.flip(1)), lambda a: numpy.where(MASK, a, a[:, ::-1])),
    "hand on": (lambda c: (c + 1).softmax(0).cummax(1).values, lambda a: a),
    "repeat": (lambda c: c.repeat(2, 1), lambda a: numpy.tile(a, (2, 1))),
    "clone": (lambda c: c.clone(), lambda a: a),
    "pickle": (lambda c: pickle.loads(pickle.dumps(c)), lambda a: a),
    "row": (lambda c: c[1], lambda a: a[1]),
    "rows": (lambda c: c[[1, 0, 1]], lambda a: a[[1, 0, 1]]),
    "negative": (lambda c: c[torch.tensor([-1, 0])], lambda a: a[[-1, 0]]),
    "columns": (lambda c: c[:, torch.tensor([2, 0])], lambda a: a[:, [2, 0]]),
    "mask": (lambda c: c[torch.tensor([[True, False, True], [False, True, True]])], lambda a: a[MASK]),
    "slice": (lambda c: c[:, 1:], lambda a: a[:, 1:]),
    "pairs": (lambda c: c[torch.tensor([0, 1]), torch.tensor([2, 1])], lambda a: a[[0, 1], [2, 1]]),
}
QEN = numpy.array(["q", "é", None], dtype=object)
ODD = numpy.array([1, "é", b""], dtype=object)
MASK = numpy.array([[True, False, True], [False, True, True]])


@pytest.mark.parametrize("word", SHAPES)
@given(st.lists(TEXT, min_size=6, max_size=6))
def test_words_on_dims_are_those_of_an_array_of_objects(word: str, values: list[Any]) -> None:
    ours, theirs = SHAPES[word]
    array = numpy.empty(6, dtype=object)
    array[:] = values
    same(ours(column(values).reshape(2, 3)), theirs(array.reshape(2, 3)))


@given(st.lists(TEXT, min_size=1, max_size=6), st.data())
def test_an_index_of_one_dim_is_that_of_a_list(values: list[Any], data: st.DataObject) -> None:
    words, size = column(values), len(values)
    rows = data.draw(st.lists(st.integers(-size, size - 1), max_size=5))
    for index in (torch.tensor(rows, dtype=torch.long), numpy.array(rows, dtype=numpy.int64)):
        assert words[index].tolist() == [values[row] for row in rows]
    for wrong in (size, -size - 1):
        for index in (torch.tensor([wrong]), [wrong], wrong):
            with pytest.raises(IndexError):
                words[index]
    row = data.draw(st.integers(-size, size - 1))
    assert words[row].tolist() == values[row]
    assert words[row].data == values[row]
    assert type(words[row]) is type(words.unbind(0)[row]) is NonTensorData


@given(st.lists(TEXT, min_size=4, max_size=4), st.data())
def test_a_row_assignment_changes_that_row_only(values: list[Any], data: st.DataObject) -> None:
    td = TensorDict({"x": torch.arange(4), "word": column(values)}, [4])
    before, part, other = td.clone(), td[1:3], td[[0, 1, 2, 3]]
    for _ in range(data.draw(st.integers(1, 3))):
        row, new = data.draw(st.integers(0, 3)), data.draw(TEXT | st.integers() | st.binary(max_size=2))
        td[row] = TensorDict({"x": row, "word": NonTensorData(new)})
        values = [*values[:row], new, *values[row + 1 :]]
        assert td["word"] == values
        assert part["word"] == values[1:3]  # a slice is a view
        assert pickle.loads(pickle.dumps(td))["word"] == values
    assert before["word"] == other["word"]
    td[2:] = td[:2].clone()
    assert td["word"] == values[:2] * 2
    part.get("word")[0] = NonTensorData("to the row")
    assert td[1]["word"] == "to the row"
    td[1].get("word")[()] = "through the value"
    assert td[1]["word"] == part[0]["word"] == "through the value"
    part["word"][0] = "through the list"
    assert td[1]["word"] == "through the list"


# ---- long columns in a tensordict


def test_a_long_list_is_two_tensors_and_a_batch_does_not_touch_the_rest() -> None:
    td = long()
    words = td.get(("n", "word"))
    assert in_tensors(td)
    rows = [3, -1, 500]
    batch = td[torch.tensor(rows)]
    assert batch["n", "word"] == [WORDS[row] for row in rows]
    assert words._order is None  # the numbers of all rows were not made either
    assert len(pickle.dumps(batch)) < 4000 < len(pickle.dumps(td))
    assert pickle.loads(pickle.dumps(td[7]))["n", "word"] == WORDS[7]
    assert torch.stack([td[1], td[2]])["n", "word"] == WORDS[1:3]
    assert in_tensors(torch.cat([long(), long()]))
    assert [row["n", "word"] for row in td[:3]] == WORDS[:3]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_reads_rows_of_a_saved_column(workers: int, tmp_path: Path) -> None:
    long().memmap(tmp_path)
    td: Any = TensorDict.load_memmap(tmp_path, mode="r")
    options: Any = {"num_workers": 1, "multiprocessing_context": "spawn"} if workers else {}
    batches = list(DataLoader(td, batch_size=300, **options))
    assert [word for batch in batches for word in batch["n", "word"]] == WORDS


def test_torch_saves_and_loads_it_by_default() -> None:
    file = io.BytesIO()
    torch.save(long(), file)
    file.seek(0)
    assert torch.load(file)["n", "word"] == WORDS


# ---- between processes


def reading(queue: Any, connection: Any) -> None:
    while (td := queue.get(timeout=60)) is not None:
        words = td.get(("n", "word"))
        one = not words.batch_dims  # a single value travels by itself
        td["x"].fill_(7)
        connection.send(([words.data], True) if one else (words.tolist(), words._pool.in_place))
        del td, words
    connection.send(None)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("place", ["shared", "memmap", "folder"])
def test_shared_and_mapped_strings_go_through_queues(method: str, place: str, tmp_path: Path) -> None:
    td = long()
    if place == "shared":
        td.share_memory_()
    else:
        td.memmap_(tmp_path if place == "folder" else None)
    assert td.get(("n", "word"))._pool.in_place
    assert len(ForkingPickler.dumps(td)) < 8000
    context: Any = mp.get_context(method)
    queue, (mine, theirs) = context.Queue(), context.Pipe()
    process = context.Process(target=reading, args=(queue, theirs))
    process.start()
    try:
        for part, want in ((td, WORDS), (td[5:8], WORDS[5:8]), (td[9], [WORDS[9]]), (td[[4, 2]], [WORDS[4], WORDS[2]])):
            queue.put(part)
            assert mine.poll(60)
            assert mine.recv() == (want, True)
        queue.put(None)
        assert mine.poll(60)
        assert mine.recv() is None
    finally:
        process.join(60)
        assert process.exitcode == 0
    assert (td["x"] == 7).all()


@pytest.mark.parametrize("place", ["shared", "memmap"])
def test_a_write_to_a_column_in_place_leaves_what_others_see_readable(place: str) -> None:
    td = long().share_memory_() if place == "shared" else long().memmap_()
    other = pickle.loads(ForkingPickler.dumps(td))
    td[3] = TensorDict({"x": 0, "n": {"word": "new"}})
    assert td["n", "word"][2:4] == [WORDS[2], "new"]
    assert other["n", "word"] == WORDS
    assert pickle.loads(ForkingPickler.dumps(td[2:5]))["n", "word"] == [WORDS[2], "new", WORDS[4]]


# ---- in files


@pytest.mark.parametrize("rows", [len(WORDS), 200_000])  # short files, and such as threads fill later
def test_threads_save_a_column(rows: int, tmp_path: Path) -> None:
    words = [WORDS[n % len(WORDS)] for n in range(rows)]
    td = TensorDict({"x": torch.arange(rows), "word": words}, [rows])
    placed = td.memmap(tmp_path, num_threads=2)
    assert placed["word"] == words
    assert TensorDict.load_memmap(tmp_path, verify=True)["word"] == words


def test_a_saved_column_is_two_raw_files(tmp_path: Path) -> None:
    long().memmap(tmp_path)
    folder = tmp_path / "n" / "word"
    text = [word or "" for word in WORDS]
    assert (folder / "bytes.memmap").read_bytes() == "".join(text).encode()
    ends = numpy.cumsum([len(word.encode()) for word in text])
    assert numpy.fromfile(folder / "offsets.memmap", numpy.int64).tolist() == [0, *ends.tolist()]
    known = numpy.unpackbits(numpy.fromfile(folder / "valid.memmap", numpy.uint8), bitorder="little")[: len(WORDS)]
    assert known.tolist() == [word is not None for word in WORDS]
    meta = json.loads((folder / "meta.json").read_text())
    assert (meta["_format_version"], meta["_tensordict_kind"], meta["shape"]) == (2, "strings", [len(WORDS)])
    grid = long()[:1000].reshape(4, 250).memmap(tmp_path / "grid")
    assert TensorDict.load_memmap(tmp_path / "grid").get(("n", "word")).tolist() == grid.get(("n", "word")).tolist()
    short = TensorDict({"x": torch.zeros(2), "n": {"word": ["a", "b"]}}, [2]).memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["n", "word"] == short["n", "word"] == ["a", "b"]
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json"]


@pytest.mark.parametrize("words", [WORDS[:4], WORDS], ids=["short", "long"])
def test_rows_written_to_a_saved_column_are_in_the_files(words: list[Any], tmp_path: Path) -> None:
    def saved() -> Any:
        return TensorDict.load_memmap(tmp_path, mode="r")

    def new(word: Any) -> TensorDict:
        return TensorDict({"x": 9, "word": NonTensorData(word), "one": word})

    TensorDict({"x": torch.arange(len(words)), "word": words, "one": "1"}, [len(words)]).memmap(tmp_path)
    td: Any = TensorDict.load_memmap(tmp_path)
    td[1] = new("first")
    assert saved()["word"] == td["word"] == [words[0], "first", *words[2:]]
    assert saved()["one"][:3] == ["1", "first", "1"]
    td[2:4][0] = new("second")
    td["word"][3] = "third"
    assert saved()["word"][:5] == td["word"][:5] == [words[0], "first", "second", "third", *words[4:5]]
    for copy in (td[[0, 1]], td.clone(), pickle.loads(pickle.dumps(td[:2]))):
        copy[0] = new("elsewhere")
        assert saved()["word"] == td["word"]
    with pytest.raises(PermissionError, match="mode='r'"):
        saved()[0] = new("refused")
    with pytest.raises(PermissionError, match="mode='r'"):
        saved()["word"][0] = "refused"
    assert saved()["word"] == td["word"]
    assert saved()["x"][1:3].tolist() == [9, 9]


@pytest.mark.parametrize("name", ["bytes", "offsets", "valid"])
def test_a_file_of_a_wrong_size_is_found_when_it_is_opened(name: str, tmp_path: Path) -> None:
    long().memmap(tmp_path)
    path = tmp_path / "n" / "word" / f"{name}.memmap"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=name):
        TensorDict.load_memmap(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=name):
        TensorDict.load_memmap(tmp_path)


def test_damaged_files_are_errors_that_name_the_folder(tmp_path: Path) -> None:
    long().memmap(tmp_path)
    folder = tmp_path / "n" / "word"
    offsets = numpy.fromfile(folder / "offsets.memmap", numpy.int64)
    offsets[5] = 1 << 60
    offsets.tofile(folder / "offsets.memmap")
    td = TensorDict.load_memmap(tmp_path)
    assert td[9]["n", "word"] == WORDS[9]
    for rows in (4, 5, slice(None)):
        with pytest.raises(ValueError, match=r"word' are damaged"):
            td[rows]["n", "word"]
    offsets[-1] += 8
    offsets.tofile(folder / "offsets.memmap")
    with pytest.raises(ValueError, match="the offsets go from 0"):
        TensorDict.load_memmap(tmp_path)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "shape": [3]}))
    offsets[-1] -= 8
    offsets.tofile(folder / "offsets.memmap")
    with pytest.raises(ValueError, match=r"strings for a batch size of \[3\]"):
        TensorDict.load_memmap(tmp_path)
