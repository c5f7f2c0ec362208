"""Compare this package, the published one and the plain dict comprehension in one run, on one thread.

    python benchmarks/run.py [--peer PYTHON] [--quick] [--only WORD] [--write README.md]

`PYTHON` is an interpreter that imports the published package on the same torch; without it that column stays empty.
The sides take turns within each row, so that whatever else the machine does slows all of them alike. Figures are
medians. "Over the plain dict" is what a container adds to the comprehension.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from cases import CASES, Case

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
ROUND_SECONDS = 0.02
IMPORT = """
import time, torch
began = time.perf_counter()
import tensordict
print(time.perf_counter() - began)
"""
HEAD = (
    "| | this package | published | plain dict | published ÷ this | over the plain dict: this | published |",
    "|---|--:|--:|--:|--:|--:|--:|",
)
BLOCK = re.compile(r"(<!-- benchmark -->\n).*?(<!-- /benchmark -->)", re.S)


def environment(python: str) -> dict[str, str]:
    """Return the variables for a side: our own side finds the source beside this file, the other must not."""
    # an installed package is imported from its bytecode, so ours must be allowed to keep some
    skipped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    variables = {name: value for name, value in os.environ.items() if name not in skipped}
    return variables | {"PYTHONPATH": str(SOURCE)} if python == sys.executable else variables


class Worker:
    """The process of one side."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(python),
        )

    def ask(self, do: str, **command: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **command}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker {self.process.args!r} ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(f"{do} {command.get('key', '')}: {answer['error']} (worker {self.process.args!r})")
        return answer["value"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


Times = dict[str, float]


def measure(case: Case, workers: dict[str, Worker], rounds: int) -> Times:
    """Return the median seconds of each side; the plain dict runs in our own process."""
    sides = {"this": (workers["this"], case.statement), "plain": (workers["this"], case.plain)}
    if "published" in workers:
        sides["published"] = (workers["published"], case.statement)
    loops = {}
    for side, (worker, statement) in sides.items():
        once = worker.ask("setup", key=side, setup=case.setup, statement=statement)
        loops[side] = max(1, int(ROUND_SECONDS / max(once, 1e-7))) if rounds > 1 else 1
    seen: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, (worker, _statement) in sides.items():
            seen[side].append(worker.ask("time", key=side, loops=loops[side]))
    for side, (worker, _statement) in sides.items():
        worker.ask("forget", key=side)
    return {side: statistics.median(values) for side, values in seen.items()}


def measure_import(pythons: dict[str, str], rounds: int) -> Times:
    """Return the median seconds that `import tensordict` takes once torch is there."""
    seen: dict[str, list[float]] = {side: [] for side in pythons}
    for _ in range(rounds):
        for side, python in pythons.items():
            command = [python, "-c", IMPORT]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(python))
            seen[side].append(float(done.stdout))
    return {side: statistics.median(values) for side, values in seen.items()}


def show(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def row(name: str, times: Times) -> str:
    this, published, plain = times["this"], times.get("published"), times.get("plain")
    ratio = "-" if published is None else f"**{published / this:.1f}**"
    over = [None if plain is None or side is None else side - plain for side in (this, published)]
    cells = [name, show(this), show(published), show(plain), ratio, *map(show, over)]
    return f"| {' | '.join(cells)} |"


def table(pythons: dict[str, str], only: str, rounds: int, imports: int) -> str:
    """Run every row and return the table, printing each row as it is ready."""
    workers = {side: Worker(python) for side, python in pythons.items()}
    lines = list(HEAD)
    print(*HEAD, sep="\n", flush=True)
    try:
        versions = [f"{side}: tensordict {worker.ask('hello')}" for side, worker in workers.items()]
        for case in CASES:
            if only in case.name:
                lines.append(row(case.name, measure(case, workers, rounds)))
                print(lines[-1], flush=True)
    finally:
        for worker in workers.values():
            worker.close()
    name = "`import tensordict` after `import torch`"
    if only in name:
        lines.append(row(name, measure_import(pythons, imports)))
        print(lines[-1], flush=True)
    lines += ["", f"Medians of {rounds} rounds on one thread; {'; '.join(versions)}."]
    print(*lines[-2:], sep="\n", flush=True)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that imports the published package")
    parser.add_argument("--quick", action="store_true", help="run each statement once, to see that all of them work")
    parser.add_argument("--only", metavar="WORD", default="", help="only the rows with this text in their name")
    parser.add_argument(
        "--write", metavar="FILE", type=pathlib.Path, help="put the table into this page's benchmark block"
    )
    chosen = parser.parse_args(arguments)
    page = chosen.write.read_text(encoding="utf-8") if chosen.write else ""
    if chosen.write and not BLOCK.search(page):
        parser.error(f"{str(chosen.write)!r} has no block '<!-- benchmark -->' ... '<!-- /benchmark -->'")
    pythons = {"this": sys.executable} | ({"published": chosen.peer} if chosen.peer else {})
    rounds, imports = (1, 1) if chosen.quick else (15, 5)
    lines = table(pythons, chosen.only, rounds, imports)
    if chosen.write:
        chosen.write.write_text(BLOCK.sub(lambda found: f"{found[1]}{lines}\n{found[2]}", page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
