"""Which ranks of a run are slow: OpTimeMeasure's times of ranks that made the same calls, compared with each other."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._base.core import is_collective
from .._base.rank_text import lines_of_ranks, ranks_text
from .part import Column, Origin, Part, RankTimes, Table, Work, integer_of, number_of, short, text_of

TITLE = "Time by rank"
FEWEST = 3  # ranks with the same calls: of two it is not known which of them is as it should be
RATIO = 1.1  # of the median of these ranks: a rank is slow above it,
SPREADS = 6.0  # and above the median by so many standard deviations, taken from the median distance to the median
OF_OPERATOR = 1.5  # or an operator of the rank is so much slower,
SHARE = 0.02  # and takes this share of the median rank's time more
_PER_DEVIATION = 1.4826  # standard deviations of a normal distribution in a median distance
_MOST_LINES = 8
_COLUMNS = (
    Column("rank", is_number=True),
    Column("calls", is_number=True),
    Column("operators ms", is_number=True),
    Column("of median", is_number=True),
    Column("collectives ms", is_number=True),
    Column("slowest", is_choice=True),
    Column("shapes"),
    Column("its ratio", is_number=True),
)


def times_of_row(times: RankTimes, row: Mapping[str, Any]) -> None:
    """Adds a row of summary.csv. A call counts with the median of its kind, so the first call and a pause of the system do not."""
    calls, self_ms = integer_of(row, "calls") or 0, number_of(row, "self_ms") or 0.0
    if is_collective(text_of(row, "op")):
        times.collectives_ms += self_ms
        return
    work = Work(
        text_of(row, "op"), text_of(row, "phase"), text_of(row, "shapes"), text_of(row, "device").partition(":")[0]
    )
    median = number_of(row, "p50_ms")
    times.calls[work] += calls
    times.ms[work] += self_ms if median is None else min(self_ms, calls * median)


@dataclass
class _Slow:
    times: RankTimes
    ratio: float
    """Of the median of ranks with the same calls."""
    work: Work | None = None
    """With most of the excess."""
    work_ratio: float = 1.0
    is_slow: bool = False


@dataclass
class _Peers:
    """Ranks with the same calls."""

    ranks: list[RankTimes]
    median: float = 0.0
    compared: list[_Slow] = field(default_factory=list)

    def __post_init__(self) -> None:
        totals = [sum(times.ms.values()) for times in self.ranks]
        self.median, spread = _middle(totals)
        by_work = {work: _middle([times.ms[work] for times in self.ranks]) for work in self.ranks[0].ms}
        for times, total in zip(self.ranks, totals, strict=True):
            slow = _Slow(times, total / self.median if self.median else 1.0)
            excess = {work: times.ms[work] - middle for work, (middle, _) in by_work.items()}
            slow.work = max(excess, key=excess.__getitem__, default=None)
            of_operator = False
            if slow.work is not None:
                middle, width = by_work[slow.work]
                slow.work_ratio = times.ms[slow.work] / middle if middle else 1.0
                of_operator = (
                    slow.work_ratio > OF_OPERATOR
                    and excess[slow.work] > SHARE * self.median
                    and excess[slow.work] > SPREADS * width
                )
            of_all = slow.ratio > RATIO and total - self.median > SPREADS * spread
            slow.is_slow = len(self.ranks) >= FEWEST and (of_all or of_operator)
            self.compared.append(slow)


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the standard deviation that the distances to it show."""
    median = statistics.median(values)
    return median, _PER_DEVIATION * statistics.median(abs(value - median) for value in values)


def part_of_ranks(parts: Sequence[Part]) -> Part | None:
    """A part that compares the ranks; None where fewer than two of them were measured.

    Args:
        parts: of any tools. A rank that was measured twice counts with its last run of the same calls.
    """
    alike: dict[frozenset[tuple[Work, int]], dict[int, RankTimes]] = defaultdict(dict)
    for part in parts:
        if part.rank_times is not None and part.origin.rank.isdigit():
            part.rank_times.rank = int(part.origin.rank)
            alike[frozenset(part.rank_times.calls.items())][part.rank_times.rank] = part.rank_times
    ranks = {rank for of_kind in alike.values() for rank in of_kind}
    if len(ranks) < 2:
        return None
    groups = [_Peers([of_kind[rank] for rank in sorted(of_kind)]) for of_kind in alike.values()]
    table = Table(TITLE, _COLUMNS)
    compared = [slow for group in groups for slow in group.compared]
    for slow in sorted(compared, key=lambda slow: (not slow.is_slow, -slow.ratio)):
        work = slow.work
        table.add(
            (
                slow.times.rank,
                sum(slow.times.calls.values()),
                short(sum(slow.times.ms.values())),
                round(slow.ratio, 3),
                short(slow.times.collectives_ms),
                "" if work is None else work.op + (" backward" if work.phase == "backward" else ""),
                "" if work is None else work.shapes,
                round(slow.work_ratio, 2),
            )
        )
    folders = {Path(part.origin.folder).parent.parent for part in parts if part.rank_times is not None}
    part = Part("OpTimeMeasure, all ranks", Origin(str(folders.pop()) if len(folders) == 1 else ""), tables=[table])
    part.text = "\n".join(_lines(groups))
    part.cannot_tell = [
        "OpTimeMeasure, all ranks: mode host measures the time of issuing; a slow device does not show in it."
    ]
    return part


def _lines(groups: Sequence[_Peers]) -> Iterator[str]:
    slow = sorted((slow for group in groups for slow in group.compared if slow.is_slow), key=lambda slow: -slow.ratio)
    peers = {slow.times.rank: group for group in groups for slow in group.compared}
    for rank in slow[:_MOST_LINES]:
        yield _sentence(rank, len(peers[rank.times.rank].ranks))
    if len(slow) > _MOST_LINES:
        yield f"slow as well: {ranks_text(sorted(rank.times.rank for rank in slow[_MOST_LINES:]))}"
    together = [group for group in groups if len(group.ranks) >= FEWEST]
    if together and not slow:
        most = max(rank.ratio for group in together for rank in group.compared)
        yield f"no rank is slow: at most {most:.2f} times the median of the ranks with the same calls"
    for group in groups:
        if len(group.ranks) == FEWEST - 1:
            yield _of_two(group)
    alone = [group.ranks[0] for group in groups if len(group.ranks) == 1]
    usual = max(groups, key=lambda group: len(group.ranks))
    yield from lines_of_ranks((times.rank, _why_alone(times, usual)) for times in alone)


def _sentence(slow: _Slow, peers: int) -> str:
    text = f"rank {slow.times.rank} is slow: {slow.ratio:.2f} times the median of {peers} ranks with the same calls"
    if slow.work is None:
        return text
    backward = " backward" if slow.work.phase == "backward" else ""
    return f"{text}; most of it in {slow.work.op}{backward} on {slow.work.shapes}: {slow.work_ratio:.2f} times"


def _of_two(group: _Peers) -> str:
    totals = [sum(times.ms.values()) for times in group.ranks]
    fast, slow = sorted(range(2), key=totals.__getitem__)
    ratio = totals[slow] / totals[fast] if totals[fast] else 1.0
    return (
        f"rank {group.ranks[slow].rank} takes {ratio:.2f} times as long as rank {group.ranks[fast].rank} with the same calls; "
        "which of the two is as it should be is not known"
    )


def _why_alone(times: RankTimes, usual: _Peers) -> str:
    text = "not compared: no other rank made the same calls"
    if len(usual.ranks) < 2:
        return text
    others: Counter[Work] = usual.ranks[0].calls
    apart = {work: times.calls[work] - others[work] for work in times.calls | others}
    work = max(apart, key=lambda work: abs(apart[work]))
    return f"{text} ({times.calls[work]} of {work.op} on {work.shapes}, where {len(usual.ranks)} ranks made {others[work]})"


def with_ranks(parts: Iterable[Part]) -> list[Part]:
    """The same parts, behind the comparison of their ranks where there is one."""
    known = list(parts)
    compared = part_of_ranks(known)
    return known if compared is None else [compared, *known]
