"""OpFallback and OpDtypeCast: operators that run elsewhere than on their device, or in other dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Unpack

from .._base.declared_options import OpDtypeCastOptions, OpFallbackOptions
from .._base.declared_rows import RedirectRow
from .._base.results import Shown, SortableResult, counted, measured, megabytes, sorted_rows, worded
from .._base.verdict import Coverage
from .tool import Tool


@dataclass(frozen=True, repr=False)
class RedirectResult(SortableResult):
    """The calls that a run of OpFallback or OpDtypeCast changed. Its table has the slowest operators first; times in milliseconds."""

    rows: list[RedirectRow] = field(default_factory=list)
    """A row per operator."""
    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were seen, and which were not."""

    def _in_order(self) -> Sequence[RedirectRow]:
        return sorted_rows(self.rows, "milliseconds")

    def _columns(self) -> list[Shown[Any]]:
        return [
            worded("op", "op"),
            counted("calls", "calls"),
            megabytes("MB", "bytes"),
            measured("ms", "milliseconds"),
            Shown[RedirectRow](
                "stayed",
                lambda row: str(sum(row.stayed.values())),
                is_number=True,
                total=lambda rows: str(sum(sum(row.stayed.values()) for row in rows)),
            ),
        ]


class _Redirect(Tool):
    def result(self) -> RedirectResult:
        """The results of the last run so far."""
        report = self._report_and_coverage()
        return RedirectResult([RedirectRow(**row) for row in report["rows"]], report["coverage"])


class OpFallback(_Redirect):
    """Runs operators on the CPU and puts the results back, as if the device had done it.

    Gradients flow through it, and the backward of the operators runs on the CPU too. Operators that cannot be moved
    (views, factories, collectives) stay where they are; the result and a line say which and why. Calls whose tensors are
    on the CPU already are left alone. With ``level="aten"`` the variable DIPU_FORCE_FALLBACK_OPS_LIST stands in for `ops`.
    Dtypes for an operator are in a variable with its name in front: LINEAR_OP_DTYPE_CAST_DICT.
    """

    _kind = "OpFallback"

    def __init__(self, **options: Unpack[OpFallbackOptions]) -> None:
        super().__init__(**options)


class OpDtypeCast(_Redirect):
    """Runs operators on their own device in other dtypes; results and gradients come back in the original ones.

    Dtypes for an operator are in a variable with its name in front: LINEAR_OP_DTYPE_CAST_DICT.
    """

    _kind = "OpDtypeCast"

    def __init__(self, **options: Unpack[OpDtypeCastOptions]) -> None:
        super().__init__(**options)
