"""OpInvariance: has a result the same bits when its call is run again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import Unpack

from .._base.declared_options import OpInvarianceOptions
from .._base.declared_rows import InvarianceRow, InvariantOp
from .._base.results import Shown, SortableResult, worded
from .._base.verdict import Coverage, Verdict, verdict_of
from .tool import Tool

_RELATIONS = (
    "repeat",
    "memory",
    "threads",
    "stream",
    "neighbour",
    "batch",
    "position",
    "strides",
    "shift",
    "sequence",
    "padding",
    "pieces",
    "packed",
)


@dataclass(frozen=True)
class DeviceFaults:
    """Calls of a device that did not repeat their bits."""

    rank: int
    """Of the process."""
    transient: int
    """A single run of all had other bits: an intermittent fault of the device."""
    persistent: int
    """Several had: a race, memory that is never written, a broken part of the device."""
    bits: dict[int, int]
    """How many of these calls have another bit at this place of an element, from the lowest."""
    line_bytes: dict[int, int]
    """Of transient calls: how many elements with other bits begin at this byte of a line of 64 bytes (their address modulo 64). At
    most the first 64 elements of each call are counted."""
    page_bytes: dict[int, int]
    """The same within a page of 4096 bytes. A bad line or bank of the memory has few such places."""


@dataclass(frozen=True, repr=False)
class InvarianceResult(SortableResult):
    """The results of a run of OpInvariance. Its table has the operators, those whose bits were not kept first."""

    rows: list[InvarianceRow] = field(default_factory=list)
    """A row for each result whose bits were not kept: the first 10,000; the file has all."""
    ops: list[InvariantOp] = field(default_factory=list)
    """A row for each operator."""
    calls: int = 0
    """Forward calls and backward passes that were run again."""
    kept: dict[str, int] = field(default_factory=dict)
    """How often the bits were kept, by relation."""
    varied: dict[str, int] = field(default_factory=dict)
    """How often they were not, by relation."""
    not_judged: int = 0
    """Relations without a verdict."""
    transient: int = 0
    """Findings in which a single run of all had other bits."""
    faults: dict[str, DeviceFaults] = field(default_factory=dict)
    """Calls that did not repeat their bits, by device ("sim:0")."""
    reasons: dict[str, int] = field(default_factory=dict)
    """How many relations have no verdict, by reason."""
    left_out: int = 0
    """Calls excluded by first_n_per_signature and every_nth."""
    rows_dropped: int = 0
    """Rows that are in the files only."""
    root: str = ""
    """Folder of the run; "" if no call was run again."""
    failure: str = ""
    """The first failed write, or ""."""

    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were checked, and which were not."""

    @property
    def verdict(self) -> Verdict:
        """`differs` where a result did not keep its bits; `agrees` only where all calls were checked."""
        wrong = sum(self.varied.values()) > 0 or self.coverage.children_wrong > 0
        return verdict_of(wrong=wrong, unseen=self.coverage.reasons())

    @property
    def ok(self) -> bool:
        """True if the verdict is `agrees`: all results kept their bits, and most was looked at."""
        return self.verdict is Verdict.AGREES

    def _lines_above(self) -> list[str]:
        return self.coverage.lines()

    def _rows_of_table(self) -> Sequence[InvariantOp]:
        return self.ops

    def _in_order(self) -> Sequence[InvariantOp]:
        return sorted(self.ops, key=lambda op: (-_varied(op), -op.not_judged, op.op))

    def _columns(self) -> list[Shown[Any]]:
        return [
            worded("op", "op"),
            Shown[InvariantOp]("calls", lambda op: str(op.calls + op.backward), is_number=True),
            *(_varied_column(name) for name in _RELATIONS if self.varied.get(name)),
            Shown[InvariantOp]("kept", lambda op: str(op.kept), is_number=True),
            Shown[InvariantOp]("not judged", lambda op: str(op.not_judged or "-"), is_number=True),
            Shown[InvariantOp]("ULP", lambda op: f"{op.max_ulp:.4g}" if op.max_ulp else "-", is_number=True),
            Shown[InvariantOp]("line", lambda op: op.source),
        ]


def _varied(op: InvariantOp) -> int:
    return sum(getattr(op, name) for name in _RELATIONS)


def _varied_column(name: str) -> Shown[InvariantOp]:
    """A column of calls that did not keep their bits."""
    return Shown(name, lambda op: str(getattr(op, name) or "-"), is_number=True)


class OpInvariance(Tool):
    """Runs each sampled call again where the program ran it, and compares the results bit for bit.

    On the same inputs (*repeat*), at another alignment in memory (*memory*), on another stream of its device (*stream*), with another
    number of threads on the CPU (*threads*), with other values (*neighbour*) or another number of rows in the batch (*batch*), with
    its rows at other positions (*position*), with gaps in memory (*strides*), with its second dimension at other places (*shift*) or in pieces
    (*sequence*), and attention with more keys that its mask leaves out (*padding*) with its queries in pieces (*pieces*) or its
    sequences behind each other (*packed*). Rows go to ``op_invariance_result/<rank>/<time>/invariance.csv`` and ``.jsonl``.
    """

    _kind = "OpInvariance"

    def __init__(self, **options: Unpack[OpInvarianceOptions]) -> None:
        super().__init__(**options)

    def result(self) -> InvarianceResult:
        """The results of the last run so far."""
        report = self._report_and_coverage()
        rows = [InvarianceRow(**row) for row in report["rows"]]
        ops = [InvariantOp(**row) for row in report["ops"]]
        faults = {device: DeviceFaults(**counts) for device, counts in report["faults"].items()}
        return InvarianceResult(**{**report, "rows": rows, "ops": ops, "faults": faults})
