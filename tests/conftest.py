"""What every test shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

# A loaded machine must not fail a test, and a failure must be the same one at the next run.
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("steady")

EXAMPLES = pytest.StashKey[list[int]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[EXAMPLES] = [0]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # a shell starts what it puts into the background so; tests of Ctrl-C, and processes of theirs, must hear it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Count the examples of the property tests where their number is asked for."""
    if "HYPOTHESIS_EXAMPLES" not in os.environ:
        return
    counted: set[int] = set()
    for item in items:
        inner = getattr(getattr(item, "obj", None), "hypothesis", None)
        if inner is not None and id(inner) not in counted:
            counted.add(id(inner))
            inner.inner_test = counting(inner.inner_test, config.stash[EXAMPLES])


def counting(test: Callable[..., Any], total: list[int]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        total[0] += 1
        return test(*args, **kwargs)

    return run


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.stash[EXAMPLES][0]:
        terminalreporter.write_line(f"{config.stash[EXAMPLES][0]} examples of properties were run")
