"""The sums of a run's rows. All of it follows from rows and facts, so that `verify` can make it again."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._base.data_file import read_json
from .._base.verdict import Verdict, verdict_of
from .._base.verdict import status_of as status_of_verdict
from .rows import (
    COLUMNS_OF_COMPILED,
    ERROR,
    EXPECTED,
    NOT_JUDGED,
    RIGHT,
    UNSUPPORTED,
    WORST_FIRST,
    WRONG,
    Row,
    rows_below,
    status_of_case,
)

FORMAT = 1
RUN_FILE, SUMMARY_FILE = "run.json", "summary.json"

Rows = Mapping[str, list[Row]]


def summary_of(rows: Rows, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The summary.

    Args:
        rows: by case.
        facts: of the run: the content of run.json.
    """
    statuses = {case: status_of_case(found) for case, found in rows.items()}
    counts = Counter(statuses.values())
    operators: dict[str, dict[str, Counter[str]]] = {}
    for case, of_case in rows.items():
        dtypes = operators.setdefault(of_case[0].op, {})
        dtypes.setdefault(of_case[0].dtype, Counter())[statuses[case]] += 1
    return {
        "format": FORMAT,
        "device": facts["device"],
        "torch": facts["torch"],
        "list": facts["list"],
        "cases": facts["cases"],
        "without rows": facts["cases"] - len(rows),
        "statuses": {name: counts[name] for name in WORST_FIRST if counts[name]},
        "operators": {
            op: {dtype: _sorted(of) for dtype, of in sorted(dtypes.items())} for op, dtypes in sorted(operators.items())
        },
        "models": _models(rows, statuses),
        "ran": dict(sorted(Counter(row.ran for of_case in rows.values() for row in of_case if row.ran).items())),
        **_compilation(rows),
        "self-test": facts["self-test"],
        "exit status": status_of_verdict(verdict_of_cases(counts, facts["self-test"], facts["cases"] - len(rows))),
    }


def _compilation(rows: Rows) -> dict[str, Any]:
    """Of compiled cases: how often something happened, and in how many runs; a run has a row of its forward pass."""
    runs = [row for of_case in rows.values() for row in of_case if row.ran and not row.phase.startswith("backward")]
    if not runs:
        return {}
    counts = {name: [getattr(row, name) for row in runs] for name in COLUMNS_OF_COMPILED[1:]}
    happened = {name: {"times": sum(of), "runs": sum(map(bool, of))} for name, of in counts.items()}
    return {"compiled": {"runs": len(runs), **happened}}


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {name: counts[name] for name in WORST_FIRST if counts[name]}


class Missing(enum.Enum):
    """Why it is not known that a device is right."""

    SELF_TEST = "the suite did not find the faults that it planted"
    DAMAGED = "some cases could not be tried"
    NOT_RUN = "some cases have no row"
    MOST_UNJUDGED = "most cases have no verdict"


def missing_in(counts: Mapping[str, int], self_test: str, without_rows: int) -> list[Missing]:
    """The gaps, by the number of cases of each status, the failure of the self-test (""), and the cases without rows. A case
    that the device does not implement has no verdict, except where a list of exceptions expects it."""
    judged = sum(counts.get(one, 0) for one in (*RIGHT, *WRONG, EXPECTED))
    unjudged = sum(counts.get(one, 0) for one in (NOT_JUDGED, UNSUPPORTED))
    lacks = {
        Missing.SELF_TEST: bool(self_test),
        Missing.DAMAGED: bool(counts.get(ERROR)),
        Missing.NOT_RUN: without_rows > 0,
        Missing.MOST_UNJUDGED: not judged or unjudged > judged,
    }
    return [one for one, holds in lacks.items() if holds]


def verdict_of_cases(counts: Mapping[str, int], self_test: str, without_rows: int = 0) -> Verdict:
    """`differs` only where the suite itself can be trusted."""
    wrong = not self_test and any(counts.get(one) for one in WRONG)
    return verdict_of(wrong=wrong, unseen=bool(missing_in(counts, self_test, without_rows)))


def verdict_in(summary: Mapping[str, Any]) -> Verdict:
    """The verdict of a summary."""
    return verdict_of_cases(summary["statuses"], summary["self-test"], summary["without rows"])


def _models(rows: Rows, statuses: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Of each model: its cases, the calls that a step makes of them, and the bytes of these calls; and how many of them are right."""
    models: dict[str, dict[str, int]] = {}
    for case, of_case in rows.items():
        for name, calls in of_case[0].models.items():
            model = models.setdefault(
                name,
                {"cases": 0, "right": 0, "not judged": 0, "calls": 0, "calls right": 0, "bytes": 0, "bytes right": 0},
            )
            model["cases"] += 1
            if statuses[case] == NOT_JUDGED:
                model["not judged"] += 1
                continue
            right, size = statuses[case] in RIGHT, calls * of_case[0].bytes
            model["right"] += right
            model["calls"] += calls
            model["calls right"] += calls * right
            model["bytes"] += size
            model["bytes right"] += size * right
    return dict(sorted(models.items()))


def read_part(path: Path) -> dict[str, Any]:
    """An object from a file of a result.

    Raises:
        op_tools.Error: the file cannot be read, or holds none.
    """
    content = read_json(path, "is this a result of op-tools conformance run?")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise Error(f"{path}: is not of a result that this version reads")
    return content


def read_run_facts(folder: Path) -> dict[str, Any]:
    """The facts of a run in its run.json.

    Raises:
        op_tools.Error: it is not there, or lacks something.
    """
    facts = read_part(folder / RUN_FILE)
    for name, kind in (("device", str), ("torch", str), ("list", str), ("cases", int), ("self-test", str)):
        if not isinstance(facts.get(name), kind):
            raise Error(f"{folder / RUN_FILE}: {name!r} is missing")
    return facts


def differences(folder: Path) -> list[str]:
    """The entries of a result's summary that do not follow from its rows.

    Raises:
        op_tools.Error: a file of the result is missing or damaged.
    """
    told = read_part(folder / SUMMARY_FILE)
    computed = json.loads(json.dumps(summary_of(rows_below(folder), read_run_facts(folder))))
    return [
        f"{name}: {_short(told.get(name))} in {SUMMARY_FILE}, {_short(computed.get(name))} by the rows"
        for name in sorted(told.keys() | computed.keys())
        if told.get(name) != computed.get(name)
    ]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."
