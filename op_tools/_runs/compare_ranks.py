"""One rank against many: how a program's tensors are spread over ranks, proven by their values, and where they are not."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from .._base.account import accounts_of, lines_of, reasons_of
from .._base.captured_calls import load_call, tensors_of
from .._base.core import Error, Recording, compare_runs, has_trait, unwritten_values
from .._base.results import Result, Shown, text_table, worded
from .._base.verdict import Coverage, Verdict, status_of, verdict_of
from .._tools.record import RecordedCall, RecordedCalls, RecordedTensor
from .compare_runs import PathOrRecording, find_run
from .judged_captures import captured_calls, wrong_by_itself
from .rank_plans import RankPlan, follows, proven_by_values, rank_plans, wanted_plan

_NO_CALL = 0xFFFFFFFF  # kNoCall in src/record/recording.h
Rules = Sequence[tuple[str, str]]
_Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class SpreadRow:
    """A tensor of a call, and how the ranks have it."""

    step: int
    op: str
    phase: str
    module: str
    line: str
    place: str
    shape: tuple[int, ...]
    plan: str
    """`replica`, `concatenation along dim N`, `sum`, `mean`, and further ones (RankPlan); "" if none of them holds."""
    proof: str
    """How far it is proven (RankPlan)."""
    finding: str
    """Empty, or how this call breaks the plan, as the first."""
    ranks: list[int]
    """Of a finding: the ranks whose own call is wrong, as far as it is known."""
    id: int


@dataclass(frozen=True, repr=False)
class RanksComparison(Result):
    """One rank against many."""

    one: str
    many: list[str]
    rows: list[SpreadRow]
    """The results of all calls that A and all ranks of B make."""
    alone: int
    """Calls of A that some ranks of B do not make."""
    unwritten: int = 0
    """Results that show memory which was never written (torch.empty): nothing is known of them, and they have no row."""
    incomplete: int = 0
    """Recordings that end before their programs did, or are damaged."""
    accounts: dict[str, Coverage] = field(default_factory=dict)
    """Which calls the ranks saw and did not see, where their recordings say so: by "A", and "B rank 0" and so on."""
    missing: list[str] = field(default_factory=list)
    """Ranks that have no file in the folder of their run."""

    @property
    def first(self) -> SpreadRow | None:
        """The first call whose inputs are spread by a plan, and whose results are not."""
        return next((row for row in self.rows if row.finding), None)

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that the ranks of B compute A's results; empty where it is."""
        reasons = [] if self.rows else ["no call was compared"]
        if without := sum(not row.plan for row in self.rows):
            reasons.append(f"no plan was found for {without} of {len(self.rows)} results")
        if self.incomplete:
            reasons.append(f"{self.incomplete} recordings are incomplete")
        return reasons + self.missing + reasons_of(self.accounts)

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all results follow a plan, and the recordings have all of their programs."""
        return verdict_of(wrong=self.first is not None, unseen=self.unseen)

    @property
    def exit_status(self) -> int:
        """0: all is proven; 1: a call breaks the plan; 2: not judged."""
        return status_of(self.verdict)

    def table(self) -> str:
        """For people."""
        counts = Counter((row.plan or "no plan found", row.proof) for row in self.rows)
        lines = [f"A: {self.one}", *(f"B: {path}" for path in self.many)]
        lines += [line for account in self.accounts.values() for line in lines_of(account)]
        lines += ["", "Results:"]
        lines += [f"{plan}{f' (by {proof})' if proof else ''}: {n}" for (plan, proof), n in counts.most_common()]
        if self.alone:
            lines.append(f"{self.alone} calls of A have no partner on all ranks")
        if self.unwritten:
            lines.append(f"{self.unwritten} results show memory that was never written: not comparable")
        columns: list[Shown[SpreadRow]] = [
            Shown("step", lambda row: str(row.step), is_number=True),
            worded("op", "op"),
            worded("module", "module"),
            Shown("shape in A", lambda row: str(list(row.shape))),
            worded("plan", "plan"),
        ]
        first = self.first
        shown = self.rows if first is None else self.rows[: self.rows.index(first) + 1]
        lines += ["", text_table(columns, shown[-10:], -1)]
        if first is not None:
            which = f" on rank {', '.join(map(str, first.ranks))}" if first.ranks else ""
            lines += ["", f"First divergence: {first.op} ({first.phase}, step {first.step}){which}: {first.finding}"]
            lines += [f"  module: {first.module}", f"  line: {first.line}"]
        if self.verdict is Verdict.NOT_JUDGED:
            lines += ["", *(f"NOT JUDGED: {reason}" for reason in self.unseen)]
        return "\n".join(lines)

    def to_json(self) -> str:
        """A record for each row, a first_divergence where there is any, and a summary, as lines of JSON."""
        records = [{"kind": "spread", **asdict(row)} for row in self.rows]
        if self.first is not None:
            records.append({"kind": "first_divergence", "verdict": "born here", **asdict(self.first)})
        verdict = {"exit_status": self.exit_status, "verdict": self.verdict.value, "unseen": self.unseen}
        records.append({"kind": "summary", **verdict, "ranks": len(self.many), "rows": len(self.rows)})
        return "".join(json.dumps(record) + "\n" for record in records)


def read_plan_rules(path: str | Path) -> list[tuple[str, str]]:
    """Rules from a file, a line each: ``REGEX = b s h[tp]``. The expression is searched for in "module operator place".

    Raises:
        op_tools.Error: the file cannot be read, or a line has another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise Error(f"{path}: cannot be read: {error}") from None
    rules = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        pattern, gap, rule = text.rpartition("=")
        try:
            re.compile(pattern.strip())
            if not gap or not pattern.strip() or not rule.strip():
                raise Error("expected REGEX = b s h[tp]")
            wanted_plan(rule)
        except (re.error, Error) as error:
            raise Error(f"{path}, line {number}: {error}") from None
        rules.append((pattern.strip(), rule.strip()))
    return rules


# --- All calls ------------------------------------------------------------------------------------------------------


@dataclass
class _Ranks:
    single: Recording
    many: dict[int, Recording]
    rules: Rules
    paths_one: dict[int, str]  # captured calls by id; empty: there are none
    paths: dict[tuple[int, int], str]  # by rank and id
    are_all: bool  # else a result may need the part of a rank that is absent, and its call is not to blame
    rows: list[SpreadRow] = field(default_factory=list)
    alone: int = 0
    unwritten: int = 0
    is_broken: bool = False
    _known: dict[tuple[int, ...], RankPlan] = field(default_factory=dict)
    _unwritten: list[list[bool]] = field(default_factory=list)  # of A and of each rank, by number of the value

    def compare(self) -> None:
        calls = RecordedCalls(self.single)
        cores = list(self.many.values())
        others = [RecordedCalls(core) for core in cores]
        self._unwritten = [unwritten_values(core) for core in (self.single, *cores)]
        partners = [compare_runs(self.single, core).pairs for core in cores]
        for number, call in enumerate(calls):
            rows = [pairs[number] for pairs in partners]
            if _NO_CALL in rows:
                self.alone += 1
                continue
            self._look(call, [side[one] for side, one in zip(others, rows, strict=True)])

    def _look(self, call: RecordedCall, parts: list[RecordedCall]) -> None:
        sides = [call, *parts]
        if len({len(one.inputs) for one in sides}) > 1 or len({len(one.outputs) for one in sides}) > 1:
            self.alone += 1
            return
        inputs = [
            self._plan(call, place, whole, of_ranks)
            for place, whole, of_ranks in self._together(call.inputs, [one.inputs for one in parts])
            if not self._is_unwritten(whole, of_ranks)
        ]
        captured = self._captured(sides) if call.phase == "forward" else []
        for number, (place, whole, of_ranks) in enumerate(self._together(call.outputs, [one.outputs for one in parts])):
            if self._is_unwritten(whole, of_ranks) or _gives_undefined(call, whole, of_ranks):
                self.unwritten += 1
                continue
            plan = self._plan(call, place, whole, of_ranks)
            if plan and place.startswith("result") and all(number < len(one) for one in captured) and captured:
                plan = proven_by_values(plan, captured[0][number], [one[number] for one in captured[1:]])
            finding, ranks = "", list[int]()
            if not plan and not self.is_broken and self._is_to_blame(sides, inputs, (whole, *of_ranks)):
                self.is_broken = True
                finding = "its inputs are spread by a plan, its result is not"
                ranks = self._wrong(parts)
            row = (call.step, call.op, call.phase, call.module, call.line, place, whole.shape)
            self.rows.append(SpreadRow(*row, str(plan), plan.proof, finding, ranks, call.id))

    def _is_unwritten(self, whole: RecordedTensor, parts: list[RecordedTensor]) -> bool:
        return any(side[one.number] for side, one in zip(self._unwritten, (whole, *parts), strict=True))

    def _is_to_blame(
        self, sides: list[RecordedCall], inputs: list[RankPlan], results: Sequence[RecordedTensor]
    ) -> bool:
        """A call whose result follows no plan, though nothing but the call can be the reason."""
        if not self.are_all or not all(result.known for result in results):
            return False
        # What makes a tensor of numbers alone, or draws it, makes another one of a rank's own numbers.
        are_told_the_same = len({call.scalars for call in sides}) == 1 and not any(call.random for call in sides)
        return all(inputs) if inputs else are_told_the_same

    def _captured(self, sides: list[RecordedCall]) -> list[list[torch.Tensor]]:
        """The results in full, of A and of each rank; nothing where any of them was not captured."""
        paths = [self.paths_one.get(sides[0].id)]
        paths += [self.paths.get((rank, call.id)) for rank, call in zip(self.many, sides[1:], strict=True)]
        return [[*tensors_of(load_call(path).result)] for path in paths if path] if all(paths) else []

    @staticmethod
    def _together(
        whole: list[tuple[str, RecordedTensor]], parts: list[list[tuple[str, RecordedTensor]]]
    ) -> Iterator[tuple[str, RecordedTensor, list[RecordedTensor]]]:
        for i, (place, tensor) in enumerate(whole):
            yield place, tensor, [part[i][1] for part in parts]

    def _plan(self, call: RecordedCall, place: str, whole: RecordedTensor, parts: list[RecordedTensor]) -> RankPlan:
        key = (whole.number, *(part.number for part in parts))
        if key not in self._known:
            name = f"{call.module} {call.op} {place}"
            rule = next((rule for pattern, rule in self.rules if re.search(pattern, name)), None)
            plans = (one for one in rank_plans(whole, parts) if rule is None or follows(one, rule))
            self._known[key] = next(plans, RankPlan())
        return self._known[key]

    def _wrong(self, parts: list[RecordedCall]) -> list[int]:
        """The ranks whose captured call disagrees with the CPU on its own inputs."""
        paths = {rank: self.paths.get((rank, call.id), "") for rank, call in zip(self.many, parts, strict=True)}
        wrong = wrong_by_itself([path for path in paths.values() if path])
        return [rank for rank, path in paths.items() if path in wrong]


def _gives_undefined(call: RecordedCall, whole: RecordedTensor, parts: list[RecordedTensor]) -> bool:
    """Memory that torch itself writes behind the operator (torch.tensor): the next call that reads the memory has its elements."""
    return has_trait(call.op, "uninitialized_result") and not any(one.known for one in (whole, *parts))


def compare_ranks(
    one: PathOrRecording, many: PathOrRecording, *, rules: Rules = (), captures: tuple[_Folder, _Folder] | None = None
) -> RanksComparison:
    """Compares a program on one rank with the same program on several: each tensor of the single rank must be a replica, a
    concatenation, a sum or a mean of those that the ranks have. The relation that holds is the plan, and the first call whose
    inputs follow a plan and whose results do not is named.

    Args:
        one: a recording of one rank.
        many: the folder of the other run, with a file for each rank.
        rules: (REGEX, rule) for tensors of which the plan is known: "b s h[tp]" (the dimension in brackets is split over the
            ranks), "b s h" (replicas), "sum", "mean". The expression is searched for in "module operator place".
        captures: the folders of OpCapture that was on beside OpRecord in both runs: plans are proven by values, and the ranks
            that are wrong are named.

    Returns:
        a row for each result. Where ranks of `many` have no file, the verdict is `not judged`, and no call is named: what it lacks may be theirs.

    Raises:
        op_tools.Error: a path holds no recording, `one` has several ranks, or `many` has one; a rule has another form.
    """
    runs = [find_run(one), find_run(many)]
    of_one, of_many = ({rank: read() for rank, read in run.items()} for run in runs)
    absent = [rank for run in runs for rank in run.absent]
    if len(of_one) != 1 or len(of_many) < (1 if absent else 2):
        raise Error(f"expected one rank and several, not {len(of_one)} and {len(of_many)}")
    for _, rule in rules:
        wanted_plan(rule)
    cores = {rank: of_many[rank] for rank in sorted(of_many)}
    folders = [captured_calls(folder) for folder in captures] if captures is not None else [[], []]
    paths_one = {call.id: call.path for call in folders[0]}
    paths = {(call.rank, call.id): call.path for call in folders[1]}
    (core,) = of_one.values()
    ranks = _Ranks(core, cores, rules, paths_one, paths, are_all=not absent)
    ranks.compare()
    named = {"A": core, **{f"B rank {rank}": of_rank for rank, of_rank in cores.items()}}
    incomplete = sum(not one.complete for one in named.values())
    paths_of_many = [one.path for one in cores.values()]
    return RanksComparison(
        core.path,
        paths_of_many,
        ranks.rows,
        ranks.alone,
        ranks.unwritten,
        incomplete,
        accounts_of(named),
        [sentence for run in runs for sentence in run.missing()],
    )
