"""Many runs of a program, or the ranks of a run: which of them is the odd one?"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .._base.account import accounts_of, lines_of, reasons_of
from .._base.core import Recording, RecordingParts, calls_by_step, find_odd_calls, first_collective, steps_of
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
    "changed_input": "an input changed between calls",
    "given": "it was given other values than in other runs",
}
_COMPARED = "compared"
_NOT_COMPARED = {
    "own_inputs": "read values that no other run has",
    "drawn": "give random numbers or data",
    "no_values": "have no known values",
    "no_partner": "are made by a single run",
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
    """Ranks that have no file in the folder of their run, and steps that a process did not compare which shared the work."""
    calls: dict[str, int] = field(default_factory=dict)
    """Of all runs, those with results: how many were `compared`, and how many of the others had `own_inputs` (bits that no other run
    gave the call), were `drawn` (random numbers and data of ranks), have `no_values` or `no_partner`."""
    reached: int = 0
    """Ranks that have other results than those of other launches behind a collective with an odd rank of their own: they have no row."""

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
        if not self._most_compared():
            reasons.append(f"most calls cannot be compared: {self._not_compared()}")
        return reasons + self.missing + reasons_of(self.accounts)

    def _compared(self) -> int:
        return self.calls.get(_COMPARED, 0)

    def _most_compared(self) -> bool:
        return 2 * self._compared() >= sum(self.calls.values())

    def _not_compared(self) -> str:
        counts = [
            f"{count:,} {_NOT_COMPARED[vote]}" for vote, count in self.calls.items() if count and vote != _COMPARED
        ]
        return f"{', '.join(counts)}, of {sum(self.calls.values()):,}"

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
            hint = [] if self._most_compared() else ["op-tools run --autocompare judges each call by itself"]
            return "\n".join([*accounts, *(f"NOT JUDGED: {reason}" for reason in self.unseen), *hint])
        if not self.rows:
            rest = f"; not compared: {self._not_compared()}" if sum(self.calls.values()) > self._compared() else ""
            return f"{len(self.runs)} runs: {self._compared():,} calls have the bits of the others that have their inputs{rest}"
        columns: list[Shown[OddRow]] = [
            Shown("rank", lambda row: str(row.rank), is_number=True),
            worded("step", "step"),
            Shown("op", lambda row: row.op if row.phase == "forward" else f"{row.op} {row.phase}"),
            worded("module", "module"),
            worded("finding", "finding"),
            Shown("against", lambda row: f"{row.like_it} : {row.others}"),
            worded("then through", "collective"),
        ]
        places = [f"{row.run}: {row.line}" for row in self.rows if row.line]
        reached = f"; a collective brought {self.reached} more the difference of an odd rank" if self.reached else ""
        return "\n".join(
            [f"{len(self.rows)} of {len(self.runs)} runs are odd{reached}", text_table(columns, self.rows, -1), *places]
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
            "reached": self.reached,
            "calls": self.calls,
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
    """The facts of a run's recording, without its rows."""

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
    calls: dict[str, int]
    """As ManyRuns has them."""
    reached: frozenset[int] = frozenset()
    """Runs of the rows that a collective brought the difference of another rank."""


def _launches(runs: Sequence[Sequence[tuple[int, str]]]) -> list[int]:
    """A number for the launch of each recording. Those of a folder are of one; so are files of different ranks that were given one by one
    and lie in the same folder, and all recordings where no rank occurs twice.

    Args:
        runs: of each argument the ranks and the paths of its recordings.
    """
    ranks = [rank for recordings in runs for rank, _ in recordings]
    if len({*ranks}) == len(ranks):
        return [0] * len(ranks)
    seen: Counter[tuple[object, int]] = Counter()
    numbers: dict[tuple[object, int], int] = {}
    launches = []
    for argument, recordings in enumerate(runs):
        for rank, path in recordings:
            place = argument if len(recordings) > 1 else str(Path(path).parent)
            launch = (place, seen[place, rank])
            seen[place, rank] += 1
            launches.append(numbers.setdefault(launch, len(numbers)))
    return launches


class _Reader:
    """Reads a run's recording, some steps at a time: of a file, after a first reading, only the blocks that have them."""

    def __init__(self, rank: int, read: Callable[[], Recording], parts: list[_Steps]) -> None:
        core = read()
        self.rank = rank
        self.run = _Run(core.path, core.complete, core.header, core.calls, core.values, core.known_values, core.devices)
        self._read, self._parts = read, parts
        self._whole = core if len(parts) == 1 else None
        has_parts = core.has_blocks and self._whole is None
        self._in_file = RecordingParts(core, [part.end for part in parts[:-1]]) if has_parts else None

    def part(self, number: int) -> Recording:
        if self._whole is not None:
            return self._whole
        if self._in_file is not None:
            return self._in_file.read(number)
        return steps_of(self._read(), self._parts[number].first, self._parts[number].end)

    def collective_behind(self, number: int) -> str:
        """The first operator behind a part that other processes take part in."""
        return first_collective(self._read(), self._parts[number].end)


def compare_many_share(group: Ranks, runs: Sequence[PathOrRecording]) -> ManyRuns | None:
    """As compare_many(), with the steps shared out among processes: the result of all on the first, elsewhere None."""
    by_run = [find_run(run) for run in runs]
    recordings = [(rank, read) for run in by_run for rank, read in run.items()]
    parts = _all_steps(recordings[0][1](), len(recordings))
    mine = range(group.number, len(parts), group.count)
    readers = [_Reader(rank, read, parts) for rank, read in recordings] if mine else []
    of_readers = iter(readers)
    launches = _launches(
        [[(reader.rank, reader.run.path) for reader in islice(of_readers, len(run))] for run in by_run]
    )
    gathered = group.gathered({number: _odd_in(number, readers, launches) for number in mine})
    if gathered is None:
        return None
    known = [reader.run for reader in readers]
    by_part = {number: odd for of_process in gathered if of_process for number, odd in of_process.items()}
    odd_rows: dict[int, OddRow] = {}
    reached: set[int] = set()
    apart = [False] * len(readers)
    calls: Counter[str] = Counter()
    for _, odd in sorted(by_part.items()):
        # A rank whose difference has gone through a collective is behind the difference of each rank of its launch.
        carried = {launches[run] for run, row in odd_rows.items() if row.collective} if len({*launches}) > 1 else set()
        for run, row in odd.rows.items():
            if run not in odd_rows and (run in odd.reached or launches[run] in carried):
                reached.add(run)
            elif run not in reached:
                odd_rows.setdefault(run, row)
        apart = [before or bool(count) for before, count in zip(apart, odd.apart, strict=True)]
        calls.update(odd.calls)
    absent = [str(part) for number, part in enumerate(parts) if number not in by_part]
    missing = [sentence for run in by_run for sentence in run.missing()]
    missing += [f"{', '.join(absent)}: {'; '.join(group.missing)}"] if absent else []
    return ManyRuns(
        [run.path for run in known],
        list(odd_rows.values()),
        sum(not run.calls for run in known),
        sum(apart),
        sum(not run.complete for run in known),
        accounts_of({run.path: run for run in known}),
        missing,
        dict(calls),
        len(reached),
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


def _odd_in(number: int, readers: Sequence[_Reader], launches: list[int]) -> _Odd:
    """The odd calls of a part."""
    cores = [reader.part(number) for reader in readers]
    odd, apart, votes = find_odd_calls(cores, launches)
    rows = {}
    for run, call, _, _, like_it, others, what, collective, _ in odd:
        reader = readers[run]
        calls = RecordedCalls(cores[run])
        odd_call: RecordedCall = calls[call]
        finding = _FINDINGS[what] + (
            "" if like_it < others or what == "not_from_inputs" else "; which is right is not known"
        )
        through = reader.collective_behind(number) if collective is None else calls[collective].op
        place = (odd_call.op, odd_call.phase, odd_call.module, odd_call.line, odd_call.step, odd_call.id)
        rows[run] = OddRow(reader.run.path, reader.rank, *place, finding, like_it, others, through)
    return _Odd(rows, apart, votes, frozenset(run for run, *_, is_reached in odd if is_reached))
