"""op-tools diagnose: all questions about a program that is wrong, slow or stuck, in their order."""

from __future__ import annotations

import argparse

from .command_line import Commands, above_zero, add_allow_unseen, positive, work

_FOLDER = "op_diagnose_result"


def add(commands: Commands) -> None:
    """Registers the command."""
    diagnose = commands.add_parser(
        "diagnose",
        help="all questions about a program that is wrong, slow or stuck, in their order, until the cause is known",
        description="Runs a program again and again under the tools, and asks: how far does it come; are its compiled graphs right; is "
        "each operator right, and where is the first NaN; where does it part from the reference; which operators make the loss wrong; "
        "does memory grow; which operator is slow. Each step is a command of op-tools, which is printed. It ends with the first certain "
        "answer, in a sentence and in diagnosis.json, and with the page of all results. Exit status: 0 nothing is wrong and all was "
        "looked at; 1 a cause; 2 not judged (docs/verdicts.md says when); 64 wrong usage.",
        allow_abbrev=False,
        epilog="op-tools diagnose -- train.py --steps 20; op-tools diagnose --reference 'train.py --device cpu' --budget 480 -- train.py; "
        "op-tools diagnose -- torchrun --nproc-per-node 8 train.py",
    )
    diagnose.add_argument(
        "--reference",
        default="",
        metavar="CMD|RECORDING|LOSSES",
        help="a run that is right: its command, its recording by op-tools run --record, or a file of its losses",
    )
    diagnose.add_argument("--budget", type=above_zero, default=60, metavar="MIN", help="minutes for all of it (60)")
    diagnose.add_argument(
        "--steps", type=positive, default=3, metavar="N", help="compare each call of the first N training steps (3)"
    )
    diagnose.add_argument(
        "--stall",
        type=above_zero,
        default=120,
        metavar="SECONDS",
        help="the program hangs when no operator begins or ends for so long (120)",
    )
    diagnose.add_argument("--all", action="store_true", help="ask all questions, also when the cause is known")
    diagnose.add_argument("-o", "--output", default=_FOLDER, metavar="DIR", help=f"the state and all files ({_FOLDER})")
    diagnose.add_argument("--resume", action="store_true", help="go on where an interrupted diagnosis was")
    add_allow_unseen(diagnose)
    diagnose.add_argument(
        "command_line", nargs=argparse.REMAINDER, metavar="-- PROGRAM ...", help="a script, or any command"
    )
    diagnose.set_defaults(run=work("diagnose", "run_command"))
