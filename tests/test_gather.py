"""Rows are gathered as torch's own indexing gives them, by every kind, on every road."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, lazy_stack
from tensordict.storage import gathers

sys.path.insert(0, str(Path(__file__).parent / "contract"))
import kinds

ROWS = 5
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64),
]


def leaves(rows: int, width: int) -> TensorDict:
    """Return a leaf of each dtype, and leaves that lie in memory in other ways."""
    values = torch.randint(0, 2, (rows, width))
    plain = {str(dtype): values.to(dtype) for dtype in DTYPES}
    odd = {
        "transposed": torch.randn(width, rows).t(),
        "strided": torch.randn(rows, 2 * width)[:, ::2],
        "expanded": torch.randn(1, width).expand(rows, width),
        "conjugate": torch.randn(rows, width, dtype=torch.complex64).conj(),
        "negative": torch.randn(rows, width, dtype=torch.complex64).conj().imag,
        "empty": torch.zeros(rows, 0),
        "one": torch.arange(rows),
    }
    return TensorDict({**plain, "odd": odd}, [rows])


def same(got: Any, want: Any) -> None:
    assert got.batch_size == want.batch_size
    assert set(got.keys(True, True)) == set(want.keys(True, True))
    for key in want.keys(True, True):
        assert got[key].dtype is want[key].dtype, key
        assert torch.equal(got[key].resolve_conj().resolve_neg(), want[key].resolve_conj().resolve_neg()), key


def forms(rows: list[int], size: int) -> list[Any]:
    """Return an index in every form that names these rows in this order."""
    found: list[Any] = [rows, np.array(rows), torch.tensor(rows), torch.tensor(rows, dtype=torch.int32)]
    if rows == sorted(set(rows)) and rows[0] >= 0:
        mask = torch.zeros(size, dtype=torch.bool)
        mask[rows] = True
        found += [mask, mask.tolist(), mask.numpy()]
    return found


@given(st.data())
def test_gathered_rows_are_those_of_torch(data: Any) -> None:
    size, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.integers(-size, size - 1), min_size=1, max_size=8))
    td = leaves(size, width)
    for index in forms(rows, size):
        got = td.gather_rows(index, threads=data.draw(st.integers(1, 3)))
        for key in td.keys(True, True):
            assert torch.equal(got[key].resolve_conj(), td[key][torch.tensor(rows)].resolve_conj()), key
        out = td[torch.zeros(len(rows), dtype=torch.long)].clone()
        memory = {key: out[key].data_ptr() for key in out.keys(True, True)}
        assert td.gather_rows(index, out=out) is out
        same(out, got)
        assert {key: out[key].data_ptr() for key in out.keys(True, True)} == memory


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("batch", [(5,), (5, 2)], ids=str)
def test_every_kind_gathers_what_an_index_reads(kind: str, batch: tuple[int, ...]) -> None:
    if not kinds.can_make(kind, batch):
        pytest.skip("there is no such kind of this batch size")
    td = kinds.KINDS[kind](batch)
    before = td.to_tensordict()
    mask = torch.tensor([True, False, True, True, False])
    for index in ([3, -1, 0, 3], mask, range(1, 4), slice(None, None, 2)):
        want = td[list(index) if isinstance(index, range) else index]
        got = td.gather_rows(index)
        kinds.assert_same(got, want, kind)
        assert got["word"] == want["word"]
        out = got.clone()
        out.get("x").zero_()
        assert td.gather_rows(index, out=out) is out
        kinds.assert_same(out, want, kind)
        for leaf in (got.get("x"), got.get(("inner", "y"))):
            leaf.zero_()  # it is the receiver's own
    kinds.assert_same(td, before, kind)


def test_columns_of_objects_are_gathered_and_do_not_grow() -> None:
    td = TensorDict({"x": torch.arange(4), "name": NonTensorStack("a", "b", "c", "d")}, [4])
    out = td[:2].clone()
    for rows in ([3, 0], [1, 1], [2, 3]):
        td.gather_rows(rows, out=out)
        assert out["name"] == [td["name"][row] for row in rows]
    assert len(out.get("name")._pool.objects) == 4


def test_uniform_rows_of_a_lazy_stack_become_dense_and_ragged_ones_stay() -> None:
    even = lazy_stack([TensorDict({"x": torch.full((2,), n)}) for n in range(3)])
    ragged = lazy_stack([TensorDict({"x": torch.full((n + 1,), n)}) for n in range(3)])
    assert type(even.gather_rows([2, 0])) is TensorDict
    assert type(ragged.gather_rows([2, 0])) is LazyStackedTensorDict
    assert type(ragged.gather_rows([2, 2])) is TensorDict
    ragged.gather_rows([2, 0])[0]["x"].zero_()
    assert ragged[2]["x"].tolist() == [2, 2, 2]


@pytest.mark.parametrize("index", [[0, 5], [-6], torch.tensor([5]), [True] * 4, torch.ones(6, dtype=torch.bool)])
@pytest.mark.parametrize("kind", ["dense", "lazy0", "mapped", "persistent", "tensorclass"])
def test_rows_that_are_not_there_are_refused_before_anything_is_written(kind: str, index: Any) -> None:
    td = kinds.KINDS[kind]((5,))
    out = td.gather_rows([0] * len(index))
    before = out.clone()
    for options in ({}, {"out": out}):
        with pytest.raises(IndexError):
            td.gather_rows(index, **options)
    kinds.assert_same(out, before, kind)


@pytest.mark.parametrize("index", [0, [[0, 1]], torch.zeros(2, 2, dtype=torch.long), (0, 1), None])
def test_an_index_that_names_no_list_of_rows_is_refused(index: Any) -> None:
    td = kinds.dense((5, 2))
    with pytest.raises(IndexError, match="row numbers or a mask"):
        td.gather_rows(index)
    with pytest.raises(IndexError, match="first batch dim"):
        TensorDict({"x": 1}).gather_rows([0])


def test_a_buffer_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    td = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3, 2), "s": NonTensorStack("x", "y", "z")}}, [3])
    good = td.gather_rows([0, 1]).apply(torch.zeros_like)
    wrong = [
        (good.exclude(("n", "b")), KeyError, "'b'"),
        (good.clone().set("more", torch.zeros(2)), KeyError, "'more'"),
        (good.clone().set(("n", "b"), torch.zeros(2, 3)), RuntimeError, r"'b'.*\[2, 2\].*\[2, 3\]"),
        (good.clone().set(("n", "b"), torch.zeros(2, 2).double()), RuntimeError, r"float32.*float64"),
        (good[:1].clone(), RuntimeError, r"'a'.*\[2\].*\[1\]"),
        (good.clone().set("n", torch.zeros(2)), KeyError, "expected the keys"),
    ]
    for out, kind, message in wrong:
        with pytest.raises(kind, match=message):
            td.gather_rows([0, 1], out=out)
        assert not out["a"].any()
    nested = TensorDict({"x": torch.nested.as_nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged)}, [2])
    with pytest.raises(RuntimeError, match="nested tensor at key 'x'"):
        nested.gather_rows([0], out=nested[:1])
    assert nested.gather_rows([1])["x"][0].tolist() == [1.0, 1.0]


def test_a_dataset_that_is_read_only_is_no_buffer(tmp_path: Path) -> None:
    data = TensorDict({"x": torch.arange(3)}, [3])
    data.memmap(tmp_path)
    with pytest.raises(PermissionError, match="mode='r'"):
        data.gather_rows([2, 1, 0], out=TensorDict.load_memmap(tmp_path, mode="r"))
    out = TensorDict.load_memmap(tmp_path, mode="r+")
    data.gather_rows([2, 1, 0], out=out)
    assert TensorDict.load_memmap(tmp_path)["x"].tolist() == [2, 1, 0]


def test_gradients_flow_through_gathered_rows() -> None:
    leaf = torch.arange(3.0).requires_grad_()
    TensorDict({"x": leaf}, [3]).gather_rows([2, 2, 0])["x"].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [1, 0, 2]


def test_large_rows_are_copied_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathers, "_WORTH_A_THREAD", 64)
    started: list[Any] = []
    start = gathers.threading.Thread.start
    monkeypatch.setattr(gathers.threading.Thread, "start", lambda self: started.append(self) or start(self))
    td = leaves(50, 33)
    rows = torch.randint(0, 50, (41,))
    same(td.gather_rows(rows, threads=3), td[rows])
    assert len(started) > 10
    assert not any(thread.is_alive() for thread in started)
    with pytest.raises(ValueError, match="threads"):
        td.gather_rows(rows, threads=0)
