"""The part of a report that compares the ranks of a run in time: sentences, and tables of ranks and operators. It gives no verdict: time
says nothing about results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from .._base.rank_text import ranks_text
from .._base.results import short_name
from .part import Column, Origin, Part, Table, short
from .rank_work import FEWEST_CALLS, TRACE_FILE, Measure
from .ranks_in_time import LEAST_RATIO, Excess, RankTime, RunTimes, State, compared

TOOL = "Time by rank"
_MOST_KINDS = 4
_MOST_RUNS = 4
_MOST_SLOW = 4  # in words
_MOST_OPS = 2  # of a slow rank, in words
_MOST = 0.9  # of a rank's time, that is compared without a word

_WHY_NOT = {
    State.OTHER_WORK: "no few other ranks have the same operators on the same shapes",
    State.FEW_CALLS: f"no operator has {FEWEST_CALLS} calls: measure more steps",
    State.ISSUED: "mode host does not measure the device",
    State.UNKNOWN: f"the mode is not known ({TRACE_FILE} is missing or damaged), and their operators ran on a device",
}
_OFTEN = {Measure.EACH: "", Measure.SOME: ", in some of its calls"}
_AT_LEAST = {Measure.EACH: "at least ", Measure.SOME: ""}  # the shortest calls are longer by so much
_CALL = {Measure.EACH: "shortest call", Measure.SOME: "mean"}
_COLUMNS = (
    Column("rank", is_number=True),
    Column("state", is_choice=True),
    Column("ratio", is_number=True),
    Column("excess ms", is_number=True),
    Column("self ms", is_number=True),
    Column("collectives ms", is_number=True),
    Column("work", is_choice=True),
    Column("peers", is_number=True),
)
_OP_COLUMNS = (
    Column("rank", is_number=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("shapes"),
    Column("calls", is_number=True),
    Column("ms of a call", is_number=True),
    Column("calls of others", is_number=True),
    Column("of others", is_number=True),
    Column("excess ms", is_number=True),
    Column("share of excess", is_number=True),
)


def _op_text(excess: Excess) -> str:
    return " ".join(
        filter(None, [short_name(excess.op), excess.phase if excess.phase == "backward" else "", excess.shapes])
    )


def _whole(time: RankTime) -> float:
    """The excess of which operators have their shares. Where others take less than usual, a few may have more than all."""
    return max(time.excess_ms, sum(row.excess_ms for row in time.slow_in))


def _causes(time: RankTime) -> str:
    if time.is_everywhere:
        return "in all operators alike"
    whole = _whole(time)
    texts = [
        f"{_op_text(row)} ({_CALL[time.measure]} {row.call_ms:.3g} ms, of others {row.peer_call_ms:.3g}; {100 * row.excess_ms / whole:.0f} % of it)"
        for row in time.slow_in[:_MOST_OPS]
    ]
    left = len(time.slow_in) - len(texts)
    return f"most in {', '.join(texts)}" + (f", and {left} more" if left else "")


def _sentence(time: RankTime) -> str:
    return (
        f"rank {time.rank} is slow{_OFTEN[time.measure]}: {time.ratio:.2f} times the time of {time.peers} ranks with the same work,"
        f" {_AT_LEAST[time.measure]}{time.excess_ms:,.0f} ms more, {_causes(time)}"
    )


def _sentences(run: RunTimes) -> Iterator[str]:
    slow = run.slow
    if len(slow) > _MOST_SLOW:
        yield f"{len(slow)} ranks are slow: {ranks_text(time.rank for time in slow)}"
    for time in slow[:_MOST_SLOW]:
        yield _sentence(time)
    of_two = next((time for time in run.times if time.state is State.OF_TWO), None)
    if of_two is not None and of_two.ratio is not None:
        other = next(time.rank for time in run.times if time is not of_two)
        more = f", {of_two.excess_ms:,.0f} ms more, {_causes(of_two)}" if of_two.slow_in else ""
        yield f"rank {of_two.rank} takes {of_two.ratio:.2f} times the time of rank {other}{more}; which of two ranks is usual nobody knows"
    for time in [time for time in run.times if time.more_calls][:_MOST_SLOW]:
        for row in time.more_calls[:_MOST_OPS]:
            often = (
                f"{row.calls / row.peer_calls:.1f} times as many calls of"
                if row.peer_calls
                else "calls that others do not make:"
            )
            counts = f"{row.calls:,}, others {row.peer_calls:,.0f}" if row.peer_calls else f"{row.calls:,}"
            yield f"rank {time.rank} has more work: {often} {_op_text(row)} ({counts}), {row.excess_ms:,.0f} ms"
    usual = [time for time in run.times if time.state is State.USUAL]
    if usual and not slow:
        first = usual[0]
        yield f"no rank of {len(usual)} is slow: rank {first.rank} takes longest, {first.ratio:.2f} times the time of its peers; from {first.limit:.2f} times on it would be slow"


def _text_by_kind(run: RunTimes) -> list[str]:
    """Ranks with more work of their own make the others wait, too."""
    by_kind: dict[int, list[RankTime]] = defaultdict(list)
    for time in run.times:
        by_kind[time.kind].append(time)
    return [
        f"work {kind}: {ranks_text(time.rank for time in of_kind)}, {median(time.work.self_ms for time in of_kind):,.0f} ms"
        for kind, of_kind in sorted(by_kind.items())
        if kind
    ]


def _part_of(run: RunTimes, later: int) -> Part:
    origin = Origin(run.folder)
    for state, why in _WHY_NOT.items():
        if of_state := [time.rank for time in run.times if time.state is state]:
            origin.gaps.append(f"{ranks_text(of_state)}: not judged: {why}")
    if partly := [
        time.rank for time in run.times if time.state in (State.USUAL, State.SLOW, State.OF_TWO) and time.share < _MOST
    ]:
        origin.gaps.append(f"{ranks_text(partly)}: a part of the time is not compared: {_WHY_NOT[State.OTHER_WORK]}")
    if run.missing:
        origin.gaps.append(f"{ranks_text(run.missing)}: no times here")
    part = Part(TOOL, origin)
    kinds = _text_by_kind(run)
    part.facts = [("ranks", f"{len(run.times):,}")]
    part.facts += [("kinds of work", f"{len(kinds):,}")] if len(kinds) > 1 else []
    part.facts += [("run", f"{run.number:,} of {run.number + later:,}")] if later or run.number > 1 else []
    part.text = "\n".join([*_sentences(run), *(kinds[:_MOST_KINDS] if len(kinds) > 1 else [])])
    table, ops = Table(TOOL, _COLUMNS), Table("Operators in which ranks are slow", _OP_COLUMNS)
    for time in run.times:
        numbers = (
            short(value)
            for value in (time.ratio, time.excess_ms if time.ratio else None, time.work.self_ms, time.work.waits_ms)
        )
        table.add((time.rank, time.state.value, *numbers, str(time.kind or ""), time.peers or None))
        for row in time.slow_in:
            names = row.op, row.phase, row.shapes
            means = row.calls, short(row.call_ms), row.peer_calls, short(row.peer_call_ms)
            ops.add((time.rank, *names, *means, short(row.excess_ms), short(row.excess_ms / _whole(time))))
    part.tables = [table, *([ops] if ops.total else [])]
    part.cannot_tell = [
        f"{TOOL}: a rank that is as slow as most of its peers, or by less than {LEAST_RATIO} times, is not named; docs/timing.md has the rule."
    ]
    return part


def with_ranks_in_time(parts: Sequence[Part]) -> list[Part]:
    """The parts, and in front of them that of the times by rank of each run: of many runs those with a slow rank, and the last."""
    runs = compared(parts)
    last = {run.folder: run.number for run in runs}
    shown = [run for run in runs if run.slow or run.number == last[run.folder]][-_MOST_RUNS:]
    return [*(_part_of(run, last[run.folder] - run.number) for run in shown), *parts]
