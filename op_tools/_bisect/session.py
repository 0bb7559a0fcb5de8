"""A bisection from its opening to its report; what a trial is, is the runner's business."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from .. import _C
from .._fallback import OpDtypeCast, OpFallback
from .._results import text_table, worded
from .items import Call, Group, Suspects, as_dict, by_op, ordered, split, write_items
from .judge import BisectJudge, Outcome
from .search import Answer, Found, Tries, minimal, needed, search

Remedy = Literal["fallback", "float32", "placebo"]
REMEDIES: tuple[Remedy, ...] = ("fallback", "float32", "placebo")
OPENING_RUNS = 3  # on each side
MOST_PARTS = 3  # of one group: of more, the group is reported as a whole
REPEATS = 3  # of each test where the two sides touch


def _median(values: Iterable[float]) -> float:
    import statistics  # not with the package: it loads four modules that only a bisection needs

    return statistics.median(values)


@dataclass(frozen=True)
class Trial:
    """What is moved in one run, and by what remedy."""

    groups: frozenset[Group] = frozenset()
    everything: bool = False
    """All that can be moved, listed or not."""
    remedy: Remedy = "fallback"
    purpose: str = "search"

    def key(self) -> str:
        """The same for the same trial of a session that goes on."""
        return json.dumps([self.remedy, self.everything, self.purpose, sorted(group.item for group in self.groups)])


Stop = Callable[[Sequence[float]], bool]


class Runner(Protocol):
    """Runs trials."""

    def run(self, trials: Sequence[Trial], stop: Stop) -> list[Outcome]:
        """Outcomes, in order. A run whose curve `stop` says is bad already may end at once."""

    def calls(self) -> list[Call]:
        """The calls that can be moved, known after a run with nothing moved."""

    def capture(self, groups: Sequence[Group]) -> list[str]:
        """Folders with captured calls of these groups."""


@dataclass(frozen=True)
class BisectResult:
    """What a bisection found."""

    verdict: Literal["found", "not an operator", "inconsistent"]
    explanation: str
    remedy: str
    culprits: list[dict[str, Any]] = field(default_factory=list)
    """Dicts with op, module, line, phase and calls: how many calls in a step."""
    runs: int = 0
    seconds: float = 0.0
    placebo: bool | None = None
    """Moving the same operators to their own device heals too: a race, a layout or a stale read. None: not tried."""
    before: list[float] = field(default_factory=list)
    """The curve with nothing moved."""
    after: list[float] = field(default_factory=list)
    """The curve with the culprits moved."""
    captured: list[str] = field(default_factory=list)
    """Folders for run_op_from_data."""

    @property
    def status(self) -> int:
        """The exit status: 0 found, 1 not an operator, 2 inconsistent."""
        return ("found", "not an operator", "inconsistent").index(self.verdict)

    def to_json(self) -> str:
        """One object; numbers that JSON has no form for are strings."""

        def plain(value: Any) -> Any:
            if isinstance(value, float) and not math.isfinite(value):
                return str(value)
            return [plain(one) for one in value] if isinstance(value, list) else value

        names = (
            "verdict",
            "explanation",
            "remedy",
            "culprits",
            "runs",
            "seconds",
            "placebo",
            "before",
            "after",
            "captured",
        )
        return json.dumps({name: plain(getattr(self, name)) for name in names}, indent=1)

    def table(self) -> str:
        """The culprits and what follows, for people."""
        lines = [f"{self.verdict}: {self.explanation}", f"{self.runs} runs, {self.seconds:.0f} s"]
        if self.culprits:
            columns = [worded(name, name) for name in ("op", "phase", "module", "line", "calls")]
            rows = [_Row(**culprit) for culprit in self.culprits]
            lines.append(text_table(columns, rows, -1))
            lines.append(f"before: {_curve(self.before)}")
            lines.append(f"after:  {_curve(self.after)}")
        lines += [f"next: run_op_from_data {folder} --acc_check" for folder in self.captured]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"BisectResult\n{self.table()}"


@dataclass(frozen=True)
class _Row:
    op: str
    module: str
    line: str
    phase: str
    calls: int


def _curve(numbers: Sequence[float], most: int = 8) -> str:
    shown = " ".join(f"{number:.5g}" for number in numbers[:most])
    return shown + (" ..." if len(numbers) > most else "") if numbers else "(no numbers)"


class Session:
    """One bisection.

    Args:
        runner: runs the trials.
        judge: judges them.
        remedy: what is tried on the operators.
        suspects: which of them first.
        jobs: trials at the same time.
        say: takes lines that tell what is known so far.
    """

    def __init__(
        self,
        runner: Runner,
        judge: BisectJudge,
        remedy: Remedy = "fallback",
        suspects: Suspects | None = None,
        jobs: int = 1,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._runner, self._judge, self._remedy = runner, judge, remedy
        self._suspects, self._jobs, self._say = suspects, jobs, say
        self._runs, self._seconds, self._repeats = 0, 0.0, 1
        self._nothing: list[Outcome] = []

    def run(self) -> BisectResult:
        """All of it."""
        stopped = self._open()
        if stopped:
            return stopped
        groups = ordered(by_op(self._runner.calls()), self._suspects)
        if not groups:
            return self._end("not an operator", "nothing can be moved: no operator runs on a device")
        typical = _median(one.seconds for one in self._nothing)
        tests = (len(groups).bit_length() + 8) * self._repeats
        self._say(
            f"{sum(len(group.calls) for group in groups)} calls of {len(groups)} operators; about {tests} runs for each culprit, "
            f"{max(1, round(tests * typical / 60 / self._jobs))} min"
        )
        if self._test([frozenset(groups)]) == ["bad"]:
            return self._end(
                "inconsistent",
                "everything moved is good, all listed calls moved are bad: the calls differ from run to run",
            )
        found = search(groups, self._test, ranked=self._suspects is not None, repeats=self._repeats, ways=self._jobs)
        if found.conflict or not found.good:
            return self._conflicting(found)
        return self._report(self._refined(found.items))

    def _run(self, trials: Sequence[Trial], *, whole: bool = False) -> list[Outcome]:
        outcomes = self._runner.run(trials, (lambda _: False) if whole else self._judge.left_band)
        self._runs += len(outcomes)
        self._seconds += sum(one.seconds for one in outcomes)
        return outcomes

    def _test(self, sets: list[frozenset[Group]]) -> list[Answer]:
        trials = [Trial(one, remedy=self._remedy) for one in sets]
        outcomes = self._run(trials)
        answers = []
        for one, outcome in zip(sets, outcomes, strict=True):
            answers.append(self._judge.answer(outcome))
            why = "" if outcome.ended == "done" else f" ({outcome.ended}{' ' * bool(outcome.note)}{outcome.note})"
            self._say(f"run {self._runs}: {len(one)} groups of calls moved: {answers[-1]}{why}")
        return answers

    def _open(self) -> BisectResult | None:
        """Nothing moved must be bad, everything moved must be good."""
        self._nothing = self._run([Trial(remedy=self._remedy, purpose="nothing")] * OPENING_RUNS, whole=True)
        moved = [Trial(everything=True, remedy=self._remedy, purpose="everything")]
        everything = self._run(moved * OPENING_RUNS, whole=True)
        touch = self._judge.settle(self._nothing, everything)
        self._repeats = REPEATS if touch else 1
        good = [self._judge.answer(one) == "good" for one in self._nothing]
        healed = [self._judge.answer(one) == "good" for one in everything]
        self._say(
            f"nothing moved: {good.count(False)} of {len(good)} runs bad; everything moved: {healed.count(True)} of {len(healed)} good"
            + (f"; each test is run {REPEATS} times" if touch else "")
        )
        if healed.count(True) * 2 < len(healed):
            return self._end(
                "not an operator",
                f"with everything moved ({self._remedy}) the result is wrong as well ({_ends(everything)}): not an operator of the "
                "device; look at data, host code and other libraries" + self._further_remedy(),
            )
        if good.count(False) * 2 < len(good):
            return self._end(
                "inconsistent", f"with nothing moved the result is right ({_ends(self._nothing)}): nothing to find"
            )
        return None

    def _further_remedy(self) -> str:
        return ", or try --remedy float32" if self._remedy == "fallback" else ""

    def _refined(self, found: list[Group]) -> list[Group]:
        """The same set in finer parts, as far as few of them are needed."""
        done: list[Group] = []
        waiting = list(found)
        while waiting:
            group = waiting.pop(0)
            parts = split(group)
            if len(parts) == 1:
                done.append(group)
                continue
            others = frozenset(done + waiting)
            tries = Tries(self._test, self._repeats, {others: "bad", others | frozenset(parts): "good"})
            few = needed(tries, parts, others, ways=self._jobs, most=MOST_PARTS)
            few = minimal(tries, few, others) if few else few
            if few and len(few) < len(parts):
                waiting = few + waiting
            else:
                done.append(group)  # all of its calls, or many: the operator itself
        return done

    def _conflicting(self, found: Found[Group]) -> BisectResult:
        names = "; ".join(group.text() for group in found.items)
        if found.conflict:
            good, bad = found.conflict
            more = "; ".join(group.text() for group in sorted(bad - good, key=Group.text)[:5])
            why = f"moving {len(good)} groups is good, and moving more ({more}) is bad: errors of several operators cancel"
        else:
            why = f"the set that was found was bad when it was tried again ({names})"
        return self._end("inconsistent", why, found.items)

    def _report(self, groups: list[Group]) -> BisectResult:
        chosen = frozenset(groups)
        final = self._run([Trial(chosen, remedy=self._remedy, purpose="confirmation")], whole=True)[0]
        if self._judge.answer(final) != "good" and self._repeats == 1:
            return self._end("inconsistent", "the set that was found was bad when it was tried again", groups)
        if len(groups) > 1 and self._worse_alone(groups):
            return self._end(
                "inconsistent", "one of these alone makes it worse: their errors cancel in part", groups, final
            )
        healed = None
        if self._remedy != "placebo":
            outcome = self._run([Trial(chosen, remedy="placebo", purpose="placebo")])[0]
            healed = self._judge.answer(outcome) == "good"
        return self._end("found", self._explain(groups, healed), groups, final, placebo=healed)

    def _worse_alone(self, groups: list[Group]) -> bool:
        alone = self._run([Trial(frozenset([one]), remedy=self._remedy, purpose="alone") for one in groups], whole=True)
        before = _median(self._judge.far(one) for one in self._nothing)
        return any(self._judge.far(one) > 2 * before for one in alone)

    def _explain(self, groups: list[Group], placebo: bool | None) -> str:
        together = (
            "this operator" if len(groups) == 1 else f"these {len(groups)} together, and none of them can be left out,"
        )
        if placebo:
            return f"{together} moved to its own device heals it too: a race, a layout or a stale read, not the arithmetic of a kernel"
        how = {
            "fallback": "moved to the CPU: wrong on the device",
            "float32": "computed in float32: its precision is not enough",
            "placebo": "run alone on its own device, on copies: a race, a layout or a stale read",
        }
        return f"the result is right with {together} {how[self._remedy]}"

    def _end(
        self,
        verdict: Literal["found", "not an operator", "inconsistent"],
        explanation: str,
        groups: Sequence[Group] = (),
        final: Outcome | None = None,
        placebo: bool | None = None,
    ) -> BisectResult:
        captured = self._runner.capture(groups) if verdict == "found" else []
        return BisectResult(
            verdict,
            explanation,
            self._remedy,
            [culprit for group in groups for culprit in _culprits(group)],
            self._runs,
            round(self._seconds, 3),
            placebo,
            self._nothing[0].curve if self._nothing else [],
            final.curve if final else [],
            captured,
        )


def _culprits(group: Group) -> list[dict[str, Any]]:
    """A row for each place; `calls`: how many there are in a step."""
    places: dict[tuple[str, ...], int] = {}
    for call in group.calls:
        facts = as_dict(call)
        place = tuple(str(facts[name]) for name in ("op", "module", "line", "phase"))
        places[place] = places.get(place, 0) + 1
    return [
        dict(zip(("op", "module", "line", "phase"), place, strict=True), calls=count) for place, count in places.items()
    ]


def _ends(outcomes: Sequence[Outcome]) -> str:
    """How runs ended, for people."""
    one = outcomes[0]
    return f"{one.ended} {one.note}".strip() + (f", {_curve(one.curve, 3)}" if one.curve else "")


def tools_of(trial: Trial, folder: Path, listing: str) -> Any:
    """The tool with which a trial runs.

    Raises:
        op_tools.Error: the folder cannot be written to.
    """
    kind = OpDtypeCast if trial.remedy == "float32" else OpFallback
    own: dict[str, Any] = {"level": "aten"}
    if trial.remedy == "placebo":
        own["target"] = "same"
    if not trial.everything and not trial.groups:
        return kind(**own, list_calls=listing)
    if trial.everything:
        return kind(**own)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "calls"
        write_items(path, trial.groups)
    except OSError as error:
        raise _C.Error(f"{folder}: {error.strerror}") from None
    return kind(**own, only_calls=str(path))
