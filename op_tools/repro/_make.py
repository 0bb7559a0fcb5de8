"""From a saved call to a script that was run: which data it needs, whether it shows the failure, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from .. import _C
from .._base.verdict import Verdict, verdict_of
from ._literals import INLINE, comment
from ._saved import Saved, read
from ._script import Plan, Script, inline_elements, write
from ._trial import Ended, Judged, judge, run_script

RUNS = 3
"""Fresh processes in which a script has to show the failure."""


@dataclass
class Made:
    """A script as it was written to a file."""

    path: Path
    script: Script
    reproduced: int
    """Of RUNS fresh processes."""
    finding: str
    """What the script prints about the failure; "" if nothing is wrong."""
    output: str
    """All that its last run printed."""
    side_path: Path | None = None
    notes: list[str] = field(default_factory=list)
    is_right: bool = False
    """Its last run compared results and found nothing wrong."""

    @property
    def reproduces(self) -> bool:
        return self.reproduced == RUNS

    @property
    def verdict(self) -> Verdict:
        """`differs`: the failure was seen, if only now and then; `not judged`: the script could not be run, or compared nothing."""
        return verdict_of(wrong=self.reproduced > 0, unseen=not self.is_right)


def shown_name(saved: Saved) -> str:
    """The operator as people see it: a name in a file may hold anything."""
    return comment(saved.call.name)


def name_of(what: str) -> str:
    """A result of a row of run_op_from_data, as the scripts call it."""
    number = what.partition("th")[0]
    if what.endswith("input grad") and number.isdigit():
        return f"gradient of input {number}"
    return f"output {number}" if number.isdigit() else what


def _left_out(judged: Judged) -> dict[str, str]:
    """Results of which the judge says nothing, or says that they are right although their bits are others. Random numbers: a script
    has one number to compare with another, and the device may draw others than the CPU where it is right, too."""
    left = {}
    for row in judged.rows:
        open_ = row["verdict"] == "not comparable" or row["method"] == "statistical"
        excused = row["verdict"] == "pass" and row["reason"] and not row["bit_equal"]
        if open_ or excused:
            left[name_of(row["what"])] = comment(str(row["reason"]))
    return left


def plan_for(saved: Saved, judged: Judged, plan: Plan) -> Plan:
    """What of a call the script compares."""
    kinds = {row["kind"] for row in judged.failures}
    compared = ("shape", "dtype", *(kind for kind in ("strides", "alias") if kind in kinds))
    in_backward = any(row["what"].endswith(("input grad", "input grads")) for row in judged.failures)
    backward = bool(saved.gradients) and (in_backward or not judged.failures)
    return replace(plan, left_out=_left_out(judged), compared=compared, backward=backward)


def _is_wrong(ended: Ended, judged: Judged) -> bool:
    return (ended.status == 1 and "WRONG" in ended.out) or bool(ended.died and judged.died)


def _head(saved: Saved, plan: Plan, path: Path, finding: str, reproduced: int) -> str:
    where = (saved.call.meta.get("stack") or [""])[0]
    lines = [f"{saved.call.name} on {plan.device}: {finding or 'nothing wrong was found'}", ""]
    lines.append(
        f"Reproduces: {reproduced} of {RUNS} runs in fresh processes, torch {torch.__version__}, device {plan.device}."
    )
    lines.append(f"    python {path.name} [DEVICE]    exit status 1: wrong, 0: right, 2: nothing compared")
    if where:
        lines.append(f"The call was made at {where}.")
    if plan.data == "drawn":
        lines.append("Larger tensors are drawn: numbers with the mean, deviation and range of those in the program.")
    lines += [f"{name} is not compared: {why}" for name, why in plan.left_out.items()]
    lines += saved.notes
    lines += [
        "",
        "Which result is right: the operator also runs on the CPU, in the same dtypes and in float64. The device's error",
        "against float64 may be some times the CPU's own error plus some units of the dtype (limits(), below): that much",
        "depends on the order of rounding. What rounding the inputs changes in the result is allowed, too. Beyond that the",
        "CPU shows that the dtype can do better, so the device's result is wrong.",
    ]
    return "\n".join(lines)


def _finding(ended: Ended) -> str:
    if ended.died:
        return f"the process {ended.died}"
    lines = [line for line in ended.out.splitlines() if line.startswith("WRONG: ")]
    return comment(lines[0].removeprefix("WRONG: ")) if lines else ""


def _plans(saved: Saved, plan: Plan) -> list[Plan]:
    """In the order in which they are tried: what is inline before what is drawn before what needs a file."""
    small = inline_elements(saved) <= INLINE
    plans = [replace(plan, data="inline")] if small else [replace(plan, data="drawn"), replace(plan, data="file")]
    if saved.call.meta.get("rng_consumed") and saved.random_state is not None:
        plans.append(replace(plans[-1], restore_random=True))
    return plans + [replace(plans[-1], calls=calls) for calls in (2, 4)]


def _store(script: Script, path: Path) -> Path | None:
    """Writes script and side file."""
    try:
        path.write_text(script.text)
        side = path.with_suffix(".pth")
        if not script.side_file:
            return None
        torch.save(script.side_file, side)
    except OSError as error:
        raise _C.Error(f"{path}: cannot be written: {error.strerror}") from None
    return side


def make(
    folder: str,
    path: Path,
    plan: Plan,
    timeout: float,
    say: Callable[[str], None],
    notes: Sequence[str] = (),
    runs: int = RUNS,
) -> tuple[Saved, Judged, Made]:
    """Writes the script for a saved call.

    Args:
        folder: the saved call.
        path: the script.
        plan: device, imports and libraries; the rest is found here.
        timeout: seconds for one process.
        say: gets a line for each attempt.
        notes: lines for its head: what is known of sizes.
        runs: fresh processes in which the finished script has to show the failure.

    Raises:
        op_tools.Error: the call cannot be read or has no form in a script, or the file cannot be written.
    """
    saved = read(folder)
    saved.notes += notes
    plan = replace(plan, device=plan.device or saved.device)
    judged = judge(folder, plan.device, plan.imports, plan.libraries)
    if not judged.failures and not judged.died and not judged.trouble.startswith("raised"):
        again = judge(folder, plan.device, plan.imports, plan.libraries, calls=4)
        judged = again if again.failures else judged
    best: tuple[Script, Ended] | None = None
    for one in _plans(saved, plan_for(saved, judged, plan)):
        script = write(saved, one, path.with_suffix(".pth").name, _head(saved, one, path, "", 0))
        _store(script, path)
        ended = run_script(path, timeout=timeout)
        wrong = _is_wrong(ended, judged)
        data = {"inline": "data in the script", "drawn": "drawn data", "file": "data in a file"}[one.data]
        calls = f", {one.calls} calls" if one.calls > 1 else ""
        say(f"{data}{calls}: {'wrong' if wrong else _no_finding(ended)}")
        if wrong or best is None or one.data == "file":
            best = script, ended
        if wrong:
            break
    assert best is not None
    script, ended = best
    reproduced = int(_is_wrong(ended, judged))
    if reproduced:
        reproduced += sum(_is_wrong(run_script(path, timeout=timeout), judged) for _ in range(runs - 1))
        reproduced += RUNS - runs if reproduced == runs else 0
    finding = _finding(ended) if reproduced else ""
    script = write(
        saved, script.plan, path.with_suffix(".pth").name, _head(saved, script.plan, path, finding, reproduced)
    )
    side = _store(script, path)
    is_right = ended.status == 0 and (not judged.rows or any(row["verdict"] != "not comparable" for row in judged.rows))
    output = ended.out + ended.err
    return saved, judged, Made(path, script, reproduced, finding, output, side, saved.notes, is_right)


def _no_finding(ended: Ended) -> str:
    if ended.died:
        return f"the process {ended.died}"
    if ended.status == 0:
        return "right"
    last = ended.err.strip().splitlines()[-1:] or ["no message"]
    return f"exit status {ended.status}: {comment(last[0])}"
