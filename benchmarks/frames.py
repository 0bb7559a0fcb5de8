"""The cost of a call's line and modules: the walk over Python's frames, which are read in another way in each version of Python.

    ./dev bench frames [--quick]

A small operator inside of nested modules, below more or fewer frames of the user's. Two lines take turns, and each call has the frames
of the call before it: the case of a training step. Ratios compare Pythons, on whichever machine each was measured.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from _measure import Report, Spent, Turns, arguments, keep_freed_memory, ns, scratch, spend

import op_tools

CALLS = 400
DEPTHS = (0, 20, 80)  # frames between the modules and the calls
NESTED = 3  # modules around them
NO_TOOL, WITHOUT, WITH = "no tool", "without lines and modules", "with"


def below(frames: int, work: Callable[[], None]) -> None:
    """Runs `work` so many frames further down."""
    if frames == 0:
        work()
    else:
        below(frames - 1, work)


class Around(torch.nn.Module):
    """A module whose forward runs another, or `work`."""

    def __init__(self, inner: Callable[[], None]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self) -> None:
        self.inner()


def calls() -> None:
    x = torch.ones(4)
    for _ in range(CALLS // 2):
        torch.neg(x)
        torch.abs(x)


def measured(depth: int, folder: str, rounds: int) -> Turns:
    def run(work: Callable[[], None]) -> Spent:
        spent = []

        def inside() -> None:
            calls()  # what the first calls of a scope make
            spent.append(spend(work).per(CALLS))

        module = Around(partial(below, depth, inside))
        for _ in range(NESTED - 1):
            module = Around(module)
        module()
        return spent[0]

    def boxed(*, asks: bool) -> Spent:
        with op_tools.OpBlackBox(output_dir=folder, with_stack=asks, with_modules=asks):
            return run(calls)

    variants = {NO_TOOL: partial(run, calls), WITHOUT: partial(boxed, asks=False), WITH: partial(boxed, asks=True)}
    return Turns(variants, rounds, warm_up=3)


def main() -> None:
    options = arguments(__doc__).parse_args()
    keep_freed_memory()
    report = Report("frames")
    table = report.table(
        f"Lines and modules of calls, Python {platform.python_version()}",
        "frames",
        "the call",
        "the walk",
        "call with it / without",
    )
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        for depth in DEPTHS:
            turns = measured(depth, folder, rounds=9 if options.quick else 51)
            walk, ratio = turns.more(WITH, WITHOUT), turns.ratio(WITH, WITHOUT)
            table.row(depth, ns(turns.median(NO_TOOL)), ns(walk), f"{ratio:.2f}")
    report.write()


if __name__ == "__main__":
    main()
