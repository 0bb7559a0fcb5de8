"""The memory of each tool while a program calls operators with large tensors: bounded for all programs.

Each case runs in a process of its own: a tool, a level, and a program (forward only, training, shapes that change). Half
of the calls are made, then as many again: the resident memory at its highest may not grow by more than --most-growth
between the halves; a tensor that stays for each call would be 200 GB. result() may take no more than 160 MB. The same
programs run without a tool, too, to see that they are flat.

    memory_bounds.py [--calls 100000] [--size 1024] [--tools NAME ...] [--programs NAME ...] [--jobs 2] [--most-growth 48]

A call of the program `sum` is a single addition: 100,000 of them with tensors of 1 MB (--size 512) take half a minute without a
tool.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from _program import parser, quiet

import op_tools

MOST_OF_RESULT = 160e6  # bytes
PROGRAMS = ("forward", "training", "shapes", "sum")
TOOLS: dict[str, dict[str, Any]] = {
    "none": {},
    "OpCapture": {"dedupe": True, "format": "container", "max_pending_mb": 64},
    "OpAutoCompare": {},
    "OpTimeMeasure": {"memory": True},
    "OpFallback": {},
    "OpDtypeCast": {"cast": "torch.float32->torch.float64"},
    "OpObserve": {},
    "OpOverflowCheck": {},
    "OpRecord": {},
    "OpBlackBox": {},
    "OpMemoryCheck": {},
    "Hook": {},
}


class Reading(op_tools.Hook):
    """A hook that looks at everything and stores nothing."""

    gradients = True

    def before(self, call: Any) -> object:
        return call.args

    def after(self, call: Any, state: object) -> None:
        call.result  # noqa: B018


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Program:
    """A call of each of its operators in turn; tensors of `size` x `size` elements."""

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size, self.calls = name, size, 0
        self.weight = torch.randn(size, 16).requires_grad_()
        self.bias = torch.zeros(size).requires_grad_()
        self.x = torch.randn(size, 16)
        self.square = torch.randn(size, size)

    def call(self) -> None:
        self.calls += 1
        if self.name == "sum":
            self.y = torch.add(self.square, 1.0)
            return
        rows = self.size - (self.calls * 37) % (self.size // 2) if self.name == "shapes" else self.size
        self.y = torch.nn.functional.linear(self.x[:rows], self.weight, self.bias)
        if self.name == "training":
            self.y.sum().backward()
            self.weight.grad = self.bias.grad = None


def made_tool(name: str, level: str, folder: str) -> Any:
    if name == "Hook":
        return op_tools.HookScope(Reading(), level=level)
    options = TOOLS[name]
    return getattr(op_tools, name)(level=level, output_dir=folder, **options)


def measure(case: tuple[str, str, str, int, int]) -> dict[str, float]:
    """Bytes: before, the highest of each half of the calls, the addition of result()."""
    name, level, kind, calls, size = case
    folder = tempfile.mkdtemp(prefix="memory-bounds-")
    program = Program(kind, size)
    tool = None if name == "none" else made_tool(name, level, folder)
    highest = [0, 0]
    try:
        before = resident()
        if tool:
            tool.start()
        for number in range(calls):
            program.call()
            half = 2 * number // calls
            highest[half] = max(highest[half], resident())
        in_use = resident()
        result = tool.result() if tool and name != "Hook" else None
        added = resident() - in_use
        del result
        if tool:
            tool.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {"before": before, "first": highest[0], "second": highest[1], "result": added}


def in_own_process(case: tuple[str, str, str, int, int]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--case", json.dumps(case)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def cases(tools: list[str], programs: list[str], calls: int, size: int) -> list[tuple[str, str, str, int, int]]:
    return [
        (tool, level, program, calls, size)
        for tool in tools
        for level in (("torch", "aten") if tool != "none" else ("torch",))
        for program in programs
    ]


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--calls", type=int, default=100_000, metavar="N")
    command_line.add_argument("--size", type=int, default=1024, metavar="N", help="of the tensors: N x N float32")
    command_line.add_argument("--tools", nargs="+", default=list(TOOLS), choices=list(TOOLS), metavar="NAME")
    command_line.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS, metavar="NAME")
    command_line.add_argument("--jobs", type=int, default=2, metavar="N")
    command_line.add_argument("--most-growth", type=float, default=48, metavar="MB", help="between the halves")
    command_line.add_argument("--case", metavar="JSON", help="a single case, measured in this process")
    options = command_line.parse_args()
    if options.case:
        quiet()
        print(json.dumps(measure(json.loads(options.case))))
        return 0
    growing = 0
    all_cases = cases(options.tools, options.programs, options.calls, options.size)
    print(f"{'tool':<16} {'level':<6} {'program':<9} {'before':>8} {'1st half':>9} {'2nd half':>9} {'result()':>9}  MB")
    with ThreadPoolExecutor(options.jobs) as pool:
        for (name, level, program, *_), memory in zip(all_cases, pool.map(in_own_process, all_cases), strict=True):
            growth = memory["second"] - memory["first"]
            grows = growth > options.most_growth * 1e6 or memory["result"] > MOST_OF_RESULT
            growing += grows
            numbers = " ".join(f"{memory[key] / 1e6:>9.0f}" for key in ("before", "first", "second", "result"))
            print(f"{name:<16} {level:<6} {program:<8}{numbers}{'  GROWS' if grows else ''}", flush=True)
    print(f"{options.calls} calls each: {growing} of {len(all_cases)} cases take more and more memory")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
