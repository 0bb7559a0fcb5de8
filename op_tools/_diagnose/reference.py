"""Where does the program part from a run that is right?"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._base.own_command import op_tools_line, op_tools_words
from .._bisect.outcome import Metric, read_reference
from .._report.part import number_of, text_of
from .._tools.record import holds_recordings
from .answer import Cause, Culprit, culprit_at
from .program import as_program
from .runs import Run
from .session import RECORDED, Plan, Session


def _write_losses(session: Session, numbers: Sequence[float]) -> None:
    if numbers and all(map(math.isfinite, numbers)):
        (session.plan.folder / "reference_losses.json").write_text(json.dumps(list(numbers)), encoding="utf-8")


def losses_file(session: Session) -> str:
    """A file of right numbers; "" for none."""
    if reference_losses(session.plan):
        return session.plan.reference
    file = session.plan.folder / "reference_losses.json"
    return str(file) if file.is_file() else ""


def reference_losses(plan: Plan) -> list[float]:
    """The numbers of a reference that is a file of losses; empty where it is none.

    Raises:
        op_tools.Error: the file holds no numbers.
    """
    path = Path(plan.reference)
    if not plan.reference or holds_recordings(path) or path.suffix == ".py" or not path.is_file():
        return []
    return read_reference(plan.reference, Metric())


def _recorded(session: Session, name: str, command: str | None) -> tuple[Path, Run]:
    folder = session.folder(name)
    options = ["--record", "--record-output-dir", str(folder / "recording"), *session.steps_option("record")]
    program = as_program(command) if command else None
    seconds = session.seconds_of_steps(session.plan.steps, RECORDED)
    run = session.with_tools(name, options, seconds, enough=session.plan.steps, program=program)
    return folder / "recording", run


def _first_divergence(file: Path) -> tuple[dict[str, Any] | None, str]:
    """The record of the first divergence, and the verdict of the comparison."""
    first, verdict = None, ""
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("kind") == "first_divergence":
            first = first or record
        if record.get("kind") == "summary":
            verdict = str(record.get("verdict"))
    return first, verdict


def ask_reference(session: Session) -> list[Culprit]:
    reference = Path(session.plan.reference)
    if not holds_recordings(reference):
        reference, run = _recorded(session, "reference", session.plan.reference)
        metric = Metric()
        numbers = [number for line in run.output.splitlines() for number in metric.numbers(line)]
        _write_losses(session, numbers)
    recording, _ = _recorded(session, "recorded", None)
    file = session.folder("comparison.jsonl")
    words = ["compare", str(reference), str(recording), "--json", str(file)]
    session.op_tools("compare", words)
    if not file.is_file():
        session.gap("the recordings could not be compared")
        return []
    first, verdict = _first_divergence(file)
    if first is None:
        if verdict != "agrees":
            session.gap("the comparison of the recordings: not judged")
        return []
    culprit = replace(
        culprit_at(Cause.NOT_KNOWN, first, text_of(first, "finding")),
        rank=text_of(first, "rank") if session.facts.ranks > 1 else "",
        step=int(number_of(first, "step") or 0),
    )
    return _judged_culprits(session, culprit, reference, recording)


def _judged_culprits(session: Session, culprit: Culprit, reference: Path, recording: Path) -> list[Culprit]:
    """Captures the calls around the first divergence in both programs, and judges each."""
    listed = session.op_tools("next", ["compare", str(reference), str(recording), "--next"])
    starts = ("env ", op_tools_line("compare"), op_tools_line("run"))
    commands = [shlex.split(line) for line in listed.output.splitlines() if line.strip().startswith(starts)]
    captures = [words for words in commands if "--confirm" not in words]
    confirm = next((words for words in commands if words not in captures), [])
    if len(captures) != 2 or not confirm or session.facts.ranks > 1:
        session.gap("the first call that differs was not judged by values")
        return [culprit]
    for number, words in enumerate(captures, 1):
        session.command(f"capture_{number}", words)
    file = session.folder("confirmed.jsonl")
    session.op_tools("confirm", [*confirm[len(op_tools_words()) :], "--json", str(file)])
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []
    rows = [row for row in rows if row.get("kind") == "confirmed"]
    at = [row for row in rows if row["op"] == culprit.op] or rows
    if not at:
        session.gap("the first call that differs was not captured in both programs")
        return [culprit]
    # Of calls of the same operator the first that differs.
    row = next((row for row in at if row["a"] == "differs" or row["b"] == "differs" or row["outputs"] != 0.0), at[-1])
    return [_cause_by_values(culprit, row)]


def _cause_by_values(culprit: Culprit, row: dict[str, Any]) -> Culprit:
    """The cause, of a call that was captured in both programs and run again."""
    saved = str(row["path_b"])
    if row["b"] == "differs":
        return replace(culprit, cause=Cause.WRONG_OPERATOR, saved=saved, certain=True)
    if row["a"] == "differs":
        reason = "the reference's own operator is wrong"
        return replace(culprit, cause=Cause.NOT_KNOWN, reason=reason, saved=str(row["path_a"]))
    if row["random"]:
        # Its inputs agree, as the recordings say; memory that it fills may differ.
        return replace(culprit, cause=Cause.RANDOM_NUMBERS, saved=saved, certain=True)
    if not row["tensors"]:
        return replace(culprit, cause=Cause.DATA, saved=saved, certain=True)
    if row["inputs"] != 0.0:
        reason = "it is right, and its input differs, which no operator made that both programs call"
        return replace(culprit, cause=Cause.DATA, reason=reason, saved=saved, certain=True)
    if row["arguments"]:
        return replace(culprit, cause=Cause.PROGRAM_DIFFERS, reason=str(row["arguments"]), saved=saved, certain=True)
    return replace(culprit, reason="it is right in both programs: rounding", saved=saved)
