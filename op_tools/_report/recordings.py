"""Recordings of OpRecord: *.oprec"""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

from .._base.account import ACCOUNT, coverage_from
from .._base.core import Error
from .._tools.record import read_recording
from .part import Column, FindingsOf, Mark, Origin, Part, Table, dtype_of, short, sizes_of, text_of

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


def part_of_file(file: Path, origin: Origin) -> Part:
    """The part of a recording. It gives no verdict by itself.

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
    table = Table(f"Calls of {file.name}", _COLUMNS)
    findings = FindingsOf(part)
    for call in recording.calls:
        for place in part.place(call.module, call.line):
            place.calls += 1
        row = {"op": call.op, "phase": call.phase, "module": call.module, "step": call.step, "line": call.line}
        if call.error:
            findings.add(Mark.NOTE, row, text=f"raised: {call.error}")
        tensor = call.outputs[0][1] if call.outputs else None
        known = tensor is not None and tensor.known
        table.add(
            (
                *(call.op, call.phase, call.module, call.step, call.id),
                dtype_of({"dtype": tensor.dtype}) if tensor else "",
                sizes_of({"shape": list(tensor.shape)}, "shape") if tensor else "",
                short(tensor.norm) if tensor and known else None,
                tensor.nan if tensor and known else None,
                tensor.inf if tensor and known else None,
                *(call.error, call.line),
            ),
            is_wrong=bool(call.error),
        )
    part.tables.append(table)
    argv = header.get("argv")
    program = shlex.join(map(str, argv)) if isinstance(argv, list) else ""
    facts = [("program", program), *((name, str(header.get(name, ""))) for name in ("torch", "git", "level"))]
    part.facts = [("calls", f"{len(recording.calls):,}"), *((name, text) for name, text in facts if text)]
    part.cannot_tell = ["OpRecord: whether a result is right; a second recording to compare with says where they part."]
    return part
