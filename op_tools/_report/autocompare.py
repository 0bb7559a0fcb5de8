"""OpAutoCompare's rows: autocompare.jsonl"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.verdict import Verdict, verdict_of
from .part import (
    Chart,
    Column,
    FindingsOf,
    Mark,
    Origin,
    Part,
    Table,
    dtype_of,
    integer_of,
    number_of,
    short,
    sizes_of,
    text_of,
    unknown_words,
)
from .replay_commands import commands_of_findings
from .ulp import UlpHistograms

FILE = "autocompare.jsonl"
_VERDICTS = frozenset(verdict.value for verdict in Verdict)
_COLUMNS = (
    Column("verdict", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("result"),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("of limit", is_number=True),
    Column("error", is_number=True),
    Column("limit", is_number=True),
    Column("max abs", is_number=True),
    Column("max ULP", is_number=True),
    Column("dtype", is_choice=True),
    Column("shape"),
    Column("device", is_choice=True),
    Column("reason"),
    Column("line"),
)


def _share_of_limit(row: Mapping[str, Any]) -> float | None:
    """How many times its limit an error is."""
    number, limit = number_of(row, "number"), number_of(row, "limit")
    if number is None or limit is None:
        return None
    return number / limit if limit > 0 else 0.0 if number == 0 else float("inf")


def _saved(row: Mapping[str, Any], origin: Origin) -> str:
    """The folder of a failed call as the device computed it. Rows name it from the folder in which the program ran."""
    saved = text_of(row, "saved")
    return str(Path(origin.folder, *Path(saved).parts[-2:], "device")) if saved and origin.folder else ""


def _why_wrong(row: Mapping[str, Any], share: float | None) -> str:
    """Why a result is wrong."""
    if reason := text_of(row, "reason"):
        return reason
    text = f"{text_of(row, 'what')}: {text_of(row, 'deciding')} {number_of(row, 'number') or 0:.4g}"
    text += f", limit {number_of(row, 'limit') or 0:.4g}" if share else ""
    if result := text_of(row, "worst_result"):
        text += f"; {result} instead of {text_of(row, 'worst_reference')}"
    return text


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a run of OpAutoCompare."""
    part = Part("OpAutoCompare", origin)
    table = Table("Comparisons", _COLUMNS, chart=Chart("Errors over the calls", "call", "of limit", is_log=True))
    findings = FindingsOf(part, "x limit")
    counts: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    errors = UlpHistograms()
    for row in rows:
        verdict = text_of(row, "verdict")
        if verdict not in _VERDICTS:
            unknown[verdict] += 1
            verdict, row = Verdict.NOT_JUDGED.value, {**row, "reason": f"the verdict '{verdict}' is not known here"}
        counts[verdict] += 1
        is_wrong = verdict == Verdict.DIFFERS
        share = _share_of_limit(row)
        for place in part.place(text_of(row, "module"), text_of(row, "source")):
            place.calls += 1
            place.wrong += is_wrong
            place.not_judged += verdict == Verdict.NOT_JUDGED
        if is_wrong:
            saved = _saved(row, origin)
            findings.add(Mark.WRONG, row, text=_why_wrong(row, share), worst=share, line="source", saved=saved)
        elif verdict == Verdict.NOT_JUDGED:
            reason = text_of(row, "reason")
            findings.add(Mark.NOT_JUDGED, row, text=reason, line="source", apart=text_of(row, "not_judged"))
        judged = verdict != Verdict.NOT_JUDGED
        mark = Mark.WRONG if is_wrong else Mark.RIGHT if judged else Mark.NOT_JUDGED
        errors.add(dtype_of(row), number_of(row, "max_ulp") if judged else None, mark)
        table.add(
            (
                verdict,
                text_of(row, "op"),
                text_of(row, "phase"),
                text_of(row, "module"),
                text_of(row, "part") or text_of(row, "what"),
                integer_of(row, "step"),
                integer_of(row, "id"),
                short(share) if judged else None,
                short(number_of(row, "number")) if judged else None,
                short(number_of(row, "limit")) if judged else None,
                short(number_of(row, "max_abs")),
                short(number_of(row, "max_ulp")),
                dtype_of(row),
                sizes_of(row, "shape"),
                text_of(row, "device"),
                text_of(row, "reason"),
                text_of(row, "source"),
            ),
            is_wrong=is_wrong,
        )
    part.tables.append(table)
    part.shares = list(errors.pictures())
    wrong, unjudged = counts[Verdict.DIFFERS], counts[Verdict.NOT_JUDGED]
    part.facts = [("wrong", f"{wrong:,}"), ("right", f"{counts[Verdict.AGREES]:,}"), ("not judged", f"{unjudged:,}")]
    origin.gaps += unknown_words("verdict", unknown)
    children = origin.account.children_wrong if origin.account else 0
    part.verdict = verdict_of(wrong=wrong + children > 0, unseen=bool(origin.reasons) or not table.total)
    part.commands = commands_of_findings(part.findings, origin.account)
    part.cannot_tell = [
        "OpAutoCompare: an operator that agrees is right for the inputs of this run; other shapes and dtypes were not tried.",
        "OpAutoCompare: results without a verdict (random numbers, memory that was never written) may be wrong.",
    ]
    return part
