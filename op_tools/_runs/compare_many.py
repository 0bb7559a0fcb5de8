"""Many runs of a program, or the ranks of a run: which of them is the odd one?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._base.account import accounts_of, lines_of, reasons_of
from .._base.core import Recording, calls_by_step, find_odd_calls, first_collective, steps_of
from .._base.results import Result, Shown, text_table, worded
from .._base.verdict import Coverage, Verdict, status_of, verdict_of
from .._tools.record import RecordedCall, RecordedCalls
from .._torch.rank_shares import Ranks
from .compare_runs import PathOrRecording, find_run

# Calls of all runs that are in memory together, at about 350 bytes each.
_MOST_CALLS = 6_000_000
_FIRST, _LAST = -(2**63), 2**63 - 1

_FINDINGS = {
    "results": "other results",
    "parameter": "a parameter is another tensor",
    "collective": "other results than on other ranks, which must have the same",
    "not_from_inputs": "its result does not follow from the inputs of the ranks",
}


@dataclass(frozen=True)
class OddRow:
    """The first call in which a run differs from most others that gave the call the same bits."""

    run: str
    """Its recording."""
    rank: int
    op: str
    phase: str
    module: str
    line: str
    step: int
    id: int
    finding: str
    like_it: int
    """How many runs have its results."""
    others: int
    """How many have those of the majority."""
    collective: str
    """The next operator in its run that other processes take part in: through it the difference reaches them."""


@dataclass(frozen=True, repr=False)
class ManyRuns(Result):
    """Many runs and the odd ones among them."""

    runs: list[str]
    rows: list[OddRow]
    empty: int = 0
    """Runs in which nothing was recorded."""
    apart: int = 0
    """Runs that make other calls than the first run, and go on with their results: not the same program."""
    incomplete: int = 0
    """Runs whose recordings end before their programs did, or are damaged."""
    accounts: dict[str, Coverage] = field(default_factory=dict)
    """Which calls the runs saw and did not see, by the paths of their recordings, where these say so."""
    missing: list[str] = field(default_factory=list)
    """Steps that a process did not compare which shared the work."""

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that none is odd; empty where it is."""
        reasons = []
        if self.empty:
            reasons.append(f"in {self.empty} of {len(self.runs)} runs nothing was recorded")
        if self.apart:
            reasons.append(
                f"{self.apart} of {len(self.runs)} runs make other calls than the first run and go on with their results; "
                "give op-tools compare two of them"
            )
        if self.incomplete:
            reasons.append(f"{self.incomplete} of {len(self.runs)} recordings are incomplete")
        return reasons + self.missing + reasons_of(self.accounts)

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all were recorded whole, and are of the same program."""
        return verdict_of(wrong=bool(self.rows), unseen=self.unseen)

    @property
    def exit_status(self) -> int:
        """0: none is odd; 1: some are; 2: not judged."""
        return status_of(self.verdict)

    def table(self) -> str:
        """For people."""
        if self.verdict is Verdict.NOT_JUDGED:
            accounts = [line for one in self.accounts.values() for line in lines_of(one)]
            return "\n".join([*accounts, *(f"NOT JUDGED: {reason}" for reason in self.unseen)])
        if not self.rows:
            return f"{len(self.runs)} runs: each call has the same bits in all that gave it the same bits"
        columns: list[Shown[OddRow]] = [
            Shown("rank", lambda row: str(row.rank), is_number=True),
            worded("step", "step"),
            worded("op", "op"),
            worded("module", "module"),
            worded("finding", "finding"),
            Shown("against", lambda row: f"{row.like_it} : {row.others}"),
            worded("then through", "collective"),
        ]
        places = [f"{row.run}: {row.line}" for row in self.rows if row.line]
        return "\n".join(
            [f"{len(self.rows)} of {len(self.runs)} runs are odd", text_table(columns, self.rows, -1), *places]
        )

    def to_json(self) -> str:
        """A first_divergence record for each odd run, and a summary, as lines of JSON."""
        records = [{"kind": "first_divergence", "verdict": "born here", **asdict(row)} for row in self.rows]
        summary = {
            "kind": "summary",
            "exit_status": self.exit_status,
            "verdict": self.verdict.value,
            "unseen": self.unseen,
            "runs": len(self.runs),
            "odd": len(self.rows),
        }
        return "".join(json.dumps(record) + "\n" for record in [*records, summary])


def compare_many(runs: Sequence[PathOrRecording]) -> ManyRuns:
    """Looks for the odd run among runs of a program on the same data: an intermittent fault, a sick device.

    Args:
        runs: at least two recordings: files, folders (each rank of a folder is a run), or results of
            :func:`read_recording` gave.

    Returns:
        the odd runs, each with its first odd call.

    Raises:
        op_tools.Error: there is only one run, or a path holds no recording.
    """
    many = compare_many_share(Ranks(), runs)
    assert many is not None  # of a single process
    return many


@dataclass(frozen=True)
class _Steps:
    """Steps whose calls are in memory together, of all runs."""

    first: int
    end: int
    """The step behind them."""

    def __str__(self) -> str:
        return f"steps from {max(self.first, 0)}" + ("" if self.end == _LAST else f" to {self.end - 1}")


@dataclass(frozen=True)
class _Run:
    """What is left of a run's recording when it has been read."""

    path: str
    complete: bool
    header: Any
    calls: int
    values: int
    known_values: int
    devices: dict[str, int]


@dataclass
class _Odd:
    """What some steps say."""

    rows: dict[int, OddRow]
    """By number of the run."""
    apart: list[int]


def compare_many_share(group: Ranks, runs: Sequence[PathOrRecording]) -> ManyRuns | None:
    """As compare_many(), with the steps shared out among processes: the result of all on the first, elsewhere None."""
    readers = [(rank, read) for run in runs for rank, read in find_run(run).items()]
    parts = _all_steps(readers[0][1](), len(readers))
    mine = {number: _odd_in(parts[number], readers) for number in range(group.number, len(parts), group.count)}
    gathered = group.gathered({number: odd for number, (odd, _) in mine.items()})
    if gathered is None:
        return None
    known = mine[0][1]
    by_part = {number: odd for of_process in gathered if of_process for number, odd in of_process.items()}
    odd_rows: dict[int, OddRow] = {}
    apart = [False] * len(readers)
    for number in sorted(by_part):
        for run, row in by_part[number].rows.items():
            odd_rows.setdefault(run, row)
        apart = [before or bool(count) for before, count in zip(apart, by_part[number].apart, strict=True)]
    absent = [str(part) for number, part in enumerate(parts) if number not in by_part]
    return ManyRuns(
        [run.path for run in known],
        list(odd_rows.values()),
        sum(not run.calls for run in known),
        sum(apart),
        sum(not run.complete for run in known),
        accounts_of({run.path: run for run in known}),
        [f"{', '.join(absent)}: {'; '.join(group.missing)}"] if absent else [],
    )


def _all_steps(first: Recording, runs: int) -> list[_Steps]:
    """All steps, a few at a time, by the calls of the first run."""
    ends, calls = [], 0
    for step, count in sorted(calls_by_step(first).items()):
        if calls and calls + count > _MOST_CALLS // runs:
            ends.append(step)
            calls = 0
        calls += count
    return [_Steps(first, end) for first, end in zip([_FIRST, *ends], [*ends, _LAST], strict=True)]


def _odd_in(steps: _Steps, readers: Sequence[tuple[int, Callable[[], Recording]]]) -> tuple[_Odd, list[_Run]]:
    """The odd calls of some steps, and what there is to be known about the runs."""
    is_whole = steps == _Steps(_FIRST, _LAST)
    cores, runs = [], []
    for _, read in readers:
        core = read()
        runs.append(
            _Run(core.path, core.complete, core.header, core.calls, core.values, core.known_values, core.devices)
        )
        cores.append(core if is_whole else steps_of(core, steps.first, steps.end))
    odd, apart = find_odd_calls(cores)
    rows = {}
    for run, call, _, _, like_it, others, what, collective in odd:
        rank, read = readers[run]
        calls = RecordedCalls(cores[run])
        odd_call: RecordedCall = calls[call]
        finding = _FINDINGS[what] + (
            "" if like_it < others or what == "not_from_inputs" else "; which is right is not known"
        )
        through = first_collective(read(), steps.end) if collective is None else calls[collective].op
        place = (odd_call.op, odd_call.phase, odd_call.module, odd_call.line, odd_call.step, odd_call.id)
        rows[run] = OddRow(runs[run].path, rank, *place, finding, like_it, others, through)
    return _Odd(rows, apart), runs
