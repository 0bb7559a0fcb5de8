"""Main memory: the need of cases, and the free memory: the largest of real models do not fit beside each other."""

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
    """The memory of the machine, or of the container, that this process and its children may still take."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        free = [int(lines["MemAvailable"].split()[0]) * 1024]  # also memory that files may give back
        limit, used = ((_CONTAINER / f"memory.{name}").read_text(encoding="ascii") for name in ("max", "current"))
        free.append(int(limit) - int(used))
    except (OSError, KeyError, ValueError):  # no container, or a container without a limit ("max")
        pass
    return min(free)
