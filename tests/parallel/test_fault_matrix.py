"""What goes wrong, when, under which start method, in which word: always one clear error, soon, and nothing is left.

All of it runs under fork, half under forkserver and a few under spawn, where a worker takes seconds to start.
`TENSORDICT_WHOLE_MATRIX=1` runs the whole.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import signal
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import parallel_work as work
import pytest
import torch

from tensordict.ops.parallel import WorkerError, iter_map, pool, run_map
from tensordict.ops.parallel.worker import Parcel

ROWS = torch.arange(6)
TIMEOUT, SOON = 0.3, 2.0
FAULTS = ("kill", "exit", "raise", "unpicklable", "slow", "interrupt")
PHASES = ("start", "function", "return")


class Trouble:
    """A function that goes wrong in a worker: when it is opened, when it is called, or when its result is pickled."""

    def __init__(self, fault: str, phase: str, stamp: Path) -> None:
        self.fault, self.phase, self.stamp = fault, phase, stamp
        if (fault, phase) == ("unpicklable", "start"):
            self.cannot = lambda: 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.strike("start")

    def __call__(self, rows: torch.Tensor) -> Any:
        self.strike("function")
        return Bomb(self)

    def strike(self, phase: str) -> None:
        """Go wrong if it is time, in a worker; leave the time."""
        if phase != self.phase or not multiprocessing.current_process().name.startswith("map-worker"):
            return
        written = self.stamp.with_suffix(f".{os.getpid()}")  # renamed whole: a sibling may be ended while it writes
        written.write_text(str(time.monotonic()))
        written.replace(self.stamp)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "raise":
            raise KeyError("no such row")
        elif self.fault == "unpicklable" and phase == "function":
            raise work.OddError(1, 2)
        elif self.fault == "slow":
            time.sleep(60)
        elif self.fault == "interrupt":
            parent = multiprocessing.parent_process()
            assert parent is not None and parent.pid is not None
            os.kill(parent.pid, signal.SIGINT)
            time.sleep(60)


class Bomb:
    """A result that goes wrong when it is pickled."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble

    def __reduce__(self) -> Any:
        self.trouble.strike("return")
        return int, ("not a number",)


def iterate(*args: Any, **how: Any) -> list[Any]:
    return list(iter_map(*args, **how))


CHUNK = r"chunk [0-2] \(rows \d:\d of dim 0\)"
AT_START = "at its start, before it had a chunk"
EXPECTED: dict[tuple[str, str], tuple[type[BaseException], str]] = {
    ("kill", "start"): (WorkerError, rf"worker \d was killed by SIGKILL \(out of memory\?\) {AT_START}"),
    ("exit", "start"): (WorkerError, rf"worker \d ended with exit code 3 {AT_START}"),
    ("raise", "start"): (KeyError, "no such row"),
    ("unpicklable", "start"): (pickle.PicklingError, "top level of a module"),
    ("slow", "start"): (TimeoutError, r"worker \d was not done with its start after 1.0 s"),
    ("kill", "function"): (WorkerError, rf"worker \d was killed by SIGKILL \(out of memory\?\) at {CHUNK}. retries=N"),
    ("exit", "function"): (WorkerError, rf"worker \d ended with exit code 3 at {CHUNK}. retries=N"),
    ("raise", "function"): (KeyError, "no such row"),
    ("unpicklable", "function"): (WorkerError, rf"the function raised OddError: 1 and 2 at {CHUNK}"),
    ("raise", "return"): (pickle.PicklingError, rf"result for {CHUNK}, a Bomb, cannot be pickled: 'no such row'"),
    ("unpicklable", "return"): (WorkerError, rf"result for {CHUNK} cannot be unpickled here: ValueError"),
    ("slow", "function"): (TimeoutError, rf"worker \d was not done with {CHUNK} after 0.3 s"),
    **{("interrupt", phase): (KeyboardInterrupt, "") for phase in PHASES},
}
for _fault in ("kill", "exit", "slow"):
    EXPECTED[_fault, "return"] = EXPECTED[_fault, "function"]

CALLS: dict[str, Callable[..., Any]] = {"map": run_map, "map_iter": iterate}
WHOLE = list(product(FAULTS, PHASES, work.METHODS, CALLS))
FEW = {("kill", "start"), ("exit", "function"), ("unpicklable", "return"), ("interrupt", "function")}
MATRIX = [
    case
    for number, case in enumerate(WHOLE)
    if case[2] == "fork"
    or (case[2] == "forkserver" and (number // len(work.METHODS) // len(CALLS) + number) % 2 == 0)
    or (case[:2] in FEW and case[3] == "map_iter")
    or os.environ.get("TENSORDICT_WHOLE_MATRIX")
]


def left_over() -> tuple[set[str], set[str], int]:
    """Return this process's workers, its files in shared memory, and the number of its open descriptors."""
    gc.collect()
    workers = {process.name for process in multiprocessing.active_children() if process.name.startswith("map-")}
    return workers, {n for n in os.listdir("/dev/shm") if str(os.getpid()) in n}, len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(("fault", "phase", "method", "call"), MATRIX)
def test_a_fault_is_one_clear_error_soon_and_leaves_nothing(
    fault: str, phase: str, method: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble(fault, phase, tmp_path / "stamp")
    if method == "fork":  # where nothing is unpickled, the job goes wrong when it is opened
        monkeypatch.setattr(Parcel, "open", lambda self: (trouble.strike("start"), self._job)[1])
        if (fault, phase) == ("unpicklable", "start"):
            return
    monkeypatch.setattr(pool, "OPENING", 1.0 if (fault, phase) == ("slow", "start") else pool.OPENING)
    multiprocessing.get_context(method).Process(target=int).start() if method != "fork" else None  # their servers
    [process.join() for process in multiprocessing.active_children()]
    before = left_over()
    error, words = EXPECTED[fault, phase]
    how = {"chunksize": 2, "timeout": TIMEOUT if fault == "slow" else None, "generator": torch.default_generator}
    with work.within(60):
        try:
            CALLS[call](ROWS, trouble, 0, 2 if method == "fork" else 1, mp_start_method=method, **how)
        except BaseException as raised:
            caught, now = raised, time.monotonic()
    assert isinstance(caught, error) and re.search(words, str(caught)), repr(caught)
    if fault == "raise" or (fault, phase) == ("unpicklable", "function"):
        where = r"its start" if phase == "start" else CHUNK
        assert re.search(rf"in a worker, at {where}:\n\nTraceback", str(caught.__cause__))
    if trouble.stamp.exists():
        allowed = 1.0 if fault == "interrupt" else SOON
        assert now - float(trouble.stamp.read_text()) < allowed
    del caught
    assert left_over() == before
