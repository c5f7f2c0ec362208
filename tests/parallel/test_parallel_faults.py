"""A worker that fails is an error that names its chunk, never a hang, and no process outlives it."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import parallel_work as work
import pytest
import torch

from tensordict.ops.parallel import WorkerError, run_map

ROWS = torch.arange(6)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_or_unpickled_for_the_worker_is_an_error(method: str) -> None:
    where = {"num_workers": 1, "generator": torch.default_generator, "mp_start_method": method}
    with work.within(30), pytest.raises(ValueError, match="not a number") as caught:
        run_map(ROWS, work.NotLoadable(), **where)
    assert "in a worker, at its start" in str(caught.value.__cause__)
    with work.within(30), pytest.raises(pickle.PicklingError, match="top level of a module"):
        run_map(ROWS, lambda rows: rows, **where)


def test_under_fork_nothing_is_pickled() -> None:
    where = {"num_workers": 2, "generator": torch.default_generator, "mp_start_method": "fork"}
    with work.within(30):
        assert torch.equal(run_map(ROWS, work.NotLoadable(), **where), ROWS)
        assert torch.equal(run_map(ROWS, lambda rows: -rows, **where), -ROWS)


def test_a_worker_may_map_in_its_own_process_only() -> None:
    where = {"num_workers": 1, "generator": torch.default_generator, "mp_start_method": "fork"}
    with work.within(30):
        assert torch.equal(run_map(ROWS, partial(run_map, fn=work.double, num_workers=0), **where), ROWS * 2)
        with pytest.raises(RuntimeError, match="num_workers=0"):
            run_map(ROWS, partial(run_map, fn=work.double, **where), **where)


def test_threads_of_a_forked_worker_do_not_wait_for_the_parents() -> None:
    rows = torch.rand(2, 400, 400)
    assert torch.get_num_threads() > 1 or torch.set_num_threads(2) is None
    expected = rows.exp() @ rows  # the parent has a team of threads now
    where = {"num_workers": 2, "generator": torch.default_generator, "mp_start_method": "fork"}
    with work.within(30):
        assert torch.allclose(run_map(rows, work.heavy, worker_threads=2, **where), expected)


def test_a_death_in_a_users_pool_is_an_error() -> None:
    pool = multiprocessing.get_context("fork").Pool(1)
    with pool, work.within(30), pytest.raises(WorkerError, match="given pool died"):
        run_map(ROWS, work.leave, pool=pool)


def test_a_main_module_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import functools, torch\nfrom tensordict.ops.parallel import run_map\n"
        "if __name__ != '__main__': raise ImportError('not for workers')\n"
        "fn = functools.partial(torch.isin, test_elements=bytes(1_000_000))  # more than a pipe holds\n"
        "run_map(torch.arange(3), fn, 0, 1, generator=torch.default_generator, mp_start_method='spawn')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: not for workers" in done.stderr
    assert re.search(r"WorkerError: worker 0 ended with exit code 1 at its start.*main module", done.stderr)


SCRIPT = """
import os, signal, torch
from tensordict.ops.parallel import iter_map, run_map

def pid(rows):
    return os.getpid()

def interrupt(rows):
    if int(rows[0]) == 1:
        os.killpg(0, signal.SIGINT)
    signal.pause()

def run(call, fn):
    how = {{"num_workers": 2, "generator": torch.default_generator, "mp_start_method": {m!r}}}
    return call(torch.arange(9), fn, chunksize=1, **how)

if __name__ == "__main__":
    {end}
"""
ENDS = {
    "half used": ("results = run(iter_map, pid); next(results)", 0),
    "two at once": ("a, b = run(iter_map, pid), run(iter_map, pid); next(a), next(b), next(a)", 0),
    "parent killed": (
        "a, b = run(iter_map, pid), run(iter_map, pid); next(a), next(b); os.kill(os.getpid(), signal.SIGKILL)",
        -signal.SIGKILL,
    ),
    "interrupted": ("run(run_map, interrupt)", -signal.SIGINT),
}


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ENDS)
def test_no_worker_outlives_the_program(end: str, method: str, tmp_path: Path) -> None:
    line, code = ENDS[end]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(m=method, end=line))
    # The workers hold the program's output open: the run returns when the last of them has gone.
    command = partial(subprocess.run, [sys.executable, "-W", "error", str(script)], capture_output=True, text=True)
    done = command(timeout=60, start_new_session=True)
    assert done.returncode == code, done.stderr
    assert not done.stderr or end == "interrupted"
    assert "map-worker" not in done.stderr
