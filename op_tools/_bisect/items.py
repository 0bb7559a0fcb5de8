"""The calls of a program as a bisection moves them: read from the file of `list_calls=`, ordered by suspicion, grouped."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._base.core import Error, base_name
from .._base.verdict import Verdict


@dataclass(frozen=True)
class Call:
    """A call that can run elsewhere; it stands for a call in each step."""

    op: str
    """As the dispatcher names it: "aten::mm"."""
    module: str
    """The module whose forward made it; of a backward call that of its forward call. "": none."""
    line: str
    """The user's line, likewise; "": not known."""
    phase: str
    """"forward" or "backward"."""
    occurrence: int
    """The how-manyth of those of the same operator, module, line and phase in a step."""
    of_op: str
    of_line: str
    of_call: str


@dataclass(frozen=True)
class Group:
    """Calls that are moved together, because they are alike as far as one looks."""

    item: str
    """As a list of calls names all of them."""
    calls: tuple[Call, ...]
    exact: bool = False
    """These alone, and no further split is possible."""

    def text(self) -> str:
        """For people."""
        first = self.calls[0]
        same = [name for name in ("module", "line") if len({getattr(call, name) for call in self.calls}) == 1]
        where = [getattr(first, name) for name in same if getattr(first, name)]
        count = f"{len(self.calls)} calls" if len(self.calls) > 1 else f"call {first.occurrence}"
        return " ".join([first.op, first.phase, *(f"in {place}" for place in where), f"({count})"])


def read_calls(paths: Iterable[Path]) -> list[Call]:
    """The calls in the files of all processes, in the order in which they were made first. A last line that a crash cut is left out.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    calls: dict[str, Call] = {}
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise Error(f"{path}: {error}") from None
        for line in lines:
            try:
                call = Call(**json.loads(line))
            except (ValueError, TypeError):
                continue
            calls.setdefault(call.of_call, call)
    return list(calls.values())


def write_items(path: Path, items: Iterable[str]) -> None:
    """A file for `only_calls=`."""
    path.write_text("".join(f"{item}\n" for item in items))


def by_op(calls: Sequence[Call]) -> list[Group]:
    """A group for each operator and phase."""
    return _grouped(calls, "of_op")


def split(group: Group) -> list[Group]:
    """Finer groups, by module and line or by call; the group alone where it is one call."""
    for item in ("of_line", "of_call"):
        parts = _grouped(group.calls, item)
        if len(parts) > 1:
            return parts
    return [group]


def _grouped(calls: Sequence[Call], item: str) -> list[Group]:
    groups: dict[str, list[Call]] = {}
    for call in calls:
        groups.setdefault(getattr(call, item), []).append(call)
    return [Group(name, tuple(members), item == "of_call") for name, members in groups.items()]


def as_dict(call: Call) -> dict[str, Any]:
    """The facts of a call in a report."""
    return {name: value for name, value in asdict(call).items() if not name.startswith("of_")}


class Suspects:
    """How suspicious calls are: OpAutoCompare's findings, by operator, and by line where it knows it.

    Args:
        path: the folder of OpAutoCompare's result, any folder above, or its autocompare.csv.

    Raises:
        op_tools.Error: there is no such file, or it is none of OpAutoCompare.
    """

    def __init__(self, path: str) -> None:
        place = Path(path)
        files = sorted(place.rglob("autocompare.csv")) if place.is_dir() else [place]
        if not files:
            raise Error(f"--suspects {path}: no autocompare.csv in it; give a result folder of OpAutoCompare")
        self._ratios: dict[tuple[str, ...], float] = {}
        self.wrong: dict[str, float] = {}
        """Operators with wrong results, as the table names them, and how many times the limit."""
        for file in files:
            self._read(file, path)

    def _read(self, file: Path, path: str) -> None:
        try:
            with file.open(newline="", encoding="utf-8") as opened:
                for row in csv.DictReader(opened):
                    self._take(row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Error(f"--suspects {path}: {file} is no table of OpAutoCompare: {error}") from None

    def _take(self, row: dict[str, str]) -> None:
        number, limit = float(row["number"] or 0), float(row["limit"] or 0)
        ratio = number / limit if limit > 0 else 0.0
        if row["verdict"] == Verdict.DIFFERS:
            ratio = ratio if ratio > 1 else math.inf  # a wrong shape, a raised error: there is no number
            self.wrong[row["op"]] = max(self.wrong.get(row["op"], 0.0), ratio)
        name = _without_overload(row["op"]) if row["level"] == "aten" else _bare(row["op"])
        for key in ((name,), (name, row["module"], row["source"])):
            self._ratios[key] = max(self._ratios.get(key, 0.0), ratio)

    def ratio(self, group: Group) -> float:
        """The worst of its calls, or of its operator where those are not known; 0 where none is known."""
        op = group.calls[0].op
        places = {(call.module, call.line) for call in group.calls}
        names = (_without_overload(op), _bare(op))
        keys = [(name, *place) for name in names for place in places]
        known = [self._ratios[key] for key in keys if key in self._ratios]
        return max(known) if known else max(self._ratios.get((name,), 0.0) for name in names)


def _without_overload(op: str) -> str:
    """Without overload: aten::add.Tensor is aten::add."""
    return op.partition(".")[0]


def _bare(op: str) -> str:
    """Without namespace and overload: torch.nn.functional.relu and aten::relu.default are relu; a backward is its forward's."""
    return base_name(op).strip("_").removesuffix("_backward")


def ordered(groups: Sequence[Group], suspects: Suspects | None) -> list[Group]:
    """The suspicious ones first, then backward before forward, then those with few calls, which cost little to move.

    Backward first because a forward call that is moved takes its backward along: a wrong backward must be found as such.
    """

    def key(group: Group) -> tuple[float, bool, int]:
        return (-suspects.ratio(group) if suspects else 0.0, group.calls[0].phase == "forward", len(group.calls))

    return sorted(groups, key=key)
