"""OpAutoCompare: is what the device computes right?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import _C
from ._tools import Tool


@dataclass(frozen=True)
class ComparedOp:
    """What was judged of one operator: outputs, changed inputs, input gradients."""

    op: str
    calls: int  # forward calls
    backward: int  # backward passes
    passed: int
    failed: int
    not_comparable: int
    worst: float  # the largest share of a limit that was reached; 1 is the limit
    reason: str  # of the first failure; else why something was not comparable
    source: str  # the user's line of the first failure


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
        """The operators as a text table, failed ones first."""
        return _C.text_table(
            [("op", False), ("wrong", True), ("right", True), ("not comparable", True), ("reason", False)],
            [
                [op.op, str(op.failed), str(op.passed), str(op.not_comparable), op.reason]
                for op in sorted(self.ops, key=lambda op: (-op.failed, -op.worst))
            ],
            120,
        )


class OpAutoCompare(Tool):
    """Runs each call again on the CPU and in float64, and judges what the device gave.

    Outputs, changed inputs and (torch level) input gradients. Rows go to ``op_autocompare_result/<rank>/<time>/``
    (``autocompare.csv``, ``autocompare.jsonl``), failed calls to ``<op>/<id>/{device,cpu}/`` there, for
    ``run_op_from_data``. Tensors on the CPU are judged against float64.

    Args:
        method: "relative" (default), "allclose", "bitwise", "ulp", "msprobe-quick" or "msprobe-absolute".
            None: OP_AUTOCOMPARE_METHOD.
        golden: run in float64 too, where that decides.
        nan_equal: NaN agrees with NaN.
        strides: other strides than the CPU's are a failure.
        gradients: judge input gradients (torch level).
        first_n_per_signature: only the first so many calls per operator, shapes and dtypes.
        every_nth: of those only every Nth, beginning with the first.
        async_: judge on other threads while the device goes on.
        workers: how many (2).
        max_pending_mb: memory in MB that may wait to be judged; when it is full the program judges itself.
            None: OP_TOOLS_MAX_PENDING_MB, else 1024.
        raise_on_failure: raise at the first failure (RuntimeError; it names the user's line).
        max_saved: failed calls saved per operator, shapes and dtypes (2).
        max_saved_mb: of all saved calls together (4096).

    The other arguments are those of :class:`Tool`; filters in the environment: OP_AUTOCOMPARE_LIST,
    OP_AUTOCOMPARE_DISABLE_LIST; tolerances of "allclose": AUTOCOMPARE_ERROR_TOLERANCE.
    """

    _kind = "OpAutoCompare"
    _flag = "autocompare"
    _variables = "OP_AUTOCOMPARE"

    def __init__(
        self,
        *,
        method: str | None = None,
        golden: bool | None = None,
        nan_equal: bool | None = None,
        strides: bool | None = None,
        gradients: bool | None = None,
        first_n_per_signature: int | None = None,
        every_nth: int | None = None,
        async_: bool | None = None,
        workers: int | None = None,
        max_pending_mb: int | None = None,
        raise_on_failure: bool | None = None,
        max_saved: int | None = None,
        max_saved_mb: int | None = None,
        **tool: Any,
    ) -> None:
        super().__init__(**tool)
        self._arguments.update(
            method=method,
            golden=golden,
            nan_equal=nan_equal,
            strides=strides,
            gradients=gradients,
            first_n_per_signature=first_n_per_signature,
            every_nth=every_nth,
            async_=async_,
            workers=workers,
            max_pending_mb=max_pending_mb,
            raise_on_failure=raise_on_failure,
            max_saved=max_saved,
            max_saved_mb=max_saved_mb,
        )

    @staticmethod
    def tolerances() -> str:
        """The limits of all methods as a text table, one line per dtype. Units and formulas: docs/autocompare.md."""
        return _C.tolerance_text()

    def result(self) -> CompareResult:
        """What the last run found so far."""
        report = self._report()
        ops = [ComparedOp(**op) for op in report.pop("ops", [])]
        return CompareResult(ops=ops, **report)
