"""The result of a comparison of sequences: a row for each result that both runs have, and the whole as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from .._base.account import lines_of, reasons_of
from .._base.declared_rows import CallVerdict
from .._base.results import Result, Shown, short_name, text_table, worded
from .._base.verdict import Coverage, Verdict, status_of, verdict_of

_BEYOND = 8.0  # times: another order of sums makes a difference of few units, and lets it grow slowly
_SHOWN = 4  # calls of a side


@dataclass(frozen=True)
class SequenceRow:
    """A result of an operator that both runs have, over all tokens that both have."""

    op: str
    module: str
    line: str
    """Of A."""
    line_b: str
    place: str
    dtype: str
    verdict: str
    """`agrees`: the same bits for each token; `born here`: of some tokens the inputs have the same bits, the result has not; `carried`: all
    tokens with other bits have other inputs; `differs, cause not found`: no input that could be compared has other bits."""
    tokens: int
    """Rows that were compared."""
    differ: int
    """Of them: with other bits."""
    born: int
    """Of those: whose inputs have the same bits."""
    input_difference: float
    """Of the inputs' rows: the root of the mean square of the difference, each as a share of the row's norm; the input with the largest."""
    difference: float
    """The same of the result."""
    own_difference: float
    """The same of the result's rows whose inputs have the same bits."""
    largest: float
    """The largest difference of a row of the result, as a share of its norm."""
    units: float
    """`largest`, in units of the rounding of the coarsest dtype of this result and those before it."""
    not_compared: list[str]
    """Inputs without rows in common: masks, position tables. Parameters are compared as a whole."""
    ids_a: list[int]
    """Of the calls."""
    ids_b: list[int]
    proof: str = "hashes"
    """`hashes` of the rows; `values`: the captured rows were compared."""
    judged_a: str = ""
    """With captures: A's calls, run again on the CPU: `agrees`, `differs`, `not judged`, `could not run`."""
    judged_b: str = ""


@dataclass(frozen=True)
class TokenDifferences:
    """A number that both runs have of each token: the log-probability."""

    op: str
    module: str
    line: str
    tokens: int
    differ: int
    mean: float
    """Of the absolute differences."""
    largest: float


@dataclass(frozen=True, repr=False)
class SequenceComparison(Result):
    """Whole sequences against pieces of them."""

    a: str
    b: str
    rows: list[SequenceRow]
    """In the order of A."""
    tokens_a: int
    tokens_b: int
    matched: int
    """Tokens of B that A has, too."""
    forwards: tuple[int, int]
    """Forward passes of A and of B."""
    alone: tuple[list[tuple[int, str]], list[tuple[int, str]]]
    """Calls of A and of B on tokens that the other run has no call for: id, and operator, module and line."""
    log_probabilities: TokenDifferences | None
    """Of the last result that is a number for each token."""
    not_compared: list[str] = field(default_factory=list)
    """Operators with results that were computed of tokens, and that have rows of no known tokens: an unusual layout, too many rows."""
    other_parameters: list[str] = field(default_factory=list)
    """Parameters that have other bits in B."""
    accounts: dict[str, Coverage] = field(default_factory=dict)
    incomplete: int = 0
    tokens_alone: tuple[int, int] = (0, 0)
    """Of A and of B, which the other has not; those of `ends` are not among them."""
    ends: int = 0
    """Tokens of A alone that are the last of a sequence whose others B has: the engine gave them, and never read them."""

    @property
    def first(self) -> SequenceRow | None:
        """The first operator whose inputs have the same bits and whose result has not; else the first with another result."""
        differing = [row for row in self.rows if row.verdict != CallVerdict.AGREES]
        return differing[0] if differing else None

    @property
    def beyond_rounding(self) -> SequenceRow | None:
        """The first result that differs by much more than rounding, and than any result before it: a wrong operator is not hidden by
        rounding that began earlier."""
        most = 0.0
        for row in self.rows:
            if row.units > _BEYOND and row.largest > _BEYOND * most:
                return row
            most = max(most, row.largest)
        return None

    def before(self, row: SequenceRow) -> list[str]:
        """The last calls of A alone and of B alone before a row that was not born here: it may have been in them.

        Args:
            row: of `rows`.
        """
        if row.born:
            return []
        texts = []
        for name, calls, ids in zip("AB", self.alone, (row.ids_a, row.ids_b), strict=True):
            if before := [text for number, text in calls if number < ids[-1]]:
                texts.append(f"of {name} alone: {', '.join(dict.fromkeys(before[-_SHOWN:]))}")
        return texts

    @property
    def unseen(self) -> list[str]:
        """Why it is not known that tokens have the same bits in both; empty where it is."""
        reasons = [] if self.rows else ["no result was compared"]
        if any(self.tokens_alone):
            reasons.append(f"{self.tokens_alone[0]} tokens are in A alone, {self.tokens_alone[1]} in B alone")
        if any(self.alone):
            counts = [len(calls) for calls in self.alone]
            reasons.append(f"{counts[0]} calls on tokens are in A alone, {counts[1]} in B alone")
        if self.not_compared:
            ops = ", ".join(map(short_name, self.not_compared[:_SHOWN])) + (
                " ..." if len(self.not_compared) > _SHOWN else ""
            )
            reasons.append(f"results with rows of no known tokens: {ops}")
        if self.incomplete:
            reasons.append(f"{self.incomplete} recordings are incomplete")
        return reasons + reasons_of(self.accounts)

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all tokens were compared, but for `ends`, in all their calls."""
        return verdict_of(wrong=self.first is not None or bool(self.other_parameters), unseen=self.unseen)

    @property
    def exit_status(self) -> int:
        """0: the same bits; 1: other bits; 2: not judged."""
        return status_of(self.verdict)

    def births(self) -> list[SequenceRow]:
        """The results in which a difference was born, the largest of its own first."""
        return sorted(
            (row for row in self.rows if row.verdict == CallVerdict.BORN), key=lambda row: -row.own_difference
        )

    def table(self) -> str:
        """For people, in 80 columns."""
        return "\n".join(_described(self))

    def to_json(self) -> str:
        """A record for each row, a first_divergence where there is any, and a summary, as lines of JSON."""
        records: list[dict[str, Any]] = [{"kind": "row", **asdict(row)} for row in self.rows]
        if self.first is not None:
            records.append({"kind": "first_divergence", **asdict(self.first), "before": self.before(self.first)})
        if (beyond := self.beyond_rounding) is not None:
            records.append({"kind": "beyond_rounding", **asdict(beyond), "before": self.before(beyond)})
        names = ("tokens_a", "tokens_b", "matched", "tokens_alone", "ends", "forwards", "alone", "other_parameters")
        end = asdict(self.log_probabilities) if self.log_probabilities else None
        verdict = {"exit_status": self.exit_status, "verdict": self.verdict.value, "unseen": self.unseen}
        records.append(
            {
                "kind": "summary",
                **verdict,
                **{name: getattr(self, name) for name in names},
                "log_probabilities": end,
                "rows": len(self.rows),
            }
        )
        return "".join(json.dumps(record) + "\n" for record in records)


def _described(comparison: SequenceComparison) -> Iterator[str]:
    first = comparison.first
    for name, path in (("A", comparison.a), ("B", comparison.b)):
        yield f"{name}: {path}"
        yield from lines_of(comparison.accounts.get(name))
    forwards_a, forwards_b = comparison.forwards
    yield f"tokens: {comparison.tokens_a} of A in {forwards_a} forward passes, {comparison.tokens_b} of B in {forwards_b}; {comparison.matched} in both"
    if comparison.ends:
        yield f"not compared: {comparison.ends} tokens of A that end a sequence: B gave them, and did not compute with them"
    yield from (f"another parameter in B: {name}" for name in comparison.other_parameters)
    columns: list[Shown[SequenceRow]] = [
        Shown("op", lambda row: short_name(row.op)),
        worded("module", "module"),
        Shown("differ", lambda row: f"{row.differ}/{row.tokens}", is_number=True),
        Shown("born", lambda row: str(row.born or "-"), is_number=True),
        Shown("in", lambda row: _number_text(row.input_difference), is_number=True),
        Shown("out", lambda row: _number_text(row.difference), is_number=True),
        Shown("units", lambda row: f"{row.units:.2g}" if row.units else "-", is_number=True),
    ]
    if first is not None:
        yield ""
        yield f"First divergence: {first.op}: {_birth_text(first)}"
        yield from _row_lines(comparison, first)
        place = comparison.rows.index(first)
        yield from ("", text_table(columns, comparison.rows[max(0, place - 3) : place + 9], -1, 80))
        beyond = comparison.beyond_rounding
        if beyond is not None and beyond is not first:
            yield ""
            yield f"First beyond rounding: {beyond.op}: a row differs by {beyond.units:.2g} units"
            yield from _row_lines(comparison, beyond)
        births = comparison.births()
        if len(births) > 1:
            yield from ("", "Results that were born with other bits, the largest difference of their own first:")
            yield text_table(columns, births[:8], -1, 80)
    elif comparison.rows:
        yield f"{len(comparison.rows)} results have the same bits for each token that both runs have"
    if (end := comparison.log_probabilities) is not None:
        yield ""
        yield f"At the end ({short_name(end.op)}, {end.line}): {end.differ} of {end.tokens} tokens have another number,"
        yield f"by {end.mean:.3g} in the mean and {end.largest:.3g} at most"
    yield from (
        f"{'NOT JUDGED' if comparison.verdict is Verdict.NOT_JUDGED else 'not compared'}: {reason}"
        for reason in comparison.unseen
    )


def _number_text(number: float) -> str:
    return f"{number:.2g}" if number else "-"


def _birth_text(row: SequenceRow) -> str:
    if row.born:
        return "born here: the inputs of a token have the same bits, its result has not"
    if row.verdict == CallVerdict.CARRIED:
        return "its inputs have other bits already"
    return "it or its inputs, some of which could not be compared"


def _row_lines(comparison: SequenceComparison, row: SequenceRow) -> Iterator[str]:
    yield f"  module: {row.module}"
    yield f"  line: A {row.line}" + (f", B {row.line_b}" if row.line_b != row.line else "")
    yield f"  {row.differ} of {row.tokens} tokens have other bits, {row.born} of them from inputs with the same (by {row.proof})"
    yield from (f"  before it, {text}" for text in comparison.before(row))
    if row.not_compared:
        yield f"  inputs without rows in common: {', '.join(row.not_compared)}"
    judged = {row.judged_a, row.judged_b}
    if judged != {""}:
        both = ": both are right within rounding" if judged == {Verdict.AGREES.value} else ""
        yield f"  run again on the CPU: A {row.judged_a}, B {row.judged_b}{both}"
