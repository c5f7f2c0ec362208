"""One block for all leaves: in memory, in a pickle, between processes, in a file."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import signal
import struct
import zlib
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from hypothesis import HealthCheck, given, settings
from test_contract import KEYS, bits, tensors
from torch import Tensor

from tensordict import (
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorClass,
    TensorCollection,
    TensorDict,
    UnbatchedTensor,
    from_consolidated,
    is_non_tensor,
    lazy_stack,
)
from tensordict.roof.homes import home_at
from tensordict.storage.buffer import block_of, is_piece

METHODS = ["fork", "spawn", "forkserver"]
multiprocessing.set_forkserver_preload(["torch"])
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype"),
]


class Step(TensorClass):
    obs: Tensor
    word: str


def tree() -> TensorDict:
    """Return every kind of node and of leaf in one tree."""
    ragged = [torch.arange(float(2 * size)).view(2, size) for size in (3, 1, 2)]
    words = [f"word {at}" if at % 7 else None for at in range(3000)]
    return TensorDict(
        {
            "x": torch.arange(6.0).view(3, 2),
            "n": {"y": torch.arange(3, dtype=torch.int16), "empty": torch.zeros(3, 0), "none": {}},
            "step": Step(torch.ones(3, 4), word="w", batch_size=[3]),
            "lazy": LazyStackedTensorDict(*(TensorDict({"z": torch.ones(at + 1)}) for at in range(3))),
            "jagged": torch.nested.as_nested_tensor(ragged, layout=torch.jagged),
            "strided": torch.nested.as_nested_tensor(ragged, layout=torch.strided),
            "word": ["a", "b", None],
            "words": TensorDict({"long": words}, [3000]).get("long").reshape(3, 1000),
            "object": NonTensorData({"any": {1, 2}}, [3]),
            "scale": UnbatchedTensor(torch.tensor([0.5, 2.0])),
            "flags": torch.tensor([True, False, True]),
        },
        [3],
        names=["time"],
    )


def assert_alike(got: Any, want: Any) -> None:
    """Assert that two trees agree in kinds, batch sizes, names, keys and every bit of every leaf."""
    assert type(got) is type(want)
    assert (got.batch_size, got.names, list(got.keys())) == (want.batch_size, want.names, list(want.keys()))
    if isinstance(want, LazyStackedTensorDict):
        for one, two in zip(got.tensordicts, want.tensordicts, strict=True):
            assert_alike(one, two)
        return
    for key in want.keys():  # noqa: SIM118
        one, two = got.get(key), want.get(key)
        if not isinstance(two, Tensor):
            if isinstance(two, TensorCollection) and not is_non_tensor(two):
                assert_alike(one, two)
            else:
                assert plain(one) == plain(two), key
        elif two.is_nested:
            assert one.layout == two.layout
            assert all(torch.equal(a, b) for a, b in zip(one.unbind(), two.unbind(), strict=True))
        else:
            assert (one.shape, one.dtype, bits(one)) == (two.shape, two.dtype, bits(two)), key


def plain(value: Any) -> Any:
    return value.tolist() if is_non_tensor(value) else value


def blocks(td: Any) -> set[int]:
    """Return the storages that the leaves lie in, the strings of long columns among them."""
    return {leaf.untyped_storage().data_ptr() for leaf in leaves(td)}


def leaves(node: Any) -> Iterator[Tensor]:
    if isinstance(node, Tensor):
        yield node.values() if node.is_nested else node
    elif isinstance(node, LazyStackedTensorDict):
        for member in node.tensordicts:
            yield from leaves(member)
    elif isinstance(node, NonTensorStack):
        yield from node._pool.strings.tensors().values() if node._pool.strings else ()
    elif isinstance(node, TensorCollection):
        for key in node.keys():  # noqa: SIM118
            yield from leaves(node.get(key))


ROADS: dict[str, Callable[[Any, Path], Any]] = {
    "memory": lambda td, path: td.consolidate(),
    "in place": lambda td, path: td.consolidate(inplace=True),
    "shared": lambda td, path: td.consolidate(share_memory=True),
    "again": lambda td, path: td.consolidate().consolidate(),
    "file": lambda td, path: td.consolidate(path / "file"),
    "reopened": lambda td, path: reopened(td, path, "r+"),
    "to read": lambda td, path: reopened(td, path, "r"),
    "pickle": lambda td, path: pickle.loads(pickle.dumps(td.consolidate())),
    "pickle 5": lambda td, path: pickle.loads(pickle.dumps(td.consolidate(), protocol=5)),
    "pickle of a file": lambda td, path: pickle.loads(pickle.dumps(td.consolidate(path / "file"))),
    "process": lambda td, path: pickle.loads(ForkingPickler.dumps(td.consolidate())),
}


def reopened(td: Any, path: Path, mode: str) -> Any:
    td.consolidate(path / "file")
    return from_consolidated(path / "file", mode=mode, allow_pickle=True)


@pytest.mark.parametrize("road", ROADS)
def test_every_kind_of_node_and_leaf_lies_in_one_block(road: str, tmp_path: Path) -> None:
    got = ROADS[road](tree(), tmp_path)
    assert_alike(got, tree())
    assert got.is_consolidated()
    assert len(blocks(got) - {0}) == 1
    assert got["jagged"]._ragged_idx == tree()["jagged"]._ragged_idx


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors)
def test_any_leaf_comes_back_from_memory_from_a_file_and_from_a_pickle(tmp_path: Path, leaf: Tensor) -> None:
    td = TensorDict({"a": leaf, "n": {"a": leaf[None]}, "b": torch.zeros(3, dtype=torch.int8)})
    for got in (
        td.consolidate(),
        td.consolidate(tmp_path / "file"),
        from_consolidated(tmp_path / "file"),
        pickle.loads(pickle.dumps(td.consolidate(), protocol=5)),
    ):
        assert_alike(got, td)


def test_any_key_comes_back(tmp_path: Path) -> None:
    td = TensorDict({key: {inner: torch.tensor(at) for inner in KEYS} for at, key in enumerate(KEYS)})
    td.consolidate(tmp_path / "file")
    assert_alike(from_consolidated(tmp_path / "file"), td)


@pytest.mark.parametrize("make", [lambda: TensorDict({}, [4]), lambda: TensorDict({"s": "text"}), lambda: TensorDict()])
def test_a_tree_without_leaves_is_one_too(make: Callable[[], Any], tmp_path: Path) -> None:
    td = make()
    for got in (td.consolidate(), td.consolidate(tmp_path / "file"), from_consolidated(tmp_path / "file")):
        assert_alike(got, td)
        assert got.is_consolidated()
    assert_alike(pickle.loads(pickle.dumps(td.consolidate())), td)


def test_only_the_whole_is_consolidated() -> None:
    td = tree().consolidate()
    parts = [td[:2], td.select("x"), td["n"], td.clone(), td + 1, td.exclude("words"), tree()]
    assert [part.is_consolidated() for part in parts] == [False] * len(parts)
    with td.unlock_():
        td["new"] = torch.zeros(3)
        assert not td.is_consolidated()
        del td["new"]
        assert td.is_consolidated()


def test_a_copy_is_locked_and_apart_from_its_source() -> None:
    td = TensorDict({"x": torch.zeros(3, requires_grad=True)}, [3], device="cpu")
    got = td.consolidate()
    assert (got.is_locked, td.is_locked, got.device, got["x"].requires_grad) == (True, False, td.device, False)
    got["x"].add_(1)
    assert td["x"].tolist() == [0, 0, 0]
    moved = TensorDict({"x": torch.zeros(3)}, [3])
    assert moved.consolidate(inplace=True) is moved
    assert moved.is_consolidated()


def test_values_on_no_device_are_refused_by_name() -> None:
    td = TensorDict({"n": {"x": torch.zeros(3, device="meta")}})
    with pytest.raises(RuntimeError, match=r"'x'.*meta"):
        td.consolidate()
    with pytest.raises(TypeError, match=r"'x'.*sparse"):
        TensorDict({"x": torch.eye(2).to_sparse()}).consolidate()
    with pytest.raises(ValueError, match="filename"):
        TensorDict({"x": 1}).consolidate("somewhere", share_memory=True)
    assert not os.path.exists("somewhere")


# ---- pickle


def test_protocol_5_moves_one_buffer_without_a_copy() -> None:
    td = tree().consolidate()
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(td, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    got = pickle.loads(text, buffers=buffers)
    assert_alike(got, td)
    assert got.is_consolidated()
    got["x"].fill_(7)  # the same memory from end to end
    assert td["x"].tolist() == [[7, 7]] * 3
    assert memoryview(buffers[0]).nbytes == td["x"].untyped_storage().nbytes()


def test_plain_leaves_go_out_of_band_too() -> None:
    whole = torch.arange(8.0).view(4, 2)
    td = TensorDict({"x": whole, "part": whole[1:3], "t": whole.t()[:, :2], "n": {"y": torch.ones(2, 3)}}, [2][:0])
    buffers: list[pickle.PickleBuffer] = []
    got = pickle.loads(pickle.dumps(td, protocol=5, buffer_callback=buffers.append), buffers=buffers)
    assert sorted(memoryview(buffer).nbytes for buffer in buffers) == [16, 24, 32]  # the transposed one is copied
    assert_alike(got, td)
    assert not got.is_consolidated()
    got["n", "y"].zero_()
    assert td["n", "y"].sum() == 0


@pytest.mark.parametrize("make", [lambda: tree().consolidate(), tree])
def test_buffers_that_may_not_be_written_are_copied(make: Callable[[], Any]) -> None:
    buffers: list[pickle.PickleBuffer] = []
    td = make()
    text = pickle.dumps(td, protocol=5, buffer_callback=buffers.append)
    received = [bytes(buffer.raw()) for buffer in buffers]
    before = list(received)
    got = pickle.loads(text, buffers=received)
    assert_alike(got, td)
    got["x"].fill_(7)
    assert received == before


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_holds_the_block_once(protocol: int) -> None:
    td = TensorDict({str(at): torch.zeros(1000) for at in range(50)}).consolidate()
    assert len(pickle.dumps(td, protocol=protocol)) < 1.5 * 50 * 4000
    assert len(pickle.dumps(td[()], protocol=protocol)) < 1.5 * 50 * 4000


def test_torch_saves_and_loads_it(tmp_path: Path) -> None:
    torch.save(tree().exclude("step", "object").consolidate(), tmp_path / "file.pt")
    assert_alike(torch.load(tmp_path / "file.pt"), tree().exclude("step", "object"))
    assert (tmp_path / "file.pt").stat().st_size < 200_000


# ---- shared memory


def children(node: Any) -> None:
    """Share something of one's own, use what was sent, and die at once."""
    own = TensorDict({"x": torch.ones(1000), "n": {"y": torch.ones(1000)}}).share_memory_()
    node["x"].add_(own["x"][0])
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="shared memory has no names to look at here")
def test_nothing_stays_behind_of_processes_that_are_killed(method: str) -> None:
    td = tree().share_memory_()
    context: Any = mp.get_context(method)
    processes = [context.Process(target=children, args=(td,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [-signal.SIGKILL] * 2
    assert td["x"].tolist() == (tree()["x"] + 2).tolist()
    ours = tuple(f"torch_{process.pid}_" for process in (*processes, multiprocessing.current_process()))
    assert [name for name in os.listdir("/dev/shm") if name.startswith(ours)] == []


def test_shared_memory_is_one_block_strings_included() -> None:
    td = tree().share_memory_()
    assert td.is_shared()
    assert len(blocks(td) - {0}) == 1
    _ = pickle.loads(ForkingPickler.dumps(torch.zeros(1).share_memory_()))  # the server for descriptors stays
    descriptors = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    other = pickle.loads(ForkingPickler.dumps(td))
    # one for the block, however many leaves there are; the connection that it came through may still be open
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors) + 3 if descriptors else True
    other["x"].fill_(7)
    assert td["x"].tolist() == [[7, 7]] * 3
    assert_alike(other.exclude("x"), tree().exclude("x"))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_plain_pickle_of_shared_memory_is_not_shared(protocol: int) -> None:
    for node in (tree().share_memory_(), tree().consolidate(share_memory=True), tree().consolidate(layout="rows")):
        copy = pickle.loads(pickle.dumps(node, protocol=protocol))
        assert not copy.is_shared()
        copy["x"].fill_(7)
        copy[[0, 1]].zero_()
        assert_alike(node, tree())
        assert pickle.loads(ForkingPickler.dumps(node)).is_shared() is node.is_shared()


def test_hundreds_of_leaves_cross_as_one_descriptor() -> None:
    td = TensorDict({str(at): torch.full((4,), float(at)) for at in range(400)}, [4]).consolidate(share_memory=True)
    other = pickle.loads(ForkingPickler.dumps(td))
    assert block_of(other["0"].untyped_storage()).storage.nbytes() == td["0"].untyped_storage().nbytes()
    other["7"].fill_(-1)
    assert td["7"].tolist() == [-1] * 4


# ---- one file

HEAD = struct.Struct("<8sIIQQ")


def saved(path: Path) -> Path:
    td = TensorDict({"x": torch.arange(6.0).view(3, 2), "n": {"y": torch.arange(3)}}, [3])
    td.consolidate(path / "file")
    return path / "file"


def test_the_file_is_what_the_page_says(tmp_path: Path) -> None:
    content = saved(tmp_path).read_bytes()
    magic, version, checksum, length, total = HEAD.unpack(content[:32])
    assert (magic, version) == (b"\x93TDBLOCK", 1)
    assert zlib.crc32(content[32 : 32 + length]) == checksum
    start = -(-(32 + length) // 64) * 64
    assert len(content) == start + total
    found = json.loads(content[32 : 32 + length])
    assert found["meta"]["x"] == {"device": "cpu", "shape": [3, 2], "dtype": "torch.float32", "is_nested": False}
    assert (found["meta"]["n"], found["batch"]) == ({"type": "TensorDict"}, [3])
    at, stride, size, crc = found["leaves"][0][0]
    raw = content[start + at : start + at + size]
    assert (stride, raw, int(crc, 16)) == (0, bits(torch.arange(6.0)), zlib.crc32(raw))
    at, _, size, _ = found["nodes"][0]["leaves"][0][0]
    assert content[start + at : start + at + size] == bits(torch.arange(3))
    assert (start + at) % 64 == 0


def test_writes_go_through_or_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    td = from_consolidated(path)
    td["x"].add_(1)
    td[0] = td[1]
    other = from_consolidated(path, mode="r")
    assert other["x"].tolist() == [[3, 4], [3, 4], [5, 6]]
    for write in (
        lambda: other.add_(1),
        lambda: other["n"].zero_(),
        lambda: other.__setitem__(0, other[1]),
        lambda: other["x"].add_(1),
        lambda: torch.add(other["x"], 1, out=other["x"]),
    ):
        with pytest.raises((PermissionError, RuntimeError), match="mode='r'"):
            write()
    assert other.saved_path == str(path)
    assert pickle.loads(pickle.dumps(other)).saved_path == str(path)
    with pytest.raises(ValueError, match="'w'"):
        from_consolidated(path, mode="w")


def test_strings_in_a_file_cannot_be_written(tmp_path: Path) -> None:
    """They could not reach the file, where each has the room that it has."""
    td = TensorDict({"x": torch.zeros(2), "word": ["a", "b"], "one": "c"}, [2]).consolidate(tmp_path / "file")
    for write in (
        lambda: td.__setitem__(0, TensorDict({"x": 1.0, "word": "z", "one": "c"})),
        lambda: td.get("word").__setitem__(0, "z"),
        lambda: td.set_at_("one", "z", 0),
    ):
        with pytest.raises(PermissionError, match=r"file"):
            write()
    assert from_consolidated(tmp_path / "file")["word"] == td["word"] == ["a", "b"]


def test_damage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = path.read_bytes()
    cases = {
        r"fewer than a header": whole[:20],
        r"should hold \d+ bytes, but it holds": whole[:-1],
        r"but it holds \d+": whole + b"\0",
        r"begins with": b"PK" + whole[2:],
        r"checksum": whole[:40] + b"~" + whole[41:],
    }
    for message, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as caught:
            from_consolidated(path)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == content
    path.write_bytes(whole[:8] + struct.pack("<I", 2) + whole[12:])
    with pytest.raises(RuntimeError, match="version 2"):
        from_consolidated(path)
    with pytest.raises(FileNotFoundError):
        from_consolidated(tmp_path / "nothing")


def test_verify_finds_a_leaf_that_changed(tmp_path: Path) -> None:
    tree().consolidate(tmp_path / "file")
    assert_alike(from_consolidated(tmp_path / "file", verify=True, allow_pickle=True), tree())
    from_consolidated(tmp_path / "file", allow_pickle=True)["n", "y"].add_(1)
    with pytest.raises(ValueError, match=r"\('n', 'y'\).*file.*CRC-32"):
        from_consolidated(tmp_path / "file", verify=True, allow_pickle=True)


def described(path: Path, change: Callable[[Any], object]) -> Path:
    """Change the description of the leaves in a file, and its checksum with it."""
    content = path.read_bytes()
    magic, version, _, length, total = HEAD.unpack(content[:32])
    found = json.loads(content[32 : 32 + length])
    change(found)
    text = json.dumps(found).encode()
    head = HEAD.pack(magic, version, zlib.crc32(text), len(text), total) + text
    path.write_bytes(head + bytes(-len(head) % 64) + content[len(content) - total :])
    return path


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d["leaves"][0][0].__setitem__(0, 1 << 40), "within"),
        (lambda d: d["leaves"][0][0].__setitem__(0, 2), "for shape"),
        (lambda d: d["leaves"][0][0].__setitem__(0, -64), "a run"),
        (lambda d: d["leaves"][0][0].__setitem__(1, 4), "stride"),
        (lambda d: d["leaves"][0][0].__setitem__(1, 1 << 40), "within"),
        (lambda d: d["leaves"][0][0].__setitem__(2, 8), "for shape"),
        (lambda d: d["leaves"][0].clear(), "1 runs"),
        (lambda d: d["leaves"].clear(), "a list of 1"),
        (lambda d: d["nodes"].clear(), "a list of 1"),
        (lambda d: d["nodes"].__setitem__(0, 3), "meta"),
        (lambda d: d["meta"]["x"].__setitem__("shape", [3, 9]), "for shape"),
        (lambda d: d["meta"]["x"].__setitem__("dtype", "os.system"), "dtype"),
        (lambda d: d.__setitem__("batch", [-1]), "sizes"),
        (lambda d: d.__setitem__("device", 3), "device"),
        (lambda d: d["meta"].__setitem__("_format_version", 99), "version 99"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(
    change: Callable[[Any], object], message: str, tmp_path: Path
) -> None:
    path = described(saved(tmp_path), change)
    with pytest.raises((ValueError, RuntimeError), match=message) as caught:
        from_consolidated(path)
    assert str(path) in str(caught.value)


class Runs:
    """An object whose pickle would run code."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["RUNS"],)


def test_loading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS", str(tmp_path / "ran"))
    TensorDict({"n": {"object": NonTensorData(Runs())}}).consolidate(tmp_path / "file")
    with pytest.raises(RuntimeError, match=r"\('n', 'object'\).*allow_pickle"):
        from_consolidated(tmp_path / "file")
    assert not (tmp_path / "ran").exists()
    from_consolidated(tmp_path / "file", allow_pickle=True)
    assert (tmp_path / "ran").exists()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    old = from_consolidated(path)
    TensorDict({"x": torch.zeros(2)}).consolidate(path)
    assert old["x"].tolist() == [[0, 1], [2, 3], [4, 5]]  # who has it open keeps what he opened
    assert from_consolidated(path)["x"].tolist() == [0, 0]

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    for step in ("posix_fallocate", "pwrite", "fsync", "replace"):
        monkeypatch.setattr(os, step, no_room)
        with pytest.raises(OSError, match=r"file" if step != "replace" else "no space left"):
            TensorDict({"x": torch.ones(2)}).consolidate(path)
        monkeypatch.undo()
        assert sorted(name.name for name in tmp_path.iterdir()) == ["file"]
    assert from_consolidated(path)["x"].tolist() == [0, 0]


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=100))
    with pytest.raises(OSError, match=r"no space for .*file.*bytes needed, 100 free"):
        TensorDict({"x": torch.ones(200)}).consolidate(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_lazy_stacks_and_tensorclasses_are_roots_too(tmp_path: Path) -> None:
    stack = lazy_stack([TensorDict({"x": torch.ones(at)}) for at in range(3)])
    step = Step(torch.ones(3, 4), word="w", batch_size=[3])
    for root in (stack, step):
        root.consolidate(tmp_path / "file")
        for got in (root.consolidate(), from_consolidated(tmp_path / "file"), pickle.loads(pickle.dumps(root))):
            assert_alike(got, root)
    assert is_piece(step.consolidate().obs)


def by_the_published_package() -> bytes:
    """Return a file of one block as the published package lays it out, byte by byte."""

    def node(batch: list[int], leaves: Any, **more: Any) -> dict[str, Any]:
        said = {"device": None, "names": ["time"] * len(batch), "batch_size": batch, "is_locked": False}
        return {"cls": "TensorDict", "non_tensors": {}, "leaves": leaves, "cls_metadata": said, **more}

    x, flags, y = torch.arange(4.0).view(2, 2), torch.tensor([True, False]), torch.arange(3)
    content = bits(x) + bits(flags) + bytes(6) + bits(y)
    step = node([2], {"obs": ["torch.float32", [2, 2], 0, 16, 0]}, non_tensors={"word": ["w", [2], None]})
    stack = {"stack_dim": 0, "stack_dim_name": None, "is_locked": False}
    cut = [["torch.int64", [n], 24 + 8 * (n - 1), 24 + 8 * (2 * n - 1), 0] for n in (1, 2)]
    members = {str(at): node([], {"p": leaf}, non_tensors={"s": ["a", [], None]}) for at, leaf in enumerate(cut)}
    column = {"non_tensors": {"0": ["a", [], None], "1": ["b", [], None]}, "leaves": {}, "cls_metadata": stack}
    tree = node(
        [2],
        {"x": ["torch.float32", [2, 2], 0, 16, 0], "b/c": ["torch.bool", [2], 16, 24, 6]},
        non_tensors={"one": [{"k": [1]}, [2], None]},
        n=node([2], {}, deep=node([2], {"x": ["torch.float32", [2, 2], 0, 16, 0]})),
        step={**step, "cls": f"<class '{Step.__module__}.Step'>"},
        lazy={"cls": "LazyStackedTensorDict", "non_tensors": {}, "leaves": {}, "cls_metadata": stack, **members},
        column={"cls": "NonTensorStack", **column},
    )
    text = json.dumps(tree).encode()
    return content + text + struct.pack("<q", len(text))


def test_files_of_the_published_package_open(tmp_path: Path) -> None:
    path = tmp_path / "block"
    path.write_bytes(by_the_published_package())
    td: Any = TensorDict.from_consolidated(path)
    assert (td.batch_size, td.names) == ((2,), ["time"])
    assert td["x"].tolist() == td["n", "deep", "x"].tolist() == td["step"].obs.tolist() == [[0, 1], [2, 3]]
    assert td["b/c"].tolist() == [True, False]
    assert (td["one"], td["column"]) == ({"k": [1]}, ["a", "b"])
    assert (type(td["step"]), td["step"].word) == (Step, "w")
    assert [row["p"].tolist() for row in td["lazy"]] == [[0], [1, 2]]
    assert td["lazy"]["s"] == ["a", "a"]
    td["x"].fill_(7)
    assert path.read_bytes()[:16] == bits(torch.full((4,), 7.0))
    copy = tmp_path / "copy"
    td.consolidate(copy)
    assert TensorDict.from_consolidated(copy, verify=True)["step"].obs.sum() == 28
    with pytest.raises(ValueError, match="has no checksums"):
        TensorDict.from_consolidated(path, verify=True)
    assert home_at(str(path)) == "consolidated"


@pytest.mark.parametrize(
    "old, new, message",
    [
        (b"[2, 2], 0, 16, 0]", b"[2, 3], 0, 16, 0]", r"a run for shape \[2, 3\]"),
        (b"24, 32, 0]", b"24, 99, 0]", "a run"),
        (b'"torch.bool", [2], 16, 24, 6]', b'"torch.bool", [2], 16, 24]   ', "not enough values"),
        (b'"torch.int64", [1], 24, 32, 0]', b'"torch.int64", [1], 24, 3, 1,2]', "nested tensor"),
        (b'"cls_metadata"', b'"cls_metadat_"', "cls_metadata"),
        (b'"stack_dim": 0', b'"stack_dim": 1', "along dim 1|stack"),
        (b'"1": {', b'"2": {', "'1'"),
    ],
)
def test_what_does_not_fit_in_files_of_the_published_package(
    old: bytes, new: bytes, message: str, tmp_path: Path
) -> None:
    content = by_the_published_package()
    text = content[48:-8]
    assert old in text
    text = text.replace(old, new)
    (tmp_path / "block").write_bytes(content[:48] + text + struct.pack("<q", len(text)))
    with pytest.raises((ValueError, IndexError), match=message):
        TensorDict.from_consolidated(tmp_path / "block")
