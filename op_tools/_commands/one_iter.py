"""op-tools one-iter: a training iteration that is saved on a machine and compared on another."""

from __future__ import annotations

import argparse

from .._runs import ITERATION_SEED
from .command_line import Commands, add_allow_unseen, positive, work

FOLDER = "op_one_iter_result"


def _add_program(command: argparse.ArgumentParser, program: str) -> None:
    command.add_argument(
        "--seed", type=int, default=ITERATION_SEED, metavar="N", help=f"of all random numbers ({ITERATION_SEED})"
    )
    command.add_argument(
        "--iterations",
        type=positive,
        default=1,
        metavar="N",
        help="steps of an optimizer, then the program is ended (1)",
    )
    command.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    command.add_argument("folder", metavar="DIR", help="where the iteration is saved")
    command.add_argument("program", help=program)
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def add(commands: Commands) -> None:
    one_iter = commands.add_parser(
        "one-iter",
        help="a training iteration, saved on a machine and compared on another, module by module",
        description="Runs an unchanged training program up to the first step of its optimizer, with the inputs, outputs, "
        "weights and gradients of all modules and the loss recorded, and the random numbers of the CPU on every device. "
        "Exit status of compare: 0 nothing is wrong, 1 something is, 2 not judged (docs/verdicts.md says when), 64 wrong usage.",
        epilog="op-tools one-iter save right train.py; op-tools one-iter compare right train.py --device npu",
    )
    works = one_iter.add_subparsers(dest="work_name", required=True)
    save = works.add_parser(
        "save", help="save a training iteration, module by module, where it is right", allow_abbrev=False
    )
    _add_program(save, "the script, or the module")
    save.set_defaults(run=work("one_iter", "save"))
    compare = works.add_parser(
        "compare", help="run it where it is tested, and name the first module that differs", allow_abbrev=False
    )
    compare.add_argument(
        "--tolerance", metavar="FILE", help="by model (YAML or JSON); without: by the effect of rounding"
    )
    compare.add_argument("--json", metavar="FILE", help="a record for each result, and a summary, as lines of JSON")
    add_allow_unseen(compare)
    compare.add_argument("--output-dir", metavar="DIR", help=f"for this run's recording ({FOLDER})")
    _add_program(compare, "the script or the module; or the folder of another saved iteration")
    compare.set_defaults(run=work("one_iter", "compare"))
