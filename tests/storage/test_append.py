"""Rows that are appended to a folder: all or none, at the cost of the new ones, while others read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import (
    LazyStackedTensorDict,
    MemoryMappedTensor,
    MetaData,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    append_memmap,
    lazy_stack,
)
from tensordict.storage import disk
from tensordict.storage.checksum import survey_of

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


class Frame(TensorClass):
    obs: torch.Tensor
    name: str = "none"


def flat(first: int, count: int) -> Any:
    """Return rows of which every value says its number."""
    numbers = torch.arange(first, first + count)
    inner = TensorDict({"y": numbers.double()[:, None].expand(count, 3), "z": numbers % 2 == 0}, [count])
    td = TensorDict({"x": numbers, "deep": {"n": inner}}, [count])
    td["sea"] = "one for all"
    return td


def words(first: int, count: int) -> Any:
    said = [f"word {n}" for n in range(first, first + count)]
    return TensorDict({"x": torch.arange(first, first + count), "w": said}, [count])


def objects(first: int, count: int) -> Any:
    return TensorDict({"o": [{"n": n, "t": [n]} for n in range(first, first + count)]}, [count])


def ragged(first: int, count: int, layout: Any = torch.jagged) -> Any:
    rows = [torch.full((n % 3 + 1, 2), float(n)) for n in range(first, first + count)]
    return TensorDict({"r": torch.nested.nested_tensor(rows, layout=layout)}, [count])


def stacked(first: int, count: int) -> Any:
    return lazy_stack([TensorDict({"x": torch.full((n + 1,), n)}) for n in range(first, first + count)])


def across(first: int, count: int) -> Any:
    return lazy_stack([TensorDict({"x": torch.arange(first, first + count) + at}, [count]) for at in range(2)], 1)


def classed(first: int, count: int) -> Any:
    return Frame(obs=torch.arange(first, first + count), name="run", batch_size=[count])


def mixed(first: int, count: int) -> Any:
    td = TensorDict({"a": flat(first, count), "s": stacked(first, count), "c": classed(first, count)}, [count])
    td["w"] = [f"word {n}" for n in range(first, first + count)]
    td["r"] = ragged(first, count)["r"]
    td["u"] = UnbatchedTensor(torch.arange(5.0))
    td["a/b"] = torch.arange(first, first + count)
    td["meta.json"] = torch.arange(first, first + count)
    return td


def unbatched(value: float) -> Any:
    return TensorDict({"u": UnbatchedTensor(torch.full((2,), value))}, [3])


def pairs(first: int, count: int) -> Any:
    """Return rows with two batch dims."""
    numbers = torch.arange(first, first + count)[:, None] * 10 + torch.arange(2)
    return TensorDict({"x": numbers, "n": {"y": numbers.float()}}, [count, 2])


TREES = {
    "flat": flat,
    "words": words,
    "objects": objects,
    "jagged": ragged,
    "strided": lambda first, count: ragged(first, count, torch.strided),
    "lazy stack": stacked,
    "lazy stack along another dim": across,
    "class": classed,
    "mixed": mixed,
    "two batch dims": pairs,
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        if one.is_nested:
            rows = one.unbind(), other.unbind()
            return len(rows[0]) == len(rows[1]) and all(map(torch.equal, *rows))
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, LazyStackedTensorDict):
        return len(one) == len(other) and all(map(same, one.tensordicts, other.tensordicts))
    if hasattr(one, "keys"):
        return (
            one.batch_size == other.batch_size
            and set(one.keys()) == set(other.keys())
            and all(same(one.get(key), other.get(key)) for key in one.keys())  # noqa: SIM118
        )
    if isinstance(one, TensorClass):
        return type(one) is type(other) and same(one.to_tensordict(), other.to_tensordict())
    return one.tolist() == other.tolist() if hasattr(one, "tolist") else bool(one == other)


def raw(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.mark.parametrize("tree", TREES)
def test_rows_are_appended_again_and_again(tree: str, place: Path) -> None:
    make = TREES[tree]
    make(0, 3).memmap(place)
    before = TensorDict.load_memmap(place).lock_()
    count = 3
    for more in (2, 1, 40):
        append_memmap(place, make(count, more))
        count += more
        assert same(TensorDict.load_memmap(place), make(0, count))
        assert same(TensorDict.load_memmap(place, mode="r"), make(0, count))
    assert same(before, make(0, 3))
    assert before.memmap_refresh_() is before
    assert same(before, make(0, count))
    assert before.is_locked
    assert survey_of(str(place)).damage == []
    # what was appended to is a folder like any other
    make(5, 2).memmap(place)
    assert same(TensorDict.load_memmap(place), make(5, 2))


def test_a_long_column_of_strings_grows(place: Path) -> None:
    values: list[str | None] = [f"word {n}" for n in range(1001)]
    TensorDict({"w": values}, [1001]).memmap(place)
    for more in (["é", "", "a\0b"], [None, "x"], [None] * 2, [f"{n}" * 3 for n in range(1200)], [None] * 1111):
        append_memmap(place, TensorDict({"w": list(more)}, [len(more)]))
        values += more
        assert list(TensorDict.load_memmap(place)["w"]) == values
    append_memmap(place, TensorDict({"w": NonTensorData("all", [4])}, [4]))
    assert list(TensorDict.load_memmap(place)["w"]) == [*values, *["all"] * 4]


def test_a_column_takes_one_value_for_all_rows(place: Path) -> None:
    words(0, 3).memmap(place)
    append_memmap(place, TensorDict({"x": torch.arange(2), "w": "same"}, [2]))
    assert list(TensorDict.load_memmap(place)["w"]) == ["word 0", "word 1", "word 2", "same", "same"]


def test_no_rows_are_no_change(place: Path) -> None:
    flat(0, 3).memmap(place)
    before = raw(place)
    append_memmap(place, flat(3, 0))
    assert raw(place) == before


def test_rows_are_appended_to_none(place: Path) -> None:
    flat(0, 0).memmap(place)
    append_memmap(place, flat(0, 4))
    assert same(TensorDict.load_memmap(place), flat(0, 4))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda: flat(3, 2).exclude("x"), r"missing \['x'\]"),
        (lambda: flat(3, 2).set("more", torch.ones(2)), r"extra \['more'\]"),
        (lambda: flat(3, 2).set("x", torch.ones(2)), r"'x'.*torch.int64.*torch.float32"),
        (lambda: flat(3, 2).set("x", torch.ones(2, 4, dtype=torch.int64)), r"'x'.*\(\).*\(4,\)"),
        (lambda: flat(3, 2).set(("deep", "n", "y"), torch.ones(2, 5).double()), r"'deep', 'n', 'y'.*\(3,\).*\(5,\)"),
        (lambda: flat(3, 2).set("sea", "another"), "one for all.*another"),
        (lambda: flat(3, 2).set("x", TensorDict({}, [2])), r"'x'.*'leaf'.*'node'"),
        (lambda: TensorDict({"x": 1}), "batch"),
        (lambda: pairs(0, 2), "batch dims"),
        (lambda: stacked(0, 2), "'dense'.*'lazy'"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_written(rows: Any, message: str, place: Path) -> None:
    flat(0, 3).memmap(place)
    before = raw(place)
    with pytest.raises(ValueError, match=message):
        append_memmap(place, rows())
    assert raw(place) == before


@pytest.mark.parametrize(
    ("tree", "rows", "message"),
    [
        (
            lambda: words(0, 1500),
            lambda: TensorDict({"x": torch.ones(2).long(), "w": NonTensorStack({1}, {2})}, [2]),
            "'w'.*strings",
        ),
        (lambda: ragged(0, 3), lambda: ragged(0, 2, torch.strided), "ragged dim"),
        (lambda: ragged(0, 3), lambda: TensorDict({"r": torch.ones(2, 2, 2)}, [2]), "'nested'.*'plain'"),
        (lambda: across(0, 3), lambda: lazy_stack(across(3, 2).tensordicts * 2, 1), "number of members"),
        (lambda: unbatched(1.0), lambda: unbatched(2.0), "one for all rows"),
        (lambda: classed(0, 3), lambda: flat(0, 2), "kind of node"),
        (lambda: TensorDict({"m": MetaData([1])}, [3]), lambda: TensorDict({"m": MetaData([2])}, [3]), "one for all"),
    ],
)
def test_rows_of_other_kinds_are_refused(tree: Any, rows: Any, message: str, place: Path) -> None:
    tree().memmap(place)
    before = raw(place)
    with pytest.raises(ValueError, match=message):
        append_memmap(place, rows())
    assert raw(place) == before


def test_packed_rows_do_not_grow(place: Path) -> None:
    pairs(0, 3).memmap(place, layout="rows")
    before = raw(place)
    with pytest.raises(ValueError, match="layout='rows'"):
        append_memmap(place, pairs(3, 2))
    assert raw(place) == before


def test_there_must_be_a_folder(place: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data"):
        append_memmap(place, flat(0, 2))
    assert not place.exists()
    with pytest.raises(TypeError, match="tensordict"):
        append_memmap(place, torch.ones(3))


def test_only_the_new_bytes_are_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = TensorDict({"x": torch.zeros(1000, 1000)}, [1000])
    big.memmap(place)
    inode, written, real = (place / "x.memmap").stat().st_ino, [], disk.write

    def write(descriptor: int, data: Any, path: str, offset: int | None = None) -> None:
        written.append(len(data))
        real(descriptor, data, path, offset)

    monkeypatch.setattr(disk, "write", write)
    append_memmap(place, big[:3])
    assert sum(written) < 3 * 4000 + 4000
    assert (place / "x.memmap").stat().st_ino == inode


def test_a_failure_leaves_what_was_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed(0, 3).memmap(place)
    sizes = {name: len(content) for name, content in raw(place).items() if name.endswith(".memmap")}

    def fail(*_: Any) -> None:
        raise OSError(28, "full")

    for name in ("reserve", "write"):
        with monkeypatch.context() as patch:
            calls, real = [0], getattr(disk, name)

            def later(*given: Any, _calls: Any = calls, _real: Any = real) -> Any:
                _calls[0] += 1
                return fail() if _calls[0] == 4 else _real(*given)

            patch.setattr(disk, name, later)
            with pytest.raises(OSError, match="full"):
                append_memmap(place, mixed(3, 500))
        assert same(TensorDict.load_memmap(place), mixed(0, 3))
        found = {name: len(content) for name, content in raw(place).items() if name.endswith(".memmap")}
        assert {name: found[name] for name in sizes} == sizes
    append_memmap(place, mixed(3, 2))
    assert same(TensorDict.load_memmap(place), mixed(0, 5))


def test_an_append_that_was_cut_off_is_written_over(place: Path) -> None:
    flat(0, 3).memmap(place)

    def die() -> None:
        def sync_all(paths: Any) -> None:
            os._exit(0)

        disk.sync_all = sync_all
        append_memmap(place, flat(3, 50))

    process = mp.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert (place / "x.memmap").stat().st_size == 53 * 8
    assert same(TensorDict.load_memmap(place), flat(0, 3))
    part = TensorDict.load_memmap(place / "deep" / "n")
    assert same(part, flat(0, 3)["deep", "n"])
    append_memmap(place, flat(3, 2))
    assert same(part.memmap_refresh_(), flat(0, 5)["deep", "n"])
    assert (place / "x.memmap").stat().st_size == 5 * 8
    assert same(TensorDict.load_memmap(place), flat(0, 5))
    assert survey_of(str(place)).damage == []


def test_a_file_longer_than_the_limit_is_refused(place: Path) -> None:
    flat(0, 3).memmap(place)
    append_memmap(place, flat(3, 2))
    with open(place / "x.memmap", "ab") as file:
        file.write(bytes(8))
    with pytest.raises(ValueError, match=r"x\.memmap.*40 bytes, but it holds 48"):
        TensorDict.load_memmap(place)
    record = json.loads((place / "meta.json").read_text())
    assert record["_tensordict_rows"] == [5, 5]
    for rows, fits in (([5, 6], True), ([5, 5], False), ([6, 5], False), ("5", False), ([5], False)):
        (place / "meta.json").write_text(json.dumps(record | {"_tensordict_rows": rows}))
        if fits:
            assert len(TensorDict.load_memmap(place)) == 5
        else:
            with pytest.raises(ValueError, match=r"x\.memmap|_tensordict_rows"):
                TensorDict.load_memmap(place)


# ---- several processes


def append_often(path: str, start: int, turns: int) -> None:
    torch.set_num_threads(1)
    for turn in range(turns):
        rows = {"by": torch.full((3,), start), "turn": torch.full((3,), turn)}
        append_memmap(path, TensorDict({**rows, "n": dict(rows)}, [3]))


def read_while(path: str, done: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    lengths = []
    try:
        while not lengths or not done.is_set():
            turn = len(lengths) % 3  # the whole, a part of it by its key, and by its folder
            part = f"{path}/n" if turn == 2 else path
            td = TensorDict.load_memmap(part, subpath="n" if turn == 1 else None)
            assert len(td) % 3 == 0
            assert td["by"].view(-1, 3).float().var(1).sum() == 0
            assert td["by"].shape == td["turn"].shape == (len(td),)
            lengths.append(len(td))
        answers.put(lengths == sorted(lengths))
    except BaseException as error:
        answers.put(repr(error))


def test_two_appenders_take_turns_and_readers_see_whole_appends(place: Path) -> None:
    context: Any = mp.get_context("fork")
    none = {"by": torch.zeros(3, dtype=torch.int64), "turn": torch.zeros(3, dtype=torch.int64)}
    TensorDict({**none, "n": dict(none)}, [3]).memmap(place)
    done, answers = context.Event(), context.SimpleQueue()
    reader = context.Process(target=read_while, args=(str(place), done, answers))
    reader.start()
    appenders = [context.Process(target=append_often, args=(str(place), who, 15)) for who in (1, 2)]
    for process in appenders:
        process.start()
    for process in appenders:
        process.join()
        assert process.exitcode == 0
    done.set()
    assert answers.get() is True
    reader.join()
    td = TensorDict.load_memmap(place)
    assert len(td) == 93
    for who in (1, 2):
        assert td["turn"][td["by"] == who].tolist() == [turn for turn in range(15) for _ in range(3)]


def save_often(path: str, turns: int) -> None:
    torch.set_num_threads(1)
    for _ in range(turns):
        rows = {"by": torch.full((3,), 7), "turn": torch.full((3,), 7)}
        TensorDict({**rows, "n": dict(rows)}, [3]).memmap(path)


def test_a_tree_that_is_replaced_while_others_append_stays_whole(place: Path) -> None:
    context: Any = mp.get_context("fork")
    save_often(str(place), 1)
    writers = [
        context.Process(target=append_often, args=(str(place), 1, 20)),
        context.Process(target=save_often, args=(str(place), 20)),
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
        assert process.exitcode == 0
    td = TensorDict.load_memmap(place)
    assert td["by"][:3].tolist() == [7, 7, 7]
    assert set(td["by"][3:].tolist()) <= {1}
    assert survey_of(str(place)).damage == []


def sums(td: Any, answers: Any) -> None:
    answers.put((len(td), int(td["x"].sum())))


def test_a_reader_can_be_sent_to_another_process_after_an_append(place: Path) -> None:
    td = flat(0, 3).memmap(place)
    append_memmap(place, flat(3, 4))
    context: Any = mp.get_context("fork")
    answers = context.SimpleQueue()
    for expected in ((3, 3), (7, 21)):
        process = context.Process(target=sums, args=(td, answers))
        process.start()
        assert answers.get() == expected
        process.join()
        td.memmap_refresh_()


# ---- refresh


def test_refresh_sees_new_keys_and_new_nodes_and_keeps_the_old_ones(place: Path) -> None:
    td = flat(0, 3).memmap(place)
    inner = td["deep"]
    other = TensorDict.load_memmap(place)
    fresh = flat(0, 3)
    fresh["new", "key"] = torch.ones(3)
    del fresh["x"]
    fresh.memmap(place)
    assert set(td.keys()) == {"x", "deep", "sea"}
    td.memmap_refresh_()
    assert set(td.keys()) == {"new", "deep", "sea"}
    assert td["deep"] is inner
    assert td["new"].is_locked
    assert td["new"].is_memmap()
    assert other["x"].tolist() == [0, 1, 2]
    td["deep", "n", "y"][0] = 9
    assert TensorDict.load_memmap(place)["deep", "n", "y"][0].tolist() == [9, 9, 9]


def test_refresh_keeps_the_mode(place: Path) -> None:
    flat(0, 3).memmap(place)
    td = TensorDict.load_memmap(place, mode="r")
    append_memmap(place, flat(3, 1))
    td.memmap_refresh_()
    with pytest.raises(PermissionError):
        td.zero_()
    assert len(td) == 4


def test_what_cannot_be_refreshed(place: Path) -> None:
    for td in (flat(0, 3), flat(0, 3).memmap_(), flat(0, 3).share_memory_()):
        with pytest.raises(RuntimeError, match="not memory-mapped from a folder"):
            td.memmap_refresh_()
    with pytest.raises(RuntimeError, match="part"):
        flat(0, 3).memmap(place)[1:].memmap_refresh_()


# ---- leaves that are added


def test_leaves_are_added_to_a_folder(place: Path) -> None:
    td = flat(0, 3).memmap(place)
    zeros = td.make_memmap("new", [3, 2], dtype=torch.int16)
    assert type(zeros) is MemoryMappedTensor
    assert zeros.filename == str(place / "new.memmap")
    td.make_memmap_from_tensor(("deep", "n", "w"), torch.arange(3))
    td.make_memmap_from_tensor("blank", torch.ones(3), copy_data=False)
    td.make_memmap_from_storage("bytes", torch.arange(6.0).untyped_storage(), [3, 2])
    zeros[1] = 7
    assert td.is_locked
    for seen in (td, TensorDict.load_memmap(place)):
        assert seen["new"].tolist() == [[0, 0], [7, 7], [0, 0]]
        assert seen["deep", "n", "w"].tolist() == [0, 1, 2]
        assert seen["blank"].tolist() == [0, 0, 0]
        assert seen["bytes"].tolist() == [[0, 1], [2, 3], [4, 5]]
    td.make_memmap_from_tensor("blank", torch.ones(3))
    assert TensorDict.load_memmap(place)["blank"].tolist() == td["blank"].tolist() == [1, 1, 1]
    assert survey_of(str(place)).damage == []
    more = flat(3, 1)
    more["new"], more["deep", "n", "w"] = torch.ones(1, 2, dtype=torch.int16), torch.tensor([3])
    more["blank"], more["bytes"] = torch.ones(1), torch.ones(1, 2)
    append_memmap(place, more)
    assert td.memmap_refresh_()["deep", "n", "w"].tolist() == [0, 1, 2, 3]


def test_what_a_dead_writer_left_goes_with_the_next_leaf(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    td = flat(0, 3).memmap(place)
    with monkeypatch.context() as patch:  # as it is after a kill before the record is written
        patch.setattr("tensordict.storage.folder.Folder._put", lambda *_: os._exit(0))
        writer = mp.get_context("fork").Process(target=td.make_memmap, args=("dead", [3]))
        writer.start()
        writer.join()
    assert (place / "dead.memmap").exists()
    assert "dead" not in list(TensorDict.load_memmap(place).keys())
    td.make_memmap("new", [3])
    assert set(TensorDict.load_memmap(place).keys()) == {*flat(0, 3).keys(), "new"}
    assert survey_of(str(place)).damage == []
    assert not (place / "dead.memmap").exists()


def test_leaves_that_cannot_be_added(place: Path) -> None:
    td = flat(0, 3).memmap(place)
    before = raw(place)
    calls: list[tuple[Any, Any, str]] = [
        (lambda: flat(0, 3).make_memmap("new", [3]), RuntimeError, "not memory-mapped"),
        (lambda: td.memmap_().clone().memmap_().make_memmap("new", [3]), RuntimeError, "from a folder"),
        (lambda: td[1:].make_memmap("new", [2]), RuntimeError, "part"),
        (lambda: td.make_memmap("new", [4]), RuntimeError, r"'new'.*\[3\], got \[4\]"),
        (lambda: td.make_memmap("x", [3]), RuntimeError, "'x'.*another shape or dtype"),
        (lambda: td.make_memmap("deep", [3]), RuntimeError, "'deep'.*TensorDict"),
        (lambda: td.make_memmap(("none", "x"), [3]), KeyError, "none"),
        (lambda: td.make_memmap_from_tensor("x", torch.arange(3), existsok=False), RuntimeError, "existsok"),
        (lambda: td.make_memmap_from_tensor("new", torch.ones(3, device="meta")), RuntimeError, "meta"),
        (lambda: td.make_memmap_from_storage("new", torch.ones(1).untyped_storage(), [3]), ValueError, "12 bytes"),
        (lambda: TensorDict.load_memmap(place, mode="r").make_memmap("new", [3]), PermissionError, "mode='r'"),
    ]
    for call, error, message in calls:
        with pytest.raises(error, match=message):
            call()
    assert raw(place) == before
    with pytest.raises(TypeError, match="takes no leaf"):
        stacked(0, 2).memmap(place.parent / "stack").make_memmap("new", [2])
