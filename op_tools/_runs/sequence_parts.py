"""The part that each operator has in the difference of two runs of tokens: both programs again, with the operator's results in float64."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base.core import Error, Recording
from .._base.declared_rows import CallVerdict
from .._base.results import Result, Shown, short_name, text_table
from .capture_commands import new_folder
from .compare_sequences import compare_sequences
from .sequence_comparison import SequenceComparison

_CAST = "torch.float32->torch.float64,torch.bfloat16->torch.float64,torch.float16->torch.float64"
_FOLDER = "op_sequence_parts"
_LINES = 20


@dataclass(frozen=True)
class SequencePart:
    """An operator that both programs computed in float64."""

    op: str
    alone: float
    """The difference with this operator alone in float64."""
    remaining: float
    """The difference with this operator and all rows above in float64."""
    part: float
    """By how much less that is than in the row above: parts and the last `remaining` add up to the whole difference."""


@dataclass(frozen=True, repr=False)
class SequenceParts(Result):
    """Operators by their part in the difference at the end."""

    measure: str
    """The name of the measured difference, with the result that it is of."""
    whole: float
    """The difference with no operator in float64."""
    rows: list[SequencePart]

    def table(self) -> str:
        """For people."""
        columns: list[Shown[SequencePart]] = [
            Shown("op in float64", lambda row: short_name(row.op)),
            Shown("alone", lambda row: f"{row.alone:.3g}", is_number=True),
            Shown("and all above", lambda row: f"{row.remaining:.3g}", is_number=True),
            Shown("its part", lambda row: f"{row.part:.3g}", is_number=True),
            Shown("of the whole", lambda row: f"{row.part / self.whole:.0%}" if self.whole else "-", is_number=True),
        ]
        return "\n".join([f"{self.measure}: {self.whole:.3g}", text_table(columns, self.rows, -1, 80)])


def _measured(comparison: SequenceComparison) -> tuple[str, float]:
    if (end := comparison.log_probabilities) is not None:
        return f"mean difference of {short_name(end.op)} ({end.line})", end.mean
    last = comparison.rows[-1]
    return f"difference of {short_name(last.op)} ({last.line})", last.difference


def _again(recording: Recording, ops: Sequence[str], folder: Path) -> Path:
    """Records the recording's program again, with these operators in float64."""
    header: dict[str, Any] = recording.header if isinstance(recording.header, dict) else {}
    start = [str(word) for word in header.get("start") or header.get("argv") or []]
    if not start:
        raise Error(f"--parts: {recording.path} does not name its program")
    level = str(header.get("level", "torch"))
    record = ["--record", "--level", level, "--record-row-hashes", "--record-output-dir", str(folder)]
    names = ",".join(f"{re.escape(op)}$" for op in ops)
    cast = ["--dtype-cast", "--dtype-cast-ops", names, "--dtype-cast-cast", _CAST]
    own = {name: value for name, value in (header.get("environment") or {}).items() if not name.startswith("OP_")}
    done = subprocess.run(
        [sys.executable, "-m", "op_tools", "run", *cast, *record, *start],
        cwd=str(header.get("folder", ".")),
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stderr.splitlines()[-_LINES:])
        raise Error(f"--parts: {' '.join(start)} ended with status {done.returncode}:\n{last}")
    return folder


def sequence_parts(
    comparison: SequenceComparison, recordings: tuple[Recording, Recording], count: int, say: Callable[[str], None]
) -> SequenceParts:
    """Runs both programs again, with operators in float64: of each alone, then of the largest, the two largest, and so on.

    Args:
        comparison: of the two recordings.
        recordings: A's and B's; they say how their programs were started.
        count: how many operators: those with the largest differences of their own, then others in the order of A.
        say: is told what runs.

    Raises:
        op_tools.Error: a program cannot be started again, or fails.
    """
    differing = [row.op for row in comparison.rows if row.verdict != CallVerdict.AGREES]
    ops = list(dict.fromkeys([*(row.op for row in comparison.births()), *differing]))[:count]
    measure, whole = _measured(comparison)
    folder = new_folder(_FOLDER)

    def measured(some: Sequence[str], name: str) -> float:
        say(f"both programs with {', '.join(map(short_name, some))} in float64")
        sides = [
            _again(recording, some, (folder / f"{name}_{side}").absolute())
            for side, recording in zip("ab", recordings, strict=True)
        ]
        return _measured(compare_sequences(*sides))[1]

    alone = {op: measured([op], f"alone{number}") for number, op in enumerate(ops)}
    rows, before = [], whole
    ordered = sorted(ops, key=lambda op: alone[op])
    for number, op in enumerate(ordered):
        remaining = measured(ordered[: number + 1], f"all{number}") if number else alone[op]
        rows.append(SequencePart(op, alone[op], remaining, before - remaining))
        before = remaining
    return SequenceParts(measure, whole, rows)
