"""op-tools show: the content of a folder of results, or a captured call in full."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .._base.captured_calls import call_folder, load_call
from .._base.core import Error, find_calls, text_table
from .._base.own_command import replay_line
from .._commands.command_line import visible
from .._report.captures import TOOL as CAPTURES
from .._report.scan import holds_more_than_recordings, parts_below
from .._report.text import text_of_parts
from .._report.time_by_rank import with_ranks_in_time
from .._tools.record import holds_recordings, show_recordings

_INPUT = "input.pth"


@dataclass
class _Op:
    """The captured calls of an operator."""

    calls: int = 0
    backward: int = 0
    failed: int = 0
    bytes: int = 0
    signatures: set[str] = field(default_factory=set)


def _meta(text: str, where: str) -> dict[str, Any]:
    try:
        meta = json.loads(text)
    except ValueError as error:
        raise Error(f"{where}: is damaged ({error}); move the call's folder away to see the others") from None
    return meta if isinstance(meta, dict) else {}


def _why_empty(path: Path) -> str:
    if path.is_dir() and not any(path.iterdir()):
        return f"{path}: is empty, there are no captured calls here; op-tools doctor says why that may be"
    return f"{path}: there are no captured calls here; a call's folder has a file {_INPUT}"


def _tensor(facts: dict[str, Any]) -> str:
    dtype = str(facts["dtype"]).removeprefix("torch.")
    return f"{dtype}[{', '.join(str(size) for size in facts['shape'])}]"


def _signature(meta: dict[str, Any]) -> str:
    return " ".join(_tensor(facts) for facts in meta.get("inputs", []))


def table(path: Path) -> str:
    """The calls below a folder, or in a container, by operator; most bytes first.

    Raises:
        op_tools.Error: when there is none, or a container cannot be read.
    """
    calls, problems, shared = find_calls(os.fsencode(path))
    ops: dict[str, _Op] = {}
    incomplete = 0
    for where, text, size, passes in calls:
        meta = _meta(text, f"{where}/meta.json") if text is not None else {}
        op = ops.setdefault(meta.get("name") or Path(where.replace("!", "/")).parent.name, _Op())
        op.calls += 1
        op.backward += passes
        # op_tools writes meta.json last; ditorch, whose folders end with a time, has none.
        incomplete += text is None and Path(where).name.isdecimal()
        op.failed += bool(meta.get("error"))
        op.bytes += size
        op.signatures.add(_signature(meta))
    if not ops:
        raise Error("\n".join(problems) or _why_empty(path))
    rows = sorted(ops.items(), key=lambda item: -item[1].bytes)
    text = text_table(
        [("op", False), ("calls", True), ("backward", True), ("failed", True), ("signatures", True), ("MB", True)],
        [
            [name, str(op.calls), str(op.backward), str(op.failed), str(len(op.signatures)), f"{op.bytes / 1e6:.3f}"]
            for name, op in rows
        ],
        120,
    )
    total = sum(op.bytes for op in ops.values())
    beside = f" and {shared / 1e6:.1f} MB of tensors that they share" if shared else ""
    count = sum(op.calls for op in ops.values())
    cut = f"; {incomplete} of them incomplete: their program ended while it wrote them" if incomplete else ""
    return "\n".join([text, f"{count} calls of {len(ops)} ops, {total / 1e6:.1f} MB{beside}{cut}", *problems])


def _value(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return text if len(text) <= 100 else text[:97] + "..."
    text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} stride {list(value.stride())}"
    if value.numel() and (value.dtype.is_floating_point or value.dtype in (torch.int32, torch.int64)):
        wide = value.detach().double()
        text += f"  min {wide.min():.6g}  max {wide.max():.6g}  mean {wide.mean():.6g}"
        odd = value.numel() - int(torch.isfinite(wide).sum())
        text += f"  not finite: {odd}" if odd else ""
    return text


def call(folder: str) -> str:
    """A captured call in full.

    Raises:
        op_tools.Error: when a file of it is damaged.
    """
    saved = load_call(folder)
    meta = saved.meta
    lines = [saved.name]

    def say(what: str, text: object) -> None:
        lines.append(f"  {what:<12} {text}")

    for key in ("schema", "aten", "error", "level", "id", "step", "rank", "torch"):
        if meta.get(key) not in (None, ""):
            say(key, meta[key])
    if "model" in meta:
        say("module", f"{meta['module'] or '(the model itself)'} of {meta['model']}")
    state = meta.get("state", {})
    if state:
        say("grad mode", "on" if state.get("grad_enabled") else "off")
    for device, dtype in state.get("autocast", {}).items():
        say("autocast", f"{device}: {dtype}")
    if meta.get("rng_consumed"):
        say("random", "the call drew random numbers; the state is saved")
    for line in meta.get("stack", []):
        say("called from", line)
    for note in meta.get("unsupported", []):
        say("not saved", f"{note['where']}: {note['type']}: {note['why']}")
    groups: list[tuple[str, Any]] = [(f"args[{i}]", value) for i, value in enumerate(saved.args)]
    groups += list(saved.kwargs.items())
    results = saved.result if isinstance(saved.result, (tuple, list)) else (saved.result,)
    groups += [("result" if len(results) == 1 else f"result[{i}]", value) for i, value in enumerate(results)]
    groups += [(f"grad of output {i}", value) for i, value in enumerate(saved.grad_outputs or ())]
    groups += [(f"grad of input {i}", value) for i, value in enumerate(saved.grad_inputs or ())]
    lines += [f"  {name:<18} {_value(value)}" for name, value in groups]
    lines.append(f"run it again: {replay_line(str(folder), '--acc_check')}")
    return "\n".join(lines)


def show(path: str) -> str:
    """A call when the path is a call's (or a file of it), the tables of recordings or of captured calls where there is nothing else
    below, and else the text of a report.

    Args:
        path: a folder, a container calls.zip, or a call in a container: calls.zip!OP/ID.

    Raises:
        op_tools.Error: when the path does not exist, or holds no captured calls.
    """
    container, bang, _ = path.partition("!")
    if bang and Path(container).is_file():
        return call(path)
    place = Path(call_folder(path))
    if not place.exists():
        raise Error(f"{path}: there is no such folder")
    if holds_recordings(place) and not (place.is_dir() and holds_more_than_recordings(place)):
        return show_recordings(place)
    if place.is_dir() and (parts := parts_below(place)) and not all(part.tool == CAPTURES for part in parts):
        return text_of_parts(with_ranks_in_time(parts))
    if place.is_file() and place.suffix in (".pth", ".json") and (place.parent / _INPUT).exists():
        place = place.parent
    return call(str(place)) if (place / _INPUT).exists() else table(place)


def run_command(options: argparse.Namespace) -> int:
    sys.stdout.write(visible(show(options.folder)) + "\n")
    return 0
