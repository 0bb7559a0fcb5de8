"""The rows of a report as the page reads them: columns, texts once each, gzip, base64."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from .._base.remote_files import with_urls
from .page_tables import PageTable


class _Strings:
    """Texts by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def number(self, value: Any) -> int:
        """Of a text; a new text gets the next number. None is the empty text."""
        return self._numbers.setdefault("" if value is None else str(value), len(self._numbers))

    @property
    def all(self) -> list[str]:
        """In the order of their numbers."""
        return [with_urls(text) for text in self._numbers]


def _json_number(value: Any) -> Any:
    """As JSON has it: numbers that are not finite are texts, which the page reads back."""
    if not isinstance(value, (int, float)):
        return None
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def _packed_table(shown: PageTable, strings: _Strings) -> dict[str, Any]:
    table = shown.table
    rows = table.marked_rows
    columns = []
    for number, column in enumerate(table.columns):
        convert = _json_number if column.is_number else strings.number
        values = [convert(cells[number]) for _, cells in rows]
        columns.append(
            {"title": column.title, "number": column.is_number, "choice": column.is_choice, "values": values}
        )
    names = [shown.tool, shown.rank, table.title]
    packed: dict[str, Any] = {
        "title": table.title,
        "file": re.sub(r"[^a-z0-9]+", "-", " ".join(filter(None, names)).lower()).strip("-"),
        "columns": columns,
        "wrong": [int(is_wrong) for is_wrong, _ in rows],
    }
    if table.chart is not None:
        chart = table.chart
        packed["chart"] = {"title": chart.title, "x": chart.x, "y": chart.y, "log": chart.is_log}
    if table.timeline is not None:
        packed["timeline"] = asdict(table.timeline)
    return packed


def packed_rows(shown: Iterable[PageTable]) -> str:
    """The tables of a page. Equal rows give equal text: there is no time in it."""
    strings = _Strings()
    tables = [_packed_table(table, strings) for table in shown]
    content = json.dumps({"tables": tables, "strings": strings.all}, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(content.encode("utf-8", "replace"), 6, mtime=0)).decode("ascii")
