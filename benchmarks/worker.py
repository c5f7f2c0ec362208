"""One side of the benchmark: reads commands from its standard input, one JSON object a line, and answers each.

`run.py` starts one of these per side, with that side's interpreter, and lets them take turns.
"""

from __future__ import annotations

import json
import sys
import time
import timeit
import types
from typing import Any


class Side:
    """The timers of this process, one per row, and the answers to the commands."""

    def __init__(self) -> None:
        self.timers: dict[str, timeit.Timer] = {}

    def hello(self, **_: object) -> str:
        import tensordict

        return getattr(tensordict, "__version__", "of no known version")

    def setup(self, *, key: str, setup: str, statement: str) -> float:
        """Make the data of a row and return the seconds that its statement takes the second time."""
        module = types.ModuleType("row")
        exec(setup, module.__dict__)
        self.timers[key] = timeit.Timer(statement, globals=module.__dict__)
        self.timers[key].timeit(1)
        return self.timers[key].timeit(1)

    def time(self, *, key: str, loops: int) -> float:
        """Return the seconds that one run of the statement takes."""
        return self.timers[key].timeit(loops) / loops

    def forget(self, *, key: str) -> None:
        del self.timers[key]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    side = Side()
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever a package prints is no answer
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        began = time.perf_counter()
        try:
            answer = {"value": getattr(side, command.pop("do"))(**command)}
        except Exception as error:  # the other side goes on, and the table says which row failed
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["seconds"] = time.perf_counter() - began
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
