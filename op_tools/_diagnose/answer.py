"""The answer of a diagnosis, for programs and for people."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._base.results import Shown, finite_json, text_table, worded
from .._base.verdict import Verdict, verdict_of


class Cause(str, enum.Enum):
    """The kinds of cause, the first to look at first."""

    CRASH = "crash"
    HANG = "hang"
    MISSING_OPERATOR = "missing_operator"
    RAISING_OPERATOR = "raising_operator"
    PROGRAM_RAISES = "program_raises"
    WRONG_COMPILER = "wrong_compiler"
    WRONG_RANK = "wrong_rank"
    WRONG_OPERATOR = "wrong_operator"
    RACE = "race"
    RANDOM_NUMBERS = "random_numbers"
    DATA = "data"
    PROGRAM_DIFFERS = "program_differs"
    NOT_FINITE = "not_finite"
    MEMORY_GROWS = "memory_grows"
    SLOW_OPERATOR = "slow_operator"
    PROGRAM_EXITS = "program_exits"
    NOT_KNOWN = "not_known"

    __str__ = str.__str__


SENTENCES = {
    Cause.CRASH: "the process died in an operator",
    Cause.HANG: "the program hangs",
    Cause.MISSING_OPERATOR: "the device lacks an operator",
    Cause.RAISING_OPERATOR: "an operator raises on the device, and not on the CPU",
    Cause.PROGRAM_RAISES: "the program raises an exception; no operator of the device is to blame for it",
    Cause.WRONG_COMPILER: "a compiled graph is wrong, and its operators, each by itself, are right",
    Cause.WRONG_RANK: "an operator is wrong on some of the ranks only: look at their device first",
    Cause.WRONG_OPERATOR: "an operator gives wrong results",
    Cause.RACE: "an operator is right when the device is idle before and after it: a race, a layout or a stale read",
    Cause.RANDOM_NUMBERS: "the two programs draw other random numbers: seed, generator, or order of the draws",
    Cause.DATA: "the two programs are given other data",
    Cause.PROGRAM_DIFFERS: "the two programs call an operator with other arguments",
    Cause.NOT_FINITE: "the program's own numbers: an operator that is right makes NaN or infinities from finite inputs",
    Cause.MEMORY_GROWS: "memory grows with the steps",
    Cause.SLOW_OPERATOR: "an operator takes much longer on the device than on the CPU",
    Cause.PROGRAM_EXITS: "the program ends by itself, without an exception, with another exit status than 0",
    Cause.NOT_KNOWN: "no cause is known",
}
"""The sentence of each cause."""


@dataclass(frozen=True)
class Culprit:
    """A cause, and where it is. A field that is not known is empty."""

    cause: Cause
    op: str = ""
    """As torch or the dispatcher names it; of a graph "torch.compile.graph_0"."""
    phase: str = ""
    module: str = ""
    line: str = ""
    """The program's line, "train.py:9 forward"."""
    rank: str = ""
    """ "" where all ranks have it."""
    step: int | None = None
    reason: str = ""
    saved: str = ""
    """The folder of a saved call."""
    certain: bool = False
    """A second look confirmed it, or none is needed."""
    question: str = ""
    """Which question found it."""

    @property
    def place(self) -> tuple[str, str]:
        """Operator and phase."""
        return self.op, self.phase


def culprit_at(cause: Cause, row: Mapping[str, Any], reason: str = "") -> Culprit:
    """Where a row of a result is: its op, phase, module and line."""
    op, phase, module, line = (str(row.get(name) or "") for name in ("op", "phase", "module", "line"))
    return Culprit(cause, op, phase, module, line, reason=reason)


@dataclass
class Asked:
    """A question, and how it went."""

    name: str
    title: str
    commands: list[str] = field(default_factory=list)
    seconds: float = 0.0
    outcome: str = ""
    not_asked: str = ""
    """Why it was not asked; "" where it was."""
    is_gap: bool = True
    """False: there was nothing that it could be asked about."""
    gaps: list[str] = field(default_factory=list)
    """The parts that it did not look at."""


@dataclass
class Answer:
    """The answer of a diagnosis."""

    culprits: list[Culprit]
    asked: list[Asked]
    steps: int = 0
    """Training steps that the black box of the first question saw."""
    losses: list[float] = field(default_factory=list)
    next_commands: list[tuple[str, str]] = field(default_factory=list)
    """The purpose of each command, and the command."""
    report: str = ""
    """The page of all results; "" where none could be made."""

    @property
    def cause(self) -> Cause:
        """That of the first culprit which is certain, else of the first."""
        return self.culprits[0].cause if self.culprits else Cause.NOT_KNOWN

    @property
    def gaps(self) -> list[str]:
        """All that was not looked at."""
        lines = [f"{asked.title}: {asked.not_asked}" for asked in self.asked if asked.not_asked and asked.is_gap]
        return lines + [f"{asked.title}: {gap}" for asked in self.asked for gap in asked.gaps]

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all was asked, and nothing was left out."""
        return verdict_of(wrong=bool(self.culprits), unseen=self.gaps)

    def sentence(self) -> str:
        """The answer."""
        if not self.culprits:
            looked = ", ".join(asked.name for asked in self.asked if not asked.not_asked and asked.name != "report")
            return f"{SENTENCES[self.cause]}: nothing wrong was found by {looked}, which says nothing of all else"
        first = self.culprits[0]
        others = [culprit for culprit in self.culprits if culprit.cause is first.cause]
        ops = list(dict.fromkeys(f"{culprit.op} {culprit.phase}".strip() for culprit in others if culprit.op))
        text = SENTENCES[first.cause]
        if first.cause is Cause.PROGRAM_EXITS:  # that is seen, and needs nothing that confirms it
            return f"{text}: {first.reason}; nothing else was found"
        if ops:
            text += f": {', '.join(ops[:_MOST])}" + (f" and {len(ops) - _MOST} more" if len(ops) > _MOST else "")
        if ranks := sorted({culprit.rank for culprit in others if culprit.rank}, key=_numbers_first):
            text += f", rank {', '.join(ranks)}"
        if first.module:
            text += f", in {first.module}"
        if first.line:
            text += f", at {first.line}"
        return text if first.certain else f"probably {text}; nothing confirmed it"

    def to_json(self) -> str:
        """A JSON object; numbers that JSON has no form for are strings."""
        content = {
            "cause": self.cause.value,
            "sentence": self.sentence(),
            "verdict": self.verdict.value,
            "culprits": [asdict(culprit) for culprit in self.culprits],
            "asked": [asdict(asked) for asked in self.asked],
            "not_looked_at": self.gaps,
            "steps": self.steps,
            "losses": self.losses,
            "next": [{"purpose": purpose, "command": command} for purpose, command in self.next_commands],
            "report": self.report,
        }
        return json.dumps(finite_json(content), indent=1)

    def text(self) -> str:
        """For people: the answer, the culprits, the gaps, and the next commands."""
        lines = [f"{self.cause.value}: {self.sentence()}"]
        if self.culprits:
            columns: list[Shown[Culprit]] = [worded(name, name) for name in ("cause", "op", "phase", "module")]
            columns.append(Shown("line", lambda culprit: culprit.line.rpartition("/")[2]))
            if any(culprit.rank for culprit in self.culprits):
                columns.insert(3, worded("rank", "rank"))
            lines += ["", text_table(columns, self.culprits, _MOST_ROWS, 80)]
            lines += [f"{culprit.op or culprit.cause}: {culprit.reason}" for culprit in _first_of_each(self.culprits)]
        if self.gaps:
            lines += ["", "Not looked at:", *(f"  {gap}" for gap in self.gaps[:_MOST_ROWS])]
        if self.next_commands:
            lines += ["", "Next:"]
            for purpose, command in self.next_commands:
                lines += [f"  {purpose}:", f"    {command}"]
        return "\n".join(lines)


_MOST = 3  # operators in a sentence
_MOST_ROWS = 10


def _first_of_each(culprits: Sequence[Culprit]) -> list[Culprit]:
    """The first of each operator whose reason is known."""
    return list({culprit.place: culprit for culprit in reversed(culprits) if culprit.reason}.values())[::-1][:_MOST]


def _numbers_first(rank: str) -> tuple[int, str]:
    return (int(rank), "") if rank.isdecimal() else (1 << 30, rank)


def in_order(culprits: Sequence[Culprit]) -> list[Culprit]:
    """Certain ones first, of these in the order of their causes; as they were found within a cause."""
    order = list(Cause)
    return sorted(culprits, key=lambda culprit: (not culprit.certain, order.index(culprit.cause)))
