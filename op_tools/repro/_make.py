"""From a saved call to a script that was run: the data that it needs, whether it shows the failure, and its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from .._base.core import Error
from .._base.verdict import Verdict, verdict_of
from ._expected import name_of, read_expected
from ._literals import comment
from ._relation import write_relation
from ._saved import Saved, read_saved
from ._script import Plan, Script, is_inline, write
from ._trial import Ended, Judged, judge, run_fresh

_OF_GRAPHS = (
    "Which result is right: EXPECTED, below, has the graph's results as its operators give them one by one, by torch's own kernels on the",
    "CPU, in float64 where that is possible, and how far from them the compiled graph may be: some times the error of the same operators",
    "in the graph's dtypes. The judge of OpAutoCompare computed both when the script was written.",
)
_OTHER_BITS = "OTHER BITS: "
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
    """The script's lines about the failure; "" if nothing is wrong."""
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


def plan_for(saved: Saved, judged: Judged, plan: Plan) -> Plan:
    """The results of a call that the script compares."""
    in_backward = any(row["part"] == "gradient" for row in judged.failures)
    backward = bool(saved.gradients) and (in_backward or not judged.failures)
    expected, left_out = read_expected(judged.expected)
    used = [one for one in expected if backward or one.part != "gradient"]
    raises = bool(saved.call.meta.get("error")) and not any(row["kind"] == "raised" for row in judged.rows)
    why = {name: comment(text) for name, text in left_out.items()}
    outputs = _differentiable(saved) if saved.graph else frozenset()
    return replace(plan, expected=tuple(used), left_out=why, raises=raises, backward=backward, differentiable=outputs)


def _differentiable(saved: Saved) -> frozenset[str]:
    """The outputs of a graph that have a gradient function where its operators run one by one."""
    assert saved.graph is not None
    wants = [view.requires_grad for view in saved.inputs]
    tensors = [leaf for leaf in saved.args if isinstance(leaf, torch.Tensor)]
    inputs = {
        id(tensor): tensor.detach().clone().requires_grad_(wanted).clone()
        for tensor, wanted in zip(tensors, wants, strict=True)
    }
    with torch.set_grad_enabled(bool(saved.state.get("grad_enabled", True))):
        results = tree_leaves(saved.graph.operators()(*(inputs.get(id(arg), arg) for arg in saved.args)))
    names = [name_of("output", number if len(results) > 1 else None) for number in range(len(results))]
    return frozenset(
        name for name, leaf in zip(names, results, strict=True) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )


def _is_wrong(ended: Ended, judged: Judged, saved: Saved) -> bool:
    """A judged graph ran without its compiler: that the compiled graph ends the process is the compiler's."""
    dies = bool(ended.died and (judged.died or saved.graph))
    return (ended.status == 1 and "WRONG" in ended.out) or dies


def _head(saved: Saved, plan: Plan, path: Path, finding: str, reproduced: int) -> str:
    where = (saved.call.meta.get("stack") or [""])[0]
    subject = f"A graph, compiled by {saved.graph.backend}" if saved.graph else f"{saved.call.name} on {plan.device}"
    lines = [f"{subject}: {finding or 'nothing wrong was found'}", ""]
    lines.append(
        f"Reproduces: {reproduced} of {RUNS} runs in fresh processes, torch {torch.__version__}, device {plan.device}."
    )
    lines.append(f"    python {path.name} [DEVICE]    exit status 1: wrong, 0: right, 2: nothing compared")
    if where:
        lines.append(f"The call was made at {where}.")
    lines += [f"{name} is not compared: {why}" for name, why in plan.left_out.items()]
    lines += saved.notes
    if saved.graph:
        return "\n".join([*lines, "", *_OF_GRAPHS])
    lines += [
        "",
        "Which result is right: EXPECTED, below, has the operator's results as OpAutoCompare's judge knew them when the script was",
        "written (from a run on the CPU in float64 where that is possible), and how far from them the device may be: some times the",
        "CPU's own error plus some units of the dtype, which depend on the order of rounding, and the effect of rounding the inputs",
        "in the result. Beyond that the CPU shows that the dtype can do better, so the device's result is wrong.",
    ]
    return "\n".join(lines)


def _finding(ended: Ended) -> str:
    if ended.died:
        return f"the process {ended.died}"
    lines = [line for line in ended.out.splitlines() if line.startswith("WRONG: ")]
    return comment(lines[0].removeprefix("WRONG: ")) if lines else ""


def _store(script: Script, path: Path) -> Path | None:
    """Writes script and side file."""
    try:
        path.write_text(script.text)
        side = path.with_suffix(".pth")
        if not script.side_file:
            return None
        torch.save(script.side_file, side)
    except OSError as error:
        raise Error(f"{path}: cannot be written: {error.strerror}") from None
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
        timeout: seconds for a process.
        say: gets a line for each attempt.
        notes: lines for its head about sizes.
        runs: fresh processes in which the finished script has to show the failure.

    Raises:
        op_tools.Error: the call cannot be read or has no form in a script, or the file cannot be written.
    """
    saved = read_saved(folder)
    saved.notes += notes
    plan = replace(plan, device=plan.device or saved.device)
    if saved.variation is not None:
        return saved, Judged(), _make_relation(saved, path, plan, timeout, say, runs)
    # The results that the script expects are those of the graph's operators: the script runs the compiled graph.
    judged = judge(folder, "cpu" if saved.graph else plan.device, plan.imports, plan.libraries)
    if not judged.failures and not judged.died and not judged.trouble and not saved.graph:
        again = judge(folder, plan.device, plan.imports, plan.libraries, calls=4)
        judged = again if again.failures else judged
    if judged.died or judged.trouble or any(row["kind"] == "raised" for row in judged.failures):
        # It gave nothing on the device: the CPU has the expected results.
        judged.expected = judge(folder, "cpu", plan.imports, plan.libraries).expected
    plan = plan_for(saved, judged, plan)
    data = "data in the script" if is_inline(saved, plan) else "data in a file"
    best: tuple[Script, Ended] | None = None
    for calls, holds in ((1, False), (2, False), (4, False), *([(1, True)] if saved.graph else [])):
        plan = replace(plan, calls=calls, holds=holds)
        script = write(saved, plan, path.with_suffix(".pth").name, _head(saved, plan, path, "", 0))
        _store(script, path)
        ended = run_fresh(path, timeout=timeout, imports=plan.imports)
        wrong = _is_wrong(ended, judged, saved)
        say(
            f"{data}{f', {calls} calls' if calls > 1 else ''}{', results held' if holds else ''}: {'wrong' if wrong else _no_finding(ended)}"
        )
        if wrong or best is None:
            best = script, ended
        if wrong:
            break
    assert best is not None
    script, ended = best
    reproduced = int(_is_wrong(ended, judged, saved))
    if reproduced:
        reproduced += sum(
            _is_wrong(run_fresh(path, timeout=timeout, imports=plan.imports), judged, saved) for _ in range(runs - 1)
        )
        reproduced += RUNS - runs if reproduced == runs else 0
    finding = _finding(ended) if reproduced else ""
    script = write(
        saved, script.plan, path.with_suffix(".pth").name, _head(saved, script.plan, path, finding, reproduced)
    )
    side = _store(script, path)
    is_right = ended.status == 0 and (
        not judged.rows or any(row["verdict"] != Verdict.NOT_JUDGED for row in judged.rows)
    )
    output = ended.out + ended.err
    return saved, judged, Made(path, script, reproduced, finding, output, side, saved.notes, is_right)


def _make_relation(saved: Saved, path: Path, plan: Plan, timeout: float, say: Callable[[str], None], runs: int) -> Made:
    """Of a finding of OpInvariance: no judge is asked, as results of other bits may all be right."""
    _store(write_relation(saved, plan, path, 0, RUNS), path)
    ended = [run_fresh(path, timeout=timeout, imports=plan.imports) for _ in range(runs)]
    shown = [one for one in ended if one.status == 1 and _OTHER_BITS in one.out]
    reproduced = RUNS if len(shown) == runs else len(shown)
    last = shown[0] if shown else ended[-1]
    say(f"other bits: {len(shown)} of {runs} runs" if shown else _no_finding(last))
    script = write_relation(saved, plan, path, reproduced, RUNS)
    side = _store(script, path)
    lines = [line for line in last.out.splitlines() if line.startswith(_OTHER_BITS)]
    finding = comment(lines[0].removeprefix(_OTHER_BITS)) if lines else ""
    return Made(path, script, reproduced, finding, last.out + last.err, side, saved.notes, last.status == 0)


def _no_finding(ended: Ended) -> str:
    if ended.died:
        return f"the process {ended.died}"
    if ended.status == 0:
        return "right"
    last = ended.err.strip().splitlines()[-1:] or ["no message"]
    return f"exit status {ended.status}: {comment(last[0])}"
