"""What the workers of these tests run: module-level functions, and the one guard against a hang."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import torch

METHODS = ("fork", "spawn", "forkserver")
multiprocessing.set_forkserver_preload(["torch"])


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer, or when it leaves a process behind."""

    def ring(signum: int, frame: FrameType | None) -> NoReturn:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not [p for p in multiprocessing.active_children() if p.name.startswith("map-worker")]


class OddError(Exception):
    """Cannot be rebuilt from its args, nor pickled in another way."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.unpicklable = lambda: 0


class NotLoadable:
    """Fails when it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


def same(rows: Any) -> Any:
    return rows


def double(rows: torch.Tensor) -> torch.Tensor:
    return rows * 2


def heavy(rows: torch.Tensor) -> torch.Tensor:
    return rows.exp() @ rows


def nothing(rows: torch.Tensor) -> None:
    return None


def some(rows: torch.Tensor) -> torch.Tensor | None:
    return None if int(rows.flatten()[0]) % 4 == 0 else rows


def pair(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rows, -rows


def number(rows: torch.Tensor) -> float:
    return 1.5


def seen_dim(rows: torch.Tensor) -> int:
    return rows.ndim


def too_few(rows: torch.Tensor) -> torch.Tensor:
    return rows[:, :1]


def fail(rows: torch.Tensor) -> NoReturn:
    raise KeyError("no such row")


def fail_oddly(rows: torch.Tensor) -> NoReturn:
    raise OddError(1, 2)


def leave(rows: torch.Tensor) -> NoReturn:
    os._exit(3)


def be_killed(rows: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def give_lambda(rows: torch.Tensor) -> Any:
    return lambda: 0


def count(rows: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
    counter[int(rows[0])] += 1
    return rows


def state(rows: torch.Tensor) -> tuple[int, int, int, float, int, int]:
    """Give this worker's process, torch seed, threads, and one draw of each generator."""
    drawn = int(torch.randint(1 << 60, ())), random.random(), int(np.random.randint(1 << 30))
    return os.getpid(), torch.initial_seed(), torch.get_num_threads(), *drawn[1:], drawn[0]  # type: ignore[return-value]
