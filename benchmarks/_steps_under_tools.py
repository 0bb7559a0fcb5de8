"""The CPU time of training steps under each tool, at both levels, taken and left out by its filter: of the op_tools that is imported.

_against.py runs this file with the op_tools of two commits, so it uses public names only, and leaves out tools that the older one lacks. Prints a
JSON object: a row's name and its nanoseconds, the least of some repeats in this thread.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from _measure import keep_freed_memory, scratch
from _models import lenet, transformer

import op_tools

REPEATS = 5
TOOLS = (
    "OpCapture",
    "OpAutoCompare",
    "OpOverflowCheck",
    "OpObserve",
    "OpTimeMeasure",
    "OpFallback",
    "OpBlackBox",
    "OpRecord",
    "OpMemoryCheck",
)
LEVELS = ("torch", "aten")
OPTIONS = {"OpCapture": {"format": "container"}}
Make = Callable[[str], contextlib.AbstractContextManager[object]]


def least(work: Callable[[], object], make: Callable[[], contextlib.AbstractContextManager[object]]) -> int:
    """Nanoseconds of `work` under what `make` gives, which is entered once and has seen the work before."""
    spent = []
    with make():
        work()
        for _ in range(REPEATS):
            start = time.thread_time_ns()
            work()
            spent.append(time.thread_time_ns() - start)
    return min(spent)


def of_tool(name: str, level: str, **filters: object) -> Make:
    tool = getattr(op_tools, name)
    return lambda folder: tool(level=level, output_dir=folder, **OPTIONS.get(name, {}), **filters)


def variants() -> dict[str, Make]:
    scopes: dict[str, Make] = {"without": lambda _folder: contextlib.nullcontext()}
    for level in LEVELS:
        scopes[f"Hook {level}"] = lambda _folder, level=level: op_tools.HookScope(op_tools.Hook(), level=level)
        for name in (tool for tool in TOOLS if hasattr(op_tools, tool)):
            scopes[f"{name} {level}"] = of_tool(name, level)
        scopes[f"left out {level}"] = of_tool("OpCapture", level, ops="no_such_operator")
    return scopes


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = {}
    for model, make_step in (("lenet", lenet), ("transformer", transformer)):
        step = make_step(device="cpu")
        step()
        for name, make in variants().items():
            with tempfile.TemporaryDirectory(dir=scratch()) as folder:
                rows[f"{model} {name}"] = least(step, lambda make=make, folder=folder: make(folder))
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
