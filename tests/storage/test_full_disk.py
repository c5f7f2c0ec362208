"""A full disk is an error that names the file and the bytes, and never the end of the process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp

from tensordict import MemoryMappedTensor, TensorDict
from tensordict.storage import disk

MB = 1 << 20
REFUSED = 77
_NEW_MOUNTS = 0x00020000


def _mount(path: str, size: int) -> bool:
    """Give this process a small disk of its own at a path; return False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    private, options = 1 << 18 | 1 << 14, f"size={size}".encode()
    return (
        libc.unshare(_NEW_MOUNTS) == 0
        and libc.mount(b"none", b"/", None, private, None) == 0
        and libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, options) == 0
    )


def _on_small_disk(path: str, work: Callable[[Path], None]) -> None:
    torch.set_num_threads(1)
    if not _mount(path, 16 * MB):
        os._exit(REFUSED)
    work(Path(path))


def on_small_disk(path: Path | str, work: Callable[[Path], None]) -> None:
    """Do some work in a process that sees a disk of 16 MB at a path."""
    process: Any = mp.get_context("fork").Process(target=_on_small_disk, args=(str(path), work))
    process.start()
    process.join()
    if process.exitcode == REFUSED:
        pytest.skip("mounting is not allowed here")
    assert process.exitcode == 0, signal.Signals(-process.exitcode) if process.exitcode < 0 else "see the output above"


def rows(count: int, value: int = 1) -> TensorDict:
    return TensorDict(
        {"x": torch.full((count, MB), value, dtype=torch.uint8), "y": torch.full((count,), value)}, [count]
    )


@contextlib.contextmanager
def refused(name: str, nbytes: int) -> Iterator[None]:
    with pytest.raises(OSError, match=rf"{re.escape(name)}.*{nbytes} bytes needed"):
        yield


SAVES: dict[str, Callable[[Any, Path], Any]] = {
    "memmap": lambda td, path: td.memmap(path),
    "memmap, threads": lambda td, path: td.memmap(path, num_threads=2),
    "memmap_": lambda td, path: td.memmap_(path),
    "views": lambda td, path: TensorDict({"x": td["x"].t().contiguous().t(), "y": td["y"]}, td.shape).memmap(path),
    "memmap_like": lambda td, path: td.memmap_like(path),
    "from_schema": lambda td, path: TensorDict.from_schema(
        {"x": ([MB], torch.uint8), "y": ([], torch.int64)}, batch_size=td.shape, storage="memmap", prefix=path
    ),
}


@pytest.mark.parametrize("name", SAVES)
def test_a_save_that_does_not_fit_leaves_the_old(name: str, tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        rows(5, 3).memmap(folder / "data")
        for count in (12, 40):
            with refused("x.memmap", count * MB):
                SAVES[name](rows(count), folder / "data")
        back = TensorDict.load_memmap(folder / "data")
        assert back["x"].shape == (5, MB)
        assert back["x"].min() == back["y"].min() == 3
        assert os.listdir(folder) == ["data"]
        assert sorted(os.listdir(folder / "data")) == ["checksums.json", "meta.json", "x.memmap", "y.memmap"]
        SAVES[name](rows(7), folder / "data")
        assert len(TensorDict.load_memmap(folder / "data")) == 7

    on_small_disk(tmp_path, work)


ONE_FILE: dict[str, tuple[Callable[[Any, Path], Any], Callable[[Path], Any]]] = {
    "consolidate": (lambda td, path: td.consolidate(path), TensorDict.from_consolidated),
    "consolidated rows": (lambda td, path: td.consolidate(path, layout="rows"), TensorDict.from_consolidated),
    "packed rows": (lambda td, path: td.memmap(path, layout="rows"), TensorDict.load_memmap),
    "archive": (lambda td, path: td.memmap(path, archive=True), TensorDict.load_memmap),
}


@pytest.mark.parametrize("name", ONE_FILE)
def test_one_file_that_does_not_fit_leaves_the_old(name: str, tmp_path: Path) -> None:
    save, load = ONE_FILE[name]

    def work(folder: Path) -> None:
        save(rows(5, 3), folder / "data")
        for count in (12, 40):
            with pytest.raises(OSError, match=r"no space for .*data.*\d{8} bytes needed"):
                save(rows(count), folder / "data")
        back = load(folder / "data")
        assert back["x"].shape == (5, MB)
        assert back["x"].min() == back["y"].min() == 3
        assert os.listdir(folder) == ["data"]
        save(rows(7), folder / "data")
        assert len(load(folder / "data")) == 7

    on_small_disk(tmp_path, work)


def test_what_was_preallocated_can_be_written_when_the_disk_is_full(tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        one = rows(1).expand(9).memmap_like(folder / "one")
        with refused("x.memmap", 9 * MB):
            rows(1).expand(9).memmap_like(folder / "two")
        with contextlib.suppress(OSError), open(folder / "rest", "wb") as file:
            while True:
                file.write(bytes(MB))
        one["x"].fill_(7)
        one["y"].fill_(7)
        assert one["x"].min() == 7

    on_small_disk(tmp_path, work)


OPENS: dict[str, tuple[Callable[[Any, Path], Any], Callable[..., Any]]] = {
    "memmap": (lambda td, path: td.memmap(path), TensorDict.load_memmap),
    "consolidate": (lambda td, path: td.consolidate(path), TensorDict.from_consolidated),
    "archive": (lambda td, path: td.memmap(path, archive=True), TensorDict.load_memmap),
}


@pytest.mark.parametrize("name", OPENS)
def test_holes_that_another_program_left_cannot_end_the_process(name: str, tmp_path: Path) -> None:
    save, load = OPENS[name]

    def work(folder: Path) -> None:
        save(rows(6, 0), folder / "data")
        big = max((path for path in folder.rglob("*") if path.is_file()), key=os.path.getsize)
        content, size = big.read_bytes(), os.path.getsize(big)
        with open(big, "wb") as file:  # as a program leaves it that copies files without their zeros
            start = content.index(bytes(4096)) // 4096 * 4096 + 4096
            file.write(content[:start])
            file.seek(start + 5 * MB)
            file.write(content[start + 5 * MB :])
        assert os.path.getsize(big) == size > 512 * os.stat(big).st_blocks
        assert big.read_bytes() == content
        with contextlib.suppress(OSError), open(folder / "rest", "wb", buffering=0) as file:
            while True:
                file.write(bytes(MB // 16))
        with refused(big.name, size):
            load(folder / "data", mode="r+")
        os.truncate(folder / "rest", MB)
        td = load(folder / "data", mode="r+")
        assert 512 * os.stat(big).st_blocks >= size
        with contextlib.suppress(OSError), open(folder / "rest", "ab", buffering=0) as file:
            while True:
                file.write(bytes(MB // 16))
        td["x"].fill_(7)
        assert load(folder / "data", mode="r")["x"].min() == 7

    on_small_disk(tmp_path, work)


def test_mappings_without_a_name_that_do_not_fit(tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        tempfile.tempdir = str(folder)
        td = rows(9).memmap_()
        other = rows(9)
        with refused("tensordict-", 9 * MB + 128):
            other.memmap_()
        assert not other.is_memmap()
        assert other["x"].sum() == 9 * MB
        with refused("tensordict-", 9 * MB):
            MemoryMappedTensor.zeros(9, MB, dtype=torch.uint8)
        assert td["x"].sum() == 9 * MB

    on_small_disk(tmp_path, work)


@pytest.mark.parametrize("make", ["from_tensor", "zeros", "full"])
def test_one_tensor_that_does_not_fit(make: str, tmp_path: Path) -> None:
    def work(folder: Path) -> None:
        path = folder / "x.memmap"
        calls: dict[str, Callable[[], Any]] = {
            "from_tensor": lambda: MemoryMappedTensor.from_tensor(torch.ones(5, MB), filename=path),
            "zeros": lambda: MemoryMappedTensor.zeros(5, MB, filename=path),
            "full": lambda: MemoryMappedTensor.full((5, MB), 2.0, filename=path),
        }
        with refused("x.memmap", 20 * MB):
            calls[make]()
        assert os.listdir(folder) == []

    on_small_disk(tmp_path, work)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm")
def test_shared_memory_that_does_not_fit() -> None:
    def work(folder: Path) -> None:
        shared = rows(9).share_memory_()
        other = rows(9)
        with refused("shared memory", 9 * MB + 128):
            other.share_memory_()
        assert not other.is_shared()
        with refused("shared memory", 40 * MB):
            TensorDict.from_schema({"x": ([MB], torch.uint8)}, batch_size=[40], storage="shared")
        shared["x"].fill_(7)
        assert shared["x"].min() == 7
        assert os.listdir(folder) == []

    on_small_disk("/dev/shm", work)


def test_a_record_that_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(1, 3).memmap(tmp_path / "data")
    real = disk.write

    def write(descriptor: int, data: Any, path: str, offset: int | None = None) -> None:
        if path.endswith("meta.json"):
            descriptor = os.open("/dev/full", os.O_WRONLY)
        real(descriptor, data, path, offset)

    monkeypatch.setattr(disk, "write", write)
    with pytest.raises(OSError, match=r"meta\.json.*\d+ bytes needed"):
        rows(1).memmap(tmp_path / "data")
    monkeypatch.undo()
    assert TensorDict.load_memmap(tmp_path / "data")["y"].tolist() == [3]
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize("name", SAVES)
def test_files_of_a_limited_size(name: str, tmp_path: Path) -> None:
    """Where nothing can be mounted, a limit on the size of files stands for a full disk."""
    rows(2, 3).memmap(tmp_path / "data")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MB, hard))
    try:
        with refused("x.memmap", 4 * MB):
            SAVES[name](rows(4), tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert TensorDict.load_memmap(tmp_path / "data")["y"].tolist() == [3, 3]
    assert os.listdir(tmp_path) == ["data"]
