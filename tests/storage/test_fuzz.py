"""Damaged, hostile and merely odd records and files: a clear error or the right value, and nothing else.

``TENSORDICT_FUZZ=20000 pytest tests/storage/test_fuzz.py`` runs that many cases of each test.
"""

from __future__ import annotations

import atexit
import copy
import functools
import io
import json
import os
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_consolidated import by_the_published_package
from torch import Tensor

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorClass, TensorDict, UnbatchedTensor, lazy_stack
from tensordict.core.core import Core
from tensordict.storage.memmap import home_of

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
CASES = int(os.environ.get("TENSORDICT_FUZZ", "100"))
FEW = settings(
    max_examples=CASES,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
CLEAR = (ValueError, RuntimeError, KeyError, FileNotFoundError, IsADirectoryError, NotADirectoryError)


class Fuzzed(TensorClass):
    obs: Tensor
    about: Any = None


def content() -> TensorDict:
    rows = [torch.ones(2, 2), torch.ones(1, 2)]
    values = {
        "x": torch.arange(6.0).view(2, 3),
        "a/b": torch.arange(2),
        "shape": torch.ones(2, dtype=torch.bool),
        "n": {"y": torch.arange(2, dtype=torch.int16), "deep": {"z": torch.ones(2, 1, dtype=torch.complex64)}},
        "jagged": torch.nested.nested_tensor(rows, layout=torch.jagged),
        "strided": torch.nested.nested_tensor(rows),
        "text": "run",
        "texts": NonTensorStack("a", "b"),
        "fuzzed": Fuzzed(obs=torch.zeros(2), about="x", batch_size=[2]),
        "lazy": lazy_stack([TensorDict({"p": torch.ones(n)}) for n in (1, 2)]),
        "all": UnbatchedTensor(torch.arange(3)),
        "none": torch.ones(2, 0),
    }
    return TensorDict(values, [2], names=["time"])


@functools.cache
def saved() -> tuple[dict[str, bytes], bytes, bytes]:
    """Return the files of a folder, and two consolidated files, of the same tree: plain, and with packed rows."""
    long = TensorDict({"s": [f"row {n}" for n in range(1000)]}, [1000])
    td = TensorDict({**dict(content().select("x", "a/b", "shape", "texts").items()), "inner": content(), "long": long})
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        td.memmap(root / "data")
        td.consolidate(root / "one")
        content().consolidate(root / "rows", layout="rows")
        files = {str(p.relative_to(root / "data")): p.read_bytes() for p in (root / "data").rglob("*") if p.is_file()}
        return files, (root / "one").read_bytes(), (root / "rows").read_bytes()


@functools.cache
def template() -> str:
    """Return a folder with these files, which is there until the program ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    for name, data in saved()[0].items():
        path = Path(folder.name, "data", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return os.path.join(folder.name, "data")


# --- mutations

NASTY: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 70, -(1 << 70)),
    *(1.5, float("nan"), float("inf"), -0.0, 1e308, "", " ", ".", "..", "/", "../x", "/etc/passwd", "a/../../b", "\0"),
    *("x.memmap", "meta.json", "../data/x.memmap", "n/y.memmap", "%%tmp", "\ud800", "x" * 300, "torch.float32", "cpu"),
    *(
        "torch.float8_e4m3fn",
        "torch.quint8",
        "torch.os",
        "torch.complex128",
        "cuda:99",
        "nonsense",
        "meta",
        "pickle.pkl",
    ),
    *("<class 'os.system'>", "os:system", "tensordict:TensorDict", "tensordict:LazyStackedTensorDict", "builtins:eval"),
    *("tensordict:NonTensorData", "tensordict:NonTensorStack", "tensordict:UnbatchedTensor", "pickle.pkl"),
    *("<class 'tensordict.nn.params.TensorDictParams'>", "<class 'posixpath.join'>", "strings", "unbatched", "dense"),
    *(
        [],
        [0],
        [1],
        [2],
        [3],
        [2, 3],
        [-1],
        [1.0],
        ["a"],
        [[1]],
        [None],
        [True],
        [1 << 40, 1 << 40],
        [0] * 30,
        [1] * 70,
    ),
    *({}, {"type": "TensorDict"}, {"type": 1}, {"shape": [2], "dtype": "torch.float32"}, {"file": "../x"}),
    {"device": "cpu", "shape": [2], "dtype": "torch.float32", "is_nested": True},
    {"device": "cpu", "shape": [2, 1], "dtype": "torch.uint8", "is_nested": True, "jagged_dim": 1},
    [[0, "k", {"device": "cpu", "shape": [2], "dtype": "torch.int64", "file": "a%2Fb.memmap"}]],
    [[0, "k", {"device": "cpu", "shape": [2], "dtype": "torch.int64", "file": "../data/a%2Fb.memmap"}]],
    [[1 << 70, "k", {"type": "TensorDict", "file": "n"}], [0, "k", {"type": "TensorDict", "file": "."}]],
]
KEYS = (
    "shape device _type _class _names _format_version _tensordict_keys _tensordict_members _tensordict_kind "
    "_tensordict_all data stack_dim stack_dim_name _is_non_tensor type dtype is_nested jagged_dim file batch x n lazy "
    "leaves nodes meta pickle k"
).split()


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value within a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from spots(inner, (*path, key))


json_values = st.one_of(
    st.sampled_from(NASTY),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(["<deep 50>", "<deep 900>", "<deep 20000>"]),
)


def changed(value: Any, draw: Any) -> Any:
    """Return a JSON value with one change at a random place."""
    places = list(spots(value))
    path = places[draw(st.integers(0, len(places) - 1))]
    what = draw(st.sampled_from(["replace", "replace", "remove", "add", "move", "nudge"]))
    if not path:
        return copy.deepcopy(draw(json_values)) if what == "replace" else value
    holder = value
    for step in path[:-1]:
        holder = holder[step]
    last = path[-1]
    if what == "remove":
        del holder[last]
    elif what == "nudge" and type(holder[last]) is int:
        holder[last] += draw(st.sampled_from([-1, 1, -2, 100]))
    elif what == "add" and isinstance(holder, dict):
        holder[draw(st.sampled_from(KEYS))] = copy.deepcopy(draw(json_values))
    elif what == "move" and isinstance(holder, dict):
        holder[draw(st.sampled_from(KEYS))] = holder.pop(last)
    else:
        holder[last] = copy.deepcopy(draw(json_values))
    return value


def spoiled(text: bytes, draw: Any) -> bytes:
    """Return the text of a record, changed as JSON or as bytes."""
    if draw(st.integers(0, 9)) == 0:
        at, new = draw(st.integers(0, len(text) - 1)), draw(st.binary(max_size=3))
        return text[:at] + new + text[at + draw(st.integers(0, 3)) :]
    value = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        value = changed(value, draw)
    return _text(value)


def _text(value: Any) -> bytes:
    text = json.dumps(value)
    for depth in (50, 900, 20_000):
        text = text.replace(f'"<deep {depth}>"', "[" * depth + "]" * depth, 1)
        text = text.replace(f'"<deep {depth}>"', '{"n": ' * depth + "1" + "}" * depth)
    return text.encode()


def damaged_file(path: Path, draw: Any) -> None:
    what = draw(st.sampled_from(["cut", "grow", "remove", "folder", "flip"]))
    data = path.read_bytes()
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "cut":
        path.write_bytes(data[: draw(st.integers(0, max(0, len(data) - 1)))])
    elif what == "grow":
        path.write_bytes(data + bytes(draw(st.integers(1, 100))))
    elif what == "flip" and data:
        at = draw(st.integers(0, len(data) - 1))
        path.write_bytes(data[:at] + bytes([data[at] ^ draw(st.integers(1, 255))]) + data[at + 1 :])


# --- what may not happen

_watching: list[set[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        _watching[-1].add(f"open {os.fsdecode(arguments[0])}")
    elif event in ("os.system", "subprocess.Popen", "pickle.find_class", "exec", "compile", "import"):
        _watching[-1].add(f"{event} {arguments[:1]!r:.100}")


@functools.cache
def _install() -> None:
    sys.addaudithook(_audit)


@contextmanager
def nothing_but(folder: str) -> Iterator[None]:
    """Fail if code runs, or if a file outside of a folder is opened."""
    _install()
    _watching.append(set())
    try:
        yield
    finally:
        seen = _watching.pop()
    inside = os.path.realpath(folder) + os.sep
    bad = {
        one for one in seen if not (one.startswith("open ") and (os.path.realpath(one[5:]) + os.sep).startswith(inside))
    }
    assert not bad, bad


def read(node: Any, folder: str) -> None:
    """Read everything, and see that each leaf is the whole of a file in the folder, or a part of one."""
    if isinstance(node, LazyStackedTensorDict):
        for member in node.tensordicts:
            read(member, folder)
        return
    for key in list(node.keys()):
        child = node._get(key)
        if isinstance(child, Core):
            if child._is_non_tensor:
                child.tolist()
            elif hasattr(child, "_tensor"):
                child._tensor.sum()
            else:
                read(child, folder)
            continue
        values = child._values if child.layout is torch.jagged else child
        home = home_of(values)
        if home is not None:
            assert os.path.realpath(home.path).startswith(os.path.realpath(folder) + os.sep)
            if not child.is_nested and home.path.endswith(".memmap") and child.numel():
                assert os.path.getsize(home.path) == child.nbytes
        [row.clone() for row in child.unbind()] if child.is_nested else child.clone()
    repr(node)


def opened(path: str, folder: str) -> None:
    """Open and read a dataset; a failure must be a clear error."""
    before = {p: os.lstat(p).st_mtime_ns for p in Path(folder).rglob("*")}
    failure: BaseException | None = None
    try:
        with nothing_but(folder):
            if os.path.isdir(path) or path.endswith(".zip"):
                node = TensorDict.load_memmap(path, mode="r")
            else:
                node = TensorDict.from_consolidated(path, mode="r")
            read(node, folder)
    except CLEAR as error:
        failure = error
    if failure is not None:
        message = str(failure)
        assert type(failure).__name__ not in ("RecursionError", "NotImplementedError"), repr(failure)
        assert folder in message or "key" in message or "batch" in message, repr(failure)
        assert len(message) < 100_000
    assert {p: os.lstat(p).st_mtime_ns for p in Path(folder).rglob("*")} == before


def load_compressed(folder: str) -> None:
    path = os.path.join(folder, "a.zip")
    content().memmap(path, archive=True, compression="deflate")
    read(TensorDict.load_memmap(path, mode="r"), folder)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Import what reading imports late, so that it does not look like code that a file runs."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one").write_bytes(saved()[1])
        load_compressed(folder)
        read(TensorDict.load_memmap(template(), mode="r"), template())
        node = TensorDict.from_consolidated(Path(folder, "one"), mode="r")
        read(node, folder)
    assert len(list(node.keys(True))) >= 20


@FEW
@given(st.data())
def test_folders(data: st.DataObject) -> None:
    files, *_ = saved()
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(template(), Path(folder, "data"), copy_function=os.link)
        records = sorted(name for name in files if name.endswith("meta.json"))
        for name in draw(st.lists(st.sampled_from([*records, "meta.json", "meta.json"]), max_size=2, unique=True)):
            path = Path(folder, "data", name)
            text = spoiled(files[name], draw)
            path.unlink()  # it has a second name
            path.write_bytes(text)
        leaves = sorted(name for name in files if not name.endswith("json"))
        for name in draw(st.lists(st.sampled_from(leaves), max_size=1)):
            damaged_file(Path(folder, "data", name), draw)
        opened(str(Path(folder, "data")), folder)


_HEAD = struct.Struct("<8sIIQQ")


@FEW
@given(st.data())
def test_consolidated_files(data: st.DataObject) -> None:
    draw = data.draw
    one = draw(st.sampled_from(saved()[1:]))
    magic, version, _, length, total = _HEAD.unpack(one[: _HEAD.size])
    text, leaves = one[_HEAD.size : _HEAD.size + length], one[len(one) - total :]
    text = spoiled(text, draw)
    start = -(-(_HEAD.size + len(text)) // 64) * 64
    head = _HEAD.pack(magic, version, zlib.crc32(text), len(text), total)
    made = bytearray(head + text + bytes(start - _HEAD.size - len(text)) + leaves)
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(made) - 1) | st.integers(0, _HEAD.size - 1))
        made[at] ^= draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one").write_bytes(made)
        opened(str(Path(folder, "one")), folder)


@FEW
@given(st.data())
def test_consolidated_files_of_the_published_package(data: st.DataObject) -> None:
    whole = by_the_published_package()
    text = spoiled(whole[48:-8], data.draw)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one").write_bytes(whole[:48] + text + struct.pack("<q", len(text)))
        opened(str(Path(folder, "one")), folder)


@FEW
@given(st.data())
def test_archives(data: st.DataObject) -> None:
    files, *_ = saved()
    draw = data.draw
    bad = draw(st.lists(st.sampled_from(sorted(n for n in files if n.endswith("meta.json"))), max_size=1))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for name, content in files.items():
            archive.writestr(name, spoiled(content, draw) if name in bad else content)
    raw = bytearray(made.getvalue())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(raw) - 1) | st.integers(len(raw) - 3000, len(raw) - 1))
        raw[at] ^= draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.zip").write_bytes(raw[: draw(st.just(len(raw)) | st.integers(0, len(raw)))])
        opened(str(Path(folder, "a.zip")), folder)


@pytest.mark.parametrize("depth", [100, 400])
def test_deep_trees_are_read_or_refused(depth: int, tmp_path: Path) -> None:
    path, record = str(tmp_path), '{"n": {"type": "TensorDict"}, "shape": [], "_type": "<class \'T\'>"}'
    for level in range(depth):
        with open(f"{path}/meta.json", "w") as file:
            file.write(record if level < depth - 1 else record.replace('"n": {"type": "TensorDict"}, ', ""))
        path += "/n"
        os.mkdir(path)
    try:
        node: Any = TensorDict.load_memmap(tmp_path)
        for _ in range(depth - 1):
            node = node["n"]
        assert list(node.keys()) == []
    except ValueError as error:
        assert depth > 100
        assert "too deep" in str(error)  # noqa: PT017


def test_a_folder_that_holds_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text('{"n": {"type": "TensorDict"}, "shape": [], "_type": "<class \'T\'>"}')
    (tmp_path / "n").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises((ValueError, OSError), match=r"too deep|symbolic links"):
        TensorDict.load_memmap(tmp_path)
