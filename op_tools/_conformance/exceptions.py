"""The known failures of a device: a file with an entry for each, which has a reason and may have an end.

[[exception]]
op = 'torch\\.nn\\.functional\\.gelu'  # a regular expression for the whole name
dtype = ["float16", "bfloat16"]     # of the case; left out: all
shape = "elements > 100000 and rank >= 3"
phase = "backward"
expect = "fail"                     # or "unsupported", "slow"
reason = "the tanh form is used: fixed in driver 24.2"
until = 2027-06-30
"""

from __future__ import annotations

import datetime
import operator
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base.checks import Kinds, checked_choice, checked_object, checked_pattern
from .._base.core import Error
from .._base.data_file import read_data
from .case import PHASES, Case, TensorSpec
from .rows import EXPECTED, RIGHT, UNEXPECTED_AGREEMENT, UNSUPPORTED, WRONG, Row

EXPECTATIONS = ("fail", "unsupported", "slow")
SLOW_FACTOR = 10  # by which a slow case may exceed --timeout
_KINDS: Kinds = {
    **dict.fromkeys(("op", "shape", "phase", "expect", "reason"), str),
    "dtype": (str, list),
    "until": (str, datetime.date),
}
_CONDITION = re.compile(r"\s*([a-z]+)\s*(<=|>=|==|!=|<|>)\s*(\d+)\s*")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}
_MEASURES: dict[str, Callable[[TensorSpec], int]] = {
    "rank": lambda spec: len(spec.shape),
    "elements": lambda spec: spec.numel,
    "smallest": lambda spec: min(spec.shape, default=1),
    "largest": lambda spec: max(spec.shape, default=1),
}

ShapeRule = Callable[[TensorSpec], bool]


@dataclass(frozen=True)
class KnownFailure:
    """An entry."""

    op: re.Pattern[str]
    expect: str
    reason: str
    dtypes: tuple[str, ...] = ()
    """Empty: all."""
    shape: ShapeRule | None = None
    phase: str = ""
    until: datetime.date | None = None
    """The last day on which it holds."""
    place: str = ""
    """"FILE: exception 3"."""

    def applies(self, case: Case, phase: str = "") -> bool:
        """Whether it is about a case; with `phase`, about that row of it."""
        return (
            self.op.fullmatch(case.op) is not None
            and (not self.dtypes or case.dtype in self.dtypes)
            and (not self.phase or not phase or self.phase == phase)
            and (self.shape is None or any(self.shape(one) for one in case.tensors))
        )


class Exceptions:
    """All entries of a device, and how often each was seen."""

    def __init__(self, entries: list[KnownFailure], today: datetime.date) -> None:
        self._entries, self._today = entries, today
        self.seen: Counter[str] = Counter()

    def may_be_slow(self, case: Case) -> bool:
        """Its time limit is SLOW_FACTOR times that of others."""
        return any(one.expect == "slow" and not self._is_over(one) and one.applies(case) for one in self._entries)

    def _is_over(self, entry: KnownFailure) -> bool:
        return entry.until is not None and entry.until < self._today

    def apply(self, case: Case, row: Row) -> None:
        """Changes the status of a row by the first entry about it."""
        kinds = {"fail": WRONG, "unsupported": (UNSUPPORTED,)}
        for entry in self._entries:
            if entry.expect == "slow" or not entry.applies(case, row.phase):
                continue
            if row.status in RIGHT and case.variant == "error":
                continue  # it is about results
            self.seen[entry.place] += 1
            if row.status in RIGHT:
                row.status = UNEXPECTED_AGREEMENT
                row.reason = f"{entry.place} is not needed: {entry.reason}"
            elif row.status not in kinds[entry.expect]:
                continue
            elif self._is_over(entry):
                row.status = WRONG[0] if row.status == UNSUPPORTED else row.status
                row.reason = f"{entry.place} ended on {entry.until}: {entry.reason}. {row.reason}"
            else:
                row.status, row.reason = EXPECTED, f"{entry.reason} ({row.status}: {row.reason})"
            return

    def not_met(self) -> list[str]:
        """Entries that no row of this run is about."""
        return [one.place for one in self._entries if one.expect != "slow" and not self.seen[one.place]]


def read_exceptions(path: str | Path | None, today: datetime.date | None = None) -> Exceptions:
    """The entries of a file: TOML, YAML or JSON, `{"exception": [entry, ...]}`. None: there are none.

    Raises:
        op_tools.Error: the file cannot be read, or an entry is wrong; the text names file and entry.
    """
    entries = []
    if path is not None:
        content = checked_object(str(path), read_data(path), {"exception": list})
        listed = content.get("exception", [])
        entries = [_entry(f"{path}: exception {number}", entry) for number, entry in enumerate(listed, 1)]
    return Exceptions(entries, today or datetime.date.today())


def _entry(place: str, content: Any) -> KnownFailure:
    table = checked_object(place, content, _KINDS, needed=("op", "expect", "reason"))
    for key, known in (("expect", EXPECTATIONS), ("phase", ("", *PHASES))):
        checked_choice(f"{place}: {key}", table.get(key, known[0]), known)
    listed = table.get("dtype", [])
    dtypes = (listed,) if isinstance(listed, str) else tuple(map(str, listed))
    op = checked_pattern(f"{place}: op", table["op"])
    return KnownFailure(
        op,
        table["expect"],
        table["reason"],
        dtypes,
        _shape_rule(place, table["shape"]) if "shape" in table else None,
        table.get("phase", ""),
        _date(place, table.get("until")),
        place,
    )


def _date(place: str, date: str | datetime.date | None) -> datetime.date | None:
    if isinstance(date, datetime.datetime):
        return date.date()
    if date is None or isinstance(date, datetime.date):
        return date
    try:
        return datetime.date.fromisoformat(date)
    except ValueError:
        raise Error(f"{place}: until is {date!r}; give a day, as 2027-06-30") from None


def _shape_rule(place: str, text: str) -> ShapeRule:
    """Holds for a tensor of which all conditions hold."""
    conditions = []
    for part in re.split(r"\band\b", text):
        condition = _CONDITION.fullmatch(part)
        if not condition or condition[1] not in _MEASURES:
            raise Error(
                f"{place}: shape is {text!r}; give conditions on {', '.join(_MEASURES)}, as in rank >= 3 and elements > 1000"
            )
        conditions.append((_MEASURES[condition[1]], _COMPARE[condition[2]], int(condition[3])))
    return lambda spec: all(compare(measure(spec), number) for measure, compare, number in conditions)
