"""The same training steps under our tools and under those that people have now, as multiples of a step without: CPU time of the thread.

    ./dev bench peers [--quick]

Left on, with its own start before the measurement. Modes that only call on are the floor of every tool of Python at that level; a hook that
does nothing is that of ours, most of it torch's own (its function mode, its boxing). A tool that reads the tensors has a floor above it: what
torch's own operators take for the numbers that the tool asks for, of each tensor, above the same of an element of each, in a mode of Python.
Where the floor is above a limit, it stands beside the verdict.
Tools that change torch for the rest of the process (msprobe) or watch a whole process (memray) run in processes of their own,
in turn with a process without; they are measured where they are installed (mindstudio-probe, memray). ditorch's package is called op_tools,
too: OP_TOOLS_DITORCH names the folder that has it; it needs prettytable.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from _measure import PROMISE, Report, Spent, Table, Turns, arguments, keep_freed_memory, ms, scratch, spend, verdict
from _models import lenet, transformer
from torch.overrides import TorchFunctionMode
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MODELS = {
    "LeNet": lenet,
    "transformer, hidden 128": partial(transformer, hidden=128, length=48),
    "transformer, hidden 64": transformer,
}
LEVELS = "torch", "aten"
STEPS, WARM_UP = 5, 3
PLAIN = "without"
DITORCH = "OP_TOOLS_DITORCH"
SECONDS = "seconds of a step:"
WHOLE_STEPS = 59
START_AND_RESULT = 1.0  # seconds of a tool, at the most
Make = Callable[[str], contextlib.AbstractContextManager[object]]
"""Takes a folder to write to."""
Read: TypeAlias = Callable[[torch.Tensor], None]


class CallsOn(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class FunctionsCalledOn(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def sum_of(numbers: torch.Tensor) -> None:
    """Reads each element once: infinite and NaN where an element is."""
    torch.sum(numbers)


def statistics_of(numbers: torch.Tensor) -> None:
    """Minimum, maximum, mean, norm and zeros. (Not: the hash and the projections that our tools write as well.)"""
    torch.aminmax(numbers)
    torch.sum(numbers)
    torch.linalg.vector_norm(numbers)
    torch.count_nonzero(numbers)


def read_each(values: Any, read: Read, whole: bool) -> None:
    """All elements, or the first alone, of tensors whose elements lie in rows."""
    for tensor in tree_leaves(values):
        if (
            isinstance(tensor, torch.Tensor)
            and tensor.is_floating_point()
            and tensor.is_contiguous()
            and tensor.numel()
        ):
            read(tensor.detach().view(-1)[: tensor.numel() if whole else 1])


class Reads(TorchDispatchMode):
    """Of the results of each call, but views; `inputs`: of those, too."""

    def __init__(self, read: Read, inputs: bool, whole: bool) -> None:
        super().__init__()
        self.read, self.inputs, self.whole = read, inputs, whole

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.inputs:
            read_each((args, kwargs), self.read, self.whole)
        result = func(*args, **(kwargs or {}))
        if self.inputs or not func.is_view:
            read_each(result, self.read, self.whole)
        return result


class FunctionReads(TorchFunctionMode):
    """Those of the torch level; not of calls in a backward pass."""

    def __init__(self, read: Read, inputs: bool, whole: bool) -> None:
        super().__init__()
        self.read, self.inputs, self.whole = read, inputs, whole

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.inputs:
            read_each((args, kwargs), self.read, self.whole)
        result = func(*args, **(kwargs or {}))
        read_each(result, self.read, self.whole)
        return result


class Saves(TorchDispatchMode):
    """What people write first: the tensors of each call by torch.save."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder, self.calls = folder, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        torch.save((str(func), tensors), f"{self.folder}/{self.calls}.pt")
        return result


@contextlib.contextmanager
def debugged_with_hashes() -> Iterator[None]:
    with DebugMode(), DebugMode.log_tensor_hashes():
        yield


@contextlib.contextmanager
def probed(folder: str) -> Iterator[None]:
    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(task="statistics", level="L1", dump_path=folder)
    debugger.start()
    yield
    debugger.stop()


@contextlib.contextmanager
def tracked(folder: str) -> Iterator[None]:
    import memray

    with memray.Tracker(f"{folder}/memray.bin"):
        yield


@contextlib.contextmanager
def hooked_by_ditorch(tool: str) -> Iterator[None]:
    """Its hooks leave out calls on the CPU, and wait for a CUDA stream: both are answered as a device would. Its tables are not printed."""
    sys.path.insert(0, os.environ[DITORCH])
    import op_tools.base_hook

    import op_tools

    device = torch.device("cpu")
    op_tools.base_hook.is_cpu_op = lambda *_, **__: (False, device)
    if not torch.cuda.is_available():
        torch.cuda.current_stream = lambda *_: SimpleNamespace(synchronize=lambda: None)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere), getattr(op_tools, tool)():
        yield


PEERS: dict[str, Make] = {
    "a torch-function mode that only calls on": lambda _: FunctionsCalledOn(),
    "a dispatch mode that only calls on": lambda _: CallsOn(),
    "a dispatch mode with torch.save": Saves,
    "torch.profiler": lambda _: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "torch.profiler, with stacks": lambda _: torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True
    ),
    "DebugMode": lambda _: DebugMode(),
    "DebugMode, with hashes": lambda _: debugged_with_hashes(),
    "detect_anomaly": lambda _: torch.autograd.detect_anomaly(check_nan=True),
}
# In processes of their own; the package that each needs.
ALONE: dict[str, tuple[str, Make]] = {
    "msprobe, statistics, L1": ("msprobe", probed),
    "memray": ("memray", tracked),
    "ditorch's OpCapture": (DITORCH, lambda _: hooked_by_ditorch("OpCapture")),
    "ditorch's OpTimeMeasure": (DITORCH, lambda _: hooked_by_ditorch("OpTimeMeasure")),
}


class Floor(NamedTuple):
    """Of a tool that reads tensors."""

    read: Read
    inputs: bool  # of each call, and not its results alone

    def variant(self, level: str, whole: bool) -> tuple[str, Make]:
        mode = Reads if level == "aten" else FunctionReads
        tensors = "each input and result" if self.inputs else "each result"
        numbers = "the sum" if self.read is sum_of else "the statistics"
        name = f"a mode with {numbers} of {tensors if whole else f'an element of {tensors}'}, {level}"
        return name, lambda _: mode(self.read, self.inputs, whole)


FLOORS = {
    "OpRecord": Floor(statistics_of, inputs=False),
    "OpOverflowCheck": Floor(sum_of, inputs=False),
    "OpObserve": Floor(statistics_of, inputs=True),
}
# Of ours: the most that a step may take, as a multiple of a step without, at the torch and at the aten level.
OURS: dict[str, tuple[dict[str, object], tuple[float, float] | None]] = {
    "OpRecord": ({}, (1.2, 1.2)),
    "OpMemoryCheck": ({}, (1.1, 1.1)),
    "OpTimeMeasure": ({"lines": False}, (1.1, 1.1)),
    "OpOverflowCheck": ({}, (1.1, 1.1)),
    "OpBlackBox": ({}, (1.05, 1.05)),
    "OpObserve": ({}, (1.3, 1.6)),
    "OpCapture": ({"format": "container"}, None),
    "OpAutoCompare": ({}, None),
}


def run_under(make: Make, step: Callable[[], torch.Tensor]) -> Spent:
    """Of a step, in a scope whose first steps are over."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder, make(folder) as tool:

        def once() -> None:
            step()
            if callable(end_step := getattr(tool, "step", None)):
                end_step()

        for _ in range(WARM_UP):
            once()
        return spend(lambda: [once() for _ in range(STEPS)]).per(STEPS)


def of_ours(name: str, level: str, options: dict[str, object]) -> Make:
    import op_tools  # not at the top: ditorch's is called so, too

    return lambda folder: getattr(op_tools, name)(level=level, output_dir=folder, **options)


def floor_at(level: str) -> tuple[str, Make]:
    import op_tools

    return f"a hook that does nothing, {level}", lambda _: op_tools.HookScope(op_tools.Hook(), level=level)


def model_rows(table: Table, model: str, rounds: int) -> None:
    """Those that share a process."""
    limits: dict[str, tuple[float, str, str]] = {}  # and the tool and the level
    floors = {level: floor_at(level) for level in LEVELS}
    variants: dict[str, Make] = {PLAIN: lambda _: contextlib.nullcontext(), **PEERS, **dict(floors.values())}
    variants |= dict(
        floor.variant(*key) for floor in FLOORS.values() for key in itertools.product(LEVELS, (False, True))
    )
    for name, (options, most) in OURS.items():
        for number, level in enumerate(LEVELS):
            variants[f"{name}, {level}"] = of_ours(name, level, options)
            if most:
                limits[f"{name}, {level}"] = most[number], name, level
    step = MODELS[model]()
    turns = Turns({name: partial(run_under, make, step) for name, make in variants.items()}, rounds)
    for name in list(variants)[1:]:
        ratio = turns.ratio(name, PLAIN)
        aim = mark = ""
        if name in limits:
            limit, tool, level = limits[name]
            floor = turns.ratio(floors[level][0], PLAIN)
            if tool in FLOORS:
                part, whole = (FLOORS[tool].variant(level, whole)[0] for whole in (False, True))
                floor += turns.ratio(whole, PLAIN) - turns.ratio(part, PLAIN)
            aim = f"<= {limit}x"
            mark = verdict(ratio, most=limit) + (f" (the floor: {floor:.2f}x)" if floor > limit else "")
        table.row(f"{model}: {name}", PLAIN, aim, f"{ratio:.2f}x", mark, ms(turns.median(name)))


def seconds_alone(name: str, model: str) -> float:
    """Of a step in a process of its own."""
    command = [sys.executable, __file__, "--alone", name, "--model", model]
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:  # ditorch writes into the working folder
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    (seconds,) = re.findall(rf"^{SECONDS} (.+)$", done.stdout, re.MULTILINE)
    return float(seconds)


def rows_alone(table: Table, model: str, rounds: int) -> None:
    for name, (needs, _) in ALONE.items():
        has_it = needs in os.environ if needs == DITORCH else importlib.util.find_spec(needs) is not None
        if not has_it:
            table.row(f"{model}: {name}", PLAIN, "", "not measured", "", f"needs {needs}")
            continue
        pairs = [(seconds_alone(name, model), seconds_alone(PLAIN, model)) for _ in range(rounds)]
        ratio = statistics.median(one / other for one, other in pairs)
        seconds = statistics.median(one for one, _ in pairs)
        table.row(f"{model}: {name}", PLAIN, "", f"{ratio:.2f}x", "", ms(seconds))


def run_whole(name: str, steps: int) -> None:
    """As a program does that is a process: a tool's start, steps, its result and the text of it."""
    step = MODELS["LeNet"]()
    if name == PLAIN:
        for _ in range(steps):
            step()
        return
    import op_tools

    with getattr(op_tools, name)(output_dir=".") as tool:
        for _ in range(steps):
            step()
    if callable(result := getattr(tool, "result", None)):
        print(result())


def cpu_of_process(name: str, steps: int) -> float:
    """Seconds of a process from its start to its end, on all its threads."""
    command = [sys.executable, __file__, "--whole", name, "--steps", str(steps)]
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, cwd=folder)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def whole_rows(table: Table, rounds: int) -> None:
    names = [PLAIN, *OURS]
    spent: dict[tuple[str, int], list[float]] = {(name, steps): [] for name in names for steps in (1, WHOLE_STEPS)}
    for turn in range(rounds):
        for (name, steps), seconds in sorted(spent.items(), reverse=turn % 2 == 1):
            seconds.append(cpu_of_process(name, steps))
    without = spent[PLAIN, WHOLE_STEPS]
    for name in names[1:]:
        pairs = list(zip(spent[name, WHOLE_STEPS], without, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        seconds = statistics.median(spent[name, WHOLE_STEPS])
        table.row(
            f"LeNet, {WHOLE_STEPS} steps: {name}", "a process without", "", f"{ratio:.2f}x", "", f"{seconds:.2f} s"
        )
    for name in names[1:]:
        more = statistics.median(one - two for one, two in zip(spent[name, 1], spent[PLAIN, 1], strict=True))
        seconds = statistics.median(spent[name, 1])
        mark = verdict(more, most=START_AND_RESULT)
        table.row(
            f"start, a step and result: {name}",
            "a process without",
            f"<= +{START_AND_RESULT} s",
            f"{more:+.2f} s",
            mark,
            f"{seconds:.2f} s",
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--alone", choices=[*ALONE, PLAIN], help="measure this in this process, and print the seconds")
    parser.add_argument("--model", choices=MODELS, default="LeNet")
    parser.add_argument(
        "--whole", choices=[*OURS, PLAIN], help="be a process of these steps, which is measured from outside"
    )
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.whole:
        run_whole(options.whole, options.steps)
        return
    keep_freed_memory()
    if options.alone:
        make = ALONE[options.alone][1] if options.alone != PLAIN else lambda _: contextlib.nullcontext()
        print(SECONDS, run_under(make, MODELS[options.model]()).cpu, flush=True)
        return
    report = Report(Path(__file__).stem)
    table = report.table("Training steps under tools of others and of ours", *PROMISE)
    for model in MODELS:
        model_rows(table, model, 3 if options.quick else 9)
        rows_alone(table, model, 2 if options.quick else 5)
    whole = report.table("Whole processes: CPU time of all threads, from the start of Python to its end", *PROMISE)
    whole_rows(whole, 1 if options.quick else 5)
    report.write()


if __name__ == "__main__":
    main()
