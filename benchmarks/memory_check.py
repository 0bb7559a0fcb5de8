"""What OpMemoryCheck costs: training steps with it on against off.

    ./dev bench memory_check [--quick]

One thread. Steps in the middle of a run, with step() after each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from _measure import PROMISE, Report, Spent, Table, Turns, arguments, ms, spend, verdict
from _models import block, transformer

import op_tools

MOST = 1.1
VARIANTS = {
    "": {},
    ", without lines and modules": {"with_stack": False, "with_modules": False},
    ", backtrace": {"backtrace": True},
    ", guard": {"guard": True},
}
Step = Callable[[], torch.Tensor]


def rows(table: Table, title: str, step: Step, count: int, rounds: int, promised: bool) -> None:
    def under(options: dict[str, bool] | None) -> Callable[[], Spent]:
        def run() -> Spent:
            tool = op_tools.OpMemoryCheck(files=False, **options) if options is not None else None
            with tool or contextlib.nullcontext():

                def work() -> None:
                    step()
                    if tool:
                        tool.step()

                work()  # what it notes once
                return spend(lambda: [work() for _ in range(count)]).per(count)

        return run

    turns = Turns({"plain": under(None), **{name: under(options) for name, options in VARIANTS.items()}}, rounds)
    for name in VARIANTS:
        ratio = turns.ratio(name, "plain", "wall")
        most = MOST if promised and not name else None
        table.row(
            f"OpMemoryCheck{name}, {title}",
            "no tool",
            f"<= {most}x" if most else "",
            f"{ratio:.2f}x",
            verdict(ratio, most=most) if most else "",
            f"{turns.ratio(name, 'plain'):.2f}x of the thread's time; a step takes {ms(turns.median('plain', 'wall'))}",
        )


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    report = Report("memory_check")
    table = report.table("OpMemoryCheck", *PROMISE)
    rounds = 5 if options.quick else 21
    rows(table, "transformer, hidden 64", transformer(), 5, rounds, promised=False)
    wide = transformer(hidden=512, batch=8, length=64)
    rows(table, "transformer, hidden 512", wide, 2, rounds // 3 + 2, promised=True)
    rows(table, "block, hidden 1024", block(), 2, rounds // 6 + 2, promised=True)
    report.write()


if __name__ == "__main__":
    main()
