"""The costs of OpRecord: training steps with it on against off, after the first steps of a recording.

    ./dev bench record [--quick] [--threads N]

Each figure is of steps in the middle of a recording, with `step()` after each: the header, the names of the parameters and
facts that are read once are behind it; the first step is shown apart.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable

import torch
from _measure import PROMISE, Report, Spent, Table, Turns, arguments, ms, scratch, spend, verdict
from _models import block, transformer

import op_tools

MOST = {"torch": 1.3, "aten": 1.6}
Step = Callable[[], torch.Tensor]


class Recorded:
    """Steps with a recording on: the first of it, then some that are not measured, then those that count."""

    def __init__(self, step: Step, count: int, **options: object) -> None:
        self.step, self.count, self.options = step, count, options
        self.first: list[float] = []
        self.bytes = self.calls = 0

    def __call__(self) -> Spent:
        folder = tempfile.mkdtemp(dir=scratch())
        with op_tools.OpRecord(output_dir=folder, **self.options) as tool:  # type: ignore[arg-type]

            def work() -> None:
                self.step()
                tool.step()

            self.first.append(spend(work).wall)
            work()
            spent = spend(lambda: [work() for _ in range(self.count)]).per(self.count)
        result = tool.result()
        self.bytes, self.calls = result.bytes, result.calls
        shutil.rmtree(folder)
        return spent


def rows(table: Table, title: str, step: Step, count: int, rounds: int, promised: bool) -> None:
    def plain() -> Spent:
        return spend(lambda: [step() for _ in range(count)]).per(count)

    recorded = {
        f"{level}{'' if statistics else ', without statistics'}": Recorded(
            step, count, level=level, statistics=statistics
        )
        for level, statistics in itertools.product(MOST, (True, False))
    }
    turns = Turns({"plain": plain, **recorded}, rounds)
    for name, run in recorded.items():
        most = MOST.get(name) if promised else None
        ratio = turns.ratio(name, "plain", "wall")
        calls = run.calls / (count + 2)
        table.row(
            f"OpRecord, {title}, {name}",
            "no tool",
            f"<= {most}x" if most else "",
            f"{ratio:.2f}x",
            verdict(ratio, most=most) if most else "",
            f"{turns.ratio(name, 'plain'):.2f}x of the thread's time; a step takes {ms(turns.median('plain', 'wall'))} and has "
            f"{calls:.0f} calls; {run.bytes / run.calls:.0f} bytes a call; "
            f"the first step {min(run.first) / turns.median('plain', 'wall'):.1f}x",
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="threads inside of operators")
    options = parser.parse_args()
    report = Report("record")
    table = report.table("OpRecord", *PROMISE)
    for threads in options.threads:
        torch.set_num_threads(threads)
        said = "one thread" if threads == 1 else f"{threads} threads"
        rounds = 5 if options.quick else 31
        rows(table, f"transformer, hidden 64, {said}", transformer(), 5, rounds, promised=threads == 1)
        wide = transformer(hidden=512, batch=8, length=64)
        rows(table, f"transformer, hidden 512, {said}", wide, 2, rounds // 3 + 2, promised=False)
        rows(table, f"block, hidden 1024, {said}", block(), 2, rounds // 6 + 2, promised=False)
    report.write()


if __name__ == "__main__":
    main()
