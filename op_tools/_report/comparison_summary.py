"""The last record of a comparison's file, against the rows in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._base.verdict import Verdict, verdict_of
from .part import Mark, Part, text_of


def judge_by_summary(part: Part, summary: Mapping[str, Any] | None, counts: Mapping[str, int], told: object) -> None:
    """Gives a part the verdict of its summary, unless rows say worse, or are not those that the comparison counted.

    Args:
        part: with the findings of its rows.
        summary: None: the file has none.
        counts: how many rows there are, by their verdict.
        told: the same by the summary; None: of a version that did not count them.
    """
    gaps = part.origin.gaps
    if summary is None:
        gaps.append("the file of the comparison has no summary: it is cut off")
    else:
        for name in ("unseen", "problems"):
            gaps += map(str, unseen) if isinstance(unseen := summary.get(name), list) else []
        gaps += _miscounted(counts, told)
    said = text_of(summary or {}, "verdict")
    wrong = said == Verdict.DIFFERS or bool(counts.get(Verdict.DIFFERS.value))
    wrong = wrong or any(finding.mark is Mark.WRONG for finding in part.findings)
    part.verdict = verdict_of(wrong=wrong, unseen=bool(gaps) or said != Verdict.AGREES)


def _miscounted(counts: Mapping[str, int], told: object) -> list[str]:
    """A line may be missing or doubled, which no line shows."""
    if told is None:
        return []
    if not isinstance(told, dict) or not all(type(number) is int for number in told.values()):
        return ["the numbers of rows in the summary are damaged"]
    return [
        f"{counts.get(name, 0):,} rows are '{name}', and {told.get(name, 0):,} by the summary: lines are missing, or too many"
        for name in {**told, **counts}
        if counts.get(name, 0) != told.get(name, 0)
    ]
