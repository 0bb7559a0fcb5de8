"""Memory stays flat: 100,000 captured steps of a tiny model, a million calls through a hook and into a container, and
training steps under each tool, with another scalar in each. A container of more than 4 GB is read.

The resident memory is noted ten times; the last must not be more than a few megabytes above the second (the first ones
fill caches). The files are looked at in the end and removed.

    soak.py [--steps 100000] [--calls 1000000] [--large]

--large: 4.5 GB of calls in a container, whose sizes and places need 64 bits; the disk must have room for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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


# As they are left on for a whole training. A queue that is full, and a trace that is, grow no more.
TOOLS: dict[str, Callable[..., Any]] = {
    "OpCapture": partial(op_tools.OpCapture, format="container", max_pending_mb=8),
    "OpRecord": op_tools.OpRecord,
    "OpObserve": op_tools.OpObserve,
    "OpTimeMeasure": partial(op_tools.OpTimeMeasure, max_calls=1000),
    "OpMemoryCheck": op_tools.OpMemoryCheck,
    "OpOverflowCheck": op_tools.OpOverflowCheck,
    "OpBlackBox": op_tools.OpBlackBox,
    "OpAutoCompare": op_tools.OpAutoCompare,
    "OpInvariance": op_tools.OpInvariance,
    "OpFallback": op_tools.OpFallback,
}


def left_on(name: str, level: str, steps: int, folder: str) -> bool:
    """Training steps, each with numbers that no step before had."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3, momentum=0.9)
    tool = TOOLS[name](level=level, output_dir=folder)
    step = 0

    def train(count: int) -> None:
        nonlocal step
        for _ in range(count):
            step += 1
            optimizer.zero_grad()
            layer(torch.ones(2, 4) * (step * 0.001)).sum().backward()
            optimizer.step()
            tool.step()

    with tool:
        return flat(f"{name}, {level} level, steps", steps, train, lambda: None)


def large_container(folder: str) -> bool:
    """Of more than 4 GB, with an entry behind that place; each call is read again, by Python's zip, too."""
    calls = 72
    tool = op_tools.OpCapture(ops=".*mul", format="container", output_dir=folder, max_pending_mb=256)
    with tool:
        for call in range(calls):
            torch.full((1 << 24,), float(call)) * 2
    path = Path(tool.result().root) / "calls.zip"
    with zipfile.ZipFile(path) as archive:
        last = max(archive.infolist(), key=lambda entry: entry.header_offset)
        whole = archive.testzip() is None
    done = subprocess.run([sys.executable, "-m", "op_tools.run_op_from_data", str(path), "--acc_check", "-q"])
    good = whole and path.stat().st_size > last.header_offset > 1 << 32 and done.returncode == 0
    print(f"a container of {path.stat().st_size / 1e9:.2f} GB: {'read and run' if good else 'WRONG'}")
    return good


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
    command_line.add_argument("--large", action="store_true")
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
        for name in TOOLS:
            for level in ("torch", "aten"):
                good.append(left_on(name, level, options.steps // 10, folder))
                shutil.rmtree(folder)
                Path(folder).mkdir()
        if options.large:
            good.append(large_container(folder))
            shutil.rmtree(folder)
        good.append(captured_calls(options.calls, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
