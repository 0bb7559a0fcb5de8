"""The costs of looking at compiled programs: a call of a compiled model, forward and backward, and in inference.

    ./dev bench compiled [--quick]

One thread; all compilers and tools take turns in one run. Of `check` the graph is judged in each call, or in each hundredth. "no operator
taken": a tool is on whose filter leaves all operators out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _costs import Make, report_of
from _measure import PROMISE, Spent, Table, Turns, arguments, ms, spend, verdict
from _models import Block
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.compilers import debug_nop
from torch._guards import detect_fake_mode
from torch.utils._debug_mode import DebugMode

import op_tools

MOST = 1.4  # of nodes without a tool, against aot_eager
SAMPLED = 100


def interpreted(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
    return make_boxed_func(fx.Interpreter(graph).run)


def debugged(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    mode = detect_fake_mode(inputs)
    graph.shape_env = mode.shape_env if mode else None  # torch 2.13 asks for it, and does not set it
    run: Callable[..., Any] = debug_nop(graph, inputs)
    return run


COMPILERS: dict[str, Any] = {
    "eager": None,
    "aot_eager": "aot_eager",
    "inductor": "inductor",
    "fx.Interpreter": aot_autograd(fw_compiler=interpreted),
    "debug_nop": aot_autograd(fw_compiler=debugged),
}
AOT_EAGER = "aot_eager"


def on(kind: Any, **options: Any) -> Make:
    return partial(kind, **options)


def nothing(**options: Any) -> Make:
    return lambda: op_tools.HookScope(op_tools.Hook(), compiled="nodes", **options)


# The compiler, the tool, how many calls are measured at a time as a multiple of the usual, and its limit against aot_eager.
VARIANTS: dict[str, tuple[str, Make, float, float | None]] = {
    "eager": ("eager", contextlib.nullcontext, 1, None),
    AOT_EAGER: (AOT_EAGER, contextlib.nullcontext, 1, None),
    "inductor": ("inductor", contextlib.nullcontext, 1, None),
    "fx.Interpreter below AOT autograd": ("fx.Interpreter", contextlib.nullcontext, 1, None),
    "debug_nop below AOT autograd": ("debug_nop", contextlib.nullcontext, 1, None),
    "DebugMode over eager": ("eager", DebugMode, 1, None),
    "nodes, torch level, no operator taken": (AOT_EAGER, nothing(ops="none"), 1, MOST),
    "nodes, aten level, no operator taken": (AOT_EAGER, nothing(ops="none", level="aten"), 1, MOST),
    "nodes, torch level, a hook that does nothing": (AOT_EAGER, nothing(), 1, None),
    "nodes, aten level, a hook that does nothing": (AOT_EAGER, nothing(level="aten"), 1, None),
    "nodes, OpTimeMeasure": (AOT_EAGER, on(op_tools.OpTimeMeasure, compiled="nodes"), 1, None),
    "nodes, OpAutoCompare": (AOT_EAGER, on(op_tools.OpAutoCompare, compiled="nodes"), 0.2, None),
    "check of aot_eager, each call judged": (AOT_EAGER, on(op_tools.OpAutoCompare, level="torch"), 0.2, None),
    "check of inductor, each call judged": ("inductor", on(op_tools.OpAutoCompare), 0.2, None),
    f"check of inductor, one in {SAMPLED} calls judged": (
        "inductor",
        on(op_tools.OpAutoCompare, every_nth=SAMPLED),
        SAMPLED,
        None,
    ),
}


def model_rows(table: Table, title: str, model: nn.Module, x: torch.Tensor, count: int, rounds: int) -> None:
    """The rows of a model, forward and backward, then in inference."""
    parameters = list(model.parameters())

    def training(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
        torch.autograd.grad(step(x).square().mean(), parameters)

    def inference(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with torch.no_grad():
            step(x)

    for kind, work in (("forward and backward", training), ("inference", inference)):
        torch._dynamo.reset()
        steps = {name: torch.compile(model, backend=by) if by else model for name, by in COMPILERS.items()}
        turns = Turns(
            {name: partial(spent, steps[by], make, work, SAMPLED if share == SAMPLED else max(1, round(count * share)))
             for name, (by, make, share, _) in VARIANTS.items()},
            rounds,
        )  # fmt: skip
        for name, (by, _, _, most) in VARIANTS.items():
            against = AOT_EAGER if by != "inductor" or name == by else by
            against = "eager" if by == "eager" and name != by else against
            ratio = turns.ratio(name, against, "wall")
            table.row(
                f"{title}, {kind}: {name}",
                against,
                f"<= {most}x" if most else "",
                f"{ratio:.2f}x",
                verdict(ratio, most=most) if most else "",
                f"{ms(turns.median(name, 'wall'))} a call",
            )


def spent(step: Any, make: Make, work: Callable[[Any], None], count: int) -> Spent:
    """Of calls in the middle of a run."""
    with make():
        work(step)  # compiles, in the first round
        return spend(lambda: [work(step) for _ in range(count)]).per(count)


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = report_of("compiled")
    torch._dynamo.config.recompile_limit = 8 * len(VARIANTS)  # all are compiled from one function
    table = report.table("Compiled programs", *PROMISE)
    torch.manual_seed(0)
    small = nn.Sequential(Block(64, 4), Block(64, 4))
    rounds = 3 if options.quick else 15
    model_rows(table, "two blocks, hidden 64", small, torch.randn(8, 32, 64), 10, rounds)
    wide = nn.Sequential(Block(512, 8), Block(512, 8))
    model_rows(table, "two blocks, hidden 512", wide, torch.randn(8, 64, 512), 2, rounds // 3 + 2)
    report.write()


if __name__ == "__main__":
    main()
