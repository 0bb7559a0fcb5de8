"""A run over cases: the share of this process, worker processes, rows as they come, the rows of a killed run."""

from __future__ import annotations

import hashlib
import heapq
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from .._base.core import Error, log_progress, reload_log_level
from .._base.results import duration_text
from .._torch.backends import import_backends, usable_device
from .._torch.rank_shares import local_rank
from .case import Case
from .exceptions import SLOW_FACTOR, Exceptions
from .golden import Golden, GoldenJudge, GoldenWriter
from .graph_judge import GraphJudge, GraphPlan
from .memory import free_bytes, needed_by
from .rows import CRASHED, HUNG, NOT_JUDGED, WRONG, Row, RowWriter, read_rows, row_of
from .verdict import Judge, Method
from .workers import StartError, work_through, worker_number

_OVERHEAD = 200_000  # bytes whose computation takes as long as the work around each case
_CASES_WORTH_A_PROCESS = 50
_BAR, _LINE_SECONDS = 30, 60.0


@dataclass(frozen=True)
class WorkerPlan:
    """The task of a worker process. Can be pickled."""

    device: str
    imports: tuple[str, ...] = ()
    """Modules with the device's backend."""
    method: Method | None = None
    phase: str = ""
    timed: bool = False
    golden: str = ""
    """The folder to judge by, or to write to."""
    writes: str = ""
    """A kind of golden data: cases are saved and not judged."""
    graphs: GraphPlan | None = None
    """A graph compiler is judged on the device."""

    @property
    def subject(self) -> str:
        """That which is judged."""
        return self.device if self.graphs is None else f"{self.graphs.backend} on {self.device}"


class _Works(Protocol):
    def rows(self, case: Case) -> list[Row]: ...


_work: _Works | None = None  # of this worker process


def _start_worker(plan: WorkerPlan) -> None:
    global _work
    os.environ["OP_TOOLS_LOG_LEVEL"] = "off"
    reload_log_level()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    import_backends(plan.imports)
    device = usable_device(plan.device, worker_number() + local_rank())
    if plan.writes:
        _work = GoldenWriter(device, Path(plan.golden), plan.writes)
    elif plan.golden:
        golden = Golden(Path(plan.golden))
        _work = GoldenJudge(device, plan.method, plan.timed, plan.phase, golden)
    elif plan.graphs:
        _work = GraphJudge(device, phase=plan.phase, plan=plan.graphs)
    else:
        _work = Judge(device, plan.method, plan.timed, plan.phase)


def _rows_of(line: str) -> list[Row]:
    assert _work is not None
    rows = _work.rows(Case.from_json(line))
    for row in rows:
        row.worker = str(worker_number())
    return rows


def sampled(cases: Sequence[Case], count: int) -> list[Case]:
    """`count` of the cases, always the same ones, spread over the operators."""
    groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for place, case in enumerate(cases):
        order = hashlib.blake2b(case.id.encode(), digest_size=8).hexdigest()
        groups.setdefault((case.source, case.op), []).append((order, place))
    ranked = [(rank, order, place) for group in groups.values() for rank, (order, place) in enumerate(sorted(group))]
    return [cases[place] for place in sorted(place for _, _, place in heapq.nsmallest(count, ranked))]


def cost_of(case: Case) -> int:
    """About how long a case takes, in bytes."""
    slow = 4 if case.dtype in ("float16", "bfloat16") else 1
    return _OVERHEAD + case.bytes * slow * (2 if case.gradient else 1)


def share_of(cases: Sequence[Case], number: int, count: int) -> list[Case]:
    """The cases of a shard of `count`: all have about the same cost, and each case is in a single shard."""
    loads = [(0, shard) for shard in range(count)]
    mine = []
    for cost, _, case in sorted(((-cost_of(one), one.id, one) for one in cases), key=lambda one: one[:2]):
        load, shard = heapq.heappop(loads)
        heapq.heappush(loads, (load - cost, shard))
        if shard == number:
            mine.append(case)
    return mine


class Progress:
    """How far a run is: a bar on a terminal, else a line each minute."""

    def __init__(self, cases: Sequence[Case], say: Callable[[str], None]) -> None:
        self._total, self._cost = len(cases), sum(map(cost_of, cases)) or 1
        self._done = self._wrong = self._spent = 0
        self._began = self._told = time.monotonic()
        self._say = say

    def step(self, case: Case, rows: Sequence[Row]) -> None:
        """A case is done."""
        self._done += 1
        self._spent += cost_of(case)
        self._wrong += any(row.status in WRONG for row in rows)
        now = time.monotonic()
        left = (now - self._began) * (self._cost - self._spent) / self._spent
        text = f"{self._done} of {self._total} cases, {self._wrong} wrong, {duration_text(left)} left"
        if sys.stderr.isatty():
            filled = _BAR * self._spent // self._cost
            log_progress(f"conformance [{'#' * filled}{'.' * (_BAR - filled)}] {text}")
        elif now - self._told > _LINE_SECONDS:
            self._told = now
            self._say(text)


@dataclass
class Session:
    """A run of a shard."""

    cases: Sequence[Case]
    """Of this shard."""
    plan: WorkerPlan
    jobs: int
    timeout: float
    """Seconds for a case."""
    exceptions: Exceptions
    say: Callable[[str], None]

    def run(self, path: Path, *, resume: bool) -> dict[str, list[Row]]:
        """Works through the cases of which the file has no rows yet, and appends theirs.

        Raises:
            op_tools.Error: the file cannot be read or written, or a worker process could not start.
        """
        known = read_rows(path) if resume and path.exists() else {}
        by_id = {case.id: case for case in self.cases}
        finished = {name: rows for name, rows in known.items() if name in by_id}
        lines = {case.to_json(): case for case in self.cases if case.id not in finished}
        progress = Progress(list(lines.values()), self.say)
        writer, free = RowWriter(path), free_bytes()
        try:
            for case, rows in itertools.chain(self._too_large(lines, free), self._results(lines, free)):
                for row in rows:
                    self.exceptions.apply(case, row)
                writer.write(rows)
                finished[case.id] = rows
                progress.step(case, rows)
        except StartError as error:
            raise Error(f"a worker process could not start: {error}") from None
        finally:
            writer.close()
            log_progress("")
        return dict(sorted(finished.items()))

    def _too_large(self, lines: dict[str, Case], free: int) -> Iterator[tuple[Case, list[Row]]]:
        """Takes out the cases that would not find memory, with rows that say so."""
        large = [line for line, case in lines.items() if needed_by(case) > free]
        if large:
            self.say(f"{len(large)} cases need more memory than the {free / 2**30:.1f} GiB that are free: not judged")
        for line in large:
            case = lines.pop(line)
            reason = f"needs about {needed_by(case) / 2**30:.1f} GiB of memory; {free / 2**30:.1f} were free"
            yield case, [row_of(case, status=NOT_JUDGED, reason=reason)]

    def _results(self, lines: dict[str, Case], free: int) -> Iterator[tuple[Case, list[Row]]]:
        def fits(line: str, others: list[str]) -> bool:
            return sum(needed_by(lines[one]) for one in (line, *others)) <= free

        def limit(line: str) -> float:
            return self.timeout * (SLOW_FACTOR if self.exceptions.may_be_slow(lines[line]) else 1)

        # A process takes seconds to start, in which another process has done many cases.
        jobs = min(self.jobs, 1 + len(lines) // _CASES_WORTH_A_PROCESS)
        work = work_through(lines, partial(_start_worker, self.plan), _rows_of, jobs=jobs, seconds=limit, fits=fits)
        for line, rows, failure in work:
            case = lines[line]
            if failure is None:
                yield case, rows
            else:
                status = CRASHED if failure.kind == "crashed" else HUNG
                row = row_of(case, status=status, reason=str(failure), blamed=case.op)
                if failure.kind == "hung":
                    row.seconds = limit(line)
                self.say(f"{case.id}: {failure}")
                yield case, [replace(row)]
