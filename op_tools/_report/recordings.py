"""Recordings of OpRecord: *.oprec"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

from .._base.account import ACCOUNT, coverage_from
from .._base.core import Error
from .._tools.record import RecordedCall, read_recording
from .part import MOST_ROWS, Column, FindingsOf, Mark, Origin, Part, Table, dtype_of, short, sizes_of, text_of

_COLUMNS = (
    Column("op", is_choice=True),
    Column("phase", is_choice=True),
    Column("module", is_choice=True),
    Column("step", is_number=True),
    Column("call", is_number=True),
    Column("dtype", is_choice=True),
    Column("shape"),
    Column("norm", is_number=True),
    Column("NaN", is_number=True),
    Column("inf", is_number=True),
    Column("error", is_choice=True),
    Column("line"),
)


def _cells_of(call: RecordedCall) -> tuple[Any, ...]:
    tensor = call.outputs[0][1] if call.outputs else None
    known = tensor is not None and tensor.known
    return (
        *(call.op, call.phase, call.module, call.step, call.id),
        dtype_of({"dtype": tensor.dtype}) if tensor else "",
        sizes_of({"shape": list(tensor.shape)}, "shape") if tensor else "",
        short(tensor.norm) if tensor and known else None,
        tensor.nan if tensor and known else None,
        tensor.inf if tensor and known else None,
        *(call.error, call.line),
    )


def part_of_file(file: Path, origin: Origin, most: int = MOST_ROWS) -> Part:
    """The part of a recording. It gives no verdict by itself.

    Args:
        file: the recording.
        origin: gets its rank, command and gaps.
        most: rows of its table.

    Raises:
        op_tools.Error: it cannot be read.
    """
    recording = read_recording(file)
    header = recording.header
    origin.rank = str(header.get("rank", ""))
    origin.command, origin.working_folder = (text_of(header, name) for name in ("command", "folder"))
    if recording.damage:
        origin.gaps.append(f"{file}: is damaged, {recording.damage}")
    elif not recording.complete:
        origin.gaps.append(f"{file}: is not complete ({header.get('ended_early', '')})")
    if isinstance(facts := header.get(ACCOUNT), dict):
        with contextlib.suppress(Error, TypeError, ValueError):  # of another version
            origin.account = coverage_from(facts)
            origin.account.judged, origin.account.not_judged = 0, {}
    part = Part("OpRecord", origin)
    table = Table(f"Calls of {file.name}", _COLUMNS, most=most)
    findings = FindingsOf(part)
    calls = recording.calls
    for module, line, count in calls.counted_by_place():
        for place in part.place(module, line):
            place.calls += count
    failed = calls.failed()
    for number in failed:
        call = calls[number]
        row = {"op": call.op, "phase": call.phase, "module": call.module, "step": call.step, "line": call.line}
        findings.add(Mark.NOTE, row, text=f"raised: {call.error}")
    table.add_all(range(len(calls)), failed, lambda number: _cells_of(calls[number]))
    part.tables.append(table)
    argv = header.get("argv")
    program = shlex.join(map(str, argv)) if isinstance(argv, list) else ""
    facts = [("program", program), *((name, str(header.get(name, ""))) for name in ("torch", "git", "level"))]
    part.facts = [("calls", f"{len(recording.calls):,}"), *((name, text) for name, text in facts if text)]
    part.cannot_tell = ["OpRecord: whether a result is right; a second recording to compare with says where they part."]
    return part
