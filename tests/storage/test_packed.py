"""Leaves side by side: the same values as plain leaves, whatever is asked, and a batch of rows in one gather."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_consolidated import assert_alike
from test_contract import DTYPES, any_tensor, bits
from torch import Tensor

from tensordict import (
    NonTensorData,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    append_memmap,
    from_consolidated,
    lazy_stack,
)
from tensordict.ops.parallel.wire import dumps, loads
from tensordict.storage.packed import Records, record

pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
]

ROWS = 12


class Point(TensorClass):
    x: Tensor
    tag: str


def table() -> TensorDict:
    """Return leaves of every dtype, in nested nodes and in a tensorclass, and all that cannot be packed."""
    leaves = {str(dtype): any_tensor((ROWS, at % 3), dtype, at) for at, dtype in enumerate(DTYPES)}
    ragged = [torch.arange(float(at)) for at in range(ROWS)]
    return TensorDict(
        {
            **leaves,
            "flag": torch.arange(ROWS) % 2 == 0,
            "n": {"deep": {"y": torch.arange(ROWS * 6.0).view(ROWS, 2, 3)}, "z": torch.arange(ROWS, dtype=torch.int8)},
            "wide": TensorDict({"v": torch.arange(ROWS * 4).view(ROWS, 4)}, [ROWS, 4]),
            "point": Point(torch.ones(ROWS, 5), tag="p", batch_size=[ROWS]),
            "word": [str(at) for at in range(ROWS)],
            "jagged": torch.nested.as_nested_tensor(ragged, layout=torch.jagged),
            "lazy": lazy_stack([TensorDict({"q": torch.full((2,), at)}) for at in range(ROWS)]),
            "scale": UnbatchedTensor(torch.tensor([0.5, 2.0])),
        },
        [ROWS],
        names=["time"],
    )


HOMES: dict[str, Callable[[Any, Path], Any]] = {
    "memory": lambda td, path: td.consolidate(layout="rows"),
    "shared": lambda td, path: td.consolidate(layout="rows", share_memory=True),
    "in place": lambda td, path: td.consolidate(layout="rows", inplace=True),
    "file": lambda td, path: td.consolidate(path / "file", layout="rows"),
    "reopened": lambda td, path: reopened(td, path, "r+"),
    "to read": lambda td, path: reopened(td, path, "r"),
    "folder": lambda td, path: td.memmap(path / "folder", layout="rows"),
    "folder in place": lambda td, path: td.memmap_(path / "folder", layout="rows"),
    "loaded": lambda td, path: loaded(td, path, "r+"),
    "loaded to read": lambda td, path: loaded(td, path, "r"),
    "temporary": lambda td, path: td.memmap(layout="rows"),
    "pickle": lambda td, path: pickle.loads(pickle.dumps(td.consolidate(layout="rows"), protocol=5)),
}


def reopened(td: Any, path: Path, mode: str) -> Any:
    td.consolidate(path / "file", layout="rows")
    return from_consolidated(path / "file", mode=mode)


def loaded(td: Any, path: Path, mode: str) -> Any:
    td.memmap(path / "folder", layout="rows")
    return TensorDict.load_memmap(path / "folder", mode=mode, verify=True)


INDICES: list[Any] = [
    3,
    -1,
    slice(2, 9, 3),
    slice(0, 0),
    None,
    ...,
    True,
    (),
    [3, 1, 3],
    [-1, 0],
    [[0, 1], [5, -2]],
    range(2, 8, 2),
    numpy.array([4, 4, 2]),
    torch.tensor([7, 0, -3]),
    torch.tensor([7, 0], dtype=torch.int16),
    torch.tensor([[1], [2]]),
    torch.tensor(4),
    torch.zeros(0, dtype=torch.long),
    torch.arange(ROWS) % 3 == 0,
    [True] + [False] * (ROWS - 1),
    (torch.tensor([1, 2]), None),
    (None, torch.tensor([1, 2])),
    (..., [2, 3]),
]


@pytest.mark.parametrize("home", HOMES)
def test_every_index_reads_what_it_reads_of_plain_leaves(home: str, tmp_path: Path) -> None:
    td, want = HOMES[home](table(), tmp_path), table()
    assert_alike(td, want)
    assert td.is_consolidated()
    for index in INDICES:  # nested tensors have no room for more batch dims
        assert_alike(td.exclude("jagged")[index], want.exclude("jagged")[index])
    for index in ([3, 1, 3], torch.tensor([7, 0, -3]), slice(2, 9, 3), torch.arange(ROWS) % 3 == 0):
        assert_alike(td[index], want[index])
    assert_alike(td.__getitems__([5, 1, 5]), want.__getitems__([5, 1, 5]))
    for index in ([ROWS], torch.tensor([0, -ROWS - 1]), torch.tensor([0.5])):
        with pytest.raises(IndexError):
            td[index]
    for word in (lambda t: t[2:], lambda t: t[::2], lambda t: t.select("flag", "n"), lambda t: t.exclude("flag")):
        assert_alike(word(td)[[3, 0]], word(want)[[3, 0]])
    assert_alike(td.clone()[[3, 0]], want[[3, 0]])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=6),
    st.lists(st.integers(-5, 4), max_size=6),
    st.integers(1, 5),
)
def test_any_leaves_any_rows(leaves: list[Any], index: list[int], step: int) -> None:
    td = TensorDict({str(at): any_tensor((5, *shape), dtype, at) for at, (dtype, shape) in enumerate(leaves)}, [5])
    got = td.consolidate(layout="rows")
    rows = torch.tensor(index, dtype=torch.long)
    assert_alike(got[rows], td[rows])
    thin = rows % (-(-5 // step))
    assert_alike(got[::step][thin], td[::step][thin])


@pytest.mark.parametrize("home", HOMES)
def test_a_batch_of_rows_is_one_gather(home: str, tmp_path: Path) -> None:
    td = HOMES[home](table(), tmp_path)
    got = td[[5, 1]]
    packed = ["flag", ("n", "z"), ("n", "deep", "y"), ("wide", "v"), ("point", "x"), "torch.float64"]
    assert len({got[key].untyped_storage().data_ptr() for key in packed}) == 1
    assert len({td[key].stride(0) * td[key].itemsize for key in packed}) == 1
    assert got[packed[0]].untyped_storage().nbytes() == 2 * td["flag"].stride(0)
    # as from plain leaves, the result is nobody's dataset, and each leaf is apart from the others
    assert (got.is_locked, got.is_consolidated(), got.is_memmap()) == (False, False, False)
    got["n", "deep", "y"].mul_(torch.ones(3, requires_grad=True))
    assert [got[key].requires_grad for key in packed] == [False, False, True, False, False, False]
    got["flag"].fill_(False)
    assert bits(td["flag"]) == bits(table()["flag"])
    assert got["torch.float64"].eq(table()["torch.float64"][[5, 1]]).all()


def test_leaves_that_changed_are_read_as_they_are_now() -> None:
    want = table().exclude("jagged")
    td = want.consolidate(layout="rows")
    rows = torch.tensor([2, 0])
    _ = td[rows]
    for node in (td.unlock_(), want):
        node["flag"] = torch.zeros(ROWS, dtype=torch.bool)
        node["new"] = torch.arange(ROWS)
        node["n", "z"] = torch.ones(ROWS)
        del node["torch.float64"]
        node.rename_key_("torch.int8", "renamed")
        node["n", "deep", "y"].add_(1)
        node[1:3] = node[4:6]
    assert_alike(td[rows], want[rows])
    leaf = td["n", "deep", "y"].requires_grad_()
    got = td[rows]
    got["n", "deep", "y"].sum().backward()
    assert leaf.grad.sum() == 12
    assert got["renamed"].eq(want["renamed"][rows]).all()


def test_a_transform_sees_each_leaf() -> None:
    td = TensorDict({"x": torch.arange(6.0), "y": torch.arange(6.0) * 2}, [6]).consolidate(layout="rows")
    got = torch.vmap(lambda row: td[row[None]]["y"])(torch.tensor([4, 2]))
    assert got.tolist() == [[8], [4]]


def test_writes_reach_the_records(tmp_path: Path) -> None:
    td, want = table().consolidate(tmp_path / "file", layout="rows"), table()
    for node in (td, want):
        node["n", "deep", "y"].add_(1)
        node.get("wide")[[1, 2]] = node.get("wide")[[4, 5]]
    assert_alike(from_consolidated(tmp_path / "file"), want)


def test_a_folder_of_packed_rows_keeps_what_it_should(tmp_path: Path) -> None:
    td = table()
    td.memmap(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    td.memmap(tmp_path, layout="rows")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checksums.json",
        "content.memmap",
        "meta.json",
        "notes.txt",
    ]
    assert json.loads((tmp_path / "meta.json").read_text())["_format_version"] == 2
    assert_alike(from_consolidated(tmp_path / "content.memmap"), td)
    got = TensorDict.load_memmap(tmp_path)
    assert (got.is_memmap(), got.saved_path) == (True, str(tmp_path))
    for packed in (got, td.memmap(layout="rows")):
        assert packed["n", "deep", "y"][3:].parent_shape == (ROWS, 2, 3)
        assert packed["flag"][4].parent_shape == (ROWS,)
    before = (tmp_path / "content.memmap").read_bytes()
    for write in (lambda: got.get("word").__setitem__(0, "z"), lambda: got["point"].set_at_("tag", "z", 0)):
        with pytest.raises(PermissionError, match="grow"):
            write()
    assert (tmp_path / "content.memmap").read_bytes() == before
    got["flag"].fill_(True)
    assert TensorDict.load_memmap(tmp_path, mode="r")["flag"].all()
    assert sorted(path.name for path in tmp_path.iterdir())[1] == "content.memmap"
    (tmp_path / "content.memmap").write_bytes(before[:-64])
    with pytest.raises(ValueError, match=r"content.memmap.*should hold"):
        TensorDict.load_memmap(tmp_path)
    td.memmap(tmp_path)
    assert_alike(TensorDict.load_memmap(tmp_path), td)


def test_packed_rows_are_read_again_but_do_not_grow(tmp_path: Path) -> None:
    td = table().memmap(tmp_path, layout="rows")
    with pytest.raises(RuntimeError, match="part"):
        td[2:].memmap_refresh_()
    table().exclude("jagged").memmap(tmp_path, layout="rows")
    assert_alike(td.memmap_refresh_(), table().exclude("jagged"))
    with pytest.raises(ValueError, match="layout='rows'"):
        append_memmap(tmp_path, td)


def test_objects_in_packed_rows_are_loaded_only_when_allowed(tmp_path: Path) -> None:
    td = TensorDict({"x": torch.zeros(3), "y": torch.zeros(3), "any": NonTensorData({1, 2}, [3])}, [3])
    td.memmap(tmp_path, layout="rows")
    with pytest.raises(RuntimeError, match=r"'any'.*allow_pickle"):
        TensorDict.load_memmap(tmp_path)
    assert TensorDict.load_memmap(tmp_path, allow_pickle=True)["any"] == {1, 2}


def test_rows_need_a_batch_dim_and_a_known_layout(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layout='rows' needs a batch dim"):
        TensorDict({"x": torch.zeros(3)}).consolidate(layout="rows")
    one = TensorDict({"x": torch.arange(4.0), "y": torch.arange(4)}, [4]).consolidate(layout="rows")[:1]
    assert_alike(one.consolidate(tmp_path / "one"), one)  # one element, whose stride is that of a record
    assert_alike(pickle.loads(pickle.dumps(one, protocol=5)), one)
    assert_alike(one.memmap(tmp_path / "folder"), one)
    assert_alike(loads(dumps(one)), one)
    (tmp_path / "one").unlink()
    shutil.rmtree(tmp_path / "folder")
    with pytest.raises(ValueError, match="'columns'"):
        TensorDict({"x": torch.zeros(3)}, [3]).consolidate(tmp_path / "file", layout="columns")
    assert list(tmp_path.iterdir()) == []
    for count in (0, 1):  # nothing to lay side by side
        td = TensorDict({"x": torch.zeros(count, 2), "y": torch.zeros(count)}, [count])
        assert_alike(td.consolidate(tmp_path / "file", layout="rows")[[]], td[[]])
        assert_alike(from_consolidated(tmp_path / "file"), td)


def test_a_long_table_is_written_some_records_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensordict.storage.consolidated._AT_ONCE", 200)
    table().consolidate(tmp_path / "file", layout="rows")
    assert_alike(from_consolidated(tmp_path / "file"), table())


def test_the_record_is_what_the_page_says() -> None:
    specs = [((4,), torch.uint8), ((4, 3), torch.float32), ((4,), torch.int16), ((4,), torch.complex128)]
    assert record(specs) == ([0, 4, 16, 32], 48)
    assert record([((4, 3), torch.uint8)]) == ([0], 8)
    td = TensorDict({str(at): torch.zeros(shape, dtype=dtype) for at, (shape, dtype) in enumerate(specs)}, [4])
    td = td.consolidate(layout="rows")
    assert [int(leaf.storage_offset()) * leaf.itemsize for leaf in td.values()] == [0, 4, 16, 32]
    assert {leaf.stride(0) * leaf.itemsize for leaf in td.values()} == {48}


def test_leaves_that_only_look_like_records_are_not_gathered_together() -> None:
    block = torch.arange(40)
    far = [block.as_strided((4,), (2,), 0), block.as_strided((4,), (2,), 20)]  # of one stride, but rows lie apart
    at_the_end = [block.as_strided((2, 1), (39, 1), 0), block.as_strided((2, 1), (39, 1), 0)]
    for leaves in (far, [torch.zeros(4), torch.zeros(4)], [block[:4]], [], [torch.tensor(1), torch.tensor(2)]):
        assert not Records(leaves).can_pick()
    rows = torch.tensor([1])
    assert [leaf.tolist() for leaf in Records(at_the_end).pick(lambda v: v[rows])] == [[[39]], [[39]]]
