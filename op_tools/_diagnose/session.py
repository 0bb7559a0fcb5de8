"""A diagnosis from its first question to the report: order, budget, state, and the lines about its progress."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .._base.core import Coverage, Error
from .._base.own_command import op_tools_words
from .._base.results import duration_text
from .._report.part import Finding, Mark, Part
from .._report.scan import parts_below
from .answer import Answer, Asked, Cause, Culprit, in_order
from .program import Program, ended_after, shown
from .runs import Ended, Run, RunState, run_step

STATE, ANSWER, PAGE = "state.jsonl", "diagnosis.json", "report.html"
_REPORT = 600.0  # seconds
_WIDEST = 5  # operators that are named as the answer of a comparison; of more the worst
_LEAST = 10.0  # seconds of the budget that a command needs to be worth its start


class BudgetSpentError(Exception):
    """There is no time for a command."""


@dataclass(frozen=True)
class Plan:
    """The arguments of a diagnosis."""

    program: Program
    folder: Path
    reference: str = ""
    """A command, a recording, or a file of losses; "" for none."""
    minutes: float = 60
    steps: int = 3
    """Training steps in which each call is compared."""
    stall: float = 120
    """Seconds without an operator after which the program hangs."""
    ask_all: bool = False

    def facts(self) -> dict[str, Any]:
        """Those on which results depend."""
        return {"program": self.program.words, "reference": self.reference, "steps": self.steps, "stall": self.stall}


@dataclass
class Facts:
    """Known of the program from its first run."""

    run: Run | None = None
    account: Coverage | None = None
    losses: list[float] = field(default_factory=list)
    ranks: int = 1
    first_step: float = 0.0
    """Seconds from the start of the program to its first operator."""
    per_step: float = 0.0
    raised: list[Culprit] = field(default_factory=list)
    """An operator that raised: it is not known yet whether the device is to blame."""

    @property
    def on_device(self) -> bool:
        """Operators ran on an accelerator."""
        return self.account is not None and bool(self.account.on_device)

    @property
    def device(self) -> str:
        """The type of the accelerator; "" for none."""
        return self.account.accelerator if self.account is not None and self.on_device else ""

    @property
    def graphs(self) -> int:
        """Graphs of torch.compile that ran."""
        return 0 if self.account is None else self.account.graphs + self.account.compiled

    def seconds(self, steps: int, slower: float) -> float:
        """About how long so many steps take with tools on that make a step so many times slower."""
        return self.first_step + steps * self.per_step * slower


@dataclass(frozen=True)
class NotAsked:
    """Why a question is not asked."""

    why: str
    is_gap: bool = True
    """False: there is nothing that it could be asked about."""


@dataclass(frozen=True)
class Question:
    """A question, and the function that asks it."""

    name: str
    """A word, and its folder."""
    title: str
    """The work, in words for people."""
    ask: Callable[[Session], list[Culprit]]
    not_asked: Callable[[Session], NotAsked | None]
    """None: it can be asked."""
    seconds: Callable[[Session], float | None]
    """About how long it takes; None: not known."""


class Session:
    """A diagnosis.

    Args:
        plan: its arguments.
        questions: in their order.
        resume: results of an earlier run of the same diagnosis count.
        say: takes lines for people.
    """

    def __init__(self, plan: Plan, questions: Sequence[Question], *, resume: bool, say: Callable[[str], None]) -> None:
        self.plan, self.questions, self.say = plan, questions, say
        self.facts, self.culprits = Facts(), list[Culprit]()
        self.asked: list[Asked] = []
        self._ends = time.monotonic() + 60 * plan.minutes
        try:
            plan.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Error(f"-o {plan.folder}: {error.strerror}") from None
        self._state = RunState(plan.folder / STATE, _as_json(plan.facts()), resume=resume)

    # --- For questions ------------------------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self._ends - time.monotonic()

    def folder(self, name: str) -> Path:
        """Of the question that is asked, or a part of it."""
        return self.plan.folder / self.asked[-1].name / name

    def seconds_of_steps(self, steps: int, slower: float) -> float:
        """A limit for a run of so many steps, with room for a busy machine."""
        return 60 + 4 * self.facts.seconds(steps, slower)

    def steps_option(self, tool: str) -> list[str]:
        """The option that has a tool look at the first steps alone."""
        return [f"--{tool}-steps", ",".join(map(str, range(self.plan.steps)))]

    def gap(self, text: str) -> None:
        """Something that this question did not look at."""
        self.asked[-1].gaps.append(text)

    def limit(self, seconds: float) -> float:
        """A limit for a command: these seconds, or the rest of the budget.

        Raises:
            BudgetSpentError: that is too little.
        """
        if self.left < _LEAST:
            raise BudgetSpentError
        return max(_LEAST, min(seconds, self.left))

    def with_tools(
        self,
        name: str,
        options: Sequence[str],
        seconds: float,
        *,
        enough: int | None = None,
        program: Program | None = None,
    ) -> Run:
        """Runs the program with tools and a black box, which shows how far it is."""
        folder = self.folder(name)
        limit = self.limit(seconds)
        words = [*options, "--blackbox", "--blackbox-stall", f"{max(1.0, self.plan.stall / 2):g}"]
        command = (program or self.plan.program).with_tools([*words, "--output-dir", str(folder)], limit)
        return self._run(command, folder, limit, enough=enough, stall=self.plan.stall)

    def op_tools(self, name: str, words: Sequence[str], *, seconds: float | None = None) -> Run:
        """Runs a command of op-tools."""
        return self.command(name, [*op_tools_words(), *words], seconds=seconds)

    def command(self, name: str, words: Sequence[str], *, seconds: float | None = None) -> Run:
        """Runs a command, within the budget."""
        limit = self.limit(self.left if seconds is None else seconds)
        return self._run([*ended_after(limit), *words], self.folder(name), limit)

    def report(self, words: Sequence[str]) -> None:
        """Makes the page of all results, whatever is left of the budget, and again where it was made before."""
        command = [*op_tools_words(), *words]
        self.asked[-1].commands.append(shown(command))
        self.say(f"  {shown(command)}")
        run_step(command, self.plan.folder / "report", seconds=_REPORT)

    def _run(
        self, words: Sequence[str], folder: Path, limit: float, *, enough: int | None = None, stall: float = 0
    ) -> Run:
        key = str(folder.relative_to(self.plan.folder))
        run = self._state.known(key)
        text = shown(words) if run is None else run.command
        self.asked[-1].commands.append(text)
        self.say(f"  {text}")
        if run is not None:
            self.say(f"    {run.ended} before, in {duration_text(run.seconds)}")
            return run
        if folder.exists() and not (folder / "state.jsonl").exists():  # of a run that did not come to its end
            shutil.rmtree(folder)
        run = run_step(words, folder, seconds=limit, enough=enough, stall=stall)
        self._state.end(key, run)
        self.say(f"    {_how(run)}")
        return run

    # --- The order ----------------------------------------------------------------------------------------------------

    def run(self, finish: Callable[[Session], Answer]) -> Answer:
        """All of it."""
        for number, question in enumerate(self.questions, 1):
            self.asked.append(Asked(question.name, question.title))
            reason = question.not_asked(self)
            if self.is_answered and (reason is None or reason.is_gap):
                reason = NotAsked("the cause is known already (--all asks on)")
            if reason is None and self.left < _LEAST:
                reason = NotAsked(f"the budget of {self.plan.minutes:g} minutes is spent")
            if reason is not None:
                self.asked[-1].not_asked, self.asked[-1].is_gap = reason.why, reason.is_gap
                continue
            about = question.seconds(self)
            takes = f"about {duration_text(about)}" if about is not None else "as long as the program takes"
            self.say(f"{number}/{len(self.questions)} {question.title}: {takes}, at most {duration_text(self.left)}")
            self._ask(question)
        return finish(self)

    def _ask(self, question: Question) -> None:
        began = time.monotonic()
        try:
            culprits = [replace(culprit, question=question.name) for culprit in question.ask(self)]
        except BudgetSpentError:
            self.gap(f"the budget of {self.plan.minutes:g} minutes was spent")
            culprits = []
        except Error as error:  # a tool that fails is no end of the diagnosis
            self.gap(f"it failed: {error}")
            culprits = []
        asked = self.asked[-1]
        asked.seconds = time.monotonic() - began
        self.culprits = in_order(_with_later_answers(self.culprits, culprits))
        names = list(dict.fromkeys(f"{culprit.cause} {culprit.op}".strip() for culprit in culprits))
        asked.outcome = "; ".join(names) or ("nothing known" if asked.gaps else "nothing wrong")
        self.say(f"    {asked.outcome}")
        for gap in asked.gaps:
            self.say(f"    not looked at: {gap}")

    @property
    def is_answered(self) -> bool:
        """A cause is certain, and not all is asked."""
        return not self.plan.ask_all and any(culprit.certain for culprit in self.culprits)


def _how(run: Run) -> str:
    status = f", exit status {run.status}" if run.ended in (Ended.FAILED, Ended.CRASHED) else ""
    return f"{run.ended} after {duration_text(run.seconds)}{status}"


def _with_later_answers(culprits: Sequence[Culprit], further: Sequence[Culprit]) -> list[Culprit]:
    """A later, certain answer about an operator takes the place of an earlier answer about it."""
    later = {culprit.place for culprit in further if culprit.op}
    return [culprit for culprit in culprits if culprit.certain or culprit.place not in later] + [
        culprit
        for culprit in further
        if not any(other.certain and other.place == culprit.place and culprit.op for other in culprits)
    ]


def _as_json(facts: dict[str, Any]) -> dict[str, Any]:
    """As they are read again from a file."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


# --- Results of tools -------------------------------------------------------------------------------------------------


def parts_of(session: Session, folder: Path, tool: str) -> list[Part]:
    """The results of a tool below a folder; a result that says it did not look at all is a gap."""
    parts = [part for part in parts_below(folder) if part.tool == tool]
    reasons = dict.fromkeys(reason for part in parts for reason in part.origin.reasons)
    for reason in reasons:
        session.gap(f"{tool}: {reason}")
    if not parts:
        session.gap(f"{tool} left no result")
    return parts


COMPARED, RECORDED, SYNCHRONOUS = 12.0, 3.0, 2.0
"""How many times longer a step takes: under OpAutoCompare, OpRecord, and with a wait behind each call."""


def wrong_findings(parts: Sequence[Part]) -> list[Finding]:
    """Those that are wrong, of all ranks."""
    return [finding for part in parts for finding in part.findings if finding.mark is Mark.WRONG]


def culprits_of_findings(parts: Sequence[Part], findings: Sequence[Finding], cause: Cause) -> list[Culprit]:
    """A culprit for each operator, phase and module, the worst operators first; with its ranks where other ranks are right.

    Args:
        parts: the results of all ranks.
        findings: of them.
        cause: of all ranks. An operator that is wrong on some ranks only is WRONG_RANK, and certain: the others confirm it.
    """
    looked = {part.origin.rank for part in parts}
    ranks: dict[tuple[str, str], set[str]] = {}
    for finding in findings:
        ranks.setdefault((finding.op, finding.phase), set()).add(finding.rank)
    order = sorted(findings, key=lambda finding: -(finding.worst or 0.0))
    kept = list(dict.fromkeys((finding.op, finding.phase) for finding in order))[:_WIDEST]
    culprits: dict[tuple[str, str, str], Culprit] = {}
    for finding in order:
        place = finding.op, finding.phase
        if place not in kept:
            continue
        is_of_some = ranks[place] < looked
        of_ranks = is_of_some and cause is Cause.WRONG_OPERATOR
        culprit = Culprit(
            Cause.WRONG_RANK if of_ranks else cause,
            finding.op,
            finding.phase,
            finding.module,
            finding.line,
            ",".join(sorted(ranks[place])) if is_of_some else "",
            finding.first_step,
            finding.text,
            finding.saved,
            certain=of_ranks,
        )
        culprits.setdefault((*place, finding.module), culprit)
    return list(culprits.values())
