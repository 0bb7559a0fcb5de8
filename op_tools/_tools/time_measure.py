"""OpTimeMeasure: where the time goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from typing_extensions import Self, Unpack

from .._base.checks import checked_choice
from .._base.core import CoreHook, Error, Scope
from .._base.declared_options import OpTimeMeasureOptions
from .._base.declared_rows import TimeRow
from .._base.results import (
    DEFAULT_ROWS,
    Result,
    RowAsDict,
    Shown,
    counted,
    measured,
    megabytes,
    sorted_rows,
    text_table,
    worded,
)
from .._base.verdict import Coverage
from .tool import Tool

_GROUPS = {"op": "rows", "shape": "by_shape", "line": "by_line", "module": "by_module"}


def _milliseconds(title: str) -> Shown[TimeRow]:
    """A column of times. Only self times add up: the total of a call contains those of the calls inside of it."""
    column = measured(f"{title} ms", f"{title}_ms")
    return column if title == "self" else replace(column, total=None)


@dataclass(frozen=True)
class AliveMemory(RowAsDict):
    """Memory that the calls of a place made and that is still in use."""

    where: str
    """The source line with with_stack=True, else the operator."""
    count: int
    """Number of storages."""
    bytes: int


@dataclass(frozen=True)
class TimedStack(RowAsDict):
    """Calls that were made from the same lines."""

    frames: list[str]
    """The operator, then the lines, the innermost first."""
    total_ms: float
    self_ms: float


@dataclass(frozen=True, repr=False)
class TimeResult(Result):
    """The times of a run of OpTimeMeasure. Rows are sorted by self time, the largest first; times in milliseconds."""

    rows: list[TimeRow] = field(default_factory=list)
    """A row per operator."""
    by_shape: list[TimeRow] = field(default_factory=list)
    """A row per operator, shapes and dtypes."""
    by_line: list[TimeRow] = field(default_factory=list)
    """A row per source line; needs with_stack=True."""
    by_module: list[TimeRow] = field(default_factory=list)
    """A row per module; needs with_modules=True."""
    alive: list[AliveMemory] = field(default_factory=list)
    """Memory still in use, with memory=True, most bytes first."""
    stacks: list[TimedStack] = field(default_factory=list)
    """Stacks, with with_stack=True."""
    mode: str = "sync"
    """"sync", "event" or "host"."""
    root: str = ""
    """Folder of the run; "" if nothing was written."""
    calls: int = 0
    """Forward calls."""
    backward: int = 0
    """Backward passes over calls."""
    in_graph: int = 0
    """Calls that were not measured because their device was recording a graph."""
    overflowed: int = 0
    """Calls beyond max_calls: counted and in calls.csv, not in the trace."""
    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were timed, and which were not."""

    def table(self, sort_by: str = "self_ms", row_limit: int = DEFAULT_ROWS, group_by: str = "op") -> str:
        """The rows as a text table. Times in milliseconds.

        Args:
            sort_by: a field of TimeRow; "_ms" may be omitted. Numbers are sorted in descending order, strings in
                ascending order.
            row_limit: number of rows; -1: all.
            group_by: "op", "shape", "line" or "module".

        Raises:
            op_tools.Error: there is no such field or group.
        """
        checked_choice("group_by=", group_by, _GROUPS)
        fields = TimeRow.__dataclass_fields__
        name = f"{sort_by}_ms" if f"{sort_by}_ms" in fields else checked_choice("sort_by=", sort_by, fields)
        rows = sorted_rows(getattr(self, _GROUPS[group_by]), name)
        shown = rows if row_limit < 0 else rows[:row_limit]
        leading = {
            "op": ["op"],
            "shape": ["op", "shapes", "dtypes"],
            "line": ["line", "op"],
            "module": ["module", "op"],
        }
        columns: list[Shown[TimeRow]] = [
            *(worded(title, title) for title in leading[group_by]),
            worded("phase", "phase"),
            counted("calls", "calls"),
        ]
        for title in ("total", "self", "mean", "p50", "p99", "min", "max"):
            columns.append(_milliseconds(title))
        columns.append(Shown("share", lambda row: f"{100 * row.share:.1f} %", is_number=True))
        columns.append(Shown("GB/s", lambda row: f"{row.gb_per_s:.2f}", is_number=True))
        if any(row.flops for row in shown):
            columns.append(Shown("GFLOP/s", lambda row: f"{row.gflop_per_s:.1f}" if row.flops else "", is_number=True))
        if any(row.allocated_bytes for row in shown):
            columns.append(megabytes("alloc MB", "allocated_bytes"))
            columns.append(replace(megabytes("peak MB", "peak_bytes"), total=None))
        return "\n".join([*self.coverage.lines_of_unseen(), text_table(columns, rows, row_limit)])

    def export_stacks(self, path: str, metric: str = "self") -> None:
        """Writes stacks with their time in microseconds, a stack per line, in the form of torch.profiler's export_stacks,
        for flame graph tools. The operator is the innermost frame. Needs with_stack=True.

        Args:
            path: the file.
            metric: "self" or "total".

        Raises:
            op_tools.Error: there are no stacks, or no such metric.
        """
        checked_choice("metric=", metric, ("self", "total"))
        if not self.stacks:
            raise Error("there are no stacks; measure with with_stack=True")
        blanks = str.maketrans(" ;\t\n", "____")
        with Path(path).open("w", encoding="utf-8") as file:
            for stack in self.stacks:
                microseconds = int(1000 * getattr(stack, f"{metric}_ms"))
                if microseconds > 0:
                    frames = ";".join(frame.translate(blanks) for frame in reversed(stack.frames))
                    file.write(f"{frames} {microseconds}\n")

    def export_chrome_trace(self, path: str, merge_with: str | None = None) -> None:
        """Writes the trace to a file for chrome://tracing and Perfetto.

        Args:
            path: the file.
            merge_with: a trace of torch.profiler, or another trace of OpTimeMeasure; its events are added, on the same clock.

        Raises:
            op_tools.Error: there is no trace, or `merge_with` is not a Chrome trace.
        """
        if not self.root:
            raise Error("there is no trace: nothing was measured yet, or files=False")
        trace = json.loads((Path(self.root) / "trace.json").read_text(encoding="utf-8"))
        if merge_with is not None:
            try:
                other = json.loads(Path(merge_with).read_text(encoding="utf-8"))
                events = other["traceEvents"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise Error(f"merge_with={merge_with!r} is no Chrome trace: {error}") from error
            # Theirs stay as they are; ours count from their base.
            shift = (trace["baseTimeNanoseconds"] - other.get("baseTimeNanoseconds", 0)) / 1000
            for event in trace["traceEvents"]:
                if "ts" in event:
                    event["ts"] = round(event["ts"] + shift, 3)
            trace = {**other, "op_tools": trace["op_tools"], "traceEvents": [*events, *trace["traceEvents"]]}
        Path(path).write_text(json.dumps(trace), encoding="utf-8")


class OpTimeMeasure(Tool):
    """Measures each operator call, forward and backward.

    Files: ``op_time_measure_result/<rank>/<time>/`` with ``calls.csv``, ``summary.csv`` and ``trace.json``. At the torch
    level backward is the time of the autograd nodes that a call made; at the aten level backward operators are rows of
    their own.

    Args:
        schedule: which steps to measure, as torch.profiler.schedule(...) says; step() ends a step. Warm-up steps are
            left out. Each active cycle is a run with a folder of its own.
        on_trace_ready: called with this tool when a run has ended.
    """

    _kind = "OpTimeMeasure"
    _further = ("schedule", "on_trace_ready")

    def __init__(
        self,
        *,
        schedule: Callable[[int], torch.profiler.ProfilerAction] | None = None,
        on_trace_ready: Callable[[OpTimeMeasure], Any] | None = None,
        **options: Unpack[OpTimeMeasureOptions],
    ) -> None:
        super().__init__(**options)
        self._first_step = options.get("first_step") or 0  # of the first cycle
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        self._number = 0  # of the step, over all cycles
        self._action = torch.profiler.ProfilerAction.RECORD

    def start(self) -> Self:
        if self._depth == 0:
            self._number = 0
            self._action = self._action_of(0)
        return super().start()

    def stop(self) -> None:
        ends = self._depth == 1 and self._is_running
        super().stop()
        if ends:
            self._tell_ready()

    end = stop

    def step(self) -> None:
        if self._depth == 0:
            return
        super().step()
        ended = self._action
        self._number += 1
        self._action = self._action_of(self._number)
        if ended is torch.profiler.ProfilerAction.RECORD_AND_SAVE and self._is_running:
            self._end_run()
            self._tell_ready()
        self._begin_run(self._open_watched)

    def result(self) -> TimeResult:
        """The times of the last run so far."""
        report = self._report_and_coverage()
        rows = {name: [TimeRow(**row) for row in report.get(name, [])] for name in _GROUPS.values()}
        alive = [AliveMemory(**one) for one in report.get("alive", [])]
        stacks = [TimedStack(**one) for one in report.get("stacks", [])]
        return TimeResult(**{**report, **rows, "alive": alive, "stacks": stacks})

    def export_chrome_trace(self, path: str, merge_with: str | None = None) -> None:
        """Writes the trace, as torch.profiler's trace handlers call it.

        Args:
            path: the file.
            merge_with: a trace of torch.profiler whose events are added.
        """
        self.flush()
        self.result().export_chrome_trace(path, merge_with)

    def _action_of(self, step: int) -> torch.profiler.ProfilerAction:
        return torch.profiler.ProfilerAction.RECORD if self._schedule is None else self._schedule(step)

    def _open(self) -> tuple[CoreHook, Scope] | None:
        wanted = torch.profiler.ProfilerAction.RECORD, torch.profiler.ProfilerAction.RECORD_AND_SAVE
        if self._action not in wanted:
            return None
        self._arguments["first_step"] = self._first_step + self._number
        return super()._open()

    def _tell_ready(self) -> None:
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)
