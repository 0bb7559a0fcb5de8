"""Comparisons of recordings: the file of op-tools compare --json"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from .._base.declared_rows import CallVerdict
from .._base.verdict import Verdict, verdict_of
from . import one_iteration
from .part import (
    Chart,
    Column,
    Curve,
    FindingsOf,
    Mark,
    Origin,
    Part,
    Series,
    Table,
    integer_of,
    number_of,
    short,
    text_of,
)
from .row_files import json_rows

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
_PAIR, _SUMMARY, _LOSS, _FIRST = "pair", "summary", "loss", "first_divergence"


def is_comparison(file: Path) -> bool:
    """Its first line is a record of op-tools compare."""
    try:
        with file.open("rb") as content:
            first = json.loads(content.readline(100_000))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("kind") in (_PAIR, _SUMMARY, _LOSS, one_iteration.KIND)


def part_of_file(file: Path, origin: Origin) -> Part:
    """The part of a comparison of calls, or of the modules of an iteration.

    Raises:
        op_tools.Error: it cannot be read.
    """
    rows = json_rows(file, origin)
    first = next(rows, {})
    reader = one_iteration.part_of_rows if first.get("kind") == one_iteration.KIND else part_of_rows
    return reader(chain([first], rows), origin)


def _add_loss(losses: dict[str, list[tuple[float, float]]], row: Mapping[str, Any]) -> None:
    """The loss of a step of A, or of B."""
    step, value = number_of(row, "step"), number_of(row, "value")
    if step is not None and value is not None and (side := text_of(row, "side")) in losses:
        losses[side].append((step, value))


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a comparison of two runs, with or without its summary."""
    part = Part("op-tools compare", origin)
    table = Table(
        "Pairs of calls", _COLUMNS, chart=Chart("Growth of the difference", "call A", "outputs differ", is_log=True)
    )
    findings = FindingsOf(part, "x limit")
    counts: Counter[str] = Counter()
    summary: Mapping[str, Any] | None = None
    losses: dict[str, list[tuple[float, float]]] = {"A": [], "B": []}
    at: dict[float, str] = {}
    for row in rows:
        if row.get("kind") == _SUMMARY:
            summary = row
        if row.get("kind") == _LOSS:
            _add_loss(losses, row)
        if row.get("kind") == _FIRST and (step := number_of(row, "step")) is not None:
            at[step] = f"they part: {text_of(row, 'op')}, {text_of(row, 'verdict')}"
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
    if any(losses.values()):
        series = (Series(name, tuple(points)) for name, points in losses.items())
        part.curves = [Curve("Losses of both runs", "step", tuple(series), tuple(at.items()))]
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
