"""op-tools bisect: the smallest set of operators that heals a program."""

from __future__ import annotations

import argparse

from .._bisect import JOB_VARIABLE, REMEDIES
from .command_line import Commands, above_zero, add_allow_unseen, positive, work


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
        help="finds the numbers in the output (lines with loss, lists in JSON)",
    )
    bisect.add_argument(
        "--band", type=above_zero, metavar="X", help="how far right numbers may be, relatively (measured)"
    )
    bisect.add_argument(
        "--suspects",
        metavar="PATH",
        default="auto",
        help="which operators are tried first: the worst in a result of OpAutoCompare; none; or auto: those of a step, if comparing "
        "it takes less time than it can save (auto)",
    )
    bisect.add_argument(
        "--timeout", type=above_zero, metavar="SECONDS", help="a run that takes longer hangs, and is wrong"
    )
    bisect.add_argument(
        "--jobs", type=positive, default=1, metavar="N", help=f"runs at once; each has its number in {JOB_VARIABLE} (1)"
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
    bisect.set_defaults(run=work("bisect", "run_command"))
