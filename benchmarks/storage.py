"""Compare the homes of a dataset: this package, the published one and what one would write without either.

    python benchmarks/storage.py [--peer PYTHON] [--quick] [--only WORD]

`PYTHON` is an interpreter that imports the published package on the same torch; without it that column stays empty.
The sides take turns within each row, on one thread; figures are medians. A row may name another statement for the
published package, where that has no such word.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from run import ROUND_SECONDS, Worker, show

COMMON = """
import glob, itertools, os, pickle, shutil, tempfile, torch
from tensordict import TensorDict
_ = torch.manual_seed(0)
# what is measured is the work, not the disk
folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
import atexit; atexit.register(shutil.rmtree, folder, True)
"""
TABLE = (
    COMMON
    + """
d = {f"leaf{i}": torch.rand(200_000, 8) for i in range(8)}
td = TensorDict(d, [200_000])
rows = itertools.cycle([torch.randint(0, 200_000, (256,)) for _ in range(1000)])
"""
)
MANY = (
    COMMON
    + """
d = {f"leaf{i}": torch.rand(16, 8) for i in range(1000)}
td = TensorDict(d, [16])
"""
)
BIG = (
    COMMON
    + """
folder = tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/var/tmp"))  # on a disk: here flushing counts
atexit.register(shutil.rmtree, folder, True)
megabytes = int(os.environ.get("BENCHMARK_MEGABYTES", 1024))
td = TensorDict({"x": torch.randint(0, 255, (megabytes, 1 << 20), dtype=torch.uint8)}, [megabytes])
_ = td.memmap(f"{folder}/there")
def copied():
    shutil.rmtree(f"{folder}/copy", True)
    os.system(f"cp -r {folder}/there {folder}/copy")
    for name in [*glob.glob(f"{folder}/copy/*"), f"{folder}/copy", folder]:
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
def saved():
    shutil.rmtree(f"{folder}/new", True)
    td.memmap(f"{folder}/new")
"""
)
PLAIN = "{k: v[i] for i in [next(rows)] for k, v in d.items()}"


@dataclass(frozen=True)
class Row:
    """What is measured: `other` is the setup for the published package, `peer` its statement, where they differ."""

    name: str
    setup: str
    statement: str
    plain: str = ""
    other: str | None = None
    peer: str | None = None


ROWS = [
    Row(
        "256 random rows of 8 leaves of 32 B, packed in memory",
        TABLE + 'td = td.consolidate(layout="rows")\n',
        "td[next(rows)]",
        PLAIN,
        other=TABLE,
    ),
    Row(
        "the same from a folder",
        TABLE + 'td = td.memmap(f"{folder}/rows", layout="rows")\n',
        "td[next(rows)]",
        PLAIN,
        other=TABLE + 'td = td.memmap(f"{folder}/rows")\n',
    ),
    Row("the same, not packed", TABLE, "td[next(rows)]", PLAIN),
    Row("consolidate 1,000 leaves", MANY, "td.consolidate()", "{k: v.clone() for k, v in d.items()}"),
    Row(
        "consolidate 1,000 leaves to a file",
        MANY,
        'td.consolidate(f"{folder}/one")',
        'torch.save(d, f"{folder}/plain.pt")',
    ),
    Row(
        "open 1,000 leaves in one file",
        MANY + '_ = td.consolidate(f"{folder}/one")\n',
        'TensorDict.from_consolidated(f"{folder}/one")',
        'torch.load(f"{folder}/plain.pt", mmap=True)',
    ),
    Row(
        "open 1,000 leaves in a folder",
        MANY + '_ = td.memmap(f"{folder}/many")\n',
        'TensorDict.load_memmap(f"{folder}/many")',
        'torch.load(f"{folder}/plain.pt", mmap=True)',
    ),
    Row(
        "open 1,000 leaves in an archive",
        MANY + '_ = td.memmap(f"{folder}/many.tdz")\n',
        'TensorDict.load_memmap(f"{folder}/many.tdz")',
        'torch.load(f"{folder}/plain.pt", mmap=True)',
    ),
    Row("save 1,000 leaves to a folder, in place of others", MANY, 'td.memmap(f"{folder}/again")'),
    Row("move 1,000 leaves to shared memory", MANY, "td.clone().share_memory_()"),
    Row("save 1 GB, flushed; beside `cp` and the same flushing", BIG, "saved()", "copied()"),
    Row("pickle 1,000 leaves, and back", MANY, "pickle.loads(pickle.dumps(td))", "pickle.loads(pickle.dumps(d))"),
    Row("the same, consolidated", MANY + "td = td.consolidate()\n", "pickle.loads(pickle.dumps(td))"),
    Row(
        "pickle a consolidated tensordict of 50 MB, and back",
        TABLE + "td = td.consolidate()\n",
        "pickle.loads(pickle.dumps(td))",
        "pickle.loads(pickle.dumps(d))",
    ),
    Row(
        "the same out of band, with protocol 5",
        TABLE + "td = td.consolidate()\n",
        "pickle.loads(pickle.dumps(td, 5, buffer_callback=(b := []).append), buffers=b)",
        "pickle.loads(pickle.dumps(d, 5, buffer_callback=(b := []).append), buffers=b)",
    ),
]
FILE = '_ = torch.save(d, f"{folder}/plain.pt")\n'


def measure(row: Row, workers: dict[str, Worker], rounds: int) -> dict[str, float]:
    """Return the median seconds of each side; the plain dict runs in our own process."""
    sides = {"this": (workers["this"], row.setup, row.statement)}
    if row.plain:
        sides["plain"] = (workers["this"], row.setup + (FILE if "plain.pt" in row.plain else ""), row.plain)
    if "published" in workers:
        setup = row.setup if row.other is None else row.other
        sides["published"] = (workers["published"], setup, row.peer or row.statement)
    loops = {}
    for side, (worker, setup, statement) in sides.items():
        once = worker.ask("setup", key=side, setup=setup, statement=statement)
        loops[side] = max(1, int(ROUND_SECONDS / max(once, 1e-7))) if rounds > 1 else 1
    seen: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (worker, *_what) in sides.items():
            seen[side].append(worker.ask("time", key=side, loops=loops[side]))
    for side, (worker, *_what) in sides.items():
        worker.ask("forget", key=side)
    return {side: statistics.median(values) for side, values in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that imports the published package")
    parser.add_argument("--quick", action="store_true", help="run each statement once, to see that all of them work")
    parser.add_argument("--only", metavar="WORD", default="", help="only the rows with this text in their name")
    chosen = parser.parse_args()
    pythons = {"this": sys.executable} | ({"published": chosen.peer} if chosen.peer else {})
    if chosen.quick:
        os.environ["BENCHMARK_MEGABYTES"] = "8"
    workers = {side: Worker(python) for side, python in pythons.items()}
    print("| | this package | published | without either | published ÷ this |", "|---|--:|--:|--:|--:|", sep="\n")
    try:
        for row in ROWS:
            if chosen.only in row.name:
                times = measure(row, workers, 1 if chosen.quick else 15)
                this, published = times["this"], times.get("published")
                ratio = "-" if published is None else f"**{published / this:.1f}**"
                cells = [row.name, show(this), show(published), show(times.get("plain")), ratio]
                print(f"| {' | '.join(cells)} |", flush=True)
    finally:
        for worker in workers.values():
            worker.close()


if __name__ == "__main__":
    main()
