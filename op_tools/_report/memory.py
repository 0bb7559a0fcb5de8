"""OpMemoryCheck's rows: memory.jsonl, leaks.jsonl, overwrites.jsonl"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .._base.verdict import verdict_of
from .part import (
    Column,
    Curve,
    FindingsOf,
    Mark,
    Origin,
    Part,
    Series,
    Table,
    bytes_text,
    integer_of,
    number_of,
    short,
    text_of,
    unknown_words,
)

FILE = "memory.jsonl"
LEAKS_FILE = "leaks.jsonl"
OVERWRITES_FILE = "overwrites.jsonl"
_COLUMNS = (
    Column("leaks", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("kind", is_choice=True),
    Column("device", is_choice=True),
    Column("alive", is_number=True),
    Column("alive bytes", is_number=True),
    Column("peak bytes", is_number=True),
    Column("B/step", is_number=True),
    Column("allocations", is_number=True),
    Column("line"),
)


_GROWS = "grows with the steps"
_MOST_HOLDERS, _MOST_KINDS = 4, 3  # leaks, and kinds of other memory, with an area of their own


class _OverSteps:
    """Bytes at the ends of steps by who holds them: each leak, and the kinds of all other memory."""

    def __init__(self) -> None:
        self._leaks: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._kinds: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, row: Mapping[str, Any], *, holder: str, leaks: bool) -> None:
        """A place, with its figures at the ends of steps; a row of an older version has none."""
        figures, distance = row.get("bytes_at_steps"), integer_of(row, "step_distance") or 1
        if not isinstance(figures, list):
            return
        device = text_of(row, "device")
        name = f"{text_of(row, 'op')}, {text_of(row, 'line')}" + (f", held by {holder}" if holder else "")
        areas = self._leaks[f"{name} ({device})"] if leaks else self._kinds[f"{text_of(row, 'kind')} on {device}"]
        for number, size in enumerate(figures, 1):
            areas[distance * number] += size if isinstance(size, int) and not isinstance(size, bool) else 0

    def curves(self) -> list[Curve]:
        """A picture, where two steps ended at least."""
        leaks = sorted(self._leaks.items(), key=lambda item: -max(item[1].values(), default=0))
        for _, figures in leaks[_MOST_HOLDERS:]:
            for step, size in figures.items():
                self._kinds["other places that grow"][step] += size
        kinds = sorted(self._kinds.items(), key=lambda item: -max(item[1].values(), default=0))
        others: dict[int, int] = defaultdict(int)
        for _, figures in kinds[_MOST_KINDS:]:
            for step, size in figures.items():
                others[step] += size
        shown = [*kinds[:_MOST_KINDS], ("all other memory", others), *leaks[:_MOST_HOLDERS]]
        areas = [(name, figures) for name, figures in shown if any(figures.values())]
        steps = sorted({step for _, figures in areas for step in figures})
        if len(steps) < 2:
            return []
        series = (Series(name, tuple((step, float(figures[step])) for step in steps)) for name, figures in areas)
        return [Curve("Memory over the steps, and who holds it", "step", tuple(series), (), True)]


def part_of_rows(
    rows: Iterable[Mapping[str, Any]],
    origin: Origin,
    leaks: Iterable[Mapping[str, Any]] = (),
    overwrites: Iterable[Mapping[str, Any]] = (),
) -> Part:
    """The part of a run of OpMemoryCheck."""
    part = Part("OpMemoryCheck", origin)
    table = Table("Memory by place", _COLUMNS)
    growing = FindingsOf(part, "B/step")
    leaks_by_place = {(text_of(leak, "op"), text_of(leak, "module"), text_of(leak, "line")): leak for leak in leaks}
    unseen_leaks = dict(leaks_by_place)
    at_peak: Counter[str] = Counter()
    over_steps = _OverSteps()
    unknown: Counter[str] = Counter()
    for row in rows:
        is_wrong = row.get("leaks") is True
        if not isinstance(row.get("leaks"), bool):
            unknown[text_of(row, "leaks")] += 1
        key = text_of(row, "op"), text_of(row, "module"), text_of(row, "line")
        holder = text_of(leaks_by_place.get(key, {}), "held_by")
        over_steps.add(row, holder=holder, leaks=is_wrong)
        at_peak[f"{text_of(row, 'kind')} on {text_of(row, 'device')}"] += integer_of(row, "peak_bytes") or 0
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += integer_of(row, "allocations") or 0
            place.wrong += is_wrong
            place.alive_bytes += integer_of(row, "alive_bytes") or 0
        if is_wrong:
            unseen_leaks.pop(key, None)
            text = f"{_GROWS}; held by {holder}" if holder else _GROWS
            first_step = {"step": row.get("first_step")}
            growing.add(Mark.WRONG, {**row, **first_step}, text=text, worst=number_of(row, "growth"))
        table.add(
            (
                "leaks" if is_wrong else "",
                *(text_of(row, name) for name in ("op", "phase", "module", "kind", "device")),
                *(integer_of(row, name) for name in ("alive", "alive_bytes", "peak_bytes")),
                short(number_of(row, "growth")) if is_wrong else None,
                integer_of(row, "allocations"),
                text_of(row, "line"),
            ),
            is_wrong=is_wrong,
        )
    part.tables.append(table)
    for leak in unseen_leaks.values():  # its row is lost
        text = f"{_GROWS}; held by {text_of(leak, 'held_by')}"
        growing.add(Mark.WRONG, {**leak, "step": leak.get("first_step")}, text=text, worst=number_of(leak, "growth"))
        for place in part.place(text_of(leak, "module"), text_of(leak, "line")):
            place.wrong += 1
    written = FindingsOf(part, "bytes")
    for row in overwrites:
        text = (
            f"wrote {text_of(row, 'side')} a block that {text_of(row, 'made_by')} allocated, {text_of(row, 'made_at')}"
        )
        written.add(Mark.WRONG, row, text=text, worst=number_of(row, "bytes"))
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.wrong += 1
    part.curves = over_steps.curves()
    part.bars = [(kind, float(size), bytes_text(size)) for kind, size in at_peak.most_common() if size]
    part.bars_title = "Memory at the peak"
    origin.gaps += unknown_words("value of leaks", unknown)
    children = origin.account.children_wrong if origin.account else 0
    part.verdict = verdict_of(wrong=bool(part.findings or children), unseen=bool(origin.reasons))
    part.facts = [("places", f"{table.total:,}"), ("at the peak", bytes_text(sum(at_peak.values())))]
    part.cannot_tell = [
        "OpMemoryCheck: memory that libraries take past torch's allocators is not seen; writes outside of a block only with guard=True."
    ]
    return part
