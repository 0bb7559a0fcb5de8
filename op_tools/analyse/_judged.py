"""The verdicts of op-tools conformance on functions and operators, for a support table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._conformance.rows import EXPECTED, RIGHT, UNSUPPORTED, WRONG, Row
from .._conformance.summary import read_result
from ._table import SupportTable, last_part

_MEANING = {**dict.fromkeys(RIGHT, "right"), **dict.fromkeys((*WRONG, EXPECTED), "wrong"), UNSUPPORTED: "unsupported"}


Judged = dict[str, dict[str, dict[str, Any]]]
"""Function or operator -> dtype -> how many cases are right, wrong and unsupported, and the first reason."""


def read_conformance(folder: str | Path, device: str) -> Judged:
    """The verdicts of a conformance result on functions, and on the operators that were wrong in them.

    Args:
        folder: a result of `op-tools conformance run -o`.
        device: whose support table it is for.

    Raises:
        op_tools.Error: there is no result, it is of another device, or void.
    """
    result = read_result(Path(folder))
    of = result.facts["device"].split(":")[0]
    if of != device.split(":")[0]:
        raise Error(f"{folder}: a conformance result of device {of}, the support table is of {device}")
    if void := result.facts["self-test"]:
        raise Error(f"{folder}: a conformance result that is not to be trusted: {void}")
    judged: Judged = {}
    for rows in result.rows.values():
        for row in rows:
            if row.status in _MEANING:
                is_wrong = _MEANING[row.status] == "wrong" and row.blamed
                for name in {row.op, row.blamed} if is_wrong else {row.op}:
                    _add(judged.setdefault(name, {}), row)
    return judged


def enter_conformance(table: SupportTable, judged: Judged) -> None:
    """Enters it into the table of the same device."""
    for name, dtypes in judged.items():
        for target in _rows_of_names(table, name):
            target["judged"] = dict(sorted(dtypes.items()))


def _add(dtypes: dict[str, dict[str, Any]], row: Row) -> None:
    meaning = _MEANING[row.status]
    counts = dtypes.setdefault(row.dtype, {"right": 0, "wrong": 0, "unsupported": 0})
    counts[meaning] += 1
    if meaning != "right":
        counts.setdefault(meaning + " because", f"{row.phase}: {row.reason or row.status} ({row.case})")


def _rows_of_names(table: SupportTable, name: str) -> Iterable[dict[str, Any]]:
    """A function's row, and those of its other names: torch.tanh, torch.Tensor.tanh_."""
    if "::" in name:
        operators = table.content["operators"]
        return [operators[name]] if name in operators else []
    functions = table.content["functions"]
    row = functions.setdefault(name, {"samples": 0, "errors": 0, "operators": [], "backward": []})
    calls, own = row["operators"], last_part(name)
    return [one for other, one in functions.items() if last_part(other) == own and one["operators"] == calls]
