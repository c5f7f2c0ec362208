"""The folder layout: what it reads, what it refuses, and what a reused folder keeps."""

from __future__ import annotations

import json
import os
import pickle
import struct
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tensordict.storage import layout
from tensordict.storage.base import Record
from tensordict.storage.folder import Folder
from tensordict.storage.memmap import home_of

HEAD = {"_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1, "_class": "tensordict:TensorDict"}


def leaf(shape: list[int], dtype: str = "torch.float32") -> dict[str, Any]:
    return {"device": "cpu", "shape": shape, "dtype": dtype, "is_nested": False}


def save(folder: Path, meta: dict[str, Any], **files: bytes) -> Path:
    """Lay down a node as another program would: a literal meta.json, and the bytes of its leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(meta))
    for name, content in files.items():
        (folder / f"{name}.memmap").write_bytes(content)
    return folder


def dense(folder: Path, values: dict[str, Tensor], batch: tuple[int, ...] = ()) -> Folder:
    node = Folder(folder, "w")
    for key, value in values.items():
        node.write(key, value)
    node.meta = Record("dense", batch)
    return node


class TestReadingThePublishedLayout:
    def test_dense(self, tmp_path: Path) -> None:
        meta = {
            "x": leaf([2]),
            "é/": leaf([], "torch.int64"),
            "in": {"type": "TensorDict"},
            "shape": [],
            "device": "cpu",
        }
        save(tmp_path, meta | HEAD, x=struct.pack("2f", 1.5, 2.5), **{"é%2F": struct.pack("q", 7)})
        save(tmp_path / "in", {"shape": [], "device": "cpu"} | HEAD)
        node = Folder(tmp_path)
        assert node.meta == Record("dense", ())
        assert node.keys() == {"x": "leaf", "é/": "leaf", "in": "node"}
        assert node.read("x").tolist() == [1.5, 2.5]
        assert node.read("é/").item() == 7
        assert node.child("in").keys() == {}

    def test_names(self, tmp_path: Path) -> None:
        save(tmp_path, {"shape": [3, 2], "device": "cpu", "_names": ["time", None]} | HEAD)
        assert Folder(tmp_path).meta.names == ("time", None)

    def test_an_empty_leaf_needs_no_file(self, tmp_path: Path) -> None:
        save(tmp_path, {"z": leaf([0, 3]), "shape": [], "device": "cpu"} | HEAD)
        assert Folder(tmp_path, "r").read("z").shape == (0, 3)

    def test_lazy_members_are_counted(self, tmp_path: Path) -> None:
        kind = {"_type": "<class 'tensordict._lazy.LazyStackedTensorDict'>", "stack_dim": 0, "stack_dim_name": "t"}
        save(tmp_path, kind)
        for member in range(11):
            save(tmp_path / str(member), {"shape": [], "device": "cpu"} | HEAD)
        node = Folder(tmp_path)
        assert node.meta == Record("lazy", stack_dim=0, stack_name="t")
        assert list(node.keys()) == [str(member) for member in range(11)]

    def test_tensorclass(self, tmp_path: Path) -> None:
        save(tmp_path, {"_type": "<class 'my.module.Sample'>"})
        save(tmp_path / "_tensordict", {"shape": [4], "device": "cpu"} | HEAD)
        node = Folder(tmp_path)
        assert node.meta == Record("tensorclass", cls="my.module.Sample")
        assert node.child("_tensordict").meta.batch == (4,)

    @pytest.mark.parametrize("data", ["hello", None, 1.5, {"k": [1, 2]}, [], True])
    def test_non_tensor(self, tmp_path: Path, data: Any) -> None:
        kind = {"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "_metadata": None, "_is_non_tensor": True}
        save(tmp_path, kind | {"data": data})
        assert Folder(tmp_path).meta == Record("non-tensor", data=data)

    def test_pickles_are_refused_unless_allowed(self, tmp_path: Path) -> None:
        kind = {"_type": "<class 'tensordict.tensorclass.NonTensorData'>", "_metadata": None, "_is_non_tensor": True}
        save(tmp_path, kind)
        (tmp_path / "other.pickle").write_bytes(pickle.dumps({"data": {1, 2}}))
        with pytest.raises(RuntimeError, match=r"^Refusing to load pickled .*other\.pickle.*allow_pickle=True"):
            Folder(tmp_path)
        assert Folder(tmp_path, allow_pickle=True).meta.data == {1, 2}


class TestMetadataIsChecked:
    @pytest.mark.parametrize(
        ("change", "entry"),
        [
            ({"x": leaf([-1])}, "x"),
            ({"x": leaf([True])}, "x"),
            ({"x": leaf([1 << 62, 4])}, "x"),
            ({"x": leaf([2], "torch.float33")}, "x"),
            ({"x": leaf([2], "os.system")}, "x"),
            ({"x": leaf([2]) | {"shape": "2"}}, "x"),
            ({"x": leaf([2]) | {"file": "../x.memmap"}}, "x"),
            ({"x": leaf([2]) | {"file": "meta.json"}}, "x"),
            ({"x": leaf([2]) | {"is_nested": True}}, "x"),
            ({"x": leaf([2, 2]) | {"is_nested": 1}}, "x"),
            ({"x": {}}, "x"),
            ({"x": 3}, "x"),
            ({"shape": [1.5]}, "shape"),
            ({"shape": None}, "shape"),
            ({"device": 3}, "device"),
            ({"_names": ["a", "b"]}, "_names"),
            ({"_names": [3]}, "_names"),
            ({"_type": 3, "_class": None}, "_type"),
            ({"_format_version": "1"}, "_format_version"),
            ({"_tensordict_keys": 3}, "_tensordict_keys"),
            ({"_tensordict_keys": [["x", 0, {}]]}, "_tensordict_keys"),
            ({"_tensordict_keys": [[0, "shape", {"type": "T", "file": "/etc"}]]}, "shape"),
        ],
    )
    def test_wrong_entries_are_named(self, tmp_path: Path, change: dict[str, Any], entry: str) -> None:
        save(tmp_path, {"shape": [2], "device": "cpu"} | HEAD | change)
        with pytest.raises(ValueError) as caught:
            Folder(tmp_path)
        assert str(tmp_path / "meta.json") in str(caught.value)
        assert repr(entry) in str(caught.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000, "\xff"])
    def test_what_is_no_record_is_refused(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "meta.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match=r"meta\.json"):
            Folder(tmp_path)

    def test_quantized_dtypes_are_refused(self, tmp_path: Path) -> None:
        save(tmp_path, {"x": leaf([4]) | {"dtype": "torch.quint8"}, "shape": [4], "device": "cpu"} | HEAD, x=b"1234")
        with pytest.raises(ValueError, match=r"'x'.*quint8"):
            Folder(tmp_path)

    def test_a_newer_format_is_refused_by_its_version(self, tmp_path: Path) -> None:
        save(tmp_path, {"shape": [], "device": "cpu"} | HEAD | {"_format_version": 7})
        with pytest.raises(RuntimeError, match="version 7"):
            Folder(tmp_path)

    def test_no_record(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            Folder(tmp_path)
        with pytest.raises(FileNotFoundError, match="nowhere"):
            Folder(tmp_path / "nowhere")
        assert not (tmp_path / "nowhere").exists()

    def test_unknown_mode(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="'a'"):
            Folder(tmp_path, "a")


class TestSizes:
    @pytest.mark.parametrize("size", [0, 4, 7, 12])
    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_a_file_of_another_size_is_refused_and_left(self, tmp_path: Path, size: int, mode: str) -> None:
        save(tmp_path, {"x": leaf([2]), "shape": [], "device": "cpu"} | HEAD, x=bytes(size))
        with pytest.raises(ValueError, match=rf"x\.memmap' should hold 8 bytes, but it holds {size}"):
            Folder(tmp_path, mode).read("x")
        assert (tmp_path / "x.memmap").stat().st_size == size

    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_a_missing_file_is_not_made(self, tmp_path: Path, mode: str) -> None:
        save(tmp_path, {"x": leaf([2]), "shape": [], "device": "cpu"} | HEAD)
        with pytest.raises(FileNotFoundError, match=r"x\.memmap.* 8 bytes"):
            Folder(tmp_path, mode).read("x")
        assert not (tmp_path / "x.memmap").exists()

    def test_no_space(self, tmp_path: Path) -> None:
        node = Folder(tmp_path, "w")
        with pytest.raises(OSError, match=rf"x\.memmap.*{1 << 60} bytes needed"):
            node.create("x", (1 << 60,), torch.uint8)
        assert node.keys() == {}
        assert list(tmp_path.iterdir()) == []

    def test_every_byte_of_a_preallocated_leaf_is_reserved(self, tmp_path: Path) -> None:
        node = Folder(tmp_path, "w")
        node.create("x", (1 << 24,), torch.uint8)
        node.meta = Record("dense", ())
        status = (tmp_path / "x.memmap").stat()
        assert status.st_size == 1 << 24
        assert status.st_blocks * 512 >= 1 << 24


class TestReadOnly:
    def test_nothing_of_a_node_can_be_changed(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.ones(2)})
        before = (tmp_path / "meta.json").read_bytes()
        node = Folder(tmp_path, "r")
        assert not node.writable
        for change in (
            lambda: node.create("y", (2,), torch.float32),
            lambda: node.write("x", torch.zeros(2)),
            lambda: node.delete("x"),
            lambda: setattr(node, "meta", Record("dense", ())),
        ):
            with pytest.raises(PermissionError, match="mode='r'"):
                change()
        with pytest.raises(KeyError, match="'new'"):
            node.child("new")
        assert (tmp_path / "meta.json").read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["checksums.json", "meta.json", "x.memmap"]

    def test_writing_to_a_leaf_does_not_reach_the_file(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.ones(2)})
        Folder(tmp_path, "r").read("x").zero_()
        assert Folder(tmp_path).read("x").tolist() == [1.0, 1.0]

    def test_files_without_write_permission_can_be_read(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.ones(2)})
        (tmp_path / "x.memmap").chmod(0o444)
        assert Folder(tmp_path, "r").read("x").tolist() == [1.0, 1.0]


class TestReusedFolders:
    def test_leaves_and_nodes_that_disappear_do_not_come_back(self, tmp_path: Path) -> None:
        node = dense(tmp_path, {"a": torch.ones(2), "b": torch.ones(2)})
        inner = node.child("inner")
        inner.write("c", torch.ones(2))
        inner.child("deep").meta = Record("non-tensor", data={1})
        inner.meta = Record("dense", ())
        node.meta = Record("dense", ())
        (tmp_path / "inner" / "mine.txt").write_text("not ours")
        dense(tmp_path, {"b": torch.zeros(2)})
        assert Folder(tmp_path).keys() == {"b": "leaf"}
        files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
        assert files == ["b.memmap", "checksums.json", "inner", "inner/mine.txt", "meta.json"]

    def test_members_of_a_longer_stack_do_not_come_back(self, tmp_path: Path) -> None:
        for count in (3, 1):
            node = Folder(tmp_path, "w")
            for member in range(count):
                node.child(str(member)).meta = Record("dense", ())
            node.meta = Record("lazy", stack_dim=0)
        assert Folder(tmp_path).keys() == {"0": "node"}
        assert sorted(os.listdir(tmp_path)) == ["0", "checksums.json", "meta.json"]

    def test_readers_keep_what_they_have_mapped(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.ones(1000)})
        old = Folder(tmp_path, "r").read("x")
        dense(tmp_path, {"x": torch.zeros(2)})
        assert old.sum() == 1000
        assert Folder(tmp_path).read("x").tolist() == [0.0, 0.0]

    def test_a_leaf_can_be_written_over_itself(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.arange(4)})
        old = Folder(tmp_path).read("x")
        assert Folder(tmp_path, "w").write("x", old) is old
        assert Folder(tmp_path, "w").write("x", old.flip(0)).tolist() == [3, 2, 1, 0]

    def test_nothing_is_visible_before_the_record_is(self, tmp_path: Path) -> None:
        node = Folder(tmp_path, "w")
        node.write("x", torch.ones(2))
        with pytest.raises(FileNotFoundError):
            Folder(tmp_path)
        node.meta = Record("dense", ())
        assert Folder(tmp_path).keys() == {"x": "leaf"}

    def test_a_failed_write_leaves_the_old_leaf(self, tmp_path: Path) -> None:
        node = dense(tmp_path, {"x": torch.ones(2)})
        with pytest.raises(RuntimeError):
            node.write("x", torch.zeros(2, device="meta"))
        assert Folder(tmp_path).read("x").tolist() == [1.0, 1.0]
        assert sorted(os.listdir(tmp_path)) == ["checksums.json", "meta.json", "x.memmap"]

    def test_an_open_folder_grows(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.ones(2)})
        node = Folder(tmp_path, "r+")
        node.create("y", (3,), torch.int64)[1] = 5
        node.child("in").meta = Record("dense", ())
        node.delete("x")
        node.meta = node.meta
        node = Folder(tmp_path)
        assert node.keys() == {"y": "leaf", "in": "node"}
        assert node.read("y").tolist() == [0, 5, 0]


def nested(*rows: Tensor) -> Tensor:
    return torch.nested.nested_tensor(list(rows), layout=torch.strided)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
class TestNestedTensors:
    @pytest.mark.parametrize(
        "rows",
        [
            (torch.arange(6).view(2, 3), torch.arange(12).view(4, 3)),
            (torch.ones(2, 1, 3), torch.zeros(0, 5, 2), torch.ones(1, 2, 2)),
            (torch.ones(0, 3), torch.ones(0, 3)),
            (torch.tensor(1.0), torch.tensor(2.0)),
            (),
        ],
    )
    def test_they_come_back(self, tmp_path: Path, rows: tuple[Tensor, ...]) -> None:
        node = dense(tmp_path, {"x": nested(*rows)})
        for read in (node.read("x"), Folder(tmp_path).read("x"), Folder(tmp_path, "r").read("x")):
            assert read.is_nested
            assert [row.tolist() for row in read.unbind()] == [row.tolist() for row in rows]

    def test_rows_are_written_to_the_file(self, tmp_path: Path) -> None:
        node = dense(tmp_path, {"x": nested(torch.ones(2, 3), torch.ones(4, 3))})
        node.read("x")[1].fill_(5)
        assert Folder(tmp_path).read("x")[1].sum() == 60

    def test_the_published_layout(self, tmp_path: Path) -> None:
        meta = {"x": leaf([2, 1]) | {"is_nested": True}, "shape": [2], "device": "cpu"} | HEAD
        save(tmp_path, meta, x=struct.pack("3f", 1, 2, 3), **{"x.shape": struct.pack("2q", 1, 2)})
        assert [row.tolist() for row in Folder(tmp_path).read("x").unbind()] == [[1.0], [2.0, 3.0]]
        for sizes in ((1, 3), (-1, 4), (1 << 62, 1 << 62)):
            (tmp_path / "x.shape.memmap").write_bytes(struct.pack("2q", *sizes))
            with pytest.raises(ValueError, match=r"x.*\.memmap"):
                Folder(tmp_path).read("x")

    def test_their_files_meet_no_other_key(self, tmp_path: Path) -> None:
        values = {"x.shape": torch.ones(2), "x": nested(torch.ones(1), torch.ones(2)), "y": nested(torch.ones(3))}
        dense(tmp_path, values | {"y.shape": torch.zeros(5)})
        node = Folder(tmp_path)
        assert node.read("x.shape").tolist() == [1.0, 1.0]
        assert node.read("x")[1].tolist() == [1.0, 1.0]
        assert node.read("y.shape").tolist() == [0.0] * 5
        assert node.read("y")[0].tolist() == [1.0] * 3
        dense(tmp_path, {"x": torch.ones(2)})
        assert sorted(os.listdir(tmp_path)) == ["checksums.json", "meta.json", "x.memmap"]

    def test_they_cross_processes_by_name(self, tmp_path: Path) -> None:
        tensor = dense(tmp_path, {"x": nested(torch.ones(2), torch.ones(3))}).read("x")
        received = pickle.loads(ForkingPickler.dumps(tensor))
        received[1].fill_(7)
        assert tensor[1].tolist() == [7.0] * 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
batches = st.lists(st.integers(0, 9), max_size=3).map(tuple)
optional_names = st.none() | st.text(max_size=3)
records = (
    st.builds(
        lambda batch, names: Record("dense", batch, names=tuple(names[: len(batch)]) if batch and names else None),
        batches,
        st.none() | st.lists(optional_names, min_size=3, max_size=3),
    )
    | st.builds(lambda dim, name: Record("lazy", stack_dim=dim, stack_name=name), st.integers(0, 3), optional_names)
    | st.builds(lambda data: Record("non-tensor", data=data), json_values)
    | st.builds(lambda data: Record("non-tensor-stack", data=data, stack_dim=0), st.lists(json_values))
    | st.builds(lambda name: Record("tensorclass", cls=f"my.module.{name}"), st.sampled_from(["A", "Outer.Inner"]))
)


class TestRecords:
    @settings(max_examples=200)
    @given(records)
    def test_a_record_comes_back_from_its_text(self, record: Record) -> None:
        names = {"tensorclass": ["_tensordict"], "lazy": ["0"]}.get(record.kind, [])
        entries = {name: layout.Entry(name) for name in names}
        assert layout.parse(layout.dump(record, entries), "meta.json", lambda path: True) == (record, entries)

    @settings(max_examples=200)
    @given(st.lists(st.text(max_size=8) | st.sampled_from(["shape", "a", "A", "a.memmap", "_names"]), unique=True))
    def test_names_are_distinct_and_stay_inside(self, keys: list[str]) -> None:
        taken: set[str] = set()
        for place, key in enumerate(keys):
            name = layout.free_name(key, "leaf" if place % 2 else "node", taken)
            assert "/" not in name
            assert "\\" not in name
            assert name not in ("", ".", "..", "meta.json")
            assert layout.folded(name) not in taken
            assert not name.startswith(layout.TEMPORARY)
            taken.add(layout.folded(name))

    @pytest.mark.parametrize("data", [{1, 2}, b"x", {1: 2}, [object], {"a": (1, {2})}])
    def test_objects_go_through_a_pickle(self, tmp_path: Path, data: Any) -> None:
        node = Folder(tmp_path, "w")
        node.child("value").meta = Record("non-tensor", (2,), data=data)
        node.child("stack").meta = Record("non-tensor-stack", data=[data, 1], stack_dim=0)
        node.meta = Record("dense", (2,))
        node = Folder(tmp_path, allow_pickle=True)
        assert node.child("value").meta == Record("non-tensor", (2,), data=data)
        assert node.child("stack").meta.data == [data, 1]
        for key in ("value", "stack"):
            with pytest.raises(RuntimeError, match="allow_pickle"):
                Folder(tmp_path).child(key)

    def test_every_leaf_has_a_home(self, tmp_path: Path) -> None:
        dense(tmp_path, {"x": torch.ones(2), "empty": torch.ones(0)})
        for mode in ("r", "r+"):
            for key, tensor in Folder(tmp_path, mode).leaves().items():
                home = home_of(tensor)
                assert home is not None
                assert (home.path, home.mode) == (str(tmp_path / f"{key}.memmap"), mode)

    def test_odd_keys_are_read_again(self, tmp_path: Path) -> None:
        keys = ["z", "shape", "UP", "up", "_names", "x" * 300, "a", "\ud800", "device", "b", "_tensordict_keys"]
        node = dense(tmp_path, {key: torch.tensor(place) for place, key in enumerate(keys)})
        inner = node.child("a.memmap")
        inner.meta = Record("dense", ())
        node.meta = Record("dense", (), names=None)
        node = Folder(tmp_path)
        assert list(node.keys()) == [*keys, "a.memmap"]
        assert [node.read(key).item() for key in keys] == list(range(len(keys)))
        assert node.child("a.memmap").meta == Record("dense", ())
