"""OpOverflowCheck: NaN and infinities where there were none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Unpack

from .._base.declared_options import OpOverflowCheckOptions
from .._base.declared_rows import OverflowRow
from .._base.results import Shown, SortableResult, worded
from .._base.verdict import Coverage, Verdict, verdict_of
from .tool import Tool

CAME_IN = "came_in"
"""A gap of this tool: values that no call made which was seen."""


@dataclass(frozen=True, repr=False)
class OverflowResult(SortableResult):
    """The findings of a run of OpOverflowCheck. Its table has producers first, then propagators, in the order of the calls."""

    rows: list[OverflowRow] = field(default_factory=list)
    """The first 1,000 findings; the file has all."""
    calls: int = 0
    """Calls that were checked."""
    producers: int = 0
    """Calls that made a NaN or an infinity from finite inputs."""
    propagators: int = 0
    """Calls that passed a NaN or an infinity on."""
    expected: int = 0
    """Findings in backward, with allow_in_backward_with_scaler."""
    came_in: int = 0
    """Tensors with a NaN or +inf that no call made which was seen: the program's data, another rank, sums that autograd makes
    between calls of the torch level."""
    root: str = ""
    """Folder of the run; "" if no call came to it."""
    failure: str = ""
    """The first failed write, or "". The check goes on without files."""

    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were checked, and which were not."""

    @property
    def verdict(self) -> Verdict:
        """`agrees` only where all calls were checked."""
        return verdict_of(wrong=self.producers > 0 or self.coverage.children_wrong > 0, unseen=bool(self.gaps))

    @property
    def gaps(self) -> list[str]:
        """Tokens of why it is not known that no call made a NaN or an infinity: those of the account, and CAME_IN."""
        return [*self.coverage.gaps(), *([CAME_IN] if self.came_in else [])]

    @property
    def unseen(self) -> list[str]:
        """The same in words."""
        reasons: list[str] = self.coverage.reasons()
        if CAME_IN in self.gaps:
            reasons.append(f"{self.came_in} tensors had NaN or infinities that no call seen here made")
        return reasons

    @property
    def ok(self) -> bool:
        """True if the verdict is `agrees`: no call made a NaN or an infinity, none came in, and most was looked at."""
        return self.verdict is Verdict.AGREES

    def _lines_above(self) -> list[str]:
        return self.coverage.lines()

    def _in_order(self) -> Sequence[OverflowRow]:
        return sorted(self.rows, key=lambda row: (row.kind != "producer", row.expected))

    def _columns(self) -> list[Shown[Any]]:
        return [
            *(worded(title, title) for title in ("kind", "op", "phase")),
            Shown[OverflowRow]("module", lambda row: row.module or ""),
            Shown[OverflowRow]("step", lambda row: str(row.step), is_number=True),
            *(_special(title, name) for title, name in (("nan", "nan"), ("inf", "pos_inf"), ("-inf", "neg_inf"))),
            Shown[OverflowRow]("of", lambda row: "x".join(map(str, row.shape)) or "1", is_number=True),
            Shown[OverflowRow]("line", lambda row: row.line or ""),
        ]


def _special(title: str, name: str) -> Shown[OverflowRow]:
    """A column of elements that are not finite; "?" where they were not counted."""
    return Shown(title, lambda row: "?" if getattr(row, name) is None else str(getattr(row, name)), is_number=True)


class OpOverflowCheck(Tool):
    """Finds the operator that made a NaN or an infinity out of finite inputs.

    A call with finite inputs and other outputs is a *producer*, a call that was given such values a *propagator*. Integers
    are not looked at, nor results of ``empty``. Rows go to ``op_overflow_check_result/<rank>/<time>/overflow.jsonl``, and
    the producers' calls, inputs as they were before, to folders beside it, for ``run_op_from_data``.
    """

    _kind = "OpOverflowCheck"

    def __init__(self, **options: Unpack[OpOverflowCheckOptions]) -> None:
        super().__init__(**options)

    def result(self) -> OverflowResult:
        """The findings of the last run so far. Call flush() first to include calls that wait to be checked."""
        report = self._report_and_coverage()
        return OverflowResult(**{**report, "rows": [OverflowRow(**row) for row in report["rows"]]})
