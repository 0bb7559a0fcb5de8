"""Two results of the same list: the cases that became wrong, that were repaired, that take longer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._base.results import Shown, text_table, worded
from .._base.verdict import Verdict, verdict_of
from .rows import CRASHED, DIFFERS, ERROR, EXPECTED, HUNG, NOT_JUDGED, RIGHT, UNSUPPORTED, Row
from .summary import Missing, Rows, RunResult, missing_in, summary_of

_NOT_RIGHT = (CRASHED, HUNG, DIFFERS, UNSUPPORTED, EXPECTED, ERROR)
_MOST = 50


@dataclass(frozen=True)
class Change:
    """A phase of a case whose status is another one."""

    case: str
    phase: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Slower:
    """A case that both results have timed."""

    case: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before


@dataclass
class Trend:
    """The differences of a new result from an old result."""

    regressions: list[Change] = field(default_factory=list)
    repaired: list[Change] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Cases that were right and have no row now."""
    new: int = 0
    """Cases that only the new result has."""
    compared: int = 0
    """Phases of cases that both results judge."""
    unjudged: int = 0
    """Phases of cases that one of them does not judge."""
    times: list[Slower] = field(default_factory=list)
    """The largest ratio first."""
    gaps: list[tuple[str, Missing]] = field(default_factory=list)
    """Those of each result: "OLD" or "NEW", and why its verdict is not known."""

    @property
    def verdict(self) -> Verdict:
        """`differs` where something became wrong, or is not there any more, and neither is void; `agrees` only where both are judged,
        and judge most."""
        is_void = any(gap is Missing.SELF_TEST for _, gap in self.gaps)
        wrong = not is_void and bool(self.regressions or self.gone)
        return verdict_of(wrong=wrong, unseen=bool(self.gaps) or self._most_unjudged())

    def _most_unjudged(self) -> bool:
        return not self.compared or self.unjudged > self.compared

    def table(self) -> str:
        """For people."""
        lines = [
            f"{len(self.regressions)} regressions, {len(self.repaired)} repaired, {len(self.gone)} that were right are gone, "
            f"{self.new} new cases"
        ]
        lines += [
            f"{'NOT JUDGED: ' * (self.verdict is Verdict.NOT_JUDGED)}{name}: {gap.value}" for name, gap in self.gaps
        ]
        if self.verdict is Verdict.NOT_JUDGED and self._most_unjudged():
            lines.append(
                f"NOT JUDGED: both results judge {self.compared} phases of cases, one of them {self.unjudged} not"
            )
        columns = [worded(name, name) for name in ("case", "phase", "before", "after", "reason")]
        for title, changes in (("Regressions", self.regressions), ("Repaired", self.repaired)):
            if changes:
                lines += ["", f"{title}:", text_table(columns, changes, _MOST)]
        if self.gone:
            lines += ["", "Gone:", *self.gone[:_MOST]]
        if self.times:
            timed: list[Shown[Slower]] = [
                worded("case", "case"),
                Shown("before us", lambda one: f"{one.before * 1e6:.1f}", is_number=True),
                Shown("after us", lambda one: f"{one.after * 1e6:.1f}", is_number=True),
                Shown("ratio", lambda one: f"{one.ratio:.2f}", is_number=True),
            ]
            lines += ["", "Time, worst first:", text_table(timed, self.times, _MOST)]
        return "\n".join(lines)


def trend_of(old_result: RunResult, new_result: RunResult) -> Trend:
    """Compares the rows of two results by case and phase."""
    old, new = old_result.rows, new_result.rows
    before, after = _by_phase(old), _by_phase(new)
    trend = Trend(new=len(new.keys() - old.keys()))
    for name, result in (("OLD", old_result), ("NEW", new_result)):
        trend.gaps += [(name, gap) for gap in missing_in(summary_of(result))]
    trend.gone = sorted(case for case in old.keys() - new.keys() if all(row.status in RIGHT for row in old[case]))
    for key in sorted(before.keys() & after.keys()):
        was, now = before[key], after[key]
        is_judged = NOT_JUDGED not in (was.status, now.status)
        trend.compared += is_judged
        trend.unjudged += not is_judged
        change = Change(*key, was.status, now.status, now.reason)
        if was.status in RIGHT and now.status in _NOT_RIGHT:
            trend.regressions.append(change)
        elif was.status in _NOT_RIGHT and now.status in RIGHT:
            trend.repaired.append(change)
        if was.median and now.median:
            trend.times.append(Slower(now.case, was.median, now.median))
    trend.times.sort(key=lambda one: -one.ratio)
    return trend


def _by_phase(rows: Rows) -> Mapping[tuple[str, str], Row]:
    return {(row.case, row.phase): row for of_case in rows.values() for row in of_case}
