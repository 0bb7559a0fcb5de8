"""The rows of a comparison as the tables of other tools: msprobe's compare, troubleshooter's api_dump_compare."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from op_tools import RankComparison, RecordedTensor, RunsComparison
from op_tools._base.core import Recording
from op_tools._base.declared_rows import CallVerdict
from op_tools._tools.record import RecordedCalls
from op_tools.formats._names import their_name

from .troubleshooter._compare import BACKWARD, FORWARD, MAPPING, STATISTICS, nine_digits, write_tables

_MSPROBE = (
    "NPU Name,Bench Name,NPU Dtype,Bench Dtype,NPU Tensor Shape,Bench Tensor Shape,NPU Requires_grad,Bench Requires_grad,"
    "Max diff,Min diff,Mean diff,L2norm diff,MaxRelativeErr,MinRelativeErr,MeanRelativeErr,NormRelativeErr,"
    "NPU max,NPU min,NPU mean,NPU l2norm,Bench max,Bench min,Bench mean,Bench l2norm,"
    "Requires_grad Consistent,Result,Err_message,NPU_Stack_Info"
).split(",")
_RESULTS: dict[str, str] = {
    CallVerdict.AGREES: "pass",
    CallVerdict.HEALED: "pass",
    CallVerdict.BORN: "error",
    CallVerdict.CAUSE_NOT_FOUND: "error",
    CallVerdict.CARRIED: "warning",
}
_UNKNOWN = "N/A"

_Placed = tuple[str, RecordedTensor]


class _Side:
    """The calls of a recording, with the names that the tools give them: by kind, function, and the how-manyth it is."""

    def __init__(self, core: Recording, *, each_step: bool) -> None:
        self.calls = RecordedCalls(core)
        self._names: list[tuple[str, str, int]] = []
        counts: Counter[tuple[str, str, int]] = Counter()
        forward: dict[int, tuple[str, str, int]] = {}
        for call in self.calls:
            kind, function = their_name(call.op)
            if not kind:
                kind, _, function = call.op.rpartition(".")
            key = (kind, function, call.step if each_step else 0)
            if call.level == "torch" and call.phase == "backward" and call.id in forward:
                self._names.append(forward[call.id])
                continue
            name = (kind, function, counts[key])
            counts[key] += 1
            forward[call.id] = name
            self._names.append(name)

    def name(self, numbers: Sequence[int], joint: str) -> list[str]:
        return [
            joint.join((kind, function, str(count))) for kind, function, count in map(self._names.__getitem__, numbers)
        ]

    def tensors(self, numbers: Sequence[int]) -> tuple[list[_Placed], list[_Placed]]:
        """The inputs of the first of these calls, and the outputs of the last."""
        if not numbers:
            return [], []
        last = [one for one in self.calls[numbers[-1]].outputs if not one[0].startswith("written ")]
        return self.calls[numbers[0]].inputs, last


class _Row:
    """A row of the comparison: calls of A and of B."""

    def __init__(self, rank: RankComparison, number: int, a: _Side, b: _Side) -> None:
        self.row = rank.rows[number]
        self.numbers = rank._found.calls_of(number)
        self.sides = (a, b)

    def pairs(self, joint: str) -> Iterator[tuple[str, _Placed | None, _Placed | None, str, str]]:
        """("input" or "output", the tensor of A, that of B, their names); None: there is no such tensor."""
        names = [(side.name(numbers, joint) or [""]) for side, numbers in zip(self.sides, self.numbers, strict=True)]
        parts = [side.tensors(numbers) for side, numbers in zip(self.sides, self.numbers, strict=True)]
        for which, role in enumerate(("input", "output")):
            call = 0 if role == "input" else -1
            for place, (a, b) in enumerate(zip_longest(parts[0][which], parts[1][which])):
                label = f"{self.row.phase}{joint}{role}.{place}"
                yield role, a, b, f"{names[0][call]}{joint}{label}", f"{names[1][call]}{joint}{label}"


def _statistics(tensor: RecordedTensor | None) -> list[float]:
    if tensor is None or not tensor.known:
        return [math.nan] * 4
    return [tensor.max, tensor.min, tensor.mean, tensor.norm]


def _decimals(value: float) -> str:
    """As decimals; an unknown number, as the tool writes it."""
    return _UNKNOWN if math.isnan(value) else nine_digits(value, 0)


def _percentage(difference: float, of: float) -> str:
    if math.isnan(difference):
        return _UNKNOWN
    return f"{100 * abs(difference / of):.9g}%" if of else ("0.0%" if difference == 0 else _UNKNOWN)


def _msprobe_rows(row: _Row) -> Iterator[list[str]]:
    result = _RESULTS.get(row.row.verdict, _UNKNOWN)
    why = ": ".join(filter(None, [row.row.verdict if result != "pass" else "", row.row.finding]))
    for role, a, b, name_a, name_b in row.pairs("."):
        of_a, of_b = _statistics(a and a[1]), _statistics(b and b[1])
        differences = [one - other for one, other in zip(of_b, of_a, strict=True)]
        facts = [
            (name, str(tensor[1].dtype), str(list(tensor[1].shape))) if tensor else (_UNKNOWN, _UNKNOWN, _UNKNOWN)
            for name, tensor in ((name_b, b), (name_a, a))
        ]
        both = [text for pair in zip(*facts, strict=True) for text in pair]
        shares = [_percentage(difference, of) for difference, of in zip(differences, of_a, strict=True)]
        numbers = [*map(_decimals, differences), *shares, *map(_decimals, of_b), *map(_decimals, of_a)]
        # An input that differs is a result of an earlier call.
        judged = [result, why] if role == "output" else ["pass" if result == "error" else result, ""]
        yield [*both, _UNKNOWN, _UNKNOWN, *numbers, _UNKNOWN, *judged, row.row.line_b or row.row.line]


def _rows_of_rank(rank: RankComparison, *, each_step: bool) -> Iterator[_Row]:
    a, b = (_Side(core, each_step=each_step) for core in (rank._found.a, rank._found.b))
    return (_Row(rank, number, a, b) for number in range(len(rank.rows)))


def write_msprobe(comparison: RunsComparison, path: Path) -> None:
    """Writes a comparison in the columns of msprobe's, with all digits; A is its Bench.

    Args:
        comparison: the comparison.
        path: the file; of several steps or ranks a file each, with their numbers in its name.
    """
    for rank in comparison.ranks:
        steps: dict[int, list[list[str]]] = {}
        for row in _rows_of_rank(rank, each_step=True):
            steps.setdefault(row.row.step, []).extend(_msprobe_rows(row))
        for step, rows in steps.items():
            name = path.stem + (f"_rank{rank.rank}" if len(comparison.ranks) > 1 else "")
            name += f"_step{step}" if len(steps) > 1 else ""
            with path.with_name(name + path.suffix).open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([_MSPROBE, *rows])


def _troubleshooter_row(pair: tuple[str, _Placed | None, _Placed | None, str, str]) -> list[str]:
    _, a, b, name_a, name_b = pair
    of_a, of_b = _statistics(a and a[1])[:3], _statistics(b and b[1])[:3]
    differences = [abs(one - other) if one != other else 0.0 for one, other in zip(of_a, of_b, strict=True)]
    shapes = [str(one[1].shape) if one else "None" for one in (a, b)]
    names = [name if one else "None" for name, one in ((name_a, a), (name_b, b))]
    return [*names, *shapes, ", ".join(nine_digits(one, 5) for one in differences)]


def write_troubleshooter(comparison: RunsComparison, folder: Path) -> None:
    """Writes a comparison as the tables of troubleshooter's api_dump_compare, with all digits; A is its ORIGIN.

    Args:
        comparison: the comparison.
        folder: the folder of the tables.
    """
    titles = ["ORIGIN NET (pytorch)", "TARGET NET (pytorch)"]
    for rank in comparison.ranks:
        steps: dict[int, dict[str, list[list[str]]]] = {}
        for row in _rows_of_rank(rank, each_step=False):
            tables = steps.setdefault(row.row.step, {MAPPING: [], FORWARD: [], BACKWARD: []})
            is_forward = row.row.phase == "forward"
            if is_forward:
                names = [side.name(numbers, "_") for side, numbers in zip(row.sides, row.numbers, strict=True)]
                tables[MAPPING].append(["\n".join(of_side) for of_side in names])
            tables[FORWARD if is_forward else BACKWARD] += map(_troubleshooter_row, row.pairs("_"))
        header = [*titles, "shape of orig", "shape of target", *STATISTICS]
        ordered = [tables for _, tables in sorted(steps.items())]
        write_tables(folder if rank.rank == 0 else folder / f"rank{rank.rank}", titles, header, ordered)
