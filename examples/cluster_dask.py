"""Map a function over a dataset on a Dask cluster: with the data on a path that all machines see, and without one.

    pip install "tensordict[dask]"
    python examples/cluster_dask.py            # a local cluster of two worker processes
    python examples/cluster_dask.py --kill     # one of them is killed in the middle
    python examples/cluster_dask.py --scheduler tcp://HOST:8786 --folder /shared/scratch

`pool=client.get_executor()` is all that differs from a map on one machine.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import tempfile
from functools import partial

import torch
from dask.distributed import Client, LocalCluster

from tensordict import TensorDict

ROWS = 2000


def norms(chunk: TensorDict, mark: str | None = None) -> TensorDict:
    """Return the norm of each row; with a *mark*, the first worker that comes here is killed."""
    if mark is not None and not os.path.exists(mark):
        pathlib.Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return TensorDict({"norm": chunk["x"].norm(dim=-1)}, batch_size=chunk.batch_size)


def on_a_shared_path(client: Client, folder: str, mark: str | None) -> None:
    """Only the path and the numbers of rows travel; the workers write their rows to the files of ``out``."""
    data = TensorDict({"x": torch.arange(ROWS * 3.0).view(ROWS, 3)}, [ROWS]).memmap_(f"{folder}/data")
    out = TensorDict({"norm": torch.zeros(ROWS)}, [ROWS]).memmap_like(f"{folder}/norms")
    data.map(partial(norms, mark=mark), chunksize=100, out=out, pool=client.get_executor(), retries=2)
    found = TensorDict.load_memmap(f"{folder}/norms", mode="r")
    assert torch.equal(found["norm"], data["x"].norm(dim=-1))
    print("shared path: right")


def without_one(client: Client, mark: str | None) -> None:
    """The data travels to each worker once, in one buffer, then only numbers of chunks; results come back."""
    data = TensorDict({"x": torch.rand(ROWS, 3)}, [ROWS])
    found = data.map(partial(norms, mark=mark), chunksize=100, pool=client.get_executor(), retries=2)
    assert torch.allclose(found["norm"], data["x"].norm(dim=-1))
    print("no shared path: right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", help="the address of a cluster; without it a local one is started")
    parser.add_argument("--folder", help="a folder that all machines see; a temporary one by default")
    parser.add_argument("--kill", action="store_true", help="kill a worker in the middle")
    arguments = parser.parse_args()
    cluster = arguments.scheduler or LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder, Client(cluster) as client:
        marks = [f"{folder}/mark{i}" if arguments.kill else None for i in range(2)]
        on_a_shared_path(client, folder, marks[0])
        without_one(client, marks[1])
        assert all(mark is None or os.path.exists(mark) for mark in marks)
    if arguments.scheduler is None:
        cluster.close()


if __name__ == "__main__":
    main()
