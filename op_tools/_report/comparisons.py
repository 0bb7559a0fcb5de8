"""Comparisons of recordings and captures: the file of op-tools compare --json"""

from __future__ import annotations

import enum
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._base.declared_rows import CallVerdict
from . import further_comparisons, one_iteration
from .comparison_summary import judge_by_summary
from .further_comparisons import Further
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


class Two(enum.Enum):
    """Forms of files: two runs, call by call; an iteration of two runs, module by module."""

    RUNS = "runs"
    ITERATION = "iteration"


Form = Two | Further
# A kind of record, a name that it has in files of a form, and the form; the first that fits.
_SIGNS: tuple[tuple[str, str, Form], ...] = (
    (_PAIR, "verdict", Two.RUNS),
    (_LOSS, "side", Two.RUNS),
    (one_iteration.KIND, "what", Two.ITERATION),
    ("spread", "plan", Further.RANKS),
    ("row", "ids_a", Further.SEQUENCES),
    ("beyond_rounding", "ids_a", Further.SEQUENCES),
    ("confirmed", "path_a", Further.CAPTURES),
    ("confirmation", "problems", Further.CAPTURES),
    (_FIRST, "like_it", Further.MANY),
    (_FIRST, "ids_a", Further.SEQUENCES),
    (_FIRST, "plan", Further.RANKS),
    (_FIRST, "id_a", Two.RUNS),
    (_SUMMARY, "odd", Further.MANY),
    (_SUMMARY, "tokens_a", Further.SEQUENCES),
    (_SUMMARY, "incomplete", Two.RUNS),
    (_SUMMARY, "first", Two.ITERATION),
    (_SUMMARY, "ranks", Further.RANKS),
    (_SUMMARY, "verdict", Two.RUNS),
)
_BEGINNINGS = tuple(f'{{"kind": "{kind}", '.encode() for kind, _, _ in _SIGNS)


_READ = 100_000  # bytes of the beginning and of the end of a file, in which a damaged line hides no other


def part_of_file(file: Path, origin: Origin) -> Part | None:
    """The part of a file of op-tools compare or op-tools one-iter; None where it is another program's.

    Raises:
        op_tools.Error: it cannot be read.
    """
    form = _form_of_file(file)
    if form is None:
        return None
    rows = json_rows(file, origin)
    if isinstance(form, Further):
        return further_comparisons.part_of_rows(form, rows, origin)
    return (part_of_rows if form is Two.RUNS else one_iteration.part_of_rows)(rows, origin)


def _form_of_file(file: Path) -> Form | None:
    try:
        with file.open("rb") as content:
            first = content.read(_READ)
            content.seek(max(0, content.seek(0, os.SEEK_END) - _READ))
            last = content.read()
    except OSError:
        return None
    lines = (*first.splitlines(), *reversed(last.splitlines()))
    form = next((form for line in lines if (form := _form_of_line(line)) is not None), None)
    if form is None and first.startswith(_BEGINNINGS) and _record_of(lines[0]) is None:
        raise Error(f"{file}: begins as a file of op-tools compare --json, and no line of it can be read")
    return form


def _form_of_line(line: bytes) -> Form | None:
    record = _record_of(line) or {}
    return next((form for kind, name, form in _SIGNS if record.get("kind") == kind and name in record), None)


def _record_of(line: bytes) -> dict[str, Any] | None:
    """None: the line is no object of JSON, or of no kind."""
    try:
        record = json.loads(line) if b'"kind"' in line else None
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


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
    judge_by_summary(part, summary, counts, (summary or {}).get("verdicts"))
    part.cannot_tell = ["op-tools compare: which of two runs is right; A is taken as the reference."]
    return part
