"""op-tools compare with wrong kernels in models that no other proof uses: is the wrong call named?

    ./dev prove compare_faults --trials 8 --seed 1 --models held_out

Run A of a training step is on the CPU. Run B is on the simulated device, which rounds otherwise, and a single call of a kernel gives
a wrong result: scaled, with another sign, with a part that is zero, with rows exchanged, or with a wrong element. Counted are
trials in which the loss, a gradient or a parameter is off by more than a thousandth. `named`: the first call that compare names is
the call that ran the kernel, at the torch level the function whose forward or backward pass ran it; `elsewhere`: it is another
call; `missed`: the runs are said to agree. Where the engine itself added gradients up the torch level has no call: `sum` is named
where a call is that reads the sum. Trials that are not counted are listed by their reason. Without faults nothing may be named.
"""

# ruff: noqa: E402  (the paths come before the imports)
from __future__ import annotations

import collections
import itertools
import math
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ["OP_TOOLS_LOG_LEVEL"] = "off"

import _planted_faults
import _program
import torch
from _all_clears import NEVER_SPOILED
from _held_out_models import HELD_OUT
from _random_programs import MATTERS, Outcome, rounding
from _unused_models import MENDED, Model

import op_tools
import op_tools.sim_device as sim

SCALES = (0.5, 1.02, 1.1, 1.5, 2.0, -1.0)
NOT_FOUND = "differs, cause not found"
FORWARD, BACKWARD, SUM = "forward", "backward", "sum"
LEVELS = ("torch", "aten")
WANTED = {FORWARD: 0.98, BACKWARD: 0.9, SUM: 0.9}
MOST_MISSED = 0.01


# Calls of the engine where a value was used twice. No formula of these models adds with these.
ENGINE_SUMS = ("aten::add.Tensor", "aten::add_.Tensor")


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def is_number(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


@dataclass(frozen=True)
class Kernel:
    """A call in which a fault can be planted: the how-manyth of its operator."""

    operator: str
    call: int
    elements: int
    phase: str


class Kernels(op_tools.Hook):
    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.calls: list[Kernel] = []

    def after(self, call: op_tools.Call, state: object) -> None:
        result = call.result[0] if isinstance(call.result, (list, tuple)) and call.result else call.result
        is_made = isinstance(result, torch.Tensor) and result.device.type == "sim" and is_number(result)
        if is_made and not NEVER_SPOILED.match(call.name) and _planted_faults.has_kernel("sim", call.name):
            phase = BACKWARD if in_backward() else FORWARD
            self.calls.append(Kernel(call.name, self.counts[call.name], result.numel(), phase))
        self.counts[call.name] += 1


class Spoiled(op_tools.Hook):
    """Plants the fault for a single call of the program, and notes its changes."""

    def __init__(self, kernel: Kernel, fault: sim.Fault) -> None:
        self.kernel = kernel
        self.fault = fault
        self.count = 0
        self.calls: list[tuple[int, str]] = []
        self.node: int | None = None  # the number of autograd's node that called it
        self.sum: tuple[int, float] | None = None  # address and norm of a sum of the engine itself
        self.sum_was_read = False
        self.reader: int | None = None  # the number of the node that reads it

    def before(self, call: op_tools.Call) -> bool:
        if self.sum and not self.sum_was_read and not self.is_engine_sum(call) and self.takes_sum(call):
            self.sum_was_read = True
            self.reader = torch._C._current_autograd_node()._sequence_nr() if in_backward() else None  # type: ignore[attr-defined]
        if call.name != self.kernel.operator:
            return False
        self.count += 1
        if self.count != self.kernel.call + 1:
            return False
        self.fault.start()
        return True

    def after(self, call: op_tools.Call, state: object) -> None:
        is_sum = self.is_engine_sum(call)
        if state:
            self.fault.stop()
            if self.fault.hits == 0:
                return
            self.calls.append((call.id, BACKWARD if in_backward() else FORWARD))
            if in_backward() and not is_sum:
                self.node = torch._C._current_autograd_node()._sequence_nr()  # type: ignore[attr-defined]
        if is_sum and (state or (self.sum and not self.sum_was_read and self.takes_sum(call))):
            self.sum = call.result.data_ptr(), float(call.result.cpu().norm())

    def takes_sum(self, call: op_tools.Call) -> bool:
        tensors = [one for one in call.args if isinstance(one, torch.Tensor)]
        return self.sum is not None and self.sum[0] in [one.data_ptr() for one in tensors]

    @staticmethod
    def is_engine_sum(call: op_tools.Call) -> bool:
        return in_backward() and call.name in ENGINE_SUMS


class Functions(op_tools.Hook):
    """Which function of the torch level ran a kernel; in backward by the nodes that it made."""

    def __init__(self, fault: sim.Fault) -> None:
        self.fault = fault
        self.forward: list[tuple[int, str]] = []
        self.of_node: dict[int, int] = {}  # id of the call by the node's number

    def before(self, call: op_tools.Call) -> tuple[int, int]:
        return self.fault.hits, torch._C._autograd._get_sequence_nr()

    def after(self, call: op_tools.Call, state: object) -> None:
        hits, first_node = state  # type: ignore[misc]
        if self.fault.hits > hits:
            self.forward.append((call.id, FORWARD))
        self.of_node.update(dict.fromkeys(range(first_node, torch._C._autograd._get_sequence_nr()), call.id))

    def culprits(self, spoiled: Spoiled) -> list[tuple[int, str]]:
        if spoiled.sum is not None:
            return []
        return self.forward if spoiled.node is None else [(self.of_node[spoiled.node], BACKWARD)]


def train(kind: type[Model], device: str, tools: list[op_tools.Tool]) -> Outcome:
    """A step of training under tools; the outer tool first."""
    torch.manual_seed(7)
    model = kind().to(device)
    method = model.optimizer(model.parameters())
    with rounding(device):
        for tool in tools:
            tool.__enter__()
        try:
            loss = model(0)
            loss.backward()
            method.step()
        finally:
            for tool in reversed(tools):
                tool.__exit__(None, None, None)
    named = dict(model.named_parameters())
    gradients = {name: one.grad.cpu().double() for name, one in named.items() if one.grad is not None}
    return Outcome([loss.item()], gradients, {name: one.detach().cpu().double() for name, one in named.items()})


def kernels_of_the_device(kind: type[Model], kernels: list[Kernel]) -> list[Kernel]:
    """Without views and composite operators."""
    watched = {name: sim.fault("latency", ops=name, microseconds=0) for name in {one.operator for one in kernels}}
    for fault in watched.values():
        fault.start()
    train(kind, "sim", [])
    for fault in watched.values():
        fault.stop()
    return [one for one in kernels if watched[one.operator].matched]


def recorded(
    kind: type[Model], device: str, level: str, folder: Path, *hooks: op_tools.HookScope
) -> tuple[Outcome, op_tools.Recording]:
    record = op_tools.OpRecord(output_dir=folder, level=level)
    outcome = train(kind, device, [record, *hooks])
    return outcome, op_tools.read_recording(record.result().path)


@dataclass
class Score:
    """Of a level, for the wrong operators."""

    named: int = 0
    elsewhere: int = 0
    missed: int = 0
    in_groups: int = 0  # of those that are named

    @property
    def trials(self) -> int:
        return self.named + self.elsewhere + self.missed

    def holds(self, part: str) -> bool:
        return self.named >= WANTED[part] * self.trials and self.missed <= MOST_MISSED * self.trials


@dataclass
class Scores:
    parts: dict[tuple[str, str], Score] = field(default_factory=lambda: collections.defaultdict(Score))
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    clean: int = 0
    alarms: int = 0


def draw_fault(draw: random.Random, kernel: Kernel) -> tuple[str, sim.Fault]:
    kind = draw.choice(("scale", "scale", "scale", "zeros", "swap_rows", "element"))
    if kind == "scale" or kernel.elements == 1:
        scale = draw.choice(SCALES)
        return f"x {scale}", sim.fault("scale", scale=scale, ops=kernel.operator)
    if kind == "zeros":
        size = kernel.elements // 2
        return f"zero behind {size} elements", sim.fault("above_size", size=size, scale=0.0, ops=kernel.operator)
    if kind == "element":
        return "an element x -2", sim.fault("element", scale=-2.0, seed=draw.randrange(1000), ops=kernel.operator)
    return "rows exchanged", sim.fault("swap_rows", seed=draw.randrange(1000), ops=kernel.operator)


def has_norm(row: op_tools.RunRow, engine_sum: tuple[int, float] | None) -> bool:
    """The named call is the call that was given that sum."""
    norm = row.tensor_b["norm"] if row.tensor_b else 0.0
    return engine_sum is not None and math.isclose(norm, engine_sum[1], rel_tol=1e-5)


def is_behind_backward(rows: Sequence[op_tools.RunRow], row: op_tools.RunRow) -> bool:
    """The step of the optimizer, which reads the gradients of parameters."""
    return row.phase == FORWARD and any(one.phase == BACKWARD for one in itertools.islice(rows, row.row))


def row_text(row: op_tools.RunRow) -> str:
    return (
        f"{row.op} {row.phase} ({row.verdict}{': ' + row.finding if row.finding else ''})"
        f" {row.input_difference:.2g} -> {row.output_difference:.2g}, limit {row.limit:.2g}"
    )


def try_model(name: str, kind: type[Model], level: str, trials: int, seed: int, scores: Scores) -> Iterator[str]:
    """Adds to the scores; gives a line for each trial in which the wrong call is not named."""
    draw = random.Random(f"{name} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        outcome_a, a = recorded(kind, "cpu", level, Path(folder) / "a")
        _, clean = recorded(kind, "sim", level, Path(folder) / "clean")
        first = op_tools.compare_runs(a, clean).ranks[0].first
        scores.clean += 1
        if first:
            scores.alarms += 1
            yield f"{name} {level} without a fault: {row_text(first)}"
        kernels = Kernels()
        train(kind, "sim", [op_tools.HookScope(kernels, level="aten")])
        calls = kernels_of_the_device(kind, kernels.calls)
        for number in range(2 * trials):
            phase = (FORWARD, BACKWARD)[number % 2]
            kernel = draw.choice([one for one in calls if one.phase == phase])
            text, fault = draw_fault(draw, kernel)
            text = f"{name} {level} {kernel.operator} {kernel.call} {phase} {text}"
            spoiled, functions = Spoiled(kernel, fault), Functions(fault)
            hooks = [op_tools.HookScope(spoiled, level="aten")]
            if level == "torch":
                hooks.insert(0, op_tools.HookScope(functions, level="torch"))
            outcome_b, b = recorded(kind, "sim", level, Path(folder) / str(number), *hooks)
            if not spoiled.calls:
                scores.skipped["the fault changed nothing"] += 1
                continue
            if outcome_a.difference(outcome_b) <= MATTERS:
                scores.skipped["no loss, gradient or parameter moved by a thousandth"] += 1
                continue
            culprits = spoiled.calls if level == "aten" else functions.culprits(spoiled)
            part = culprits[0][1] if culprits else SUM
            compared = op_tools.compare_runs(a, b)
            comparison = compared.ranks[0]
            of_b = [(call.id, call.phase) for call in b.calls]
            ids = [
                [of_b[one] for one in comparison._found.calls_of(number)[1]] for number in range(len(comparison._found))
            ]  # by row; of a group all
            first = comparison.first
            if compared.exit_status == 0:
                outcome = "missed"
            elif first is None or first.verdict == NOT_FOUND:
                outcome = "elsewhere"
            elif part == SUM:
                is_leaf = spoiled.reader not in functions.of_node  # a parameter's gradient, read by the optimizer
                by_optimizer = is_leaf and is_behind_backward(comparison.rows, first)
                is_reader = (functions.of_node.get(spoiled.reader), first.phase) in ids[first.row]
                outcome = "named" if by_optimizer or is_reader or has_norm(first, spoiled.sum) else "elsewhere"
            else:
                outcome = "named" if culprits[0] in ids[first.row] else "elsewhere"
            score = scores.parts[level, part]
            setattr(score, outcome, getattr(score, outcome) + 1)
            if outcome == "named":
                score.in_groups += len(ids[first.row]) > 1
                continue
            wrong = next((row for row in comparison.rows if culprits and culprits[0] in ids[row.row]), None)
            yield (
                f"{text}: off by {outcome_a.difference(outcome_b):.2g}, {outcome}: {row_text(first) if first else ''}"
                + (f"; the wrong call: {row_text(wrong)}" if wrong else "")
            )


def main() -> int:
    parser = _program.parser(__doc__)
    parser.add_argument("--models", choices=["mended", "held_out", "all"], default="all")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of these models")
    parser.add_argument("--trials", type=int, default=8, metavar="N", help="faults for each model, level and phase (8)")
    parser.add_argument("--level", nargs="+", default=list(LEVELS), choices=LEVELS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    _program.quiet("off")
    warnings.simplefilter("ignore")
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    models = {"mended": MENDED, "held_out": HELD_OUT, "all": {**MENDED, **HELD_OUT}}[options.models]
    models = {name: kind for name, kind in models.items() if not options.only or name in options.only}
    scores = Scores()
    for (name, kind), level in itertools.product(models.items(), options.level):
        for line in try_model(name, kind, level, options.trials, options.seed, scores):
            print("    " + line, flush=True)
    print(
        f"{len(models)} models; {scores.alarms} of {scores.clean} clean pairs named; not counted: {dict(scores.skipped)}"
    )
    print("| level | wrong | trials | named | in a group | elsewhere | missed |\n|---|---|---|---|---|---|---|")
    for level, part in itertools.product(options.level, WANTED):
        score = scores.parts[level, part]
        print(
            f"| {level} | {part} | {score.trials} | {score.named} | {score.in_groups} | {score.elsewhere} | {score.missed} |",
            flush=True,
        )
    return int(scores.alarms > 0 or not all(score.holds(part) for (_, part), score in scores.parts.items()))


if __name__ == "__main__":
    sys.exit(main())
