"""The cost of a call when op_tools is imported, on without taking the call, or on with a hook that does nothing.

./dev bench overhead [--quick]
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable

import torch
from _measure import PROMISE, Report, Spent, Turns, arguments, ns, spend, us, verdict
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import op_tools

CALLS = 10000  # enough that the first ones, with cold caches after a scope was entered, do not count
PLAIN = """
import sys, time, torch
if sys.argv[1] == "with": import op_tools
torch.set_num_threads(1)
x, y = torch.ones(8), torch.ones(8)
def work():
    for _ in range(20000): torch.add(x, y)
work()
for _ in range(5):
    start = time.thread_time(); work(); print(time.thread_time() - start)
"""


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def in_process(which: str) -> Callable[[], Spent]:
    def run() -> Spent:
        done = subprocess.run([sys.executable, "-c", PLAIN, which], capture_output=True, text=True, check=True)
        best = min(map(float, done.stdout.split()))
        return Spent(best, best)

    return run


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    report = Report("overhead")
    table = report.table("Calls that no tool takes, and calls of a hook that does nothing", *PROMISE)

    turns = Turns({"without": in_process("without"), "with": in_process("with")}, 3 if options.quick else 9, warm_up=0)
    ratio = turns.least("with") / turns.least("without")
    table.row(
        "op_tools imported, no tool on",
        "plain torch, in a process of its own",
        "1.00 (not measurable)",
        f"{ratio:.3f}",
        verdict(ratio, most=1.02),
        f"{us(turns.least('without') / 20000)} a call",
    )

    x, y = torch.ones(8), torch.ones(8)

    def work() -> None:
        for _ in range(CALLS):
            torch.add(x, y)

    def under(make: Callable[[], contextlib.AbstractContextManager[object]]) -> Callable[[], Spent]:
        def run() -> Spent:
            with make():
                torch.add(x, y)  # the work of a first call is not the call's
                return spend(work).per(CALLS)

        return run

    nothing = op_tools.Hook()
    turns = Turns(
        {
            "plain": under(contextlib.nullcontext),
            "aten, left out": under(lambda: op_tools.HookScope(nothing, level="aten", ops="mm")),
            "aten, taken": under(lambda: op_tools.HookScope(nothing, level="aten", ops="add.Tensor")),
            "dispatch mode": under(DispatchMode),
            "torch, left out": under(lambda: op_tools.HookScope(nothing, ops="torch.mm")),
            "torch, taken": under(lambda: op_tools.HookScope(nothing, ops="torch.add")),
            "function mode": under(BaseTorchFunctionMode),
        },
        15 if options.quick else 101,
    )
    plain = f"torch.add of 8 numbers: {us(turns.median('plain'))}"
    more = turns.more("aten, left out", "plain")
    table.row(
        "aten level, op left out by the filter", "plain torch", "<= +10 ns", ns(more), verdict(more, most=10e-9), plain
    )
    more = turns.more("aten, taken", "plain")
    table.row(
        "aten level, a hook that does nothing", "plain torch", "<= +250 ns", ns(more), verdict(more, most=250e-9), plain
    )
    times = turns.more("dispatch mode", "plain") / more
    table.row(
        "aten level, a hook that does nothing, once more",
        "Python TorchDispatchMode that does nothing",
        ">= 15x cheaper",
        f"{times:.0f}x",
        verdict(times, least=15),
        f"the mode: {ns(turns.more('dispatch mode', 'plain'))}",
    )
    more = turns.more("torch, left out", "function mode")
    mode = f"the mode: {ns(turns.more('function mode', 'plain'))} over plain torch"
    table.row(
        "torch level, op left out",
        "Python TorchFunctionMode that does nothing",
        "not above it",
        ns(more),
        verdict(more, most=0),
        mode,
    )
    more = turns.more("torch, taken", "function mode")
    table.row(
        "torch level, a hook that does nothing",
        "Python TorchFunctionMode that does nothing",
        "<= +0.5 us",
        ns(more),
        verdict(more, most=0.5e-6),
        mode,
    )
    report.write()


if __name__ == "__main__":
    main()
