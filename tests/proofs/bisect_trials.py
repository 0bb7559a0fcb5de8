"""op_tools.bisect() finds the operators in which faults were planted, and only those.

    ./dev prove bisect_trials [--trials 200] [--kinds KIND...] [--seed 0] [--results FILE] [--seconds N] [--write]

A trial trains a model of eight for two steps on the simulated device, with one to three faulty operators of a kind, all of
forward or all of backward, drawn by the trial's seed from those whose fault alone changes a loss by more than five times the band:
a fault that changes no number cannot be found by it. Operators that others call in their kernels are left out, since a fault in one
of these is in the others, too. Half of the trials have noise: each number is multiplied by a random factor
around 1. In half the numbers of a right run are given; in the others bisect takes those of the run with everything moved, and measures
the band. Found: the operators that are reported are those that were planted. Late writes are races: there the placebo has to heal, too,
and the operator that reads too early may be reported for the operator that writes too late. Errors that cancel are planted in programs of
three operators; sets drawn by chance in which some errors cancel (the result is right with some of the faults, or worse without one
than with all) are counted apart.

Each trial is made without suspects, and again with those that bisect finds by itself. The runs are all but the six of the opening; the second
table has the purposes of those without suspects. The ideal search, the bound (log2 of the number of sets of this size
among the operators) and ddmin (delta debugging) are for a test that knows the planted set. --write puts the tables into docs/testing.md.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
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
from op_tools._bisect.bisection import PARTS
from op_tools._bisect.items import Call, read_calls, write_items
from op_tools._bisect.outcome import curve_distance
from op_tools._bisect.search import search

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
MOST_WITHOUT = 3  # trials of a kind whose faults changed no loss
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
        """Losses of the steps, and of another forward, which sees the last update."""
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
        losses: list[float] = []
        with contextlib.suppress(Exception):  # errors that a fault leads to
            losses.extend(self.run(None))
        return losses if len(losses) == STEPS + 1 else [math.nan]

    def calls(self) -> list[Call]:
        with tempfile.TemporaryDirectory() as folder, op_tools.OpFallback(level="aten", list_calls=f"{folder}/list"):
            self.losses()
            return read_calls(Path(folder).glob("list.*"))


@dataclass
class Trial:
    """The outcome of a set of planted faults; pairs are without and with suspects."""

    kind: str
    seed: int
    number: int
    culprits: int = 0
    """0: a fault of this kind changes no loss."""
    operators: int = 0
    cancels: bool = False
    """A set drawn by chance some of whose errors cancel: no trial."""
    right: list[bool] = field(default_factory=list)
    """Of a set that cancels: that was told, or a smaller set was found that heals."""
    healed: bool = False
    """By the placebo."""
    runs: list[int] = field(default_factory=list)
    """Without the opening."""
    runs_for: dict[str, int] = field(default_factory=dict)
    search: int = 0
    bound: float = 0.0
    ddmin: int = 0
    missed: list[str] = field(default_factory=list)


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
    by_phase_alone: dict[str, list[str]] = collections.defaultdict(list)
    for op, own in phases.items():
        with contextlib.suppress(op_tools.Error):
            if len(own) == 1 and is_called_alone(training, calls, op):
                by_phase_alone[next(iter(own))].append(op)
    return by_phase_alone


@contextlib.contextmanager
def planted(kind: str, ops: list[str], seed: int):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(sim.fault(kind, ops=op, seed=seed, **KINDS[kind])) for op in ops]
    sim.faults_clear()


def far(training: Training, kind: str, ops: list[str], seed: int) -> float:
    """How far faults in these operators take the losses."""
    training.noisy = False
    with planted(kind, ops, seed):
        return curve_distance(training.losses(), training.right)


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
    effective = [[op for op in ops if far(training, kind, [op], 0) > CHANGED] for ops in by_phase(name).values()]
    return [ops for ops in effective if ops]


def cancel(training: Training, kind: str, ops: list[str], seed: int) -> bool:
    """Do some of these errors cancel: is the result right with some of them, or worse without a fault than with all?"""
    together = far(training, kind, ops, seed)
    some = [
        far(training, kind, list(part), seed)
        for size in range(1, len(ops))
        for part in itertools.combinations(ops, size)
    ]
    return min(some) <= CHANGED or any(one > 2 * together for one in some[-len(ops) :])


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


def trial(kind: str, number: int, seed: int) -> Trial:
    """A set of planted faults."""
    result_of_trial = Trial(kind, seed, number)
    draw = random.Random(f"{kind} {number} {seed}")
    place = drawn(kind, draw, number)
    if place is None:
        return result_of_trial
    training, chosen = place
    noisy, with_reference = number % 2 == 1, number // 2 % 2 == 1
    results = []
    for suspects in ("none", "auto"):
        training.noisy = noisy
        with planted(kind, chosen, number):
            judge = op_tools.BisectJudge(training.right, band=BAND) if with_reference else None
            results.append(op_tools.bisect(training.run, judge, checkpoint=training.checkpoint, suspects=suspects))
    training.noisy = False
    groups = sorted(
        {(call.op, call.phase) for call in training.calls()}, key=lambda group: (group[1] == "forward", group)
    )
    own = frozenset(group for group in groups if group[0] in chosen)
    result_of_trial.culprits, result_of_trial.operators = len(own), len(groups)
    if len(chosen) > 1 and cancel(training, kind, chosen, number):
        result_of_trial.cancels = True
        for result in results:
            others = [op for op in chosen if op not in {one["op"] for one in result.culprits}]
            heals = (
                result.verdict == "found"
                and 0 < len(others) < len(chosen)
                and far(training, kind, others, number) <= CHANGED
            )
            result_of_trial.right.append(heals or (result.verdict == "inconsistent" and "cancel" in result.explanation))
        return result_of_trial
    for result, suspects in zip(results, ("", ", suspects"), strict=True):
        reported = {one["op"] for one in result.culprits}
        right = result.placebo is True if kind == "late_write" else reported == set(chosen)
        result_of_trial.right.append(result.verdict == "found" and right)
        if not result_of_trial.right[-1]:
            result_of_trial.missed.append(
                f"{kind} {number} of {training.name}{', noise' * noisy}{', given' * with_reference}{suspects}, seed {seed}: {chosen}, "
                f"{result.verdict} {sorted(reported)}: {result.explanation}"
            )
    result_of_trial.healed = all(result.placebo is True for result in results)
    result_of_trial.runs = [result.runs - result.runs_for["opening"] for result in results]
    result_of_trial.runs_for = results[0].runs_for
    result_of_trial.bound = math.log2(math.comb(len(groups), len(own)))
    result_of_trial.search = search(groups, lambda sets: ["good" if own <= one else "bad" for one in sets]).tests
    tests: list[int] = []

    def good(part: list) -> bool:
        tests.append(1)
        return own <= set(part)

    ddmin(groups, good)
    result_of_trial.ddmin = len(tests)
    return result_of_trial


def cancelling(number: int) -> bool:
    """Two errors that cancel in part: is it reported as inconsistent?"""
    draw = random.Random(number)
    first, two = draw.sample(["tanh", "cos", "exp", "sigmoid", "erf", "atan"], 2)
    scale = draw.choice([2.0, 1.5, 4.0])

    def run(tool: object):
        x = torch.linspace(-1, 1, 16, device="sim")
        yield (getattr(torch, first)(x) * getattr(torch, two)(x)).abs().sum().item()

    with sim.fault("scale", ops=first, scale=scale), sim.fault("scale", ops=two, scale=1.1 / scale):
        result = op_tools.bisect(run)
    sim.faults_clear()
    return result.verdict == "inconsistent" and "cancel" in result.explanation


def mean(numbers: Sequence[float]) -> str:
    return f"{statistics.mean(numbers):.1f}"


def tables(trials: list[Trial]) -> str:
    lines = [
        "| fault | trials | found | found with suspects | mean runs | with suspects | healed by the placebo |",
        "|---|---|---|---|---|---|---|",
    ]
    counted = [one for one in trials if one.runs]
    for kind in KINDS:
        of_kind = [one for one in counted if one.kind == kind]
        if of_kind:
            rates = " | ".join(str(sum(one.right[way] for one in of_kind)) for way in (0, 1))
            runs = " | ".join(mean([one.runs[way] for one in of_kind]) for way in (0, 1))
            healed = sum(one.healed for one in of_kind)
            lines.append(f"| `{kind}` | {len(of_kind)} | {rates} | {runs} | {healed} |")
        elif any(one.kind == kind for one in trials):
            lines.append(f"| `{kind}` | changes no loss | | | | | |")
    lines += [
        "",
        f"| culprits | trials | operators | mean runs | with suspects | {' | '.join(PARTS_SHOWN)} | ideal search | bound | ddmin |",
        "|" + "---|" * (8 + len(PARTS_SHOWN)),
    ]
    for count in sorted({one.culprits for one in counted}):
        of_count = [one for one in counted if one.culprits == count]
        rows = [
            (
                row.operators,
                *row.runs,
                *(row.runs_for.get(part, 0) for part in PARTS_SHOWN),
                row.search,
                row.bound,
                row.ddmin,
            )
            for row in of_count
        ]
        lines.append(f"| {count} | {len(of_count)} | {' | '.join(map(mean, zip(*rows, strict=True)))} |")
    return "\n".join(lines)


def run_trials(trials: list[Trial], count: int, kinds: list[str], seed: int, seconds: float) -> Iterator[Trial]:
    """Trials of this seed, behind those that there are, until `count` have been made or the time is over."""
    done = sum(bool(one.runs) for one in trials)
    progress = Progress(count - done, "trials")
    end = time.monotonic() + seconds
    for number in itertools.count(max((one.number + 1 for one in trials if one.seed == seed), default=0)):
        if done >= count or time.monotonic() > end:
            return
        kind = kinds[number % len(kinds)]
        of_kind = [one for one in trials if one.kind == kind]
        if len(of_kind) >= MOST_WITHOUT and not any(one.culprits for one in of_kind):
            continue  # it changes no loss
        finished = trial(kind, number, seed)
        yield finished
        if finished.runs:
            done += 1
            progress.step("" if all(finished.right) else "missed: " + "; ".join(finished.missed))


def summary(trials: list[Trial]) -> tuple[str, bool]:
    """A line, and whether the promises were kept."""
    counted, cancelled = [one for one in trials if one.runs], sum(cancelling(number) for number in range(20))
    hits, ranked = (sum(one.right[way] for one in counted) for way in (0, 1))
    races = [one for one in counted if one.kind == "late_write"]
    healed = sum(one.healed for one in races)
    chance = [one for one in trials if one.cancels]
    seeds = ", ".join(map(str, dict.fromkeys(one.seed for one in trials)))
    line = (
        f"Seeds {seeds}: {hits} of {len(counted)} found, {ranked} with suspects; the placebo healed {healed} of {len(races)} races; "
        f"{cancelled} of 20 pairs of errors that cancel were reported as inconsistent. Of {len(chance)} sets drawn by chance in which some "
        f"errors cancel {sum(all(one.right) for one in chance)} were reported as inconsistent, or the smaller set that heals was found."
    )
    return line, min(hits, ranked) >= 0.98 * len(counted) and healed == len(races) and cancelled == 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS), help="only these faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="a line for each trial; goes on behind those that it has"
    )
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="N", help="begin no trial after that time")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    results = options.results and options.results.absolute()
    lines = results.read_text().splitlines() if results and results.exists() else []
    trials = [Trial(**json.loads(line)) for line in lines]
    os.chdir(tempfile.mkdtemp(prefix="bisect_trials_"))
    torch.set_num_threads(1)
    for finished in run_trials(trials, options.trials, options.kinds, options.seed, options.seconds):
        trials.append(finished)
        if results:
            with results.open("a") as file:
                file.write(json.dumps(asdict(finished)) + "\n")
    line, kept = summary(trials)
    text = f"{tables(trials)}\n\n{line}"
    print("\n".join([text, *(line for one in trials for line in one.missed)]))
    if options.write:
        page = ROOT / "docs" / "testing.md"
        before, after = page.read_text().split(MARKS[0])[0], page.read_text().split(MARKS[1])[1]
        page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
