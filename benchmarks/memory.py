"""A million calls: the cost of a call and the memory of the process, at the beginning and at the end.

./dev bench memory [--quick] [--calls 1000000]
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _measure import PROMISE, Report, arguments, scratch, us, verdict

import op_tools

TENTHS = 10
SLICES = 20


def resident() -> float:
    """MB of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    options = parser.parse_args()
    calls = options.calls // (20 if options.quick else 1)
    torch.set_num_threads(1)
    report = Report("memory")
    table = report.table("A million calls", *PROMISE)
    x, y = torch.ones(4), torch.ones(4)

    def seconds(op: Callable[..., object], count: int) -> float:
        start = time.thread_time()
        for _ in range(count):
            op(x, y)
        return (time.thread_time() - start) / count

    def tenth(between: Callable[[], object]) -> tuple[float, float]:
        """Seconds of a call, and the same in calls that the tool leaves out and that take turns with it: the machine may
        be slower by now."""
        count = (calls - 10_000) // TENTHS // SLICES
        spent = []
        for _ in range(SLICES):
            spent.append((seconds(torch.add, count), seconds(torch.mul, count // 4)))
            between()
        return statistics.median(one for one, _ in spent), statistics.median(one / two for one, two in spent)

    def capture(folder: str) -> op_tools.OpCapture:
        return op_tools.OpCapture(
            level="aten", ops="add.Tensor", format="container", output_dir=folder, max_pending_mb=16
        )

    def measure(folder: str) -> op_tools.OpTimeMeasure:
        return op_tools.OpTimeMeasure(level="aten", ops="add.Tensor", lines=False, output_dir=folder, max_calls=10_000)

    # A full queue makes the program go at the writer's pace, and through 16 MB of memory instead of the caches.
    for name, make, keeps_up in (
        ("OpCapture (container), the writer keeps up", capture, True),
        ("OpCapture (container), the queue is full", capture, False),
        ("OpTimeMeasure", measure, False),
    ):
        folder = tempfile.mkdtemp(dir=scratch())
        with make(folder) as tool:
            between = tool.flush if keeps_up else lambda: None
            first = seconds(torch.add, 10_000 if keeps_up else calls // TENTHS)
            between()
            marks, costs = [resident()], []
            for _ in range(TENTHS):
                costs.append(tenth(between))
                marks.append(resident())
        shutil.rmtree(folder)
        grown, slower = marks[-1] - marks[1], costs[-1][1] / costs[0][1]
        table.row(
            f"{name}, {calls} calls",
            "the first ten thousand",
            "cost per call and memory flat",
            f"{grown:+.1f} MB; last tenth {slower:.2f}x the first tenth",
            verdict(grown, most=8) if slower <= 1.15 else verdict(slower, most=1.15),
            f"{us(first)} a call at first, {us(costs[-1][0])} at the end; {marks[1]:.0f} MB",
        )
    report.write()


if __name__ == "__main__":
    main()
