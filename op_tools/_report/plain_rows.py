"""Results of tools without a file of their own here: their rows as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._base.verdict import Verdict
from .part import Column, Origin, Part, Table

_NUMBERS = (int, float)


def part_of_rows(tool: str, rows: Iterable[Mapping[str, Any]], origin: Origin, verdict: Verdict | None) -> Part:
    """A part with a table, and no findings."""
    part = Part(tool, origin, verdict)
    table: Table | None = None
    for row in rows:
        if table is None:
            columns = [Column(name, isinstance(value, _NUMBERS)) for name, value in row.items()]
            table = Table("Rows", tuple(columns))
        cells = (row.get(column.title) for column in table.columns)
        table.add(tuple(cell if isinstance(cell, (*_NUMBERS, str)) else str(cell) for cell in cells))
    if table is not None:
        part.tables.append(table)
        part.facts = [("rows", f"{table.total:,}")]
    return part
