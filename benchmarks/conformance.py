"""The costs of op-tools conformance: cases a second beside a loop that only runs the operators, and the start of the command.

    ./dev bench conformance [--quick] [--jobs N]

Both sides have the same processes and the same inputs, which are made outside of the time of the loop; the suite makes its own.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from _measure import PROMISE, ROOT, Report, Spent, Table, Turns, arguments, scratch, spend, verdict

from op_tools._conformance.case import Case, PreparedCall, make_call
from op_tools._conformance.lists import Filter, load_cases
from op_tools._conformance.shard_run import WorkerPlan, _rows_of, _start_worker, sampled
from op_tools._conformance.workers import prepare, work_through

_START_SECONDS = 2.0
_CPU = torch.device("cpu")


def _ready() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, on operators that it will remove


def _run(call: PreparedCall) -> None:
    try:
        outputs = call.run()
        if call.case.gradient:
            call.backward(outputs)
    except Exception:  # a call that has to raise
        return


def _bare(line: str) -> Spent:
    """A case: the operators, forward and backward, as a program calls them."""
    call = make_call(Case.from_json(line), _CPU)
    return spend(lambda: _run(call))


def _variants(lines: Sequence[str], jobs: int) -> dict[str, Callable[[], Spent]]:
    def in_processes(start: Callable[[], None], work: Callable[[str], Any]) -> list[Any]:
        done = list(work_through(lines, start, work, jobs=jobs, seconds=600))
        assert all(failure is None for *_, failure in done)
        return [result for _, result, _ in done]

    def bare() -> Spent:
        parts: list[Spent] = in_processes(_ready, _bare)
        return Spent(sum(one.wall for one in parts), sum(one.cpu for one in parts)).per(jobs)

    return {
        "bare": bare,
        "judged": lambda: spend(lambda: in_processes(partial(_start_worker, WorkerPlan("cpu")), _rows_of)),
    }


def _command(*words: str) -> Spent:
    """A process of its own and those that it starts and waits for."""
    before, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(time.perf_counter() - wall, spent)


def start_up(table: Table, rounds: int) -> None:
    words = ("-m", "op_tools", "conformance", "run", "--device", "cpu", "--jobs", "1", "--sample", "1")
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        count = itertools.count()
        variants = {
            "torch": lambda: _command("-c", "import torch"),
            "list": lambda: _command(*words, "--source", "op_db", "-o", f"{folder}/{next(count)}"),
        }
        turns = Turns(variants, rounds)
    wall = turns.median("list", "wall")
    table.row(
        "op-tools conformance run, one case of the list op_db, from start to end",
        f"`import torch` alone: {turns.median('torch', 'wall'):.2f} s",
        f"<= {_START_SECONDS:g} s",
        f"{wall:.2f} s",
        verdict(wall, most=_START_SECONDS),
        f"{turns.median('list'):.2f} s of CPU time of the command's own process",
    )


def throughput(table: Table, count: int, rounds: int, jobs: int) -> None:
    for source, share, most in (("op_db", 1, None), ("models", 5, 3_500_000)):
        cases = sampled(list(load_cases(sources=(source,), filter=Filter(max_bytes=most))), count // share)
        turns = Turns(_variants([case.to_json() for case in cases], jobs), rounds)
        bare, judged = (len(cases) / turns.median(name, "wall") for name in ("bare", "judged"))
        table.row(
            f"{len(cases)} cases of {source}{f' up to {most / 1e6:g} MB' if most else ''}, {jobs} processes",
            "the operators alone",
            "",
            f"{turns.ratio('judged', 'bare', 'wall'):.1f}x",
            "",
            f"{judged:.0f} cases a second; the operators alone: {bare:.0f}",
        )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    report = Report("conformance")
    table = report.table("op-tools conformance", *PROMISE)
    prepare()
    start_up(table, 3 if options.quick else 5)
    throughput(table, 200 if options.quick else 600, 1 if options.quick else 3, options.jobs)
    report.write()


if __name__ == "__main__":
    main()
