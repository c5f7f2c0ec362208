"""A process that is killed while it saves leaves the old data or the new.

    TENSORDICT_KILLS=40 python -m pytest tests/storage/test_kill.py -s

kills each writer so often, at random moments; without the variable each is killed twice.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import TensorDict, append_memmap, lazy_stack, unpack_memmap

KILLS = int(os.environ.get("TENSORDICT_KILLS", "2"))


def dataset(value: int) -> TensorDict:
    """Return a tree of which every leaf says which version it is, and which changes its keys from one to the next."""
    inner = TensorDict({"y": torch.full((3, 2), value), "z": torch.full((2, 3), value).t()}, [3])
    td = TensorDict({"x": torch.full((3, 20_000), value), "n": inner, "name": str(value)}, [3])
    td["rows"] = lazy_stack([TensorDict({"r": torch.full((row + 1,), value)}) for row in range(3)])
    td[f"only {value}"] = torch.full((3,), value)
    return td


def version(td: Any) -> int:
    """Return which version was read; fail on a mixture."""
    leaves = [td["x"], td["n", "y"], td["n", "z"], td[f"only {td['name']}"]]
    leaves += [row["r"] for row in td["rows"]] if "rows" in set(td.keys()) else [td["more"], td["much"]]
    found = {value for leaf in leaves for value in leaf.unique().tolist()}
    assert found == {int(td["name"])}, f"a mixture of {found} and {td['name']}"
    return int(td["name"])


def loaded(path: str) -> int:
    return version(TensorDict.load_memmap(path))


def plain(value: int) -> TensorDict:
    return dataset(value).exclude("rows").update({"more": torch.full((3, 1), value), "much": torch.full((3, 2), value)})


class Writer(NamedTuple):
    """How a version is written to a path, and how it is read back: as its number, None where there is nothing yet."""

    write: Callable[[str, int], Any]
    read: Callable[[str], int | None]


def zeros(path: str, value: int) -> None:
    TensorDict({"x": torch.ones(value, 3), "n": {"y": torch.ones(value, 1000)}}, [value]).memmap_like(path)


def schema(path: str, value: int) -> None:
    TensorDict.from_schema({"x": ([3], torch.int8), "n": {"y": ([1000], torch.int8)}}, batch_size=[value],
                           storage="memmap", prefix=path)  # fmt: skip


def count_zeros(path: str) -> int:
    td = TensorDict.load_memmap(path)
    assert sum(leaf.sum() for leaf in td.values(True, True)) == 0
    assert {len(leaf) for leaf in td.values(True, True)} == {len(td)} == {len(td["n"])}
    return len(td)


def column(path: str, value: int) -> None:
    """Write rows of a column of strings, which lies in several files."""
    if value % 2:
        TensorDict({"name": [str(value)] * 1500}, [1500]).memmap(path)
    else:
        td = TensorDict.load_memmap(path)
        td[:] = TensorDict({"name": [str(value) * 3] * 1500}, [1500])


def read_column(path: str) -> int:
    (found,) = set(TensorDict.load_memmap(path)["name"])
    return int(found[0])


def read_file(path: str) -> int:
    return version(TensorDict.from_consolidated(path))


def unpacked(path: str, value: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        dataset(value).memmap(f"{folder}/zip", archive=True)
        unpack_memmap(f"{folder}/zip", path)


def append(path: str, value: int) -> None:
    """Append a row to one, or begin again with one."""
    row = TensorDict({"x": torch.arange(1000)[None], "n": {"y": torch.arange(1000)[None]}, "w": ["word"]}, [1])
    if value == 1:
        row.memmap(path)
    else:
        append_memmap(path, row)


def count_rows(path: str) -> int:
    td = TensorDict.load_memmap(path)
    assert torch.equal(td["x"], torch.arange(1000).expand(len(td), 1000))
    assert torch.equal(td["n", "y"], td["x"])
    assert list(td["w"]) == ["word"] * len(td)
    return len(td)


def added(path: str, value: int) -> None:
    """Add leaves to a folder one by one, or begin again with none."""
    if value == 1:
        TensorDict({"n": {"x": torch.ones(20_000)}}, []).memmap(path)
    elif "z" not in list((td := TensorDict.load_memmap(path)["n"]).keys()):
        td.make_memmap("w", [20_000])
        td.make_memmap_from_storage("y", torch.ones(20_000).untyped_storage(), [20_000])
        td.make_memmap_from_tensor("z", torch.ones(20_000))


def read_added(path: str) -> int:
    td = TensorDict.load_memmap(path)["n"]
    assert {key: leaf.sum().item() for key, leaf in td.items()} == dict.fromkeys(td.keys(), 20_000.0) | (
        {"w": 0.0} if "w" in list(td.keys()) else {}
    )
    assert list(td.keys()) == ["x", "w", "y", "z"][: len(td.keys())]
    return 2 if "z" in list(td.keys()) else 1


def read_h5(path: str) -> int:
    with contextlib.closing(TensorDict.from_h5(path)) as stored:
        return version(stored.to_tensordict())


WRITERS = {
    "memmap": Writer(lambda path, value: dataset(value).memmap(path), loaded),
    "threads": Writer(lambda path, value: dataset(value).memmap(path, num_threads=3), loaded),
    "memmap_": Writer(lambda path, value: dataset(value).memmap_(path), loaded),
    "memmap_like": Writer(zeros, count_zeros),
    "from_schema": Writer(schema, count_zeros),
    "rows of strings": Writer(column, read_column),
    "packed rows": Writer(lambda path, value: dataset(value).memmap(path, layout="rows"), loaded),
    "consolidate": Writer(lambda path, value: dataset(value).consolidate(path), read_file),
    "consolidated rows": Writer(lambda path, value: dataset(value).consolidate(path, layout="rows"), read_file),
    "archive": Writer(lambda path, value: dataset(value).memmap(path, archive=True), loaded),
    "unpack_memmap": Writer(unpacked, loaded),
    "append": Writer(append, count_rows),
    "make_memmap": Writer(added, read_added),
    "to_h5": Writer(lambda path, value: plain(value).to_h5(path).close(), read_h5),
    "to_zarr": Writer(
        lambda path, value: plain(value).to_zarr(path), lambda path: version(TensorDict.from_zarr(path).to_tensordict())
    ),
}


def work(writer: Writer, path: str, value: int, ready: Any) -> None:
    torch.set_num_threads(1)
    ready.send(True)
    writer.write(path, value)


@pytest.mark.parametrize("name", WRITERS)
def test_a_killed_writer_leaves_the_old_or_the_new(name: str, tmp_path: Path) -> None:
    if name in ("to_h5", "to_zarr"):
        pytest.importorskip({"to_h5": "h5py", "to_zarr": "zarr"}[name])
    writer, path, mine = WRITERS[name], str(tmp_path / "data"), tmp_path / "data" / "config.yaml"
    context: Any = mp.get_context("fork")

    def start(value: int) -> Any:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(writer, path, value, theirs))
        process.start()
        ours.recv()
        return process

    writer.write(path, 1)
    begin = time.perf_counter()
    start(2).join()
    took = time.perf_counter() - begin
    writer.write(path, 1)
    keeps = mine.parent.is_dir() and name != "to_zarr"
    if keeps:
        mine.write_text("mine")
    old, outcomes = 1, []
    chance = random.Random()
    for _ in range(KILLS):
        new = 3 - old
        process = start(new)
        process.join(chance.uniform(0, 1.2 * took))
        process.kill()
        process.join()
        found = writer.read(path)
        assert found in (old, new)
        outcomes.append(found == new)
        old = found
        assert not keeps or mine.read_text() == "mine"
    writer.write(path, 3 - old)
    assert writer.read(path) == 3 - old
    assert os.listdir(tmp_path) == ["data"], "the next save removes what the dead left"
    print(f"{name}: killed {KILLS} times, {sum(outcomes)} times the new was there")
    assert KILLS < 25 or 0 < sum(outcomes) < KILLS
