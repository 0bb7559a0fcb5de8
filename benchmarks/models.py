"""Whole training steps with each tool on against off: LeNet, a transformer of small operators, a block as in language models.

    ./dev bench models [--quick] [--models lenet transformer block] [--device cuda]

"all": every operator; "linear": a filter that names the matrix products of the model only. The steps run in the scope, the
files that still wait are written after it; capturing goes into containers.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable

import torch
from _measure import Report, Spent, Turns, arguments, ms, scratch, spend
from _models import block, lenet, transformer

import op_tools

FILTERS = {"torch": ".*[.]linear", "aten": "addmm,mm"}
Make = Callable[..., op_tools.OpCapture]
TOOLS: dict[str, tuple[Make, dict[str, object]]] = {
    "a hook that does nothing": (lambda **more: op_tools.HookScope(op_tools.Hook(), **more), {}),
    "OpCapture": (op_tools.OpCapture, {"format": "container"}),
    "OpCapture, dedupe": (op_tools.OpCapture, {"format": "container", "dedupe": True}),
    "OpAutoCompare": (op_tools.OpAutoCompare, {}),
    "OpTimeMeasure": (op_tools.OpTimeMeasure, {"lines": False}),
    "OpOverflowCheck": (op_tools.OpOverflowCheck, {}),
    "OpRecord": (op_tools.OpRecord, {}),
    "OpRecord, without statistics": (op_tools.OpRecord, {"statistics": False}),
}


def main() -> None:
    steps = {
        "lenet": ("LeNet, 64 images", lenet, 2),
        "transformer": ("transformer, 2 layers, hidden 64", transformer, 2),
        "block": ("block, hidden 1024, sequence 512", block, 1),
    }
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="*", choices=steps, default=list(steps))
    parser.add_argument("--device", default="cpu", help="of the models: cpu (the default), cuda")
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("models")
    on_device = "" if options.device == "cpu" else f", on {options.device}"
    for model in options.models:
        title, make, count = steps[model]
        table = report.table(
            f"{title}{on_device}: a training step with the tool on, as a multiple of one without",
            "tool",
            "torch, all",
            "torch, linear",
            "aten, all",
            "aten, linear",
        )
        step = make(device=options.device)

        def plain(step=step, count=count) -> Spent:
            return spend(lambda: [step() for _ in range(count)]).per(count)

        rounds = 2 if options.quick else 5 if model == "block" else 11
        for name, (tool, more) in TOOLS.items():
            with contextlib.ExitStack() as stack:
                folder = tempfile.mkdtemp(dir=scratch())
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                variants: dict[str, Callable[[], Spent]] = {"plain": plain}
                for level, only in FILTERS.items():
                    for title, filters in (("all", {}), ("linear", {"ops": only})):

                        def on(tool=tool, more=more, level=level, filters=filters, plain=plain) -> Spent:
                            place = tempfile.mkdtemp(dir=folder)  # noqa: B023
                            with tool(level=level, output_dir=place, **more, **filters):
                                spent = plain()
                            shutil.rmtree(place, ignore_errors=True)
                            return spent

                        variants[f"{level}, {title}"] = on
                turns = Turns(variants, rounds)
                table.row(
                    name,
                    *(f"{turns.ratio(variant, 'plain', 'wall'):.2f}" for variant in variants if variant != "plain"),
                )
        table.note = f"One step without a tool: {ms(turns.median('plain', 'wall'))}."
    report.write()


if __name__ == "__main__":
    main()
