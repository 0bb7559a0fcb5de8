"""OpOverflowCheck: NaN and infinities where there were none."""

from __future__ import annotations

from dataclasses import dataclass, field

from typing_extensions import Unpack

from . import _C
from ._declared import OpOverflowCheckOptions, OverflowRow
from ._tools import Tool


@dataclass(frozen=True)
class OverflowResult:
    """What a run of OpOverflowCheck found."""

    rows: list[OverflowRow] = field(default_factory=list)
    """The first 1,000 findings; the file has all."""
    calls: int = 0
    """Calls that were checked."""
    producers: int = 0
    """Calls that made a NaN or an infinity from finite inputs."""
    propagators: int = 0
    """Calls that passed one on."""
    expected: int = 0
    """Findings in backward, with allow_in_backward_with_scaler."""
    root: str = ""
    """Folder of the run; "" if there was nothing to write."""

    @property
    def ok(self) -> bool:
        """True if no call made a NaN or an infinity."""
        return self.producers == 0

    def table(self) -> str:
        """The findings as a text table: producers first, then propagators, in the order of the calls."""
        strings, numbers = ("kind", "op", "phase", "module"), ("step", "nan", "inf", "-inf", "of")
        return _C.text_table(
            [*((title, False) for title in strings), *((title, True) for title in numbers), ("line", False)],
            [
                [row.kind, row.op, row.phase, row.module or "", str(row.step)]
                + ["?" if count is None else str(count) for count in (row.nan, row.pos_inf, row.neg_inf)]
                + ["x".join(map(str, row.shape)) or "1", row.line or ""]
                for row in sorted(self.rows, key=lambda row: (row.kind != "producer", row.expected))
            ],
            120,
        )


class OpOverflowCheck(Tool):
    """Finds the operator that made a NaN or an infinity out of finite inputs.

    A call with finite inputs and other outputs is a *producer*, one that was given such values a *propagator*. Integers
    are not looked at, nor what ``empty`` returns. Rows go to ``op_overflow_check_result/<rank>/<time>/overflow.jsonl``, and
    the producers' calls, inputs as they were before, to folders beside it, for ``run_op_from_data``.
    """

    _kind = "OpOverflowCheck"

    def __init__(self, **options: Unpack[OpOverflowCheckOptions]) -> None:
        super().__init__(**options)

    def result(self) -> OverflowResult:
        """What the last run found so far. Call flush() first to include calls that wait to be checked."""
        report = self._report()
        return OverflowResult(**{**report, "rows": [OverflowRow(**row) for row in report["rows"]]})
