"""A tree in one zip file: any zip program can read it, leaves are mapped in it, and nothing leads out of it."""

from __future__ import annotations

import errno
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from test_consolidated import Runs, assert_alike, tree
from test_contract import KEYS, bits, tensors
from torch import Tensor

from tensordict import (
    NonTensorData,
    TensorDict,
    append_memmap,
    is_memmap_archive,
    lazy_stack,
    load_memmap,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)
from tensordict.storage.memmap import home_of
from tensordict.storage.stream import crc, raw, runs

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
]


def packed(td: Any, path: Path) -> Path:
    td.memmap(path / "folder")
    return pack_memmap(path / "folder", path / "zip")


def unpacked(td: Any, path: Path) -> Path:
    td.memmap(path / "zip", archive=True)
    return unpack_memmap(path / "zip", path / "folder")


def written(td: Any, path: Path) -> Path:
    td.memmap(path / "data.tdz")
    return path / "data.tdz"


def compressed(td: Any, path: Path) -> Path:
    assert_alike(td.memmap(path / "zip", archive=True, compression="deflate"), td)
    return path / "zip"


ROADS = {"written": written, "packed": packed, "unpacked": unpacked, "compressed": compressed}


@pytest.mark.parametrize("road", ROADS)
def test_every_kind_of_node_and_leaf_comes_back(road: str, tmp_path: Path) -> None:
    path = ROADS[road](tree(), tmp_path)
    got = load_memmap(path, allow_pickle=True, verify=True)
    assert_alike(got, tree())
    assert got.saved_path == str(path)


def test_the_result_of_saving_lies_in_the_archive(tmp_path: Path) -> None:
    got = tree().memmap(tmp_path / "zip", archive=True)
    assert_alike(got, tree())
    assert got.is_locked
    got["x"].add_(1)
    assert_alike(load_memmap(tmp_path / "zip", allow_pickle=True)["n"], tree()["n"])
    assert load_memmap(tmp_path / "zip", mode="r+", allow_pickle=True)["x"].tolist() == got["x"].tolist()


def test_leaves_are_mapped_in_their_places(tmp_path: Path) -> None:
    path = packed(tree(), tmp_path)
    got = load_memmap(path, mode="r+", allow_pickle=True)
    content = path.read_bytes()
    for key in ("x", ("n", "y"), "flags"):
        home, leaf = home_of(got[key]), got[key]
        assert home is not None and home.path == str(path)
        start = int(leaf.storage_offset()) * leaf.itemsize
        assert start % 64 == 0
        assert content[start : start + leaf.nbytes] == bits(leaf)
    with zipfile.ZipFile(path) as found:
        assert {info.compress_type for info in found.infolist()} == {zipfile.ZIP_STORED}
        assert found.testzip() is None
        assert found.read("x.memmap") == bits(tree()["x"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "zip"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors)
def test_any_leaf_comes_back(tmp_path: Path, leaf: Tensor) -> None:
    td = TensorDict({"a": leaf, "n": {"a": leaf[None]}, "b": torch.zeros(3, dtype=torch.int8)})
    assert_alike(td.memmap(tmp_path / "zip", archive=True), td)
    assert_alike(load_memmap(tmp_path / "zip", verify=True), td)


def test_any_key_comes_back(tmp_path: Path) -> None:
    td = TensorDict({key: {inner: torch.tensor(at) for inner in KEYS} for at, key in enumerate(KEYS)})
    td.memmap(tmp_path / "zip", archive=True)
    assert_alike(load_memmap(tmp_path / "zip"), td)
    unpack_memmap(tmp_path / "zip", tmp_path / "folder")
    assert_alike(load_memmap(tmp_path / "folder"), td)


def small(path: Path) -> Path:
    TensorDict({"x": torch.arange(6.0), "n": {"y": torch.arange(3)}}).memmap(path / "zip", archive=True)
    return path / "zip"


def test_an_archive_is_read_only_unless_asked(tmp_path: Path) -> None:
    td = load_memmap(small(tmp_path))
    for write in (lambda: td["x"].add_(1), lambda: td.zero_(), lambda: td["n"].zero_()):
        with pytest.raises((RuntimeError, PermissionError), match="mode='r'"):
            write()
    load_memmap(tmp_path / "zip", mode="r+")["x"].add_(1)
    assert load_memmap(tmp_path / "zip")["x"].tolist() == [1, 2, 3, 4, 5, 6]
    assert load_memmap(tmp_path / "zip", subpath="n", mode="r")["y"].tolist() == [0, 1, 2]
    words = TensorDict({"word": ["a", "b"]}, [2]).memmap(tmp_path / "words", archive=True)
    with pytest.raises(PermissionError, match="grow"):
        words.get("word")[0] = "z"


def test_members_that_are_not_counted_are_found(tmp_path: Path) -> None:
    """The published package does not count them."""
    lazy_stack([TensorDict({"x": torch.ones(at)}) for at in range(3)]).memmap(tmp_path / "zip", archive=True)

    def uncounted(name: str, content: bytes) -> list[tuple[str, bytes]]:
        text = json.loads(content) if name == "meta.json" else {}
        text.pop("_tensordict_members", None)
        return [(name, json.dumps(text).encode() if text else content)]

    got = load_memmap(rewritten(tmp_path / "zip", uncounted))
    assert [row["x"].tolist() for row in got.tensordicts] == [[], [1], [1, 1]]


def test_what_is_an_archive(tmp_path: Path) -> None:
    path = small(tmp_path)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("a.txt", "b")
    (tmp_path / "text").write_text("no zip")
    found = [is_memmap_archive(one) for one in (path, tmp_path, tmp_path / "other.zip", tmp_path / "text", "nothing")]
    assert found == [True, False, False, False, False]
    for name in ("other.zip", "text"):
        with pytest.raises(ValueError, match=f"{name}.*is no archive of a tensordict"):
            load_memmap(tmp_path / name)


def test_arguments_that_go_against_each_other_are_refused(tmp_path: Path) -> None:
    td = TensorDict({"x": torch.zeros(3)}, [3])
    for arguments, message in (
        ({"archive": True}, "path"),
        ({"prefix": tmp_path / "zip", "archive": True, "layout": "rows"}, "layout"),
        ({"prefix": tmp_path / "zip", "compression": "deflate"}, "archive=True"),
        ({"prefix": tmp_path / "zip", "archive": True, "compression": "best"}, "'best'"),
    ):
        with pytest.raises(ValueError, match=message):
            td.memmap(**arguments)
    assert list(tmp_path.iterdir()) == []
    small(tmp_path)
    with pytest.raises(FileExistsError, match="existsok"):
        td.memmap(tmp_path / "zip", archive=True, existsok=False)
    with pytest.raises(FileNotFoundError):
        pack_memmap(tmp_path / "nothing", tmp_path / "zip")
    assert load_memmap(tmp_path / "zip")["x"].shape == (6,)


def rewritten(path: Path, change: Callable[[str, bytes], list[tuple[str, bytes]]], **options: Any) -> Path:
    """Write an archive again, each entry as a function gives it."""
    with zipfile.ZipFile(path) as old:
        entries = [entry for name in old.namelist() for entry in change(name, old.read(name))]
    with pytest.MonkeyPatch.context() as patch, zipfile.ZipFile(path, "w", **options) as new:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of names that are there twice
        for name, content in entries:
            new.writestr(name, content)
    return path


@pytest.mark.parametrize("name", ["../up", "/etc/up", "a/../../up", "a\\up", "C:/up", "./up", "a//up"])
def test_no_name_leads_out_of_an_archive(name: str, tmp_path: Path) -> None:
    path = rewritten(
        small(tmp_path), lambda n, content: [(n, content), (name, b"out")] if n == "meta.json" else [(n, content)]
    )
    for call in (lambda: load_memmap(path), lambda: unpack_memmap(path, tmp_path / "folder")):
        with pytest.raises(ValueError, match="leads out"):
            call()
    assert not (tmp_path / "folder").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["zip"]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda n, c: [(n, c), (n, c)], "two of this name"),
        (lambda n, c: [] if n == "x.memmap" else [(n, c)], "no entry 'x.memmap'"),
        (lambda n, c: [] if n == "meta.json" else [(n, c)], "no meta.json"),
        (lambda n, c: [(n, c[:-4] if n == "x.memmap" else c)], "'x'.*should hold 24 bytes, but it holds 20"),
        (lambda n, c: [(n, c + b"0" if n == "x.memmap" else c)], "'x'.*should hold 24 bytes, but it holds 25"),
        (lambda n, c: [(n, b"{" if n == "n/meta.json" else c)], "n/meta.json"),
    ],
)
def test_entries_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = rewritten(small(tmp_path), change)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_memmap(path)
    assert str(path) in str(caught.value)


def test_leaves_that_are_compressed_or_askew_are_read(tmp_path: Path) -> None:
    want = load_memmap(small(tmp_path)).clone()
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED):
        path = rewritten(small(tmp_path), lambda n, c: [(n, c)], compression=method)
        assert_alike(load_memmap(path, verify=True), want)
    path = rewritten(small(tmp_path), lambda n, c: [(n, c)], compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="compressed"):
        load_memmap(path, mode="r+")
    bomb = rewritten(small(tmp_path), lambda n, c: [(n, bytes(1 << 26) if n == "x.memmap" else c)], compression=8)
    with pytest.raises(ValueError, match="but it holds 67108864"):
        load_memmap(bomb)


def test_damage_is_found(tmp_path: Path) -> None:
    path = small(tmp_path)
    whole = path.read_bytes()
    at = whole.index(bits(torch.arange(6.0)))
    path.write_bytes(whole[:at] + b"\1" + whole[at + 1 :])
    load_memmap(path)
    for call in (lambda: load_memmap(path, verify=True), lambda: unpack_memmap(path, tmp_path / "folder")):
        with pytest.raises(ValueError, match=r"x\.memmap.*CRC"):
            call()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["zip"]
    for cut in range(0, len(whole), 7):  # a prefix is no archive, and never a wrong value
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="archive"):
            load_memmap(path)
    head = whole.index(b"PK\3\4")
    for place, value in ((head, b"XX"), (head + 26, b"\xff\xff")):
        path.write_bytes(whole[:place] + value + whole[place + 2 :])
        with pytest.raises(ValueError, match="damaged"):
            load_memmap(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=...)
def test_any_byte_that_changes_is_an_error_or_changes_no_value_but_its_own(tmp_path: Path, seed: int) -> None:
    path = small(tmp_path)
    content, want = bytearray(path.read_bytes()), load_memmap(path).clone()
    at, bit = seed % len(content), (seed // len(content)) % 8
    content[at] ^= 1 << bit
    path.write_bytes(content)
    try:
        got = load_memmap(path, verify=True)
    except (ValueError, RuntimeError, FileNotFoundError):
        return
    assert_alike(got, want)  # what fills the gaps, dates and attributes of entries mean nothing


def test_checksums_are_renewed_in_their_places(tmp_path: Path) -> None:
    path = packed(tree(), tmp_path)
    before = path.read_bytes()
    refresh_archive_checksums(path)
    assert path.read_bytes() == before
    td = load_memmap(path, mode="r+", allow_pickle=True)
    td["x"].add_(1)
    td["n", "y"].zero_()
    with pytest.raises(ValueError, match="CRC"):
        load_memmap(path, verify=True, allow_pickle=True)
    refresh_archive_checksums(path)
    assert_alike(load_memmap(path, verify=True, allow_pickle=True), td)
    with zipfile.ZipFile(path) as found:
        assert found.testzip() is None
    (tmp_path / "text").write_text("no zip")
    with pytest.raises(ValueError, match="no archive"):
        refresh_archive_checksums(tmp_path / "text")


def test_a_folder_that_was_appended_to_is_packed(tmp_path: Path) -> None:
    td = TensorDict({"x": torch.arange(3), "n": {"y": torch.ones(3, 2)}, "word": ["a", "b", "c"]}, [3])
    td.memmap(tmp_path / "folder")
    append_memmap(tmp_path / "folder", td[1:])
    want = torch.cat([td, td[1:]])
    path = pack_memmap(tmp_path / "folder", tmp_path / "zip")
    assert_alike(load_memmap(path, verify=True), want)
    unpack_memmap(path, tmp_path / "again")
    assert_alike(load_memmap(tmp_path / "again", verify=True), want)
    record = tmp_path / "folder" / "meta.json"  # an append that is cut off leaves longer files
    record.write_text(record.read_text().replace('"_tensordict_rows": [5, 5]', '"_tensordict_rows": [4, 5]'))
    assert len(load_memmap(tmp_path / "folder")) == 4
    assert_alike(load_memmap(pack_memmap(tmp_path / "folder", path), verify=True), want[:4])


def test_objects_are_loaded_only_when_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS", str(tmp_path / "ran"))
    TensorDict({"n": {"object": NonTensorData(Runs())}}).memmap(tmp_path / "zip", archive=True)
    with pytest.raises(RuntimeError, match=r"\('n', 'object'\).*allow_pickle"):
        load_memmap(tmp_path / "zip")
    assert not (tmp_path / "ran").exists()


def test_an_archive_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small(tmp_path)
    old = load_memmap(path)
    TensorDict({"x": torch.zeros(2)}).memmap(path, archive=True)
    assert old["x"].tolist() == [0, 1, 2, 3, 4, 5]

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("tensordict.storage.archive.runs", no_room)
    with pytest.raises(OSError, match=r"no space for .*zip.*8 bytes needed"):
        TensorDict({"x": torch.ones(2)}).memmap(path, archive=True)
    monkeypatch.undo()
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(OSError, match=r"no space for .*zip.*bytes needed, 100 free"):
        TensorDict({"x": torch.ones(200)}).memmap(path, archive=True)
    with pytest.raises(OSError, match=r"no space for .*folder.*bytes needed, 100 free"):
        unpack_memmap(path, tmp_path / "folder")
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["zip"]
    assert load_memmap(path, verify=True)["x"].tolist() == [0, 0]


def test_unpacking_keeps_what_belongs_to_others(tmp_path: Path) -> None:
    path = small(tmp_path)
    TensorDict({"old": torch.zeros(3)}).memmap(tmp_path / "folder")
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    pack_memmap(tmp_path / "folder", tmp_path / "other")
    unpack_memmap(path, tmp_path / "folder")
    assert_alike(load_memmap(tmp_path / "folder", verify=True), load_memmap(path))
    assert (tmp_path / "folder" / "notes.txt").read_text() == "mine"
    with zipfile.ZipFile(tmp_path / "other") as other:
        assert sorted(other.namelist()) == ["meta.json", "old.memmap"]


def test_a_long_archive_needs_the_larger_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 20)
    path = small(tmp_path)
    assert load_memmap(path, verify=True)["x"].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(load_memmap(path)["x"].storage_offset()) * 4 % 64 == 0


STRIDED: list[Tensor] = [
    torch.zeros((), dtype=torch.bfloat16).expand(40_000, 300),  # 24 MB
    torch.arange(6_000_000).view(2000, 3000).t(),
    torch.ones(3, 4, dtype=torch.complex64).conj().t(),
    torch.zeros(0, 4).t(),
    torch.tensor(7.0),
]


@pytest.mark.parametrize("leaf", STRIDED, ids=lambda leaf: f"{tuple(leaf.shape)}")
def test_the_bytes_of_a_strided_leaf_come_in_pieces_that_are_not_large(leaf: Tensor) -> None:
    pieces = list(runs(leaf))
    assert b"".join(pieces) == bytes(raw(leaf.clone(memory_format=torch.contiguous_format)))
    assert max(map(len, pieces)) <= 16 << 20
    assert crc(leaf) == zlib.crc32(b"".join(pieces))
