"""Compare how fast batches of rows are loaded: this package, the published one, and what else is at hand, in one run.

    python benchmarks/loading.py [--peer PYTHON] [--extra PYTHON] [--quick] [--picture FILE] [--write PAGE ...]

`--peer` is an interpreter that imports the published package on the same torch, `--extra` one that imports `datasets`;
without them, and where the one that runs this lacks a package, their lines are left out or skipped. Each line runs in a
process of its own. Two workloads: a table of 8 leaves x 32 B x 200,000 rows in batches of 256, and 20,000 rows of 12 KB
in batches of 64. "Cold" is the first epoch, the start of workers included; "warm" the median of the later ones; "1 ms"
an epoch with a transform that takes a millisecond of work for each batch. Peak memory is what all processes together
have more than the data: the proportional share of each page that is no file's, sampled. All rows are shuffled but
those of memcpy, which copies the data in its order to other memory of its size. torch has one thread.
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
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy
import torch

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
EPOCHS = 7
TRANSFORM_SECONDS = 1e-3
BLOCK = re.compile(r"(<!-- loading -->\n).*?(<!-- /loading -->)", re.S)

# name: rows, batch size, leaves, elements of a row, dtype
WORKLOADS = {
    "small rows": (200_000, 256, 8, 8, "float32"),
    "12 KB rows": (20_000, 64, 1, 12_288, "uint8"),
}
TITLES = {
    "small rows": "8 leaves x 32 B x 200,000 rows, batches of 256",
    "12 KB rows": "20,000 rows of 12 KB, batches of 64",
}


def arrays(workload: str, quick: bool) -> tuple[dict[str, Any], int]:
    """Return the data of a workload, and the size of its batches."""
    rows, batch, leaves, width, dtype = WORKLOADS[workload]
    rows = batch * 8 if quick else rows
    generator = numpy.random.default_rng(0)
    if dtype == "uint8":
        made = [generator.integers(0, 255, (rows, width), dtype=numpy.uint8) for _ in range(leaves)]
    else:
        made = [generator.random((rows, width), dtype=numpy.float32) for _ in range(leaves)]
    return {f"leaf{at}": array for at, array in enumerate(made)}, batch


def slow(batch: Any) -> Any:
    """Compute with torch until this thread has worked for a millisecond, as a transform would."""
    until = time.thread_time() + TRANSFORM_SECONDS
    work = torch.ones(20_000)
    while time.thread_time() < until:
        work.sin_()
    return batch


def keep(batch: Any) -> Any:
    return batch


def slow_keep(batch: Any) -> Any:
    return slow(batch)


Epoch = Callable[[], Iterable[Any]]


def tensors(data: dict[str, Any]) -> dict[str, Any]:
    return {key: torch.from_numpy(array) for key, array in data.items()}


def tensordict_of(data: dict[str, Any]) -> Any:
    from tensordict import TensorDict

    return TensorDict(tensors(data), [len(data["leaf0"])])


def loader(**options: Any) -> Callable[..., Epoch]:
    def make(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
        from tensordict.data import Loader

        made = Loader(tensordict_of(data), batch, shuffle=True, transform=slow if transform else None, **options)
        return lambda: made

    return make


def dataloader(workers: int) -> Callable[..., Epoch]:
    def make(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
        from torch.utils.data import DataLoader

        made = DataLoader(
            tensordict_of(data), batch, shuffle=True, num_workers=workers, collate_fn=slow_keep if transform else keep
        )
        return lambda: made

    return make


def tensor_dataset(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
    from torch.utils.data import DataLoader, TensorDataset, default_collate

    def collate(samples: Any) -> Any:
        return slow(default_collate(samples))

    made: Any = DataLoader(
        TensorDataset(*tensors(data).values()), batch, shuffle=True, collate_fn=collate if transform else None
    )
    return lambda: made


def numpy_memmap(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
    mapped = {}
    for key, array in data.items():
        numpy.save(f"{folder}/{key}.npy", array)
        mapped[key] = numpy.load(f"{folder}/{key}.npy", mmap_mode="r")

    def epoch() -> Iterable[Any]:
        order = torch.randperm(len(data["leaf0"])).numpy()
        for at in range(0, len(order), batch):
            rows = order[at : at + batch]
            made = {key: torch.from_numpy(array[rows]) for key, array in mapped.items()}
            yield slow(made) if transform else made

    return epoch


def mapped_loader(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
    from tensordict import TensorDict
    from tensordict.data import Loader

    tensordict_of(data).memmap(f"{folder}/td")
    stored = TensorDict.load_memmap(f"{folder}/td", mode="r")
    made = Loader(stored, batch, shuffle=True, transform=slow if transform else None)
    return lambda: made


def hugging_face(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
    import datasets

    datasets.disable_progress_bars()
    columns = {
        key: datasets.features.Sequence(datasets.Value(str(array.dtype)), array.shape[1]) for key, array in data.items()
    }
    made = datasets.Dataset.from_dict(
        {key: list(array) for key, array in data.items()}, features=datasets.Features(columns)
    )
    made.save_to_disk(f"{folder}/hf")
    stored = datasets.load_from_disk(f"{folder}/hf").with_format("torch")

    def epoch() -> Iterable[Any]:
        order = torch.randperm(len(stored)).tolist()
        for at in range(0, len(order), batch):
            rows = stored[order[at : at + batch]]
            yield slow(rows) if transform else rows

    return epoch


def memcpy(data: dict[str, Any], batch: int, transform: bool, folder: str) -> Epoch:
    """Copy the same bytes, in their order, to other memory that is there."""
    pairs = [(tensor, torch.zeros_like(tensor)) for tensor in tensors(data).values()]

    def epoch() -> Iterable[Any]:
        for at in range(0, len(data["leaf0"]), batch):
            for source, target in pairs:
                target[at : at + batch].copy_(source[at : at + batch])
            yield slow(pairs) if transform else pairs

    return epoch


# name: where it runs, what it runs
LINES: dict[str, tuple[str, Callable[..., Epoch]]] = {
    "`Loader(reuse_buffers=True)`": ("this", loader(reuse_buffers=True)),
    "`Loader`": ("this", loader()),
    "`Loader(workers=2)`": ("this", loader(workers=2)),
    "`Loader`, memory-mapped": ("this", mapped_loader),
    '`Loader(workers="process")`': ("this", loader(workers="process")),
    "`DataLoader`, this package": ("this", dataloader(0)),
    "`DataLoader`, 2 workers, this package": ("this", dataloader(2)),
    "`DataLoader`, published": ("peer", dataloader(0)),
    "`DataLoader`, 2 workers, published": ("peer", dataloader(2)),
    "Hugging Face `datasets`, torch format": ("extra", hugging_face),
    "`DataLoader(TensorDataset)`": ("this", tensor_dataset),
    "`numpy` memmap, indexed": ("this", numpy_memmap),
    "memcpy of the same bytes": ("this", memcpy),
}
REFERENCE, LIMIT = "`DataLoader`, 2 workers, published", "memcpy of the same bytes"


# ---- one line, in a process of its own


def proportional(pid: int) -> int:
    """Return the bytes of memory of a process and all it started; a page that several share counts once in all."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(("Pss_Anon", "Pss_Shmem")))
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                total += sum(map(proportional, map(int, file.read().split())))
    except OSError:
        pass  # it has ended
    return total


class Peak:
    """Samples the memory of this process and its children while it runs."""

    def __enter__(self) -> Peak:
        self._stop = threading.Event()
        self.most = proportional(os.getpid())
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.01):
            self.most = max(self.most, proportional(os.getpid()))

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def timed(epoch: Epoch) -> float:
    began = time.perf_counter()
    count = 0
    for _ in epoch():
        count += 1
    assert count
    return time.perf_counter() - began


def run_line(name: str, workload: str, quick: bool) -> dict[str, float]:
    """Measure one line of the table."""
    torch.set_num_threads(1)
    make = LINES[name][1]
    with tempfile.TemporaryDirectory() as folder:
        data, batch = arrays(workload, quick)
        epoch = make(data, batch, False, folder)
        start = proportional(os.getpid())
        found = {"cold": timed(epoch)}
        found["warm"] = statistics.median(timed(epoch) for _ in range(1 if quick else EPOCHS))
        with Peak() as peak:
            for _ in range(3):
                timed(epoch)
        found["memory"] = peak.most - start
        del epoch
        with_transform = make(data, batch, True, folder)
        timed(with_transform)
        found["transform"] = timed(with_transform)
    return found


def measure(python: str, name: str, workload: str, quick: bool) -> dict[str, float] | str:
    """Return what one line needs, or why it could not run."""
    skipped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    variables = {key: value for key, value in os.environ.items() if key not in skipped}
    if LINES[name][0] == "this":
        variables["PYTHONPATH"] = str(SOURCE)
    command = [python, str(HERE / "loading.py"), "--line", name, "--workload", workload, *["--quick"] * quick]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it ended"])[-1]
        return last if "ModuleNotFoundError" in last else f"failed: {last}"
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


# ---- the table and the picture

Results = dict[str, dict[str, dict[str, float] | str]]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def rows(results: Results, workload: str) -> list[str]:
    """Return the table of a workload."""
    found = results[workload]
    reference, limit = found.get(REFERENCE), found.get(LIMIT)
    lines = [
        f"**{TITLES[workload]}**",
        "",
        "| | warm epoch | published, 2 workers ÷ this | ÷ memcpy | cold epoch | with 1 ms a batch | peak memory |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, line in found.items():
        if isinstance(line, str):
            lines.append(f"| {name} | skipped: {line} | | | | | |")
            continue
        warm = line["warm"]
        times = f"**{reference['warm'] / warm:.1f}**" if isinstance(reference, dict) else "-"
        over = f"{warm / limit['warm']:.1f}" if isinstance(limit, dict) else "-"
        cells = [name, milliseconds(warm), times, over, milliseconds(line["cold"]), milliseconds(line["transform"])]
        lines.append(f"| {' | '.join(cells)} | {line['memory'] / 1e6:.0f} MB |")
    return [*lines, ""]


def draw(results: Results, path: pathlib.Path) -> None:
    """Draw the warm epochs as bars, on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: a small file

    figure, axes = plt.subplots(1, len(results), figsize=(12, 4.4))
    for axis, (workload, found) in zip(axes, results.items(), strict=True):
        shown = {name: line["warm"] * 1e3 for name, line in found.items() if isinstance(line, dict)}
        names = sorted(shown, key=lambda name: shown[name])
        colours = [
            "#888888" if name == LIMIT else "#1b7f5c" if name.startswith("`Loader") else "#c97b3d" for name in names
        ]
        bars = axis.barh([name.replace("`", "") for name in names], [shown[name] for name in names], color=colours)
        axis.bar_label(
            bars, [f" {shown[name]:.0f}" if shown[name] >= 100 else f" {shown[name]:.3g}" for name in names], fontsize=8
        )
        axis.set_xscale("log")
        axis.set_xlim(right=max(shown.values()) * 2.5)
        axis.invert_yaxis()
        axis.set_title(TITLES[workload], fontsize=9)
        axis.set_xlabel("milliseconds for a shuffled epoch", fontsize=8)
        axis.tick_params(labelsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def run(chosen: Any) -> str:
    pythons = {"this": sys.executable, "peer": chosen.peer, "extra": chosen.extra or sys.executable}
    results: Results = {}
    lines: list[str] = []
    for workload in WORKLOADS:
        results[workload] = {}
        for name, (side, _) in LINES.items():
            if pythons[side] is None:
                continue
            results[workload][name] = measure(pythons[side], name, workload, chosen.quick)
            print(workload, name, results[workload][name], file=sys.stderr, flush=True)
        table = rows(results, workload)
        print(*table, sep="\n", flush=True)
        lines += table
    if chosen.picture:
        draw(results, chosen.picture)
    if chosen.peer is None:
        lines += ["Without `--peer`, the lines of the published package are left out.", ""]
    return "\n".join(lines).rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter that imports the published package")
    parser.add_argument("--extra", metavar="PYTHON", help="interpreter that imports `datasets`, with the same torch")
    parser.add_argument("--quick", action="store_true", help="a few rows, once, to see that all lines work")
    parser.add_argument("--picture", metavar="FILE", type=pathlib.Path, help="draw the result there; needs matplotlib")
    parser.add_argument("--write", metavar="PAGE", type=pathlib.Path, nargs="*", default=[], help="pages to put it in")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.add_argument("--workload", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.line:
        print(json.dumps(run_line(chosen.line, chosen.workload, chosen.quick)))
        return 0
    pages = {page: page.read_text(encoding="utf-8") for page in chosen.write}
    for page, text in pages.items():
        if not BLOCK.search(text):
            parser.error(f"{str(page)!r} has no block '<!-- loading -->' ... '<!-- /loading -->'")
    table = run(chosen)
    for page, text in pages.items():
        page.write_text(BLOCK.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
