"""Memory stays flat: 100,000 captured steps of a tiny model, and a million calls through a hook and into a container.

The resident memory is noted ten times; the last must not be more than a few megabytes above the second (the first ones
fill caches). The files are looked at in the end and removed.

    soak.py [--steps 100000] [--calls 1000000]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from _program import parser, quiet
from _workers import Progress

import op_tools

MOST_GROWTH = 16e6  # bytes; an index of all written calls would take 35 MB for 100,000 calls


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def flat(name: str, rounds: int, body: Callable[[int], None], wait: Callable[[], None]) -> bool:
    """Runs body(count) ten times; True when memory stayed where it was."""
    marks = []
    progress = Progress(10, name)
    began = time.monotonic()
    for _ in range(10):
        body(rounds // 10)
        wait()
        marks.append(resident())
        progress.step(f"{marks[-1] / 1e6:.0f} MB")
    seconds = time.monotonic() - began
    growth = marks[-1] - marks[1]
    good = growth < MOST_GROWTH
    print(
        f"{name}: {rounds} in {seconds:.0f} s, {marks[1] / 1e6:.1f} MB after a fifth, {marks[-1] / 1e6:.1f} MB in the end: "
        f"{'flat' if good else 'GROWS'} ({growth / 1e6:+.1f} MB)"
    )
    return good


class Nothing(op_tools.Hook):
    gradients = True


def captured_steps(steps: int, folder: str) -> bool:
    """Each step is captured, forward and backward; written out now and then so that the queue is empty."""
    torch.manual_seed(0)
    weight = torch.randn(4, 4, requires_grad=True)
    tool = op_tools.OpCapture(ops=".*linear|.*tanh", format="container", output_dir=folder, max_pending_mb=8)

    def train(count: int) -> None:
        for _ in range(count):
            F.linear(weight, weight).tanh().sum().backward()
            weight.grad = None
            tool.step()

    with tool:
        good = flat("captured steps", steps, train, lambda: None)
    result = tool.result()
    calls = sum(row.calls for row in result.rows)
    with zipfile.ZipFile(Path(result.root) / "calls.zip") as archive:
        entries = len(archive.namelist())
    print(f"  {calls} calls in {entries} entries, {result.bytes_on_disk / 1e6:.0f} MB, {result.lost} lost")
    return good and calls == 2 * steps and entries == 5 * calls and not result.failure


def many_calls(calls: int, level: str) -> bool:
    x = torch.ones(2, requires_grad=True)

    def run(count: int) -> None:
        for _ in range(count):
            torch.exp(x)

    with op_tools.HookScope(Nothing(), level=level) as scope:
        good = flat(f"calls, a hook at the {level} level", calls, run, lambda: None)
    return good and scope.calls_seen >= calls


def captured_calls(calls: int, folder: str) -> bool:
    x = torch.ones(2)
    tool = op_tools.OpCapture(level="aten", ops="aten::exp", format="container", output_dir=folder, max_pending_mb=8)

    def run(count: int) -> None:
        for _ in range(count):
            torch.exp(x)

    with tool:
        good = flat("captured calls", calls, run, lambda: None)
    result = tool.result()
    return good and sum(row.calls for row in result.rows) == calls and not result.failure


def scopes(rounds: int) -> bool:
    """Entering and leaving leaves nothing behind."""
    x = torch.ones(2)

    def run(count: int) -> None:
        for _ in range(count):
            with op_tools.HookScope(Nothing(), level="aten", ops="aten::exp"), op_tools.HookScope(Nothing()):
                torch.exp(x)

    return flat("scopes", rounds, run, lambda: None)


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--steps", type=int, default=100_000, metavar="N")
    command_line.add_argument("--calls", type=int, default=1_000_000, metavar="N")
    options = command_line.parse_args()
    quiet()
    folder = tempfile.mkdtemp(prefix="soak-")
    try:
        good = [
            captured_steps(options.steps, folder),
            many_calls(options.calls, "aten"),
            many_calls(options.calls, "torch"),
            scopes(options.steps // 10),
        ]
        shutil.rmtree(Path(folder) / "op_capture_result", ignore_errors=True)
        good.append(captured_calls(options.calls, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
