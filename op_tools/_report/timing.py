"""OpTimeMeasure's rows: summary.csv, by operator and shape, and calls.csv, by call"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .part import Chart, Column, Origin, Part, Table, Timeline, dtype_of, integer_of, number_of, short, text_of
from .summed_work import WorkOfRows

FILE = "summary.csv"
CALLS_FILE = "calls.csv"
_COLUMNS = (
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("calls", is_number=True),
    Column("self ms", is_number=True),
    Column("mean ms", is_number=True),
    Column("p99 ms", is_number=True),
    Column("max ms", is_number=True),
    Column("GB/s", is_number=True),
    Column("dtypes", is_choice=True),
    Column("shapes"),
    Column("device", is_choice=True),
    Column("line"),
)
_CALL_COLUMNS = (
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("start ms", is_number=True),
    Column("self ms", is_number=True),
    Column("ms", is_number=True),
    Column("thread", is_number=True),
    Column("device", is_choice=True),
    Column("shapes"),
    Column("line"),
)
_MOST_BARS = 15


def part_of_rows(
    rows: Iterable[Mapping[str, Any]], origin: Origin, calls: Iterable[Mapping[str, Any]] | None = None
) -> Part:
    """The part of a run of OpTimeMeasure. It gives no verdict."""
    part = Part("OpTimeMeasure", origin)
    table = Table("Times by operator", _COLUMNS)
    by_op: dict[str, float] = defaultdict(float)
    work = WorkOfRows()
    for row in rows:
        self_ms = number_of(row, "self_ms") or 0.0
        backward = " backward" if text_of(row, "phase") == "backward" else ""
        by_op[text_of(row, "op") + backward] += self_ms
        work.add(row)
        if calls is None:
            _add_time(part, row, self_ms, integer_of(row, "calls") or 0)
        table.add(
            (
                text_of(row, "op"),
                text_of(row, "phase"),
                text_of(row, "module"),
                integer_of(row, "calls"),
                *(short(number_of(row, name)) for name in ("self_ms", "mean_ms", "p99_ms", "max_ms", "gb_per_s")),
                dtype_of(row, "dtypes"),
                text_of(row, "shapes"),
                text_of(row, "device"),
                text_of(row, "line"),
            )
        )
    part.tables.append(table)
    part.work = work.work(origin.folder) if table.total else None  # of a rank without times
    if calls is not None:
        part.tables.append(_table_of_calls(part, calls))
    total = sum(by_op.values())
    longest = sorted(by_op.items(), key=lambda item: -item[1])
    part.bars = [
        (op, self_ms, f"{self_ms:.3g} ms, {100 * self_ms / total if total else 0:.1f} %") for op, self_ms in longest
    ][:_MOST_BARS]
    part.bars_title = "Self time by operator"
    part.facts = [("self time", f"{total:,.3f} ms"), ("operators", f"{len(by_op):,}")]
    part.cannot_tell = [
        "OpTimeMeasure: the times are those of this run, with the tool on; whether they are good takes a second run to compare with."
    ]
    return part


def _add_time(part: Part, row: Mapping[str, Any], self_ms: float, calls: int) -> None:
    for place in part.place(text_of(row, "module"), text_of(row, "line")):
        place.calls += calls
        place.self_ms += self_ms


def _table_of_calls(part: Part, calls: Iterable[Mapping[str, Any]]) -> Table:
    table = Table("Single calls", _CALL_COLUMNS, chart=Chart("Times over the calls", "call", "self ms", is_log=True))
    table.timeline = Timeline("start ms", "ms", "thread", "device", "op")
    first: float | None = None
    for row in calls:
        start = number_of(row, "start_us")
        first = start if first is None else first
        _add_time(part, row, number_of(row, "self_ms") or 0.0, 1)
        table.add(
            (
                text_of(row, "op"),
                text_of(row, "phase"),
                text_of(row, "module"),
                integer_of(row, "step"),
                integer_of(row, "id"),
                round((start - first) / 1e3, 3) if start is not None and first is not None else None,
                short(number_of(row, "self_ms")),
                short(number_of(row, "ms")),
                integer_of(row, "thread"),
                text_of(row, "device"),
                text_of(row, "shapes"),
                text_of(row, "line"),
            )
        )
    return table
