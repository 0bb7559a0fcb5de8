"""Results of op-tools conformance: rows.jsonl and summary.json"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._base.error_text import one_line
from .._base.own_command import op_tools_line
from .._base.verdict import Verdict, verdict_of
from .._conformance.reports import share, verdict_text
from .._conformance.rows import ERROR, EXPECTED, NOT_JUDGED, ROWS_FILE, STATUSES, UNSUPPORTED, WRONG, rows_below
from .._conformance.summary import (
    RUN_FILE,
    SUMMARY_FILE,
    Rows,
    differences,
    missing_in,
    read_run_facts,
    result_of,
    summary_of,
    verdict_in,
)
from .part import Column, Command, FindingsOf, Grid, Mark, Origin, Part, Table, short

_COLUMNS = (
    Column("status", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("dtype", is_choice=True),
    Column("of limit", is_number=True),
    Column("error", is_number=True),
    Column("limit", is_number=True),
    Column("method", is_choice=True),
    Column("got"),
    Column("expected"),
    Column("reason"),
    Column("case"),
)
_MARKS = {
    **dict.fromkeys(WRONG, Mark.WRONG),
    **dict.fromkeys((ERROR, NOT_JUDGED), Mark.NOT_JUDGED),
    **dict.fromkeys((UNSUPPORTED, EXPECTED), Mark.NOTE),
}


def is_result(folder: Path) -> bool:
    """It is the folder of a run of op-tools conformance, which may not have ended, or have lost its rows."""
    if any(folder.glob(f"{Path(ROWS_FILE).stem}*.jsonl")):
        return (folder / SUMMARY_FILE).is_file() or (folder / RUN_FILE).is_file()
    try:
        return (folder / RUN_FILE).is_file() and bool(read_run_facts(folder))
    except Error:
        return False  # another program's


def part_of_folder(folder: Path, origin: Origin) -> Part:
    """The part of a run over the cases of a device.

    Raises:
        op_tools.Error: a file is damaged.
    """
    part = Part("op-tools conformance", origin)
    part.commands = [
        Command("the verdict again, with exit status", op_tools_line("conformance", "report", str(folder)))
    ]
    part.cannot_tell = ["op-tools conformance: its cases are samples; other shapes and values were not tried."]
    by_case = rows_below(folder)
    try:
        result = result_of(by_case, read_run_facts(folder))
    except Error as error:
        _add_rows(part, by_case)
        origin.gaps.append(f"it is not known which cases were to run: {one_line(error)}")
        part.verdict = verdict_of(wrong=any(finding.mark is Mark.WRONG for finding in part.findings), unseen=True)
        return part
    _add_rows(part, result.rows)
    summary = summary_of(result)
    origin.gaps += _gaps_of_summary_file(folder, summary)
    origin.gaps += [lack.value for lack in missing_in(summary)]
    verdict = verdict_in(summary)
    part.verdict = verdict_of(wrong=verdict is Verdict.DIFFERS, unseen=bool(origin.gaps))
    part.text = verdict_text(summary)
    part.facts = [(str(status), f"{count:,}") for status, count in summary["statuses"].items()]
    return part


def _gaps_of_summary_file(folder: Path, summary: Mapping[str, Any]) -> list[str]:
    """A run that ended wrote its summary, and its rows give the same again."""
    if not (folder / SUMMARY_FILE).is_file():
        return [f"there is no {SUMMARY_FILE}: the run was killed, or still runs"]
    try:
        differs = bool(differences(folder, summary))
    except Error as error:
        return [one_line(error)]
    return [f"{SUMMARY_FILE} does not follow from the rows: op-tools conformance verify says where"] * differs


def _add_rows(part: Part, rows: Rows) -> None:
    """Their table, findings and picture."""
    table = Table("Cases", _COLUMNS)
    findings = FindingsOf(part, "x limit")
    cells: defaultdict[tuple[str, str], Counter[Mark]] = defaultdict(Counter)
    for row in (row for of_case in rows.values() for row in of_case):
        mark = _MARKS.get(row.status)
        ratio = share(row) if row.error is not None and row.limit else None
        cells[row.op, row.dtype or "(none)"][mark or Mark.RIGHT] += 1
        if mark is not None:
            fields = {"op": row.op, "phase": row.phase, "module": row.dtype}
            text = f"{row.status}: {row.reason or STATUSES[row.status]}"
            findings.add(mark, fields, text=text, worst=ratio, apart=row.status)
        table.add(
            (
                *(row.status, row.op, row.phase, row.dtype),
                *(short(ratio), short(row.error), short(row.limit)),
                *(row.method, row.got, row.expected, row.reason, row.case),
            ),
            is_wrong=mark is Mark.WRONG,
        )
    part.tables.append(table)
    part.grids = [Grid("Operators and dtypes", "operator", cells)]
