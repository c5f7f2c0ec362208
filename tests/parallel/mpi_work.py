"""A map over the processes of MPI: ``mpiexec -n 3 python [-m mpi4py.futures] mpi_work.py pool|comm FOLDER``."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

from tensordict import TensorDict


def plus(td: Any) -> Any:
    return TensorDict({"x": td["x"] + 1}, batch_size=td.batch_size)


def rank(td: Any) -> int:
    return int(MPI.COMM_WORLD.Get_rank())


def check(pool: Any, folder: str) -> None:
    td = TensorDict({"x": torch.arange(60_000).view(6000, 10)}, [6000])
    assert torch.equal(td.map(plus, pool=pool, chunksize=10)["x"], td["x"] + 1)
    parts = torch.cat(list(td.map_iter(plus, pool=pool, chunksize=10, shuffle=True)))
    assert torch.equal(parts["x"].sort(0).values, td["x"] + 1)
    assert set(td.map_iter(rank, pool=pool, chunksize=100)) <= {1, 2}
    drawn = td.map(lambda part: torch.rand(len(part)), pool=pool, chunksize=100, seed=3)
    assert torch.equal(drawn, td.map(lambda part: torch.rand(len(part)), num_workers=0, chunksize=100, seed=3))
    with pytest.raises(KeyError) as caught:
        td.map(lambda part: part["y"], pool=pool, num_chunks=1)
    assert "at chunk 0 (rows 0:6000 of dim 0)" in str(caught.value.__cause__)
    out = TensorDict({"x": torch.zeros(6000, 10, dtype=torch.long)}, [6000]).memmap_(f"{folder}/out")
    td.memmap(f"{folder}/in").map(plus, pool=pool, chunksize=100, out=out)
    assert torch.equal(TensorDict.load_memmap(f"{folder}/out")["x"], td["x"] + 1)
    print("right")


if __name__ == "__main__":
    if sys.argv[1] == "pool":
        with MPIPoolExecutor() as pool:
            check(pool, sys.argv[2])
    else:
        with MPICommExecutor(MPI.COMM_WORLD, root=0) as pool:
            if pool is not None:
                check(pool, sys.argv[2])
