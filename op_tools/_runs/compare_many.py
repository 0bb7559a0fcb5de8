"""Many runs of a program, or the ranks of a run: which of them is the odd one?"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from .._base.account import accounts_of, lines_of, reasons_of
from .._base.core import find_odd_calls
from .._base.results import Result, Shown, text_table, worded
from .._base.verdict import Coverage, Verdict, status_of, verdict_of
from .._tools.record import RecordedCall, RecordedCalls, Recording
from .compare_runs import open_run

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
        return reasons + reasons_of(self.accounts)

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


def compare_many(runs: Sequence[str | os.PathLike[str] | Recording]) -> ManyRuns:
    """Looks for the odd run among runs of a program on the same data: an intermittent fault, a sick device.

    Args:
        runs: at least two recordings: files, folders (each rank of a folder is a run), or results of
            :func:`read_recording` gave.

    Returns:
        the odd runs, each with its first odd call.

    Raises:
        op_tools.Error: there is only one run, or a path holds no recording.
    """
    cores = [(rank, core) for run in runs for rank, core in open_run(run).items()]
    rows = []
    odd, apart = find_odd_calls([core for _, core in cores])
    for run, call, _, _, like_it, others, what, collective in odd:
        rank, core = cores[run]
        calls = RecordedCalls(core)
        odd_call: RecordedCall = calls[call]
        finding = _FINDINGS[what] + (
            "" if like_it < others or what == "not_from_inputs" else "; which is right is not known"
        )
        through = calls[collective].op if collective is not None else ""
        place = (odd_call.op, odd_call.phase, odd_call.module, odd_call.line, odd_call.step, odd_call.id)
        rows.append(OddRow(core.path, rank, *place, finding, like_it, others, through))
    return ManyRuns(
        [core.path for _, core in cores],
        rows,
        sum(not core.calls for _, core in cores),
        sum(map(bool, apart)),
        sum(not core.complete for _, core in cores),
        accounts_of({core.path: core for _, core in cores}),
    )
