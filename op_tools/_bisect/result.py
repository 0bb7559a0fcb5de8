"""The result of a bisection, for programs and for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .._base.own_command import op_tools_line
from .._base.results import finite_json, text_table, worded
from .items import Group, as_dict

MOST_SHOWN = 3  # next steps

Verdict = Literal["found", "not an operator", "inconsistent", "not judged"]
_STATUS: dict[Verdict, int] = {"found": 0, "not an operator": 1, "inconsistent": 2, "not judged": 2}


@dataclass(frozen=True)
class BisectResult:
    """The result of a bisection."""

    verdict: Verdict
    explanation: str
    remedy: str
    culprits: list[dict[str, Any]] = field(default_factory=list)
    """Dicts with op, module, line, phase and calls: how many calls in a step."""
    runs: int = 0
    seconds: float = 0.0
    placebo: bool | None = None
    """Moving the same operators to their own device heals too: a race, a layout or a stale read. None: not tried."""
    before: list[float] = field(default_factory=list)
    """The curve with nothing moved."""
    after: list[float] = field(default_factory=list)
    """The curve with the culprits moved."""
    captured: list[str] = field(default_factory=list)
    """The first call of each culprit: folders for op-tools repro and run_op_from_data."""
    runs_for: dict[str, int] = field(default_factory=dict)
    """The runs by their purpose: opening, OpAutoCompare, search, lines and calls, confirmation, each alone, placebo."""

    @property
    def status(self) -> int:
        """The exit status: 0 found, 1 not an operator, 2 inconsistent, or not judged."""
        return _STATUS[self.verdict]

    def to_json(self) -> str:
        """A JSON object; numbers that JSON has no form for are strings."""
        names = (
            "verdict",
            "explanation",
            "remedy",
            "culprits",
            "runs",
            "seconds",
            "placebo",
            "before",
            "after",
            "captured",
            "runs_for",
        )
        return json.dumps(finite_json({name: getattr(self, name) for name in names}), indent=1)

    def table(self) -> str:
        """The culprits and the next steps, for people."""
        lines = [f"{self.verdict}: {self.explanation}", self._runs_text()]
        if self.culprits:
            columns = [worded(name, name) for name in ("op", "phase", "module", "line", "calls")]
            rows = [_Row(**culprit) for culprit in self.culprits]
            lines.append(text_table(columns, rows, -1))
            lines.append(f"before: {curve_text(self.before)}")
            lines.append(f"after:  {curve_text(self.after)}")
        lines += [f"next: {op_tools_line('repro', folder)}" for folder in self.captured[:MOST_SHOWN]]
        return "\n".join(lines)

    def _runs_text(self) -> str:
        parts = ", ".join(f"{count} {what}" for what, count in self.runs_for.items())
        return f"{self.runs} runs{f' ({parts})' if parts else ''}, {self.seconds:.0f} s"

    def __repr__(self) -> str:
        return f"BisectResult\n{self.table()}"


@dataclass(frozen=True)
class _Row:
    op: str
    module: str
    line: str
    phase: str
    calls: int


def curve_text(numbers: Sequence[float], most: int = 8) -> str:
    shown = " ".join(f"{number:.5g}" for number in numbers[:most])
    return shown + (" ..." if len(numbers) > most else "") if numbers else "(no numbers)"


def culprits_of(group: Group) -> list[dict[str, Any]]:
    """A row for each place; `calls`: how many there are in a step."""
    places: dict[tuple[str, ...], int] = {}
    for call in group.calls:
        facts = as_dict(call)
        place = tuple(str(facts[name]) for name in ("op", "module", "line", "phase"))
        places[place] = places.get(place, 0) + 1
    return [
        dict(zip(("op", "module", "line", "phase"), place, strict=True), calls=count) for place, count in places.items()
    ]
