"""Rows with a verdict, of tools that are written in Python: compare_modules and OpShadow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .._base.result_rows import SUMMARY
from .._base.verdict import Verdict, verdict_of
from .._modules.compare_modules import FILE as MODULES_FILE
from .._runs.shadow import FILE as SHADOW_FILE
from . import plain_rows
from .part import Mark, Origin, Part, dtype_of, number_of, origin_of
from .replay_commands import commands_of_findings
from .row_files import is_own_file, json_rows
from .ulp import UlpHistograms

_TOOLS = {MODULES_FILE: "compare_modules", SHADOW_FILE: "OpShadow"}
_CANNOT_TELL = {
    MODULES_FILE: "compare_modules: modules that did not run on these inputs, and the operator inside of a module.",
    SHADOW_FILE: "OpShadow: operators that the captured run did not call, and gradients at the torch level.",
}


def part_of_folder(folder: Path, origin: Origin | None = None) -> Part | None:
    """The part of a folder that has the file of either; None where it has none.

    Raises:
        op_tools.Error: the file cannot be read.
    """
    name = next((name for name in _TOOLS if is_own_file(folder / name)), None)
    if name is None:
        return None
    if origin is None:  # compare_modules runs the model itself, and has no account
        rank = folder.parent.name
        origin = origin_of(folder) if name == SHADOW_FILE else Origin(str(folder), rank if rank.isdecimal() else "")
    return _part_of_rows(name, json_rows(folder / name, origin), origin)


def _part_of_rows(name: str, rows: Iterable[Mapping[str, Any]], origin: Origin) -> Part:
    summaries: list[Mapping[str, Any]] = []
    errors = UlpHistograms()

    def without_summary() -> Iterator[Mapping[str, Any]]:
        for row in rows:
            if isinstance(summary := row.get(SUMMARY), dict):
                summaries.append(summary)
                continue
            errors.add(dtype_of(row), number_of(row, "max_ulp"), plain_rows.mark_of(row) or Mark.NOTE)
            yield row

    part = plain_rows.part_of_rows(_TOOLS[name], without_summary(), origin, None)
    part.shares = list(errors.pictures())
    summary = summaries[-1] if summaries else {"unseen": [f"{_TOOLS[name]} did not end: its rows may be incomplete"]}
    unseen = summary.get("unseen")
    origin.gaps += map(str, unseen) if isinstance(unseen, list) else []
    wrong = any(finding.mark is Mark.WRONG for finding in part.findings) or summary.get("verdict") == Verdict.DIFFERS
    part.verdict = verdict_of(wrong=wrong, unseen=bool(origin.reasons) or summary.get("verdict") != Verdict.AGREES)
    part.commands = commands_of_findings(part.findings, origin.account)
    part.cannot_tell = [_CANNOT_TELL[name]]
    return part
