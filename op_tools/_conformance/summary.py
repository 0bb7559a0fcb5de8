"""The sums of a run's rows. All of it follows from rows and facts, so that `verify` can make it again."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
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
    FoundRows,
    Row,
    rows_below,
    status_of_case,
)

FORMAT = 1
RUN_FILE, SUMMARY_FILE = "run.json", "summary.json"
IDS = "ids"
"""In run.json: the cases of the list, so that a case without rows is known, whatever else has rows."""
LOST = "lost calls"
"""In run.json, and in the summary: reports of captured calls that are damaged or missing, so that they became no cases."""

Rows = Mapping[str, list[Row]]


@dataclass(frozen=True)
class RunResult:
    """The rows of a run, measured by its facts: every verdict about it is made of this."""

    rows: Rows
    """By case, of those of the run's list."""
    facts: Mapping[str, Any]
    """The content of run.json."""
    without_rows: int
    """Cases of the list that have none."""
    others: list[str]
    """Cases that have rows, and are of another list: they stand in for no case."""
    damaged: int
    """Lines that are no rows."""


def result_of(by_case: FoundRows, facts: Mapping[str, Any]) -> RunResult:
    """Measures rows by the facts of their run."""
    if (ids := facts.get(IDS)) is None:  # of a version that wrote the number of the cases alone
        more = len(by_case) - facts["cases"]
        others = [f"{more} of the {len(by_case)} that have rows"] if more > 0 else []
        return RunResult(by_case, facts, max(-more, 0), others, by_case.damaged)
    rows = {case: of_case for case in ids if (of_case := by_case.get(case)) is not None}
    others = sorted(by_case.keys() - rows.keys())
    return RunResult(dict(sorted(rows.items())), facts, len(ids) - len(rows), others, by_case.damaged)


def read_result(folder: Path) -> RunResult:
    """The rows and the facts of a run, from the files in its folder.

    Raises:
        op_tools.Error: a file of them is missing or damaged.
    """
    return result_of(rows_below(folder), read_run_facts(folder))


def summary_of(result: RunResult) -> dict[str, Any]:
    """The summary, which is written as summary.json."""
    rows, facts = result.rows, result.facts
    statuses = {case: status_of_case(found) for case, found in rows.items()}
    counts = Counter(statuses.values())
    operators: dict[str, dict[str, Counter[str]]] = {}
    for case, of_case in rows.items():
        dtypes = operators.setdefault(of_case[0].op, {})
        dtypes.setdefault(of_case[0].dtype, Counter())[statuses[case]] += 1
    summary = {
        "format": FORMAT,
        "device": facts["device"],
        "torch": facts["torch"],
        "list": facts["list"],
        "cases": facts["cases"],
        "without rows": result.without_rows,
        **({"cases of another list": result.others} if result.others else {}),
        **({"damaged lines": result.damaged} if result.damaged else {}),
        **({LOST: lost} if (lost := facts.get(LOST)) else {}),
        "statuses": {name: counts[name] for name in WORST_FIRST if counts[name]},
        "operators": {
            op: {dtype: _sorted(of) for dtype, of in sorted(dtypes.items())} for op, dtypes in sorted(operators.items())
        },
        "models": _models(rows, statuses),
        "ran": dict(sorted(Counter(row.ran for of_case in rows.values() for row in of_case if row.ran).items())),
        **_compilation(rows),
        "self-test": facts["self-test"],
    }
    return {**summary, "exit status": status_of_verdict(verdict_in(summary))}


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

    SELF_TEST = "the self-test of the suite did not pass"
    DAMAGED = "some cases could not be tried"
    NOT_RUN = "some cases have no row"
    OTHER_LIST = "some rows are of cases of another list"
    DAMAGED_LINES = "some lines of rows are damaged"
    LOST_CALLS = "some captured calls are damaged or missing"
    MOST_UNJUDGED = "most cases have no verdict"


def missing_in(summary: Mapping[str, Any]) -> list[Missing]:
    """The gaps of a summary. A case that the device does not implement has no verdict, except where a list of exceptions expects
    it."""
    counts = summary["statuses"]
    judged = sum(counts.get(one, 0) for one in (*RIGHT, *WRONG, EXPECTED))
    unjudged = sum(counts.get(one, 0) for one in (NOT_JUDGED, UNSUPPORTED))
    lacks = {
        Missing.SELF_TEST: bool(summary["self-test"]),
        Missing.DAMAGED: bool(counts.get(ERROR)),
        Missing.NOT_RUN: summary["without rows"] > 0,
        Missing.OTHER_LIST: bool(summary.get("cases of another list")),
        Missing.DAMAGED_LINES: bool(summary.get("damaged lines")),
        Missing.LOST_CALLS: bool(summary.get(LOST)),
        Missing.MOST_UNJUDGED: not judged or unjudged > judged,
    }
    return [one for one, holds in lacks.items() if holds]


def verdict_in(summary: Mapping[str, Any]) -> Verdict:
    """The verdict of a summary: `differs` only where the suite itself can be trusted."""
    wrong = not summary["self-test"] and any(summary["statuses"].get(one) for one in WRONG)
    return verdict_of(wrong=wrong, unseen=bool(missing_in(summary)))


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
    file = folder / RUN_FILE
    facts = read_part(file)
    for name, kind in (("device", str), ("torch", str), ("list", str), ("cases", int), ("self-test", str)):
        if name not in facts:
            raise Error(f"{file}: {name!r} is missing")
        if type(facts[name]) is not kind:
            raise Error(f"{file}: {name!r} is damaged")
    ids = facts.get(IDS)
    are_ids = isinstance(ids, list) and all(isinstance(one, str) for one in ids) and len(set(ids)) == facts["cases"]
    is_damaged = {
        "cases": facts["cases"] < 0,
        IDS: ids is not None and not are_ids,
        LOST: type(facts.get(LOST, 0)) is not int or facts.get(LOST, 0) < 0,
        "coverage": not isinstance(facts.get("coverage"), dict | None),
    }
    for name, holds in is_damaged.items():
        if holds:
            raise Error(f"{file}: {name!r} is damaged")
    return facts


def differences(folder: Path, computed: Mapping[str, Any]) -> list[str]:
    """The entries of a result's summary.json that do not follow from its rows.

    Args:
        folder: of the result.
        computed: the summary by its rows.

    Raises:
        op_tools.Error: the file is missing or damaged.
    """
    told, by_rows = read_part(folder / SUMMARY_FILE), json.loads(json.dumps(computed))
    return [
        f"{name}: {_short(told.get(name))} in {SUMMARY_FILE}, {_short(by_rows.get(name))} by the rows"
        for name in sorted(told.keys() | by_rows.keys())
        if told.get(name) != by_rows.get(name)
    ]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."
