"""op-tools bisect: the smallest set of operators that heals a program."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .._base.core import Error, log_progress
from .._base.verdict import Verdict, status_of
from .._bisect.bisection import Session, suspects_of
from .._bisect.outcome import LOSS, BisectJudge, Metric, read_reference
from .._bisect.processes import JOB_VARIABLE, Plan, Processes, State, command_line
from .._bisect.trial_tools import REMEDIES
from .command_line import Commands, add_allow_unseen, visible


def _say(line: str) -> None:
    log_progress("")
    sys.stderr.write(f"op-tools bisect: {visible(line)}\n")
    sys.stderr.flush()


def _bisect(options: argparse.Namespace) -> int:
    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not command:
        raise Error("which program? op-tools bisect [options] -- train.py ...")
    for name in ("timeout", "jobs"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise Error(f"--{name} {value:g} is not allowed; give a number above 0")
    if options.check and options.reference:
        raise Error("give --check or --reference: the one or the other judges")
    metric = Metric(options.metric)
    reference = read_reference(options.reference, metric) if options.reference else [] if options.check else None
    judge = BisectJudge(reference, options.band)
    suspects = suspects_of(options.suspects)
    folder = Path(options.output).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = ("remedy", "check", "metric", "suspects")
        facts = {"command": command, **{name: getattr(options, name) for name in names}}
        state = State(folder / "state.jsonl", facts, resume=options.resume)
    except OSError as error:
        raise Error(f"--output {options.output}: {error.strerror}") from None
    plan = Plan(command_line(command), folder, metric, options.timeout, options.check, options.jobs)
    session = Session(Processes(plan, state), judge, options.remedy, suspects, options.jobs, _say, log_progress)
    result = session.run()
    sys.stdout.write(visible(result.table()) + "\n")
    if options.json:
        try:
            Path(options.json).write_text(result.to_json() + "\n")
        except OSError as error:
            raise Error(f"--json {options.json}: {error.strerror}") from None
    if result.verdict == Verdict.NOT_JUDGED.value:
        return status_of(Verdict.NOT_JUDGED, allow_unseen=options.allow_unseen)
    return result.status


def add(commands: Commands) -> None:
    bisect = commands.add_parser(
        "bisect",
        help="the smallest set of operators that heals a program when they run elsewhere",
        description="Runs a program again and again, each time with other operators on the CPU, and finds the smallest set with "
        "which its result is right. Right is: the numbers of --reference, else those of a run with everything moved; or status 0 "
        "of --check. A run that fails, crashes or hangs is wrong, a run that ends with status 125 says nothing. Exit status 0: "
        "found, 1: not an operator, 2: inconsistent, or not judged (docs/verdicts.md says when), 64: wrong usage.",
        allow_abbrev=False,
        epilog="op-tools bisect --timeout 600 -- train.py --steps 5; op-tools bisect -- torchrun --nproc-per-node 2 train.py",
    )
    bisect.add_argument(
        "--remedy",
        choices=REMEDIES,
        default="fallback",
        help="fallback: on the CPU; float32: float16 and bfloat16 in float32; placebo: on the same device, on copies (fallback)",
    )
    bisect.add_argument(
        "--reference", metavar="FILE", help="numbers of a right run: a JSON list, or lines as the program prints"
    )
    bisect.add_argument(
        "--check", metavar="CMD", default="", help="a shell command that reads the output: status 0 is right"
    )
    bisect.add_argument(
        "--metric",
        metavar="EXPR",
        default=LOSS,
        help="finds the numbers in the output (lines with loss, lists in JSON)",
    )
    bisect.add_argument("--band", type=float, metavar="X", help="how far right numbers may be, relatively (measured)")
    bisect.add_argument(
        "--suspects",
        metavar="PATH",
        default="auto",
        help="which operators are tried first: the worst in a result of OpAutoCompare; none; or auto: those of a step, if comparing "
        "it takes less time than it can save (auto)",
    )
    bisect.add_argument("--timeout", type=float, metavar="SECONDS", help="a run that takes longer hangs, and is wrong")
    bisect.add_argument(
        "--jobs", type=int, default=1, metavar="N", help=f"runs at once; each has its number in {JOB_VARIABLE} (1)"
    )
    bisect.add_argument(
        "--output", default="op_bisect_result", metavar="DIR", help="the state and all files (op_bisect_result)"
    )
    bisect.add_argument("--resume", action="store_true", help="go on where an interrupted bisection was")
    add_allow_unseen(bisect)
    bisect.add_argument("--json", metavar="FILE", help="the result, for programs")
    bisect.add_argument(
        "command_line", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="a script, or any command"
    )
    bisect.set_defaults(run=_bisect)
