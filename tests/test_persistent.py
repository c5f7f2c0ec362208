"""What a tensordict in an HDF5 file or a zarr store promises."""

from __future__ import annotations

import collections
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import sys
from collections.abc import Callable
from typing import Any

import h5py
import hypothesis.strategies as st
import pytest
import torch
import zarr
from hypothesis import HealthCheck, given, settings
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    lazy_stack,
)
from tensordict.kinds.window import Window, through
from tensordict.storage import disk
from tensordict.storage.arrays import encoding_of

METHODS = ["fork", "spawn", "forkserver"]
BACKENDS = ["h5", "zarr"]
ROWS = 12

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_method = pytest.mark.parametrize("method", METHODS)


def sample(rows: int = ROWS) -> TensorDict:
    """Return leaves, a nested node, one string and a column, all different in every row."""
    x = torch.arange(rows * 6.0).view(rows, 3, 2)
    words = NonTensorStack(*(f"row {at}" for at in range(rows)))
    return TensorDict({"x": x, "n": {"y": torch.arange(rows)}, "s": "text", "w": words}, [rows])


def write(td: Any, backend: str, folder: pathlib.Path, **options: Any) -> Any:
    return getattr(td, f"to_{backend}")(folder / f"data.{backend}", **options)


def reopen(backend: str, folder: pathlib.Path, **options: Any) -> Any:
    return getattr(TensorDict, f"from_{backend}")(folder / f"data.{backend}", **options)


def same(one: Any, other: Any) -> bool:
    return bool((one.select("x", "n") == other.select("x", "n")).all()) and one["w"] == other["w"]


def keep(batch: Any) -> Any:
    return batch


# ---- reading


@every_backend
def test_everything_comes_back(backend: str, tmp_path: pathlib.Path) -> None:
    td = sample()
    td.names = ["time"]
    write(td, backend, tmp_path).close()
    back = reopen(backend, tmp_path)
    assert type(back) is PersistentTensorDict
    assert list(back.keys()) == ["x", "n", "s", "w"]
    assert (back.batch_size, back.names) == ((ROWS,), ["time"])
    assert same(back, td)
    assert (back["s"], back[3]["s"], back[3]["w"], back[2:4]["w"]) == ("text", "text", "row 3", ["row 2", "row 3"])
    assert type(back.to_tensordict()) is TensorDict
    back.close()


INDICES: list[Any] = [
    3,
    -1,
    slice(2, 9, 3),
    slice(5, 2),
    [7, 0, 0, -2],
    [],
    torch.tensor([[4, 1], [-1, 4]]),
    torch.arange(ROWS) % 3 == 1,
    range(1, 7, 2),
    None,
    ...,
    True,
    False,
    (slice(None), 1),
    (slice(1, None), [2, 0]),
    ([1, 5], [2, 0]),
    (torch.arange(ROWS * 3).view(ROWS, 3) % 5 == 0,),
    (None, [3, 1], slice(0, 2)),
    (4, [1, 1]),
    ([0, 11], None, [1, 2]),
]


def flat(batch: tuple[int, ...]) -> TensorDict:
    n = torch.tensor(batch).prod().item()
    rows = torch.arange(n).view(batch)
    return TensorDict({"x": torch.stack([rows, -rows], -1).float(), "y": rows, "n": {"z": rows * 2}}, batch)


@every_backend
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_rows_are_those_of_torch(backend: str, index: Any, tmp_path: pathlib.Path) -> None:
    td = flat((ROWS, 3))
    stored = write(td, backend, tmp_path)
    got, want = stored[index], td[index]
    assert type(got) is Window
    assert got.batch_size == want.batch_size
    assert (got == want).all()
    value = want + 100
    stored[index] = value
    td[index] = value
    assert (stored == td).all()
    got.zero_()
    td[index] = want * 0
    assert (stored == td).all()
    stored.close()


items = st.one_of(
    st.integers(-2, 1),
    st.builds(slice, st.sampled_from([None, 0, 1]), st.sampled_from([None, 2, -1]), st.sampled_from([None, 1, 2])),
    st.lists(st.integers(-2, 1), max_size=3),
    st.none(),
)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    td = flat((5, 4, 3))
    return td, write(td, "h5", tmp_path_factory.mktemp("grid"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(items, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3))
def test_a_window_of_a_window_is_that_of_torch(grid: Any, steps: list[tuple[Any, ...]]) -> None:
    td, stored = grid
    for index in steps:
        try:
            td = td[index]
        except (IndexError, ValueError):
            with pytest.raises((IndexError, ValueError)):
                stored[index]
            return
        stored = stored[index]
    assert stored.batch_size == td.batch_size
    for key in ("x", "y", ("n", "z")):
        assert torch.equal(stored.get(key), td.get(key)), key


def test_windows_of_slices_and_rows_become_one_index() -> None:
    rows = torch.tensor([4, 0, 2])
    assert through((slice(10, 20), 3), (slice(None, None, 2),), (100, 5)) == (slice(10, 20, 2), 3)
    assert through((slice(10, 20),), (-1,), (100,)) == (19,)
    assert through((rows,), (1,), (100,)) == (0,)
    (picked,) = through((slice(10, 20, 2),), (rows,), (100,)) or ()
    assert picked.tolist() == [18, 10, 14]
    assert through((rows,), (slice(None), rows), (100, 5)) is None
    assert through((None,), (0,), (100,)) is None


@every_backend
def test_a_batch_reads_only_its_rows(backend: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = write(flat((1000,)), backend, tmp_path)
    seen: list[int] = []
    kind = type(stored._room.store)
    read = kind.read

    def counted(self: Any, array: Any, selection: Any) -> Any:
        found = read(self, array, selection)
        seen.append(found.shape[0])
        return found

    monkeypatch.setattr(kind, "read", counted)
    assert stored[[900, 3, 3, -1]]["y"].tolist() == [900, 3, 3, 999]
    assert stored[10:500][[7, 2]]["n", "z"].tolist() == [34, 24]
    assert stored.split(250)[3][-1]["y"] == 999
    assert repr(stored)
    assert max(seen) <= 6
    seen.clear()
    stored[100]["y"] = torch.tensor(5)
    stored[[5, 800]].set_("y", torch.tensor([1, 2]))
    assert seen == []
    assert stored.select("y")["y"][[100, 5, 800]].tolist() == [5, 1, 2]
    stored.close()


# ---- writing


@every_backend
def test_writes_go_through(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(sample(), backend, tmp_path)
    stored[1:3].set_("x", torch.ones(2, 3, 2))
    stored.set_at_(("n", "y"), torch.tensor([7, 8]), [0, -1])
    stored[4] = TensorDict({"x": torch.zeros(3, 2), "w": "new", "n": {"y": torch.tensor(9)}})
    stored[5:][1].update_({"x": torch.zeros(3, 2)})
    stored[2]["fresh"] = torch.ones(4)
    stored["deep", "leaf"] = torch.ones(ROWS)
    stored["n"]["column"] = [str(at) for at in range(ROWS)]
    stored["s"] = "other"
    stored.close()
    back = reopen(backend, tmp_path)
    assert back["x"][[1, 2, 4, 6]].sum() == 12
    assert back["n", "y"][[0, 4, 11]].tolist() == [7, 9, 8]
    assert back[3:6]["w"] == ["row 3", "new", "row 5"]
    assert back["fresh"][:, 0].tolist() == [0, 0, 1] + [0] * 9
    assert back["deep"].batch_size == (ROWS,)
    assert back[3]["n", "column"] == "3"
    assert back["s"] == "other"
    back.close()


@every_backend
def test_values_that_differ_by_row_make_a_column(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(sample(3), backend, tmp_path)
    stored[1].set("s", "other")
    assert stored["s"] == ["text", "other", "text"]
    stored[0]["w"] = NonTensorData({"any": [1, None]})
    stored[[2, 1]] = TensorDict({"w": NonTensorStack("b", 5)}, [2])
    assert stored["w"] == [{"any": [1, None]}, 5, "b"]
    stored.close()


@every_backend
def test_a_failed_write_changes_nothing(backend: str, tmp_path: pathlib.Path) -> None:
    td = sample()
    stored = write(td, backend, tmp_path)
    ragged = torch.nested.nested_tensor([torch.ones(at + 1) for at in range(ROWS)], layout=torch.jagged)
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (RuntimeError, "'x'", lambda: stored[0:2].update_({"n": {"y": torch.ones(2)}, "x": torch.ones(2, 5)})),
        (RuntimeError, "batch", lambda: stored.set("x", torch.zeros(5))),
        (KeyError, "'none'", lambda: stored.set_("none", torch.zeros(ROWS))),
        (KeyError, "'none'", lambda: stored["none"]),
        (IndexError, "12", lambda: stored[ROWS]),
        (IndexError, "99", lambda: stored.__setitem__([0, 99], td[:2])),
        (TypeError, "allow_pickle", lambda: stored.set("n", {"y": torch.zeros(ROWS), "o": object()})),
        (TypeError, "nested", lambda: stored.set("j", ragged)),
        (TypeError, "'w'", lambda: stored.__setitem__(0, TensorDict({"w": {"a": 1}}))),
        (RuntimeError, "delete", lambda: stored[:2].del_("x")),
    ]
    for kind, message, call in wrong:
        with pytest.raises(kind, match=message):
            call()
        assert same(stored, td), message
    assert list(stored.keys(True)) == list(td.keys(True))
    stored.close()


@every_backend
def test_locks_keep_keys_not_values(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(sample(), backend, tmp_path).lock_()
    for change in (lambda: stored.set("a", 1), lambda: stored["n"].del_("y"), lambda: stored[0].set("a", 1)):
        with pytest.raises(RuntimeError, match="locked"):
            change()
    stored[0].set_("x", torch.full((3, 2), 5.0))
    assert stored["x"][0, 0, 0] == 5
    stored.unlock_()["n"].del_("y")
    assert list(stored["n"].keys()) == []
    stored.close()


@every_backend
def test_what_is_opened_for_reading_cannot_be_written(backend: str, tmp_path: pathlib.Path) -> None:
    write(sample(), backend, tmp_path).close()
    stored = reopen(backend, tmp_path)
    for change in (
        lambda: stored.set("x", torch.ones(ROWS)),
        lambda: stored[0].set_("x", torch.ones(3, 2)),
        lambda: stored.zero_(),
        lambda: stored["n"].del_("y"),
        lambda: stored.__setitem__(0, sample(1)[0]),
    ):
        with pytest.raises(PermissionError, match=r"mode='r\+'"):
            change()
    assert same(stored, sample())
    stored.close()


@every_backend
def test_batch_size_and_names_are_kept_in_the_file(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(flat((4, 3)).select("x", "y"), backend, tmp_path)
    stored.batch_size = [4]
    stored.names = ["time"]
    stored.close()
    back = reopen(backend, tmp_path)
    assert (back.batch_size, back.names) == ((4,), ["time"])
    back.close()
    assert reopen(backend, tmp_path, auto_batch_size=True).batch_size == (4, 3)
    assert reopen(backend, tmp_path, auto_batch_size=True, batch_dims=1).batch_size == (4,)
    write(TensorDict({"x": torch.ones(4, 3), "none": {"none": {}}}, [4]), backend, tmp_path).close()
    assert reopen(backend, tmp_path, auto_batch_size=True)["none", "none"].batch_size == (4, 3)
    assert reopen(backend, tmp_path, batch_size=[4, 3]).batch_size == (4, 3)
    for batch in ([5], [4, 3, 2]):
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            reopen(backend, tmp_path, batch_size=batch)
        with pytest.raises(RuntimeError, match="batch dimension mismatch"):
            PersistentTensorDict(filename=tmp_path / f"data.{backend}", backend=backend, batch_size=batch)
    path = tmp_path / f"data.{backend}"
    PersistentTensorDict(filename=path, backend=backend, batch_size=[5], validate_batch_size=False)


# ---- opening


@every_backend
def test_files_in_the_layout_of_the_published_package_open(backend: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"data.{backend}"
    meta = {"__tensordict__": {"batch_size": [3], "version": 1}}
    if backend == "h5":
        with h5py.File(path, "w") as file:
            file["n/y"], file["x"] = torch.arange(3).numpy(), torch.arange(6.0).view(3, 2).numpy()
            file.create_dataset("s", data="hello").attrs["__tensordict_str__"] = True
            file.create_dataset("l", data=["a", "b", "c"]).attrs["__tensordict_stack__"] = [3]
    else:
        group = zarr.create_group(path, attributes=meta)
        group.create_group("n", attributes=meta)["y"] = torch.arange(3).numpy()
        group["x"] = torch.arange(6.0).view(3, 2).numpy()
        json = {"__tensordict_non_tensor__": {"encoding": "json"}}
        array = group.create_array("s", shape=(7,), dtype="uint8", attributes=json)
        array[:] = torch.tensor(list(b'"hello"')).numpy()
        column = group.create_array("l", shape=(3,), dtype="string", attributes={"__tensordict_stack__": [3]})
        for at in range(3):
            column[at] = "abc"[at]
    td = reopen(backend, tmp_path)
    assert (td.batch_size, td["n"].batch_size) == ((3,), (3,))
    assert td["n", "y"].tolist() == [0, 1, 2]
    assert td["x"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert (td["s"], td["l"], td[1]["l"]) == ("hello", ["a", "b", "c"], "b")
    td.close()


def test_files_that_others_wrote_open(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["x"] = torch.zeros(3, 2).numpy()
        file["big"] = torch.arange(3).numpy().astype(">i4")
        file["g/y"] = torch.ones(3).numpy()
        file["g/50%41"] = ["a", "b", "c"]
        file.create_group("empty")
    td = TensorDict.from_h5(tmp_path / "data.h5")
    assert td.batch_size == td["g"].batch_size == td["empty"].batch_size == (3,)
    assert td["big"].tolist() == [0, 1, 2]
    assert td[1]["g", "50%41"] == "b"
    td.close()
    with h5py.File(tmp_path / "data.h5", "a") as file:
        file["table"] = torch.zeros(3).numpy().view([("a", "f4")])
    with pytest.raises(TypeError, match="'table'"):
        TensorDict.from_h5(tmp_path / "data.h5")


@every_backend
def test_newer_formats_are_refused(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(flat((3,)), backend, tmp_path)
    stored._room.store.mark(stored._room.store.root(), "__tensordict__", {"version": 2, "batch_size": [3]})
    stored.close()
    with pytest.raises(RuntimeError, match="version 2"):
        reopen(backend, tmp_path)


def test_wrong_arguments_say_what_to_give(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.h5"
    for backend in BACKENDS:
        with pytest.raises(FileNotFoundError, match=r"data\.h5"):
            PersistentTensorDict(filename=path, backend=backend)
        assert not path.exists()
    with pytest.raises(RuntimeError, match="a filename or a group"):
        PersistentTensorDict(batch_size=[3])
    with pytest.raises(ValueError, match="mode must be one of"):
        PersistentTensorDict(filename=path, mode="q")
    with pytest.raises(ValueError, match="backend must be one of"):
        PersistentTensorDict(filename=path, backend="zip", mode="w")
    with pytest.raises(TypeError, match="bogus"):
        flat((3,)).to_h5(path, bogus=1)
    assert os.listdir(tmp_path) == []


def test_modes_are_those_of_the_libraries(tmp_path: pathlib.Path) -> None:
    for backend in BACKENDS:
        path = tmp_path / f"new.{backend}"
        for mode, keys in (("w-", []), ("a", ["x"]), ("r+", ["x"]), ("w", [])):
            td = PersistentTensorDict(filename=path, backend=backend, batch_size=[2], mode=mode)
            assert list(td.keys()) == keys, mode
            td["x"] = torch.ones(2)
            td.close()
        with pytest.raises((FileExistsError, zarr.errors.ContainsGroupError)):
            PersistentTensorDict(filename=path, backend=backend, mode="x")


def test_a_group_of_an_open_file_is_a_tensordict(tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file["g/x"] = torch.arange(3).numpy()
        td = PersistentTensorDict(group=file["g"], batch_size=[3])
        td["y"] = torch.ones(3)
        assert (td["x"].tolist(), list(file["g"])) == ([0, 1, 2], ["x", "y"])
    group = zarr.open_group(tmp_path / "data.zarr", mode="w")
    td = PersistentTensorDict(group=group, backend="zarr", batch_size=[3])
    td["y"] = torch.ones(3)
    assert list(group) == ["y"]


def test_a_missing_library_is_named(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, extra in (("h5py", "h5"), ("zarr", "zarr")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ImportError, match=rf"pip install 'tensordict\[{extra}\]'"):
            write(flat((3,)), extra, tmp_path)


@every_backend
def test_a_closed_file_says_so(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(flat((3,)), backend, tmp_path)
    row = stored[1]
    stored.close()
    stored.close()
    for read in (lambda: stored["x"], lambda: row["x"], lambda: stored.set("x", torch.zeros(3))):
        with pytest.raises(ValueError, match="was closed"):
            read()


@every_backend
def test_saving_replaces_as_a_whole(backend: str, tmp_path: pathlib.Path) -> None:
    write(flat((3,)), backend, tmp_path).close()
    with pytest.raises(TypeError, match="allow_pickle"):
        write(TensorDict({"y": torch.zeros(3), "o": object()}, [3]), backend, tmp_path)
    assert (reopen(backend, tmp_path) == flat((3,))).all()
    stored = write(TensorDict({"only": torch.zeros(2)}, [2]), backend, tmp_path)
    assert list(stored.keys()) == ["only"]
    doubled = write(stored + 2, backend, tmp_path)
    assert doubled["only"].tolist() == [2, 2]
    assert os.listdir(tmp_path) == [f"data.{backend}"]


def test_options_reach_every_leaf(tmp_path: pathlib.Path) -> None:
    td = TensorDict({"x": torch.zeros(64, 5), "n": {"y": torch.zeros(64)}, "s": torch.zeros(()), "w": "a"})
    stored = td.to_h5(tmp_path / "data.h5", chunks=(16,), compression="gzip", maxshape=(None,))
    assert stored.kwargs["compression"] == "gzip"
    with h5py.File(tmp_path / "data.h5") as file:
        assert (file["x"].chunks, file["x"].maxshape, file["x"].compression) == ((16, 5), (None, 5), "gzip")
        assert (file["n/y"].chunks, file["n/y"].compression) == ((16,), "gzip")
    stored["later"] = torch.zeros(64)
    assert stored._room.store.root()["later"].compression == "gzip"
    stored.close()
    td.to_zarr(tmp_path / "data.zarr", chunks=(16,), shards=(32,))
    group = zarr.open_group(tmp_path / "data.zarr", mode="r")
    assert (group["x"].chunks, group["x"].shards, group["n/y"].chunks) == ((16, 5), (32, 5), (16,))


# ---- kinds of values


@every_backend
def test_objects_come_back_and_pickles_are_asked_for(backend: str, tmp_path: pathlib.Path) -> None:
    values = ["", "é\n", "a\0b", "\ud800", '"', "[1]", 5, 1.5, None, True, [1, [2]], {"a": {"b": []}}]
    td = TensorDict({"one": {str(at): NonTensorData(value) for at, value in enumerate(values)}})
    td["many"] = NonTensorStack(*values)
    stored = write(td, backend, tmp_path)
    assert [stored["one", str(at)] for at in range(len(values))] == values
    assert stored["many"] == values
    stored.close()
    bad = TensorDict({"o": NonTensorStack(1 + 2j, "a")}, [2])
    options = {"filename": tmp_path / "pickled", "backend": backend}
    with pytest.raises(TypeError, match=r"\(1\+2j\)"):
        PersistentTensorDict.from_dict(bad, **options)
    PersistentTensorDict.from_dict(bad, allow_pickle=True, **options).close()
    closed = PersistentTensorDict(batch_size=[2], **options)
    with pytest.raises(RuntimeError, match="allow_pickle=True"):
        closed["o"]
    closed.close()
    opened = PersistentTensorDict(batch_size=[2], allow_pickle=True, mode="r+", **options)
    opened[1]["o"] = NonTensorData(3j)
    assert opened["o"] == [1 + 2j, 3j]
    opened.close()


def test_texts_are_written_as_they_are_where_they_can() -> None:
    assert encoding_of(["a", "é"], False) == "text"
    assert encoding_of(["a", "\0"], False) == encoding_of([1], False) == "json"
    assert encoding_of([object()], True) == "pickle"


@every_backend
def test_one_value_can_be_written_to_each_row(backend: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data"
    td = PersistentTensorDict(filename=path, backend=backend, batch_size=[2], mode="w", non_tensor_as_stack=True)
    td["s"] = "a"
    assert td["s"] == ["a", "a"]
    td.close()


class Frame(TensorClass):
    image: torch.Tensor
    label: str


@every_backend
def test_tensorclasses_and_lazy_stacks_come_back(backend: str, tmp_path: pathlib.Path) -> None:
    frame = Frame(image=torch.arange(6.0).view(3, 2), label="cat", batch_size=[3])
    stored = write(TensorDict({"frame": frame}, [3]), backend, tmp_path)
    assert type(stored["frame"]) is Frame
    assert (stored[1]["frame"].image.tolist(), stored["frame"][2].label) == ([2, 3], "cat")
    stored.close()
    stored = write(frame, backend, tmp_path)
    assert type(stored) is Frame
    assert stored.image[2].tolist() == [4, 5]
    assert not stored.is_memmap()
    stored._inner.close()
    ragged = lazy_stack([TensorDict({"p": torch.full((n,), n), "s": str(n)}) for n in (2, 1)])
    stored = write(ragged, backend, tmp_path)
    assert type(stored) is LazyStackedTensorDict
    assert [row["p"].tolist() for row in stored] == [[2, 2], [1]]
    alike = lazy_stack([TensorDict({"p": torch.full((2,), n), "s": str(n)}) for n in (2, 1)])
    stored = write(alike, backend, tmp_path)
    assert type(stored) is PersistentTensorDict
    assert (stored["p"].tolist(), stored["s"]) == ([[2, 2], [1, 1]], ["2", "1"])


def test_a_dict_becomes_a_file(tmp_path: pathlib.Path) -> None:
    td = PersistentTensorDict.from_dict({"a": torch.zeros(3, 2), "b": {"c": torch.ones(3)}}, tmp_path / "data.h5")
    assert (td.batch_size, td["b", "c"].tolist()) == ((3,), [1, 1, 1])
    td.close()
    td = PersistentTensorDict.from_dict(flat((3, 2)), tmp_path / "z", backend="zarr", batch_size=[3], chunks=(1,))
    assert (td.batch_size, td.kwargs) == ((3,), {"chunks": (1,)})


# ---- processes


@every_backend
def test_a_pickle_is_the_name_of_the_file(backend: str, tmp_path: pathlib.Path) -> None:
    write(sample(2000), backend, tmp_path).close()
    stored = reopen(backend, tmp_path)
    for node in (stored, stored[[3, 1]], stored["n"], stored[5:]["n"]):
        sent = pickle.dumps(node)
        assert len(sent) < 3000
        back = pickle.loads(sent)
        assert type(back) is type(node)
        assert back.batch_size == node.batch_size
        assert (back.exclude("s", "w") == node.exclude("s", "w")).all()
    stored.close()


@every_backend
@every_method
def test_workers_read_batches_into_memory(backend: str, method: str, tmp_path: pathlib.Path) -> None:
    write(sample(), backend, tmp_path, chunks=(2,)).close()
    stored = reopen(backend, tmp_path)
    assert stored["x"].shape  # the parent has read before it forks
    for options in ({}, {"shuffle": True}, {"persistent_workers": True}):
        loader = DataLoader(stored, batch_size=5, num_workers=2, multiprocessing_context=method, **options)
        for _ in range(2):
            batches = list(loader)
            assert [type(batch) for batch in batches] == [TensorDict] * 3
            rows = torch.cat(batches)
            order = rows["n", "y"]
            assert sorted(order.tolist()) == list(range(ROWS))
            assert same(rows, sample()[order])
        del loader
    stored.close()


def test_a_worker_batch_is_no_view_and_a_main_batch_is_one(tmp_path: pathlib.Path) -> None:
    stored = write(flat((8,)), "h5", tmp_path)
    loader = DataLoader(stored, batch_size=4, collate_fn=keep)
    first = next(iter(loader))
    assert type(first) is Window
    first.zero_()
    assert stored["y"].tolist() == [0, 0, 0, 0, 4, 5, 6, 7]
    # the file is open for writing here, and only forked workers can read it then
    for batch in DataLoader(stored, batch_size=4, num_workers=1, collate_fn=keep, multiprocessing_context="fork"):
        assert type(batch) is TensorDict
        batch.zero_()
    assert stored["y"].tolist() == [0, 0, 0, 0, 4, 5, 6, 7]
    stored.close()


@every_backend
@every_method
def test_rows_by_index_cross_as_windows(backend: str, method: str, tmp_path: pathlib.Path) -> None:
    write(flat((8,)), backend, tmp_path).close()
    stored = reopen(backend, tmp_path)
    sampler = BatchSampler(SequentialSampler(stored), batch_size=4, drop_last=True)
    loader = DataLoader(stored, sampler=sampler, batch_size=None, num_workers=1, multiprocessing_context=method)
    batches = list(loader)
    assert [type(batch) for batch in batches] == [Window, Window]
    assert [batch["y"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    stored.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_cannot_open_a_file_that_is_open_for_writing(method: str, tmp_path: pathlib.Path) -> None:
    stored = write(flat((8,)), "h5", tmp_path)
    loader = DataLoader(stored, batch_size=4, num_workers=1, multiprocessing_context=method)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(loader)
    stored.close()


def test_persistent_workers_keep_the_file_open(tmp_path: pathlib.Path) -> None:
    write(flat((8,)), "h5", tmp_path).close()
    stored = reopen("h5", tmp_path)
    loader = DataLoader(
        stored, batch_size=4, num_workers=1, persistent_workers=True, multiprocessing_context="forkserver"
    )
    assert len(list(loader)) == 2
    stored.close()
    with pytest.raises(BlockingIOError):
        reopen("h5", tmp_path, mode="r+")
    assert len(list(loader)) == 2
    del loader


def _in_child(call: Callable[[], Any], answer: Any) -> None:
    try:
        answer.send(call())
    except Exception as error:
        answer.send(error)


def forked(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or raises, in a forked process."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(call, theirs))
    child.start()
    found = ours.recv()
    child.join()
    return found


def test_a_forked_child_reads_what_was_written_before_and_writes_nothing(tmp_path: pathlib.Path) -> None:
    stored = write(flat((8,)), "h5", tmp_path, compression="gzip", chunks=(2,))
    row = stored[3]
    stored["y"] = torch.arange(8) * 3
    assert forked(lambda: (stored["y"].tolist(), int(row["y"]))) == ([at * 3 for at in range(8)], 9)
    assert isinstance(forked(lambda: stored.set_("y", torch.zeros(8))), PermissionError)
    assert isinstance(forked(lambda: stored.set("new", torch.zeros(8))), PermissionError)
    stored["y"] = torch.arange(8)
    stored.close()
    assert reopen("h5", tmp_path)["y"].tolist() == list(range(8))


def test_locking_of_files_can_be_turned_off(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data.h5"
    stored = write(flat((8,)), "h5", tmp_path)
    stored._room.store.flush()
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert isinstance(pool.apply(_opens, (str(path), None)), BlockingIOError)
        assert pool.apply(_opens, (str(path), False)) == list(range(8))
    stored.close()


def _opens(path: str, locking: Any) -> Any:
    PersistentTensorDict.LOCKING = locking
    try:
        return PersistentTensorDict(filename=path, batch_size=[8])["y"].tolist()
    except OSError as error:
        return error


def twice(chunk: Any) -> Any:
    return TensorDict({"z": chunk["y"] * 2}, chunk.batch_size)


@every_backend
@every_method
def test_map_reads_its_chunks_in_workers(backend: str, method: str, tmp_path: pathlib.Path) -> None:
    write(flat((8,)), backend, tmp_path).close()
    stored = reopen(backend, tmp_path)
    options = {"num_workers": 2, "chunksize": 3, "mp_start_method": method, "generator": torch.default_generator}
    assert stored.map(twice, **options)["z"].tolist() == list(range(0, 16, 2))
    stored.close()


def _grow(path: str, orders: Any, answers: Any) -> None:
    with h5py.File(path, "r+", libver="latest") as file:
        file.swmr_mode = True
        answers.put("ready")
        while (rows := orders.get()) is not None:
            for name in ("x", "n/y"):
                have = len(file[name])
                file[name].resize(have + rows, 0)
                file[name][have:] = range(have, have + rows)
                file[name].flush()
            answers.put("written")


@every_method
def test_a_file_that_grows_is_read(method: str, tmp_path: pathlib.Path) -> None:
    td = TensorDict({"x": torch.arange(4), "n": {"y": torch.arange(4)}}, [4])
    td.to_h5(tmp_path / "data.h5", maxshape=(None,), chunks=(2,), libver="latest").close()
    context = multiprocessing.get_context(method)
    orders, answers = context.Queue(), context.Queue()
    writer = context.Process(target=_grow, args=(str(tmp_path / "data.h5"), orders, answers))
    writer.start()
    assert answers.get(timeout=60) == "ready"
    reader = PersistentTensorDict(filename=tmp_path / "data.h5", batch_size=[4], swmr=True)
    for rows in (6, 9):
        before = len(reader)
        orders.put(rows - before)
        assert answers.get(timeout=60) == "written"
        assert reader["x"].tolist() == list(range(before))
        assert reader[-1]["n", "y"] == before - 1
        assert reader.memmap_refresh_().batch_size == (rows,)
        assert reader["n", "y"].tolist() == list(range(rows))
        assert forked(lambda: reader[-2:]["x"].tolist()) == [rows - 2, rows - 1]
    orders.put(None)
    writer.join()
    reader.close()


def _grow_on(path: str, ready: Any, steps: int) -> None:
    with h5py.File(path, "r+", libver="latest") as file:
        file.swmr_mode = True
        ready.set()
        for step in range(steps):
            for name in ("x", "n/y"):  # never at the same length at once
                have, rows = len(file[name]), 1 + step % 3
                file[name].resize(have + rows, 0)
                file[name][have:] = range(have, have + rows)
                file[name].flush()


@every_method
def test_a_reader_that_is_not_waited_for_sees_whole_rows_only(method: str, tmp_path: pathlib.Path) -> None:
    path, steps = str(tmp_path / "data.h5"), 150
    td = TensorDict({"x": torch.arange(4), "n": {"y": torch.arange(4)}}, [4])
    td.to_h5(path, maxshape=(None,), chunks=(16,), libver="latest").close()
    context = multiprocessing.get_context(method)
    ready = context.Event()
    writer = context.Process(target=_grow_on, args=(path, ready, steps))
    writer.start()
    assert ready.wait(60)
    reader: Any = PersistentTensorDict(filename=path, batch_size=[4], swmr=True)
    lengths = [4]
    while lengths[-1] < 4 + 2 * steps:
        ended = not writer.is_alive()
        lengths.append(len(reader.memmap_refresh_()))
        last = reader[-3:]
        assert reader["x"].tolist() == list(range(lengths[-1]))
        assert last["n", "y"].tolist() == last["x"].tolist() == list(range(lengths[-1] - 3, lengths[-1]))
        assert not ended or lengths[-1] == 4 + 2 * steps
    assert lengths == sorted(lengths)
    writer.join()
    assert writer.exitcode == 0
    reader.close()


# ---- other stores of zarr


def test_stores_of_zarr(tmp_path: pathlib.Path) -> None:
    td = sample()
    memory = zarr.storage.MemoryStore()
    targets = [memory, f"memory://{tmp_path.name}", tmp_path / "data.zip"]
    for target in targets:
        td.to_zarr(target, chunks=(5,)).close() if target is not memory else td.to_zarr(target)
        back = TensorDict.from_zarr(target)
        assert same(back, td)
        assert back[[7, 2]]["w"] == ["row 7", "row 2"]
    back = TensorDict.from_zarr(memory, mode="r+")
    back[0] = td[1]
    assert TensorDict.from_zarr(memory)[0]["w"] == "row 1"
    with pytest.raises(PermissionError, match="mode='r'"):
        TensorDict.from_zarr(tmp_path / "data.zip").zero_()
    shutil.move(tmp_path / "data.zip", tmp_path / "moved.zip")
    assert same(TensorDict.from_zarr(tmp_path / "moved.zip"), td)


WRONG: dict[str, list[Any]] = {
    "__tensordict__": [
        "text",
        [1],
        {"version": "1"},
        {"version": 1, "batch_size": [-1]},
        {"version": 1, "names": ["a"]},
        {"version": 1, "kind": "packed"},
        {"version": 1, "kind": "lazy"},
        {"version": 1, "kind": "unbatched"},
        {"version": 1, "kind": 3},
        {"version": 1, "keys": [[]]},
        {"version": 1, "class": 3},
        {"version": 1, "batch_size": [1 << 70]},
    ],
    "__tensordict_str__": [True],
    "__tensordict_dtype__": ["torch.nothing", [3], "float32", "torch.bfloat16", "torch.float8_e5m2"],
    "__tensordict_non_tensor__": ["json", {}, {"encoding": "code"}],
}


@every_backend
@pytest.mark.parametrize("name, value", [(name, value) for name, values in WRONG.items() for value in values])
def test_malformed_attributes_are_named(backend: str, name: str, value: Any, tmp_path: pathlib.Path) -> None:
    stored = write(flat((3,)), backend, tmp_path)
    root = stored._room.store.root()
    stored._room.store.mark(root if name == "__tensordict__" else root["y"], name, value)
    stored.close()
    with pytest.raises(ValueError, match=name):
        reopen(backend, tmp_path)


@every_backend
def test_attributes_that_are_gone_or_of_others_change_no_value(backend: str, tmp_path: pathlib.Path) -> None:
    td = TensorDict({"s": NonTensorStack({"a": 1}, {"b": 2}), "k" * 300: torch.ones(2), "n": {"y": torch.ones(2)}}, [2])
    path = tmp_path / f"data.{backend}"
    (td.to_h5 if backend == "h5" else td.to_zarr)(path).close()

    def change(call: Any) -> Any:
        if backend == "zarr":
            return call(zarr.open_group(path, mode="r+"))
        with h5py.File(path, "r+") as file:
            return call(file)

    change(lambda root: root["s"].attrs.__delitem__("__tensordict_stack__"))  # else it were the value of the first row
    with pytest.raises(ValueError, match=r"'s'.*'__tensordict_non_tensor__' is for one value"):
        reopen(backend, tmp_path)
    change(lambda root: root["s"].attrs.__setitem__("__tensordict_stack__", [2]))
    if backend == "h5":
        change(lambda root: root["n"].attrs.__setitem__("__tensordict__", '{"version": 1, "batch_size": [3]}'))
        with pytest.raises(RuntimeError, match="'y'"):
            reopen(backend, tmp_path)
        change(lambda root: root["n"].attrs.__delitem__("__tensordict__"))
        change(lambda root: root.attrs.create("units", h5py.Empty("f4")))
        change(lambda root: root.create_group("%FF"))
        stored = reopen(backend, tmp_path)
        assert set(stored.keys()) == {*td.keys(), "%FF"}
        stored.close()
    said: Any = {"version": 1, "kind": "dense"}
    change(lambda root: root["n"].attrs.__setitem__("__tensordict__", json.dumps(said) if backend == "h5" else said))
    stored = reopen(backend, tmp_path)
    assert stored["n", "y"].tolist() == [1, 1]
    assert type(stored["n"]) is PersistentTensorDict
    stored.close()
    name = next(name for name in change(list) if name.startswith("%-"))
    change(lambda root: root[name].attrs.__setitem__("__tensordict_key__", "another"))
    with pytest.raises(ValueError, match=r"'__tensordict_key__'.*'another'"):
        reopen(backend, tmp_path)


@every_backend
def test_values_in_a_store_are_not_moved_and_nothing_is_copied(backend: str, tmp_path: pathlib.Path) -> None:
    stored = write(sample(), backend, tmp_path)
    (tmp_path / "old").mkdir()
    for node in (stored, stored[2:], TensorDict({"inner": stored}, [ROWS])):
        with pytest.raises(RuntimeError, match="stay where they are"):
            node.memmap_(tmp_path / "new")
        with pytest.raises(RuntimeError, match="stay where they are"):
            node.share_memory_()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"data.{backend}", "old"]
    stored.close()


def test_a_folder_of_other_things_is_not_replaced(tmp_path: pathlib.Path) -> None:
    (tmp_path / "data.zarr").mkdir()
    (tmp_path / "data.zarr" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine\.txt"):
        sample().to_zarr(tmp_path / "data.zarr")
    with pytest.raises(IsADirectoryError, match="a folder is there"):
        sample().to_h5(tmp_path / "data.zarr")
    assert (tmp_path / "data.zarr" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("exchange", [True, False])
def test_a_store_that_is_replaced_holds_the_new_arrays_only(
    exchange: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchange:
        monkeypatch.setattr(disk, "exchange", lambda one, other: False)
    for td in (sample(), TensorDict({"z": torch.ones(2)}, [2])):
        for name in ("data.zarr", "data.zip"):
            td.to_zarr(tmp_path / name)
    for name in ("data.zarr", "data.zip"):
        assert list(TensorDict.from_zarr(tmp_path / name).keys()) == ["z"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.zarr", "data.zip"]


@every_backend
def test_a_failure_leaves_the_old_file_or_store(backend: str, tmp_path: pathlib.Path) -> None:
    write(sample(), backend, tmp_path).close()
    bad = TensorDict({"x": torch.ones(2), "o": {1, 2}}, [2])
    with pytest.raises(TypeError, match="JSON"):
        write(bad, backend, tmp_path)
    stored = reopen(backend, tmp_path)
    assert same(stored.to_tensordict(), sample())
    stored.close()
    assert os.listdir(tmp_path) == [f"data.{backend}"]


@every_backend
def test_flush_puts_what_was_written_on_the_disk(
    backend: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = write(sample(), backend, tmp_path)
    stored["x"] = stored["x"] + 1
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync", synced.append)
    assert stored.flush() is stored
    assert str(tmp_path / f"data.{backend}") in synced
    stored.close()


def test_constructors_that_are_given_no_file_name_make_a_tensordict_in_memory() -> None:
    values = {"x": torch.ones(3), "n": {"y": 1}}
    pair = collections.namedtuple("pair", "x y")(torch.ones(3), 2)
    for made in (
        PersistentTensorDict.from_any(values),
        PersistentTensorDict.from_any(values, batch_size=[]),
        PersistentTensorDict.from_pytree(values),
        PersistentTensorDict.from_tuple((torch.ones(3), 2)),
        PersistentTensorDict.from_namedtuple(pair),
    ):
        assert type(made) is TensorDict
        assert made.select(next(iter(made.keys()))).sum(reduce=True) == 3
    with pytest.raises(TypeError, match="filename"):
        PersistentTensorDict.from_dict(values)  # type: ignore[call-arg]
