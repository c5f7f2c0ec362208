"""The program `tensordict`: what it prints, what it finds, what it converts, and how it ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import NonTensorStack, PersistentTensorDict, TensorDict, lazy_stack
from tensordict.roof.cli import main
from tensordict.roof.homes import HOMES as HOME
from tensordict.storage.arrays import Terms

HOMES = ["folder", "consolidated", "h5", "zarr"]


def content() -> TensorDict:
    values = {
        "x": torch.arange(6.0).view(3, 2),
        "n": {"y": torch.arange(3), "half": torch.ones(3, dtype=torch.bfloat16)},
        "name": "run",
        "texts": NonTensorStack("a", "b", "c"),
    }
    return TensorDict(values, [3])


def save(td: Any, home: str, path: Path) -> None:
    if home == "folder":
        td.memmap(path)
    elif home == "consolidated":
        td.consolidate(path)
    else:
        PersistentTensorDict.from_dict(td, path, backend=home).close()


def load(home: str, path: Path) -> Any:
    if home == "folder":
        return TensorDict.load_memmap(path, mode="r", verify=True)
    if home == "consolidated":
        return TensorDict.from_consolidated(path, mode="r")
    return TensorDict.from_h5(path) if home == "h5" else TensorDict.from_zarr(path)


def run(*words: Any) -> int:
    return main([str(word) for word in words])


@pytest.mark.parametrize("home", HOMES)
def test_info_prints_what_is_there(home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(content(), home, tmp_path / "data")
    assert run("info", tmp_path / "data") == 0
    text = capsys.readouterr().out
    head = text.splitlines()[0]
    assert head.startswith(f"{home}, version 1, dense, batch size [3], one ")
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()[2:-1]}
    assert rows["'x'"][1:] == ["float32", "[3,", "2]", "24"]
    assert rows["('n', 'y')"][2:] == ["int64", "[3]", "24"]
    assert rows["('n', 'half')"][2:] == ["bfloat16", "[3]", "6"]
    assert {"'name'", "'texts'"} <= rows.keys()
    assert text.splitlines()[-1] == "5 values, 54 bytes"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.parametrize("home", ["folder", "consolidated"])
def test_info_knows_every_kind_of_value(home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [torch.ones(2, 3), torch.ones(1, 3)]
    values = {
        "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        "lazy": lazy_stack([TensorDict({"p": torch.ones(n)}) for n in (1, 2)]),
        "set": {1, 2},
        "long": NonTensorStack("a", "b"),
    }
    save(TensorDict(values, [2]), home, tmp_path / "data")
    assert run("info", tmp_path / "data") == 0
    text = capsys.readouterr().out
    assert re.search(r"'jagged' +float32 +\[2, \*, \*\]", text)
    assert re.search(r"\('lazy', '1', 'p'\) +float32 +\[2\] +8", text)
    assert re.search(r"'set' +pickle", text)


def test_info_of_long_columns_and_empty_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TensorDict({"s": [f"row {n}" for n in range(2000)]}, [2000]).memmap(tmp_path / "strings")
    TensorDict({}).memmap(tmp_path / "none")
    assert run("info", tmp_path / "strings") == 0
    assert re.search(r"version 2.*\n.*\n's' +strings +\[2000\] +[1-9]", capsys.readouterr().out)
    assert run("info", tmp_path / "none") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 values, 0 bytes"


@pytest.mark.parametrize("home", HOMES)
def test_what_is_whole_verifies(home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(content(), home, tmp_path / "data")
    assert run("verify", tmp_path / "data") == 0
    assert "whole" in capsys.readouterr().out
    assert run("verify", tmp_path / "data", "--quiet") == 0
    assert capsys.readouterr().out == ""


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_each_damaged_file_of_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content().memmap(tmp_path)
    flip(tmp_path / "x.memmap")
    (tmp_path / "n" / "half.memmap").unlink()
    (tmp_path / "n" / "q.memmap").write_bytes(b"1")
    assert run("verify", tmp_path) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    for key, file in (("'x'", "x.memmap"), ("('n', 'half')", "half.memmap"), ("('n', 'q')", "q.memmap")):
        assert any(key in line and file in line for line in lines)
    assert lines[-1].endswith("3 of its files or values")


def test_what_has_no_checksums_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content().memmap(tmp_path)
    (tmp_path / "checksums.json").unlink()
    assert run("verify", tmp_path) == 0
    assert "7 have none" in capsys.readouterr().out


def test_a_damaged_consolidated_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    td = TensorDict({"x": torch.arange(3), "n": {"y": torch.ones(64)}})
    td.consolidate(tmp_path / "data")
    where = (tmp_path / "data").read_bytes().rindex(torch.ones(2).numpy().tobytes())
    flip(tmp_path / "data", where)
    assert run("verify", tmp_path / "data") == 1
    assert "('n', 'y')" in capsys.readouterr().err
    flip(tmp_path / "data", 60)
    assert run("verify", tmp_path / "data") == 1
    assert "description" in capsys.readouterr().err


def test_a_damaged_array_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    td = TensorDict({"x": torch.rand(500, 4), "n": {"y": torch.rand(500, 4)}}, [500])
    td.to_h5(tmp_path / "data.h5", fletcher32=True, chunks=(100,)).close()
    data = (tmp_path / "data.h5").read_bytes()
    flip(tmp_path / "data.h5", data.index(td["n", "y"][250:256].numpy().tobytes()))
    assert run("verify", tmp_path / "data.h5") == 1
    assert "('n', 'y')" in capsys.readouterr().err
    td.to_zarr(tmp_path / "data.zarr", chunks=(100,))
    chunk = tmp_path / "data.zarr" / "n" / "y" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    assert run("verify", tmp_path / "data.zarr") == 1
    assert "('n', 'y')" in capsys.readouterr().err


@pytest.mark.parametrize("target", HOMES)
@pytest.mark.parametrize("source", HOMES)
def test_every_home_becomes_every_other(
    source: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(content(), source, tmp_path / "source")
    assert run("convert", tmp_path / "source", tmp_path / "target", "--to", target) == 0
    assert f"({target})" in capsys.readouterr().out
    back, td = load(target, tmp_path / "target"), content()
    assert set(back.keys(True, True)) == set(td.keys(True, True))
    assert back.batch_size == td.batch_size
    for key in ("x", ("n", "y"), ("n", "half")):
        assert back[key].dtype is td[key].dtype
        assert torch.equal(back[key], td[key])
    assert back["name"] == "run"
    assert back["texts"] == ["a", "b", "c"]
    if target in ("h5", "zarr"):
        back.close()


@pytest.mark.parametrize(
    "name, home", [("a.h5", "h5"), ("a.HDF5", "h5"), ("a.zarr", "zarr"), ("a.memmap", "consolidated"), ("a", "folder")]
)
def test_the_suffix_tells_the_home(name: str, home: str, tmp_path: Path) -> None:
    content().memmap(tmp_path / "source")
    assert run("convert", tmp_path / "source", tmp_path / name, "--quiet") == 0
    back = load(home, tmp_path / name)
    assert back["x"].sum() == 15
    if home in ("h5", "zarr"):
        back.close()


def test_an_archive_and_packed_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    td = TensorDict({"x": torch.arange(6.0), "n": {"y": torch.zeros(6, 2)}, "word": list("abcdef")}, [6])
    td.memmap(tmp_path / "rows", layout="rows")
    assert run("convert", tmp_path / "rows", tmp_path / "a.tdz") == 0
    capsys.readouterr()
    for path, layout in (("rows", "the leaves of a row side by side"), ("a.tdz", "a zip file of a folder")):
        assert run("info", tmp_path / path) == 0
        said = capsys.readouterr().out
        assert layout in said
        assert "('n', 'y')" in said
        assert run("verify", tmp_path / path) == 0
    assert run("convert", tmp_path / "a.tdz", tmp_path / "b.consolidated") == 0
    content = bytearray((tmp_path / "a.tdz").read_bytes())
    content[content.index(td["x"].numpy().tobytes())] ^= 1
    (tmp_path / "a.tdz").write_bytes(content)
    capsys.readouterr()
    assert run("verify", tmp_path / "a.tdz") == 1
    assert "x.memmap" in capsys.readouterr().err


def test_a_zarr_store_in_a_zip_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content().memmap(tmp_path / "source")
    assert run("convert", tmp_path / "source", tmp_path / "a.zarr.zip") == 0
    assert run("info", tmp_path / "a.zarr.zip") == 0
    assert "zarr, version 1" in capsys.readouterr().out
    assert run("verify", tmp_path / "a.zarr.zip") == 0


def test_nothing_is_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content().memmap(tmp_path / "a")
    TensorDict({"z": torch.ones(1)}).memmap(tmp_path / "b")
    assert run("convert", tmp_path / "a", tmp_path / "b") == 1
    assert "--force" in capsys.readouterr().err
    assert TensorDict.load_memmap(tmp_path / "b")["z"].sum() == 1
    assert run("convert", tmp_path / "a", tmp_path / "b", "--force") == 0
    assert TensorDict.load_memmap(tmp_path / "b")["x"].sum() == 15
    assert run("convert", tmp_path / "a", tmp_path / "a", "--force") == 1
    assert "onto itself" in capsys.readouterr().err


def test_pickles_are_loaded_only_when_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    TensorDict({"o": {1, 2}, "x": torch.ones(2)}).memmap(tmp_path / "a")
    assert run("convert", tmp_path / "a", tmp_path / "b") == 1
    assert "allow_pickle" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert run("convert", tmp_path / "a", tmp_path / "b", "--allow-pickle") == 0
    assert TensorDict.load_memmap(tmp_path / "b", allow_pickle=True)["o"] == {1, 2}
    assert run("verify", tmp_path / "b") == 0


@pytest.mark.parametrize("verb", ["info", "verify"])
@pytest.mark.parametrize("what", ["nothing", "empty folder", "text", "empty file", "bad record", "newer"])
def test_what_is_no_dataset_is_an_error(
    verb: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data"
    if what in ("text", "empty file"):
        path.write_text("hello" if what == "text" else "")
    elif what != "nothing":
        path.mkdir()
    if what == "bad record":
        (path / "meta.json").write_text("{")
    if what == "newer":
        (path / "meta.json").write_text('{"_format_version": 99}')
    assert run(verb, path) == 1
    error = capsys.readouterr().err
    assert error.startswith("tensordict: ")
    assert str(path) in error
    assert error.count("\n") == 1
    assert what != "newer" or "99" in error


@pytest.mark.parametrize("words", [[], ["bogus"], ["info"], ["convert", "a"], ["convert", "a", "b", "--to", "tape"]])
def test_a_wrong_command_line_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_program_runs_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "my_classes.py").write_text(
        "import torch\nfrom tensordict import TensorClass\nclass Row(TensorClass):\n    obs: torch.Tensor\n"
        "if __name__ == '__main__':\n    import my_classes\n"
        "    my_classes.Row(obs=torch.arange(3), batch_size=[3]).memmap('data')\n"
    )
    source = str(Path(__file__).resolve().parent.parent / "src")
    environment = {**os.environ, "PYTHONPATH": source}

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    assert call("my_classes.py").returncode == 0
    done = call("-m", "tensordict", "convert", "data", "copy", "--import", "my_classes")
    assert (done.returncode, done.stdout) == (0, "data -> copy (folder)\n")
    assert "my_classes.Row" in (tmp_path / "copy" / "meta.json").read_text()
    assert call("-m", "tensordict", "info", "nowhere").returncode == 1


LARGE = 256 << 20
CONVERT = """
import re, sys, threading
from pathlib import Path
import h5py, torch, zarr
from tensordict.roof.cli import main

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

def watch():
    while not done.wait(0.002):
        seen.append(anonymous())

torch.set_num_threads(1)
done, seen = threading.Event(), [anonymous()]
watcher = threading.Thread(target=watch)
watcher.start()
status = main(["convert", "--quiet", *sys.argv[1:]])
done.set()
watcher.join()
print(max(seen) - seen[0])
sys.exit(status)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is that of Linux")
@pytest.mark.parametrize("source, target", [("h5", "folder"), ("zarr", "h5"), ("h5", "consolidated")])
def test_datasets_larger_than_memory_are_converted(source: str, target: str, tmp_path: Path) -> None:
    rows = LARGE // (1 << 20)
    schema = {"big": ([1 << 20], torch.uint8), "n": {"y": ([], torch.int64)}}
    td: Any = TensorDict.from_schema(schema, batch_size=[rows], storage="memmap")
    td["big"][::7] = 3
    td["n", "y"].copy_(torch.arange(rows))
    getattr(td, f"to_{source}")(tmp_path / "source", chunks=(8,)).close()
    words = [str(tmp_path / "source"), str(tmp_path / "target"), "--to", target]
    done = subprocess.run([sys.executable, "-c", CONVERT, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < LARGE // 2
    back = load(target, tmp_path / "target")
    assert back["n", "y"].tolist() == list(range(rows))
    for start in range(0, rows, 32):
        assert torch.equal(back[start : start + 32]["big"], td["big"][start : start + 32])
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


@pytest.mark.parametrize("source", ["h5", "zarr"])
@pytest.mark.parametrize("target", HOMES)
def test_large_leaves_are_copied_by_rows(
    source: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensordict.kinds.window._AT_ONCE", 40)
    td = content().update({"odd": torch.arange(33).view(3, 11), "half": torch.arange(30).view(3, 10).bfloat16()})
    save(td, source, tmp_path / "source")
    seen: list[str] = []
    HOME[target].save(
        HOME[source].open(str(tmp_path / "source"), False), str(tmp_path / "target"), Terms(watch=seen.append)
    )
    back = load(target, tmp_path / "target")
    for key in ("x", "odd", "half", ("n", "y"), ("n", "half")):
        assert torch.equal(back[key], td[key])
    assert (back["name"], back["texts"]) == ("run", ["a", "b", "c"])
    assert len(seen) == (1 if target == "consolidated" else 5)
