"""OpOverflowCheck on a training step with large tensors.

./dev bench overflow [--quick]
"""

from __future__ import annotations

import tempfile

import torch
from _measure import PROMISE, Report, Spent, Turns, arguments, keep_freed_memory, ms, spend, verdict
from _models import block, transformer

import op_tools


def main() -> None:
    options = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    report = Report("overflow")
    table = report.table("OpOverflowCheck", *PROMISE)
    models = {
        "a block of hidden 1024, sequence 512": block(),
        "a transformer of hidden 512, batch 8, sequence 64": transformer(512, 2, 8, 64),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, step in models.items():
            for level in ("torch", "aten"):

                def checked(step=step, level=level) -> Spent:
                    with op_tools.OpOverflowCheck(level=level, output_dir=folder):
                        return spend(step)

                turns = Turns({"plain": lambda step=step: spend(step), "checked": checked}, 3 if options.quick else 9)
                ratio = turns.ratio("checked", "plain")
                table.row(
                    f"OpOverflowCheck, training step, {name}, {level} level",
                    "no tool",
                    "<= 1.15x",
                    f"{ratio:.3f}x of the thread's time, {turns.ratio('checked', 'plain', 'wall'):.3f}x wall",
                    verdict(ratio, most=1.15),
                    f"{ms(turns.median('plain'))} a step",
                )
    report.write()


if __name__ == "__main__":
    main()
