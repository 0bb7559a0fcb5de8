"""OpObserve: which operators a program calls, with which arguments and results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Unpack

from .._base import declared_rows
from .._base.checks import checked_choice
from .._base.declared_options import OpObserveOptions
from .._base.declared_rows import ObserveRow
from .._base.results import DEFAULT_ROWS, Result, Shown, counted, sorted_rows, text_table, worded
from .._base.verdict import Coverage
from .tool import Tool


@dataclass(frozen=True)
class TensorShape(declared_rows.TensorShape):
    """A tensor of a call."""

    def __str__(self) -> str:
        return f"{self.dtype.removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class DynamicDim(declared_rows.DynamicDim):
    """A dimension that had several sizes in calls from the same line of the program: a dynamic shape."""

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.sizes)) if len(self.sizes) <= 4 else f"{self.sizes[0]}..{self.sizes[-1]}"
        return f"{self.of} {self.tensor} dim {self.dimension}: {sizes}"


@dataclass(frozen=True, repr=False)
class ObserveResult(Result):
    """The recording of a run of OpObserve."""

    rows: list[ObserveRow] = field(default_factory=list)
    """A row per operator, shapes, dtypes and devices; most calls first."""
    varying: list[DynamicDim] = field(default_factory=list)
    """Dimensions that a source line calls with several sizes."""
    calls: int = 0
    """All calls."""
    written: int = 0
    """Rows of calls.jsonl."""
    left_out: int = 0
    """Calls that are in no row, because there were 100,000 different rows."""
    read_backs: int = 0
    """Transfers of statistics from a device."""
    root: str = ""
    """Folder of the run; "" if there was nothing to write."""
    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were seen, and which were not."""

    @property
    def dynamic_ops(self) -> list[str]:
        """The operators with a dynamic shape, sorted."""
        return sorted({one.op for one in self.varying})

    def table(self, by: str = "shape", sort_by: str = "calls", row_limit: int = DEFAULT_ROWS) -> str:
        """The operators with shapes, dtypes and counts as a text table; dynamic shapes are marked. Most calls first.

        Args:
            by: "shape": a line per operator, shapes and dtypes; "op": a line per operator.
            sort_by: a field of the rows: "calls", "op" or "phase". Numbers are sorted in descending order, strings in
                ascending order.
            row_limit: number of rows; -1: all.

        Raises:
            op_tools.Error: `by` is neither, or the rows have no such field.
        """
        checked_choice("by=", by, ("shape", "op"))
        varies: dict[tuple[str, str], list[str]] = defaultdict(list)
        for dimension in self.varying:
            if str(dimension) not in (known := varies[dimension.op, dimension.phase]):
                known.append(str(dimension))
        first = [worded("op", "op"), worded("phase", "phase"), counted("calls", "calls")]
        if by == "shape":
            columns = [
                *first,
                Shown[ObserveRow]("inputs", lambda row: _shapes_text(row.inputs)),
                Shown[ObserveRow]("outputs", lambda row: _shapes_text(row.outputs)),
                Shown[ObserveRow]("", lambda row: "dynamic" if (row.op, row.phase) in varies else ""),
            ]
            return self._table_of(columns, sorted_rows(self.rows, sort_by), row_limit)
        by_op: dict[tuple[str, str], _OfOp] = {}
        for row in self.rows:
            key = row.op, row.phase
            of_op = by_op.setdefault(key, _OfOp(*key, varies="; ".join(varies.get(key, []))))
            of_op.calls += row.calls
            of_op.kinds += 1
            of_op.dtypes.update(one.dtype.removeprefix("torch.") for one in row.inputs + row.outputs)
        of_ops = [
            *first,
            counted("kinds", "kinds"),
            Shown[_OfOp]("dtypes", lambda row: ", ".join(sorted(row.dtypes))),
            worded("varies", "varies"),
        ]
        return self._table_of(of_ops, sorted_rows([*by_op.values()], sort_by), row_limit)

    def _table_of(self, columns: Sequence[Shown[Any]], rows: Sequence[Any], row_limit: int) -> str:
        return "\n".join([*self.coverage.lines_of_unseen(), text_table(columns, rows, row_limit)])


@dataclass
class _OfOp:
    """A line of the table by operator."""

    op: str
    phase: str
    calls: int = 0
    kinds: int = 0
    dtypes: set[str] = field(default_factory=set)
    varies: str = ""


def _shapes_text(tensors: Iterable[declared_rows.TensorShape]) -> str:
    return ", ".join(map(str, tensors))


class OpObserve(Tool):
    """Notes the operators that a program calls, their arguments and results, and the values in these.

    ``result().table()`` says which operators are used, with which shapes and dtypes, how often; a call per line is in
    ``op_observe_result/<rank>/<time>/calls.jsonl``, its tensors with shape, dtype, stride, device, minimum, maximum, mean,
    norm, how many elements are NaN, infinite and zero, and a hash of their bytes.

    On a device statistics are computed there and read once per step().
    """

    _kind = "OpObserve"

    def __init__(self, **options: Unpack[OpObserveOptions]) -> None:
        super().__init__(**options)

    def result(self) -> ObserveResult:
        """The recording so far, also while the tool is on. Call flush() first to have all rows in the file."""
        report = self._report_and_coverage()
        rows = [
            ObserveRow(**{**row, **{side: [TensorShape(**one) for one in row[side]] for side in ("inputs", "outputs")}})
            for row in report["rows"]
        ]
        varying = [DynamicDim(**one) for one in report.get("varying", [])]
        return ObserveResult(**{**report, "rows": rows, "varying": varying})
