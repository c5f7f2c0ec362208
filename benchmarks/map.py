"""Compare the parallel map of this package and of the published one in one run.

    python benchmarks/map.py [--peer PYTHON] [--quick] [--only WORD]

`PYTHON` is an interpreter that imports the published package on the same torch. The sides take turns within each row;
figures are medians. "A chunk on a ready pool" is the time from the first result to the last, divided by their number,
so without the start of the workers; "a call" is all of it.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from run import environment, show

from tensordict import TensorDict

ROWS, CHUNK = 5000, 10
OURS = "prefetch" in inspect.signature(TensorDict.map_iter).parameters
FAR: dict[str, Any] = {"prefetch": 8} if OURS else {}  # the published one runs ahead without a bound


def small() -> Any:
    return TensorDict({"x": torch.arange(float(ROWS)), "y": torch.zeros(ROWS, 4)}, [ROWS])


def mapped() -> Any:
    return small().memmap_()


def plus(td: Any) -> Any:
    return TensorDict({"x": td["x"] + 1}, batch_size=td.batch_size)


def compute(td: Any) -> torch.Tensor:
    value = td["x"]
    for _ in range(30):
        value = torch.sort(value.sin(), dim=-1).values
    return value[:, :1]


def swell(td: Any) -> torch.Tensor:
    return torch.zeros(len(td), 100_000)


def options(**how: Any) -> dict[str, Any]:
    return {"num_workers": 2, "mp_start_method": "fork", "generator": torch.default_generator, **how}


def iterate(source: Any, fn: Callable[[Any], Any] = plus, **how: Any) -> float:
    """Return the seconds a chunk once the first result is there."""
    results = iter(source.map_iter(fn, chunksize=CHUNK, **options(**how)))
    next(results)
    began = time.perf_counter()
    count = sum(1 for _ in results)
    return (time.perf_counter() - began) / count


def whole(source: Any, fn: Callable[[Any], Any] = plus, word: str = "map_iter", **how: Any) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    made = getattr(source, word)(fn, **{"chunksize": CHUNK, **options(**how)})
    if word == "map_iter":
        for _ in made:
            pass
    return time.perf_counter() - began


def pooled(source: Any, word: str = "map", **how: Any) -> float:
    """Return the seconds a chunk, of a whole call in a pool of the user's that has worked before."""
    with torch.multiprocessing.get_context("fork").Pool(2) as pool:
        list(source.map_iter(plus, chunksize=ROWS // 2, pool=pool))
        return whole(source, word=word, num_workers=None, mp_start_method=None, pool=pool, **how) * CHUNK / ROWS


def heavy(workers: int) -> float:
    source = TensorDict({"x": torch.rand(64, 20_000)}, [64])
    return whole(source, compute, "map", chunksize=4, num_workers=workers)


# name, how to measure it, how many rounds of the whole
CASES: dict[str, tuple[Callable[[], float], float]] = {
    "a chunk on a ready pool: in order, fork": (lambda: iterate(small()), 1),
    "the same, shuffled": (lambda: iterate(small(), shuffle=True), 1),
    "the same, memory-mapped": (lambda: iterate(mapped()), 1),
    "the same, memory-mapped and shuffled": (lambda: iterate(mapped(), shuffle=True), 1),
    "a chunk in a pool of the user's: `map`": (lambda: pooled(small()), 1),
    "the same, memory-mapped, `map`": (lambda: pooled(mapped()), 1),
    "a chunk in a pool of the user's: `map_iter`": (lambda: pooled(small(), "map_iter"), 1),
    "a chunk in a pool of the user's: `map_iter`, shuffled": (lambda: pooled(small(), "map_iter", shuffle=True), 1),
    "a chunk in a pool of the user's: `map_iter(prefetch=8)` here": (lambda: pooled(small(), "map_iter", **FAR), 1),
    "the same, shuffled, `map_iter(prefetch=8)` here": (lambda: pooled(small(), "map_iter", shuffle=True, **FAR), 1),
    "a call: `map_iter`, 500 chunks, fork": (lambda: whole(small()), 1),
    "a call: `map`, 500 chunks, fork": (lambda: whole(small(), word="map"), 1),
    "a call: `map`, 2 chunks, fork": (lambda: whole(small(), word="map", chunksize=ROWS // 2), 1),
    "a cold call: `map_iter`, 500 chunks, 2 spawned workers": (lambda: whole(small(), mp_start_method="spawn"), 0.4),
    "a cold call: `map`, 500 chunks, 2 spawned workers": (
        lambda: whole(small(), word="map", mp_start_method="spawn"),
        0.4,
    ),
    "50 results of 4 MB, fork": (lambda: whole(small()[:500], swell), 0.4),
    "a function that computes, 1 worker": (lambda: heavy(1), 0.4),
    "a function that computes, 2 workers": (lambda: heavy(2), 0.4),
}


def serve() -> None:
    """Be one side: read names of cases, answer seconds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(CASES[json.loads(line)][0]()), file=answers, flush=True)


class Side:
    """The process of one side."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--side"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(python),
        )

    def ask(self, name: str) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(name) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{name}: the side {self.process.args!r} ended with {self.process.wait()}")
        return float(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that imports the published package")
    parser.add_argument("--quick", action="store_true", help="a single round: does every row still run?")
    parser.add_argument("--only", default="", metavar="WORD", help="only rows whose name holds WORD")
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve()
        return
    sides = {"this": Side(sys.executable)} | ({"published": Side(arguments.peer)} if arguments.peer else {})
    print("| | this package | published | published ÷ this |", "|---|--:|--:|--:|", sep="\n", flush=True)
    try:
        for name in [name for name in CASES if arguments.only in name]:
            rounds = 1 if arguments.quick else max(1, round(CASES[name][1] * 9))
            seen: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(rounds):
                for side, process in sides.items():
                    seen[side].append(process.ask(name))
            times = {side: statistics.median(values) for side, values in seen.items()}
            ratio = f"**{times['published'] / times['this']:.1f}**" if arguments.peer else "-"
            print(f"| {name} | {show(times['this'])} | {show(times.get('published'))} | {ratio} |", flush=True)
    finally:
        for process in sides.values():
            process.close()


if __name__ == "__main__":
    main()
