"""op_tools.bisect() finds the operators in which faults were planted, and only those.

    ./dev prove bisect_trials [--trials 200] [--kinds KIND...] [--seed 0] [--write]

A trial trains one of eight models for two steps on the simulated device, with one to three faulty operators of a kind, all of
forward or all of backward, drawn by the trial's seed from those whose fault alone changes a loss by more than five times the band:
a fault that changes no number cannot be found by one. Operators that others call in their kernels are left out, since a fault in one
of these is in the others, too. Half of the trials have noise: each number is multiplied by a random factor
around 1. In half the numbers of a right run are given; in the others bisect takes those of the run with everything moved, and measures
the band. Found: the operators that are reported are those that were planted. Late writes are races: there the placebo has to heal, too,
and the operator that reads too early may be reported for the one that writes too late. Errors that cancel are planted in programs of
three operators; sets that cancel in part by chance (without one fault the result is worse than with all) are counted apart.

Each trial is made without suspects, and again with those that bisect finds by itself. The runs are all but the six of the opening; the second
table says what those without suspects were for. The ideal search, the bound (log2 of the number of sets of this size
among the operators) and ddmin (delta debugging) are for a test that knows the planted set. --write puts the tables into docs/testing.md.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import collections
import contextlib
import functools
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
from op_tools._bisect.items import Call, read_calls, write_items
from op_tools._bisect.judge import distance
from op_tools._bisect.search import search
from op_tools._bisect.session import PARTS

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
    "missing": {},
    "out_of_bounds": {},
    "strides": {},
}
BAND = 1e-3
NOISE = 1e-4  # standard deviation of the factor
CHANGED = 5 * BAND
STEPS = 2
PARTS_SHOWN = list(dict.fromkeys(part for part in PARTS.values() if part != "opening"))
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
        self.right = self.losses()

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
    found_ranked: int = 0
    healed_by_placebo: int = 0
    cancel: int = 0
    """Sets drawn by chance whose errors cancel in part: no trials of these."""
    cancel_told: int = 0
    runs: list[int] = field(default_factory=list)
    runs_ranked: list[int] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


@dataclass
class Cost:
    """Runs of the trials with one number of culprits; the search alone, the bound and ddmin."""

    operators: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    runs_ranked: list[int] = field(default_factory=list)
    runs_for: list[dict[str, int]] = field(default_factory=list)
    search: list[int] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    ddmin: list[int] = field(default_factory=list)


@functools.cache
def training_of(name: str) -> Training:
    return Training(name)


@functools.cache
def by_phase(name: str) -> dict[str, list[str]]:
    """Operators that are called in this phase only, in which faults can be planted."""
    training = training_of(name)
    phases: dict[str, set[str]] = collections.defaultdict(set)
    calls = training.calls()
    for call in calls:
        phases[call.op].add(call.phase)
    found: dict[str, list[str]] = collections.defaultdict(list)
    for op, own in phases.items():
        with contextlib.suppress(op_tools.Error):
            if len(own) == 1 and is_called_alone(training, calls, op):
                found[next(iter(own))].append(op)
    return found


@contextlib.contextmanager
def planted(kind: str, ops: list[str], seed: int):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(sim.fault(kind, ops=op, seed=seed, **KINDS[kind])) for op in ops]
    sim.faults_clear()


def far(training: Training, kind: str, ops: list[str], seed: int) -> float:
    """How far faults in these operators take the losses."""
    training.noisy = False
    with planted(kind, ops, seed):
        return distance(training.losses(), training.right)


def is_called_alone(training: Training, calls: list[Call], op: str) -> bool:
    """No other operator's kernel calls it: once its calls are moved, the device does not see it."""
    write_items(Path("calls"), [call.of_call for call in calls if call.op == op])
    with planted("scale", [op], 0) as (fault,), op_tools.OpFallback(level="aten", only_calls="calls"):
        training.losses()
        return fault.matched == 0


@functools.cache
def places(name: str, kind: str) -> list[list[str]]:
    """Operators whose fault changes a loss, of forward and of backward."""
    training = training_of(name)
    found = [[op for op in ops if far(training, kind, [op], 0) > CHANGED] for ops in by_phase(name).values()]
    return [ops for ops in found if ops]


def cancel(training: Training, kind: str, ops: list[str], seed: int) -> bool:
    """Is the result worse without one of these faults than with all of them?"""
    together = far(training, kind, ops, seed)
    return any(far(training, kind, [one for one in ops if one != op], seed) > 2 * together for op in ops)


def drawn(kind: str, draw: random.Random, seed: int) -> tuple[Training, list[str]] | None:
    """A model and operators whose faults change the losses, each alone; None: a fault of this kind changes none."""
    for _ in range(100):
        name = draw.choice(NETWORKS)
        if not places(name, kind):
            continue
        ops = draw.choice(places(name, kind))
        chosen = draw.sample(ops, min(len(ops), draw.randint(1, 3)))
        if all(far(training_of(name), kind, [op], seed) > CHANGED for op in chosen):
            return training_of(name), chosen
    return None


def trial(kind: str, number: int, seed: int, score: Score, costs: dict[int, Cost]) -> None:
    """One set of planted faults."""
    draw = random.Random(f"{kind} {number} {seed}")
    place = drawn(kind, draw, number)
    if place is None:
        return
    training, chosen = place
    noisy, given = number % 2 == 1, number // 2 % 2 == 1
    results = []
    for suspects in ("none", "auto"):
        training.noisy = noisy
        with planted(kind, chosen, number):
            judge = op_tools.BisectJudge(training.right, band=BAND) if given else None
            results.append(op_tools.bisect(training.run, judge, checkpoint=training.checkpoint, suspects=suspects))
    training.noisy = False
    race = kind == "late_write"
    if len(chosen) > 1 and cancel(training, kind, chosen, number):
        score.cancel += 1
        score.cancel_told += all(one.verdict == "inconsistent" and "cancel" in one.explanation for one in results)
        return
    found = []
    for result in results:
        reported = {one["op"] for one in result.culprits}
        found.append(result.verdict == "found" and (result.placebo is True if race else reported == set(chosen)))
        if not found[-1]:
            score.missed.append(
                f"{kind} {number} of {training.name}{', noise' * noisy}{', given' * given}{', suspects' * (len(found) - 1)}: {chosen}, "
                f"{result.verdict} {sorted(reported)}: {result.explanation}"
            )
    score.trials += 1
    score.found += found[0]
    score.found_ranked += found[1]
    score.healed_by_placebo += all(result.placebo is True for result in results)
    groups = sorted(
        {(call.op, call.phase) for call in training.calls()}, key=lambda group: (group[1] == "forward", group)
    )
    own = frozenset(group for group in groups if group[0] in chosen)
    cost = costs[len(own)]
    for runs, result in zip((score.runs, score.runs_ranked), results, strict=True):
        runs.append(result.runs - result.runs_for["opening"])
    cost.runs_for.append(results[0].runs_for)
    cost.runs.append(score.runs[-1])
    cost.runs_ranked.append(score.runs_ranked[-1])
    cost.operators.append(len(groups))
    cost.bound.append(math.log2(math.comb(len(groups), len(own))))
    cost.search.append(search(groups, lambda sets: ["good" if own <= one else "bad" for one in sets]).tests)
    tests: list[int] = []

    def good(part: list) -> bool:
        tests.append(1)
        return own <= set(part)

    ddmin(groups, good)
    cost.ddmin.append(len(tests))


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


def mean(numbers: list) -> str:
    return f"{statistics.mean(numbers):.1f}"


def tables(scores: dict[str, Score], costs: dict[int, Cost]) -> str:
    lines = [
        "| fault | trials | found | found with suspects | mean runs | with suspects | healed by the placebo |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, one in scores.items():
        if one.trials:
            runs = f"{mean(one.runs)} | {mean(one.runs_ranked)}"
            lines.append(
                f"| `{kind}` | {one.trials} | {one.found} | {one.found_ranked} | {runs} | {one.healed_by_placebo} |"
            )
        else:
            lines.append(f"| `{kind}` | changes no loss | | | | | |")
    lines += [
        "",
        f"| culprits | trials | operators | mean runs | with suspects | {' | '.join(PARTS_SHOWN)} | ideal search | bound | ddmin |",
        "|" + "---|" * (8 + len(PARTS_SHOWN)),
    ]
    for count, one in sorted(costs.items()):
        parts = [[runs.get(part, 0) for runs in one.runs_for] for part in PARTS_SHOWN]
        numbers = (one.operators, one.runs, one.runs_ranked, *parts, one.search, one.bound, one.ddmin)
        lines.append(f"| {count} | {len(one.runs)} | {' | '.join(map(mean, numbers))} |")
    return "\n".join(lines)


def run_trials(count: int, kinds: list[str], seed: int) -> tuple[dict[str, Score], dict[int, Cost]]:
    scores = {kind: Score() for kind in kinds}
    costs: dict[int, Cost] = collections.defaultdict(Cost)
    progress, number = Progress(count, "trials"), 0
    first = 3 * len(kinds)
    while sum(score.trials for score in scores.values()) < count:
        kind = kinds[number % len(kinds)]
        before = scores[kind].trials
        trial(kind, number, seed, scores[kind], costs)
        number += 1
        if scores[kind].trials > before:
            progress.step(f"{sum(score.found for score in scores.values())} found")
        elif number == first:
            kinds = [kind for kind in kinds if scores[kind].trials]  # the others change no loss
    return scores, costs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="only these faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    os.chdir(tempfile.mkdtemp(prefix="bisect_trials_"))
    torch.set_num_threads(1)
    scores, costs = run_trials(options.trials, options.kinds, options.seed)
    cancelled = sum(cancelling(number) for number in range(20))
    trials, found, ranked = (
        sum(getattr(score, name) for score in scores.values()) for name in ("trials", "found", "found_ranked")
    )
    races = scores.get("late_write", Score())
    chance, told = (sum(getattr(score, name) for score in scores.values()) for name in ("cancel", "cancel_told"))
    summary = (
        f"Seed {options.seed}: {found} of {trials} found, {ranked} with suspects; the placebo healed {races.healed_by_placebo} of "
        f"{races.trials} races; {cancelled} of 20 pairs of errors that cancel were reported as inconsistent, and {told} of {chance} sets "
        "drawn by chance that cancel in part."
    )
    text = f"{tables(scores, costs)}\n\n{summary}"
    print("\n".join([text, *(line for score in scores.values() for line in score.missed)]))
    if options.write:
        page = ROOT / "docs" / "testing.md"
        before, after = page.read_text().split(MARKS[0])[0], page.read_text().split(MARKS[1])[1]
        page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
    healed = races.healed_by_placebo == races.trials
    return 0 if min(found, ranked) >= 0.98 * trials and healed and cancelled == 20 else 1


if __name__ == "__main__":
    sys.exit(main())
