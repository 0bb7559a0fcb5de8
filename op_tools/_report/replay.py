"""Replays of captured calls: the file of run_op_from_data --json"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._base.verdict import Verdict, verdict_of
from .part import Column, FindingsOf, Mark, Origin, Part, Table, dtype_of, number_of, short, sizes_of, text_of
from .replay_commands import commands_of_findings
from .ulp import UlpHistograms

_COLUMNS = (
    Column("verdict", is_choice=True),
    Column("op", is_choice=True),
    Column("result"),
    Column("against", is_choice=True),
    Column("error", is_number=True),
    Column("limit", is_number=True),
    Column("max abs", is_number=True),
    Column("max ULP", is_number=True),
    Column("forward ms", is_number=True),
    Column("backward ms", is_number=True),
    Column("dtype", is_choice=True),
    Column("shape"),
    Column("reason"),
    Column("call"),
)
_MARKS = {Verdict.DIFFERS.value: Mark.WRONG, Verdict.AGREES.value: Mark.RIGHT}


def is_replay(content: object) -> bool:
    """It is the object that run_op_from_data writes."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("calls"), list)
        and isinstance(content.get("summary"), dict)
    )


def _checks_of(call: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The results of a call; a row without result for a call that has none."""
    checks = call.get("checks")
    rows = [check for check in checks if isinstance(check, dict)] if isinstance(checks, list) else []
    yield from rows or [{}]


def part_of_content(content: Mapping[str, Any], origin: Origin) -> Part:
    """The part of a replay."""
    part = Part("run_op_from_data", origin)
    table = Table("Results that were run again", _COLUMNS)
    findings = FindingsOf(part, "x limit")
    counts: Counter[str] = Counter()
    errors = UlpHistograms()
    for call in content["calls"]:
        if not isinstance(call, dict):
            origin.gaps.append("a call of the file is damaged, and left out")
            continue
        status, place = text_of(call, "status"), text_of(call, "path")
        counts[status] += 1
        for check in _checks_of(call):
            verdict = text_of(check, "verdict") or status
            mark = _MARKS.get(verdict, Mark.NOT_JUDGED)
            number, limit = number_of(check, "number"), number_of(check, "limit")
            fields = {"op": text_of(call, "name"), "phase": text_of(check, "part")}
            errors.add(dtype_of(check), number_of(check, "max_ulp"), mark)
            reason = text_of(check, "explained") or text_of(check, "reason") or text_of(call, "reason")
            if mark is not Mark.RIGHT:
                share = number / limit if number is not None and limit else None
                text = f"{verdict} ({text_of(check, 'against')}): {reason}" if reason else verdict
                saved = str(Path(place)) if mark is Mark.WRONG else ""
                findings.add(mark, fields, text=text, worst=share, saved=saved, apart=verdict)
            table.add(
                (
                    *(verdict, fields["op"], text_of(check, "what"), text_of(check, "against")),
                    *(short(number_of(check, name)) for name in ("number", "limit", "max_abs", "max_ulp")),
                    *(short(number_of(call, f"{name}_ms_median")) for name in ("forward", "backward")),
                    *(dtype_of(check), sizes_of(check, "shape"), reason, place),
                ),
                is_wrong=mark is Mark.WRONG,
            )
    part.tables.append(table)
    part.shares = list(errors.pictures())
    summary = content["summary"]
    part.facts = [
        ("calls", f"{sum(counts.values()):,}"),
        *((name, f"{count:,}") for name, count in counts.most_common()),
    ]
    part.facts += [("device", device)] if (device := text_of(summary, "device")) else []
    problems = content.get("problems")
    origin.gaps += [str(problem) for problem in problems] if isinstance(problems, list) else []
    judged = summary.get("acc_check") is True
    if judged:
        status = summary.get("exit_status")
        wrong = counts[Verdict.DIFFERS.value] > 0 or status == 1
        part.verdict = verdict_of(wrong=wrong, unseen=bool(origin.gaps) or status != 0)
    else:
        origin.gaps.append("results were not judged: run_op_from_data ran without --acc_check")
    part.commands = commands_of_findings(part.findings, None)
    part.cannot_tell = ["run_op_from_data: results whose inputs were not captured, and operators that were not called."]
    return part
