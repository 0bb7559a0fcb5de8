"""Captured calls: a folder per call, or a container calls.zip"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .._base.core import Error, find_calls
from .._base.own_command import replay_line
from .part import (
    Column,
    Command,
    FindingsOf,
    Mark,
    Origin,
    Part,
    Table,
    bytes_text,
    dtype_of,
    integer_of,
    sizes_of,
    text_of,
)

TOOL = "OpCapture"
CONTAINER = "calls.zip"
_COLUMNS = (
    Column("op", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("inputs"),
    Column("MB", is_number=True),
    Column("backward", is_number=True),
    Column("error", is_choice=True),
    Column("line"),
    Column("folder"),
)


def _tensors_text(meta: dict[str, Any]) -> str:
    inputs = meta.get("inputs")
    tensors = [facts for facts in inputs if isinstance(facts, dict)] if isinstance(inputs, list) else []
    return " ".join(f"{dtype_of(facts)}[{sizes_of(facts, 'shape')}]" for facts in tensors)


def _module(meta: dict[str, Any]) -> str:
    """With the class of the outermost module in front, as the other tools write it."""
    return ".".join(filter(None, [text_of(meta, "model"), text_of(meta, "module")]))


def _meta_of_call(text: str | None) -> dict[str, Any] | None:
    """None: the call has none, or it is damaged."""
    try:
        meta = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) else None


def part_of_folder(folder: Path, origin: Origin) -> Part:
    """The part of a folder of captured calls.

    Raises:
        op_tools.Error: there is none that can be read.
    """
    calls, problems, shared = find_calls(os.fsencode(folder))
    if not calls:
        raise Error("\n".join(problems) or f"{folder}: there are no captured calls here")
    origin.gaps += problems
    part = Part(TOOL, origin)
    table = Table("Captured calls", _COLUMNS)
    findings = FindingsOf(part)
    total = shared
    for where, text, size, passes in calls:
        meta = _meta_of_call(text)
        place_of_call = where.replace("!", "/")
        name = text_of(meta or {}, "name") or Path(place_of_call).parent.name
        stack = (meta or {}).get("stack")
        line = str(stack[0]) if isinstance(stack, list) and stack else ""
        row = {**(meta or {}), "op": name, "phase": "forward", "line": line, "module": _module(meta or {})}
        error = text_of(row, "error")
        total += size
        for place in part.place(text_of(row, "module"), line):
            place.calls += 1
        if error:
            findings.add(Mark.NOTE, row, text=f"raised: {error}")
        if meta is None and Path(place_of_call).name.isdecimal():
            findings.add(Mark.NOT_JUDGED, row, text="not complete: the program ended while it wrote the call")
        table.add(
            (
                name,
                text_of(row, "module"),
                integer_of(row, "step"),
                integer_of(row, "id"),
                _tensors_text(row),
                round(size / 1e6, 6),
                passes,
                error,
                line,
                where,
            ),
            is_wrong=bool(error),
        )
    part.tables.append(table)
    part.facts = [("calls", f"{len(calls):,}"), ("of files", bytes_text(total))]
    part.commands = [Command("run the calls again, and compare", replay_line(str(folder), "--acc_check"))]
    part.cannot_tell = ["OpCapture: whether the saved results are right; run the calls again to see it."]
    return part
