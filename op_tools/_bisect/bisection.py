"""A bisection from its opening to its report; the runner knows how to run a trial."""

from __future__ import annotations

import collections
import functools
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from .._base.core import Error
from .._base.results import duration_text
from . import Remedy
from .items import Call, Group, Suspects, by_op, ordered, split
from .outcome import BisectJudge, Outcome
from .result import MOST_SHOWN, BisectResult, Verdict, culprits_of, curve_text
from .search import Answer, Tries, Votes, minimal, narrowed, needed, search
from .trial_tools import Purpose, Trial

OPENING_RUNS = 3  # on each side
PARTS: dict[Purpose, str] = {
    "nothing": "opening",
    "everything": "opening",
    "calls": "opening",
    "search": "search",
    "refinement": "lines and calls",
    "confirmation": "confirmation",
    "alone": "each alone",
    "placebo": "placebo",
}
"""The purposes of runs, as the report names them."""
_LACKS: dict[Remedy, str] = {
    "fallback": "none ran on a device",
    "float32": "none ran in float16 or bfloat16",
    "placebo": "none ran on a device",
}
COMPARISON = "OpAutoCompare"
FURTHER_RUNS = 7  # besides the search: the check, refinement to calls, confirmation, placebo
RANKED_RUNS = 2  # in which a search finds the culprit among the first suspects
COMPARED_STEP = 5  # steps on the CPU take as long as a step under OpAutoCompare, which runs each operator several times
BAR = 20
MOST_PARTS = 3  # of a group: of more, the group is reported as a whole
REPEATS, MOST_REPEATS = 3, 5  # of each test where answers vary
MOST_ENDS = 8  # runs that look for the calls behind a call that ends the program


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


Stop = Callable[[Sequence[float]], bool]


class Runner(Protocol):
    """Runs trials."""

    def run(self, trials: Sequence[Trial], stop: Stop) -> list[Outcome]:
        """Outcomes, in order. A run whose curve `stop` says is bad already may end at once."""

    def calls(self) -> list[Call]:
        """The calls that can be moved, known after a run with nothing moved."""

    def has_torch(self) -> bool:
        """The program has imported torch in a run: without it, it has no operators."""

    def unseen(self) -> list[str]:
        """Why not all operators of the program were seen in its runs; empty where they were."""

    def compare(self, seconds: float) -> Path:
        """A folder for OpAutoCompare's result on the first step with nothing moved; empty if that took over `seconds`."""

    def capture(self, calls: Sequence[Call], moved: Trial) -> list[str]:
        """Folders of these calls, saved in the first step of a trial: where the culprits are moved, each has right inputs."""


def suspects_of(argument: str) -> Suspects | Literal["auto"] | None:
    """The argument of `--suspects`: "auto", "none", or the path of a result."""
    return "auto" if argument == "auto" else None if argument == "none" else Suspects(argument)


def _count(things: Collection[object], word: str) -> str:
    return f"{len(things)} {word}{'s' * (len(things) != 1)}"


class Session:
    """A bisection.

    Args:
        runner: runs the trials.
        judge: judges them.
        remedy: the change of the operators.
        suspects: which of them first; "auto": they are found here.
        jobs: trials at the same time.
        say: takes lines about the progress.
        draw: takes a line that replaces the line before, for a terminal; "" at the end.
    """

    def __init__(
        self,
        runner: Runner,
        judge: BisectJudge,
        remedy: Remedy = "fallback",
        suspects: Suspects | Literal["auto"] | None = None,
        jobs: int = 1,
        say: Callable[[str], None] = lambda _: None,
        draw: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._runner, self._judge, self._remedy = runner, judge, remedy
        self._suspects, self._jobs, self._say, self._draw = suspects, jobs, say, draw
        self._expected, self._known = OPENING_RUNS * 2, "opening"
        self._runs: collections.Counter[str] = collections.Counter()  # by purpose
        self._seconds, self._votes = 0.0, Votes()
        self._healed: dict[frozenset[Group], Outcome] = {}
        self._last: set[str] = set()
        """Operators after whose call the program ended too early."""
        self._enough = False  # these are enough
        self._majority = False  # runs that should be right are not always: good is an answer of most runs
        self._nothing: list[Outcome] = []
        self._everything: list[Outcome] = []

    def run(self) -> BisectResult:
        """All of it."""
        try:
            return self._run_all()
        finally:
            self._draw("")

    def _run_all(self) -> BisectResult:
        stopped = self._open()
        if stopped:
            return stopped
        groups = by_op(self._calls())
        if not groups:
            return self._end("not judged", self._unseen())
        self._estimate(groups)
        suspects = self._find_suspects(len(groups)) if self._suspects == "auto" else self._suspects
        suspects = suspects if suspects and suspects.wrong else None
        groups = sorted(ordered(groups, suspects), key=lambda group: group.item not in self._last)
        result, varies = self._attempt(groups, suspects)
        for repeats in (REPEATS, MOST_REPEATS):
            if not varies or repeats <= self._votes.repeats:
                continue
            self._votes = Votes(repeats, self._majority or self._right_varies(repeats))
            self._say(f"a set that was good is bad when it is tried again: from the start, each test {repeats} times")
            result, varies = self._attempt(groups, suspects)
        return result

    def _right_varies(self, repeats: int) -> bool:
        """Is a run with everything moved bad now and then? It has to be known before a set counts as good that is so most times."""
        again = self._run([Trial(everything=True, remedy=self._remedy, purpose="everything")] * repeats, whole=True)
        self._majority = any(self._judge.answer(one) != "good" for one in again)
        return self._majority

    def _attempt(self, groups: list[Group], suspects: Suspects | None) -> tuple[BisectResult, bool]:
        """A search and its check. True: it failed because answers vary."""
        ranked = suspects is not None or bool(self._last)
        enough = [group for group in groups if group.item in self._last] if self._enough else []
        searched = search(groups, self._test, ranked=ranked, votes=self._votes, ways=self._jobs, good=enough)
        if searched.conflict and self._test(list(searched.conflict)) == ["good", "bad"]:
            return self._end("inconsistent", _cancelling(*searched.conflict), searched.items), False
        if not searched.items:
            why = "everything moved is good, all listed calls moved are bad: the calls differ from run to run"
            return self._end("inconsistent", why), False
        if searched.conflict or not searched.good:
            return self._unconfirmed(searched.items), True
        refined = self._refined(searched.items, suspects)
        if self._moved(refined, "confirmation"):
            return self._report(refined), False
        if self._votes.repeats == MOST_REPEATS and self._moved(searched.items, "confirmation"):
            return self._report(searched.items), False  # the effect of a single line is as small as the noise
        return self._unconfirmed(refined), True

    def _calls(self) -> list[Call]:
        """Those of the program. Where it ends too early, the operator that is called last is moved, to see the calls behind it."""
        calls = self._runner.calls()
        ended = self._nothing[0].ended
        for _ in range(MOST_ENDS):
            if ended in ("done", "skipped") or not calls or calls[-1].of_op in self._last:
                break
            self._last.add(calls[-1].of_op)
            moved = frozenset(group for group in by_op(calls) if group.item in self._last)
            outcome = self._run([Trial(moved, remedy=self._remedy, purpose="calls", lists=True)], whole=True)[0]
            ended, calls = outcome.ended, self._runner.calls()
            self._enough = self._judge.answer(outcome) == "good"
        return calls

    def _typical(self) -> float:
        """Seconds of a run in which some operators are moved."""
        sides = [_median(one.seconds for one in side) for side in (self._nothing, self._everything)]
        return sum(sides) / len(sides)

    def _estimate(self, groups: Sequence[Group]) -> None:
        """Tells how long it will take for one culprit."""
        tests = (len(groups).bit_length() + FURTHER_RUNS) * self._votes.repeats
        self._expected = self._runs.total() + tests
        self._known = f"{len(groups)} operators"
        self._say(
            f"{sum(len(group.calls) for group in groups)} calls of {len(groups)} operators; about {tests} runs for each culprit, "
            f"{duration_text(tests * self._typical() / self._jobs)}"
        )

    def _find_suspects(self, operators: int) -> Suspects | None:
        """By a run with OpAutoCompare, if that takes less time than the runs that it can save."""
        saved = (operators.bit_length() - RANKED_RUNS) * self._typical() * self._votes.repeats
        steps = max((len(one.curve) for one in self._everything), default=0) or 1
        step = _median(one.seconds for one in self._everything) / steps
        ends = self._nothing[0].ended in ("crashed", "hung")
        if self._remedy != "fallback" or ends or COMPARED_STEP * step > saved:
            return None
        began = time.monotonic()
        folder = self._runner.compare(saved)
        self._runs[COMPARISON] += 1
        self._seconds += time.monotonic() - began
        suspects = Suspects(str(folder)) if any(folder.rglob("autocompare.csv")) else None
        if suspects:
            worst = sorted(suspects.wrong, key=lambda op: -suspects.wrong[op])
            shown = ", ".join(f"{op} ({suspects.wrong[op]:.3g} times its limit)" for op in worst[:MOST_SHOWN])
            self._say(f"OpAutoCompare on one step: {_count(worst, 'operator')} wrong{': ' if worst else ''}{shown}")
        return suspects

    def _run(self, trials: Sequence[Trial], *, whole: bool = False) -> list[Outcome]:
        self._draw_bar(len(trials))
        outcomes = self._runner.run(trials, (lambda _: False) if whole else self._judge.left_band)
        self._runs.update(PARTS[trial.purpose] for trial in trials)
        self._seconds += sum(one.seconds for one in outcomes)
        return outcomes

    def _draw_bar(self, further: int) -> None:
        done = self._runs.total()
        expected = max(self._expected, done + further)
        filled = BAR * done // expected
        left = ""
        if self._everything:
            left = f", {duration_text((expected - done) * self._typical() / self._jobs)} left"
        self._draw(
            f"bisect [{'#' * filled}{'.' * (BAR - filled)}] run {done + 1} of about {expected}{left}; {self._known}"
        )

    def _test(self, sets: list[frozenset[Group]], purpose: Purpose = "search") -> list[Answer]:
        trials = [Trial(one, remedy=self._remedy, purpose=purpose) for one in sets]
        outcomes = self._run(trials)
        answers = []
        for moved, outcome in zip(sets, outcomes, strict=True):
            answers.append(self._judge.answer(outcome))
            why = "" if outcome.ended == "done" else f" ({outcome.ended}{' ' * bool(outcome.note)}{outcome.note})"
            self._say(f"run {self._runs.total()}: {_count(moved, 'group')} of calls moved: {answers[-1]}{why}")
            if answers[-1] == "good":
                self._healed[moved] = outcome
                self._known = (
                    f"enough: {_count(moved, 'group')} of calls" if len(moved) > 1 else next(iter(moved)).text()
                )
        return answers

    def _open(self) -> BisectResult | None:
        """Nothing moved must be bad, everything moved must be good."""
        nothing = [Trial(remedy=self._remedy, purpose="nothing")]
        self._nothing = self._run(nothing, whole=True)
        first = self._nothing[0]
        if self._judge.reads_numbers and first.ended == "done" and not first.curve:
            shown = f"; its last lines:\n{first.tail}" if first.tail else ""
            raise Error(
                "the program ended well and gave no number that could be judged; print 'loss 0.5' in each step, give --metric an "
                f"expression that finds its numbers, or --check{shown}"
            )
        # A program that hangs has no noise to measure, and each run takes all of its time limit.
        if self._nothing[0].ended != "hung":
            self._nothing += self._run(nothing * (OPENING_RUNS - 1), whole=True)
        moved = [Trial(everything=True, remedy=self._remedy, purpose="everything")]
        self._everything = everything = self._run(moved * OPENING_RUNS, whole=True)
        touch = self._judge.settle(self._nothing, everything)
        good = [self._judge.answer(one) == "good" for one in self._nothing]
        healed = [self._judge.answer(one) == "good" for one in everything]
        self._majority = not all(healed)
        self._votes = Votes(REPEATS, self._majority) if touch else Votes()
        self._say(
            f"nothing moved: {good.count(False)} of {len(good)} runs bad; everything moved: {healed.count(True)} of {len(healed)} good"
            + (f"; each test is run {REPEATS} times" if touch else "")
        )
        if healed.count(True) * 2 < len(healed):
            if unseen := self._unseen():
                return self._end("not judged", unseen)
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

    def _unseen(self) -> str:
        """Why it is not known whether an operator is guilty; "" where it is. A program without torch, of which a command says how
        it went, has none."""
        if not self._runner.has_torch():
            return "no process of the program imported torch with op_tools" if self._judge.reads_numbers else ""
        reasons = [] if self._runner.calls() else [f"no operator of the program can be moved: {_LACKS[self._remedy]}"]
        return "; ".join(reasons + self._runner.unseen())

    def _further_remedy(self) -> str:
        return ", or try --remedy float32" if self._remedy == "fallback" else ""

    def _refined(self, culprits: list[Group], suspects: Suspects | None) -> list[Group]:
        """The same set in finer parts, as far as few of them are needed."""
        done: list[Group] = []
        waiting = list(culprits)
        while waiting:
            group = waiting.pop(0)
            parts = split(group)
            others = frozenset(done + waiting)
            test = functools.partial(self._test, purpose="refinement")
            tries = Tries(test, self._votes, {others: "bad", others | frozenset(parts): "good"})
            ranked = ordered(parts, suspects) if suspects else parts
            left = narrowed(tries, ranked, others, most=MOST_PARTS, ways=self._jobs) if len(parts) > 1 else None
            few = left and needed(tries, left, others, ranked=suspects is not None, ways=self._jobs, most=MOST_PARTS)
            few = minimal(tries, few, others) if few else few
            if few and len(few) < len(parts):
                waiting = few + waiting
            else:
                done.append(group)  # all of its calls, or many: the operator itself
        return done

    def _unconfirmed(self, groups: Sequence[Group]) -> BisectResult:
        why = "a set that was good was bad when it was tried again"
        return self._end("inconsistent", f"{why} ({'; '.join(group.text() for group in groups)})", groups)

    def _moved(self, groups: Sequence[Group], purpose: Purpose, remedy: Remedy | None = None) -> bool:
        """Does it heal that these are moved?"""
        trial = Trial(frozenset(groups), remedy=remedy or self._remedy, purpose=purpose)
        answers = [self._judge.answer(one) for one in self._run([trial] * self._votes.repeats)]
        return self._votes.settle(answers) == "good"

    def _report(self, groups: list[Group]) -> BisectResult:
        final = self._healed.get(frozenset(groups))
        healed = None
        if self._remedy != "placebo":
            # Said only if it heals again and again: a fault that does not show each time seems healed now and then.
            healed = all(self._moved(groups, "placebo", "placebo") for _ in range(REPEATS))
        # The effect of a single group on a race is chance: its copies take time.
        if len(groups) > 1 and not healed and self._worse_alone(groups):
            return self._end(
                "inconsistent", "one of these alone makes it worse: their errors cancel in part", groups, final
            )
        return self._end("found", self._explain(groups, healed), groups, final, placebo=healed)

    def _worse_alone(self, groups: list[Group]) -> bool:
        """Whether the result is worse with a single group moved than with none, each time. A fault may be larger at one time than at another."""
        before = max(self._judge.far(one) for one in self._nothing)
        trials = [Trial(frozenset([one]), remedy=self._remedy, purpose="alone") for one in groups]
        for _ in range(OPENING_RUNS):
            outcomes = self._run(trials, whole=True)
            far = [self._judge.far(one) for one in outcomes]
            trials = [trial for trial, one in zip(trials, far, strict=True) if one > 2 * before]
            if not trials:
                return False
        return True

    def _explain(self, groups: list[Group], placebo: bool | None) -> str:
        together = (
            "this operator" if len(groups) == 1 else f"these {len(groups)} together, and none of them can be left out,"
        )
        if placebo:
            return f"{together} moved to its own device heals it too: a race, a layout, a stale read or a write to an input, not the arithmetic of a kernel"
        how = {
            "fallback": "moved to the CPU: wrong on the device",
            "float32": "computed in float32: its precision is not enough",
            "placebo": "run alone on its own device, on copies: a race, a layout or a stale read",
        }
        return f"the result is right with {together} {how[self._remedy]}"

    def _end(
        self,
        verdict: Verdict,
        explanation: str,
        groups: Sequence[Group] = (),
        final: Outcome | None = None,
        placebo: bool | None = None,
    ) -> BisectResult:
        moved = Trial(frozenset(groups), remedy=self._remedy)
        captured = self._runner.capture(_first_calls(groups), moved) if verdict == "found" else []
        return BisectResult(
            verdict,
            explanation,
            self._remedy,
            [culprit for group in groups for culprit in culprits_of(group)],
            self._runs.total(),
            round(self._seconds, 3),
            placebo,
            self._nothing[0].curve if self._nothing else [],
            final.curve if final else [],
            captured,
            dict(self._runs),
        )


def _first_calls(groups: Sequence[Group]) -> list[Call]:
    """A call for each place."""
    places: dict[tuple[str, ...], Call] = {}
    for group in groups:
        for call in group.calls:
            places.setdefault((call.op, call.module, call.line, call.phase), call)
    return list(places.values())


def _cancelling(good: frozenset[Group], bad: frozenset[Group]) -> str:
    more = "; ".join(group.text() for group in sorted(bad - good, key=Group.text)[:5])
    return f"moving {len(good)} groups is good, and moving more ({more}) is bad: errors of several operators cancel"


def _ends(outcomes: Sequence[Outcome]) -> str:
    """How runs ended, for people."""
    first = outcomes[0]
    return f"{first.ended} {first.note}".strip() + (f", {curve_text(first.curve, 3)}" if first.curve else "")
