"""OpOverflowCheck's rows: overflow.jsonl"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.verdict import verdict_of
from .part import (
    Column,
    FindingsOf,
    Mark,
    Origin,
    Part,
    Table,
    dtype_of,
    integer_of,
    number_of,
    sizes_of,
    text_of,
    unknown_words,
)
from .replay_commands import commands_of_findings
from .row_files import rows_of

FILE = "overflow.jsonl"
SUMMARY_FILE = "summary.jsonl"
_COLUMNS = (
    Column("kind", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("NaN", is_number=True),
    Column("inf", is_number=True),
    Column("-inf", is_number=True),
    Column("dtype", is_choice=True),
    Column("shape"),
    Column("line"),
)
PASSED_ON = "was given NaN or infinities, and passed them on"
_TEXTS = {
    "producer": "made NaN or infinities from finite inputs",
    "propagator": PASSED_ON,
}


_KINDS = (*_TEXTS, "expected")


def part_of_folder(folder: Path, origin: Origin) -> Part:
    """The part of a run's folder.

    Raises:
        op_tools.Error: a file cannot be read.
    """
    summary = rows_of(folder / SUMMARY_FILE, origin, is_needed=False)
    came_in = sum(integer_of(row, "came_in") or 0 for row in summary)
    return part_of_rows(rows_of(folder / FILE, origin), origin, came_in)


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin, came_in: int = 0) -> Part:
    """The part of a run of OpOverflowCheck. `came_in`: tensors with NaN or infinities that no call seen there made."""
    part = Part("OpOverflowCheck", origin)
    table = Table("NaN and infinities", _COLUMNS)
    findings = FindingsOf(part, "elements")
    counts: Counter[str] = Counter()
    for row in rows:
        kind = text_of(row, "kind")
        is_expected = row.get("expected") is True
        is_wrong = kind == "producer" and not is_expected
        counts["expected" if is_expected and kind in _TEXTS else kind] += 1
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += 1
            place.wrong += is_wrong
        text = f"{_TEXTS.get(kind, kind)}{', as a gradient scaler expects' if is_expected else ''}"
        elements = [number_of(row, name) for name in ("nan", "pos_inf", "neg_inf")]
        worst = sum(count for count in elements if count is not None) if any(elements) else None
        saved = text_of(row, "saved")
        saved = str(Path(origin.folder, *Path(saved).parts[-2:])) if saved and origin.folder else ""
        mark = Mark.WRONG if is_wrong else Mark.NOTE
        findings.add(mark, row, text=text, worst=worst, saved=saved, apart=text)
        table.add(
            (
                kind,
                text_of(row, "op"),
                text_of(row, "phase"),
                text_of(row, "module"),
                integer_of(row, "step"),
                integer_of(row, "id"),
                *(integer_of(row, name) for name in ("nan", "pos_inf", "neg_inf")),
                dtype_of(row),
                sizes_of(row, "shape"),
                text_of(row, "line"),
            ),
            is_wrong=is_wrong,
        )
    part.tables.append(table)
    part.facts = [(f"{name}s" if name != "expected" else name, f"{count:,}") for name, count in counts.items()]
    origin.gaps += unknown_words("kind", {kind: count for kind, count in counts.items() if kind not in _KINDS})
    wrong = counts["producer"] + (origin.account.children_wrong if origin.account else 0)
    if came_in or (counts["propagator"] and not counts["producer"]):
        origin.gaps.append("tensors had NaN or infinities that no call seen here made")
    part.verdict = verdict_of(wrong=wrong > 0, unseen=bool(origin.reasons))
    part.commands = commands_of_findings(part.findings, origin.account)
    part.cannot_tell = ["OpOverflowCheck: finite values may be wrong; it compares no values."]
    return part
