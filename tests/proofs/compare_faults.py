"""op-tools compare with wrong kernels in models of a library that no other proof uses: is the wrong call named?

    ./dev prove compare_faults --models 20 --trials 8 --seed 1

Tiny models of transformers are drawn by the seed (library_models.py). Run A is on the CPU. Run B is on the simulated device,
which rounds otherwise, and one call of one operator gives a wrong result. Counted are trials in which the loss or a gradient
is off by more than a thousandth: the wrong call is the first that is named, another one is, or the runs are said to agree.
`forward` and `backward` is what was wrong; a model without faults must agree.
"""

# ruff: noqa: E402  (the paths come before the imports)
from __future__ import annotations

import collections
import itertools
import os
import random
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ["OP_TOOLS_LOG_LEVEL"] = "off"

import _program
import library_models
import torch
from _random_programs import MATTERS, Outcome, rounding
from no_false_all_clear import NEVER_SPOILED, can_be_spoiled

import op_tools
import op_tools.sim_device as sim

SCALES = (0.5, 1.02, 1.1, 1.5, 2.0, -1.0)
PHASES = ("forward", "backward")
MOST_PARAMETERS = 2e6


def phase_of(call: op_tools.Call) -> str:
    """Hooks are told of backward at the torch level; at the other one the engine knows."""
    return "backward" if call.phase == "backward" or torch._C._current_graph_task_id() != -1 else "forward"


class Kernels(op_tools.Hook):
    """Which calls a fault can be planted in: operator, the how-manyth call of it, phase."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.calls: dict[str, list[tuple[str, int]]] = {phase: [] for phase in PHASES}

    def after(self, call: op_tools.Call, state: object) -> None:
        result = call.result[0] if isinstance(call.result, (list, tuple)) and call.result else call.result
        if not isinstance(result, torch.Tensor) or result.device.type != "sim":
            return
        if result.is_floating_point() and not NEVER_SPOILED.match(call.name) and can_be_spoiled(call.name):
            self.calls[phase_of(call)].append((call.name, self.counts[call.name]))
        self.counts[call.name] += 1


class Culprit(op_tools.Hook):
    """The calls in which the fault changed something, and their phase."""

    gradients = True

    def __init__(self, fault: sim.Fault) -> None:
        self.fault = fault
        self.calls: list[tuple[int, str]] = []

    def before(self, call: op_tools.Call) -> int:
        return self.fault.hits

    def after(self, call: op_tools.Call, state: object) -> None:
        if self.fault.hits > int(state):  # type: ignore[call-overload]
            self.calls.append((call.id, phase_of(call)))


def step(name: str, device: str, tools: list[op_tools.Tool]) -> Outcome:
    """One forward and backward pass of a library's model under tools; the outer one first."""
    torch.manual_seed(7)
    case = library_models.build(name, "plain")
    inputs = {key: value.to(device) for key, value in case.inputs().items()}
    model = case.model.to(device).eval()  # nothing is dropped
    with rounding(device):
        for tool in tools:
            tool.__enter__()
        try:
            loss = model(**inputs)["loss"]
            loss.backward()
        finally:
            for tool in reversed(tools):
                tool.__exit__(None, None, None)
    gradients = {key: p.grad.cpu().double() for key, p in model.named_parameters() if p.grad is not None}
    return Outcome([loss.item()], gradients)


@dataclass
class Score:
    named: int = 0
    elsewhere: int = 0
    missed: int = 0
    texts: list[str] = field(default_factory=list)

    @property
    def trials(self) -> int:
        return self.named + self.elsewhere + self.missed


def recorded(
    name: str, device: str, level: str, folder: Path, hook: op_tools.Hook | None = None
) -> tuple[Outcome, op_tools.Recording]:
    record = op_tools.OpRecord(output_dir=folder, level=level)
    outcome = step(name, device, [record, *([op_tools.HookScope(hook, level=level)] if hook else [])])
    return outcome, op_tools.read_recording(record.result().path)


def try_model(name: str, level: str, trials: int, seed: int, scores: dict[str, Score]) -> str:
    """Adds to the scores; says what was named without a fault."""
    draw = random.Random(f"{name} {level} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        outcome_a, a = recorded(name, "cpu", level, Path(folder) / "a")
        _, clean = recorded(name, "sim", level, Path(folder) / "clean")
        alarm = op_tools.compare_runs(a, clean).ranks[0].first
        kernels = Kernels()
        step(name, "sim", [op_tools.HookScope(kernels, level="aten")])
        for number in range(trials):
            operator, call = draw.choice(kernels.calls[PHASES[number % 2]])
            scale = draw.choice(SCALES)
            fault = sim.fault("scale", ops=operator, call=call, scale=scale)
            culprit = Culprit(fault)
            with fault:
                outcome_b, b = recorded(name, "sim", level, Path(folder) / str(number), culprit)
            if not culprit.calls or outcome_a.difference(outcome_b) <= MATTERS:
                continue
            found = op_tools.compare_runs(a, b)
            first = found.ranks[0].first
            score = scores[culprit.calls[0][1]]
            if first is None:
                score.missed += 1
            elif (first.id_b, first.phase) in culprit.calls:
                score.named += 1
                continue
            else:
                score.elsewhere += 1
            row = next((one for one in found.ranks[0].rows if (one.id_b, one.phase) in culprit.calls), None)
            score.texts.append(
                f"{name} {level} {operator} x {scale} in call {call}: named "
                + (f"{first.op} {first.phase} ({first.verdict}: {first.finding})" if first else "nothing")
                + (
                    f"; the wrong call: {row.op} {row.verdict} {row.input_difference:.2g} -> {row.output_difference:.2g}, limit {row.limit:.2g}"
                    if row
                    else ""
                )
            )
    return (
        f"{alarm.op} {alarm.phase} ({alarm.verdict}: {alarm.finding}) {alarm.input_difference:.2g} -> {alarm.output_difference:.2g}, limit {alarm.limit:.2g}"
        if alarm
        else ""
    )


def main() -> int:
    parser = _program.parser(__doc__)
    parser.add_argument("--models", type=int, default=20, metavar="N", help="how many models are drawn (20)")
    parser.add_argument("--trials", type=int, default=8, metavar="N", help="faults for each model and level (8)")
    parser.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    _program.quiet("off")
    warnings.simplefilter("ignore")
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    scores = {level: {phase: Score() for phase in PHASES} for level in options.level}
    alarms: list[str] = []
    names: list[str] = []
    kinds = {f"transformers/{kind}" for task in library_models.TASKS for kind in library_models.kinds_of(task)}
    unused = sorted(kinds - set(library_models.NAMES))
    for name in random.Random(options.seed).sample(unused, len(unused)):
        if len(names) == options.models:
            break
        try:
            with torch.device("meta"):  # without memory
                parameters = sum(one.numel() for one in library_models.build(name, "plain").model.parameters())
            if parameters > MOST_PARAMETERS:
                continue
            for level in options.level:
                if alarm := try_model(name, level, options.trials, options.seed, scores[level]):
                    alarms.append(f"{name} {level} without a fault: {alarm}")
                    print("    " + alarms[-1], flush=True)
        except Exception as error:
            print(f"    {name}: skipped: {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        names.append(name)
        for score in itertools.chain.from_iterable(scores[level].values() for level in options.level):
            for text in score.texts:
                print("    " + text, flush=True)
            score.texts.clear()
    print(f"models: {', '.join(names)}; {len(alarms)} of {len(names) * len(options.level)} clean pairs named")
    print("| level | wrong call | trials | named | elsewhere | missed |\n|---|---|---|---|---|---|")
    status = bool(alarms)
    for level, phase in itertools.product(options.level, PHASES):
        score = scores[level][phase]
        print(
            f"| {level} | {phase} | {score.trials} | {score.named} | {score.elsewhere} | {score.missed} |", flush=True
        )
        wanted = 0.9 if phase == "backward" else 0.98
        status |= score.named < wanted * score.trials or score.missed > 0.01 * score.trials
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
