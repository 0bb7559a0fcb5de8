"""The common part of the results of all tools: tables for people, rows as a pandas.DataFrame, and how they show themselves."""

from __future__ import annotations

import dataclasses
import html
import importlib
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from . import core
from .checks import checked_choice
from .core import Coverage, Error

RowT = TypeVar("RowT")

DEFAULT_ROWS = 20


@dataclass(frozen=True)
class Shown(Generic[RowT]):
    """A column of a table for people."""

    title: str
    text: Callable[[RowT], str]
    is_number: bool = False
    total: Callable[[Sequence[RowT]], str] | None = None
    """Its value in the line "total"; None: none."""


def counted(title: str, name: str) -> Shown[Any]:
    """A column of counts, and their sum."""
    return Shown(
        title,
        lambda row: str(getattr(row, name)),
        is_number=True,
        total=lambda rows: str(sum(getattr(row, name) for row in rows)),
    )


def measured(title: str, name: str, unit: float = 1) -> Shown[Any]:
    """A column of numbers with three places, and their sum."""
    return Shown(
        title,
        lambda row: f"{getattr(row, name) / unit:.3f}",
        is_number=True,
        total=lambda rows: f"{sum(getattr(row, name) for row in rows) / unit:.3f}",
    )


def megabytes(title: str, name: str) -> Shown[Any]:
    """A column of bytes in megabytes, and their sum."""
    return measured(title, name, 1e6)


def worded(title: str, name: str) -> Shown[Any]:
    """A column of strings."""
    return Shown(title, lambda row: str(getattr(row, name)))


def short_name(op: str) -> str:
    """An operator as narrow tables have it."""
    return op.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.").replace("aten::", "")


def duration_text(seconds: float) -> str:
    """About how long something takes, in words."""
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{round(seconds / 60)} min"


def finite_json(value: Any) -> Any:
    """A value as JSON has it: numbers that are not finite are strings."""
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def sorted_rows(rows: Sequence[RowT], sort_by: str) -> list[RowT]:
    """By a field, numbers in descending order, strings in ascending order.

    Raises:
        op_tools.Error: the rows have no such field, or it has no order; the text lists those they have.
    """
    if not rows:
        return []
    names = [one.name for one in dataclasses.fields(rows[0])]  # type: ignore[arg-type]
    checked_choice("sort_by=", sort_by, names)
    # None is where a row has no such value: last in both orders.
    valued = [row for row in rows if getattr(row, sort_by) is not None]
    try:
        ordered = sorted(valued, key=lambda row: getattr(row, sort_by))
    except TypeError:
        raise Error(f"sort_by={sort_by!r}: these values have no order") from None
    if ordered and not isinstance(getattr(ordered[0], sort_by), str):
        ordered.reverse()
    return ordered + [row for row in rows if getattr(row, sort_by) is None]


def text_table(columns: Sequence[Shown[RowT]], rows: Sequence[RowT], row_limit: int, width: int = 240) -> str:
    """The first `row_limit` rows (-1: all), how many more there are, and a line with the totals of all. A terminal's width
    comes before `width`."""
    if row_limit < -1:
        raise Error(f"row_limit={row_limit} is not allowed; give a number of rows, or -1 for all")
    shown = rows if row_limit < 0 else rows[:row_limit]
    lines = [[column.text(row) for column in columns] for row in shown]
    left = len(rows) - len(shown)
    totals = [column.total(rows) if column.total else "" for column in columns]
    has_total = len(rows) > 1 and any(totals)
    if has_total:
        lines.append([f"total of {len(rows)}" if not totals[0] else totals[0], *totals[1:]])
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    text = core.text_table([(column.title, column.is_number) for column in columns], lines, width)
    if not left:
        return text
    parts = text.split("\n")
    parts.insert(len(parts) - has_total, f"... and {left} more rows (row_limit=)")
    return "\n".join(parts)


def _report_module() -> Any:
    """Reports are made of the results of all tools, and so stand above them: imported when a report is asked for."""
    return importlib.import_module(f"{__package__.partition('.')[0]}._report.of_result")


class RowAsDict:
    """A row that also reads as a dict: row["bytes"]."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None


class Result:
    """Base of the results: rows that are dataclasses, and a table."""

    rows: Any

    def table(self) -> str:
        """The rows for people."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The rows as a pandas.DataFrame, a column per field.

        Raises:
            op_tools.Error: pandas is not installed.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise Error("to_pandas(): pandas is not installed; pip install pandas") from None
        return pandas.DataFrame([dataclasses.asdict(row) for row in self.rows])

    def report(self, path: str | Path = "report.html") -> Path:
        """Writes a page with coverage, verdict, findings and all rows: a single file of HTML that asks nothing of any network.

        Args:
            path: the file.

        Returns:
            the file.

        Raises:
            op_tools.Error: it cannot be written, or a file of the run is damaged.
        """
        return Path(_report_module().write_report(self, path))

    def _facts(self) -> Iterator[str]:
        for column in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, column.name)
            if isinstance(value, (str, int, float)) and value not in ("", 0):
                yield f"{column.name}={value!r}"

    def __repr__(self) -> str:
        name, count = type(self).__name__, len(self.rows)
        facts = ", ".join([f"{count} row{'' if count == 1 else 's'}", *self._facts()])
        table = self.table() if count else ""
        return f"{name}({facts})" + (f"\n{table}" if table else "")

    def _repr_html_(self) -> str:
        """For notebooks: coverage, verdict, a line per kind of finding, and the first rows."""
        names = [one.name for one in dataclasses.fields(self.rows[0])] if self.rows else []
        shown = self.rows[:DEFAULT_ROWS]
        head = html_row("th", names)
        body = "".join(html_row("td", (getattr(row, name) for name in names)) for row in shown)
        more = f"<p>... and {len(self.rows) - len(shown)} more rows</p>" if len(self.rows) > len(shown) else ""
        facts = html.escape(", ".join([type(self).__name__, f"{len(self.rows)} rows", *self._facts()]))
        findings = _report_module().notebook_html(self)
        return f"<p>{facts}</p>{findings}<table>{head}{body}</table>{more}"


class SortableResult(Result):
    """A result whose table shows the rows in any order, below the facts of the run."""

    coverage: Coverage

    def _lines_above(self) -> list[str]:
        """Of a tool that gives no verdict: nothing, where nothing was unseen."""
        return self.coverage.lines_of_unseen()

    def _columns(self) -> list[Shown[Any]]:
        raise NotImplementedError

    def _rows_of_table(self) -> Sequence[Any]:
        """Those that the table shows."""
        return cast("Sequence[Any]", self.rows)

    def _in_order(self) -> Sequence[Any]:
        """The same in the order that suits the tool."""
        return self._rows_of_table()

    def table(self, sort_by: str | None = None, row_limit: int = DEFAULT_ROWS) -> str:
        """The rows as a text table, and their totals.

        Args:
            sort_by: a field of the rows. Numbers are sorted in descending order, strings in ascending order. None: the rows that matter
                most comes first.
            row_limit: number of rows; -1: all.

        Raises:
            op_tools.Error: the rows have no such field.
        """
        rows = sorted_rows(self._rows_of_table(), sort_by) if sort_by else self._in_order()
        return "\n".join([*self._lines_above(), text_table(self._columns(), rows, row_limit)])


def html_row(tag: str, cells: Iterable[object]) -> str:
    """A row of an HTML table; the cells are escaped."""
    return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"
