"""Whatever a tensordict can hold comes back from whatever home it was saved to, by any key."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tensordict import (
    LazyStackedTensorDict,
    NonTensorStack,
    PersistentTensorDict,
    TensorClass,
    TensorDict,
    UnbatchedTensor,
    lazy_stack,
)
from tensordict.core.core import Core

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]
NAMES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64 bfloat16 complex32 complex64 "
    "complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
).split()
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]
ODD = [
    *("", ".", "..", "meta.json", "checksums.json", "shape", "device", "_type", "_tensordict", "x.memmap", "x.shape"),
    *(
        "a/b",
        "a.b",
        "A.B",
        "a",
        "A",
        "\u00e9",
        "e\u0301",
        "\u00df",
        "ss",
        "%",
        "%2F",
        "%-",
        "CON",
        "nul\0",
        "\n",
        " ",
        "*?<>|",
    ),
    *("x" * 300, "\ud800", "0"),
]
keys = st.sampled_from(ODD) | st.text(max_size=4)
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


class Thing(TensorClass):
    obs: Tensor
    about: Any = None


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@st.composite
def leaves(draw: Any, batch: int) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = (batch, *draw(st.lists(st.integers(0, 3), max_size=2)))
    count = int(np.prod(shape)) * dtype.itemsize
    content = draw(st.binary(min_size=count, max_size=count))
    if dtype is torch.bool:
        return torch.tensor([byte % 2 == 1 for byte in content], dtype=torch.bool).reshape(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(dtype).reshape(shape)


json_values = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
objects = (
    json_values | st.lists(json_values, max_size=3) | st.dictionaries(st.text(max_size=3), json_values, max_size=2)
)


@st.composite
def trees(draw: Any, batch: int, depth: int, everything: bool) -> TensorDict:
    td = TensorDict({}, [batch])
    for key in draw(st.lists(keys, max_size=4, unique=True)):
        kind = draw(
            st.sampled_from(["leaf", "leaf", "leaf", "node", "object", "column", "class", "lazy", "nested", "all"])
        )
        if kind == "node" and depth:
            td[key] = draw(trees(batch, depth - 1, everything))
        elif kind == "object":
            td.set_non_tensor(key, draw(json_values))
        elif kind == "column" and batch:
            td[key] = NonTensorStack(*draw(st.lists(st.text(max_size=3), min_size=batch, max_size=batch)))
        elif kind == "class" and everything:
            td[key] = Thing(obs=draw(leaves(batch)), about="text", batch_size=[batch])
        elif kind == "lazy" and batch and everything:
            sizes = draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
            td[key] = lazy_stack([TensorDict({"p": torch.full((n, 2), float(n))}) for n in sizes])
        elif kind == "nested" and batch and everything:
            sizes = draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch))
            rows = [torch.rand(n, 2) for n in sizes]
            layout = draw(st.sampled_from([torch.jagged, torch.strided]))
            td[key] = torch.nested.nested_tensor(rows, layout=layout)
        elif kind == "all" and everything:
            td[key] = UnbatchedTensor(torch.arange(3))
        else:
            td[key] = draw(leaves(batch))
    return td


def same(mine: Any, theirs: Any, at: str = "") -> None:
    """Fail unless two trees have the same keys in the same order, and the same values."""
    if isinstance(mine, LazyStackedTensorDict):
        for n, (one, other) in enumerate(zip(mine.unbind(0), theirs.unbind(0), strict=True)):
            same(one, other, f"{at}/{n}")
        return
    assert list(mine.keys()) == list(theirs.keys()), at
    assert mine.batch_size == theirs.batch_size, at
    for key in list(mine.keys()):
        one, other, where = mine.get(key), theirs.get(key), f"{at}/{key!r}"
        if isinstance(one, Tensor):
            assert one.dtype is other.dtype and one.is_nested == other.is_nested and one.layout is other.layout, where
            rows = zip(one.unbind(), other.unbind(), strict=True) if one.is_nested else [(one, other)]
            assert all(a.shape == b.shape and bits(a) == bits(b) for a, b in rows), where
        elif not isinstance(one, Core):
            assert one == other, where
        elif one._is_non_tensor:
            assert one.tolist() == other.tolist(), where
        else:
            assert type(one) is type(other) or isinstance(other, PersistentTensorDict), where
            same(one, other, where)


@FEW
@given(st.integers(0, 3).flatmap(lambda batch: trees(batch, 2, True)), st.sampled_from(["r", "r+"]))
@example(TensorDict({key: torch.tensor(n) for n, key in enumerate(ODD)}), "r")
@example(TensorDict({key: {key: torch.tensor(n)} for n, key in enumerate(ODD)}), "r")
@example(TensorDict({str(dtype): torch.ones(2, 2).to(dtype) for dtype in DTYPES}, [2]), "r+")
def test_folders_and_files(td: TensorDict, mode: str) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        td.memmap(f"{folder}/data")
        same(td, TensorDict.load_memmap(f"{folder}/data", mode=mode, verify=True))
        td.consolidate(f"{folder}/one")
        same(td, TensorDict.from_consolidated(f"{folder}/one", mode=mode))


@pytest.mark.parametrize("backend", ["h5", "zarr"])
@FEW
@given(data=st.data())
def test_stores_of_arrays(backend: str, data: st.DataObject) -> None:
    td = data.draw(st.integers(0, 3).flatmap(lambda batch: trees(batch, 1, False)))
    with tempfile.TemporaryDirectory() as folder:
        stored = PersistentTensorDict.from_dict(td, f"{folder}/data", backend=backend)
        try:
            same(td, stored)
        finally:
            stored.close()


@pytest.mark.parametrize("what", ["quantized", "sparse"])
def test_what_cannot_be_saved_is_refused(what: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = (
            torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
            if what == "quantized"
            else torch.eye(3).to_sparse()
        )
    td = TensorDict({"before": torch.ones(3), "x": value}, [3])
    for write in (
        lambda: td.memmap(tmp_path / "folder"),
        lambda: td.consolidate(tmp_path / "one"),
        lambda: td.to_h5(tmp_path / "data.h5"),
        lambda: td.to_zarr(tmp_path / "data.zarr"),
    ):
        with pytest.raises((TypeError, ValueError, RuntimeError), match=r"sparse|quantized|qint8"):
            write()
    assert os.listdir(tmp_path) == []


# --- another reader, which knows docs/file-format.md only


def percent(key: str) -> str:
    unsafe = {*map(chr, range(33)), "\x7f", *'"%*/:<>?\\|'}
    name = "".join(f"%{ord(c):02X}" if c in unsafe else c for c in key) or "%"
    return name.replace(".", "%2E") if name in (".", "..") else name


def independent(folder: Path) -> Any:
    """Read a folder with json and numpy."""
    meta = json.loads((folder / "meta.json").read_text())
    kind = meta.get("_class", meta["_type"]).rpartition(":")[2].rpartition(".")[2].rstrip("'>")
    if meta.get("_is_non_tensor") or (kind == "NonTensorStack" and "_tensordict_kind" not in meta):
        return meta["data"]
    if kind == "LazyStackedTensorDict":
        return [independent(folder / str(n)) for n in range(meta["_tensordict_members"])]
    if "shape" not in meta:
        return independent(folder / "_tensordict")
    entries = [(key, value) for key, value in meta.items() if isinstance(value, dict)]
    for place, key, value in meta.get("_tensordict_keys", []):
        entries.insert(place, (key, value))
    found = {}
    for key, value in entries:
        name = value.get("file")
        if "dtype" not in value:
            found[key] = independent(folder / (name or percent(key)))
            continue
        path = folder / (name or f"{percent(key)}.memmap")
        data = np.fromfile(path, np.uint8) if path.exists() else np.empty(0, np.uint8)
        if value["is_nested"]:
            sizes = np.fromfile(path.with_name(path.name[:-7] + ".shape.memmap"), np.int64).reshape(value["shape"])
            assert value.get("jagged_dim", 1) == 1
            ends = np.cumsum(sizes.prod(1) * (len(data) // max(1, sizes.prod(1).sum())))
            found[key] = [row.tobytes() for row in np.split(data, ends[:-1])]
        else:
            found[key] = (value["dtype"], value["shape"], data.tobytes())
    if meta.get("_tensordict_kind") == "strings":
        text, ends = found["bytes"][2], np.frombuffer(found["offsets"][2], np.int64)
        return [text[a:b].decode() for a, b in itertools.pairwise(ends)]
    return found["data"] if meta.get("_tensordict_kind") == "unbatched" else found


def plain(node: Any) -> Any:
    if isinstance(node, LazyStackedTensorDict):
        return [plain(member) for member in node.unbind(0)]
    found: dict[str, Any] = {}
    for key in list(node.keys()):
        value = node.get(key)
        if isinstance(value, UnbatchedTensor) or isinstance(node._get(key), UnbatchedTensor):
            value = torch.arange(3)
        if not isinstance(value, Tensor):
            objects = not isinstance(value, Core) or value._is_non_tensor
            found[key] = node[key] if objects else plain(value)
        elif value.is_nested:
            found[key] = [bits(row) for row in value.unbind()]
        else:
            found[key] = (str(value.dtype), list(value.shape), bits(value))
    return found


@FEW
@given(st.integers(1, 3).flatmap(lambda batch: trees(batch, 2, True)))
@example(TensorDict({"long": [f"row {n}" for n in range(1000)]}, [1000]))
@example(TensorDict({key: torch.tensor(n) for n, key in enumerate(ODD)}))
def test_a_reader_that_follows_the_page_finds_the_same(td: TensorDict) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        td.memmap(folder)
        assert independent(Path(folder)) == plain(td)
