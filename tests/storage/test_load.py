"""The words that open a saved folder: a part of it, into a tensordict that is there, and what was saved by others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tensordict
from tensordict import LazyStackedTensorDict, NonTensorStack, TensorClass, TensorDict, lazy_stack


class Shot(TensorClass):
    image: torch.Tensor
    about: Any = None


def content() -> TensorDict:
    about = TensorDict({"score": torch.arange(3), "deep": {"z": torch.ones(3, 2)}}, [3])
    values = {
        "x": torch.arange(3.0),
        "n": {"y": torch.arange(6).view(3, 2), "a/b": {"w": torch.ones(3)}},
        "shot": Shot(image=torch.ones(3, 2), about=about, batch_size=[3]),
        "lazy": lazy_stack([TensorDict({"p": torch.full((n,), float(n))}) for n in (1, 2, 3)]),
        "names": NonTensorStack("a", "b", "c"),
    }
    return TensorDict(values, [3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "data"
    content().memmap(path)
    return path


@pytest.mark.parametrize(
    "key, leaf, want",
    [
        ("n", "y", [[0, 1], [2, 3], [4, 5]]),
        (("n", "a/b"), "w", [1.0, 1.0, 1.0]),
        (("shot", "about"), "score", [0, 1, 2]),
        (("shot", "about", "deep"), "z", [[1.0, 1.0]] * 3),
        (("lazy", "1"), "p", [2.0, 2.0]),
    ],
)
def test_a_part_is_opened_alone(key: Any, leaf: str, want: Any, folder: Path) -> None:
    for opener in (TensorDict.load_memmap, TensorDict.load, tensordict.load, tensordict.load_memmap):
        part = opener(folder, subpath=key, mode="r")
        assert part[leaf].tolist() == want
        assert part.is_memmap()
        assert part.saved_path.startswith(str(folder))
        with pytest.raises(PermissionError):
            part.zero_()


def test_a_part_keeps_its_kind(folder: Path) -> None:
    assert type(TensorDict.load_memmap(folder, subpath="shot")) is Shot
    assert type(TensorDict.load_memmap(folder, subpath="lazy")) is LazyStackedTensorDict
    assert TensorDict.load_memmap(folder, subpath="names").tolist() == ["a", "b", "c"]
    assert type(TensorDict.load_memmap(folder, subpath="n")) is TensorDict


@pytest.mark.parametrize(
    "key", ["q", "x", ("n", "y"), ("n", "q"), ("n", "a/b", "w"), "../data", "n/y", ("shot", "image")]
)
def test_a_part_that_is_not_there_is_named(key: Any, folder: Path) -> None:
    with pytest.raises(KeyError, match="no nested tensordict at key"):
        TensorDict.load_memmap(folder, subpath=key)


def test_only_the_files_of_the_part_matter(tmp_path: Path) -> None:
    content().memmap(tmp_path)
    os.unlink(tmp_path / "x.memmap")
    with pytest.raises(FileNotFoundError):
        TensorDict.load_memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path, subpath="n")["y"].sum() == 15


@pytest.mark.parametrize("word", ["load_memmap_", "out"])
def test_a_tensordict_takes_what_was_saved(word: str, folder: Path) -> None:
    old = TensorDict({"z": torch.ones(3), "x": torch.zeros(3), "n": {"y": torch.zeros(3, 2), "v": torch.ones(3)}}, [3])
    x, nested = old["x"], old["n"]
    if word == "out":
        assert TensorDict.load_memmap(folder, out=old, mode="r") is old
    else:
        assert old.load_memmap_(folder, mode="r") is old
    fresh = TensorDict.load_memmap(folder, mode="r")
    assert set(old.keys(True, True)) == set(fresh.keys(True, True))
    assert old["x"].tolist() == [0, 1, 2]
    assert old["n"] is nested
    assert nested["y"].tolist() == content()["n", "y"].tolist()
    assert x.tolist() == [0, 0, 0]
    assert old.is_memmap() and nested.is_memmap()
    assert old.saved_path == str(folder)
    assert type(old["shot"]) is Shot
    with pytest.raises(PermissionError):
        nested.zero_()


def test_what_is_taken_can_be_written_through(tmp_path: Path) -> None:
    content().select("x", "n").memmap(tmp_path)
    td = TensorDict({}, [3]).load_memmap_(tmp_path)
    td["n", "y"].fill_(7)
    td.add_(1)
    assert TensorDict.load_memmap(tmp_path)["n", "y"].unique().tolist() == [8]


def test_classes_and_stacks_take_their_like(tmp_path: Path) -> None:
    Shot(image=torch.ones(3), batch_size=[3]).memmap(tmp_path / "shot")
    shot = Shot(image=torch.zeros(3), batch_size=[3])
    assert shot.load_memmap_(tmp_path / "shot") is shot
    assert shot.image.tolist() == [1, 1, 1]
    assert shot.is_memmap()
    ragged = lazy_stack([TensorDict({"x": torch.ones(n)}) for n in (1, 2)])
    ragged.memmap(tmp_path / "lazy")
    other = lazy_stack([TensorDict({"x": torch.zeros(5)}) for _ in range(2)])
    assert other.load_memmap_(tmp_path / "lazy") is other
    assert [row["x"].tolist() for row in other.unbind(0)] == [[1], [1, 1]]
    assert other.is_memmap()


def test_what_does_not_fit_changes_nothing(folder: Path, tmp_path: Path) -> None:
    lazy_stack([TensorDict({"x": torch.ones(n)}) for n in (1, 2, 3)]).memmap(tmp_path)
    td = TensorDict({"x": torch.zeros(3)}, [3])
    with pytest.raises(TypeError, match="LazyStackedTensorDict"):
        td.load_memmap_(tmp_path)
    with pytest.raises(FileNotFoundError):
        td.load_memmap_(tmp_path / "nowhere")
    small = TensorDict({"x": torch.zeros(2)}, [2])
    with pytest.raises(RuntimeError, match=r"\[3\].*\[2\]"):
        small.load_memmap_(folder)
    locked = TensorDict({"x": torch.zeros(3)}, [3]).lock_()
    with pytest.raises(RuntimeError, match="locked"):
        TensorDict.load_memmap(folder, out=locked)
    for one in (td, small, locked):
        assert list(one.keys()) == ["x"]
        assert one["x"].sum() == 0
        assert not one.is_memmap()


def test_out_takes_copies_on_a_device(folder: Path) -> None:
    out = TensorDict({}, [3])
    assert TensorDict.load_memmap(folder, device="meta", out=out) is out
    assert out["x"].device.type == "meta"


@pytest.mark.skipif(not hasattr(__import__("resource"), "RLIMIT_NOFILE"), reason="needs limits of open files")
def test_two_thousand_leaves_under_a_limit_of_256_open_files(tmp_path: Path) -> None:
    script = """
import resource, sys, torch
from tensordict import TensorDict
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
td = TensorDict({f"leaf{n}": torch.full((2,), n) for n in range(2000)}, [2])
assert td.clone().memmap_()["leaf1999"].tolist() == [1999, 1999]
td.memmap(sys.argv[1])
for mode in ("r", "r+"):
    back = TensorDict.load_memmap(sys.argv[1], mode=mode, verify=True)
    assert back["leaf7"].tolist() == [7, 7]
    assert len(back.keys()) == 2000
"""
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
