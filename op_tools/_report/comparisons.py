"""Comparisons of recordings: the file of op-tools compare --json"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.declared_rows import CallVerdict
from .._base.verdict import Verdict, verdict_of
from .part import Chart, Column, FindingsOf, Mark, Origin, Part, Table, integer_of, number_of, short, text_of

_COLUMNS = (
    Column("verdict", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call A", is_number=True),
    Column("call B", is_number=True),
    Column("inputs differ", is_number=True),
    Column("outputs differ", is_number=True),
    Column("limit", is_number=True),
    Column("finding", is_choice=True),
    Column("line"),
)
_MARKS: dict[str, Mark] = {
    CallVerdict.BORN: Mark.WRONG,
    CallVerdict.CAUSE_NOT_FOUND: Mark.WRONG,
    CallVerdict.NOT_COMPARED: Mark.NOT_JUDGED,
    CallVerdict.CARRIED: Mark.NOTE,
    CallVerdict.ONLY_A: Mark.NOTE,
    CallVerdict.ONLY_B: Mark.NOTE,
}
_PAIR, _SUMMARY = "pair", "summary"


def is_comparison(file: Path) -> bool:
    """Its first line is a record of op-tools compare."""
    try:
        with file.open("rb") as content:
            first = json.loads(content.readline(100_000))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("kind") in (_PAIR, _SUMMARY)


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a comparison of two runs, with or without its summary."""
    part = Part("op-tools compare", origin)
    table = Table(
        "Pairs of calls", _COLUMNS, chart=Chart("Growth of the difference", "call A", "outputs differ", is_log=True)
    )
    findings = FindingsOf(part, "x limit")
    counts: Counter[str] = Counter()
    summary: Mapping[str, Any] | None = None
    for row in rows:
        if row.get("kind") == _SUMMARY:
            summary = row
        if row.get("kind") != _PAIR:
            continue  # the first divergence is a pair, too
        verdict = text_of(row, "verdict")
        counts[verdict] += 1
        mark = _MARKS.get(verdict)
        is_wrong = mark is Mark.WRONG
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += 1
            place.wrong += is_wrong
            place.not_judged += mark is Mark.NOT_JUDGED
        differs, limit = number_of(row, "output_difference"), number_of(row, "limit")
        if mark is not None:
            reason = text_of(row, "finding")
            text = f"{verdict}: {reason}" if reason else verdict
            share = differs / limit if differs is not None and limit else None
            findings.add(mark, row, text=text, worst=share, apart=verdict)
        table.add(
            (
                verdict,
                *(text_of(row, name) for name in ("op", "phase", "module")),
                *(integer_of(row, name) for name in ("step", "id_a", "id_b")),
                *(short(number_of(row, name)) for name in ("input_difference", "output_difference", "limit")),
                text_of(row, "finding"),
                text_of(row, "line"),
            ),
            is_wrong=is_wrong,
        )
    part.tables.append(table)
    part.facts = [(name, f"{count:,}") for name, count in counts.most_common()]
    if summary is None:
        origin.gaps.append("the file of the comparison has no summary: it is cut off")
    else:
        unseen = summary.get("unseen")
        origin.gaps += [str(reason) for reason in unseen] if isinstance(unseen, list) else []
    said = text_of(summary or {}, "verdict")
    wrong = any(finding.mark is Mark.WRONG for finding in part.findings) or said == Verdict.DIFFERS
    part.verdict = verdict_of(wrong=wrong, unseen=bool(origin.gaps) or said != Verdict.AGREES)
    part.cannot_tell = ["op-tools compare: which of two runs is right; A is taken as the reference."]
    return part
