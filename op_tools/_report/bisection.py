"""Bisections: result.json in the folder of op-tools bisect, or the file of its --json"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.own_command import op_tools_line
from .._base.verdict import Verdict, verdict_of
from .part import Column, Command, Curve, FindingsOf, Mark, Origin, Part, Series, Table, integer_of, number_of, text_of

FILE = "result.json"
_FOUND, _NO_OPERATOR = "found", "not an operator"
_COLUMNS = (
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("calls of a step", is_number=True),
    Column("line"),
)


def is_bisection(content: object) -> bool:
    """It is the object that op-tools bisect writes."""
    return isinstance(content, dict) and {"culprits", "remedy", "runs_for", "verdict"} <= content.keys()


def _series(content: Mapping[str, Any], name: str, title: str) -> Series:
    values = content.get(name)
    numbers = [number_of({"value": value}, "value") for value in values] if isinstance(values, list) else []
    return Series(title, tuple((float(step), value) for step, value in enumerate(numbers) if value is not None))


def part_of_content(content: Mapping[str, Any], origin: Origin) -> Part:
    """The part of a bisection: culprits are findings, with the program's numbers before and after they were moved."""
    part = Part("op-tools bisect", origin)
    verdict, remedy = text_of(content, "verdict"), text_of(content, "remedy")
    table = Table("Operators that heal the program", _COLUMNS)
    findings = FindingsOf(part)
    culprits = content.get("culprits")
    rows = [row for row in culprits if isinstance(row, dict)] if isinstance(culprits, list) else []
    folders = content.get("captured")
    saved = [str(folder) for folder in folders] if isinstance(folders, list) else []
    for number, row in enumerate(rows):
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += 1
            place.wrong += 1
        text = f"with it under {remedy} the program's numbers are right"
        findings.add(Mark.WRONG, row, text=text, saved=saved[number] if number < len(saved) else "")
        cells = (text_of(row, "op"), text_of(row, "phase"), text_of(row, "module"), integer_of(row, "calls"))
        table.add((*cells, text_of(row, "line")), is_wrong=True)
    part.tables.append(table)
    part.text = ": ".join(filter(None, (verdict, text_of(content, "explanation"))))
    part.verdict = verdict_of(wrong=verdict in (_FOUND, _NO_OPERATOR), unseen=verdict != _FOUND)
    if part.verdict is Verdict.NOT_JUDGED:
        origin.gaps.append(f"the bisection ended without a culprit: {verdict}")
    part.facts = [("runs", str(integer_of(content, "runs") or 0)), ("remedy", remedy)]
    part.facts += [("seconds", f"{seconds:.0f}")] if (seconds := number_of(content, "seconds")) is not None else []
    series = (_series(content, "before", "with nothing moved"), _series(content, "after", "with the culprits moved"))
    part.curves = [Curve("The program's numbers", "number of the line", tuple(one for one in series if one.points))]
    part.commands = [
        Command("a script that shows it without op_tools", op_tools_line("repro", folder, "--shrink"))
        for folder in saved[:3]
        if (Path(folder) / "input.pth").is_file()
    ]
    part.cannot_tell = ["op-tools bisect: operators that it could not move (docs/bisect.md), and other seeds and data."]
    return part
