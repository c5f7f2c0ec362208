"""The tensor that a user is handed for a mapped leaf."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tensordict.storage.base import view
from tensordict.storage.folder import Folder
from tensordict.storage.mapped import MemoryMappedTensor, present
from tensordict.storage.memmap import allocate_anonymous, home_of
from tensordict.storage.memory import allocate_shared, block
from tensordict.storage.sent import handle, restore


@pytest.fixture
def mapped(tmp_path: Path) -> MemoryMappedTensor:
    return MemoryMappedTensor.from_tensor(torch.arange(12.0).view(4, 3), filename=tmp_path / "m.memmap")


@pytest.fixture
def readonly(mapped: MemoryMappedTensor) -> MemoryMappedTensor:
    return MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (4, 3), mode="r")


class TestClass:
    @pytest.mark.parametrize(
        "view",
        [
            lambda m: m[0],
            lambda m: m[:2],
            lambda m: m[..., 0],
            lambda m: m[None],
            lambda m: m[0, 0],
            lambda m: m.unbind(0)[1],
            lambda m: m.split(2)[1],
            lambda m: m.chunk(2)[1],
            lambda m: next(iter(m)),
            lambda m: m.add_(0),
            lambda m: m.contiguous(),
        ],
    )
    def test_views_keep_it(self, mapped: MemoryMappedTensor, view: Callable[[Tensor], Tensor]) -> None:
        result = view(mapped)
        assert type(result) is MemoryMappedTensor
        assert result.filename == mapped.filename
        assert result.parent_shape == (4, 3)
        assert torch.equal(result, view(torch.arange(12.0).view(4, 3)))

    @pytest.mark.parametrize(
        "operation",
        [
            lambda m: m[[0, 1]],
            lambda m: m[m[:, 0] > 2],
            lambda m: m + 1,
            lambda m: 1 - m,
            lambda m: m.sum(),
            lambda m: m.clone(),
            lambda m: m == m,
            lambda m: torch.stack([m, m]),
            lambda m: m.view(-1),
            lambda m: m.to(torch.int64),
            lambda m: copy.deepcopy(m),
        ],
    )
    def test_everything_else_is_plain(self, mapped: MemoryMappedTensor, operation: Callable[[Tensor], Tensor]) -> None:
        result = operation(mapped)
        assert type(result) is Tensor
        assert torch.equal(result, operation(torch.arange(12.0).view(4, 3)))

    def test_repr(self) -> None:
        tensor = MemoryMappedTensor.from_tensor(torch.tensor([0.0, 1.5, 6.0, 13.5]))
        assert repr(tensor) == "MemoryMappedTensor([ 0.0000,  1.5000,  6.0000, 13.5000])"

    def test_present(self, mapped: MemoryMappedTensor) -> None:
        plain = torch.ones(2)
        assert present(plain) is plain
        leaf = mapped.as_subclass(Tensor)
        assert type(present(leaf)) is MemoryMappedTensor
        assert present(leaf).data_ptr() == leaf.data_ptr()

    def test_gradients_flow(self, mapped: MemoryMappedTensor) -> None:
        mapped.requires_grad_()
        mapped[1].sum().backward()
        assert mapped.grad is not None
        assert mapped.grad.sum() == 3

    def test_other_libraries_may_take_over(self, mapped: MemoryMappedTensor) -> None:
        class Other:
            @classmethod
            def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> str:
                return "taken"

        assert torch.add(mapped, Other()) == "taken"  # type: ignore[call-overload]


class TestMaking:
    def test_sizes_and_values(self, tmp_path: Path) -> None:
        cls = MemoryMappedTensor
        assert cls.zeros(2, 3).shape == cls.empty((2, 3)).shape == (2, 3)
        assert cls.ones(2, dtype=torch.int8).tolist() == [1, 1]
        assert cls.full(2, fill_value=4.0).tolist() == cls.full((2,), 4.0).tolist() == [4.0, 4.0]
        assert cls.full_like(torch.zeros(2, dtype=torch.int16), 3).dtype is torch.int16
        for like in (cls.zeros_like, cls.ones_like, cls.empty_like):
            made = like(torch.zeros(3, dtype=torch.float64), filename=tmp_path / like.__name__)
            assert (made.shape, made.dtype, made.filename) == ((3,), torch.float64, str(tmp_path / like.__name__))
        with pytest.raises(TypeError, match="fill_value"):
            cls.full(2)

    def test_from_tensor_broadcasts(self) -> None:
        assert MemoryMappedTensor.from_tensor(torch.ones(()), shape=(2, 2)).tolist() == [[1.0, 1.0], [1.0, 1.0]]

    def test_without_data(self, tmp_path: Path) -> None:
        made = MemoryMappedTensor.from_tensor(torch.ones(3), filename=tmp_path / "x", copy_data=False)
        assert made.tolist() == [0.0, 0.0, 0.0]

    def test_the_constructor_copies(self) -> None:
        assert MemoryMappedTensor([1, 2], dtype=torch.float64).dtype is torch.float64

    def test_a_file_is_replaced_only_if_asked(self, mapped: MemoryMappedTensor) -> None:
        with pytest.raises(RuntimeError, match="existsok=True"):
            MemoryMappedTensor.from_tensor(torch.ones(2), filename=mapped.filename)
        with pytest.raises(RuntimeError, match="existsok=True"):
            MemoryMappedTensor.zeros(2, filename=mapped.filename)
        made = MemoryMappedTensor.from_tensor(torch.ones(2), filename=mapped.filename, existsok=True)
        assert made.tolist() == [1.0, 1.0]
        assert mapped.sum() == 66

    def test_a_mapped_tensor_is_not_copied_unasked(self, mapped: MemoryMappedTensor, tmp_path: Path) -> None:
        other = tmp_path / "other"
        assert MemoryMappedTensor.from_tensor(mapped[1:]).data_ptr() == mapped[1:].data_ptr()
        assert MemoryMappedTensor.from_tensor(mapped, filename=mapped.filename).data_ptr() == mapped.data_ptr()
        with pytest.raises(RuntimeError, match="copy_existing=True"):
            MemoryMappedTensor.from_tensor(mapped, filename=other)
        for filename in (other, None):
            made = MemoryMappedTensor.from_tensor(mapped, filename=filename, copy_existing=True)
            assert torch.equal(made, mapped)
            assert made.filename != mapped.filename

    def test_what_cannot_be_mapped(self) -> None:
        with pytest.raises(RuntimeError, match="detach"):
            MemoryMappedTensor.from_tensor(torch.ones(2, requires_grad=True))
        with pytest.raises(TypeError, match="list"):
            MemoryMappedTensor.from_tensor([1])  # type: ignore[arg-type]

    def test_from_filename(self, mapped: MemoryMappedTensor) -> None:
        made = MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (4, 3), index=1)
        made.zero_()
        assert mapped[1].tolist() == [0.0, 0.0, 0.0]
        rows = MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (4, 3), index=[0, 2])
        assert torch.equal(rows, mapped[[0, 2]])
        for shape, size in (((5, 3), 60), ((2, 3), 24)):
            with pytest.raises(ValueError, match=f"{size} bytes, but it holds 48"):
                MemoryMappedTensor.from_filename(mapped.filename, torch.float32, shape)
        with pytest.raises(FileNotFoundError, match="nowhere"):
            MemoryMappedTensor.from_filename("nowhere", torch.float32, (2,))
        with pytest.raises(ValueError, match="'w'"):
            MemoryMappedTensor.from_filename(mapped.filename, torch.float32, (4, 3), mode="w")

    def test_from_storage(self, mapped: MemoryMappedTensor) -> None:
        same = MemoryMappedTensor.from_storage(mapped.untyped_storage(), dtype=torch.float32, shape=(3, 4))
        assert same.data_ptr() == mapped.data_ptr()
        made = MemoryMappedTensor.from_storage(torch.arange(3).untyped_storage(), dtype=torch.int64, index=1)
        assert made.item() == 1
        with pytest.raises(ValueError, match="80 bytes, got 24"):
            MemoryMappedTensor.from_storage(torch.arange(3).untyped_storage(), dtype=torch.int64, shape=(10,))

    def test_a_temporary_file_goes_with_its_last_tensor(self) -> None:
        view = MemoryMappedTensor.zeros(4)[1:].as_subclass(Tensor).view(-1)
        gc.collect()
        path = home_of(view).path  # type: ignore[union-attr]
        assert os.path.exists(path)
        del view
        gc.collect()
        assert not os.path.exists(path)


class TestReadOnly:
    @pytest.mark.parametrize(
        "write",
        [
            lambda m: m.add_(1),
            lambda m: m.__setitem__(0, 1),
            lambda m: m[0].fill_(1),
            lambda m: torch.add(m, 1, out=m),
            lambda m: torch.sort(m, out=(m, torch.empty(0, dtype=torch.long))),
            lambda m: m.__iadd__(1),
            lambda m: torch.nn.init.zeros_(m),
            lambda m: torch._foreach_add_([m], 1),
            lambda m: torch.ops.aten.add_.Tensor(m, torch.ones(())),
        ],
    )
    def test_writing_raises(self, readonly: MemoryMappedTensor, write: Callable[[Tensor], object]) -> None:
        with pytest.raises(RuntimeError, match=r"m\.memmap' was opened with mode='r'"):
            write(readonly)
        assert torch.equal(readonly, torch.arange(12.0).view(4, 3))

    def test_reading_does_not(self, readonly: MemoryMappedTensor) -> None:
        assert torch.zeros(4, 3).add_(readonly).sum() == 66
        assert torch.add(readonly, 1, out=torch.empty(4, 3)).sum() == 78
        assert readonly.clone().zero_().sum() == 0
        assert readonly.requires_grad_().requires_grad

    def test_writers_are_seen(self, mapped: MemoryMappedTensor, readonly: MemoryMappedTensor) -> None:
        mapped[0] = 100
        assert readonly[0].tolist() == [100.0] * 3


class TestCopying:
    @pytest.mark.parametrize("view", [lambda m: m, lambda m: m[1], lambda m: m[:, 1:], lambda m: m[::2, None]])
    def test_a_pickle_is_small_and_maps_the_same_file(
        self, mapped: MemoryMappedTensor, view: Callable[[Tensor], Tensor]
    ) -> None:
        for part in (view(mapped), present(view(mapped.as_subclass(Tensor)))):
            sent = pickle.dumps(part)
            assert len(sent) < 1000
            received = pickle.loads(sent)
            assert type(received) is MemoryMappedTensor
            assert torch.equal(received, part)
            assert received.parent_shape == (4, 3)
            received.fill_(-1)
            assert torch.equal(part, received)

    def test_the_mode_travels(self, readonly: MemoryMappedTensor) -> None:
        with pytest.raises(RuntimeError, match="mode='r'"):
            pickle.loads(pickle.dumps(readonly)).zero_()

    def test_a_receiver_maps_a_file_once(self) -> None:
        leaves = block([torch.arange(3), torch.arange(4)], allocate_anonymous)
        received = [restore(handle(leaf)) for leaf in leaves]  # type: ignore[arg-type]
        assert len({leaf.untyped_storage()._cdata for leaf in received}) == 1
        assert [leaf.tolist() for leaf in received] == [[0, 1, 2], [0, 1, 2, 3]]

    def test_a_file_that_changed_its_size_is_refused(self, mapped: MemoryMappedTensor) -> None:
        sent = pickle.dumps(mapped)
        MemoryMappedTensor.from_tensor(torch.zeros(3), filename=mapped.filename, existsok=True)
        with pytest.raises(ValueError, match="48 bytes, but it holds 12"):
            pickle.loads(sent)
        os.unlink(mapped.filename)
        with pytest.raises(FileNotFoundError, match=r"m\.memmap"):
            pickle.loads(sent)

    def test_a_deep_copy_is_in_memory(self, mapped: MemoryMappedTensor) -> None:
        one, other = copy.deepcopy([mapped, mapped])
        assert one is other
        assert home_of(one) is None
        one.zero_()
        assert mapped.sum() == 66

    @pytest.mark.parametrize(
        "view", [lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.mT, lambda t: t.requires_grad_()]
    )
    def test_handles_keep_what_a_view_is(self, view: Callable[[Tensor], Tensor]) -> None:
        value = torch.tensor([[1 + 2j, 3 - 4j]])
        (leaf,) = block([value], allocate_anonymous)
        received = restore(handle(view(leaf)))  # type: ignore[arg-type]
        expected = view(value)
        assert torch.equal(received, expected)
        assert received.requires_grad == expected.requires_grad
        assert received.is_conj() == expected.is_conj()
        leaf.detach().zero_()
        assert received.detach().abs().sum() == 0

    def test_what_has_no_handle(self) -> None:
        assert handle(torch.ones(2)) is None
        assert handle(torch.ones(2).to_sparse()) is None
        assert handle(torch.ones(2, device="meta")) is None
        assert handle(block([torch.ones(2)], allocate_anonymous)[0].requires_grad_() * 1) is None

    def test_a_plain_pickle_copies_a_shared_block_once(self) -> None:
        leaves = block([torch.full((1000,), float(value)) for value in range(50)], allocate_shared)
        sent = pickle.dumps([handle(leaf) for leaf in leaves])
        assert len(sent) < 2 * 50 * 4000
        received = [restore(each) for each in pickle.loads(sent)]
        assert all(torch.equal(one, other) for one, other in zip(received, leaves))


def test_a_full_shared_memory_is_an_error() -> None:
    huge = torch.zeros((), dtype=torch.uint8).expand(1 << 50)
    with pytest.raises(OSError, match=f"{1 << 50} bytes needed"):
        block([huge], allocate_shared)


def test_a_full_temporary_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    huge = torch.zeros((), dtype=torch.uint8).expand(1 << 50)
    with pytest.raises(OSError, match=f"{1 << 50} bytes needed"):
        block([huge], allocate_anonymous)
    assert list(tmp_path.iterdir()) == []


def test_other_layouts_are_refused_whole(tmp_path: Path) -> None:
    tensor = torch.ones(2).to_sparse()
    assert home_of(tensor) is None
    assert handle(tensor) is None
    assert present(tensor) is tensor
    for store in (lambda: block([tensor], allocate_anonymous), lambda: Folder(tmp_path, "w").write("x", tensor)):
        with pytest.raises(ValueError, match="strided"):
            store()
    assert list(tmp_path.iterdir()) == []


def test_under_vmap_a_tensor_has_no_home() -> None:
    (leaf,) = block([torch.ones(2, 3)], allocate_anonymous)
    assert torch.vmap(lambda row: present(row) * 2)(leaf).sum() == 12


def test_leaves_that_are_made_while_torch_traces_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensordict.storage.base._blanks", {})
    storage = torch.arange(3, dtype=torch.int32).untyped_storage()
    with torch.inference_mode():
        assert view(storage, 0, (3,), torch.int32).is_inference()
    with FakeTensorMode():
        blank = torch.empty(0, dtype=torch.int16)
        with contextlib.suppress(RuntimeError):
            view(storage, 0, (3,), torch.int16)
    assert type(blank) is not Tensor
    for dtype in (torch.int32, torch.int16):
        leaf = view(storage, 0, (3,), dtype)
        assert (type(leaf), leaf.is_inference(), leaf.dtype) == (Tensor, False, dtype)
    assert view(storage, 0, (3,), torch.int32).tolist() == [0, 1, 2]
