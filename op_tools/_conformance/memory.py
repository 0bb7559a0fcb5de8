"""What cases need of the main memory, and what there is: the largest of real models do not fit beside each other."""

from __future__ import annotations

import os
from pathlib import Path

from .case import Case

# Measured at the largest cases: inputs, gradients and results, each as it is, on the CPU, in float64, and their differences.
_TIMES_ITS_TENSORS = 13
_CONTAINER = Path("/sys/fs/cgroup")


def needed_by(case: Case) -> int:
    """About how many bytes of main memory the verdict about a case takes."""
    return _TIMES_ITS_TENSORS * case.bytes


def free_bytes() -> int:
    """What this process and those that it starts may still take of the machine, or of the container."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        free = [int(lines["MemAvailable"].split()[0]) * 1024]  # also what files may give back
        limit, used = ((_CONTAINER / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        free.append(int(limit) - int(used))
    except (OSError, KeyError, ValueError):  # no container, or one without a limit ("max")
        pass
    return min(free)
