"""How many short chunks travel together."""

from __future__ import annotations

import math

STINT = 1e-3  # seconds of work that are sent to a worker at once
DEEP = 64  # chunks that are sent to a worker at once, at most


class Pace:
    """The seconds that a chunk takes, as the last ones say.

    Example:
        >>> pace = Pace()
        >>> pace.depth()
        1
        >>> pace.note(1e-4)
        >>> pace.depth()
        11
    """

    def __init__(self) -> None:
        self._seconds = math.inf

    def note(self, seconds: float) -> None:
        """Note what a chunk took."""
        known = not math.isinf(self._seconds)
        self._seconds = self._seconds + (seconds - self._seconds) / 4 if known else seconds

    def depth(self) -> int:
        """Count the chunks that are about `STINT` seconds of work, and at most `DEEP`."""
        return min(DEEP, 1 + int(STINT / max(self._seconds, 1e-6)))
