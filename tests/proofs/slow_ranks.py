"""Planted slow ranks: does the report name them, and nobody else?

    slow_ranks.py [--ranks 64 256 1024] [--trials 8] [--measured 24] [--together 2 4] [--seed 1] [--keep FOLDER]

The times are those of real processes of a training, of each kind of work as many as --measured, so many of them at once as --together says. A rank of a run has the rows of a process of its kind, by chance: no noise is
invented, and a process that was slow is as many slow ranks. The first stage of each pipeline has a layer more. Collectives wait for the
slowest rank.

A run has a planted fault, or none. Cost: CPU time and the largest resident memory of the commands over the last run of each size.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.distributed as dist
from _program import parser, quiet
from _workers import Progress
from many_ranks import Place, Question, asked, train

import op_tools
from op_tools._report.ranks_in_time import LEAST_RATIO, LEAST_RATIO_OF_SOME, RunTimes, State, compared
from op_tools._report.scan import read_parts

RESULT = "op_time_measure_result"
LAYERS = (3, 2, 2, 2)  # of the stages of a pipeline
STEPS, HIDDEN, TOKENS = 100, 256, 128
TIMES = ("total_ms", "self_ms", "mean_ms", "p50_ms", "p99_ms", "min_ms", "max_ms")
NODE = 8  # ranks
LEAST_SHARE = 0.1  # of a rank's time, of an operator that becomes slow

Row = dict[str, str]


# --- Real processes -----------------------------------------------------------------------------------------------------


def measure(folder: Path, number: int, layers: int) -> None:
    """The times of a process."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    quiet()
    os.environ |= {"RANK": str(number), "WORLD_SIZE": "64", "LOCAL_RANK": "0"}
    dist.init_process_group("fake", rank=number, world_size=64, store=FakeStore())
    with op_tools.OpTimeMeasure(lines=False, level="aten", output_dir=str(folder)) as tool:
        train(Place(number, 64), STEPS, None, tool.step, layers, hidden=HIDDEN, tokens=TOKENS, device="cpu")
    dist.destroy_process_group()


def measured(folder: Path, count: int, together: int) -> dict[int, list[Path]]:
    """Number of layers -> the folders of the processes."""
    kinds = sorted(set(LAYERS))
    jobs = [(count * place + number, layers) for number in range(count) for place, layers in enumerate(kinds)]
    jobs_left = [] if folder.is_dir() else jobs  # --keep
    progress = Progress(len(jobs_left), f"measuring, {together} at once")
    for first in range(0, len(jobs_left), together):
        some = jobs_left[first : first + together]
        begun = [
            subprocess.Popen(
                [sys.executable, __file__, "--write", folder, "--number", str(number), "--layers", str(layers)]
            )
            for number, layers in some
        ]
        statuses = [process.wait() for process in begun]  # all of them end
        if any(statuses):
            raise SystemExit("a process could not be measured")
        for _ in some:
            progress.step()
    return {
        layers: [next((folder / RESULT / str(number)).iterdir()) for number, of in jobs if of == layers]
        for layers in kinds
    }


def rows_of(folder: Path) -> list[Row]:
    with (folder / "summary.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# --- Runs of many ranks -------------------------------------------------------------------------------------------------


@dataclass
class Fault:
    """What is planted in a run."""

    name: str
    ranks: tuple[int, ...] = ()
    factor: float = 1.0
    op: str = ""
    """"": all operators."""
    calls: float = 1.0
    """So many times the calls of the operator."""

    def changed(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of a rank that has it."""
        return [
            self._changed(row) if self.op in ("", row["op"]) and not row["op"].startswith("c10d::") else row
            for row in rows
        ]

    def _changed(self, row: Row) -> Row:
        new = {**row, **{name: repr(self.factor * float(row[name])) for name in TIMES}}
        calls = round(self.calls * int(row["calls"]))
        for name in ("total_ms", "self_ms"):
            new[name] = repr(float(new[name]) * calls / int(row["calls"]))
        return {**new, "calls": str(calls)}


def faults_for(choice: random.Random, world: int, ops: Sequence[str]) -> list[Fault]:
    """One of each kind, of ranks and operators by chance."""

    def rank() -> tuple[int]:
        return (choice.randrange(world),)

    node = NODE * choice.randrange(world // NODE)
    return [
        Fault("none"),
        Fault("an operator takes 1.5 times as long", rank(), 1.5, choice.choice(ops)),
        Fault("an operator takes 3 times as long", rank(), 3.0, choice.choice(ops)),
        Fault("all operators take 1.2 times as long", rank(), 1.2),
        Fault("a node of 8 ranks takes 1.3 times as long", tuple(range(node, node + NODE)), 1.3),
        Fault("1.8 times the calls of an operator", rank(), 1.0, choice.choice(ops), 1.8),
    ]


def common_ops(rows: Sequence[Row]) -> list[str]:
    """Operators with a share of a process's time that makes a rank slow."""
    by_op: dict[str, float] = defaultdict(float)
    for row in rows:
        by_op[row["op"]] += float(row["p50_ms"]) * int(row["calls"])
    return [op for op, ms in by_op.items() if ms >= LEAST_SHARE * sum(by_op.values())]


def paces(processes: Sequence[Sequence[Row]], column: str) -> list[float]:
    """The times of each process, beside the median of all."""
    times = [
        sum(float(row[column]) * int(row["calls"]) for row in rows if not row["op"].startswith("c10d::"))
        for rows in processes
    ]
    return [time / median(times) for time in times]


def slow_processes(processes: Sequence[Sequence[Row]]) -> set[int]:
    """Those whose shortest calls, or whose calls together, took so much longer than those of the others that a rank would be slow."""
    limits = {"min_ms": LEAST_RATIO, "mean_ms": LEAST_RATIO_OF_SOME}
    return {
        number
        for column, limit in limits.items()
        for number, pace in enumerate(paces(processes, column))
        if pace >= limit
    }


class Runs:
    """Writes runs of ranks, of the rows of real processes."""

    def __init__(self, processes: Mapping[int, Sequence[Path]]) -> None:
        self._rows = rows = {layers: [rows_of(folder) for folder in folders] for layers, folders in processes.items()}
        self._slow = {layers: slow_processes(of_kind) for layers, of_kind in rows.items()}
        folder = processes[LAYERS[0]][0]
        self._account = json.loads((folder / "coverage.json").read_text())
        with (folder / "trace.json").open() as trace:
            self._head = trace.readline() + "]}\n"  # mode; without the calls
        self.ops = common_ops(rows[LAYERS[0]][0])

    def print_noise(self, together: int) -> None:
        """How much the processes differ by themselves."""
        for layers, of_kind in self._rows.items():
            for column in ("min_ms", "p50_ms", "mean_ms"):
                values = paces(of_kind, column)
                shown = ", ".join(f"{value:.2f}" for value in (min(values), *quantiles(values, n=4), max(values)))
                print(
                    f"{len(values)} processes of {layers} layers, {together} at once, {column}: {shown} (least, quartiles, most)"
                )

    def write(self, folder: Path, choice: random.Random, world: int, fault: Fault) -> set[int]:
        """The results of all ranks. Returns those of processes that were slow themselves."""
        ranks, slow = [], set()
        for rank in range(world):
            layers = LAYERS[Place(rank, world).stage]
            process = choice.randrange(len(self._rows[layers]))
            rows = self._rows[layers][process]
            ranks.append(fault.changed(rows) if rank in fault.ranks else rows)
            if process in self._slow[layers]:
                slow.add(rank)
        times = [sum(float(row["self_ms"]) for row in rows if not row["op"].startswith("c10d::")) for rows in ranks]
        for rank, rows in enumerate(ranks):
            place = folder / RESULT / str(rank) / "2026-01-01--00-00"
            place.mkdir(parents=True)
            with (place / "summary.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                writer.writerows(_waiting(rows, max(times) - times[rank]))
            (place / "trace.json").write_text(self._head)
            (place / "coverage.json").write_text(json.dumps({**self._account, "accelerator": ""}))
        return slow


def _waiting(rows: Sequence[Row], ms: float) -> list[Row]:
    """The last collective takes so long more."""
    last = max(number for number, row in enumerate(rows) if row["op"].startswith("c10d::"))
    longer = {name: repr(float(rows[last][name]) + ms) for name in ("total_ms", "self_ms", "max_ms")}
    return [*rows[:last], {**rows[last], **longer}, *rows[last + 1 :]]


# --- Answers ------------------------------------------------------------------------------------------------------------


@dataclass
class Score:
    """Of runs with the same kind of fault."""

    runs: int = 0
    planted: int = 0
    named: int = 0
    right_cause: int = 0
    false_names: int = 0
    false_of_slow: int = 0
    """Of them, ranks of processes that were slow themselves."""
    others: int = 0
    """Ranks without a fault."""

    def add(self, fault: Fault, run: RunTimes, slow: set[int]) -> None:
        """Counts the names that a run got."""
        named = {time.rank: time for time in run.times if time.state is State.SLOW or time.more_calls}
        false = sorted(set(named) - set(fault.ranks))
        self.runs += 1
        self.planted += len(fault.ranks)
        self.others += len(run.times) - len(fault.ranks)
        self.false_names += len(false)
        self.false_of_slow += len(slow.intersection(false))
        for rank in set(named) & set(fault.ranks):
            self.named += 1
            time = named[rank]
            if fault.calls != 1:
                self.right_cause += [row.op for row in time.more_calls][:1] == [fault.op]
            elif fault.op:
                self.right_cause += [row.op for row in time.slow_in][:1] == [fault.op]
            else:
                self.right_cause += time.is_everywhere


def tried(runs: Runs, folder: Path, world: int, trials: int, seed: int) -> dict[str, Score]:
    """Runs with each kind of fault, and their scores; the last run with a slow operator stays in the folder."""
    scores: dict[str, Score] = defaultdict(Score)
    progress = Progress(6 * trials, f"{world} ranks")
    for trial in range(trials):
        choice = random.Random(f"{seed} {world} {trial}")
        for fault in faults_for(choice, world, runs.ops):
            shutil.rmtree(folder, ignore_errors=True)
            slow = runs.write(folder, choice, world, fault)
            (run,) = compared(read_parts([folder]))
            scores[fault.name].add(fault, run, slow)
            progress.step()
    return scores


def costs(runs: Runs, folder: Path, world: int, seed: int) -> int:
    """A line for each command; returns how many did not name the slow rank in their first lines."""
    shutil.rmtree(folder, ignore_errors=True)
    choice = random.Random(f"{seed} {world} cost")
    fault = Fault("", (world * 5 // 16 + 1,), 3.0, "aten::addmm")
    runs.write(folder, choice, world, fault)
    first = (f"rank {fault.ranks[0]} is slow", "addmm")
    wrong = 0
    for question in (
        Question("show", ("show", RESULT), 0, first),
        Question("report --text", ("report", RESULT, "--text"), 0, first),
        Question("report", ("report", RESULT, "-o", "report.html"), 0),
    ):
        answer = asked(question.command, folder)
        missing = question.faults_of(answer)
        wrong += bool(missing)
        told = f"  WRONG: {', '.join(missing)}" if missing else ""
        print(
            f"{world:>6} {question.name:<16} {answer.seconds:>7.1f} s {answer.memory / 1e6:>6.0f} MB{told}", flush=True
        )
    return wrong


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024], metavar="N")
    options.add_argument(
        "--trials", type=int, default=8, metavar="N", help="runs with each kind of fault, of 64 ranks; fewer of more"
    )
    options.add_argument("--measured", type=int, default=24, metavar="N", help="processes of each kind of work")
    options.add_argument("--together", type=int, nargs="+", default=[2, 4], metavar="N", help="processes at once")
    options.add_argument("--seed", type=int, default=1, metavar="N")
    options.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="leave the measured processes there, or take them from there"
    )
    options.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--number", type=int, help=argparse.SUPPRESS)
    options.add_argument("--layers", type=int, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.write:
        measure(chosen.write, chosen.number, chosen.layers)
        return 0
    quiet()
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        for together in chosen.together:
            place = (chosen.keep or Path(temporary)) / f"measured-{together}"
            runs = Runs(measured(place, chosen.measured, together))
            runs.print_noise(together)
            print(
                f"{'ranks':>6} {'fault':<42} {'runs':>4} {'planted':>7} {'named':>5} {'cause':>5} {'others':>7} {'false':>5} {'of slow':>7}"
            )
            for world in chosen.ranks:
                folder = Path(temporary) / "run"
                for name, score in tried(runs, folder, world, max(2, chosen.trials * 64 // world), chosen.seed).items():
                    print(
                        f"{world:>6} {name:<42} {score.runs:>4} {score.planted:>7} {score.named:>5} {score.right_cause:>5}"
                        f" {score.others:>7} {score.false_names:>5} {score.false_of_slow:>7}",
                        flush=True,
                    )
                wrong += costs(runs, folder, world, chosen.seed)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
