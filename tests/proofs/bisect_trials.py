"""op_tools.bisect() finds the operators in which faults were planted, and only those.

    ./dev prove bisect_trials [--trials 200] [--seed 0] [--write]

A trial trains one of eight models for two steps on the simulated device, with one to three faulty operators of a kind, all of
forward or all of backward, drawn by the trial's seed. A fault that alone changes no loss by more than the band is drawn again, and
their number is printed. Half of the trials have noise: each number is multiplied by a random factor around 1. Found: the operators that are
reported are those that were planted. Late writes are races: there the placebo has to heal, too, and the operator that reads too early
may be reported for the one that writes too late. Errors that cancel are planted in programs of three operators.

The runs are those besides the six of the opening, with minimality, refinement to lines and calls, confirmation and placebo. The bound is
log2 of the number of sets of this size among the operators; ddmin is delta debugging on a test that knows the planted set. --write puts the
table into docs/testing.md.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import collections
import contextlib
import math
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "tests" / "proofs"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "off")

import _zoo
import torch
import torch.nn.functional as F
from _workers import Progress
from models import MODELS, OPTIMIZERS, ResNet, digits
from test_bisect_search import ddmin

import op_tools
import op_tools.sim_device as sim
from op_tools._bisect.items import Call, read_calls
from op_tools._bisect.judge import distance

OF_DIGITS = {**MODELS, "resnet": ResNet}
NETWORKS = [*OF_DIGITS, "llama", "gpt", "unet", "experts"]
KINDS = {
    "scale": {"scale": 1.5},
    "element": {},
    "low_precision": {},
    "swap_rows": {},
    "nan": {},
    "inf": {},
    "mutate_input": {},
    "noncontiguous": {},
    "above_size": {"size": 16},
    "lost_write": {},
    "exception": {},
    "nondeterministic": {"scale": 1.5},
    "late_write": {},
}
BAND = 0.01
NOISE = 1e-3  # standard deviation of the factor
STEPS = 2
MARKS = "<!-- bisect: written by ./dev prove bisect_trials --write -->", "<!-- end of bisect -->"


class Training:
    """A model on the device, from the same state each time."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(7)
        self.name, self.noise = name, random.Random(0)
        self.noisy = False
        self.images, self.labels = digits()
        self.network = (_zoo.ZOO[name] if name in _zoo.ZOO else OF_DIGITS[name])().to("sim")
        method = self.network.optimizer if name in _zoo.ZOO else OPTIMIZERS["adam" if name == "lstm" else "sgd"]
        self.method = method(self.network.parameters())
        self.checkpoint = op_tools.Checkpoint(self.network, self.method)

    def loss(self, step: int) -> torch.Tensor:
        if self.name in _zoo.ZOO:
            return self.network.loss(step)
        rows = slice(step * 16, (step + 1) * 16)
        return F.cross_entropy(self.network(self.images[rows].to("sim")), self.labels[rows].to("sim"))

    def run(self, tool: object):
        """Losses of the steps, and of one more forward, which sees the last update."""
        for step in range(STEPS):
            self.method.zero_grad()
            loss = self.loss(step)
            loss.backward()
            self.method.step()
            yield self.seen(loss)
        yield self.seen(self.loss(STEPS))

    def seen(self, loss: torch.Tensor) -> float:
        return loss.item() * (self.noise.gauss(1, NOISE) if self.noisy else 1)

    def losses(self) -> list[float]:
        self.checkpoint.restore()
        found: list[float] = []
        with contextlib.suppress(Exception):  # what a fault leads to
            found.extend(self.run(None))
        return found if len(found) == STEPS + 1 else [math.nan]

    def calls(self) -> list[Call]:
        with tempfile.TemporaryDirectory() as folder, op_tools.OpFallback(level="aten", list_calls=f"{folder}/list"):
            self.losses()
            return read_calls(Path(folder).glob("list.*"))


@dataclass
class Score:
    """What became of the trials of one kind."""

    trials: int = 0
    found: int = 0
    healed_by_placebo: int = 0
    runs: list[int] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    ddmin: list[int] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


def by_phase(calls: list[Call]) -> dict[str, list[str]]:
    """Operators that are called in this phase only, in which faults can be planted."""
    phases: dict[str, set[str]] = collections.defaultdict(set)
    for call in calls:
        phases[call.op].add(call.phase)
    found: dict[str, list[str]] = collections.defaultdict(list)
    for op, own in phases.items():
        with contextlib.suppress(op_tools.Error):
            sim.fault("scale", ops=op)
            if len(own) == 1:
                found[next(iter(own))].append(op)
    sim.faults_clear()
    return found


def planted(kind: str, ops: list[str], seed: int) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for op in ops:
        stack.enter_context(sim.fault(kind, ops=op, seed=seed, **KINDS[kind]))
    return stack


def drawn(training: Training, kind: str, draw: random.Random, seed: int) -> list[str] | None:
    """Operators whose faults change the losses, each alone; None: not this time."""
    phases = by_phase(training.calls())
    ops = draw.choice([found for found in phases.values() if found])
    chosen = draw.sample(ops, min(len(ops), draw.randint(1, 3)))
    training.noisy = False
    right = training.losses()
    for op in chosen:
        with planted(kind, [op], seed):
            losses = training.losses()
        sim.faults_clear()
        if distance(losses, right) <= 5 * BAND:
            return None
    return chosen


def trial(kind: str, number: int, seed: int, score: Score) -> int:
    """One set of planted faults. How many draws changed nothing."""
    draw = random.Random(f"{kind} {number} {seed}")
    for passed in range(100):  # noqa: B007 (returned)
        training = Training(draw.choice(NETWORKS))
        chosen = drawn(training, kind, draw, number)
        if chosen:
            break
    else:
        return 100
    right = training.losses()
    training.noisy = number % 2 == 1
    with planted(kind, chosen, number):
        judge = op_tools.BisectJudge(right, band=BAND)
        result = op_tools.bisect(training.run, judge, checkpoint=training.checkpoint)
    sim.faults_clear()
    reported = {one["op"] for one in result.culprits}
    score.trials += 1
    race = kind == "late_write"
    score.healed_by_placebo += result.placebo is True
    ok = result.verdict == "found" and (result.placebo is True if race else reported == set(chosen))
    score.found += ok
    if not ok:
        score.missed.append(
            f"{kind} {number} of {training.name}: {chosen}, {result.verdict} {sorted(reported)}: {result.explanation}"
        )
    groups = sorted({(call.op, call.phase) for call in training.calls()})
    own = {group for group in groups if group[0] in chosen}
    tests: list[int] = []

    def good(part: list) -> bool:
        tests.append(1)
        return own <= set(part)

    ddmin(groups, good)
    score.runs.append(result.runs - 6)
    score.bound.append(math.log2(math.comb(len(groups), len(own))))
    score.ddmin.append(len(tests))
    return passed


def cancelling(number: int) -> bool:
    """Two errors that cancel in part: is it reported as inconsistent?"""
    draw = random.Random(number)
    one, two = draw.sample(["tanh", "cos", "exp", "sigmoid", "erf", "atan"], 2)
    scale = draw.choice([2.0, 1.5, 4.0])

    def run(tool: object):
        x = torch.linspace(-1, 1, 16, device="sim")
        yield (getattr(torch, one)(x) * getattr(torch, two)(x)).abs().sum().item()

    with sim.fault("scale", ops=one, scale=scale), sim.fault("scale", ops=two, scale=1.1 / scale):
        result = op_tools.bisect(run)
    sim.faults_clear()
    return result.verdict == "inconsistent" and "cancel" in result.explanation


def table(scores: dict[str, Score]) -> str:
    lines = [
        "| fault | trials | found | mean runs | bound | ddmin | healed by the placebo |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, score in scores.items():
        means = " | ".join(f"{statistics.mean(part):.1f}" for part in (score.runs, score.bound, score.ddmin))
        lines.append(f"| `{kind}` | {score.trials} | {score.found} | {means} | {score.healed_by_placebo} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    os.chdir(tempfile.mkdtemp(prefix="bisect_trials_"))
    torch.set_num_threads(1)
    scores: dict[str, Score] = collections.defaultdict(Score)
    progress, redrawn = Progress(options.trials, "trials"), 0
    for number in range(options.trials):
        kind = list(KINDS)[number % len(KINDS)]
        redrawn += trial(kind, number, options.seed, scores[kind])
        progress.step(f"{sum(score.found for score in scores.values())} found")
    cancelled = sum(cancelling(number) for number in range(20))
    scores = {kind: scores[kind] for kind in KINDS if scores[kind].trials}
    trials, found = (sum(getattr(score, name) for score in scores.values()) for name in ("trials", "found"))
    races = scores.get("late_write", Score())
    wrongly = sum(score.healed_by_placebo for kind, score in scores.items() if kind != "late_write")
    summary = (
        f"{found} of {trials} found; the placebo healed {races.healed_by_placebo} of {races.trials} races and {wrongly} other "
        f"faults; {cancelled} of 20 pairs of errors that cancel were reported as inconsistent; {redrawn} draws changed no loss."
    )
    print("\n".join([table(scores), summary, *(line for score in scores.values() for line in score.missed)]))
    if options.write:
        page = ROOT / "docs" / "testing.md"
        before, after = page.read_text().split(MARKS[0])[0], page.read_text().split(MARKS[1])[1]
        page.write_text(f"{before}{MARKS[0]}\n\n{table(scores)}\n\n{summary}\n\n{MARKS[1]}{after}")
    return 0 if found >= 0.98 * trials and races.healed_by_placebo == races.trials and cancelled == 20 else 1


if __name__ == "__main__":
    sys.exit(main())
