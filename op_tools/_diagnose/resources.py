"""Does memory grow, and which operator is slow?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._base.data_file import read_json
from .._base.own_command import replay_words
from .._report.part import Origin, number_of, text_of
from .._report.row_files import csv_rows
from .answer import Cause, Culprit, culprit_at
from .session import RECORDED, SYNCHRONOUS, Session, culprits_of_findings, parts_of, wrong_findings

TIMED_STEPS, MEMORY_STEPS = 6, 32
_FEWEST_MEMORY_STEPS = 8
_GROWTH = 1e-3  # of the peak, per step: memory that grows less does not end a program
_SLOW_SHARE, _SLOW_RATIO, _SLOW_MS = 0.25, 10.0, 0.5


def ask_memory(session: Session) -> list[Culprit]:
    seconds = session.seconds_of_steps(MEMORY_STEPS, SYNCHRONOUS)
    run = session.with_tools("memory", ["--memory"], seconds, enough=MEMORY_STEPS)
    parts = parts_of(session, Path(run.folder), "OpMemoryCheck")
    if run.steps < _FEWEST_MEMORY_STEPS:
        session.gap(f"{run.steps} training steps: whether memory grows is known from {_FEWEST_MEMORY_STEPS} on")
        return []
    culprits = []
    for part in parts:
        peak = sum(size for _, size, _ in part.bars)
        grows = [finding for finding in wrong_findings([part]) if finding.unit == "B/step"]
        for finding in sorted(grows, key=lambda finding: -(finding.worst or 0)):
            share = (finding.worst or 0.0) / peak if peak else 0.0
            if share < _GROWTH:
                continue  # a list of losses
            reason = f"{finding.text}, by {finding.worst or 0:.0f} bytes in each step"
            culprits += [
                replace(culprit, reason=reason, certain=True)
                for culprit in culprits_of_findings([part], [finding], Cause.MEMORY_GROWS)
            ]
    return culprits[:1] + [culprit for culprit in culprits[1:] if culprit.line != culprits[0].line]


def ask_time(session: Session) -> list[Culprit]:
    options = ["--time", "--time-mode", "sync", "--time-level", "aten", "--no-time-lines"]
    options += ["--time-with-stack", "--time-with-modules"]
    seconds = session.seconds_of_steps(TIMED_STEPS, SYNCHRONOUS)
    run = session.with_tools("time", options, seconds, enough=TIMED_STEPS)
    rows = [
        row
        for file in sorted(Path(run.folder).rglob("summary.csv"))
        for row in csv_rows(file, Origin())
        if _on_device(row)
    ]
    if not rows:
        session.gap("no operator was timed on the device")
        return []
    by_op: dict[str, float] = {}
    for row in rows:
        calls = number_of(row, "calls") or 0.0
        typical = (number_of(row, "p50_ms") or 0.0) * calls  # the first call of each kind prepares
        by_op[text_of(row, "op")] = by_op.get(text_of(row, "op"), 0.0) + min(typical, number_of(row, "self_ms") or 0.0)
    total = sum(by_op.values())
    worst = [op for op, ms in sorted(by_op.items(), key=lambda item: -item[1]) if total and ms / total >= _SLOW_SHARE]
    slow = []
    for number, op in enumerate(worst, 1):
        if (ratio := _against_cpu(session, op, number)) is not None:
            most = max(
                (row for row in rows if text_of(row, "op") == op), key=lambda row: number_of(row, "self_ms") or 0.0
            )
            reason = f"{by_op[op] / total:.0%} of the operators' time; {ratio:.0f} times as long as on the CPU"
            slow.append(replace(culprit_at(Cause.SLOW_OPERATOR, most, reason), certain=True))
    return slow


def _on_device(row: Any) -> bool:
    return not text_of(row, "device").startswith("cpu")


def _against_cpu(session: Session, op: str, number: int) -> float | None:
    """How many times longer a call of an operator takes on the device than on the CPU; None where it does not."""
    name = f"call_{number}"
    folder = session.folder(name)
    options = ["--capture", "--level", "aten", "--ops", re.escape(op).replace("\\:", ":"), "--capture-max-calls", "2"]
    session.with_tools(name, [*options, "--steps", "1"], session.seconds_of_steps(2, RECORDED), enough=2)
    times = {}
    for device in ("cpu", session.facts.device):
        file = folder / f"{device}.json"
        words = [*replay_words(), str(folder), "--run_times", "20", "--sync_time_measure", "--device", device]
        session.command(f"{name}_{device}", [*words, "--json", str(file)], seconds=300)
        if file.is_file():
            times[device] = _fastest(read_json(file))
    cpu, device_ms = times.get("cpu"), times.get(session.facts.device)
    if not cpu or not device_ms:
        session.gap(f"{op}: could not be timed by itself")
        return None
    ratio = device_ms / cpu
    return ratio if ratio >= _SLOW_RATIO and device_ms - cpu >= _SLOW_MS else None


def _fastest(report: dict[str, Any]) -> float | None:
    """The fastest run of each call, of these the longest: other work on the machine makes runs slower, never faster."""
    return max((min(times) for call in report.get("calls", []) if (times := call.get("forward_ms"))), default=None)
