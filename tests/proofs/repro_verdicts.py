"""The scripts of op-tools repro agree with the judge, where no float64 run is possible and everywhere else.

    ./dev prove repro_verdicts [--cases N] [--dtypes D ...] [--part I/N] [--factors F ...]

Cases of torch's sample database are captured on the CPU and run on the simulated device, whose kernels multiply the floats that they
give by a number next to 1: from no unit of the dtype to far too many. The judge of run_op_from_data --acc_check says whether that
agrees; a script that was made of the judge's reference values and limits, and of nothing else, has to say the same. Exit status 1
where they differ, or where no operator without a float64 run was among them.
"""

from __future__ import annotations

import collections
import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import op_tools
import op_tools.sim_device as sim
from op_tools import run_op_from_data
from op_tools._conformance.case import make_call
from op_tools._conformance.lists import our_list
from op_tools._conformance.shard_run import sampled
from op_tools.repro._expected import name_of
from op_tools.repro._make import plan_for
from op_tools.repro._saved import read_saved
from op_tools.repro._script import Plan, write
from op_tools.repro._trial import Judged

FACTORS = (0.0, 0.4, 0.9, 1.5, 2.5, 5.0, 9.0, 20.0, 1000.0)
"""Of the result's dtype: how many units all of its elements are moved by."""


@dataclass(frozen=True)
class Trial:
    """A call with a factor."""

    case: str
    op: str
    factor: float
    refused: bool
    """There was no float64 run for a result of it."""
    judge: str
    """`agrees`, `differs` or `not judged`."""
    script: str

    @property
    def same(self) -> bool:
        """They say the same. Where the judge does not judge, the script has nothing to compare or finds nothing."""
        return self.judge == self.script or (self.judge == "not judged" and self.script == "agrees")


def captured(case: Any, folder: str) -> list[Path]:
    """The folders of the case's calls."""
    call = make_call(case, torch.device("cpu"))
    with op_tools.OpCapture(output_dir=folder, format="folders") as capture:
        results = call.run()
        if case.gradient:
            call.backward(results)
    return sorted(Path(capture.result().root).glob("*/*"))


def judged(folder: Path, into: Path) -> Judged | None:
    """The rows of the judge on the simulated device; None: the call cannot be run there."""
    report, expected = into / "report.json", into / "expected.pth"
    arguments = [str(folder), "--acc_check", "--device", "sim", "--json", str(report), "--expected", str(expected)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_op_from_data.main([*arguments, "--quiet", "--no_summary"])
    (call,) = json.loads(report.read_text())["calls"]
    (checks,) = torch.load(expected, weights_only=True).values()
    return None if call["status"] == "could not run" else Judged(call.get("checks", []), expected=checks)


def said(script: Path) -> str:
    """A script's verdict, run in this process."""
    statuses = {0: "agrees", 1: "differs", 2: "not judged"}
    with contextlib.redirect_stdout(io.StringIO()), mock.patch.object(sys, "argv", [str(script)]):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as ended:
            return statuses[int(ended.code or 0)]
    raise AssertionError("a script ends with its status")


def moved_by(factor: float) -> contextlib.AbstractContextManager[Any]:
    """All floats of the device's results are moved by so many units of float32, or of bfloat16."""
    return contextlib.nullcontext() if 1 + factor == 1 else sim.fault("scale", scale=1 + factor)


def try_call(case: Any, folder: Path, factors: Sequence[float], into: Path) -> Iterator[Trial]:
    """The judge and the script of a captured call, for each factor."""
    try:
        saved = read_saved(str(folder))
    except op_tools.Error:
        return  # it has no form in a script
    if not all(memory.numel() for memory in saved.memories):
        return  # of no elements: there is nothing to move
    unit = torch.finfo(getattr(torch, case.dtype)).eps if getattr(torch, case.dtype).is_floating_point else 2.0**-23
    right = judged(folder, into)
    if right is None:
        return
    for factor in factors:
        with moved_by(factor * unit):
            report = judged(folder, into)
            if report is None:
                continue
            plan = plan_for(saved, Judged(report.rows, expected=right.expected), Plan("sim"))
            script = into / "script.py"
            try:
                written = write(saved, plan, "script.pth", "")
            except op_tools.Error:
                return
            torch.save(written.side_file, into / "script.pth")
            script.write_text(written.text)
            names = {one.name for one in plan.expected}
            rows = [
                row for row in report.rows if row["part"] == "call" or name_of(row["part"], row.get("index")) in names
            ]
            verdicts = {row["verdict"] for row in rows}
            judge = "differs" if "differs" in verdicts else "agrees" if "agrees" in verdicts else "not judged"
            refused = any(row["method"] == "relative_to_cpu" for row in rows)
            yield Trial(case.id, case.op, factor, refused, judge, said(script))


def trials(cases: Sequence[Any], factors: Sequence[float]) -> Iterator[Trial]:
    """Of all calls of the cases."""

    torch.ones(1, device="sim", requires_grad=True).sum().backward()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in cases:
            try:
                folders = captured(case, tempfile.mkdtemp(dir=folder))
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                continue  # the CPU refuses it
            for call_folder in folders:
                yield from try_call(case, call_folder, factors, Path(folder))


def cases_of(count: int, dtypes: Sequence[str] = ()) -> list[Any]:
    """So many cases of the suite's, spread over all; 0: all."""
    cases = [case for case in our_list("op_db") if '"variant":"error"' not in case.to_json()]
    cases = [case for case in cases if not dtypes or case.dtype in dtypes]
    return sampled(cases, count) if count else cases


def main() -> int:
    from _program import parser, quiet

    options_of = parser(__doc__)
    options_of.add_argument("--cases", type=int, default=0, metavar="N", help="cases, spread over all (0: all)")
    options_of.add_argument("--dtypes", nargs="*", default=(), metavar="D", help="cases of these dtypes only: bfloat16")
    options_of.add_argument("--part", default="0/1", metavar="I/N", help="every Nth of them from I on")
    options_of.add_argument("--factors", type=float, nargs="*", default=FACTORS)
    options = options_of.parse_args()
    quiet()
    first, step = map(int, options.part.split("/"))
    counts: collections.Counter[tuple[bool, str, str]] = collections.Counter()
    refused, wrong = set(), []
    for trial in trials(cases_of(options.cases, options.dtypes)[first::step], options.factors):
        counts[trial.refused, trial.judge, trial.script] += 1
        refused |= {trial.op} if trial.refused else set()
        if not trial.same:
            wrong.append(trial)
            print(f"    differ: {trial}", flush=True)
    for (without, judge, script), count in sorted(counts.items()):
        print(f"{'no float64 run' if without else 'with float64':15} judge {judge:10} script {script:10} {count}")
    print(f"{len(refused)} operators without a float64 run; {len(wrong)} of {sum(counts.values())} trials differ")
    return 1 if wrong or not refused else 0


if __name__ == "__main__":
    os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")
    sys.exit(main())
