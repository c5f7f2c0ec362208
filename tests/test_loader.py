"""The Loader: which rows come in which batch, what is told when something goes wrong, and what is left behind."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict, lazy_stack
from tensordict.data import Blocks, Loader, Stats
from tensordict.data.order import order_of

sys.path.insert(0, str(Path(__file__).parent / "contract"))
import kinds

PATIENCE = 20.0  # seconds until a thread that should end is given up


def table(size: int = 10) -> TensorDict:
    rows = torch.arange(size)
    return TensorDict({"row": rows, "n": {"wide": rows[:, None] * 10 + torch.arange(3)}}, [size])


def rows_of(loader: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in loader]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader-")]


def ended() -> bool:
    """Tell whether all threads of loaders end."""
    for thread in readers():
        thread.join(PATIENCE)
    return not readers()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    if readers():
        gc.collect()
    assert ended()


# ---- which rows


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("reuse", [False, True, "check"])
def test_every_kind_is_read_as_an_index_reads_it(kind: str, reuse: Any) -> None:
    data = kinds.KINDS[kind]((7, 2))
    before = data.to_tensordict()
    loader = Loader(data, 3, shuffle=True, seed=1, workers=2, reuse_buffers=reuse)
    for epoch in range(2):
        order = order_of(7, True, 1, epoch)(torch.arange(7).numpy())
        for number, batch in enumerate(loader):
            want = data[torch.from_numpy(order[3 * number : 3 * number + 3])]
            assert batch.batch_size == want.batch_size == (len(want), 2)
            assert batch.names == want.names
            kinds.assert_same(batch, want, kind)
            assert not batch.is_locked and not batch.is_memmap() and not batch.is_shared()
            batch.get("x").zero_()  # it is the receiver's own
        assert number == 2
    kinds.assert_same(data, before, kind)


@given(
    st.integers(0, 40), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 3), st.integers(1, 3), st.data()
)
def test_a_pass_is_every_row_once_in_the_order_of_its_seed_and_epoch(
    size: int, batch: int, shuffle: bool, drop: bool, workers: int, prefetch: int, data: Any
) -> None:
    seed, epoch = data.draw(st.integers(-3, 3)), data.draw(st.integers(0, 3))
    options: Any = {"shuffle": shuffle, "drop_last": drop, "seed": seed, "workers": workers, "prefetch": prefetch}
    loader = Loader(table(size), batch, **options)
    loader.set_epoch(epoch)
    assert loader.state_dict() == {"seed": seed, "epoch": epoch, "position": 0}
    want = order_of(size, shuffle, seed, epoch)(torch.arange(size).numpy()).tolist()
    cut = [want[at : at + batch] for at in range(0, size, batch)]
    if drop and cut and len(cut[-1]) < batch:
        cut.pop()
    assert rows_of(loader) == cut
    assert len(loader) == len(cut)
    assert loader.state_dict() == {"seed": seed, "epoch": epoch + 1, "position": 0}


def test_epochs_differ_and_the_same_epoch_is_the_same() -> None:
    loader = Loader(table(100), 10, shuffle=True)
    first, second = rows_of(loader), rows_of(loader)
    assert first != second
    loader.set_epoch(0)
    assert rows_of(loader) == first
    assert rows_of(Loader(table(100), 10, shuffle=True, seed=1)) != first
    state = torch.get_rng_state()
    rows_of(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_small_batches_are_read_in_runs_and_are_what_they_are_alone() -> None:
    """A thousand batches take runs of many; each batch is still one of its own."""
    data = table(3000).set("name", NonTensorStack(*map(str, range(3000)))).set("one", NonTensorData("all", [3000]))
    loader = Loader(data, 3, shuffle=True, workers=2)
    order = order_of(3000, True, 0, 0)(torch.arange(3000).numpy()).tolist()
    kept = list(loader)
    assert [row for batch in kept for row in batch["row"].tolist()] == order
    assert [name for batch in kept for name in batch["name"]] == list(map(str, order))
    assert all(batch.batch_size == (3,) and batch["one"] == "all" for batch in kept)
    assert torch.equal(kept[7]["n", "wide"], data["n", "wide"][order[21:24]])
    kept[7]["n", "wide"].zero_()
    kept[7]["more"] = torch.zeros(3)
    assert torch.equal(kept[8]["n", "wide"], data["n", "wide"][order[24:27]])
    assert "more" not in kept[8]


def test_ragged_rows_come_as_lazy_stacks() -> None:
    data = lazy_stack([TensorDict({"x": torch.full((n % 3 + 1,), n)}) for n in range(6)])
    batches = list(Loader(data, 3, shuffle=True))
    assert [type(batch) for batch in batches] == [LazyStackedTensorDict] * 2
    rows = sorted((row["x"].tolist() for batch in batches for row in batch), key=lambda row: row[0])
    assert rows == [[n] * (n % 3 + 1) for n in range(6)]
    batches[0][0]["x"].zero_()
    assert data[3]["x"].tolist() == [3]


# ---- resume and ranks


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 3), st.integers(0, 20), st.booleans(), st.booleans())
def test_a_pass_goes_on_exactly_with_other_workers(
    size: int, batch: int, workers: int, stop: int, drop: bool, shuffle: bool
) -> None:
    data, options = table(size), {"shuffle": shuffle, "drop_last": drop, "seed": 5}
    whole = Loader(data, batch, **options)  # type: ignore[arg-type]
    whole.set_epoch(2)
    want, after = rows_of(whole), rows_of(whole)
    first = Loader(data, batch, workers=workers, **options)  # type: ignore[arg-type]
    first.set_epoch(2)
    passing = iter(first)
    got = [next(passing)["row"].tolist() for _ in range(min(stop, len(want)))]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    assert state["position"] == (size if got and stop >= len(want) else batch * len(got))
    assert set(map(type, state.values())) == {int}
    second = Loader(data, batch, workers=4 - workers, shuffle=shuffle, drop_last=drop)
    second.load_state_dict(state)
    assert second.state_dict() == state
    second.set_epoch(2)
    assert got + rows_of(second) == want
    assert rows_of(second) == after


@given(st.integers(1, 60), st.sampled_from([(4, 1, 2, 2), (2, 2, 4, 1), (1, 6, 3, 2), (3, 2, 1, 6)]), st.integers(0, 9))
def test_a_pass_goes_on_exactly_with_other_ranks(size: int, shapes: tuple[int, ...], stop: int) -> None:
    data, (batch, world, new_batch, new_world) = table(size), shapes
    want = order_of(size, True, 0, 0)(torch.arange(size).numpy()).tolist()
    seen: list[int] = []

    def passes(batch: int, world: int, state: Any) -> list[Any]:
        loaders = [Loader(data, batch, shuffle=True, workers=0, rank=r, world_size=world) for r in range(world)]
        for loader in loaders:
            loader.load_state_dict(state)
            loader.set_epoch(0)
        return loaders

    def take(passing: list[Any]) -> None:
        parts = [next(batches)["row"].tolist() for batches in passing]
        seen.extend(dict.fromkeys(row for part in parts for row in part))

    loaders = passes(batch, world, {"seed": 0, "epoch": 0, "position": 0})
    passing = list(map(iter, loaders))
    for _ in range(min(stop, len(loaders[0]))):
        take(passing)
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    assert states[0]["position"] == len(seen)
    loaders = passes(new_batch, new_world, states[0])
    passing = list(map(iter, loaders))
    while len(seen) < size:
        take(passing)
    assert seen == want
    assert all(next(batches, None) is None for batches in passing)


def test_ranks_are_asked_of_torch_where_a_group_is_initialized(tmp_path: Path) -> None:
    loader = Loader(table(10), 2)
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        assert rows_of(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    finally:
        torch.distributed.destroy_process_group()
    assert rows_of(Loader(table(10), 2, rank=1, world_size=2)) == [[2, 3], [6, 7], [9]]


def test_the_state_counts_what_was_handed_out_and_no_more() -> None:
    loader = Loader(table(100), 5, workers=3, prefetch=4)
    assert loader.state_dict()["position"] == 0
    for number, _ in enumerate(loader):
        assert loader.state_dict() == {"seed": 0, "epoch": 0, "position": 5 * (number + 1)}
    assert loader.state_dict() == {"seed": 0, "epoch": 1, "position": 0}
    for _ in loader:
        break
    assert loader.state_dict() == {"seed": 0, "epoch": 1, "position": 5}
    again = pickle.loads(pickle.dumps(loader))
    assert rows_of(again)[0] == [0, 1, 2, 3, 4]


def test_a_state_of_the_end_of_an_epoch_goes_on_with_the_next_one() -> None:
    loader = Loader(table(), 5, shuffle=True)
    want = [rows_of(loader) for _ in range(3)]
    loader.set_epoch(1)
    passing = iter(loader)
    assert [next(passing)["row"].tolist() for _ in range(2)] == want[1]
    state = loader.state_dict()
    assert state == {"seed": 0, "epoch": 1, "position": 10}
    assert rows_of(loader) == want[2]  # who counts the batches asks for none after the last
    for chosen in (False, True):
        again = Loader(table(), 5, shuffle=True)
        again.load_state_dict(state)
        assert again.state_dict() == state
        if chosen:
            again.set_epoch(1)
            assert rows_of(again) == []
            again.set_epoch(2)
        assert rows_of(again) == want[2]


@pytest.mark.parametrize(
    "state, message",
    [
        ({"seed": 0, "epoch": 0}, "has the keys"),
        ({"seed": 0, "epoch": -1, "position": 0}, "'epoch' must be at least 0, got -1"),
        ({"seed": 0, "epoch": 0, "position": 11}, "position 11, but the dataset has 10 rows"),
    ],
)
def test_a_wrong_state_is_refused_and_changes_nothing(state: dict[str, int], message: str) -> None:
    loader = Loader(table(), 2, seed=3)
    loader.set_epoch(1)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == {"seed": 3, "epoch": 1, "position": 0}


# ---- transforms and errors


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_transform_sees_whole_batches_and_its_result_is_handed_out(workers: int) -> None:
    got = list(Loader(table(), 4, workers=workers, transform=lambda batch: (batch["row"] * 2, len(batch))))
    assert [(values.tolist(), count) for values, count in got] == [
        ([0, 2, 4, 6], 4),
        ([8, 10, 12, 14], 4),
        ([16, 18], 2),
    ]


class OddError(Exception):
    """An error that takes two arguments, which pickle and re-raising by type would get wrong."""

    def __init__(self, one: Any, two: Any) -> None:
        super().__init__(one, two)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_of_a_transform_comes_as_it_is_with_its_batch_and_rows(workers: int) -> None:
    def transform(batch: Any) -> Any:
        if 6 in batch["row"].tolist():
            try:
                {}["six"]
            except KeyError as error:
                raise OddError("no", 6) from error
        return batch

    passing = iter(Loader(table(), 2, workers=workers, transform=transform))
    assert [next(passing)["row"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(OddError) as caught:
        next(passing)
    assert caught.value.args == ("no", 6)
    assert isinstance(caught.value.__cause__, KeyError)
    assert str(caught.value.__cause__.__cause__) == "in the transform of batch 3 (rows 6, 7)"
    assert list(passing) == []


def test_an_error_of_the_dataset_names_the_batch_too(tmp_path: Path) -> None:
    data = table(30).to_h5(tmp_path / "data.h5")
    loader = Loader(data, 20)
    data.close()
    os.remove(tmp_path / "data.h5")
    with pytest.raises((OSError, ValueError, KeyError)) as caught:
        list(loader)
    causes = [caught.value]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    assert str(causes[-1]) == "in reading batch 0 (rows 0, 1, 2, 3, 4, 5, 6, 7, ... 20 rows in all)"


@pytest.mark.parametrize(
    "options, kind, message",
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an int, got 2.0"),
        ({"shuffle": "yes"}, TypeError, "shuffle must be"),
        ({"seed": None}, TypeError, "seed must be an int"),
        ({"transform": 3}, TypeError, "transform must be callable, got 3"),
        ({"workers": -1}, ValueError, "workers must be at least 0"),
        ({"workers": "threads"}, TypeError, "workers must be an int, got 'threads'"),
        ({"prefetch": 0}, ValueError, "prefetch must be at least 1"),
        ({"reuse_buffers": "no"}, ValueError, "reuse_buffers must be True, False or 'check'"),
        ({"rank": 0}, ValueError, "give rank and world_size"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank must be less than world_size"),
        ({"dataset": [1, 2]}, TypeError, r"a Loader reads the rows of a tensordict, got \[1, 2\]"),
        ({"dataset": NonTensorStack("a")}, TypeError, "a Loader reads the rows"),
        ({"dataset": TensorDict({"x": 1})}, ValueError, "needs a dataset with a batch dim"),
    ],
)
def test_wrong_options_are_told_at_once(options: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        Loader(**{"dataset": table(), "batch_size": 2, **options})
    loader = Loader(table(), 2)
    with pytest.raises(ValueError, match="epoch must be at least 0"):
        loader.set_epoch(-1)


# ---- threads and memory


def test_leaving_early_ends_the_threads_and_frees_the_batches() -> None:
    made: list[Any] = []

    def transform(batch: Any) -> Any:
        made.append(weakref.ref(batch))
        return batch

    loader = Loader(table(1000), 2, workers=3, transform=transform)
    for number, _ in enumerate(loader):
        if number == 3:
            break
    assert len(made) < 400  # of 500: it reads ahead, but not everything
    del _
    assert ended()
    gc.collect()
    assert not any(ref() is not None for ref in made)


@pytest.mark.parametrize("how", ["dropped", "closed", "error"])
def test_a_pass_that_is_given_up_ends_its_threads(how: str) -> None:
    passing: Any = iter(Loader(table(1000), 2, workers=2))
    assert not readers()  # nothing runs before the first batch is asked for
    next(passing)
    assert len(readers()) == 2
    if how == "dropped":
        del passing
    elif how == "closed":
        passing.close()
        assert list(passing) == []
    else:
        with pytest.raises(KeyError):
            passing.throw(KeyError("stop"))
    assert ended()


def test_two_passes_do_not_disturb_each_other() -> None:
    loader = Loader(table(50), 5, shuffle=True, workers=2)
    alone = rows_of(Loader(table(50), 5, shuffle=True))
    assert [(a["row"].tolist(), b["row"].tolist()) for a, b in zip(loader, loader)] == list(zip(alone, alone))
    outer = []
    loader.set_epoch(0)
    for batch in loader:
        outer.append(batch["row"].tolist())
        inner = iter(loader)
        assert next(inner)["row"].tolist() == alone[0]
    assert outer == alone


def test_the_next_batch_is_ready_before_it_is_asked_for() -> None:
    done = [threading.Event() for _ in range(5)]

    def transform(batch: Any) -> Any:
        done[int(batch["row"][0]) // 2].set()
        return batch

    passing = iter(Loader(table(10), 2, transform=transform, prefetch=2))
    next(passing)
    assert done[1].wait(PATIENCE)
    assert done[2].wait(PATIENCE)


def test_it_reads_no_further_ahead_than_it_may() -> None:
    gate = threading.Semaphore(0)
    seen: list[int] = []

    def transform(batch: Any) -> Any:
        seen.append(int(batch["row"][0]))
        gate.release()
        return batch

    passing = iter(Loader(table(1000), 1, transform=transform, prefetch=1))
    next(passing)
    gate.acquire(timeout=PATIENCE)
    assert len(seen) <= 4


def test_stats_tell_batches_bytes_and_waiting() -> None:
    loader = Loader(table(100), 10)
    assert loader.stats == Stats()
    list(loader)
    assert (loader.stats.batches, loader.stats.bytes) == (10, 100 * 32)
    assert 0 <= loader.stats.waited < 60
    next(iter(loader))
    assert loader.stats.batches == 1


def test_batches_that_are_kept_keep_their_values_and_others_are_used_again() -> None:
    wide = torch.arange(40.0)[:, None].expand(40, 5000).contiguous()
    loader = Loader(TensorDict({"x": wide}, [40]), 4)
    places: set[int] = set()
    kept = []
    for _ in range(50):
        for number, batch in enumerate(loader):
            places.add(batch["x"].data_ptr())
            if number == 3:
                kept.append(batch["x"][:, 0])
    assert len(places) < 350  # of 500; each that is kept keeps the others of its run
    assert [part.tolist() for part in kept] == [[12.0, 13.0, 14.0, 15.0]] * 50


def test_a_kept_leaf_does_not_keep_the_other_leaves() -> None:
    data = TensorDict({"label": torch.arange(64), "image": torch.zeros(64, 1000)}, [64])
    label = next(iter(Loader(data, 4)))["label"]
    assert label.untyped_storage().nbytes() <= 64 * 8


def test_memory_stays_flat_over_many_epochs() -> None:
    data = TensorDict({"x": torch.zeros(256, 4096), "y": torch.zeros(256)}, [256])
    for reuse in (False, True):
        loader = Loader(data, 16, shuffle=True, workers=2, reuse_buffers=reuse)
        for _ in range(5):
            list(map(len, loader))
        before = resident()
        for _ in range(100):
            for batch in loader:
                batch["x"].add_(1)
        assert resident() - before < 24 << 20  # an epoch has 4 MB


def resident() -> int:
    """Return the bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_lent_batches_are_right_while_they_are_lent(workers: int) -> None:
    data = table(600)
    loader = Loader(data, 7, shuffle=True, workers=workers, reuse_buffers=True)
    places = set()
    for _ in range(3):
        seen = []
        for batch in loader:
            assert torch.equal(batch["n", "wide"], data["n", "wide"][batch["row"]])
            seen += batch["row"].tolist()
            places.add(batch["row"].data_ptr())
        assert sorted(seen) == list(range(600))


def test_misuse_of_a_lent_batch_is_made_visible() -> None:
    data = table(20).set("x", torch.ones(20))
    passing = iter(Loader(data, 2, reuse_buffers="check"))
    first = next(passing)
    total = first["row"].sum()
    assert first["x"].tolist() == [1, 1]
    second = next(passing)
    assert first["x"].isnan().all()
    assert first["row"].tolist() == [-1, -1]
    assert second["x"].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match=r"batch 0 was lent until batch 1 was asked for.*clone\(\)"):
        next(passing)
    assert total == 1


def test_keeping_what_was_computed_from_a_lent_batch_is_no_misuse() -> None:
    kept = []
    for batch in Loader(table(20), 2, reuse_buffers="check", workers=2):
        kept.append((batch["row"] + 0, batch.clone()))
        batch["more"] = batch["row"] * 2
        batch["cycle"] = NonTensorData(kept, [2])
        del kept[-1:]
        kept.append((batch["row"] + 0, batch.select("row").clone()))
    assert [rows.tolist() for rows, _ in kept] == [[n, n + 1] for n in range(0, 20, 2)]


def test_pinning_without_an_accelerator_is_told_and_does_nothing() -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator"):
        assert rows_of(Loader(table(4), 2, pin_memory=True)) == [[0, 1], [2, 3]]


def test_pinned_batches_lie_in_pinned_memory() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    for batch in Loader(table(10), 2, pin_memory=True, transform=lambda batch: (batch, batch["row"])):
        assert batch[0]["n", "wide"].is_pinned() and batch[1].is_pinned()


# ---- blocks


@pytest.mark.parametrize("backend", ["h5", "zarr", "memory"])
def test_blocks_of_a_store_are_read_once_and_give_the_same_batches(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = table(103)
    if backend == "zarr":
        pytest.importorskip("zarr")
    data = plain if backend == "memory" else getattr(plain, f"to_{backend}")(str(tmp_path / "data"))
    shuffle = Blocks(10, mix=3)
    for workers in (0, 1, 3):
        loader = Loader(data, 8, shuffle=shuffle, workers=workers)
        want = order_of(103, shuffle, 0, 0)(torch.arange(103).numpy()).tolist()
        got = list(loader)
        assert [row for batch in got for row in batch["row"].tolist()] == want
        assert [len(batch) for batch in got] == [8] * 12 + [7]
        assert torch.equal(torch.cat(got)["n", "wide"], plain["n", "wide"][want])
    if backend == "h5":
        counted: list[Any] = []
        store = type(data._room.store)
        read = store.read
        monkeypatch.setattr(store, "read", lambda self, array, at: counted.append(at) or read(self, array, at))
        for _ in range(5):
            list(loader)
        assert len(counted) == 5 * 2 * 11  # in each epoch each of eleven blocks once, of each of two leaves
        state = loader.state_dict()
        loader.load_state_dict({**state, "position": 50})
        assert len(rows_of(loader)) == 7
    if backend != "memory":
        data.close()


def test_a_store_is_read_in_any_order(tmp_path: Path) -> None:
    plain = table(50)
    data = plain.to_h5(tmp_path / "data.h5")
    parts = rows_of(Loader(data[5:45], 7, shuffle=True, workers=2))
    assert sorted(row for part in parts for row in part) == list(range(5, 45))
    assert rows_of(Loader(data, 30)) == [list(range(30)), list(range(30, 50))]
    data.close()
