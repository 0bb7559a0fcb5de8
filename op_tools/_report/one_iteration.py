"""Iterations that were compared module by module: the file of op-tools one-iter compare --json"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from .._base.declared_rows import CallVerdict
from .._base.verdict import Verdict
from .comparison_summary import judge_by_summary
from .part import Column, FindingsOf, Mark, Origin, Part, Table, integer_of, number_of, short, text_of

KIND = "result"
_COLUMNS = (
    Column("verdict", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("rank", is_number=True),
    Column("origin", is_choice=True),
    Column("difference", is_number=True),
    Column("limit", is_number=True),
    Column("finding", is_choice=True),
    Column("why"),
)


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a comparison, with or without its summary."""
    part = Part("op-tools one-iter", origin)
    table = Table("Results of modules", _COLUMNS)
    findings = FindingsOf(part, "x limit")
    counts: Counter[str] = Counter()
    summary: Mapping[str, Any] | None = None
    for row in rows:
        if row.get("kind") != KIND:
            summary = row
            continue
        verdict, born = text_of(row, "verdict"), text_of(row, "origin")
        counts[verdict] += 1
        is_wrong = verdict == Verdict.DIFFERS
        for place in part.place(text_of(row, "module"), ""):
            place.calls += 1
            place.wrong += is_wrong
            place.not_judged += verdict == Verdict.NOT_JUDGED
        fields = {**row, "phase": text_of(row, "what")}
        difference, limit = number_of(row, "difference"), number_of(row, "limit")
        text = ": ".join(filter(None, (born, text_of(row, "finding") or text_of(row, "why"))))
        if is_wrong:
            mark = Mark.NOTE if born == CallVerdict.CARRIED else Mark.WRONG
            # Within its limit it is wrong for the reason in its text: a share would say the contrary.
            share = difference / limit if difference is not None and limit and difference > limit else None
            findings.add(mark, fields, text=text, worst=share, apart=born)
        elif verdict == Verdict.NOT_JUDGED:
            findings.add(Mark.NOT_JUDGED, fields, text=text or verdict)
        table.add(
            (
                verdict,
                text_of(row, "op"),
                fields["phase"],
                text_of(row, "module"),
                integer_of(row, "rank"),
                born,
                *(short(value) for value in (difference, limit)),
                *(text_of(row, name) for name in ("finding", "why")),
            ),
            is_wrong=is_wrong,
        )
    part.tables.append(table)
    part.facts = [(name, f"{count:,}") for name, count in counts.most_common()]
    judge_by_summary(part, summary, counts, (summary or {}).get("verdicts"))
    part.cannot_tell = ["op-tools one-iter: which operator of a module is wrong; op-tools run --autocompare names it."]
    return part
