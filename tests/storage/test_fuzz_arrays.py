"""Damaged, hostile and merely odd attributes of HDF5 files and zarr stores: a clear error or the right value.

``TENSORDICT_FUZZ=20000 pytest tests/storage/test_fuzz_arrays.py`` runs that many cases of each test.
"""

from __future__ import annotations

import atexit
import codecs
import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_fuzz import CLEAR, FEW, NASTY, Fuzzed, changed, nothing_but
from torch import Tensor

from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, lazy_stack
from tensordict.core.core import Core

h5py = pytest.importorskip("h5py")
pytest.importorskip("zarr")

LONG = "long" * 60


def content() -> TensorDict:
    values = {
        "x": torch.arange(6.0).view(2, 3),
        "a/b": torch.arange(2),
        "half": torch.ones(2, dtype=torch.bfloat16),
        LONG: torch.ones(2, 1, dtype=torch.complex64),
        "n": {"y": torch.arange(2, dtype=torch.int16), "deep": {"z": torch.ones(2, 1, dtype=torch.float8_e5m2)}},
        "text": "run",
        "texts": NonTensorStack("a", "b"),
        "objects": NonTensorStack({"a": 1}, [2]),
        "one": NonTensorData({"k": 1}, [2]),
        "fuzzed": Fuzzed(obs=torch.zeros(2), about="x", batch_size=[2]),
        "lazy": lazy_stack([TensorDict({"p": torch.ones(n)}) for n in (1, 2)]),
        "none": torch.ones(2, 0),
    }
    return TensorDict(values, [2], names=["time"])


@functools.cache
def template(backend: str) -> str:
    """Return a store with these values, which is there until the program ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = os.path.join(folder.name, f"data.{backend}")
    (content().to_zarr(path) if backend == "zarr" else content().to_h5(path)).close()
    return path


def read(node: Any) -> None:
    """Read everything that a node holds, and see that it is what was stored under its key, if anything was."""
    if isinstance(node, LazyStackedTensorDict):
        for member in node.tensordicts:
            read(member)
        return
    for key in list(node.keys()):
        child = node._get(key)
        assert child.shape[: node.batch_dims] == node.batch_size
        if isinstance(child, Core) and not child._is_non_tensor:
            read(child)
        elif isinstance(child, Core):
            child.tolist()
        elif key in ("x", "a/b", "y", "z", "half") and child.dtype == (was := content_of(key)).dtype:
            assert torch.equal(child.view(torch.uint8), was.view(torch.uint8))
    repr(node)


def content_of(key: str) -> Tensor:
    return content()[{"y": ("n", "y"), "z": ("n", "deep", "z")}.get(key, key)]


def opened(path: str, backend: str) -> None:
    """Open and read a store; a failure must be a clear error."""
    node: Any = None
    failure: BaseException | None = None
    try:
        with nothing_but(os.path.dirname(path)):
            node = (TensorDict.from_h5 if backend == "h5" else TensorDict.from_zarr)(path)
            read(node)
    except (*CLEAR, TypeError) as error:
        failure = error
    finally:
        if hasattr(node, "close"):
            node.close()
    if failure is not None:
        message = str(failure)
        assert type(failure).__name__ not in ("RecursionError", "NotImplementedError"), repr(failure)
        assert path in message or "key" in message or "batch" in message, repr(failure)
        assert len(message) < 100_000


RAW: list[Any] = [
    *(0, -1, 1.5, True, 1 << 40, b"bytes", b"\xff\xfe", "", "{", "null", "[[[[", '{"version": 1', "\N{SNOWMAN}"),
    *(numpy.zeros(3), numpy.zeros((2, 2), "i8"), numpy.zeros(0), numpy.array([1, 2], "u1"), numpy.float16(1)),
    *(numpy.zeros(2, [("a", "i4")]), numpy.array([b"ab", b"c"]), numpy.bool_(True), "[" * 20_000 + "]" * 20_000),
]
MARKS = "__tensordict__ __tensordict_dtype__ __tensordict_key__ __tensordict_non_tensor__ __tensordict_stack__".split()
MARKS += ["__tensordict_str__", "__tensordict_other__"]
VALUES = st.sampled_from([*NASTY, {"encoding": "pickle"}, {"encoding": "json"}, {"encoding": 1}, [2], [3], [2, 1]])


def spoiled(attributes: dict[str, Any], draw: Any) -> dict[str, Any]:
    """Return attributes of which one has changed as JSON, was added, or is gone."""
    if draw(st.integers(0, 2)):
        return {**attributes, draw(st.sampled_from(MARKS)): draw(VALUES)}
    value = changed({"attributes": attributes}, draw)
    found = value.get("attributes") if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


@FEW
@given(st.data())
def test_attributes_of_zarr(data: st.DataObject) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.zarr")
        shutil.copytree(template("zarr"), path, copy_function=os.link)
        records = sorted(str(record.relative_to(path)) for record in path.rglob("zarr.json"))
        names = draw(st.lists(st.sampled_from([*records, "zarr.json", "zarr.json"]), max_size=2, unique=True))
        for record in map(path.joinpath, names):
            found = json.loads(record.read_text())
            record.unlink()  # it has a second name
            found["attributes"] = spoiled(found.get("attributes", {}), draw)
            record.write_text(json.dumps(found).replace('"<deep 50>"', "[" * 50 + "]" * 50))
        opened(str(path), "zarr")


@FEW
@given(st.data())
def test_attributes_of_hdf5(data: st.DataObject) -> None:
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data.h5")
        shutil.copy(template("h5"), path)
        with h5py.File(path, "r+") as file:
            places = ["/"]
            file.visit(places.append)
            for place in draw(st.lists(st.sampled_from([*sorted(places), "/"]), max_size=2, unique=True)):
                attributes = file[place].attrs
                name = draw(st.sampled_from([*sorted(attributes), *MARKS]))
                if name in attributes and draw(st.integers(0, 3)) == 0:
                    del attributes[name]
                elif name in attributes and isinstance(attributes[name], str) and draw(st.booleans()):
                    attributes[name] = json.dumps(changed(json.loads(attributes[name]), draw))
                else:
                    value = draw(st.sampled_from(RAW) | VALUES)
                    plain = isinstance(value, (bytes, float, numpy.ndarray, numpy.generic)) or value in (0, 1, -1, "{")
                    attributes[name] = value if plain else json.dumps(value)
        opened(path, "h5")


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Import what reading imports late, and see that what is not changed is read."""
    codecs.lookup("ascii")
    for backend, open_ in (("h5", TensorDict.from_h5), ("zarr", TensorDict.from_zarr)):
        node = open_(template(backend))
        read(node)
        assert set(node.keys()) == set(content().keys())
        node.close()
