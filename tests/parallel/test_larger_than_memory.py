"""A dataset larger than the memory that a process may have: map and map_iter take what a few chunks take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, resource, sys
import torch
from tensordict import TensorDict

ROWS, WIDE, CHUNK, ROOM = 1024, 1 << 20, 16, 256 << 20  # 1 GB, and a quarter to work with
MARKED = [0, 500, ROWS - 1]

def told(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))

def look(td):
    sums = td["x"][:, ::512].sum(-1)  # of each page
    return TensorDict({"sum": sums, "pid": torch.full_like(sums, os.getpid()),
                       "held": torch.full_like(sums, told("RssAnon:")),
                       "some": td["x"][:, ::8].clone()}, td.batch_size)

def lean(td):
    return look(td).exclude("some")

def left():
    return len(os.listdir("/proc/self/fd")), sorted(os.listdir("/dev/shm")), sorted(os.listdir(folder))

def steady(rows):
    for pid in rows["pid"].unique():
        held = rows["held"][rows["pid"] == pid]
        assert held.max() - held[: 4 * CHUNK].max() < 64 << 20, held

if __name__ == "__main__":
    folder, method, road = sys.argv[1:]
    places = {"batch_size": [ROWS], "storage": "memmap"}
    data = TensorDict.from_schema({"x": ([WIDE], torch.uint8)}, prefix=f"{folder}/data", **places)
    columns = {name: ([], torch.long) for name in ("sum", "pid", "held")}
    out = TensorDict.from_schema(columns, prefix=f"{folder}/out", **places)
    for row in MARKED:
        data[row] = TensorDict({"x": torch.ones(WIDE, dtype=torch.uint8)})
    resource.setrlimit(resource.RLIMIT_DATA, (told("VmData:") + ROOM,) * 2)
    try:
        torch.ones(2 * ROOM, dtype=torch.uint8)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the limit does not hold")
    pool = multiprocessing.get_context(method).Pool(2) if road == "pool" else None
    how = {"pool": pool} if pool else {"num_workers": 2, "mp_start_method": method, "seed": 0}
    next(data[:CHUNK].map_iter(lean, **how)).clone()  # servers of the start method begin
    before = left()
    small, began, most = [], told("RssAnon:"), 0
    for part in data.map_iter(look, chunksize=CHUNK, **how):
        most = max(most, told("RssAnon:"))
        small.append(part.exclude("some"))
        del part
    assert most - began < 64 << 20, most - began
    rows = torch.cat(small)
    assert rows["sum"].nonzero().flatten().tolist() == MARKED and rows["sum"].max() == WIDE // 512
    steady(rows)
    assert data.map(lean, chunksize=CHUNK, out=out, **how) is out
    assert torch.equal(out["sum"], rows["sum"])
    steady(out)
    for part in data.map_iter(look, chunksize=CHUNK, shuffle=True, **how):
        break
    del part
    assert left() == before and (pool or not multiprocessing.active_children()), (left(), before)
    print("right")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize(("method", "road"), [("fork", "ours"), ("spawn", "ours"), ("fork", "pool")])
def test_a_dataset_larger_than_memory_takes_what_a_few_chunks_take(method: str, road: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "here").mkdir()
    command = [sys.executable, str(script), str(tmp_path / "here"), method, road]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "right\n", done.stderr
