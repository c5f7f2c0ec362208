"""What lies in a folder is what was saved: sizes and names are compared when it is opened, checksums when asked for."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tensordict import NonTensorStack, TensorClass, TensorDict, lazy_stack
from tensordict.storage import checksum
from tensordict.storage.checksum import ChecksumError
from tensordict.storage.folder import Folder

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


class Row(TensorClass):
    obs: torch.Tensor
    name: str = "none"


def content() -> TensorDict:
    rows = [torch.ones(2, 2), torch.ones(1, 2)]
    values = {
        "x": torch.arange(6.0).view(2, 3),
        "n": {"y": torch.arange(2), "deep": {"z": torch.ones(2, dtype=torch.bool)}},
        "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        "texts": NonTensorStack("a", "b"),
        "row": Row(obs=torch.zeros(2), batch_size=[2]),
        "lazy": lazy_stack([TensorDict({"p": torch.ones(n)}) for n in (1, 2)]),
        "none": torch.ones(2, 0),
    }
    return TensorDict(values, [2])


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {str(path.relative_to(folder)): path.stat() for path in [folder, *folder.rglob("*")]}
    return {name: (status.st_mtime_ns, status.st_size) for name, status in found.items()}


KEYS = {
    "x.memmap": "x",
    "n/y.memmap": ("n", "y"),
    "n/deep/z.memmap": ("n", "deep", "z"),
    "jagged.memmap": "jagged",
    "jagged.shape.memmap": "jagged",
    "row/_tensordict/obs.memmap": ("row", "obs"),
    "lazy/1/p.memmap": ("lazy", "1", "p"),
}


def spoil(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "bit":
        data[-1] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-1] if how == "short" else data + b"\0")


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("how", ["short", "long", "missing"])
@pytest.mark.parametrize("file", KEYS)
def test_files_of_other_sizes_are_found_when_a_folder_is_opened(file: str, how: str, mode: str, tmp_path: Path) -> None:
    content().memmap(tmp_path)
    path = tmp_path / file
    size = path.stat().st_size
    spoil(path, how)
    before = listing(tmp_path)
    with pytest.raises(FileNotFoundError if how == "missing" else ValueError) as error:
        TensorDict.load_memmap(tmp_path, mode=mode)
    message = str(error.value)
    key = KEYS[file] if "_tensordict" not in file else ("row", "_tensordict", "obs")
    assert message.startswith(f"key {key!r}: ")
    assert str(path) in message
    assert f"{size} bytes" in message
    assert how == "missing" or str(path.stat().st_size) in message
    assert listing(tmp_path) == before


@pytest.mark.parametrize("file, key", [("extra.memmap", "'extra'"), ("n/deep/q.memmap", "('n', 'deep', 'q')")])
def test_a_file_that_belongs_to_no_key_is_found_when_a_folder_is_opened(file: str, key: str, tmp_path: Path) -> None:
    content().memmap(tmp_path)
    (tmp_path / file).write_bytes(b"1234")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=f"{re.escape(key)}.*{file}.* of 4 bytes belongs to no key"):
        TensorDict.load_memmap(tmp_path)
    report = checksum.survey_of(str(tmp_path))
    assert len(report.damage) == 1
    assert file in report.damage[0]
    TensorDict({"z": torch.ones(1)}).memmap(tmp_path)  # the next save clears it away
    assert TensorDict.load_memmap(tmp_path, mode="r")["z"].tolist() == [1]
    assert (tmp_path / "notes.txt").exists()


def test_leaves_that_another_program_left_behind_do_not_matter(tmp_path: Path) -> None:
    """The published package saves over a folder without clearing it; what it wrote names no such entry."""
    TensorDict({"x": torch.ones(2)}, [2]).memmap(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    del meta["_tensordict_all"]
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "old.memmap").write_bytes(b"1234")
    assert TensorDict.load_memmap(tmp_path)["x"].sum() == 2
    TensorDict({"x": torch.zeros(2)}, [2]).memmap(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checksums.json", "meta.json", "x.memmap"]


def test_a_folder_without_a_tree_that_holds_such_a_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.memmap").write_bytes(b"1234")
    with pytest.raises(FileExistsError, match=r"mine\.memmap"):
        TensorDict({"x": torch.ones(2)}, [2]).memmap(tmp_path)
    assert os.listdir(tmp_path) == ["mine.memmap"]


def test_a_writer_that_dies_in_a_folder_leaves_it_to_be_opened(tmp_path: Path) -> None:
    TensorDict({"x": torch.ones(2)}, [2]).memmap(tmp_path)
    writer = Folder(tmp_path, "r+")
    writer.write("y", torch.ones(3))
    assert (tmp_path / "y.memmap").exists()
    assert list(TensorDict.load_memmap(tmp_path, mode="r").keys()) == ["x"]
    writer.meta = writer.meta
    assert list(TensorDict.load_memmap(tmp_path, mode="r").keys()) == ["x", "y"]
    (tmp_path / "z.memmap").write_bytes(b"1234")
    with pytest.raises(ValueError, match="'z'"):
        TensorDict.load_memmap(tmp_path)


@pytest.mark.parametrize("mode", ["r", "r+", None])
def test_readers_make_and_change_nothing(mode: str | None, tmp_path: Path) -> None:
    content().memmap(tmp_path / "data")
    before = listing(tmp_path)
    for verify in (False, True):
        td = TensorDict.load_memmap(tmp_path / "data", mode=mode, verify=verify)
        assert td["x"].sum() == 15
        del td
    assert listing(tmp_path) == before


def test_a_folder_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    content().memmap(folder)
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert TensorDict.load_memmap(folder, mode="r", verify=True)["x"].sum() == 15
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("file", [*KEYS, "n/meta.json", "texts/meta.json"])
def test_a_bit_that_flipped_is_found(file: str, tmp_path: Path) -> None:
    content().memmap(tmp_path)
    path = tmp_path / file
    before = path.read_bytes()
    if file.endswith("json"):
        path.write_bytes(before.replace(b'"cpu"', b'"cpu" ').replace(b'"a"', b'"c"'))
    else:
        spoil(path, "bit")
    if "shape" not in file:
        TensorDict.load_memmap(tmp_path, mode="r")  # nothing shows
    with pytest.raises(ChecksumError) as error:
        TensorDict.load_memmap(tmp_path, mode="r", verify=True)
    message = str(error.value)
    for part in (str(path), f"{zlib.crc32(path.read_bytes()):08x}", f"{zlib.crc32(before):08x}", "not flushed"):
        assert part in message
    key = KEYS.get(file, file.split("/")[0])
    assert message.startswith(f"key {key!r}")
    path.write_bytes(before)
    assert TensorDict.load_memmap(tmp_path, mode="r", verify=True)["texts"] == ["a", "b"]


def test_every_file_of_a_tree_has_a_sum(tmp_path: Path) -> None:
    content().memmap(tmp_path)
    sums = checksum.read(str(tmp_path))
    files = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    del files["checksums.json"]
    files["none.memmap"] = files.get("none.memmap", tmp_path / "none.memmap")
    assert sums.keys() == files.keys()
    for file, path in files.items():
        data = path.read_bytes() if path.exists() else b""
        assert sums[file] == (len(data), zlib.crc32(data))
    report = checksum.survey_of(str(tmp_path))
    assert (report.damage, report.right, report.unknown) == ([], len(sums), [])


def test_a_pickle_has_a_sum(tmp_path: Path) -> None:
    TensorDict({"o": {1, 2}}).memmap(tmp_path)
    assert "o/other.pickle" in checksum.read(str(tmp_path))
    spoil(tmp_path / "o" / "other.pickle", "bit")
    with pytest.raises(ChecksumError, match=r"'o'.*other\.pickle"):
        TensorDict.load_memmap(tmp_path, verify=True, allow_pickle=True)


def test_a_write_through_a_mapping_looks_like_damage_until_sums_are_recorded(tmp_path: Path) -> None:
    content().memmap(tmp_path)
    TensorDict.load_memmap(tmp_path)["x"].zero_()
    with pytest.raises(ChecksumError, match="written through a mapping"):
        TensorDict.load_memmap(tmp_path, verify=True)
    checksum.record(str(tmp_path))
    assert TensorDict.load_memmap(tmp_path, verify=True)["x"].sum() == 0


def test_preallocated_leaves_get_their_sum_later(tmp_path: Path) -> None:
    td = TensorDict({"x": torch.ones(2), "name": "run"}, [2]).memmap_like(tmp_path)
    td["x"].fill_(3)
    report = checksum.survey_of(str(tmp_path))
    assert report.damage == []
    assert [(part.key, part.file) for part in report.unknown] == [(("x",), "x.memmap")]
    assert TensorDict.load_memmap(tmp_path, verify=True)["x"].sum() == 6
    checksum.record(str(tmp_path))
    assert checksum.survey_of(str(tmp_path)).unknown == []


def test_what_has_no_sums_cannot_be_verified(tmp_path: Path) -> None:
    content().memmap(tmp_path)
    (tmp_path / "checksums.json").unlink()
    with pytest.raises(ChecksumError, match=r"no checksums\.json"):
        TensorDict.load_memmap(tmp_path, verify=True)
    assert checksum.survey_of(str(tmp_path)).right == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "null",
        '{"algorithm": "md5", "files": {}}',
        '{"algorithm": "crc32"}',
        '{"algorithm": "crc32", "files": []}',
        '{"algorithm": "crc32", "files": {"x.memmap": [24]}}',
        '{"algorithm": "crc32", "files": {"x.memmap": ["24", "00000000"]}}',
        '{"algorithm": "crc32", "files": {"x.memmap": [-1, "00000000"]}}',
        '{"algorithm": "crc32", "files": {"x.memmap": [24, "0x000000"]}}',
        '{"algorithm": "crc32", "files": {"x.memmap": [24, 7]}}',
        '{"algorithm": "crc32", "files": {"x.memmap": [true, "00000000"]}}',
        "[" * 100_000,
    ],
)
def test_malformed_sums_are_an_error(text: str, tmp_path: Path) -> None:
    content().memmap(tmp_path)
    (tmp_path / "checksums.json").write_text(text)
    assert TensorDict.load_memmap(tmp_path)["x"].sum() == 15
    with pytest.raises(ChecksumError, match=r"checksums\.json"):
        TensorDict.load_memmap(tmp_path, verify=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.write("y", torch.ones(5)),
        lambda node: node.write("x", torch.ones(5)),
        lambda node: node.create("x", (7,), torch.int8),
        lambda node: node.delete("x"),
        lambda node: node.delete("n"),
        lambda node: setattr(node.child("new"), "meta", node.child("n").meta),
    ],
)
def test_changes_in_place_take_the_sums_of_what_they_change_only(change: Callable[[Any], Any], tmp_path: Path) -> None:
    content().memmap(tmp_path)
    node = Folder(tmp_path, "r+")
    change(node)
    node.meta = node.meta
    report = checksum.survey_of(str(tmp_path))
    assert report.damage == []
    assert report.right >= 12
    assert TensorDict.load_memmap(tmp_path, verify=True)["texts"] == ["a", "b"]
    checksum.record(str(tmp_path))
    assert checksum.survey_of(str(tmp_path)).unknown == []


def test_a_change_in_a_node_that_was_opened_alone_reaches_the_sums_of_the_tree(tmp_path: Path) -> None:
    content().memmap(tmp_path)
    node = Folder(tmp_path / "n", "r+")
    node.write("y", torch.zeros(9))
    node.meta = node.meta
    assert checksum.survey_of(str(tmp_path)).damage == []
    TensorDict({"w": torch.ones(2)}, [2]).memmap(tmp_path / "n" / "deep")
    report = checksum.survey_of(str(tmp_path))
    assert report.damage == []
    assert not os.path.exists(tmp_path / "n" / "deep" / "checksums.json")


def test_a_copy_of_a_folder_verifies(tmp_path: Path) -> None:
    content().memmap(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert TensorDict.load_memmap(tmp_path / "b", verify=True)["x"].sum() == 15
