"""OpAutoCompare: does the device compute right results?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from typing_extensions import Unpack

from .._base.captured_calls import call_folder
from .._base.core import GRAPH_CALLS, CoreHook, Scope, claim_folder, log_warn, tolerance_text, unobserved
from .._base.declared_options import OpAutoCompareOptions
from .._base.declared_rows import ComparedOp
from .._base.results import DEFAULT_ROWS, Result, counted, sorted_rows, text_table, worded
from .._base.verdict import Coverage, Verdict, verdict_of
from .tool import Tool

_MOST_EXPLAINED = 8  # graphs: each is run some ten times more


@dataclass(slots=True)
class CompareRow:
    """One comparison; fields are the columns of autocompare.jsonl (docs/autocompare.md), None where it has no such value.
    A field may be read as ``row.verdict`` or ``row["verdict"]``."""

    op: str
    id: int
    step: int
    level: str
    phase: str
    what: str = ""
    part: str = ""
    index: int | None = None
    verdict: str = ""
    kind: str = ""
    not_judged: str | None = None
    reason: str = ""
    method: str = ""
    thresholds: str = ""
    deciding: str = ""
    number: float = 0.0
    limit: float = 0.0
    wide_limit: bool | None = None
    dtype: str | None = None
    shape: list[int] | None = None
    strides: list[int] | None = None
    numel: int | None = None
    bit_equal: bool | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    mean_abs: float | None = None
    rmse: float | None = None
    cosine: float | None = None
    max_ulp: float | None = None
    mean_ulp: float | None = None
    outside: int | None = None
    error_rmse: float | None = None
    error_max: float | None = None
    cpu_error_rmse: float | None = None
    cpu_error_max: float | None = None
    result_nan: int | None = None
    result_inf: int | None = None
    reference_nan: int | None = None
    reference_inf: int | None = None
    nonfinite_mismatches: int | None = None
    worst_index: list[int] | None = None
    worst_result: str | None = None
    worst_reference: str | None = None
    device: str = ""
    module: str | None = None
    source: str | None = None
    saved: str | None = None

    def __getitem__(self, name: str) -> Any:
        value = getattr(self, name, None)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: str) -> bool:
        return getattr(self, name, None) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The value of the column `name`, or `default` where the row has none."""
        value = getattr(self, name, None)
        return default if value is None else value

    def keys(self) -> list[str]:
        """The columns that this row has."""
        return [one.name for one in fields(self) if getattr(self, one.name) is not None]


@dataclass(frozen=True, repr=False)
class CompareResult(Result):
    """The results of a run of OpAutoCompare."""

    rows: list[CompareRow] = field(default_factory=list)
    """A row per comparison."""
    ops: list[ComparedOp] = field(default_factory=list)
    """A row per operator."""
    calls: int = 0
    """Forward calls and backward passes that were compared."""
    passed: int = 0
    """Comparisons that passed."""
    failed: int = 0
    """Comparisons that failed."""
    not_judged: int = 0
    """Comparisons without a verdict; each row has the reason."""
    reasons: dict[str, int] = field(default_factory=dict)
    """How many comparisons have no verdict, by reason."""
    unjudged: str = ""
    """A sentence with the reasons where most comparisons have no verdict, or ""."""
    left_out: int = 0
    """Calls excluded by first_n_per_signature and every_nth."""
    saved: int = 0
    """Failed calls that were saved to files."""
    not_saved: int = 0
    """Failed calls that max_saved and max_saved_mb excluded."""
    rows_dropped: int = 0
    """Rows that are in the files only."""
    root: str = ""
    """Folder of the run; "" if nothing was compared."""
    failure: str = ""
    """The first failed write, or ""."""

    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were checked, and which were not."""

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all calls were checked."""
        return verdict_of(wrong=self.failed > 0 or self.coverage.children_wrong > 0, unseen=self.coverage.reasons())

    @property
    def ok(self) -> bool:
        """True if the verdict is `agrees`: no comparison failed, and most was looked at."""
        return self.verdict is Verdict.AGREES

    @property
    def failures(self) -> list[CompareRow]:
        """The rows of failed comparisons."""
        return [row for row in self.rows if row.verdict == Verdict.DIFFERS]

    def table(self, sort_by: str | None = None, row_limit: int = DEFAULT_ROWS) -> str:
        """The operators as a text table, and their totals; then the reasons in `unjudged`.

        Args:
            sort_by: a field of ComparedOp. Numbers are sorted in descending order, strings in ascending order. None: failed ones
                first.
            row_limit: number of rows; -1: all.

        Raises:
            op_tools.Error: the rows have no such field.
        """
        worst_first = sorted(self.ops, key=lambda op: (-op.failed, -op.worst))
        columns = [
            worded("op", "op"),
            counted("wrong", "failed"),
            counted("right", "passed"),
            counted("not judged", "not_judged"),
            worded("reason", "reason"),
        ]
        table = text_table(columns, sorted_rows(self.ops, sort_by) if sort_by else worst_first, row_limit)
        return "\n".join([*self.coverage.lines(), table, *filter(None, [self.unjudged])])


class OpAutoCompare(Tool):
    """Runs each call again on the CPU and in float64, and judges the device's results.

    Outputs, changed inputs and (torch level) input gradients. Rows go to ``op_autocompare_result/<rank>/<time>/``
    (``autocompare.csv``, ``autocompare.jsonl``), failed calls to ``<op>/<id>/{device,cpu}/`` there, for
    ``run_op_from_data``. Tensors on the CPU are judged against float64.

    Tolerances of method "allclose" are in the variable AUTOCOMPARE_ERROR_TOLERANCE.
    """

    _kind = "OpAutoCompare"

    def __init__(self, **options: Unpack[OpAutoCompareOptions]) -> None:
        super().__init__(**options)
        self._explanations: dict[str, str] = {}  # of wrong graphs: how they seem to have been computed

    def _open(self) -> tuple[CoreHook, Scope] | None:
        self._explanations = {}
        opened = super()._open()
        if opened is not None and self._watch is not None:
            hook = opened[0]
            self._watch.save_graphs(lambda: claim_folder(hook))
        return opened

    def stop(self) -> None:
        super().stop()
        if self._depth == 0 and self.coverage().graphs:
            unobserved(self._explain_graphs)

    end = stop

    def _explain_graphs(self) -> None:
        """Says how wrong graphs seem to have been computed, by the first saved call of each."""
        report = self._report()
        for row in report["rows"]:
            op, saved = row["op"], row.get("saved")
            is_wrong = op.startswith(GRAPH_CALLS) and row["verdict"] == Verdict.DIFFERS and row.get("kind") == "values"
            if not is_wrong or not saved or op in self._explanations or len(self._explanations) >= _MOST_EXPLAINED:
                continue
            self._explanations[op] = ""
            with suppress(Exception):  # it was removed, or its operators do not run so
                from .._torch.hypotheses import explaining_call

                likely = explaining_call(call_folder(saved))
                if likely:
                    self._explanations[op] = f"as if computed {likely[0].value}"
                    log_warn(f"{op}: {self._explanations[op]}")

    @staticmethod
    def tolerances() -> str:
        """The limits of all methods as a text table, one line per dtype. Units and formulas: docs/autocompare.md."""
        return tolerance_text()

    def result(self) -> CompareResult:
        """The results of the last run so far."""
        report = self._report_and_coverage()
        rows = report.pop("rows")
        wrong = [row for row in rows if row.get("kind") == "values" and row["verdict"] == Verdict.DIFFERS]
        for told in [*report.get("ops", []), *wrong]:
            if self._explanations.get(told["op"]):
                told["reason"] = "; ".join(filter(None, [told.get("reason"), self._explanations[told["op"]]]))
        ops = [ComparedOp(**op) for op in report.pop("ops", [])]
        return CompareResult(rows=[CompareRow(**row) for row in rows], ops=ops, **report)
