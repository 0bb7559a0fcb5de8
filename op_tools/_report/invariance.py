"""OpInvariance's rows: invariance.jsonl, a row for each result whose bits a relation should have kept"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._base.verdict import verdict_of
from .part import Column, FindingsOf, Mark, Origin, Part, Table, integer_of, number_of, short, text_of
from .replay_commands import commands_of_findings

FILE = "invariance.jsonl"
_COLUMNS = (
    Column("relation", is_choice=True),
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("max ULP", is_number=True),
    Column("max abs", is_number=True),
    Column("elements", is_number=True),
    Column("of", is_number=True),
    Column("bits"),
    Column("by float64", is_choice=True),
    Column("device", is_choice=True),
    Column("line"),
)


def _why(row: Mapping[str, Any]) -> str:
    """The relation, and the size of the difference."""
    if structure := text_of(row, "structure"):
        return f"{text_of(row, 'relation')}: {structure}"
    of = f"{integer_of(row, 'elements') or 0:,} of {integer_of(row, 'numel') or 0:,} elements"
    once = "; a single run of all" if row.get("transient") is True else ""
    return f"{text_of(row, 'relation')}: other bits in {of}{once}; float64 says: {text_of(row, 'right')}"


def _saved(row: Mapping[str, Any], origin: Origin) -> str:
    """The folder of a saved call. Rows name it from the folder in which the program ran."""
    saved = text_of(row, "saved")
    return str(Path(origin.folder, *Path(saved).parts[-3:])) if saved and origin.folder else ""


def part_of_rows(rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    """The part of a run of OpInvariance."""
    part = Part("OpInvariance", origin)
    table = Table("Results with other bits", _COLUMNS)
    findings = FindingsOf(part, "ULP")
    counts: Counter[str] = Counter()
    for row in rows:
        relation = text_of(row, "relation")
        counts[relation] += 1
        for place in part.place(text_of(row, "module"), text_of(row, "line")):
            place.calls += 1
            place.wrong += 1
        worst, saved = number_of(row, "max_ulp"), _saved(row, origin)
        findings.add(Mark.WRONG, row, text=_why(row), worst=worst, apart=relation, saved=saved)
        table.add(
            (
                relation,
                *(text_of(row, name) for name in ("op", "phase", "module")),
                *(integer_of(row, name) for name in ("step", "id")),
                *(short(number_of(row, name)) for name in ("max_ulp", "max_abs")),
                *(integer_of(row, name) for name in ("elements", "numel")),
                *(text_of(row, name) for name in ("bits", "right", "device", "line")),
            ),
            is_wrong=True,
        )
    part.tables.append(table)
    part.facts = [(name, f"{count:,}") for name, count in counts.most_common()] or [("results with other bits", "0")]
    children = origin.account.children_wrong if origin.account else 0
    part.verdict = verdict_of(wrong=table.total + children > 0, unseen=bool(origin.reasons))
    part.commands = commands_of_findings(part.findings, origin.account, of_bits=True)
    part.cannot_tell = [
        "OpInvariance: whether results that keep their bits are right; OpAutoCompare judges that.",
    ]
    return part
