"""Results of op-tools conformance: rows.jsonl and summary.json"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from .._base.core import Error
from .._base.data_file import read_json
from .._base.own_command import op_tools_line
from .._base.verdict import verdict_of
from .._conformance.reports import share, verdict_text
from .._conformance.rows import ERROR, EXPECTED, NOT_JUDGED, ROWS_FILE, STATUSES, UNSUPPORTED, WRONG, rows_below
from .._conformance.summary import RUN_FILE, SUMMARY_FILE, missing_in, verdict_in
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
    """It is the folder of a run of op-tools conformance, which may not have ended."""
    has_facts = (folder / SUMMARY_FILE).is_file() or (folder / RUN_FILE).is_file()
    return has_facts and any(folder.glob(f"{Path(ROWS_FILE).stem}*.jsonl"))


def part_of_folder(folder: Path, origin: Origin) -> Part:
    """The part of a run over the cases of a device.

    Raises:
        op_tools.Error: a file is damaged.
    """
    part = Part("op-tools conformance", origin)
    table = Table("Cases", _COLUMNS)
    findings = FindingsOf(part, "x limit")
    cells: defaultdict[tuple[str, str], Counter[Mark]] = defaultdict(Counter)
    for row in (row for rows in rows_below(folder).values() for row in rows):
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
    part.commands = [
        Command("the verdict again, with exit status", op_tools_line("conformance", "report", str(folder)))
    ]
    part.cannot_tell = ["op-tools conformance: its cases are samples; other shapes and values were not tried."]
    if not (folder / SUMMARY_FILE).is_file():
        origin.gaps.append(f"there is no {SUMMARY_FILE}: the run was killed, or still runs")
        part.verdict = verdict_of(wrong=any(finding.mark is Mark.WRONG for finding in part.findings), unseen=True)
        return part
    summary = read_json(folder / SUMMARY_FILE)
    try:
        part.verdict = verdict_in(summary)
        part.text = verdict_text(summary)
        lacks = missing_in(summary["statuses"], summary["self-test"], summary["without rows"])
        part.facts = [(str(status), f"{count:,}") for status, count in summary["statuses"].items()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Error(f"{folder / SUMMARY_FILE}: is no summary of op-tools conformance: {error!r}") from None
    origin.gaps += [lack.value for lack in lacks]
    return part
