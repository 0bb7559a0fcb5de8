"""OpFallback and OpDtypeCast: operators that run elsewhere than on their device, or in other dtypes."""

from __future__ import annotations

from dataclasses import dataclass, field

from typing_extensions import Unpack

from . import _C
from ._declared import OpDtypeCastOptions, OpFallbackOptions, RedirectRow
from ._tools import Tool


@dataclass(frozen=True)
class RedirectResult:
    """What a run of OpFallback or OpDtypeCast did."""

    rows: list[RedirectRow] = field(default_factory=list)
    """One row per operator."""

    def table(self) -> str:
        """The rows as a text table, the slowest first. Times in milliseconds."""
        return _C.text_table(
            [("op", False), ("calls", True), ("MB", True), ("ms", True), ("stayed", True)],
            [
                [
                    row.op,
                    str(row.calls),
                    f"{row.bytes / 1e6:.3f}",
                    f"{row.milliseconds:.3f}",
                    str(sum(row.stayed.values())),
                ]
                for row in sorted(self.rows, key=lambda row: -row.milliseconds)
            ],
            120,
        )


class _Redirect(Tool):
    def result(self) -> RedirectResult:
        """What the last run did so far."""
        return RedirectResult([RedirectRow(**row) for row in self._report()["rows"]])


class OpFallback(_Redirect):
    """Runs operators on the CPU and puts the results back, as if the device had done it.

    Gradients flow through it, and the backward of the operators runs on the CPU too. Operators that cannot be moved
    (views, factories, collectives) stay where they are; the result and a line say which and why. Calls whose tensors are
    on the CPU already are left alone. With ``level="aten"`` the variable DIPU_FORCE_FALLBACK_OPS_LIST stands in for `ops`.
    Dtypes for one operator are in a variable with its name in front: LINEAR_OP_DTYPE_CAST_DICT.
    """

    _kind = "OpFallback"

    def __init__(self, **options: Unpack[OpFallbackOptions]) -> None:
        super().__init__(**options)


class OpDtypeCast(_Redirect):
    """Runs operators on their own device in other dtypes; results and gradients come back in the original ones.

    Dtypes for one operator are in a variable with its name in front: LINEAR_OP_DTYPE_CAST_DICT.
    """

    _kind = "OpDtypeCast"

    def __init__(self, **options: Unpack[OpDtypeCastOptions]) -> None:
        super().__init__(**options)
