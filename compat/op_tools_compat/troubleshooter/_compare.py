"""Compares two dumps, for api_dump_compare."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from op_tools import Error
from op_tools._base.core import log_warn
from op_tools.formats import Dump, ForeignCall, ForeignTensor, load_values, read_dump
from op_tools.formats._names import METHODS

from .._align import align

MAPPING, FORWARD, BACKWARD = "ts_api_mapping", "ts_api_forward_compare", "ts_api_backward_compare"
_VALUES = ["result of allclose", "ratio of allclose", "cosine similarity", "mean & max diffs"]
STATISTICS = ["max, min, mean diffs"]

Pair = tuple[ForeignTensor | None, ForeignTensor | None]


@dataclass(frozen=True)
class _Tolerance:
    rtol: float
    atol: float
    equal_nan: bool


@dataclass
class _Group:
    """Calls of both dumps that do the same: a call of each, or several of a fused operator."""

    origin: list[ForeignCall]
    target: list[ForeignCall]


def compare(
    origin: Path,
    target: Path,
    output: Path | None,
    *,
    rtol: float,
    atol: float,
    equal_nan: bool,
    ignore_unmatched: bool,
) -> None:
    """Compares all ranks and steps that both dumps have."""
    dumps = [read_dump(path, "troubleshooter") for path in (origin, target)]
    ranks = [{call.rank for call in dump.calls} for dump in dumps]
    for rank in sorted(ranks[0] & ranks[1]):
        tables = _Tables(dumps, rank, _Tolerance(rtol, atol, equal_nan), ignore_unmatched)
        if output is not None:
            tables.write(output if rank == 0 else output / f"rank{rank}")
        sys.stdout.write(tables.summary())
    for rank in sorted(ranks[0] ^ ranks[1]):
        log_warn(f"api_dump_compare: rank {rank} is in only one dump")


class _Tables:
    """The tables of a rank."""

    def __init__(self, dumps: Sequence[Dump], rank: int, tolerance: _Tolerance, ignore_unmatched: bool) -> None:
        self._rank, self._tolerance, self._ignore = rank, tolerance, ignore_unmatched
        sides = [[call for call in dump.calls if call.rank == rank] for dump in dumps]
        steps = [max((call.step for call in calls), default=-1) + 1 for calls in sides]
        if steps[0] != steps[1]:
            log_warn(f"api_dump_compare: {steps[0]} steps against {steps[1]}; the first {min(steps)} are compared")
        self._has_values = all(one.values for calls in sides for call in calls for one in call.tensors)
        names = [dump.header.get("framework", "pytorch") for dump in dumps]
        self._names = [f"ORIGIN NET ({names[0]})", f"TARGET NET ({names[1]})"]
        self._is_mindtorch = "mindtorch" in names
        short = ", ".join("pt" if name == "pytorch" else "mt" for name in names)
        self._mindtorch = [f"{which} cmp ({short})" for which in ("mean", "max", "min", "shape", "dtype")]
        self._steps: list[dict[str, list[list[str]]]] = []
        self._compared = self._differ = 0
        self._first = ""
        for step in range(min(steps)):
            self._steps.append(self._step(*([call for call in calls if call.step == step] for calls in sides)))

    def _step(self, origin: list[ForeignCall], target: list[ForeignCall]) -> dict[str, list[list[str]]]:
        groups = _aligned_groups(*([call for call in calls if call.phase == "forward"] for calls in (origin, target)))
        mapping = [
            ["\n".join(call.foreign_name for call in calls) for calls in (group.origin, group.target)]
            for group in groups
        ]
        forward = [row for group in groups for pair in self._pairs(group) for row in self._row(pair)]
        gradients = [
            {call.foreign_name: call for call in calls if call.phase == "backward"} for calls in (origin, target)
        ]
        backward = []
        for group in groups:
            last = [
                [by_name[call.foreign_name] for call in calls if call.foreign_name in by_name]
                for calls, by_name in zip((group.origin, group.target), gradients, strict=True)
            ]
            pairs = _tensor_pairs(
                [one for call in last[0] for one in call.tensors], [one for call in last[1] for one in call.tensors]
            )
            backward += [row for pair in self._kept(pairs) for row in self._row(pair)]
        return {MAPPING: mapping, FORWARD: forward, BACKWARD: backward[::-1]}

    def _kept(self, pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if not self._ignore or (pair[0] and pair[1])]

    def _pairs(self, group: _Group) -> list[Pair]:
        """Inputs of the first call with inputs of the first, results of the last with results of the last; tensors
        between has no partner."""

        def of(calls: list[ForeignCall], role: str) -> list[ForeignTensor]:
            return [one for call in calls for one in call.tensors if one.role == role]

        sides = (group.origin, group.target)
        firsts, lasts = [calls[:1] for calls in sides], [calls[-1:] for calls in sides]
        between = [[*of(calls[:-1], "output"), *of(calls[1:], "input")] for calls in sides]
        pairs = _tensor_pairs(of(firsts[0], "input"), of(firsts[1], "input"))
        pairs += [(one, None) for one in between[0]] + [(None, one) for one in between[1]]
        return self._kept(pairs + _tensor_pairs(of(lasts[0], "output"), of(lasts[1], "output")))

    # --- Rows ---

    def _row(self, pair: Pair) -> Iterator[list[str]]:
        a, b = pair
        names = [_row_name(one) for one in pair]
        shapes = [str(one.shape) if one else "None" for one in pair]
        if self._has_values:
            cells, agrees = _compare_values(a, b, self._tolerance)
            if self._is_mindtorch:  # in place of the result of allclose, and of the differences
                cells = [*(["Shape is inconsistent"] if cells[0].startswith("Shape") else cells[1:2]), cells[2]]
                cells += [_both(a, b, which) for which in ("mean", "max", "min")]
        else:
            cells, agrees = _compare_statistics(a, b, self._tolerance)
        if a and b:
            self._compared += 1
            if not agrees:
                self._differ += 1
                self._first = self._first or f"{names[0]} against {names[1]}"
        if not self._is_mindtorch:
            yield [*names, *shapes, *cells]
            return
        dtypes = [one.dtype.removeprefix("torch.") if one else "None" for one in pair]
        same = [one if one == other else f"{one}, {other}" for one, other in (shapes, dtypes)]
        yield [*names, *cells, *same]

    def summary(self) -> str:
        """For the terminal."""
        first = f"; the first: {self._first}" if self._first else ""
        return f"rank {self._rank}, {len(self._steps)} steps: {self._compared} tensors compared, {self._differ} differ{first}\n"

    def write(self, folder: Path) -> None:
        """Writes each table with the number of its step, and all steps in a single table as versions of the tool without steps."""
        header = [*self._names, "shape of orig", "shape of target", *(_VALUES if self._has_values else STATISTICS)]
        if self._is_mindtorch:
            values = [*_VALUES[1:3], *self._mindtorch]
            header = [*self._names, *(values if self._has_values else [*STATISTICS, *self._mindtorch[-2:]])]
        write_tables(folder, self._names, header, self._steps)


def write_tables(
    folder: Path, titles: list[str], header: list[str], steps: Sequence[dict[str, list[list[str]]]]
) -> None:
    """Writes the tables of each step by its number, and those of all steps as versions of the tool without steps.

    Args:
        folder: where; it is made.
        titles: of the mapping.
        header: of the others.
        steps: rows by the names of the tables.

    Raises:
        op_tools.Error: a file cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in (MAPPING, FORWARD, BACKWARD):
            head = titles if table == MAPPING else header
            for step, tables in enumerate(steps):
                _write_table(folder / f"{table}_{step}.csv", [head, *tables[table]])
            _write_table(folder / f"{table}.csv", [head, *(row for tables in steps for row in tables[table])])
    except OSError as error:
        raise Error(f"{error.filename}: {error.strerror}") from None


def _write_table(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, dialect="unix").writerows(rows)


def _row_name(tensor: ForeignTensor | None) -> str:
    """The tool's name of a row: that of its file, or the reader's name."""
    return tensor.label if tensor else "None"


def _pair_name(call: ForeignCall) -> str:
    """The name by which calls are a pair: relu is torch.relu, Tensor.relu and NN_ReLU."""
    function = call.foreign_name.partition("_")[2].rpartition("_")[0]
    return METHODS.get(function.strip("_"), function).lower() if function.startswith("__") else function.lower()


def _aligned_groups(origin: list[ForeignCall], target: list[ForeignCall]) -> list[_Group]:
    groups: list[_Group] = []
    gap = _Group([], [])
    for a, b in align([_pair_name(call) for call in origin], [_pair_name(call) for call in target]):
        if a is not None and b is not None:
            if gap.origin or gap.target:
                groups.append(gap)
                gap = _Group([], [])
            groups.append(_Group([origin[a]], [target[b]]))
        elif a is not None:
            gap.origin.append(origin[a])
        elif b is not None:
            gap.target.append(target[b])
    return [*groups, gap] if gap.origin or gap.target else groups


def _tensor_pairs(a: list[ForeignTensor], b: list[ForeignTensor]) -> list[Pair]:
    """Tensors of two calls: by their order where there are as many of each, else those with equal shapes."""
    if len(a) == len(b):
        return list(zip(a, b, strict=True))
    pairs = align([one.shape for one in a], [one.shape for one in b])
    return [(a[i] if i is not None else None, b[j] if j is not None else None) for i, j in pairs]


# --- Numbers ---


def nine_digits(value: float, digits: int) -> str:
    """Nine digits that count, with at least N decimals, as the tool has: 0.00000, 4.76837158e-07."""
    text = f"{value:.9g}"
    decimals = len(text.partition(".")[2])
    return f"{value:.{digits}f}" if math.isfinite(value) and "e" not in text and decimals < digits else text


def _compare_values(a: ForeignTensor | None, b: ForeignTensor | None, tolerance: _Tolerance) -> tuple[list[str], bool]:
    if a is None or b is None:
        return ["False", "0.00%", "nan", "nan, nan"], False
    first, other = (load_values(tensor).double().numpy() for tensor in (a, b))
    if first.shape != other.shape:
        return ["Shape is inconsistent", "0.00%", "nan", "nan, nan"], False
    unequal = first != other
    if not unequal.any():
        return ["True", "100.00%", "1.00000", "0.00000, 0.00000"], True
    with numpy.errstate(all="ignore"):
        differences = numpy.abs(first[unequal] - other[unequal])
        close = numpy.isclose(first, other, rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=tolerance.equal_nan)
        cells = [
            str(bool(close.all())),
            f"{nine_digits(100 * float(close.mean()), 2)}%",
            nine_digits(_cosine(first, other), 5),
            f"{nine_digits(float(differences.mean()), 5)}, {nine_digits(float(differences.max()), 5)}",
        ]
    return cells, bool(close.all())


def _both(a: ForeignTensor | None, b: ForeignTensor | None, which: str) -> str:
    """A statistic of both sides: of the dump, or of its values where it has none."""

    def of(tensor: ForeignTensor | None) -> float:
        if tensor is None:
            return math.nan
        known: float | None = getattr(tensor, which)
        return float(getattr(load_values(tensor).double(), which)()) if known is None or known != known else known

    return f"{nine_digits(of(a), 5)}, {nine_digits(of(b), 5)}"


def _cosine(a: Any, b: Any) -> float:
    norms = float(numpy.linalg.norm(a)), float(numpy.linalg.norm(b))
    tiny = float(numpy.finfo(float).eps)
    if max(norms) <= tiny:
        return 1.0
    if min(norms) <= tiny:
        return math.nan
    return min(max(float((a * b).sum()) / (norms[0] * norms[1]), -1.0), 1.0)


def _compare_statistics(
    a: ForeignTensor | None, b: ForeignTensor | None, tolerance: _Tolerance
) -> tuple[list[str], bool]:
    if a is None or b is None:
        return ["nan, nan, nan"], False
    pairs = [
        tuple(math.nan if one is None else one for one in pair)
        for pair in ((a.max, b.max), (a.min, b.min), (a.mean, b.mean))
    ]
    differences = [abs(one - other) if one != other else 0.0 for one, other in pairs]
    limits = [tolerance.atol + tolerance.rtol * abs(other) for _, other in pairs]
    # A number that neither dump has says nothing.
    known = [
        (d, limit)
        for (first, other), d, limit in zip(pairs, differences, limits, strict=True)
        if first == first or other == other
    ]
    agrees = a.shape == b.shape and all(d <= limit for d, limit in known)
    return [", ".join(nine_digits(d, 5) for d in differences)], agrees
