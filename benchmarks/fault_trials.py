"""How well OpAutoCompare finds wrong operators: faults planted in the simulated device, a fault for each trial.

    ./dev bench fault_trials --trials 100 --write

A trial trains a small model for a step on the device `sim` with a fault in a single call of an operator, drawn by the
trial's seed, and OpAutoCompare on. Counted are trials in which the fault changed something, in which a failure was
reported, in which only the changed call was reported, and other calls that were reported. `--write` puts the
table into docs/history/trials.md.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT / "tests" / "python"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")
os.environ.setdefault("OP_TOOLS_SIM_ROUNDING", "1")

import _zoo
import torch
import torch.nn.functional as F
from models import MODELS, OPTIMIZERS, ResNet, digits

import op_tools
import op_tools.sim_device as sim

OF_DIGITS = {**MODELS, "resnet": ResNet}
HARMLESS = ("latency", "leak")  # nothing that they do is a wrong result
# These end the process or damage its memory (tests/proofs/deaths.py), or are wrong only until the program waits for the
# device (tests/proofs/bisect_trials.py), or right within rounding (tests/proofs/invariance_faults.py).
OF_INVARIANCE = (
    "batch_size",
    "batch_position",
    "misaligned",
    "every_second",
    "bit_flip",
    "neighbour",
    "other_stream",
    "gaps",
    "sequence_length",
    "row_length",
)
NOT_HERE = ("crash", "hang", "out_of_bounds", "late_write", *OF_INVARIANCE)
KINDS = tuple(kind for kind in sim.FAULT_KINDS if kind not in NOT_HERE)
# Copies and views are how values are looked at; a fault in them is a fault of the looking.
PASSED_OVER = (
    "aten::_copy_from",
    "aten::_to_copy",
    "aten::copy_",
    "aten::clone",
    "aten::_local_scalar_dense",
    "aten::empty",
)
DOCUMENT = ROOT / "docs" / "history" / "trials.md"
MARKS = "<!-- fault trials: written by ./dev bench fault_trials --write -->", "<!-- end of fault trials -->"


def step(model: str, optimizer: str, precision: str = "float32") -> None:
    """A training step on the device; `precision`: "float32" or "bfloat16"."""
    if model in _zoo.ZOO:
        _zoo.train(model, "sim", precision, 1)
        return
    torch.manual_seed(7)
    images, labels = digits()
    dtype = getattr(torch, precision)
    network = OF_DIGITS[model]().to("sim", dtype)
    method = OPTIMIZERS[optimizer](network.parameters())
    loss = F.cross_entropy(network(images[:16].to("sim", dtype)), labels[:16].to("sim"))
    loss.backward()
    method.step()


class Names(op_tools.Hook):
    """The operators of a step and how often each is called."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()

    def before(self, call: op_tools.Call) -> None:
        self.calls[call.name] += 1


class Culprit(op_tools.Hook):
    """Which call the fault changed: the calls of forward functions in which the count of changed calls rose."""

    def __init__(self, fault: sim.Fault) -> None:
        self.fault = fault
        self.ids: set[int] = set()

    def before(self, call: op_tools.Call) -> int:  # noqa: ARG002
        return self.fault.hits

    def after(self, call: op_tools.Call, state: int) -> None:
        if self.fault.hits > state:
            self.ids.add(call.id)


def operators(models: list[str], precision: str = "float32") -> list[tuple[str, str, str, int]]:
    """(model, optimizer, operator, calls) of all that a fault can be planted in."""
    places = []
    for number, model in enumerate(models):
        optimizer = list(OPTIMIZERS)[number % len(OPTIMIZERS)]
        names = Names()
        with op_tools.HookScope(names, level="aten"):
            step(model, optimizer, precision)
        for name, calls in sorted(names.calls.items()):
            if name.startswith(PASSED_OVER):
                continue
            try:
                sim.fault("scale", ops=name)
            except op_tools.Error:
                continue  # it never reaches the device under this name
            places.append((model, optimizer, name, calls))
    return places


@dataclass
class Score:
    """The outcome of the trials of a kind at a level."""

    trials: int = 0
    hit: int = 0
    caught: int = 0
    rightly: int = 0
    false_alarms: int = 0
    missed: list[str] | None = None


def trial(
    kind: str, level: str, seed: int, places: list[tuple[str, str, str, int]], precision: str, score: Score
) -> bool:
    """A planted fault. False when it changed nothing: the trial does not count."""
    draw = random.Random(f"{kind} {seed}")  # noqa: S311 (not a secret)
    model, optimizer, operator, calls = draw.choice(places)
    more = {"size": draw.choice([4, 64])} if kind == "above_size" else {}
    more |= {"microseconds": 50} if kind == "latency" else {}
    fault = sim.fault(kind, ops=operator, call=draw.randrange(calls), seed=seed, **more)
    culprit = Culprit(fault)
    with tempfile.TemporaryDirectory() as folder, fault:
        tool = op_tools.OpAutoCompare(level=level, output_dir=folder, max_saved=0)
        # A fault may end the step: the error of `missing`, a check of the program that wrong numbers fail.
        with op_tools.HookScope(culprit, level=level), tool, contextlib.suppress(Exception):
            step(model, optimizer, precision)
        result = tool.result()
    sim.faults_clear()
    if fault.hits == 0:
        return False
    score.trials += 1
    score.hit += 1
    # A backward has the number of its forward. A changed backward is known by its gradients only: a single call may be reported.
    # A row that says that its inputs were changed before its backward reports no operator.
    blamed = {row["id"] for row in result.failures if "past autograd" not in row["reason"]}
    right = set(culprit.ids)
    if not right and level == "torch":
        right = set(sorted({row["id"] for row in result.failures if row["phase"] == "backward"})[:1])
    if blamed & right:
        score.caught += 1
    else:
        score.missed = [*(score.missed or []), f"{operator} of {model}, seed {seed}"]
    if blamed and blamed <= right:
        score.rightly += 1
    score.false_alarms += len(blamed - right)
    return True


def table(scores: dict[tuple[str, str], Score]) -> str:
    lines = [
        "| fault | level | trials | found | only the right call reported | other calls reported |",
        "|---|---|---|---|---|---|",
    ]
    for (kind, level), score in scores.items():
        note = " (no wrong result)" if kind in HARMLESS else ""
        lines.append(
            f"| `{kind}`{note} | {level} | {score.hit} | {score.caught} | {score.rightly} | {score.false_alarms} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="trials for each kind and level (100)")
    parser.add_argument("--quick", action="store_true", help="three trials: a look")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="only these faults")
    parser.add_argument("--levels", nargs="*", default=["aten", "torch"], help="only these levels")
    parser.add_argument("--models", nargs="*", default=[*OF_DIGITS, *_zoo.ZOO], help="only these models")
    parser.add_argument(
        "--precision", choices=["float32", "bfloat16"], default="float32", help="of the models (float32)"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first trial's seed (0)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/history/trials.md")
    options = parser.parse_args()
    if options.quick:
        options.trials = min(options.trials, 3)
    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    places = operators(options.models, options.precision)
    print(f"{len(places)} operators in {len(options.models)} models", flush=True)
    scores: dict[tuple[str, str], Score] = {}
    for kind in options.kinds:
        for level in options.levels:
            score = scores[kind, level] = Score()
            for seed in range(options.seed, options.seed + 10 * options.trials):
                if score.trials == options.trials:
                    break
                trial(kind, level, seed, places, options.precision, score)
            print(
                f"{kind:<16} {level:<6} {score.hit} changed, {score.caught} found, {score.rightly} rightly, "
                f"{score.false_alarms} other calls",
                flush=True,
            )
            if kind not in HARMLESS:
                for missed in score.missed or []:
                    print(f"    missed: {missed}", flush=True)
    text = table(scores)
    print("\n" + text)
    if options.write:
        page = DOCUMENT.read_text()
        before, rest = page.split(MARKS[0])
        DOCUMENT.write_text(before + MARKS[0] + "\n" + text + "\n" + MARKS[1] + rest.split(MARKS[1])[1])
    wrong = sum(score.false_alarms for score in scores.values())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
