"""OpOverflowCheck: NaN and infinities where there were none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import _C
from ._tools import Names, Tool, _names


@dataclass(frozen=True)
class OverflowRow:
    """One output with NaN or infinities."""

    kind: str  # "producer": its inputs were finite; "propagator": it was given them
    expected: bool  # in backward, with allow_in_backward_with_scaler
    op: str
    id: int  # of the call
    step: int
    phase: str  # "forward" or "backward"
    output: int  # which of the call's output tensors (then: of the inputs that it wrote), or of its input gradients
    dtype: str
    shape: list[int]
    nan: int | None  # elements; None: the program had overwritten the tensor before it was read
    pos_inf: int | None
    neg_inf: int | None
    first: list[int] | None  # index of the first such element
    module: str | None  # "ResNet.layer3.0.conv1"
    line: str | None  # of the program
    saved: str | None  # folder of the producer's call, for run_op_from_data
    not_saved: str | None  # why a producer was not


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
        texts, numbers = ("kind", "op", "phase", "module"), ("step", "nan", "inf", "-inf", "of")
        return _C.text_table(
            [*((title, False) for title in texts), *((title, True) for title in numbers), ("line", False)],
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

    Args:
        inf: infinities count as well as NaN.
        every: on a device the values are looked at there and read back for so many calls at once (default 64).
        allow: operators whose -inf is intended (attention masks), as a filter list; None: masked_fill, where, full
            and their like. What is made of it may hold -inf too.
        allow_in_backward_with_scaler: count what backward makes as expected: a loss scaler looks for it and skips the step.
        max_saved: producers saved for run_op_from_data, of each operator, forward and backward each (default 2).
        max_saved_mb: of all saved calls together (default 1024).
        immediate: raise in the program at the first producer, with its line (op_tools.Error, a RuntimeError at level aten).

    The other arguments are those of :class:`Tool`; filters in the environment: OP_OVERFLOW_CHECK_LIST,
    OP_OVERFLOW_CHECK_DISABLE_LIST.
    """

    _kind = "OpOverflowCheck"
    _flag = "overflow"
    _variables = "OP_OVERFLOW_CHECK"

    def __init__(
        self,
        *,
        inf: bool = True,
        every: int | None = None,
        allow: Names = None,
        allow_in_backward_with_scaler: bool = False,
        max_saved: int | None = None,
        max_saved_mb: int | None = None,
        immediate: bool = False,
        **tool: Any,
    ) -> None:
        super().__init__(**tool)
        self._arguments.update(
            inf=inf,
            every=every,
            allow=_names(allow),
            allow_in_backward_with_scaler=allow_in_backward_with_scaler,
            max_saved=max_saved,
            max_saved_mb=max_saved_mb,
            immediate=immediate,
        )

    def result(self) -> OverflowResult:
        """What the last run found so far. Call flush() first to include calls that wait to be checked."""
        report = self._report()
        return OverflowResult(**{**report, "rows": [OverflowRow(**row) for row in report["rows"]]})
