"""What every backend promises, on every backend."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from tensordict.storage.archive import open_archive, write_archive
from tensordict.storage.arrays import Arrays, Slot
from tensordict.storage.base import Backend, Record, spec_of
from tensordict.storage.consolidated import draft, open_file, write_file
from tensordict.storage.folder import Folder
from tensordict.storage.hdf5 import HDF5
from tensordict.storage.memmap import allocate_anonymous, home_of
from tensordict.storage.memory import allocate_shared, is_shared, pour
from tensordict.storage.opened import Opened
from tensordict.storage.sketch import Sketch, arrange, laid
from tensordict.storage.zarr import Zarr

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOATS += [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64]
DTYPES = [torch.bool, torch.complex32, torch.complex64, torch.complex128, *FLOATS, *INTEGERS]

KEYS = [
    "a",
    "a/b",
    "a\\b",
    "..",
    ".",
    "",
    "/",
    "/etc/passwd",
    "../up",
    "meta.json",
    "_tensordict",
    "UP",
    "up",
    " ",
    "%",
]
KEYS += ["%25", "é", "e\u0301", "\0", "a.memmap", "a.b", "x" * 300, "é" * 200, "\ud800", "shape", "device", "_names"]
KEYS += ["_type", "_class", "_format_version", "_tensordict_keys", "names", "0", "CON", "other.pickle", "type", "dtype"]

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

some_settings = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def any_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Return a tensor of random bits; a bool has only two values."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        return bits[..., 0] % 2 == 0
    return bits.view(dtype)[..., 0] if dtype.itemsize > 1 else bits.view(dtype).squeeze(-1)


def bits(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor, so that NaN equals itself."""
    flat = tensor.resolve_conj().resolve_neg().contiguous()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def same(one: Tensor, other: Tensor) -> bool:
    return spec_of(one) == spec_of(other) and bits(one) == bits(other)


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
tensors = st.builds(any_tensor, shapes, st.sampled_from(DTYPES), st.integers(0, 9))


def loaded(leaf: Tensor | Slot) -> Tensor:
    """Return what a backend hands out as a tensor: itself where it is one, else what is read."""
    return leaf if isinstance(leaf, Tensor) else leaf.read()


@pytest.fixture(params=["folder", "h5", "zarr"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    """A function that returns an empty writable tree."""
    counter = itertools.count()
    makers: dict[str, Callable[[], Backend]] = {
        "folder": lambda: Folder(tmp_path / str(next(counter)), "w"),
        "h5": lambda: Arrays(HDF5(tmp_path / str(next(counter)), "w", {})),
        "zarr": lambda: Arrays(Zarr(tmp_path / str(next(counter)), "w", {})),
    }
    return makers[request.param]


class TestEveryBackend:
    def test_flags(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        assert backend.writable
        assert backend.resident is isinstance(backend.write("x", torch.zeros(2)), Tensor)

    @some_settings
    @given(tensors)
    def test_what_is_written_is_read(self, fresh: Callable[[], Backend], tensor: Tensor) -> None:
        backend = fresh()
        leaf = backend.write("x", tensor)
        assert type(loaded(leaf)) is Tensor
        assert same(loaded(leaf), tensor)
        assert same(backend.read("x"), tensor)
        assert not backend.resident or backend.read("x") is leaf

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_created_leaves_are_zero_and_writable(self, fresh: Callable[[], Backend], dtype: torch.dtype) -> None:
        backend = fresh()
        leaf = backend.create("x", (3, 2), dtype)
        assert spec_of(loaded(leaf)) == ((3, 2), dtype)
        assert bits(loaded(leaf)) == bytes(loaded(leaf).nbytes)
        value = any_tensor((2,), dtype, 1)
        leaf[1].copy_(value) if isinstance(leaf, Tensor) else leaf.write((1,), value)
        assert bits(backend.read("x")[1]) == bits(value)

    def test_a_leaf_created_again_has_no_old_rows(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        backend.write("x", torch.ones(5))
        assert loaded(backend.create("x", (5,), torch.float32)).tolist() == [0.0] * 5
        assert backend.read("x").tolist() == [0.0] * 5

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.arange(6).view(2, 3).t(),
            torch.arange(3).expand(4, 3),
            torch.tensor([1 + 2j, 3 - 1j]).conj(),
            torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
            torch.arange(10)[::3],
            torch.ones(2, requires_grad=True),
        ],
        ids=["transposed", "expanded", "conjugate", "negative", "strided", "grad"],
    )
    def test_views_are_stored_by_value(self, fresh: Callable[[], Backend], tensor: Tensor) -> None:
        leaf = loaded(fresh().write("x", tensor))
        assert same(leaf, tensor.detach())
        assert leaf.is_contiguous()
        assert not leaf.requires_grad
        assert not leaf.is_conj()

    def test_other_processes_see_leaves(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        leaf = backend.write("x", torch.arange(3))
        if backend.resident:
            assert is_shared(leaf)
        else:
            assert pickle.loads(pickle.dumps(backend)).read("x").tolist() == [0, 1, 2]

    def test_every_key_is_kept_apart_and_in_order(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        for place, key in enumerate(KEYS):
            backend.write(key, torch.tensor(place))
        assert backend.keys() == dict.fromkeys(KEYS, "leaf")
        assert list(backend.keys()) == KEYS
        assert [backend.read(key).item() for key in KEYS] == list(range(len(KEYS)))

    def test_every_key_can_name_a_node(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        for place, key in enumerate(KEYS):
            child = backend.child(key)
            child.write("x", torch.tensor(place))
            child.meta = Record("dense", ())
        assert backend.keys() == dict.fromkeys(KEYS, "node")
        assert [backend.child(key).read("x").item() for key in KEYS] == list(range(len(KEYS)))

    def test_deleted_keys_are_gone(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        backend.write("x", torch.ones(2))
        backend.child("node").meta = Record("dense", ())
        backend.delete("x")
        backend.delete("node")
        assert backend.keys() == {}
        for key in ("x", "node"):
            with pytest.raises(KeyError, match=repr(key)):
                backend.delete(key)
            with pytest.raises(KeyError, match=repr(key)):
                backend.read(key)

    def test_a_key_changes_from_leaf_to_node_and_back(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        backend.write("x", torch.ones(2))
        backend.child("x").meta = Record("dense", (2,))
        assert backend.keys() == {"x": "node"}
        with pytest.raises(KeyError, match="'x'"):
            backend.read("x")
        backend.write("x", torch.zeros(3))
        assert backend.keys() == {"x": "leaf"}
        assert backend.read("x").tolist() == [0.0, 0.0, 0.0]

    def test_the_record_is_kept(self, fresh: Callable[[], Backend]) -> None:
        backend = fresh()
        with pytest.raises(KeyError, match="record"):
            _ = backend.meta
        record = Record("dense", (2, 3), names=("time", None))
        backend.meta = record
        assert backend.meta == record

    def test_leaves_know_where_they_lie(self, fresh: Callable[[], Backend]) -> None:
        leaf = loaded(fresh().write("x", torch.zeros(4, 2)))
        home = home_of(leaf)
        if home is not None:
            assert Path(home.path).is_file()
            assert home.mode == "r+"
            assert home_of(leaf[1:].t()) is home
            assert home.leaf_at(leaf[3].storage_offset() * leaf.itemsize) == (0, (4, 2))


@pytest.mark.parametrize("allocate", [torch.UntypedStorage, allocate_shared, allocate_anonymous])
class TestEveryBlock:
    @some_settings
    @given(st.lists(tensors, max_size=5))
    def test_leaves_are_kept_and_do_not_overlap(self, allocate: Callable[[int], Any], values: list[Tensor]) -> None:
        tree = Sketch()
        for place, value in enumerate(values):
            (tree.child("inner") if place % 2 else tree).write(str(place), value)
        slots, total = arrange(tree)
        room = laid(tree, slots, pour(tree.tensors, slots, allocate(total)), block=False)
        found = []
        for place, value in enumerate(values):
            leaf = (room.child("inner") if place % 2 else room).write(str(place), value)
            found.append(leaf)
            assert same(leaf, value)
            assert leaf.data_ptr() % 64 == 0
            assert leaf.is_contiguous()
            assert (home_of(leaf) is not None) is (allocate is allocate_anonymous)
            home = home_of(leaf)
            assert home is None or not value.numel() or home.leaf_at(slots[place].start) == slots[place][:2]
        assert len({leaf.untyped_storage()._cdata for leaf in found}) <= 1

    def test_what_is_blank_is_zero(self, allocate: Callable[[int], Any]) -> None:
        if allocate is torch.UntypedStorage:
            return  # which is not zeroed: everything is copied to it
        tree = Sketch()
        tree.write("x", torch.ones(3))
        leaf = tree.create("y", (4, 2), torch.int64)
        slots, total = arrange(tree)
        room = laid(tree, slots, pour(tree.tensors, slots, allocate(total), tree.blank))
        assert room.write("x", torch.ones(3)).tolist() == [1.0] * 3
        blank = room.write("y", leaf)
        assert blank.tolist() == [[0, 0]] * 4
        assert blank.fill_(7).tolist() == [[7, 7]] * 4


SEALED = ["consolidated", "rows", "archive", "compressed"]


@pytest.fixture(params=SEALED)
def sealed(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Sketch, str], Opened]:
    """A function that writes a sketched tree to one file and opens it."""
    counter = itertools.count()

    def written(tree: Sketch, mode: str) -> Opened:
        path = str(tmp_path / str(next(counter)))
        if request.param in ("archive", "compressed"):
            write_archive(path, tree, "deflate" if request.param == "compressed" else None)
            return open_archive(path, mode)
        layout = "rows" if request.param == "rows" and tree.meta.batch else None
        write_file(path, draft(tree, layout))
        return open_file(path, mode)

    return written


class TestEveryTreeInOneFile:
    @some_settings
    @given(st.lists(tensors, max_size=5), st.integers(0, 4))
    def test_what_is_written_is_read(
        self, sealed: Callable[[Sketch, str], Opened], values: list[Tensor], rows: int
    ) -> None:
        tree = Sketch()
        tree.meta = Record("dense", (rows,))
        child = tree.child("inner")
        child.meta = Record("dense", (rows, 1))
        for place, value in enumerate(values):
            (child if place % 2 else tree).write(str(place), value.expand(rows, *value.shape))
        node = sealed(tree, "r")
        assert list(node.keys()) == list(tree.keys())
        assert (node.meta.batch, node.child("inner").meta.batch) == ((rows,), (rows, 1))
        for place, value in enumerate(values):
            at = node.child("inner") if place % 2 else node
            assert same(at.read(str(place)), value.expand(rows, *value.shape))
            assert at.read(str(place)) is at.read(str(place))
            assert type(at.read(str(place))) is Tensor

    def test_every_key_is_kept_apart_and_in_order(self, sealed: Callable[[Sketch, str], Opened]) -> None:
        tree = Sketch()
        tree.meta = Record("dense", ())
        for place, key in enumerate(KEYS):
            tree.write(key, torch.tensor(place)) if place % 2 else None
            if not place % 2:
                child = tree.child(key)
                child.write("x", torch.tensor(place))
                child.meta = Record("dense", ())
        node = sealed(tree, "r")
        assert node.keys() == {key: "leaf" if place % 2 else "node" for place, key in enumerate(KEYS)}
        assert list(node.keys()) == KEYS
        found = [node.read(key) if place % 2 else node.child(key).read("x") for place, key in enumerate(KEYS)]
        assert [leaf.item() for leaf in found] == list(range(len(KEYS)))

    @pytest.mark.parametrize("mode", ["r", "r+"])
    def test_a_node_says_what_it_is_and_where_it_lies(self, sealed: Callable[[Sketch, str], Opened], mode: str) -> None:
        tree = Sketch()
        tree.write("x", torch.arange(3))
        tree.child("node").meta = Record("dense", ())
        tree.meta = Record("dense", (3,), names=("time",))
        try:
            node = sealed(tree, mode)
            leaf = node.read("x")
        except ValueError:  # what is compressed cannot be written in its place
            assert mode == "r+"
            return
        assert node.resident
        assert (node.meta.kind, node.meta.batch, node.meta.names) == ("dense", (3,), ("time",))
        for call in (lambda: node.read("node"), lambda: node.child("x"), lambda: node.read("?")):
            with pytest.raises(KeyError, match="it has"):
                call()
        home = home_of(leaf)
        assert home is None or (home.path, home.mode) == (node.path, mode)
        assert home is None or home.leaf_at(leaf.storage_offset() * leaf.itemsize) == (leaf.storage_offset() * 8, (3,))
