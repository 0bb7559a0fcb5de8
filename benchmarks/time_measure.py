"""OpTimeMeasure against what torch has: what it adds to a call, and whether its medians are right.

    ./dev bench time_measure              all
    ./dev bench time_measure --quick      fewer rounds

1. Overhead per call, by level and mode, beside torch.profiler with and without shapes. All variants take turns in one
   process, round by round; the numbers are medians of rounds, less the median without any tool.
2. Medians of 30 operators of more than 20 us against torch.utils.benchmark, taking turns again.
3. Memory of a million calls.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ["OP_TOOLS_LOG_LEVEL"] = "error"

import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

import op_tools

CALLS = 2000


def once(work: Callable[[], None], tool: contextlib.AbstractContextManager) -> float:
    """Microseconds of the thread's own time per call inside the tool; starting and stopping it is left out."""
    with tool:
        work()
        start = time.thread_time()
        work()
        return (time.thread_time() - start) / CALLS * 1e6


def overhead(rounds: int) -> None:
    def measure(**arguments):
        return lambda: op_tools.OpTimeMeasure(files=False, lines=False, **arguments)

    def profile(**arguments):
        return lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **arguments)

    variants = {
        "without": contextlib.nullcontext,
        "a torch-function mode that does nothing": torch.overrides.BaseTorchFunctionMode,
        "OpTimeMeasure aten sync": measure(level="aten"),
        "OpTimeMeasure aten event": measure(level="aten", mode="event"),
        "OpTimeMeasure aten host": measure(level="aten", mode="host"),
        "OpTimeMeasure torch sync": measure(),
        "OpTimeMeasure torch event": measure(mode="event"),
        "OpTimeMeasure torch sync, memory": measure(memory=True),
        "OpTimeMeasure torch sync, stack": measure(with_stack=True),
        "torch.profiler": profile(),
        "torch.profiler with shapes": profile(record_shapes=True),
    }
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

    for title, work in (("torch.add", forward), ("torch.add and its backward", training)):
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, make in variants.items():
                times[name].append(once(work, make()))
        plain = statistics.median(times["without"])
        print(f"\n{title}: {plain:.2f} us per call; added by")
        for name, values in times.items():
            if name != "without":
                print(
                    f"  {name:<44} {statistics.median(values) - plain:7.2f} us   (fastest {min(values) - min(times['without']):.2f})"
                )


def operators() -> dict[str, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    a, b = torch.randn(256, 256), torch.randn(256, 256)
    big, flat = torch.randn(64, 4096), torch.randn(200_000)
    image, kernel = torch.randn(4, 16, 32, 32), torch.randn(16, 16, 3, 3)
    heads = torch.randn(2, 4, 64, 32)
    index = torch.randint(0, 64, (512,))
    return {
        "matmul": lambda: torch.matmul(a, b),
        "addmm": lambda: torch.addmm(a, a, b),
        "bmm": lambda: torch.bmm(heads[0], heads[0].transpose(1, 2)),
        "conv2d": lambda: F.conv2d(image, kernel, padding=1),
        "linear": lambda: F.linear(big, big),
        "softmax": lambda: torch.softmax(big, 1),
        "log_softmax": lambda: F.log_softmax(big, 1),
        "layer_norm": lambda: F.layer_norm(big, (4096,)),
        "gelu": lambda: F.gelu(big),
        "relu": lambda: torch.relu(big),
        "tanh": lambda: torch.tanh(big),
        "exp": lambda: torch.exp(big),
        "sin": lambda: torch.sin(big),
        "log1p": lambda: torch.log1p(big.abs_()),
        "add": lambda: torch.add(big, big),
        "mul": lambda: torch.mul(big, big),
        "div": lambda: torch.div(big, big),
        "sum": lambda: torch.sum(big, 0),
        "mean": lambda: torch.mean(big, 1),
        "var": lambda: torch.var(big, 1),
        "max": lambda: torch.amax(big, 1),
        "sort": lambda: torch.sort(flat[:20_000])[0],
        "topk": lambda: torch.topk(big, 8)[0],
        "cumsum": lambda: torch.cumsum(big, 1),
        "cat": lambda: torch.cat([big, big]),
        "index_select": lambda: torch.index_select(big, 0, index),
        "where": lambda: torch.where(big > 0, big, big),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "batch_norm": lambda: F.batch_norm(image, None, None, training=True),
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
    }


def medians(rounds: int) -> None:
    print("\nmedians of 30 operators, torch level, against torch.utils.benchmark (microseconds)")
    names = "matmul,addmm,bmm,conv2d,linear,softmax,log_softmax,layer_norm,gelu,relu,tanh,exp,sin,log1p,add,mul,div,sum"
    names += ",mean,var,amax,sort,topk,cumsum,cat,index_select,where,max_pool2d,batch_norm,scaled_dot_product_attention"
    only = ",".join(f".*[.]{name}" for name in names.split(","))
    off = []
    for name, work in operators().items():
        timer = Timer("work()", globals={"work": work})
        work()
        theirs, ours = [], []
        for _ in range(rounds):
            for _ in range(5):
                theirs.append(timer.timeit(10).median * 1e6)
            with op_tools.OpTimeMeasure(files=False, lines=False, ops=only) as tool:
                for _ in range(50):
                    work()
            rows = [row for row in tool.result().rows if row.phase == "forward"]
            ours.append(max(rows, key=lambda row: row.total_ms).p50_ms * 1000)
        their, our = statistics.median(theirs), statistics.median(ours)
        off.append(abs(our / their - 1))
        print(f"  {name:<16} {their:10.1f} {our:10.1f}   {100 * (our / their - 1):+6.1f} %")
    print(
        f"  within 3 %: {sum(one <= 0.03 for one in off)} of {len(off)}; median difference {100 * statistics.median(off):.1f} %"
    )


def memory() -> None:
    x = torch.ones(4)
    with tempfile.TemporaryDirectory() as folder:
        with op_tools.OpTimeMeasure(level="aten", ops="add.Tensor", lines=False, output_dir=folder) as tool:
            torch.add(x, x)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.thread_time()
            for _ in range(1_000_000):
                torch.add(x, x)
            seconds = time.thread_time() - start
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        after = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(
            f"\na million calls: {grown:.0f} MB more while they ran, {after:.0f} MB after the files were written; "
            f"{seconds:.1f} s, {tool.result().overflowed} calls beyond max_calls in calls.csv"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=("overhead", "medians", "memory"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only in (None, "overhead"):
        overhead(5 if options.quick else 25)
    if options.only in (None, "medians"):
        medians(3 if options.quick else 9)
    if options.only in (None, "memory"):
        memory()
