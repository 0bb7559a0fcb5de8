"""Mode dynamic_shape: which calls of a run had tensors of changing shapes, from the file of OpObserve."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._base.core import Error
from ._file_facts import Problem
from ._reports import Report

_LINE = re.compile(r"(?P<file>.*):(?P<line>\d+)(?: (?P<function>.*))?", re.DOTALL)

Shape = tuple[int, ...]


@dataclass
class _Seen:
    """Shapes of the tensors of a place, by position."""

    op: str
    line: str
    inputs: list[set[Shape]] = field(default_factory=list)
    outputs: list[set[Shape]] = field(default_factory=list)

    def add(self, sides: tuple[list[Shape], list[Shape]]) -> None:
        for known, shapes in zip((self.inputs, self.outputs), sides, strict=True):
            known += [set() for _ in range(len(shapes) - len(known))]
            for of_tensor, shape in zip(known, shapes, strict=False):
                of_tensor.add(shape)

    @property
    def is_dynamic(self) -> bool:
        return any(len(one) > 1 for one in (*self.inputs, *self.outputs))


def dynamic_rows(root: Path, report: Report) -> None:
    """The rows of the mode: a row for each place and operator whose tensors had several shapes. Calls of a place in
    different modules, and in their order within a step where steps were counted, are different places.

    Args:
        root: the folder op_observe_result, or any folder or file in it.
        report: gets the rows.

    Raises:
        op_tools.Error: there is no calls.jsonl.
    """
    files = [root] if root.is_file() else sorted(root.rglob("calls.jsonl"))
    if not files:
        raise Error(
            f"{root}: no calls.jsonl of OpObserve; make it: op-tools run --observe --observe-detail 2 train.py, then give "
            "op_observe_result here"
        )
    seen: dict[tuple[Any, ...], _Seen] = {}
    for path in files:
        rank_calls = list(_calls(path, report.problems))
        counted = len({call.get("step") for call in rank_calls}) > 1
        repeats: dict[tuple[Any, ...], int] = {}
        for call in rank_calls:
            place: tuple[Any, ...] = (
                str(path),
                call["op"],
                call.get("line") or "",
                call.get("phase"),
                call.get("module"),
            )
            if counted:
                step = (*place, call.get("step"))
                repeats[step] = repeats.get(step, -1) + 1
                place = (*place, str(repeats[step]))
            sides = (list(_shapes([call.get("args"), call.get("kwargs")])), list(_shapes(call.get("result"))))
            seen.setdefault(place, _Seen(call["op"], call.get("line") or "")).add(sides)
        report.files += 1
        report.lines += len(rank_calls)
    rows = {_row(one) for one in seen.values() if one.is_dynamic}
    report.rows["msft_dynamic_shape_analysis_report.csv"] = sorted(rows)


def _calls(path: Path, problems: list[Problem]) -> Iterator[dict[str, Any]]:
    """The calls of a file. A line that is cut off or damaged is a problem."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                call = json.loads(line)
            except (ValueError, RecursionError):
                call = None
            if isinstance(call, dict) and isinstance(call.get("op"), str):
                yield call
            else:
                problems.append(Problem(str(path), number, "not a call of OpObserve"))


def _shapes(value: Any) -> Iterator[Shape]:
    if isinstance(value, dict):
        if "dtype" in value and isinstance(value.get("shape"), list):
            yield tuple(value["shape"])
        else:
            for item in value.values():
                yield from _shapes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _shapes(item)


def _row(seen: _Seen) -> tuple[Any, ...]:
    match = _LINE.fullmatch(seen.line)
    file, line = (match["file"], int(match["line"])) if match else ("", 0)
    return seen.op, file, line, seen.line, _ranges(seen.inputs), _ranges(seen.outputs)


def _ranges(tensors: list[set[Shape]]) -> str:
    """For each tensor its smallest and largest sizes, by number of dimensions: [(1, 2)-(4, 2) | (1, 2, 2)-(1, 2, 8)]."""
    texts = []
    for shapes in tensors:
        ranges = []
        for rank in sorted({len(one) for one in shapes}):
            sizes = list(zip(*(one for one in shapes if len(one) == rank), strict=True))
            low, high = tuple(map(min, sizes)), tuple(map(max, sizes))
            ranges.append(f"{low}-{high}")
        texts.append(f"[{' | '.join(ranges)}]")
    return ", ".join(texts)
