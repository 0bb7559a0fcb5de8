"""OpFallback and OpDtypeCast: operators that run elsewhere than on their device, or in other dtypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _C
from ._tools import Tool

Cast = str | Mapping[torch.dtype, torch.dtype] | None


def _cast_text(cast: Cast) -> str | None:
    """A dict of dtypes as the core reads it: "torch.float16->torch.float32"."""
    if cast is None or isinstance(cast, str):
        return cast
    return ",".join(f"{before}->{after}" for before, after in cast.items())


@dataclass(frozen=True)
class RedirectRow:
    """What was run elsewhere of one operator, and what stayed."""

    op: str
    calls: int  # operators of the dispatcher that ran elsewhere: a torch function may make several
    ran: dict[str, int]  # which ones, and how often
    bytes: int  # moved or cast, both ways
    milliseconds: float  # moves and operators
    stayed: dict[str, int]  # what ran as it would have, with the reason, and how often


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
    def __init__(self, *, cast: Cast = None, **tool: Any) -> None:
        super().__init__(**tool)
        self._arguments.update(cast=_cast_text(cast))

    def result(self) -> RedirectResult:
        """What the last run did so far."""
        return RedirectResult([RedirectRow(**row) for row in self._report()["rows"]])


class OpFallback(_Redirect):
    """Runs operators on the CPU and puts the results back, as if the device had done it.

    Gradients flow through it, and the backward of the operators runs on the CPU too. Operators that cannot be moved
    (views, factories, collectives) stay where they are; the result and a line say which and why. Calls whose tensors are
    on the CPU already are left alone.

    Args:
        on_missing: run on the device first, and on the CPU only what the device does not implement
            (NotImplementedError). None: OP_FALLBACK_ON_MISSING.
        cast: dtypes to compute in instead of others, {torch.float16: torch.float32} or
            "torch.float16->torch.float32"; results come back in the dtypes that they would have had.
            None: OP_DTYPE_CAST_DICT, for one operator LINEAR_OP_DTYPE_CAST_DICT.

    The other arguments are those of :class:`Tool`; filters in the environment: OP_FALLBACK_LIST, OP_FALLBACK_DISABLE_LIST,
    and with ``level="aten"`` DIPU_FORCE_FALLBACK_OPS_LIST.
    """

    _kind = "OpFallback"
    _flag = "fallback"
    _variables = "OP_FALLBACK"

    def __init__(self, *, on_missing: bool | None = None, **tool: Any) -> None:
        super().__init__(**tool)
        self._arguments.update(on_missing=on_missing)


class OpDtypeCast(_Redirect):
    """Runs operators on their own device in other dtypes; results and gradients come back in the original ones.

    Args:
        cast: {torch.bfloat16: torch.float32} or "torch.bfloat16->torch.float32". None: OP_DTYPE_CAST_DICT (for one operator
            LINEAR_OP_DTYPE_CAST_DICT), else float16 and bfloat16 to float32.

    The other arguments are those of :class:`Tool`; filters in the environment: OP_DTYPE_CAST_LIST,
    OP_DTYPE_CAST_DISABLE_LIST.
    """

    _kind = "OpDtypeCast"
    _flag = "dtype-cast"
    _variables = "OP_DTYPE_CAST"
