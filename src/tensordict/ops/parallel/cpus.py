"""How many processors this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path, PurePosixPath

CGROUPS = "/sys/fs/cgroup"


def usable_cpus(cgroups: str = CGROUPS, own: str = "/proc/self/cgroup") -> int:
    """Count the processors that the affinity of this process and the quotas of its control groups leave to it.

    Example:
        >>> usable_cpus() >= 1
        True
    """
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = min((_quota(group) for group in _groups(Path(cgroups), Path(own))), default=math.inf)
    return count if math.isinf(quota) else max(1, min(count, math.ceil(quota)))


def _groups(root: Path, own: Path) -> list[Path]:
    """List the directories that may hold a quota: the group of this process and those above it, version 2 or 1."""
    found = []
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = root / "cpu" if controllers else root
            inner = PurePosixPath(path.lstrip("/"))
            found += [top / inner, *(top / parent for parent in inner.parents), top]
    return found


def _quota(group: Path) -> float:
    """Return the processors that a group allows, infinity where it sets no limit."""
    with contextlib.suppress(OSError, ValueError):
        most, period = (group / "cpu.max").read_text().split()
        return math.inf if most == "max" else int(most) / int(period)
    with contextlib.suppress(OSError, ValueError):
        most = (group / "cpu.cfs_quota_us").read_text()
        return math.inf if int(most) < 0 else int(most) / int((group / "cpu.cfs_period_us").read_text())
    return math.inf
