"""A batch crosses from a DataLoader worker in one piece, and comes out equal."""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tensordict import LazyStackedTensorDict, NonTensorStack, TensorClass, TensorDict, lazy_stack

ROWS = 64


class Sample(TensorClass):
    image: torch.Tensor
    note: str


def keep(batch: Any) -> Any:
    return batch


def rows(width: int) -> TensorDict:
    """Return rows of every dtype that a batch may have, a non-tensor among them; `width` floats each."""
    return TensorDict(
        {
            "wide": torch.arange(ROWS * width, dtype=torch.float32).view(ROWS, width),
            "index": torch.arange(ROWS),
            "flag": torch.arange(ROWS) % 3 == 0,
            "nested": {"half": torch.ones(ROWS, 2, dtype=torch.bfloat16), "empty": torch.zeros(ROWS, 0)},
            "word": "text",
        },
        [ROWS],
    )


class Samples(Dataset[Any]):
    """What a dataset may return for one row."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> Any:
        td = TensorDict({"x": torch.full((at % 5 + 1 if self.kind == "ragged" else 3,), float(at))})
        if self.kind == "all":
            names = TensorDict(
                {"s": NonTensorStack(str(at), "é"), "many": {f"leaf{n}": td["x"] for n in range(20)}}, []
            )
            return td, {"label": at, "names": names}, Sample(image=torch.full((3,), float(at)), note=str(at))
        if self.kind == "tuple":
            return td, {"label": at, "more": td + 1}
        if self.kind == "tensorclass":
            return Sample(image=torch.full((3,), float(at)), note=str(at))
        return td


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_small_and_large_batches_come_out_equal(method: str) -> None:
    for width in (2, 20_000):  # one goes through the pipe, the other through a shared block
        data = rows(width)
        loader = DataLoader(data, batch_size=32, num_workers=1, collate_fn=keep, multiprocessing_context=method)
        batches = list(loader)
        assert [type(batch) for batch in batches] == [TensorDict, TensorDict]
        whole = torch.cat(batches)
        assert whole["word"] == "text"
        for key in data.keys(True, True):
            assert torch.equal(whole[key], data[key])
            assert whole[key].dtype is data[key].dtype
        assert not any(batch.is_shared() or batch.is_locked for batch in batches)
        batches[0]["index"].zero_()  # it is the receiver's own


@pytest.mark.parametrize("kind", ["tuple", "tensorclass", "ragged"])
def test_whatever_holds_nodes_comes_out_equal(kind: str) -> None:
    here, there = (
        list(DataLoader(Samples(kind), batch_size=16, num_workers=n, multiprocessing_context="fork" if n else None))
        for n in (0, 2)
    )
    assert len(here) == len(there) == ROWS // 16
    for one, other in zip(here, there):
        assert type(one) is type(other)
        if kind == "tuple":
            assert torch.equal(one[0]["x"], other[0]["x"])
            assert torch.equal(one[1]["more"]["x"], other[1]["more"]["x"])
            assert torch.equal(one[1]["label"], other[1]["label"])
        elif kind == "tensorclass":
            assert torch.equal(one.image, other.image)
            assert one.note == other.note
        else:
            assert isinstance(other, LazyStackedTensorDict)
            assert [row["x"].tolist() for row in one] == [row["x"].tolist() for row in other]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_whatever_holds_nodes_crosses_from_workers_of_every_kind(method: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        there = list(DataLoader(Samples("all"), batch_size=2, num_workers=1, multiprocessing_context=method))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    here = list(DataLoader(Samples("all"), batch_size=2))
    for one, other in zip(here, there, strict=True):
        assert list(map(type, one)) == list(map(type, other))
        assert (one[0] == other[0]).all()
        assert one[1]["label"].tolist() == other[1]["label"].tolist()
        assert one[1]["names"]["s"] == other[1]["names"]["s"]
        assert (one[1]["names"]["many"] == other[1]["names"]["many"]).all()
        assert one[2].note == other[2].note
        assert torch.equal(one[2].image, other[2].image)


def test_pinned_batches_of_workers_lie_in_pinned_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    loader = DataLoader(rows(4), batch_size=32, num_workers=1, collate_fn=keep, pin_memory=True)
    for batch in loader:
        assert batch["wide"].is_pinned()
        assert batch["nested", "half"].is_pinned()


def test_kept_batches_of_many_leaves_keep_no_files_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    data = TensorDict({f"leaf{i}": torch.arange(1200.0) for i in range(20)}, [1200])
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        loader = DataLoader(data, batch_size=4, num_workers=2, collate_fn=keep, multiprocessing_context="fork")
        kept = list(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sum(float(batch["leaf19"].sum()) for batch in kept) == float(data["leaf19"].sum())
    if before:
        assert len(os.listdir("/proc/self/fd")) < before + 20


def test_outside_a_worker_shared_memory_stays_shared() -> None:
    data = lazy_stack([TensorDict({"x": torch.zeros(2)}).share_memory_()])
    context = torch.multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()
    queue.put(data)
    queue.get()[0]["x"].fill_(3)
    assert data[0]["x"].tolist() == [3, 3]
