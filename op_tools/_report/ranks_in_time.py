"""Which rank of a run is slow, and in which operators: the times of OpTimeMeasure of all ranks beside each other.

Ranks are compared where they did the same work: the same operators on the same shapes and dtypes, as often. What other ranks decide
(collectives, and waits for them) is left out: the slow rank waits least. docs/timing.md states the rule.
"""

from __future__ import annotations

import enum
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from .missing_ranks import missing_ranks
from .part import Part, run_folder
from .rank_work import MOST_MS, SEPARATOR, Measure, Mode, Work

LEAST_RATIO = 1.15
"""Of a rank's time to that of the others, for a rank that is slow in each call."""
LEAST_RATIO_OF_OP = 1.3
"""Likewise, in a single operator."""
LEAST_RATIO_OF_SOME = 1.5
"""Of a rank that is slow in some calls."""
LEAST_MS = 5.0
LEAST_SHARE = 0.03
"""Of the others' time, by which a single operator, or more calls of it, must exceed theirs."""
SPREADS = 5.0
"""A rank is slow beyond so many spreads of its peers."""
LEAST_SPREAD = 0.02
FEWEST_RANKS = 3
"""Of two ranks nobody knows which is usual."""
_EVERYWHERE = 0.8  # of the usual time, in operators that are slow by half as much as the rank


class State(str, enum.Enum):
    """The answer for a rank."""

    SLOW = "slow"
    USUAL = "usual"
    OF_TWO = "one of two"
    """With a single peer there is a ratio, and no usual time."""
    OTHER_WORK = "other work"
    """Of most of its time no other rank has the same operators on the same shapes."""
    FEW_CALLS = "few calls"
    ISSUED = "not measured"
    UNKNOWN = "mode unknown"

    __str__ = str.__str__


@dataclass(frozen=True)
class Excess:
    """An operator in which a rank takes longer than others."""

    op: str
    phase: str
    shapes: str
    """"" where they are several."""
    calls: int
    peer_calls: float
    call_ms: float
    """Of the shortest call, or the mean without the longest, as the measure has it."""
    peer_call_ms: float
    excess_ms: float


@dataclass
class RankTime:
    """A rank beside its peers."""

    rank: int
    work: Work
    state: State = State.OTHER_WORK
    kind: int = 0
    """The number of its kind of work, from 1; 0: no other few ranks have the same."""
    peers: int = 0
    ratio: float | None = None
    """Of its time to that of the peers, in the measure that decides."""
    excess_ms: float = 0.0
    share: float = 0.0
    """Of its time, that is compared."""
    limit: float = 0.0
    """The ratio from which it would be slow in each call."""
    measure: Measure = Measure.EACH
    is_everywhere: bool = False
    """It is slow in all of its operators, more or less."""
    slow_in: list[Excess] = field(default_factory=list)
    """The operators that make the difference, the largest first."""
    more_calls: list[Excess] = field(default_factory=list)
    """Operators that it calls more often than ranks with otherwise the same work."""


def _limit_ratio(spread: float, least: float) -> float:
    """The ratio beyond which a rank is slow."""
    return max(least, math.exp(min(SPREADS * spread, math.log(MOST_MS))))


def _spread(values: Iterable[float]) -> float:
    return max(LEAST_SPREAD, 1.4826 * median(map(abs, values)))  # a normal distribution's deviation, of the middle half


def _weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Of (value, weight)."""
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    for value, weight in ordered:
        half -= weight
        if half <= 0:
            return value
    return 0.0


@dataclass
class _Row:
    """An operator of all peers that have it."""

    ranks: array[int] = field(default_factory=lambda: array("L"))
    """Places among the peers."""
    means: tuple[array[float], array[float]] = field(default_factory=lambda: (array("d"), array("d")))
    """By Measure: milliseconds of a call."""
    calls: array[int] = field(default_factory=lambda: array("q"))


class _Peers:
    """Ranks that are compared, and their usual times."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.count = len(works)
        ranks = Counter(key for work in works for key in work.keys)
        self._fewest = min(FEWEST_RANKS, self.count)
        self._rows: dict[str, _Row] = defaultdict(_Row)
        for number, work in enumerate(works):
            for key, calls, *times in work.rows():
                if ranks[key] < self._fewest:
                    continue  # of ranks with other shapes each there may be millions
                row = self._rows[key]
                row.ranks.append(number)
                row.calls.append(calls)
                for means, time in zip(row.means, times, strict=True):
                    means.append(time / calls)
        self._usual = {key: (*map(median, row.means), median(row.calls)) for key, row in self._rows.items()}
        self.center, self.spread = [0.0, 0.0], [LEAST_SPREAD, LEAST_SPREAD]
        for measure in Measure:
            logs = [
                math.log(own / usual) for work in works for own, usual in [self.sums(work, measure)] if own and usual
            ]
            if logs:
                self.center[measure] = median(logs)
                self.spread[measure] = _spread(value - self.center[measure] for value in logs)
        self._pace = [self.pace(work) for work in works]

    def _shared(self, work: Work, measure: Measure) -> Iterator[tuple[str, int, float, float]]:
        """Of each row that enough ranks have: key, calls, own and usual time for so many calls."""
        for key, calls, *times in work.rows():
            usual = self._usual.get(key)
            if usual is not None and times[measure] and usual[measure]:
                yield key, calls, times[measure], usual[measure] * calls

    def sums(self, work: Work, measure: Measure) -> tuple[float, float]:
        """A rank's own time of the rows that are shared, and the usual time of as many calls."""
        own = usual = 0.0
        for _, _, of_rank, of_peers in self._shared(work, measure):
            own, usual = own + of_rank, usual + of_peers
        return own, usual

    def has(self, key: str, calls: int) -> bool:
        """It is usual to call that so often."""
        return key in self._usual and self._usual[key][2] == calls

    def pace(self, work: Work) -> float:
        """The logarithm of a rank's ratio in most of its time: what its operators have in common."""
        return _weighted_median((math.log(own / usual), usual) for _, _, own, usual in self._shared(work, Measure.EACH))

    def limit_of(self, key: str) -> float:
        """Of the ratio of an operator's time to the rank's pace: by the spread of this ratio among the peers."""
        row, usual = self._rows[key], self._usual[key][Measure.EACH]
        means = zip(row.ranks, row.means[Measure.EACH], strict=True)
        return _limit_ratio(
            _spread(math.log(mean / usual) - self._pace[rank] for rank, mean in means if mean), LEAST_RATIO_OF_OP
        )

    def excesses(self, work: Work, measure: Measure) -> list[tuple[str, Excess]]:
        """The rows that take longer than usual, the largest difference first."""
        rows = [
            (key, _excess(key, calls, own, usual))
            for key, calls, own, usual in self._shared(work, measure)
            if own > usual
        ]
        return sorted(rows, key=lambda row: -row[1].excess_ms)

    def more_calls(self, work: Work, least_ms: float) -> list[Excess]:
        """Operators that a rank calls more often, by operator and phase, whose further calls take so long."""
        own: dict[tuple[str, str], int] = defaultdict(int)
        usual: dict[tuple[str, str], float] = defaultdict(float)
        further: dict[tuple[str, str], float] = defaultdict(float)
        of_work = {key: (calls, each) for key, calls, each, _ in work.rows()}
        for key in {*of_work, *(key for key, row in self._rows.items() if 2 * len(row.ranks) > self.count)}:
            calls, each = of_work.get(key, (0, 0.0))
            mean, _, peer_calls = self._usual.get(key, (0.0, 0.0, 0.0))
            op, phase, *_ = _names(key)
            own[op, phase] += calls
            usual[op, phase] += peer_calls
            further[op, phase] += (calls - peer_calls) * (mean or each / max(1, calls))
        return [
            Excess(op, phase, "", own[op, phase], usual[op, phase], 0.0, 0.0, ms)
            for (op, phase), ms in sorted(further.items(), key=lambda item: -item[1])
            if ms >= least_ms and own[op, phase] >= LEAST_RATIO * usual[op, phase]
        ]


def _names(key: str) -> list[str]:
    return key.split(SEPARATOR)


def _excess(key: str, calls: int, own: float, usual: float) -> Excess:
    """Of a row; both times are of so many calls."""
    op, phase, shapes, *_ = _names(key)
    return Excess(op, phase, shapes, calls, calls, own / calls, usual / calls, own - usual)


def _judge(time: RankTime, peers: _Peers, others: int) -> None:
    """Fills in the verdict about a rank beside its peers. `others`: how many ranks have the same work."""
    work = time.work
    time.peers = others
    shared, _ = peers.sums(work, Measure.EACH)
    every = sum(work.times[Measure.EACH])
    if not every:
        time.state = State.FEW_CALLS
        return
    time.share = shared / every
    if time.share < 0.5:
        time.state = State.OTHER_WORK
        return
    time.state = State.USUAL
    for measure in Measure:
        own, usual = peers.sums(work, measure)
        if not own or not usual:
            continue
        usual *= math.exp(peers.center[measure])
        ratio = own / usual
        limit = _limit_ratio(peers.spread[measure], LEAST_RATIO if measure is Measure.EACH else LEAST_RATIO_OF_SOME)
        if measure is Measure.EACH:
            time.ratio, time.excess_ms, time.limit = ratio, own - usual, limit
        rows = peers.excesses(work, measure)
        slow_in = []
        if ratio >= limit and own - usual >= LEAST_MS:
            slow_in = [excess for _, excess in rows if excess.excess_ms >= LEAST_SHARE * (own - usual)] or [rows[0][1]]
            like_it = (
                row.calls * row.peer_call_ms for _, row in rows if 2 * row.call_ms / row.peer_call_ms >= 1 + ratio
            )
            time.is_everywhere = sum(like_it) >= _EVERYWHERE * usual
        elif measure is Measure.EACH:
            least = max(LEAST_MS, LEAST_SHARE * usual)
            pace = math.exp(max(0.0, peers.pace(work)))
            for key, excess in rows:
                if excess.excess_ms < least:
                    break
                if excess.call_ms / excess.peer_call_ms >= pace * peers.limit_of(key):
                    slow_in.append(excess)
        if slow_in:
            time.state, time.measure, time.slow_in = State.SLOW, measure, slow_in
            time.ratio, time.excess_ms = ratio, own - usual
            return


def _kinds_of_work(times: Sequence[RankTime]) -> list[list[RankTime]]:
    """Ranks with the same operators, shapes and calls; those of which there are enough, the most first."""
    alike: dict[bytes, list[RankTime]] = defaultdict(list)
    for time in times:
        alike[time.work.kind].append(time)
    kinds = sorted((kind for kind in alike.values() if len(kind) >= FEWEST_RANKS), key=len, reverse=True)
    for number, kind in enumerate(kinds, 1):
        for time in kind:
            time.kind = number
    return kinds


def _compare_ranks(times: Sequence[RankTime]) -> None:
    """Each rank with those of its kind of work; a rank of no kind with the kind that has most of its work, else with all."""
    kinds = [(kind, _Peers([time.work for time in kind])) for kind in _kinds_of_work(times)]
    for kind, peers in kinds:
        for time in kind:
            _judge(time, peers, peers.count - 1)
    rest = [time for time in times if not time.kind]
    if not rest:
        return
    everyone: _Peers | None = None
    for time in rest:
        nearest = max(kinds, key=lambda kind: _common_ms(time.work, kind[1]), default=None)
        if nearest is not None:
            _judge(time, nearest[1], nearest[1].count)
            if time.state is not State.OTHER_WORK:
                usual = nearest[1].sums(time.work, Measure.EACH)[1]
                time.more_calls = nearest[1].more_calls(time.work, max(LEAST_MS, LEAST_SHARE * usual))
                continue
        everyone = everyone or _Peers([other.work for other in times])
        _judge(time, everyone, everyone.count - 1)
    if len(times) == 2 and all(time.state in (State.USUAL, State.SLOW) for time in times):
        _compare_two(times)


def _common_ms(work: Work, peers: _Peers) -> float:
    return sum(each for key, calls, each, _ in work.rows() if peers.has(key, calls))


def _compare_two(times: Sequence[RankTime]) -> None:
    """The ratio of two ranks, and the operators that make it."""
    for time, other in (times, times[::-1]):
        peers = _Peers([other.work])
        own, usual = peers.sums(time.work, Measure.EACH)
        time.state, time.peers, time.measure, time.slow_in = State.OF_TWO, 1, Measure.EACH, []
        time.ratio, time.excess_ms = own / usual, own - usual
        if time.ratio >= LEAST_RATIO_OF_OP and time.excess_ms >= LEAST_MS:
            least = LEAST_SHARE * time.excess_ms
            time.slow_in = [row for _, row in peers.excesses(time.work, Measure.EACH) if row.excess_ms >= least]


@dataclass
class RunTimes:
    """The ranks of a run."""

    folder: str
    number: int
    """Of the runs in the folder, from 1."""
    times: list[RankTime]
    """Slow ranks first, then by ratio."""
    missing: list[int]
    """Ranks without times."""

    @property
    def slow(self) -> list[RankTime]:
        """The slow ranks."""
        return [time for time in self.times if time.state is State.SLOW]


def _parts_of_runs(parts: Iterable[Part]) -> dict[tuple[str, int], dict[int, Part]]:
    """Folder and number of a run -> rank -> part. A folder of results has the runs of a rank, one after the other."""
    by_rank: dict[tuple[str, int], list[Part]] = defaultdict(list)
    for part in parts:
        if part.work is not None and part.origin.rank.isdecimal():
            by_rank[run_folder(part), int(part.origin.rank)].append(part)
    runs: dict[tuple[str, int], dict[int, Part]] = defaultdict(dict)
    for (folder, rank), of_rank in by_rank.items():
        for number, part in enumerate(sorted(of_rank, key=_place_in_time), 1):
            runs[folder, number][rank] = part
    return runs


def _place_in_time(part: Part) -> list[tuple[int, str]]:
    """By the name of its folder: 2024-08-06--11-41-2 is before 2024-08-06--11-41-10."""
    return [(int(text) if text.isdecimal() else -1, text) for text in re.split(r"(\d+)", Path(part.origin.folder).name)]


def compared(parts: Iterable[Part]) -> list[RunTimes]:
    """The runs of two and more ranks."""
    runs = []
    for (folder, number), of_run in _parts_of_runs(parts).items():
        if len(of_run) < 2:
            continue
        times = [RankTime(rank, part.work) for rank, part in sorted(of_run.items()) if part.work is not None]
        judged = []
        for time in times:
            if time.work.mode is not Mode.MEASURED:
                time.state = State.ISSUED if time.work.mode is Mode.ISSUED else State.UNKNOWN
            else:
                judged.append(time)
        if len(judged) > 1:
            _compare_ranks(judged)
        times.sort(key=lambda time: (time.state is not State.SLOW, -(time.ratio or 0.0), time.rank))
        ranks = {time.rank for time in times}
        runs.append(RunTimes(folder, number, times, sorted(missing_ranks(Path(folder), ranks))))
    return runs
