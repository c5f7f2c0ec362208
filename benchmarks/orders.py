"""Compare orders of rows on storages: how long an epoch of a Loader takes.

    python benchmarks/orders.py [--quick]

20,000 rows of 3 KB in batches of 64; HDF5 and zarr in chunks of 256 rows. Their times are those of a warm page cache:
on a cold disk random rows cost more. Storages whose library is not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

from tensordict import TensorDict
from tensordict.data import Blocks, Loader

CHUNK = 256
ORDERS: dict[str, Any] = {
    "in order": False,
    "`shuffle=True`": True,
    f"`Blocks({CHUNK}, mix=16)`": Blocks(CHUNK, mix=16),
    f"`Blocks({CHUNK}, mix=4)`": Blocks(CHUNK, mix=4),
}


def places(data: Any, folder: str) -> dict[str, Any]:
    """Return the data in every storage that is at hand."""
    found = {"memory": data, "memory-mapped": data.memmap(f"{folder}/mapped")}
    if importlib.util.find_spec("h5py"):
        found["HDF5"] = data.to_h5(f"{folder}/data.h5", chunks=(CHUNK, *data["x"].shape[1:]))
    if importlib.util.find_spec("zarr"):
        found["zarr"] = data.to_zarr(f"{folder}/data.zarr", chunks=(CHUNK, *data["x"].shape[1:]))
    return found


def seconds(data: Any, shuffle: Any, epochs: int) -> float:
    """Return the shortest time of some epochs."""
    loader = Loader(data, 64, shuffle=shuffle)
    times = []
    for _ in range(epochs):
        began = time.perf_counter()
        for _batch in loader:
            pass
        times.append(time.perf_counter() - began)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rows, once, to see that all of it works")
    quick = parser.parse_args(arguments).quick
    torch.set_num_threads(1)
    rows = 1000 if quick else 20_000
    data = TensorDict({"x": torch.randint(0, 255, (rows, 3, 32, 32), dtype=torch.uint8)}, [rows])
    print(f"| | {' | '.join(ORDERS)} |", "|---|" + "--:|" * len(ORDERS), sep="\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, stored in places(data, folder).items():
            times = [seconds(stored, shuffle, 1 if quick else 3) for shuffle in ORDERS.values()]
            cells = [f"{one * 1e3:.3g} ms" if one < 1 else f"{one:.3g} s" for one in times]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
