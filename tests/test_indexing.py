"""Every index that torch accepts, on every leaf at once: the rows are those that torch picks, for reading and writing.

The reference is a tensor of row numbers of the batch shape: what torch's own indexing makes of it says which rows, and
in which shape. An index addresses batch dims only, so leaves with more dims follow.
"""

from __future__ import annotations

import math
import os
from typing import Any

import hypothesis
import numpy
import pytest
import torch
from hypothesis import strategies as st

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorDict, indexing

EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "80"))

SHAPES = [(), (1,), (3,), (0,), (2, 3), (3, 1), (1, 1), (0, 2), (2, 0), (2, 3, 2), (2, 1, 3), (4, 2, 2)]
SIZES = st.sampled_from([(), (1,), (2,), (0,), (2, 1), (1, 2), (2, 2), (2, 1, 2)])
batches = st.sampled_from(SHAPES)


def ints(draw: Any, size: int, shape: tuple[int, ...]) -> Any:
    low, high = (-size, size - 1) if size else (-1, 0)
    if draw(st.integers(0, 30)) == 0:
        high += 1
    count = math.prod(shape)
    return torch.tensor(
        draw(st.lists(st.integers(low, high), min_size=count, max_size=count)), dtype=torch.long
    ).reshape(shape)


def bools(draw: Any, shape: tuple[int, ...]) -> torch.Tensor:
    count = math.prod(shape)
    return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool).reshape(shape)


def one_mask(draw: Any, batch: tuple[int, ...], dim: int, deep: int) -> tuple[Any, int]:
    over = batch[dim : dim + deep] if draw(st.integers(0, 30)) else (batch[dim] + 1 if dim < len(batch) else 2,)
    mask = bools(draw, over)
    return draw(st.sampled_from([mask, mask.numpy()])), len(over)


def one_item(draw: Any, batch: tuple[int, ...], dim: int, shape: tuple[int, ...]) -> tuple[Any, int]:
    """Return an item of an index for a dim, and how many dims it takes."""
    size = batch[dim] if dim < len(batch) else 2
    edge = st.none() | st.integers(-size - 2, size + 2)
    items: dict[str, Any] = {
        "int": lambda: (int(ints(draw, size, ())), 1),
        "slice": lambda: (slice(draw(edge), draw(edge), draw(st.sampled_from([None, 1, 2, 3]))), 1),
        "none": lambda: (None, 0),
        "bool": lambda: (draw(st.booleans()), 0),
        "bool tensor": lambda: (torch.tensor(draw(st.booleans())), 0),
        "range": lambda: (range(draw(st.integers(0, size)), size), 1),
        "list": lambda: (ints(draw, size, shape or (2,)).tolist(), 1),
        "array": lambda: (ints(draw, size, shape).numpy().astype(draw(st.sampled_from(["int64", "int32"]))), 1),
        "int32": lambda: (ints(draw, size, shape).int(), 1),
        "tensor": lambda: (ints(draw, size, shape), 1),
        "mask": lambda: one_mask(draw, batch, dim, draw(st.integers(0, 2))),
    }
    return items[draw(st.sampled_from(list(items)))]()  # type: ignore[no-any-return]


@st.composite
def indices(draw: Any, batch: tuple[int, ...]) -> Any:
    shape = draw(SIZES)
    items: list[Any] = []
    dim = 0
    for _ in range(draw(st.integers(1, 4))):
        if dim >= len(batch) and draw(st.integers(0, 20)):
            break
        item, width = one_item(draw, batch, dim, draw(st.sampled_from([shape, shape, (1,), (2,)])))
        items.append(item)
        dim += width
    if draw(st.integers(0, 4)) == 0:
        items.insert(draw(st.integers(0, len(items))), Ellipsis)
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


@st.composite
def cases(draw: Any, least: int = 0) -> Any:
    batch = draw(batches.filter(lambda b: len(b) > least))
    return batch, draw(indices(batch))


def said(index: Any) -> Any:
    """Return an index with lists and arrays as tensors: torch is changing what a list of lists means."""
    if isinstance(index, tuple):
        return tuple(map(said, index))
    if isinstance(index, list):
        return torch.tensor(index, dtype=torch.long)
    return torch.from_numpy(index) if isinstance(index, numpy.ndarray) else index


def numbers(batch: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(math.prod(batch)).reshape(batch)


def dataset(batch: tuple[int, ...], start: float = 0.0, words: bool = True) -> TensorDict:
    """Return leaves of several dtypes, ranks and strides, a nested node of more dims, and a column of strings."""
    rows = numbers(batch)
    wide = torch.stack([rows, rows + 100, rows + 200], -1)
    strided = wide.double().movedim(-1, 0).contiguous().movedim(0, -1) + start
    inner = TensorDict(
        {"long": wide + int(start), "deep": wide.unsqueeze(-1).expand(*batch, 3, 2).float() + start}, (*batch, 3)
    )
    td = TensorDict({"row": rows + int(start), "strided": strided, "odd": rows % 2 == 1, "inner": inner}, batch)
    if words and batch and rows.numel():
        td["word"] = NonTensorStack(*[str(n + int(start)) for n in range(rows.numel())]).reshape(batch)
    return td


LEAVES = ["row", "strided", "odd", ("inner", "long"), ("inner", "deep")]


def rows_of(leaf: torch.Tensor, batch: tuple[int, ...], rows: torch.Tensor) -> torch.Tensor:
    """Return the rows of a leaf that row numbers name."""
    flat = leaf.reshape((math.prod(batch), *leaf.shape[len(batch) :]))
    return flat[rows.reshape(-1)].reshape((*rows.shape, *flat.shape[1:]))


def check_read(td: Any, dense: TensorDict, batch: tuple[int, ...], index: Any) -> None:
    try:
        rows = numbers(batch)[said(index)]
    except (IndexError, TypeError, ValueError, RuntimeError):
        with pytest.raises((IndexError, TypeError)) as caught:
            td[index]
        assert str(list(batch)) in str(caught.value)
        return
    got = td[index]
    assert got.batch_size == rows.shape
    for key in LEAVES:
        want = rows_of(dense[key], batch, rows)
        assert got[key].dtype == want.dtype
        assert torch.equal(got[key], want), key
    assert got["inner"].batch_size == (*rows.shape, 3)
    if "word" in dense:
        words = got.get("word")
        assert words.batch_size == rows.shape
        assert words._flat() == [str(n) for n in rows.reshape(-1).tolist()]


def in_range(batch: tuple[int, ...], index: Any) -> bool:
    """Tell whether torch checks the index: it lets row numbers that are out of range pass when nothing is selected."""
    try:
        found = numbers(batch)[said(index)]
    except Exception:
        return True
    return bool(found.numel()) or not any(isinstance(i, (list, numpy.ndarray, torch.Tensor)) for i in _items(index))


def _items(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


@hypothesis.settings(max_examples=3 * EXAMPLES)
@hypothesis.given(cases())
def test_reading_picks_the_rows_that_torch_picks(case: Any) -> None:
    batch, index = case
    hypothesis.assume(in_range(batch, index))
    td = dataset(batch)
    check_read(td, td, batch, index)


@pytest.mark.parametrize("dim", [0, 1, 2])
@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(data=st.data())
def test_reading_a_lazy_stack_picks_the_rows_that_torch_picks(dim: int, data: Any) -> None:
    batch = data.draw(batches.filter(lambda b: len(b) > dim and b[dim]))
    index = data.draw(indices(batch))
    hypothesis.assume(in_range(batch, index))
    td = dataset(batch)
    check_read(LazyStackedTensorDict(*td.unbind(dim), stack_dim=dim), td, batch, index)


def written(leaf: torch.Tensor, batch: tuple[int, ...], rows: torch.Tensor, value: Any) -> torch.Tensor:
    """Return a copy of a leaf in which the rows have a value: a tensor of their shape, or a number."""
    flat = leaf.reshape((math.prod(batch), *leaf.shape[len(batch) :])).clone()
    flat[rows.reshape(-1)] = (
        value.reshape((rows.numel(), *flat.shape[1:])) if isinstance(value, torch.Tensor) else value
    )
    return flat.reshape(leaf.shape)


def check_write(td: Any, dense: TensorDict, batch: tuple[int, ...], index: Any, how: str) -> None:
    before = {key: td[key].clone() for key in LEAVES}
    source = dataset(batch, 1000.0)
    try:
        rows = numbers(batch)[said(index)]
        numbers(batch)[said(index)] = 0
    except (IndexError, TypeError, ValueError, RuntimeError):
        with pytest.raises((IndexError, TypeError)):
            td[index] = 1
        assert all(torch.equal(td[key], before[key]) for key in LEAVES)
        return
    if how == "rows":  # rows that are written twice get the same value, whichever write comes last
        value: Any = source[index]
        want = {key: written(before[key], batch, rows, rows_of(source[key], batch, rows)) for key in LEAVES}
    elif how == "number":
        value = 1
        want = {key: written(before[key], batch, rows, 1) for key in LEAVES}
    else:
        value = source.reshape(-1)[0] if source.numel() and source.batch_size.numel() else None
        hypothesis.assume(value is not None)
        want = {
            key: written(before[key], batch, rows, value[key].expand((*rows.shape, *value[key].shape)))
            for key in LEAVES
        }
    td[index] = value
    assert td.batch_size == batch
    for key in LEAVES:
        assert torch.equal(td[key], want[key]), key
    if "word" in td:
        assert [int(word) for word in td.get("word")._flat()] == want["row"].reshape(-1).tolist()


HOW = ["rows", "number", "row"]


@hypothesis.settings(max_examples=3 * EXAMPLES)
@hypothesis.given(cases(), st.sampled_from(HOW))
def test_writing_changes_the_rows_that_torch_changes(case: Any, how: str) -> None:
    batch, index = case
    hypothesis.assume(in_range(batch, index))
    td = dataset(batch, words=how != "number")
    check_write(td, td, batch, index, how)


@pytest.mark.parametrize("dim", [0, 1, 2])
@hypothesis.settings(max_examples=EXAMPLES)
@hypothesis.given(data=st.data(), how=st.sampled_from(HOW))
def test_writing_a_lazy_stack_changes_the_rows_that_torch_changes(dim: int, data: Any, how: str) -> None:
    batch = data.draw(batches.filter(lambda b: len(b) > dim and b[dim]))
    index = data.draw(indices(batch))
    hypothesis.assume(in_range(batch, index))
    dense = dataset(batch, words=how != "number")
    lazy = LazyStackedTensorDict(*(row.clone() for row in dense.unbind(dim)), stack_dim=dim)
    check_write(lazy, dense, batch, index, how)


@hypothesis.given(cases())
def test_a_row_tensor_broadcasts_over_the_rows_that_are_written(case: Any) -> None:
    batch, index = case
    hypothesis.assume(in_range(batch, index))
    td, want = TensorDict({"x": numbers(batch)}, batch), numbers(batch)
    try:
        shape = want[said(index)].shape
        value = torch.arange(math.prod(shape[-1:])).reshape(shape[-1:]) + 50
        want[said(index)] = value
    except (IndexError, TypeError, ValueError, RuntimeError):
        return
    td[index] = value
    assert torch.equal(td["x"], want)


@hypothesis.given(cases())
def test_gradients_flow_through_reads(case: Any) -> None:
    batch, index = case
    hypothesis.assume(in_range(batch, index))
    try:
        rows = numbers(batch)[said(index)]
    except (IndexError, TypeError, ValueError, RuntimeError):
        return
    leaf = torch.rand(*batch, 2, requires_grad=True)
    TensorDict({"x": leaf}, batch)[index]["x"].sum().backward()
    times = torch.bincount(rows.reshape(-1), minlength=math.prod(batch)).reshape(batch)
    assert torch.equal(leaf.grad, times[..., None].expand(leaf.shape).to(leaf.dtype))


# ---- the fast roads are plain indexing


def leaves() -> list[torch.Tensor]:
    base = torch.arange(60).reshape(5, 12)
    dtypes = [torch.uint8, torch.bool, torch.int16, torch.bfloat16, torch.float64, torch.complex64]
    return [
        *(base.to(dtype) for dtype in dtypes),
        base.t().contiguous().t(),
        base[:, ::3],
        base[:, 0],
        base[:1].expand(5, 12),
        torch.empty(5, 0),
    ]


@pytest.mark.parametrize("picked", [[0], [4, 4, 0], [-1, 0, -5], []])
@pytest.mark.parametrize("leaf", leaves(), ids=lambda leaf: f"{leaf.dtype}-{list(leaf.shape)}-{list(leaf.stride())}")
def test_picking_rows_is_plain_indexing(leaf: torch.Tensor, picked: list[int]) -> None:
    td, rows = TensorDict({"x": leaf}, [5]), torch.tensor(picked, dtype=torch.long)
    want = leaf[rows]
    for index in (picked, rows, rows.numpy(), rows.int(), (rows,), (picked, Ellipsis)):
        got = td[index]
        assert got.batch_size == want.shape[:1]
        assert torch.equal(got["x"], want)
        assert got["x"].dtype == want.dtype
    assert torch.equal(td.__getitems__(picked)["x"], want)
    if leaf.ndim == 2:
        second = TensorDict({"x": leaf.t()}, [leaf.shape[1], 5])
        assert torch.equal(second[:, rows]["x"], leaf.t()[:, rows])
        grid = rows.reshape(-1, 1)
        assert torch.equal(second[:, grid]["x"], leaf.t()[:, grid])
        assert torch.equal(second[..., rows]["x"], leaf.t()[..., rows])


@hypothesis.given(st.data())
def test_getitems_is_indexing_with_a_list(data: Any) -> None:
    batch = data.draw(batches.filter(lambda b: b and b[0]))
    rows = data.draw(st.lists(st.integers(-batch[0], batch[0] - 1), max_size=6))
    td = dataset(batch)
    for node in (td, LazyStackedTensorDict(*td.unbind(0))):
        got, want = node.__getitems__(rows), td[torch.tensor(rows, dtype=torch.long)]
        assert got.batch_size == want.batch_size
        assert all(torch.equal(got[key], want[key]) for key in LEAVES)


def test_getitems_refuses_rows_out_of_range() -> None:
    td = TensorDict({"x": torch.zeros(3)}, [3])
    for rows in ([0, 3], [-4]):
        with pytest.raises(IndexError, match=r"batch size \[3\]"):
            td.__getitems__(rows)


# ---- what an index shares and refuses


@pytest.mark.parametrize("index", [1, slice(1, 3), None, Ellipsis, (slice(None), 1), (Ellipsis, slice(0, 2))])
def test_basic_indices_are_views(index: Any) -> None:
    td = TensorDict({"x": torch.zeros(4, 3)}, [4, 3])
    assert indexing.plan(index, (4, 3)).view
    td[index].zero_().add_(1)
    want = torch.zeros(4, 3)
    want[index] = 1
    assert torch.equal(td["x"], want)


@pytest.mark.parametrize(
    "index, text",
    [
        (4, r"index 4 is out of range for dim 0 of size 4"),
        ((0, 3), r"index 3 is out of range for dim 1 of size 3"),
        ((0, 0, 0), r"too many indices"),
        (torch.tensor([0, 9]), r"batch size \[4, 3\]"),
        ([0, -9], r"index -9 is out of range"),
        (torch.ones(3, dtype=torch.bool), r"mask of shape \[3\]"),
        (([0, 1], [0, 1, 2]), r"batch size \[4, 3\]"),
        ((Ellipsis, Ellipsis), r"one Ellipsis"),
        (torch.tensor([0.5]), r"float"),
    ],
)
def test_a_bad_index_is_an_index_error_that_says_why(index: Any, text: str) -> None:
    td = TensorDict({"x": torch.zeros(4, 3)}, [4, 3])
    with pytest.raises(IndexError, match=text):
        td[index]
    lazy = LazyStackedTensorDict(*td.clone().unbind(1), stack_dim=1)
    for node in (lazy,) if isinstance(index, torch.Tensor) else (td, lazy):
        with pytest.raises(IndexError, match=r"\[4, 3\]"):
            node[index] = 1
        with pytest.raises(IndexError, match=r"\[4, 3\]"):
            node.update_at_({"x": 1}, index)
        assert not node["x"].any()


@pytest.mark.parametrize("index", [1.5, {0}, object(), ("a", 0), b"a"])
def test_what_is_no_index_is_a_type_error(index: Any) -> None:
    td = TensorDict({"x": torch.zeros(4, 3)}, [4, 3])
    with pytest.raises(TypeError):
        td[index]
