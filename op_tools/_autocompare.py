"""OpAutoCompare: is what the device computes right?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Unpack

from . import _C
from ._declared import ComparedOp, OpAutoCompareOptions
from ._tools import Tool


@dataclass(frozen=True)
class CompareResult:
    """What a run of OpAutoCompare found."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """One dict per comparison; keys are the columns of autocompare.jsonl (docs/autocompare.md)."""
    ops: list[ComparedOp] = field(default_factory=list)
    """One row per operator."""
    calls: int = 0
    """Forward calls that were compared."""
    passed: int = 0
    """Comparisons that passed."""
    failed: int = 0
    """Comparisons that failed."""
    not_comparable: int = 0
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

    @property
    def ok(self) -> bool:
        """True if no comparison failed."""
        return self.failed == 0

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The rows of failed comparisons."""
        return [row for row in self.rows if row["verdict"] == "fail"]

    def table(self) -> str:
        """The operators as a text table, failed ones first; then what `unjudged` says."""
        table = _C.text_table(
            [("op", False), ("wrong", True), ("right", True), ("not comparable", True), ("reason", False)],
            [
                [op.op, str(op.failed), str(op.passed), str(op.not_comparable), op.reason]
                for op in sorted(self.ops, key=lambda op: (-op.failed, -op.worst))
            ],
            120,
        )
        return f"{table}\n{self.unjudged}" if self.unjudged else table


class OpAutoCompare(Tool):
    """Runs each call again on the CPU and in float64, and judges what the device gave.

    Outputs, changed inputs and (torch level) input gradients. Rows go to ``op_autocompare_result/<rank>/<time>/``
    (``autocompare.csv``, ``autocompare.jsonl``), failed calls to ``<op>/<id>/{device,cpu}/`` there, for
    ``run_op_from_data``. Tensors on the CPU are judged against float64.

    Tolerances of method "allclose" are in the variable AUTOCOMPARE_ERROR_TOLERANCE.
    """

    _kind = "OpAutoCompare"

    def __init__(self, **options: Unpack[OpAutoCompareOptions]) -> None:
        super().__init__(**options)

    @staticmethod
    def tolerances() -> str:
        """The limits of all methods as a text table, one line per dtype. Units and formulas: docs/autocompare.md."""
        return _C.tolerance_text()

    def result(self) -> CompareResult:
        """What the last run found so far."""
        report = self._report()
        ops = [ComparedOp(**op) for op in report.pop("ops", [])]
        return CompareResult(ops=ops, **report)
