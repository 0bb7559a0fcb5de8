"""The report of a result in memory: tool.result().report("report.html")"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from .._base.core import Coverage, Error
from .._base.remote_files import with_urls
from .._base.verdict import Verdict
from .._base.written_file import whole_file
from .._runs.comparison import RunsComparison
from .._tools.autocompare import CompareResult
from .._tools.black_box_file import BlackBox
from .._tools.invariance import InvarianceResult
from .._tools.memory_check import MemoryResult
from .._tools.overflow import OverflowResult
from .._tools.time_measure import TimeResult
from . import autocompare, black_box, comparisons, invariance, memory, overflow, plain_rows, timing
from .page import fragment_of, page_of
from .part import MOST_ROWS, Origin, Part
from .scan import part_of_run


def _as_dict(row: Any) -> Mapping[str, Any]:
    return asdict(row) if is_dataclass(row) and not isinstance(row, type) else {"value": row}


def _of_comparisons(result: CompareResult, origin: Origin) -> Part:
    if result.rows_dropped:
        origin.gaps.append(f"{result.rows_dropped:,} rows are in the files only")
    return autocompare.part_of_rows(map(_as_dict, result.rows), origin)


def _overflowed(result: OverflowResult, origin: Origin) -> Part:
    return overflow.part_of_rows(map(_as_dict, result.rows), origin, result.came_in)


def _timed(result: TimeResult, origin: Origin) -> Part:
    return timing.part_of_rows(map(_as_dict, result.by_shape or result.rows), origin)


def _of_memory(result: MemoryResult, origin: Origin) -> Part:
    rows, leaks, overwrites = (map(_as_dict, some) for some in (result.rows, result.leaks, result.overwrites))
    return memory.part_of_rows(rows, origin, leaks, overwrites)


def _of_runs(result: RunsComparison, origin: Origin) -> Part:
    return comparisons.part_of_rows(result.records(), origin)


def _of_invariance(result: InvarianceResult, origin: Origin) -> Part:
    return invariance.part_of_rows(map(_as_dict, result.rows), origin)


def _of_process(result: BlackBox, origin: Origin) -> Part:
    return black_box.part_of_boxes([result], [], origin)


_PARTS: dict[type, Callable[[Any, Origin], Part]] = {
    CompareResult: _of_comparisons,
    OverflowResult: _overflowed,
    TimeResult: _timed,
    MemoryResult: _of_memory,
    RunsComparison: _of_runs,
    InvarianceResult: _of_invariance,
    BlackBox: _of_process,
}


def _part_of_rows(result: Any, origin: Origin) -> Part:
    if (part := _PARTS.get(type(result))) is not None:
        return part(result, origin)
    verdict = getattr(result, "verdict", None)
    verdict = verdict if isinstance(verdict, Verdict) else None
    return plain_rows.part_of_rows(type(result).__name__, map(_as_dict, result.rows), origin, verdict)


def part_of_result(result: Any, *, with_files: bool = True) -> Part:
    """A part of the rows of a result; of the files of its run where it has any, because these hold all rows.

    Raises:
        op_tools.Error: a file of the run is damaged.
    """
    coverage = getattr(result, "coverage", None)
    root = str(getattr(result, "root", "") or "")
    origin = Origin(root, "", coverage if isinstance(coverage, Coverage) else None)
    part = part_of_run(Path(root), origin) if root and with_files else None
    if part is None:
        part = _part_of_rows(result, origin)
    if isinstance(verdict := getattr(result, "verdict", None), Verdict):  # the verdict of a black box is a sentence
        part.verdict = verdict  # it knows more than rows: values that came in, children
    return part


def write_report(result: Any, path: str | Path, title: str = "op_tools report") -> Path:
    """Writes the page of a result.

    Raises:
        op_tools.Error: it cannot be written.
    """
    return write_page([part_of_result(result)], path, title)


def write_page(parts: list[Part], path: str | Path, title: str) -> Path:
    """Writes the page of parts, in place of a file of this name; nobody sees half of it.

    Raises:
        op_tools.Error: it cannot be written.
    """
    file = Path(path)
    if file.is_dir() or not file.name:  # "." has no name
        raise Error(f"{str(path) or repr('')}: cannot be written: it is a folder; give the name of a file in it")
    with whole_file(file, errors="replace") as page:
        page.write(with_urls(page_of(parts, title)))
    return file


def notebook_html(result: Any) -> str:
    """A result for a notebook: coverage and findings; "" for a result without findings, or with too many rows to go through."""
    rows = result.rows
    if len(rows) > MOST_ROWS or not (type(result) in _PARTS or (rows and plain_rows.mark_of(_as_dict(rows[0])))):
        return ""
    return fragment_of(part_of_result(result, with_files=False))
