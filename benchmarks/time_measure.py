"""OpTimeMeasure against torch's own tools: the time that it adds to a call, and whether its medians are right.

    ./dev bench time_measure [--quick] [--only overhead medians]

1. Overhead per call, by level and mode, beside torch.profiler with and without shapes.
2. Medians of 30 operators of more than 20 us against torch.utils.benchmark, and its own once more beside.
"""

from __future__ import annotations

import contextlib
import csv
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from _measure import PROMISE, Report, Spent, Turns, arguments, keep_freed_memory, spend, us, verdict
from torch.utils.benchmark import Timer

import op_tools

CALLS = 2000


MODES = {
    f"{level} level, {mode}": {"level": level, "mode": mode}
    for level in ("aten", "torch")
    for mode in ("sync", "event", "host")
}
PROFILER, SHAPES = "torch.profiler", "torch.profiler, record_shapes"


def measure(**options: object) -> op_tools.OpTimeMeasure:
    return op_tools.OpTimeMeasure(files=False, lines=False, **options)


def profile(**options: object) -> torch.profiler.profile:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options)


def added_to_calls(work: Callable[[], None]) -> dict[str, Callable[[], Spent]]:
    """The calls themselves, while a tool is on."""

    def under(make: Callable[..., contextlib.AbstractContextManager[object]], **options: object) -> Callable[[], Spent]:
        def run() -> Spent:
            with make(**options):
                work()
                return spend(work).per(CALLS)

        return run

    return {
        "without": under(contextlib.nullcontext),
        "function mode": under(torch.overrides.BaseTorchFunctionMode),
        **{name: under(measure, **options) for name, options in MODES.items()},
        "torch level, sync, memory=True": under(measure, memory=True),
        "torch level, sync, with_stack=True": under(measure, with_stack=True),
        PROFILER: under(profile),
        SHAPES: under(profile, record_shapes=True),
    }


def to_the_table(work: Callable[[], None]) -> dict[str, Callable[[], Spent]]:
    """From switching a tool on to the sums by operator and shape: a user's waiting time."""

    def ours(**options: object) -> Callable[[], Spent]:
        def look() -> None:
            with measure(**options) as tool:
                work()
            if not tool.result().by_shape:
                raise RuntimeError("nothing was measured")

        return lambda: spend(look).per(CALLS)

    def profilers() -> None:
        with profile(record_shapes=True) as profiler:
            work()
        if not profiler.key_averages(group_by_input_shape=True):
            raise RuntimeError("nothing was measured")

    return {
        "without": lambda: spend(work).per(CALLS),
        **{name: ours(**options) for name, options in MODES.items()},
        SHAPES: lambda: spend(profilers).per(CALLS),
    }


def overhead(report: Report, rounds: int) -> None:
    x, y = torch.ones(8), torch.ones(8)
    leaf = torch.ones(8, requires_grad=True)

    def forward() -> None:
        for _ in range(CALLS):
            torch.add(x, y)

    def training() -> None:
        z = leaf
        for _ in range(CALLS):
            z = torch.add(z, y)
        z.backward(y)

    table = report.table(
        "OpTimeMeasure, added to a call",
        *PROMISE,
        note="The torch level costs what torch charges for any function mode, too; that part is in its figures.",
    )
    cases = (("torch.add", forward), ("torch.add and its backward", training))
    for title, work in cases:
        turns = Turns(added_to_calls(work), rounds)
        profiler = turns.more(SHAPES, "without")
        absolute = (
            f"the call: {us(turns.median('without'))}; profiler with shapes +{us(profiler)}, without "
            f"+{us(turns.more(PROFILER, 'without'))}; a mode that does nothing "
            f"+{us(turns.more('function mode', 'without'))}"
        )
        for name in turns.spent:
            if " level, " not in name:
                continue
            more = turns.more(name, "without")
            options = "=True" in name  # the options ask for more than a time
            table.row(
                f"OpTimeMeasure, {name}: {title}",
                "torch.profiler with record_shapes",
                "" if options else "<= 2 us; cheaper than the profiler",
                f"+{us(more)}",
                "" if options else verdict(more, most=min(2e-6, profiler)),
                absolute,
            )

    table = report.table(
        "OpTimeMeasure, from switching it on to the sums by operator and shape, for each call", *PROMISE
    )
    for title, work in cases:
        turns = Turns(to_the_table(work), max(rounds // 5, 3))
        profiler = turns.more(SHAPES, "without")
        for name in MODES:
            more = turns.more(name, "without")
            table.row(
                f"OpTimeMeasure, {name}: {title}",
                "torch.profiler with record_shapes, to key_averages() by shape",
                "cheaper than the profiler",
                f"+{us(more)}",
                verdict(more, most=profiler),
                f"the call: {us(turns.median('without'))}; profiler +{us(profiler)}",
            )


def operators() -> dict[str, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    big, flat = torch.randn(64, 4096), torch.randn(200_000)
    image, kernel = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    heads = torch.randn(2, 4, 64, 32)
    index = torch.randint(0, 64, (512,))
    positive, mask = big.abs(), big > 0
    long = torch.randn(4, 128, 64)
    wide = torch.randn(256, 4096)
    # Into memory that is there: where a new megabyte comes to lie changes a simple operator by a third.
    own, chosen = torch.empty_like(big), torch.empty(512, 4096)
    return {
        "matmul": lambda: torch.matmul(a, b),
        "addmm": lambda: torch.addmm(a, a, b),
        "bmm": lambda: torch.bmm(long, long.transpose(1, 2)),
        "conv2d": lambda: F.conv2d(image, kernel, padding=1),
        "linear": lambda: F.linear(big, big),
        "softmax": lambda: torch.softmax(big, 1, out=own),
        "log_softmax": lambda: F.log_softmax(big, 1),
        "layer_norm": lambda: F.layer_norm(big, (4096,)),
        "gelu": lambda: F.gelu(big),
        "relu": lambda: torch.relu_(own),
        "tanh": lambda: torch.tanh(big, out=own),
        "exp": lambda: torch.exp(big, out=own),
        "sin": lambda: torch.sin(big, out=own),
        "log1p": lambda: torch.log1p(positive, out=own),
        "add": lambda: torch.add(big, big, out=own),
        "mul": lambda: torch.mul(big, big, out=own),
        "div": lambda: torch.div(big, big, out=own),
        "sum": lambda: torch.sum(wide, 0),
        "mean": lambda: torch.mean(wide, 1),
        "var": lambda: torch.var(big, 1),
        "max": lambda: torch.amax(wide, 1),
        "sort": lambda: torch.sort(flat[:20_000])[0],
        "topk": lambda: torch.topk(big, 8)[0],
        "cumsum": lambda: torch.cumsum(big, 1, out=own),
        "cat": lambda: torch.cat([big, big]),
        "index_select": lambda: torch.index_select(big, 0, index, out=chosen),
        "where": lambda: torch.where(mask, big, big),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "batch_norm": lambda: F.batch_norm(image, None, None, training=True),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
    }


def single_calls(work: Callable[[], torch.Tensor], only: str) -> list[float]:
    """Microseconds of each of 70 calls of the operator that takes longest, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        with op_tools.OpTimeMeasure(lines=False, ops=only, output_dir=folder) as tool:
            for _ in range(70):
                work()
        result = tool.result()
        longest = max(result.rows, key=lambda row: row.total_ms).op
        with (Path(result.root) / "calls.csv").open(newline="") as file:
            return [float(call["ms"]) * 1000 for call in csv.DictReader(file) if call["op"] == longest]


def tens(calls: list[float]) -> list[float]:
    """Means of ten calls each, as timeit(10) gives."""
    return [statistics.mean(calls[start : start + 10]) for start in range(0, len(calls) - 9, 10)]


def medians(report: Report, rounds: int) -> None:
    table = report.table(
        "Medians of 30 operators of more than 20 us",
        "operator",
        "torch.utils.benchmark, us",
        "OpTimeMeasure, us",
        "difference",
        "torch.utils.benchmark once more",
    )
    names = (
        "matmul,addmm,bmm,conv2d,linear,softmax,log_softmax,layer_norm,gelu,relu_,tanh,exp,sin,log1p,add,mul,div,sum"
    )
    names += ",mean,var,amax,sort,topk,cumsum,cat,index_select,where,max_pool2d,batch_norm,scaled_dot_product_attention"
    only = ",".join(f".*[.]{name}" for name in names.split(","))
    keep_freed_memory()
    off, wander = [], []
    for name, work in operators().items():
        timer = Timer("work()", globals={"work": work})
        timer.timeit(50)

        def theirs(timer: Timer = timer) -> float:
            timer.timeit(20)
            return statistics.median(timer.timeit(10).median * 1e6 for _ in range(5))

        def ours(work: Callable[[], torch.Tensor] = work) -> float:
            return statistics.median(tens(single_calls(work, only)[20:]))

        # Neighbours in time are compared: a machine that gets slower or faster does so for all three.
        spans = []
        for _ in range(rounds):
            first, own, again = theirs(), ours(), theirs()
            spans.append((first, own, again))
        their = statistics.median(one for first, _, again in spans for one in (first, again))
        our = statistics.median(one for _, one, _ in spans)
        differs = statistics.median(2 * one / (first + again) - 1 for first, one, again in spans)
        itself = statistics.median(again / first - 1 for first, _, again in spans)
        off.append(abs(differs))
        wander.append(abs(itself))
        table.row(name, f"{their:.1f}", f"{our:.1f}", f"{100 * differs:+.1f} %", f"{100 * itself:+.1f} %")
    table.note = (
        f"Within 3 %: {sum(one <= 0.03 for one in off)} of {len(off)}; median difference "
        f"{100 * statistics.median(off):.1f} %. torch.utils.benchmark against itself: "
        f"{sum(one <= 0.03 for one in wander)} of {len(wander)}; {100 * statistics.median(wander):.1f} %. Of each round, "
        "in which the three take turns; the median of the rounds."
    )


# The medians first: the profiler's remains in a process change where results come to lie.
PARTS = {"medians": (medians, 15), "overhead": (overhead, 25)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = Report("time_measure")
    for name in options.only:
        part, rounds = PARTS[name]
        part(report, rounds // (5 if options.quick else 1))
    if set(options.only) == set(PARTS):
        report.write()


if __name__ == "__main__":
    main()
