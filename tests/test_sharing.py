"""Sharing: what one process writes to shared or memory-mapped tensordicts, the others see."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import LazyStackedTensorDict, TensorClass, TensorDict, lazy_stack

METHODS = ["fork", "spawn", "forkserver"]
multiprocessing.set_forkserver_preload(["torch"])


class Step(TensorClass):
    obs: torch.Tensor
    inner: TensorDict


def plain() -> Any:
    return TensorDict({"obs": torch.zeros(4, 3), "inner": {"y": torch.zeros(4, dtype=torch.int64)}}, [4])


def lazy() -> Any:
    return lazy_stack(list(plain().unbind(0)))


def holding_lazy() -> Any:
    return TensorDict({"obs": torch.zeros(4, 3), "inner": lazy_stack([plain()["inner"][n] for n in range(4)])}, [4])


def holding_class() -> Any:
    return TensorDict({"obs": torch.zeros(4, 3), "inner": step()}, [4])


def step() -> Any:
    return Step(obs=torch.zeros(4, 3), inner=plain()["inner"], batch_size=[4])


MAKERS = [plain, lazy, holding_lazy, holding_class, step]
PLACES: dict[str, Callable[[Any, Path], Any]] = {
    "shared": lambda td, path: td.share_memory_(),
    "memmap": lambda td, path: td.memmap_(),
    "folder": lambda td, path: td.memmap_(path),
    "copy": lambda td, path: td.memmap(path),
    "like": lambda td, path: td.memmap_like(path),
}


def parts(td: Any) -> dict[str, Any]:
    """Return the whole, a row, a chunk, a strided part and a part of what is nested."""
    return {"whole": td, "row": td[3], "chunk": td[1:3], "strided": td[::2], "nested": td.get("inner")[1:]}


def ask(method: str, target: Callable[..., None], *args: Any) -> Any:
    """Run a function in a process, and return what it sends; a process that dies is an error and not a hang."""
    context: Any = mp.get_context(method)
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(*args, theirs))
    process.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        process.join()


def add_one(nodes: dict[str, dict[str, Any]], answers: Any) -> None:
    seen = {name: {part: float(td.sum(reduce=True)) for part, td in group.items()} for name, group in nodes.items()}
    for group in nodes.values():
        group["whole"].add_(1)
    locked = all(td.is_locked for group in nodes.values() for td in group.values())
    answers.send((seen, locked))


@pytest.mark.parametrize("method", METHODS)
def test_writes_are_seen_both_ways_by_every_kind_and_every_part(method: str, tmp_path: Path) -> None:
    """All kinds in all places in one process: a spawned one costs more than all of its checks."""
    nodes = {
        f"{place} {make.__name__}": parts(put(make(), tmp_path / place / make.__name__))
        for place, put in PLACES.items()
        for make in MAKERS
    }
    for group in nodes.values():
        group["whole"].add_(1)
    want = {name: {part: float(td.sum(reduce=True)) for part, td in group.items()} for name, group in nodes.items()}
    seen, locked = ask(method, add_one, nodes)
    assert seen == want
    assert locked
    for name, group in nodes.items():
        for part, td in group.items():
            assert float(td.sum(reduce=True)) == 2 * want[name][part], (name, part)


def fill(path: str, start: int, stop: int) -> None:
    data = TensorDict.load_memmap(path)
    for at in range(start, stop):
        data[at] = TensorDict({"obs": torch.full((3,), float(at)), "inner": {"y": at}})


@pytest.mark.parametrize("method", METHODS)
def test_writers_fill_their_rows_by_the_path(method: str, tmp_path: Path) -> None:
    schema = {"obs": ([3], torch.float32), "inner": {"y": ([], torch.int64)}}
    data = TensorDict.from_schema(schema, batch_size=[6], storage="memmap", prefix=tmp_path)
    context: Any = mp.get_context(method)
    spans = [(0, 3), (3, 6)] if method == "fork" else [(0, 6)]
    writers = [context.Process(target=fill, args=(str(tmp_path), *span)) for span in spans]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * len(writers)
    for td in (data, TensorDict.load_memmap(tmp_path, mode="r")):
        assert td["inner", "y"].tolist() == [0, 1, 2, 3, 4, 5]
        assert td["obs"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def send_and_wait(path: str, box: Any, done: Any) -> None:
    box.put(parts(TensorDict.load_memmap(path)) | {"shared": plain().share_memory_()})
    done.wait(60)


def test_a_worker_can_send_what_it_opened_or_made(tmp_path: Path) -> None:
    data = plain().memmap(tmp_path)
    context: Any = mp.get_context("fork")
    box, done = context.SimpleQueue(), context.Event()
    process = context.Process(target=send_and_wait, args=(str(tmp_path), box, done))
    process.start()
    got = box.get()
    data.fill_("obs", 5.0)
    assert [float(got[part].get("obs").mean()) for part in ("whole", "chunk", "row", "strided")] == [5.0] * 4
    assert got["shared"].is_shared()
    assert got["shared"]["obs"].sum() == 0
    done.set()
    process.join()
    got["shared"].add_(1)
    assert got["shared"]["obs"].sum() == 12


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("place", ["folder", "memmap"])
def test_a_pickle_of_mapped_data_is_small_and_maps_the_same_file(make: Any, place: str, tmp_path: Path) -> None:
    wide = make()
    wide.set("big", torch.zeros(4, 100_000)) if make is not step else None
    td = PLACES[place](wide, tmp_path)
    for part, node in parts(td).items():
        data = pickle.dumps(node) if place == "folder" else bytes(ForkingPickler.dumps(node))
        assert len(data) < 6_000, part
        back = pickle.loads(data)
        assert type(back) is type(node)
        assert back.batch_size == node.batch_size
        assert back.is_locked
        assert back.is_memmap() is node.is_memmap()
        node.add_(1)
        assert (back == node).all()
        assert back.sum(reduce=True) > 0
        back.zero_()
        assert node.sum(reduce=True) == 0


@pytest.mark.parametrize("place", ["folder", "memmap"])
def test_views_of_mapped_data_are_mapped_and_locked_and_copies_are_not(place: str, tmp_path: Path) -> None:
    for make in MAKERS:
        td = PLACES[place](make(), tmp_path / make.__name__)
        views = [td[0], td[1:], td[::2], *td.unbind(0), *td.split(2), *td.chunk(2)]
        if make is not lazy:
            views += [td.unsqueeze(0), td.view(2, 2), td.reshape(2, 2)]
        for view in views:
            held = view[0] if isinstance(view, LazyStackedTensorDict) else view
            assert held.is_memmap()
            assert view.is_locked
            view.zero_()
        with pytest.raises(RuntimeError, match="locked"):
            views[0].set("new", torch.zeros(3))
        copies = [td.clone(), td + 1, td.contiguous().clone()]
        if make is not lazy:  # an index of a lazy stack gives its very members
            copies += [td[[0, 1]], td[torch.tensor([True, False, True, True])]]
        for copy in copies:
            assert not copy.is_memmap()
            assert not copy.is_locked
            copy.fill_("obs", 3.0)
        assert td.sum(reduce=True) == 0


def test_shared_data_is_shared_and_locked() -> None:
    for make in MAKERS:
        td = make()
        assert td.share_memory_() is td
        assert td.is_shared()
        assert not td.is_memmap()
        assert td.is_locked
        assert td[1].is_shared()
        assert td[1:].is_locked
        assert not td.clone().is_shared()
        with pytest.raises(RuntimeError, match="locked"):
            td.set("new", torch.zeros(4))


def test_hundreds_of_leaves_share_one_block() -> None:
    td = TensorDict({f"k{n}": torch.full((2,), float(n)) for n in range(300)}, [2]).share_memory_()
    assert len({leaf.untyped_storage()._cdata for leaf in td.values()}) == 1
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    back = pickle.loads(bytes(ForkingPickler.dumps(td)))
    assert (back == td).all()
    if before:
        assert len(os.listdir("/proc/self/fd")) - before < 10
    back["k7"].zero_()
    assert td["k7"].sum() == 0


def test_sharing_again_keeps_the_memory(tmp_path: Path) -> None:
    td = plain().share_memory_()
    leaf = td["obs"]
    td.share_memory_()
    leaf.fill_(2)
    assert (td["obs"] == 2).all()
    td = plain().memmap_(tmp_path)
    leaf = td["obs"]
    assert td.memmap_(tmp_path) is td
    leaf.fill_(2)
    assert (td["obs"] == 2).all()


def test_sharing_again_takes_what_was_added_since(tmp_path: Path) -> None:
    td = plain().memmap_(tmp_path).unlock_()
    td["inner", "new"] = torch.ones(4)
    td.memmap_(tmp_path)
    assert TensorDict.load_memmap(tmp_path)["inner", "new"].tolist() == [1.0] * 4
    td = plain().share_memory_().unlock_()
    td["inner", "new"] = torch.ones(4)
    back = pickle.loads(bytes(ForkingPickler.dumps(td.share_memory_())))
    back["inner", "new"].zero_()
    assert td["inner", "new"].sum() == 0


def test_a_shared_tensordict_that_holds_objects_can_be_sent() -> None:
    td = TensorDict({"obs": torch.zeros(2), "name": ["a", "b"], "one": "x"}, [2]).share_memory_()
    back = pickle.loads(bytes(ForkingPickler.dumps(td)))
    assert list(back["name"]) == ["a", "b"]
    assert back["one"] == "x"
    back["obs"].fill_(1)
    assert td["obs"].sum() == 2


def test_names_device_and_class_arrive(tmp_path: Path) -> None:
    td = TensorDict({"obs": torch.zeros(2, 3)}, [2, 3], device="cpu", names=["time", None]).memmap(tmp_path)
    back = pickle.loads(pickle.dumps(td))
    assert back.names == ["time", None]
    assert back.device == torch.device("cpu")
    assert isinstance(pickle.loads(pickle.dumps(lazy().memmap_())), LazyStackedTensorDict)
    assert type(pickle.loads(pickle.dumps(step().memmap_()))) is Step


def test_what_is_shared_is_saved_by_value(tmp_path: Path) -> None:
    words = [f"word {at}" for at in range(2000)]
    td = TensorDict(
        {"x": torch.arange(2000), "y": torch.ones(2000, 2), "s": words, "n": {"h": torch.ones(2000).half()}}, [2000]
    )
    torch.save(td.share_memory_(), tmp_path / "whole.pt")
    torch.save(td[5:7], tmp_path / "rows.pt")
    loaded = torch.load(tmp_path / "whole.pt")  # weights_only, which unpickles what is known to run no code
    assert not loaded.is_shared()
    assert loaded["s"] == words and (loaded.exclude("s") == td.exclude("s")).all()
    rows = torch.load(tmp_path / "rows.pt")
    assert (rows["x"].tolist(), rows["s"], rows["n", "h"].tolist()) == ([5, 6], words[5:7], [1.0, 1.0])
