"""Fill, train on, map over and read back a dataset of handwritten digits that lies on disk.

    python -m tensordict.demo [--path FOLDER] [--workers N] [--keep]

The digits are real scans of 8 x 8 pixels that ship inside scikit-learn. The folder holds one memory-mapped file per
entry: `digits/` the scans and their labels, `features/` what `map` computes from them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler

from tensordict import TensorDict

EPOCHS = 12
BATCH = 64
WANTED = 0.95
T = TypeVar("T")


class Failure(Exception):
    """What stops the demo, in words for its user."""


class Digits(nn.Module):
    """A small convolutional network: images `[N, 1, 8, 8]` in, logits `[N, 10]` out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(512, 10),
        )

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layers(image.float() / 16)
        return logits


class Steps(Protocol):
    """What a progress bar can do."""

    def update(self, count: int) -> object: ...


@functools.cache
def scans() -> tuple[Tensor, Tensor]:
    """Return the images, uint8 `[1797, 1, 8, 8]` of values 0 to 16, and their labels, int64 `[1797]`."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Failure(
            "the handwritten digits come with scikit-learn, which is not installed: run `pip install scikit-learn` "
            "and start the demo again"
        ) from error
    digits = load_digits()
    return torch.from_numpy(digits.images).to(torch.uint8).unsqueeze(1), torch.from_numpy(digits.target).long()


@contextmanager
def progress(total: int, what: str) -> Iterator[Steps]:
    """Show a bar of `total` steps, or a line when tqdm is not there."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(f"   {what}: {total} steps (install tqdm to see them go by)")
        yield argparse.Namespace(update=lambda count: None)
        return
    with tqdm(total=total, desc=f"   {what}", unit="batch", leave=False, disable=None) as bar:
        yield bar


def timed(rows: int, what: str, job: Callable[[], T]) -> T:
    """Do the job and print how many rows a second it handled."""
    began = time.perf_counter()
    result = job()
    seconds = time.perf_counter() - began
    print(f"   {what}: {rows:,} rows in {seconds:.2f} s, {rows / seconds:,.0f} rows/s", flush=True)
    return result


def fill_rows(path: str, start: int, stop: int) -> None:
    """Write the scans `start` to `stop` into the dataset at `path`; runs in a process of its own."""
    torch.set_num_threads(1)
    images, labels = scans()
    data = TensorDict.load_memmap(path)
    rows = {"image": images[start:stop], "label": labels[start:stop]}
    data[start:stop] = TensorDict(rows, batch_size=[stop - start])


def fill(path: str, workers: int) -> None:
    """Preallocate the dataset at `path` and let each process fill its own rows."""
    rows = len(scans()[1])
    schema = {"image": ([1, 8, 8], torch.uint8), "label": ([], torch.int64)}
    TensorDict.from_schema(schema, batch_size=[rows], storage="memmap", prefix=path)
    cuts = [rows * i // workers for i in range(workers + 1)]
    writers = [mp.Process(target=fill_rows, args=(path, a, b)) for a, b in itertools.pairwise(cuts)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if any(writer.exitcode for writer in writers):
        raise Failure(f"a process that fills the rows ended with {[writer.exitcode for writer in writers]}, wanted 0")


def split(rows: int) -> tuple[Tensor, Tensor]:
    """Return the row numbers to learn from and the fifth that is held out; the same ones every time."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    return order[rows // 5 :], order[: rows // 5]


def train(data: TensorDict, learn: Sequence[int], workers: int) -> Digits:
    """Learn the digits from batches that worker processes read from the files."""
    torch.manual_seed(0)
    network = Digits()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    sampler = SubsetRandomSampler(learn)
    loader: DataLoader[Any] = DataLoader(
        cast("Dataset[Any]", data),  # it has len() and rows, which is all that a loader wants
        batch_size=BATCH,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    with progress(EPOCHS * len(loader), "learning") as bar:
        for _ in range(EPOCHS):
            for batch in loader:
                loss = nn.functional.cross_entropy(network(batch["image"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                bar.update(1)
    return network


def ink(chunk: TensorDict) -> TensorDict:
    """Compute the mean ink, 0 to 1, and its centre (row, column) in pixels for every scan of the chunk."""
    image = chunk["image"].squeeze(1).float() / 16
    place = torch.arange(8.0)
    total = image.sum((1, 2)).clamp_min(1e-6)
    centre = torch.stack([(image.sum(2) * place).sum(1), (image.sum(1) * place).sum(1)], 1) / total[:, None]
    return TensorDict({"ink": image.mean((1, 2)), "centre": centre}, batch_size=chunk.batch_size)


def compute(data: TensorDict, path: str, workers: int) -> TensorDict:
    """Map `ink` over the dataset; the processes write into files that are there already."""
    rows = len(data)
    shapes = TensorDict({"ink": torch.zeros(rows), "centre": torch.zeros(rows, 2)}, batch_size=[rows])
    out = shapes.memmap_like(path)
    data.map(ink, num_workers=workers, chunksize=256, out=out, generator=torch.default_generator)
    return out


def check(path: str) -> None:
    """Open the folder for reading only and compare every entry with the scans."""
    data = TensorDict.load_memmap(path, mode="r")
    for key, wanted in zip(("image", "label"), scans(), strict=True):
        if not torch.equal(data[key], wanted):
            raise Failure(f"entry {key!r} read back from {path} differs from the scans")


def run(folder: pathlib.Path, workers: int) -> None:
    """Do the four steps in `folder`."""
    digits, features = str(folder / "digits"), str(folder / "features")
    rows = len(scans()[1])
    print(f"{rows:,} handwritten digits; the data lies in {folder}")
    print(f"1. Preallocate the dataset on disk; {workers} processes fill their own rows.")
    timed(rows, "filled", lambda: fill(digits, workers))

    data = TensorDict.load_memmap(digits)
    learn, held_out = split(rows)
    print(f"2. Learn from {len(learn):,} rows; a DataLoader with {workers} workers reads the batches from the files.")
    network = timed(EPOCHS * len(learn), f"{EPOCHS} epochs", lambda: train(data, learn.tolist(), workers))
    kept = data[held_out]
    with torch.no_grad():
        right = (network(kept["image"]).argmax(1) == kept["label"]).float().mean().item()
    print(f"   {right:.1%} of the {len(held_out)} held-out digits are recognised")

    print(f"3. Compute the ink and its centre for every row in {workers} processes, into files that are there already.")
    out = timed(rows, "mapped", lambda: compute(data, features, workers))
    mean = out["ink"].mean().item()
    row, column = out["centre"].mean(0).tolist()
    print(f"   mean ink {mean:.3f}, mean centre at row {row:.2f}, column {column:.2f}")

    print("4. Open the folder again for reading and compare it with the scans.")
    timed(rows, "read back, equal", lambda: check(digits))
    if right < WANTED:
        raise Failure(f"only {right:.1%} of the held-out digits are recognised, wanted at least {WANTED:.0%}")


def empty_folder(path: pathlib.Path) -> pathlib.Path:
    """Return the folder to write into, made if it is not there; refuse one that holds anything."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise Failure(f"--path {str(path)!r} is there already and is not an empty folder: name a new one")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tensordict.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--path", type=pathlib.Path, help="an empty or new folder for the data; it is never removed")
    parser.add_argument("--workers", type=int, default=2, help="processes for each step (default: 2)")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder that is used without --path")
    chosen = parser.parse_args(arguments)
    if chosen.workers < 1:
        parser.error(f"--workers must be at least 1, got {chosen.workers}")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status: 0, or 1 with the reason on the standard error."""
    chosen = options(arguments)
    began = time.perf_counter()
    try:
        scans()
        if chosen.path is not None:
            run(empty_folder(chosen.path), chosen.workers)
        elif chosen.keep:
            run(pathlib.Path(tempfile.mkdtemp(prefix="tensordict-demo-")), chosen.workers)
        else:
            with tempfile.TemporaryDirectory(prefix="tensordict-demo-") as folder:
                run(pathlib.Path(folder), chosen.workers)
    except Failure as failure:
        print(f"The demo stopped: {failure}.", file=sys.stderr)
        return 1
    kept = "" if chosen.path is not None or chosen.keep else "; the temporary folder is removed, --keep keeps it"
    print(f"Done in {time.perf_counter() - began:.1f} s{kept}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
