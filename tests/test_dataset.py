"""A tensordict is a dataset: what a DataLoader makes of it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, collate, lazy_stack

METHODS = ["fork", "spawn", "forkserver"]
multiprocessing.set_forkserver_preload(["torch"])


class Digit(TensorClass):
    image: torch.Tensor
    label: torch.Tensor


def keep(batch: Any) -> Any:
    return batch


def table(size: int = 10) -> TensorDict:
    image = torch.arange(size * 4).view(size, 2, 2)
    return TensorDict({"image": image, "n": {"label": torch.arange(size)}}, [size])


def labels(loader: Any) -> list[list[int]]:
    return [batch["n", "label"].tolist() for batch in loader]


def rows(size: int) -> list[TensorDict]:
    return list(table(size).unbind(0))


@pytest.mark.parametrize("join", [None, keep, collate])
def test_a_batch_is_a_tensordict_read_from_the_rows(join: Any) -> None:
    data = table()
    batches = list(DataLoader(data, batch_size=4, collate_fn=join))
    assert [batch.batch_size for batch in batches] == [(4,), (4,), (2,)]
    assert torch.equal(torch.cat(batches)["image"], data["image"])
    assert all(type(batch) is TensorDict for batch in batches)
    batches[0]["image"].zero_()
    assert data["image"][1].tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize("join", [None, torch.stack, lazy_stack, collate])
def test_a_dataset_of_samples_is_joined(join: Any) -> None:
    batches = list(DataLoader(rows(5), batch_size=2, collate_fn=join))  # type: ignore[arg-type]
    assert labels(batches) == [[0, 1], [2, 3], [4]]
    assert all(isinstance(batch, LazyStackedTensorDict) is (join is lazy_stack) for batch in batches)


@given(st.integers(1, 20), st.integers(1, 7), st.booleans(), st.integers(0, 5))
def test_the_order_of_an_epoch_is_that_of_a_tensor_dataset(size: int, batch_size: int, drop: bool, seed: int) -> None:
    options: Any = {"batch_size": batch_size, "shuffle": True, "drop_last": drop}
    torch.manual_seed(seed)
    mine = labels(DataLoader(table(size), **options))
    torch.manual_seed(seed)
    theirs = [batch.tolist() for (batch,) in DataLoader(TensorDataset(torch.arange(size)), **options)]
    assert mine == theirs


def test_one_batch_is_one_index_operation_and_one_index_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDict({f"k{n}": torch.arange(6) for n in range(8)} | {"n": {"y": torch.arange(6)}}, [6])
    made: list[Any] = []
    indexed: list[Any] = []
    make, index = torch.from_numpy, TensorDict._index
    monkeypatch.setattr(torch, "from_numpy", lambda rows: made.append(rows.tolist()) or make(rows))
    monkeypatch.setattr(TensorDict, "_index", lambda self, plan: indexed.append(self) or index(self, plan))
    batch = data.__getitems__([4, 0, 4])
    assert batch["n", "y"].tolist() == batch["k7"].tolist() == [4, 0, 4]
    assert made == [[4, 0, 4]]
    assert sum(node is data for node in indexed) == 1


@given(st.lists(st.integers(-6, 5), min_size=1, max_size=8))
def test_getitems_is_indexing_with_a_list(index: list[int]) -> None:
    data = table(6)
    assert (data.__getitems__(index) == data[index]).all()
    assert torch.equal(data.__getitems__(index)["image"], data["image"][index])


def test_getitems_out_of_range_names_the_row_and_the_size() -> None:
    with pytest.raises(IndexError, match=r"10 .*\[10\]"):
        table().__getitems__([0, 10])
    with pytest.raises(IndexError):
        table().__getitems__([-11])


def test_len_and_iteration_are_those_of_the_first_dim() -> None:
    data = table(3)
    assert len(data) == 3
    assert [row["n", "label"].item() for row in data] == [0, 1, 2]
    assert data[1].batch_size == ()
    with pytest.raises(TypeError, match="batch"):
        iter(TensorDict({"a": 1}))


def test_batch_samplers_give_the_same_batches_either_way() -> None:
    data = table()
    sampler = BatchSampler(SequentialSampler(data), batch_size=4, drop_last=True)
    want = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert labels(DataLoader(data, batch_sampler=sampler)) == want
    assert labels(DataLoader(data, batch_sampler=sampler, collate_fn=keep)) == want
    assert labels(DataLoader(data, sampler=sampler, batch_size=None)) == want
    assert labels(DataLoader(data, sampler=sampler, batch_size=None, collate_fn=keep)) == want
    generator = torch.Generator().manual_seed(0)
    random = RandomSampler(data, generator=generator)
    got = torch.cat(list(DataLoader(data, sampler=random, batch_size=3)))
    assert sorted(got["n", "label"].tolist()) == list(range(10))


def test_without_a_batch_size_each_sample_comes_alone() -> None:
    got = list(DataLoader(table(3), batch_size=None))
    assert [type(row) for row in got] == [TensorDict] * 3
    assert [row.batch_size for row in got] == [()] * 3
    assert [row["n", "label"].item() for row in got] == [0, 1, 2]


class Stream(IterableDataset[Any]):
    """Yields ready batches; with workers, each yields its share."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        yield from table(8).split(2)[info.id if info else 0 :: info.num_workers if info else 1]


def test_an_iterable_dataset_yields_batches() -> None:
    assert labels(DataLoader(Stream(), batch_size=None)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    stacked = list(DataLoader(Stream(), batch_size=2))
    assert [batch.batch_size for batch in stacked] == [(2, 2), (2, 2)]


def test_subsets_and_concatenations_are_datasets_too() -> None:
    data = table()
    assert labels(DataLoader(Subset(data, [7, 3, 5]), batch_size=2)) == [[7, 3], [5]]
    both = ConcatDataset([data, table(2)])
    assert labels(DataLoader(both, batch_size=6)) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 0, 1]]
    first, second = torch.utils.data.random_split(data, [7, 3], generator=torch.Generator().manual_seed(0))
    assert sorted(torch.cat([*DataLoader(first, batch_size=3), *DataLoader(second)])["n", "label"].tolist()) == list(
        range(10)
    )


def test_pinning_without_an_accelerator_gives_the_same_batches() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="pin_memory"):
        got = labels(DataLoader(table(4), batch_size=2, pin_memory=True))
    assert got == [[0, 1], [2, 3]]


def tensorclass(path: Path) -> Any:
    return Digit(image=torch.arange(24).view(6, 4), label=torch.arange(6), batch_size=[6])


def dense(path: Path) -> Any:
    return TensorDict({"image": torch.arange(24).view(6, 4), "label": torch.arange(6)}, [6])


def lazy(path: Path) -> Any:
    return lazy_stack(list(dense(path).unbind(0)))


def ragged(path: Path) -> Any:
    return lazy_stack([TensorDict({"image": torch.full((n + 1,), n), "label": n}) for n in range(6)])


def mapped(path: Path) -> Any:
    return dense(path).memmap_(path / "mapped")


def mapped_class(path: Path) -> Any:
    return tensorclass(path).memmap_(path / "class")


def mapped_lazy(path: Path) -> Any:
    return lazy(path).memmap_(path / "lazy")


def read_only(path: Path) -> Any:
    dense(path).memmap_(path / "read_only")
    return TensorDict.load_memmap(path / "read_only", mode="r")


def shared(path: Path) -> Any:
    return dense(path).share_memory_()


KINDS = [dense, tensorclass, lazy, ragged, mapped, mapped_class, mapped_lazy, read_only, shared]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_every_kind_is_a_dataset(make: Any, tmp_path: Path) -> None:
    data = make(tmp_path)
    assert len(data) == 6
    for join in (None, keep, collate):
        batches = list(DataLoader(data, batch_size=4, collate_fn=join))
        assert [batch.get("label").tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
        assert all(type(batch) is type(data) for batch in batches)
        assert [row.get("image").tolist() for batch in batches for row in batch] == [
            row.get("image").tolist() for row in data
        ]
        # rows of a dense dataset are copied; those of a lazy stack are its members
        dense = [batch for batch in batches if not isinstance(batch, LazyStackedTensorDict)]
        assert not any(batch.is_memmap() or batch.is_shared() for batch in dense)
    alone = list(DataLoader(data, batch_size=None))
    assert [row.get("label").item() for row in alone] == list(range(6))


def seen(batch: Any) -> Any:
    """Return a batch with the process that read it, in its last key."""
    return batch, os.getpid()


@pytest.mark.parametrize("method", METHODS)
def test_workers_read_every_kind(method: str, tmp_path: Path) -> None:
    """All kinds in one loader: to start a worker costs more than to read from it."""
    kinds = [tensorclass, lazy, ragged, mapped, mapped_class, mapped_lazy, read_only, shared]
    bag = Bag([make(tmp_path) for make in kinds])
    loader = DataLoader(
        bag, batch_size=None, sampler=list(range(len(kinds))), num_workers=1, multiprocessing_context=method
    )
    got = list(loader)
    assert {pid for *_, pid in got} != {os.getpid()}
    for make, data, (batch, row, was_mapped, _) in zip(kinds, bag.datasets, got, strict=True):
        assert type(batch) is type(data), make
        assert batch.get("label").tolist() == [5, 0, 5]
        assert [part.get("image").tolist() for part in batch] == [data[n].get("image").tolist() for n in (5, 0, 5)]
        assert row.get("label").item() == 2
        assert was_mapped is data.is_memmap()


class Bag(torch.utils.data.Dataset[Any]):
    """Reads from one of several datasets."""

    def __init__(self, datasets: list[Any]) -> None:
        self.datasets = datasets

    def __getitem__(self, at: int) -> Any:
        data = self.datasets[at]
        return data.__getitems__([5, 0, 5]), data[2].clone(), data.is_memmap(), os.getpid()


@pytest.mark.parametrize("method", METHODS)
def test_workers_give_the_batches_of_no_workers(method: str) -> None:
    data = table()
    options: Any = {"batch_size": 3, "shuffle": True}
    torch.manual_seed(3)
    alone = labels(DataLoader(data, **options, generator=torch.Generator().manual_seed(1)))
    for join in [None, keep] if method == "fork" else [keep]:
        loader = DataLoader(
            data,
            **options,
            collate_fn=join,
            num_workers=2 if method == "fork" else 1,
            multiprocessing_context=method,
            generator=torch.Generator().manual_seed(1),
        )
        assert labels(loader) == alone


def test_workers_of_an_iterable_dataset_send_batches() -> None:
    loader = DataLoader(Stream(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(labels(loader)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_batches_outlive_their_worker_and_samples_are_joined_there() -> None:
    loader = DataLoader(rows(6), batch_size=2, num_workers=1, multiprocessing_context="fork")  # type: ignore[arg-type]
    batches = list(loader)
    del loader
    assert labels(batches) == [[0, 1], [2, 3], [4, 5]]
    batches[0]["image"].zero_()
    assert batches[0]["image"].sum() == 0


def test_an_error_in_a_worker_names_the_index() -> None:
    loader = DataLoader(table(4), batch_sampler=[[0, 9]], num_workers=1, multiprocessing_context="fork")
    with pytest.raises(IndexError, match="9"):
        list(loader)


def test_a_changed_worker_batch_does_not_reach_the_dataset() -> None:
    data = table(4).share_memory_()
    for batch in DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="fork"):
        batch["image"].zero_()
    assert data["image"].sum() == sum(range(16))
