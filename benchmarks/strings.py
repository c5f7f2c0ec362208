"""Compare a column of strings with the same in pyarrow: building, reading rows, pickling, saving and sharing.

    python benchmarks/strings.py [--quick] [--rows N]

The two take turns, on one thread; figures are medians. pyarrow keeps `large_string`, which has the same layout. It has
no word for sharing: what stands for it is one copy into a file in memory that other processes can map.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import pyarrow as pa
import pyarrow.compute
import torch

from tensordict import TensorDict

HEAD = ("| | this package | pyarrow | this ÷ pyarrow |", "|---|--:|--:|--:|")
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None

Pair = tuple[str, Callable[[], Any], Callable[[], Any]]


def write(array: Any, path: str) -> None:
    schema = pa.schema([("word", array.type)])
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, schema) as writer:
        writer.write(pa.record_batch([array], schema=schema))


def read(path: str) -> Any:
    return pa.ipc.open_file(pa.memory_map(path)).read_all()["word"]


def pairs(words: list[str], folder: str) -> list[Pair]:
    """Return the name of each row, and what both sides do for it."""
    count = len(words)
    td, array = TensorDict({"word": words}, [count]), pa.array(words, pa.large_string())
    rows = torch.randint(0, count, (256,))
    ours, theirs, shared = (os.path.join(folder, name) for name in ("ours", "theirs.arrow", "shared.arrow"))
    return [
        ("build", lambda: TensorDict({"word": words}, [count]), lambda: pa.array(words, pa.large_string())),
        ("256 random rows", lambda: td[rows], lambda: array.take(pa.array(rows.numpy()))),
        ("256 random rows as a list", lambda: td[rows]["word"], lambda: array.take(pa.array(rows.numpy())).to_pylist()),
        ("pickle and back", lambda: pickle.loads(pickle.dumps(td)), lambda: pickle.loads(pickle.dumps(array))),
        ("save", lambda: td.memmap(ours), lambda: write(array, theirs)),
        ("load", lambda: TensorDict.load_memmap(ours), lambda: read(theirs)),
        (
            "load, 256 random rows",
            lambda: TensorDict.load_memmap(ours)[rows],
            lambda: read(theirs).take(pa.array(rows.numpy())),
        ),
        ("share", lambda: td.clone().share_memory_(), lambda: write(array, shared)),
    ]


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def show(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rows, once: it only shows that all runs")
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    rounds, count = (1, 2000) if options.quick else (9, options.rows)
    torch.set_num_threads(1)
    random.seed(0)
    words = ["".join(random.choices(string.ascii_letters, k=random.randint(4, 20))) for _ in range(count)]
    print(*HEAD, sep="\n")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        for name, this, other in pairs(words, folder):
            this(), other()
            taken = [(seconds(this), seconds(other)) for _ in range(rounds)]
            mine, theirs = (statistics.median(side) for side in zip(*taken))
            print(f"| {name} | {show(mine)} | {show(theirs)} | {mine / theirs:.2g} |", flush=True)


if __name__ == "__main__":
    main()
