"""Results without a reader of their own here: their rows as they are. Rows with a verdict are findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._base.declared_rows import CallVerdict
from .._base.verdict import Verdict
from .part import Column, FindingsOf, Mark, Origin, Part, Table, number_of, text_of

_CHOICES = ("op", "module", "kind", "phase", "verdict", "origin", "a", "b", "dtype", "device")
_CARRIED = (CallVerdict.CARRIED.value, "carried")
_MARKS = {
    Verdict.DIFFERS.value: Mark.WRONG,
    Verdict.AGREES.value: Mark.RIGHT,
    Verdict.NOT_JUDGED.value: Mark.NOT_JUDGED,
    "could not run": Mark.NOT_JUDGED,
}


def mark_of(row: Mapping[str, Any]) -> Mark | None:
    """By the verdict of the row (of a pair of captured calls: that of B); None: it has none."""
    said = next((text for name in ("verdict", "b") if (text := text_of(row, name)) in _MARKS), "")
    mark = _MARKS.get(said)
    return Mark.NOTE if mark is Mark.WRONG and text_of(row, "origin") in _CARRIED else mark


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def part_of_rows(tool: str, rows: Iterable[Mapping[str, Any]], origin: Origin, verdict: Verdict | None) -> Part:
    """A part with a table, and with findings where the rows have verdicts."""
    part = Part(tool, origin, verdict)
    findings = FindingsOf(part, "x limit")
    table: Table | None = None
    for row in rows:
        mark = mark_of(row)
        if table is None:
            columns = [Column(name, _is_number(value), name in _CHOICES) for name, value in row.items()]
            table = Table("Rows", tuple(columns))
        cells = (row.get(column.title) for column in table.columns)
        table.add(
            tuple(cell if _is_number(cell) or isinstance(cell, str) else str(cell) for cell in cells),
            is_wrong=mark is Mark.WRONG,
        )
        if mark is None:
            continue
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += 1
            place.wrong += mark is Mark.WRONG
            place.not_judged += mark is Mark.NOT_JUDGED
        if mark is not Mark.RIGHT:
            fields = {**row, "op": text_of(row, "op") or text_of(row, "kind")}
            texts = (text_of(row, name) for name in ("origin", "what", "reason"))
            saved = text_of(row, "path_b")
            findings.add(mark, fields, text=": ".join(filter(None, texts)), worst=number_of(row, "share"), saved=saved)
    if table is not None:
        part.tables.append(table)
        part.facts = [("rows", f"{table.total:,}")]
    return part
