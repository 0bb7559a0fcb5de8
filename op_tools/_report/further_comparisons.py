"""Comparisons of other things than two runs: of many runs, of a rank with several, of sequences, of captured calls."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._base.declared_rows import CallVerdict
from .._base.verdict import Verdict
from . import plain_rows
from .comparison_summary import judge_by_summary
from .part import Origin, Part, text_of

_ODD, _ROWS = "odd", "rows"


def _of_odd_run(row: Mapping[str, Any]) -> tuple[Verdict, str, str]:
    return Verdict.DIFFERS, "", text_of(row, "finding")


def _of_spread(row: Mapping[str, Any]) -> tuple[Verdict, str, str]:
    if finding := text_of(row, "finding"):
        return Verdict.DIFFERS, "", finding
    return (Verdict.AGREES, "", "") if text_of(row, "plan") else (Verdict.NOT_JUDGED, "", "no plan was found")


def _of_sequence(row: Mapping[str, Any]) -> tuple[Verdict, str, str]:
    verdict = text_of(row, "verdict")
    return (Verdict.AGREES, "", "") if verdict == CallVerdict.AGREES else (Verdict.DIFFERS, verdict, "")


def _of_captured_pair(row: Mapping[str, Any]) -> tuple[Verdict, str, str]:
    sides, reason = (text_of(row, "a"), text_of(row, "b")), text_of(row, "verdict")
    if Verdict.DIFFERS in sides:
        return Verdict.DIFFERS, "", reason
    return (Verdict.AGREES if sides == (Verdict.AGREES,) * 2 else Verdict.NOT_JUDGED), "", reason


@dataclass(frozen=True)
class _Reading:
    """How the records of a form are read."""

    kind: str
    """Of a row."""
    summary: str
    """Of the last record."""
    counted: str
    """Its number of rows."""
    verdict_of_row: Callable[[Mapping[str, Any]], tuple[Verdict, str, str]]
    """The verdict, its origin, and the reason."""


class Further(enum.Enum):
    """The forms of their files."""

    MANY = _Reading("first_divergence", "summary", _ODD, _of_odd_run)
    RANKS = _Reading("spread", "summary", _ROWS, _of_spread)
    SEQUENCES = _Reading("row", "summary", _ROWS, _of_sequence)
    CAPTURES = _Reading("confirmed", "confirmation", _ROWS, _of_captured_pair)


def part_of_rows(form: Further, records: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a comparison of a form, with or without its summary."""
    reading = form.value
    summaries: list[Mapping[str, Any]] = []
    count = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        for record in records:
            if record.get("kind") == reading.summary:
                summaries.append(record)
            if record.get("kind") != reading.kind:
                continue
            count += 1
            verdict, born, reason = reading.verdict_of_row(record)
            told = {"verdict": verdict.value, "origin": born, "reason": reason}
            yield told | {name: value for name, value in record.items() if name not in ("kind", *told)}

    part = plain_rows.part_of_rows("op-tools compare", rows(), origin, None)
    summary = summaries[-1] if summaries else None
    told = None if summary is None or reading.counted not in summary else {reading.counted: summary[reading.counted]}
    judge_by_summary(part, summary, {reading.counted: count}, told)
    part.cannot_tell = ["op-tools compare: which of the runs is right; most of them, or A, are taken as the reference."]
    return part
