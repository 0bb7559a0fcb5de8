"""A report as text, for a terminal: the coverage and verdict of each result, a line per kind of finding, and the next commands."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from .._base.core import text_table
from .._base.error_text import printable
from .._base.remote_files import with_urls
from .._base.results import short_name
from .page import figure
from .part import Finding, Mark, Part, Table
from .summary import commands_of_parts, kinds_by_mark, parts_by_tool, verdict_of_parts, verdict_sentence

_WIDTH = 80
_MOST_LINES = 20
_MOST_ROWS = 10
_MOST_COLUMNS = 8  # more do not fit
_MOST_REASON = 100  # characters
_MOST_RANKS = 4  # of a tool, whose parts are shown whole


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH


def _folded(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        printable(text),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _lines_of_part(part: Part) -> Iterator[str]:
    verdict = f": {part.verdict.value}" if part.verdict is not None else ""
    rank = f", rank {part.origin.rank}" if part.origin.rank else ""
    yield printable(f"{part.tool}{verdict}{rank}  {part.origin.folder}".rstrip())
    facts = ", ".join(f"{name} {value}" for name, value in part.facts)
    yield from _folded(facts)
    for line in part.origin.looked_at:
        yield from _folded(line)
    if part.verdict is None:
        yield from (line for reason in part.origin.reasons for line in _folded(f"not looked at: {reason}"))
    else:
        yield from (line for reason in part.origin.reasons for line in _folded(f"NOT JUDGED: {reason}"))
    yield from (line for text in part.text.splitlines() for line in _folded(text))
    if part.verdict is None and not part.findings and part.tables:
        yield _first_rows(part.tables[0])


def _first_rows(table: Table) -> str:
    """Of a tool that gives no verdict: its rows are the answer."""
    rows = [
        [
            figure(cell) if column.is_number else printable(short_name(str(cell or "")))
            for column, cell in zip(table.columns, cells, strict=True)
        ]
        for _, cells in table.first_rows(_MOST_ROWS)
    ]
    shown = [number for number in range(len(table.columns)) if any(row[number] for row in rows)][:_MOST_COLUMNS]
    titles = [(table.columns[number].title, table.columns[number].is_number) for number in shown]
    text = text_table(titles, [[with_urls(row[number]) for number in shown] for row in rows], _width())
    left = table.total - len(rows)
    return text + (f"\n... and {left:,} more rows (op-tools report makes a page of all)" if left else "")


def _findings_table(findings: Sequence[Finding], most: int) -> str:
    titles = [
        ("", False),
        ("op", False),
        ("phase", False),
        ("module", False),
        ("rows", True),
        ("step", True),
        ("worst", True),
    ]
    shown = findings if most < 0 else findings[:most]
    cells = [
        [
            finding.mark.value,
            printable(short_name(finding.op)),
            printable(finding.phase),
            printable(finding.module),
            f"{finding.count:,}",
            "" if finding.first_step is None else str(finding.first_step),
            f"{figure(finding.worst)} {finding.unit}" if finding.worst is not None else "",
        ]
        for finding in shown
    ]
    left = len(findings) - len(shown)
    return text_table(titles, cells, _width()) + (f"\n... and {left} more kinds (--lines -1)" if left else "")


def _reasons(findings: Iterable[Finding]) -> Iterator[str]:
    """Of each operator that is wrong, once: why, and the program's line."""
    told: set[tuple[str, str, str]] = set()
    for finding in findings:
        if finding.mark is Mark.WRONG and (key := (finding.tool, finding.op, finding.phase)) not in told:
            told.add(key)
            reason = finding.text if len(finding.text) <= _MOST_REASON else f"{finding.text[:_MOST_REASON]}..."
            yield from _folded(f"{finding.op} {finding.phase}: {reason}", "")
            if finding.line:
                yield f"  {printable(finding.line)}"


def _blocks_of_parts(parts: Sequence[Part]) -> list[str]:
    """Each part's lines; of a tool with many ranks those of a few, and a line for the others."""
    blocks = []
    for tool, shown, others in parts_by_tool(parts, _MOST_RANKS):
        blocks += ["\n".join(_lines_of_part(part)) for part in shown]
        blocks += ["\n".join(_folded(f"{tool}, {line}", "")) for line in others]
    return blocks


def text_of_parts(parts: Sequence[Part], most: int = _MOST_LINES) -> str:
    """The report.

    Args:
        parts: at least a part.
        most: kinds of finding in the table; -1: all.
    """
    blocks = _blocks_of_parts(parts)
    findings = [kind.finding for kinds in kinds_by_mark(parts).values() for kind in kinds]
    if any(part.verdict is not None for part in parts):
        blocks.append(f"{verdict_of_parts(parts).value}: {verdict_sentence(parts)}")
    if findings:
        reasons = list(_reasons(findings))
        blocks.append("\n".join([_findings_table(findings, most), *reasons[: 2 * _MOST_LINES if most >= 0 else None]]))
    commands = list(dict.fromkeys(command.text for command in commands_of_parts(parts)))
    if commands:
        blocks.append("\n".join(["Next:", *(f"  {printable(command)}" for command in commands)]))
    return "\n\n".join(blocks)
