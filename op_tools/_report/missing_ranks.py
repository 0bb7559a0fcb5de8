"""Ranks of a run whose results are not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set
from pathlib import Path

from .._base.rank_text import absent_ranks, ranks_text
from .._base.verdict import Verdict, worst
from .captures import TOOL as CAPTURES
from .part import Part, run_folder


def missing_ranks(run: Path, ranks: Set[int], count: int = 0) -> set[int]:
    """Of a run's folder, some of whose ranks have results: those below the largest, below the `count` that was launched, and those
    that have a folder, without results."""
    begun = {int(path.name) for path in run.iterdir() if path.name.isdecimal()} if run.is_dir() else set()
    return absent_ranks(ranks, max(*ranks, count)) | begun - ranks


def note_missing_ranks(parts: Iterable[Part], place: Path) -> None:
    """Where ranks of a run have results and others have none, the part of the first says which. A user who names the folder of a
    rank asks for no other. Only of tools with a verdict, of captured calls, whose replay judges them, and of OpBlackBox, which says where each
    rank is: the times of ranks have a part of their own.

    Args:
        parts: the results below a folder.
        place: the folder.
    """
    by_run: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in parts:
        is_asked = part.verdict is not None or part.tool in (CAPTURES, "OpBlackBox")
        if is_asked and part.origin.rank.isdecimal() and Path(run_folder(part)).is_relative_to(place):
            by_run[part.tool, run_folder(part)].append(part)
    for (_, run), of_run in by_run.items():
        ranks = {int(part.origin.rank) for part in of_run}
        if missing := missing_ranks(Path(run), ranks, max(part.origin.ranks for part in of_run)):
            first = min(of_run, key=lambda part: int(part.origin.rank))
            first.origin.gaps.append(f"{ranks_text(missing)}: no results here, of {len(ranks | missing):,} ranks")
            if first.verdict is not None:
                first.verdict = worst([first.verdict, Verdict.NOT_JUDGED])
