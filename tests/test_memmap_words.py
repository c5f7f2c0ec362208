"""The words that put a tensordict in files and open it again: memmap, load_memmap, memmap_like, from_schema."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensordict
from tensordict import LazyStackedTensorDict, MemoryMappedTensor, TensorClass, TensorDict, lazy_stack


class Step(TensorClass):
    obs: torch.Tensor
    name: str = "none"


def table() -> TensorDict:
    return TensorDict({"x": torch.arange(6.0).view(3, 2), "n": {"y": torch.arange(3)}, "name": "run"}, [3])


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn]


@given(
    st.dictionaries(st.text(min_size=1, max_size=6), st.sampled_from(DTYPES), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=2),
)
def test_any_keys_dtypes_and_shapes_come_back(entries: dict[str, Any], batch: list[int]) -> None:
    td = TensorDict({key: (torch.rand(*batch, 2) * 3).to(dtype) for key, dtype in entries.items()}, batch)
    with tempfile.TemporaryDirectory() as folder:
        td.memmap(folder)
        back = TensorDict.load_memmap(folder)
        assert list(back.keys()) == list(td.keys())
        assert back.batch_size == td.batch_size
        for key, dtype in entries.items():
            assert back[key].dtype is dtype
            assert torch.equal(back[key].reshape(-1).view(torch.uint8), td[key].reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("mode", [None, "r", "r+"])
def test_every_mode_reads_what_was_written(mode: str | None, tmp_path: Path) -> None:
    td = table()
    assert td.memmap(tmp_path).is_locked
    assert not td.is_locked
    back = TensorDict.load_memmap(tmp_path, mode=mode)
    assert isinstance(back["x"], MemoryMappedTensor)
    assert back.is_memmap()
    assert back.saved_path == str(tmp_path)
    assert back["name"] == "run"
    assert (back.exclude("name") == td.exclude("name")).all()
    assert back.batch_size == (3,)


def test_memmap_in_place_moves_the_leaves_and_memmap_copies(tmp_path: Path) -> None:
    td = table()
    copy = td.memmap(tmp_path / "copy")
    copy["x"].zero_()
    assert td["x"].sum() == 15
    assert not td.is_memmap()
    assert td.memmap_(tmp_path / "moved") is td
    td["x"].zero_()
    assert TensorDict.load_memmap(tmp_path / "moved")["x"].sum() == 0
    assert td.memmap().is_memmap()
    with pytest.raises(AttributeError, match="path"):
        _ = td.memmap().saved_path


WRITES: dict[str, Callable[[Any], Any]] = {
    "set_": lambda td: td.set_("x", torch.zeros(3, 2)),
    "update_": lambda td: td.update_({"x": torch.zeros(3, 2)}),
    "nested update_": lambda td: td.update_(TensorDict({"n": {"y": torch.zeros(3, dtype=torch.int64)}}, [3])),
    "row": lambda td: td.__setitem__(0, TensorDict({"x": torch.zeros(2), "n": {"y": 7}})),
    "rows": lambda td: td.__setitem__(slice(1, 3), td[:2].clone()),
    "number": lambda td: td.__setitem__(0, 5),
    "mask": lambda td: td.__setitem__(torch.tensor([True, False, True]), 5),
    "fill_": lambda td: td.fill_("x", 4.0),
    "nested fill_": lambda td: td.fill_(("n", "y"), 4),
    "nested set_": lambda td: td.set_(("n", "y"), torch.zeros(3, dtype=torch.int64)),
    "zero_": lambda td: td.zero_(),
    "add_": lambda td: td.add_(1),
    "mul_": lambda td: td.mul_(2),
    "copy_": lambda td: td.copy_(td + 1),
    "masked_fill_": lambda td: td.masked_fill_(torch.tensor([True, False, True]), 0),
    "set_at_": lambda td: td.set_at_("x", torch.zeros(2), 1),
    "update_at_": lambda td: td.update_at_({"x": torch.zeros(2)}, 1),
    "view": lambda td: td[0].zero_(),
    "slice": lambda td: td[1:].add_(1),
    "nested": lambda td: td["n"].zero_(),
    "row of nested": lambda td: td["n"].__setitem__(0, 3),
    "unbind": lambda td: td.unbind(0)[1].zero_(),
    "iadd": lambda td: td.__iadd__(1),
    "set": lambda td: td.set("x", torch.zeros(3, 2), inplace=True),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_tensordict_opened_for_reading_refuses_to_write(write: str, tmp_path: Path) -> None:
    table().exclude("name").memmap(tmp_path)
    before = files(tmp_path)
    back = TensorDict.load_memmap(tmp_path, mode="r")
    with pytest.raises(PermissionError, match="mode='r'"):
        WRITES[write](back)
    assert (back["x"] == table()["x"]).all()
    assert files(tmp_path) == before


def test_leaves_opened_for_reading_refuse_to_write_too(tmp_path: Path) -> None:
    table().memmap(tmp_path)
    before = files(tmp_path)
    leaf = TensorDict.load_memmap(tmp_path, mode="r")["x"]
    for write in (lambda: leaf.add_(1), lambda: leaf.__setitem__(0, 1), lambda: leaf[1:].zero_()):
        with pytest.raises(RuntimeError, match="mode='r'"):
            write()
    assert files(tmp_path) == before


@pytest.mark.parametrize("write", WRITES)
def test_writes_go_through_to_the_files_otherwise(write: str, tmp_path: Path) -> None:
    table().exclude("name").memmap(tmp_path)
    before = files(tmp_path)
    WRITES[write](TensorDict.load_memmap(tmp_path))
    after = files(tmp_path)
    assert after != before
    assert after.keys() == before.keys()


def test_a_copy_of_what_was_opened_for_reading_can_be_changed(tmp_path: Path) -> None:
    table().memmap(tmp_path)
    back = TensorDict.load_memmap(tmp_path, mode="r")
    for copy in (back.clone(), back[[0, 1]], back + 1, back.to_tensordict(), torch.stack([back, back])):
        copy.fill_("x", 9.0)
        copy["new"] = copy["x"]
    assert back["x"].sum() == 15


@pytest.mark.parametrize("place", ["holding", "top", "class"])
def test_lazy_stacks_and_tensorclasses_refuse_to_write_too(place: str, tmp_path: Path) -> None:
    td: Any = lazy_stack([TensorDict({"x": torch.ones(n + 1)}) for n in range(3)])
    if place == "holding":
        td = TensorDict({"n": td}, [3])
    if place == "class":
        td = Step(obs=torch.ones(3), batch_size=[3])
    td.memmap(tmp_path)
    before = files(tmp_path)
    back = TensorDict.load_memmap(tmp_path, mode="r")
    for write in (lambda: back.zero_(), lambda: back[0].zero_(), lambda: back.add_(1), lambda: back.__setitem__(0, 0)):
        with pytest.raises(PermissionError):
            write()
    assert files(tmp_path) == before
    assert type(back) is type(td)


def test_bad_modes_and_missing_folders(tmp_path: Path) -> None:
    table().memmap(tmp_path / "there")
    with pytest.raises(ValueError, match="'w'"):
        TensorDict.load_memmap(tmp_path / "there", mode="w")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TensorDict.load_memmap(tmp_path / "nowhere")
    with pytest.raises(FileExistsError, match="existsok"):
        table().memmap(tmp_path / "there", existsok=False)


def leaf_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.memmap"))


def test_a_missing_or_short_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    table().memmap(tmp_path)
    for file in leaf_files(tmp_path):
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(ValueError, match=file.name):
            TensorDict.load_memmap(tmp_path)
        file.unlink()
        with pytest.raises(FileNotFoundError, match=file.name):
            TensorDict.load_memmap(tmp_path, mode="r")
        file.write_bytes(content)
    assert TensorDict.load_memmap(tmp_path)["x"].sum() == 15


def test_a_folder_used_again_holds_the_new_keys_only(tmp_path: Path) -> None:
    table().memmap(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    opened = TensorDict.load_memmap(tmp_path)
    TensorDict({"z": torch.ones(2)}, [2]).memmap(tmp_path)
    back = TensorDict.load_memmap(tmp_path)
    assert set(back.keys()) == {"z"}
    assert back.batch_size == (2,)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert opened["x"].sum() == 15


def test_a_tensordict_can_be_saved_over_itself(tmp_path: Path) -> None:
    td = table().memmap_(tmp_path)
    (td + 0).memmap(tmp_path)
    TensorDict.load_memmap(tmp_path).memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["x"].sum() == 15


def test_memmap_like_preallocates_zeros_and_copies_objects(tmp_path: Path) -> None:
    sample = TensorDict({"image": torch.ones(3, 8, 8, dtype=torch.uint8), "name": "run"})
    like = sample.expand(1000).memmap_like(tmp_path)
    assert like["image"].shape == (1000, 3, 8, 8)
    assert int(like["image"].sum()) == 0
    assert like["name"] == "run"
    assert like.is_locked
    assert int(sample["image"].sum()) == 192
    like[3] = sample
    assert int(TensorDict.load_memmap(tmp_path)["image"].sum()) == 192


def test_strided_expanded_and_grad_leaves_are_saved_by_value(tmp_path: Path) -> None:
    td = TensorDict(
        {"t": torch.arange(6.0).view(2, 3).t(), "e": torch.ones(1).expand(3), "g": torch.ones(3, requires_grad=True)},
        [3],
    )
    back = td.memmap(tmp_path)
    for key in ("t", "e", "g"):
        assert torch.equal(back[key], td[key].detach())
    assert TensorDict.load_memmap(tmp_path)["t"].is_contiguous()


def test_classes_lazy_stacks_and_names_come_back(tmp_path: Path) -> None:
    Step(obs=torch.arange(3), name="a", batch_size=[3]).memmap(tmp_path / "class")
    for opener in (Step, TensorDict):
        back = opener.load_memmap(tmp_path / "class")
        assert type(back) is Step
        assert back.obs.tolist() == [0, 1, 2]
        assert back.name == "a"
        assert back.is_memmap()
    ragged = lazy_stack([TensorDict({"x": torch.ones(n, 2)}) for n in (1, 0, 3)])
    ragged.memmap(tmp_path / "ragged")
    back = TensorDict.load_memmap(tmp_path / "ragged")
    assert isinstance(back, LazyStackedTensorDict)
    assert [row["x"].shape for row in back] == [(1, 2), (0, 2), (3, 2)]
    TensorDict({"x": torch.ones(2, 3)}, [2, 3], names=["a", "b"]).memmap(tmp_path / "names")
    assert TensorDict.load_memmap(tmp_path / "names").names == ["a", "b"]


def test_objects_that_json_cannot_hold_need_permission_to_load(tmp_path: Path) -> None:
    TensorDict({"x": torch.ones(2), "o": {1, 2}}, [2]).memmap(tmp_path)
    with pytest.raises(RuntimeError, match="allow_pickle"):
        TensorDict.load_memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path, allow_pickle=True)["o"] == {1, 2}


SCHEMA = {"image": ([3, 2], torch.uint8), "n": {"y": ([], torch.float64)}, ("n", "z", "w"): ((2,), torch.bool)}


@pytest.mark.parametrize("storage", [None, "shared", "memmap"])
def test_a_schema_preallocates_zeros(storage: str | None, tmp_path: Path) -> None:
    for prefix in [None, tmp_path] if storage == "memmap" else [None]:
        td = TensorDict.from_schema(SCHEMA, batch_size=[5], storage=storage, prefix=prefix)
        assert td.batch_size == td["n"].batch_size == (5,)
        assert td["image"].shape == (5, 3, 2)
        assert td["image"].dtype is torch.uint8
        assert td["n", "y"].shape == (5,)
        assert td["n", "y"].dtype is torch.float64
        assert td["n", "z", "w"].dtype is torch.bool
        assert td.sum(reduce=True) == 0
        assert td.is_memmap() is (storage == "memmap")
        assert td.is_shared() is (storage == "shared")
        assert td.is_locked is (storage is not None)
        td[2] = TensorDict(
            {"image": torch.ones(3, 2, dtype=torch.uint8), "n": {"y": 1.0, "z": {"w": torch.ones(2) > 0}}}
        )
        assert td["image"].sum() == 6
    if storage == "memmap":
        assert TensorDict.load_memmap(tmp_path)["image"].sum() == 6
    assert TensorDict.from_schema({"a": ([2], torch.int8)}, storage=storage).batch_size == ()
    assert TensorDict.from_schema({"a": ([2], torch.int8)}, batch_size=3, storage=storage)["a"].shape == (3, 2)


@pytest.mark.parametrize(
    "schema, options, words",
    [
        (SCHEMA, {"storage": "disk"}, "disk"),
        (SCHEMA, {"prefix": "here"}, "prefix"),
        ({"a": torch.float32}, {}, "'a'"),
        ({"a": ([2], "float")}, {}, "'a'"),
        ({"a": ([2],)}, {}, "'a'"),
        ({"a": (["x"], torch.float32)}, {}, "'a'"),
        ({"n": {"a": ([-1], torch.float32)}}, {}, "'a'"),
        (SCHEMA, {"storage": "memmap", "device": "meta"}, "meta"),
    ],
)
def test_a_bad_schema_is_an_error_and_leaves_nothing(schema: Any, options: Any, words: str, tmp_path: Path) -> None:
    options = {name: tmp_path / value if name == "prefix" else value for name, value in options.items()}
    with pytest.raises(ValueError, match=words):
        TensorDict.from_schema(schema, batch_size=[2], **options)
    assert not list(tmp_path.iterdir())


def test_a_schema_of_a_tensorclass_gives_the_class(tmp_path: Path) -> None:
    data = Step.from_schema({"obs": ([2], torch.float32)}, batch_size=[4], storage="memmap", prefix=tmp_path)
    assert type(data) is Step
    assert data.obs.shape == (4, 2)
    assert type(Step.load_memmap(tmp_path)) is Step


def test_loading_to_a_device_copies(tmp_path: Path) -> None:
    table().memmap(tmp_path)
    back = TensorDict.load_memmap(tmp_path, device="cpu", mode="r")
    assert back["x"].sum() == 15
    meta = TensorDict.load_memmap(tmp_path, device="meta")
    assert meta["x"].device.type == "meta"


def test_paths_may_be_relative_and_strings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    td = table().memmap("here")
    os.chdir("/")
    assert td.saved_path == str(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert TensorDict.load_memmap("here")["x"].sum() == 15
    assert np.asarray(TensorDict.load_memmap("here")["x"]).sum() == 15


EARLY: dict[str, Callable[[TensorDict, Path], Any]] = {
    "memmap": lambda td, path: td.memmap(path, num_threads=2, return_early=True),
    "memmap_": lambda td, path: td.memmap_(path, num_threads=2, return_early=True, share_non_tensor=True, atomic=True),
    "save": lambda td, path: td.save(path, num_threads=2, return_early=True),
    "memmap_like": lambda td, path: td.memmap_like(path, num_threads=2, return_early=True),
    "archive": lambda td, path: td.memmap(path, num_threads=2, return_early=True, archive=True),
    "consolidate": lambda td, path: td.consolidate(path, num_threads=2, return_early=True),
}


@pytest.mark.parametrize("word", EARLY)
def test_return_early_gives_a_future_before_anything_is_saved(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    td, go, place = table(), threading.Event(), TensorDict._place
    monkeypatch.setattr(TensorDict, "_place", lambda *args: go.wait() and place(*args))
    future = EARLY[word](td, tmp_path / "data")
    assert isinstance(future, Future)
    assert not future.done()
    assert not (tmp_path / "data").exists()
    go.set()
    made = future.result()
    assert made.is_locked
    assert (made is td) == (word == "memmap_")
    values = table().zero_() if word == "memmap_like" else table()
    opened = TensorDict.from_consolidated if word == "consolidate" else TensorDict.load_memmap
    for found in (made, opened(tmp_path / "data")):
        assert (found.exclude("name") == values.exclude("name")).all()
        assert found["name"] == "run"


def test_what_goes_wrong_in_a_future_is_raised_by_its_result(tmp_path: Path) -> None:
    future: Any = TensorDict({"x": torch.zeros(2, device="meta")}, [2]).save(tmp_path, num_threads=1, return_early=True)
    with pytest.raises(RuntimeError, match="meta"):
        future.result()
    assert not list(tmp_path.iterdir())
    assert table().save(tmp_path, return_early=True).is_memmap()  # without threads the result is returned


@pytest.mark.parametrize("options", [{"layout": "rows"}, {"archive": True}, {"archive": False}])
def test_memmap_like_goes_wherever_memmap_does(options: Any, tmp_path: Path) -> None:
    sample = TensorDict({"x": torch.ones(2, dtype=torch.uint8), "n": {"y": torch.ones(3)}, "name": "run"})
    made = sample.expand(50).memmap_like(tmp_path / "data", **options)
    for found in (made, TensorDict.load_memmap(tmp_path / "data", verify=options.get("archive", False))):
        assert found.batch_size == (50,)
        assert found["x"].dtype is torch.uint8
        assert not found["x"].any()
        assert found["n", "y"].shape == (50, 3)
        assert not found["n", "y"].any()
        assert found["name"] == "run"
    made["x"].fill_(7)
    assert TensorDict.load_memmap(tmp_path / "data")["x"].sum() == 700
    assert (tmp_path / "data").is_file() == options.get("archive", False)
    assert (made["x"].stride() != (2, 1)) == ("layout" in options)


def test_a_schema_takes_the_options_of_memmap_like(tmp_path: Path) -> None:
    schema = {"x": ([2], torch.int16)}
    options: Any = {"batch_size": [3], "storage": "memmap", "prefix": tmp_path / "data.tdz"}
    assert TensorDict.from_schema(schema, **options, num_threads=1)["x"].shape == (3, 2)
    assert tensordict.is_memmap_archive(tmp_path / "data.tdz")
    with pytest.raises(FileExistsError, match=r"data\.tdz"):
        TensorDict.from_schema(schema, **options, existsok=False)
    with pytest.raises(TypeError, match="nonsense"):
        TensorDict.from_schema(schema, **options, nonsense=1)
    with pytest.raises(ValueError, match="existsok"):
        TensorDict.from_schema(schema, existsok=False)


def test_save_and_memmap_are_functions_too(tmp_path: Path) -> None:
    from tensordict.memmap import MemoryMappedTensor as Mapped

    assert isinstance(tensordict.memmap(table(), tmp_path / "data")["x"], Mapped)
    stack = lazy_stack([table(), table()])
    assert isinstance(tensordict.save(stack, tmp_path / "stack", num_threads=2), LazyStackedTensorDict)
    assert (tensordict.load(tmp_path / "stack").exclude("name") == stack.exclude("name")).all()


def _train(td: TensorDict) -> None:
    with torch.no_grad():
        td["weight"].add_(1)
        td["more", "bias"].fill_(7)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_parameters_that_are_shared_stay_those_of_their_module(start: str) -> None:
    module = torch.nn.Linear(2, 2)
    before = module.weight.detach().clone()
    td = TensorDict({"weight": module.weight, "more": {"bias": module.bias}, "x": torch.zeros(2)}).share_memory_()
    assert td["weight"] is module.weight and td.is_shared() and not td["x"].requires_grad
    process = torch.multiprocessing.get_context(start).Process(target=_train, args=(td,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert torch.equal(module.weight.detach(), before + 1) and module.bias.tolist() == [7, 7]
    module(torch.ones(1, 2)).sum().backward()
    assert td["weight"].grad is not None and td["weight"].grad.tolist() == [[1, 1], [1, 1]]
    assert td.share_memory_()["weight"] is module.weight


def test_a_parameter_that_is_shared_already_is_not_taken_from_where_others_see_it() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    first = TensorDict({"weight": weight}).share_memory_()
    where = weight.data_ptr()
    TensorDict({"weight": weight}).share_memory_()
    assert first["weight"] is weight and weight.data_ptr() == where


def test_nothing_without_memory_is_consolidated() -> None:
    empty = torch.empty(2, device="meta")
    assert not TensorDict({"a": empty}, [2]).is_consolidated()
    assert not TensorDict({"a": torch.ones(2), "n": {"b": empty}}, [2]).is_consolidated()
