"""OpObserve's rows: calls.jsonl"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .part import Column, Origin, Part, Table, dtype_of, integer_of, number_of, short, sizes_of, text_of

FILE = "calls.jsonl"
_COLUMNS = (
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("dtype", is_choice=True),
    Column("shape"),
    Column("device", is_choice=True),
    Column("min", is_number=True),
    Column("max", is_number=True),
    Column("mean", is_number=True),
    Column("NaN", is_number=True),
    Column("inf", is_number=True),
    Column("line"),
)


def _first_result(row: Mapping[str, Any]) -> Mapping[str, Any]:
    result = row.get("result")
    if isinstance(result, list):
        result = next((item for item in result if isinstance(item, dict)), None)
    return result if isinstance(result, dict) else {}


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a run of OpObserve. It gives no verdict."""
    part = Part("OpObserve", origin)
    table = Table("Calls, with their first result", _COLUMNS)
    for row in rows:
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += 1
        result = _first_result(row)
        table.add(
            (
                *(text_of(row, name) for name in ("op", "phase", "module")),
                integer_of(row, "step"),
                integer_of(row, "id"),
                dtype_of(result),
                sizes_of(result, "shape"),
                text_of(result, "device"),
                *(short(number_of(result, name)) for name in ("min", "max", "mean")),
                integer_of(result, "nan"),
                integer_of(result, "inf"),
                text_of(row, "line"),
            )
        )
    part.tables.append(table)
    part.facts = [("calls", f"{table.total:,}")]
    part.cannot_tell = ["OpObserve: whether a value is right; it compares with nothing."]
    return part
