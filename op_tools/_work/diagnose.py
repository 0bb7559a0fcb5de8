"""op-tools diagnose: all questions about a program that is wrong, slow or stuck, in their order."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .._base.core import Error, launched_ranks
from .._base.verdict import status_of
from .._commands.command_line import UsageError, check_program, visible
from .._diagnose.answer import Answer
from .._diagnose.conclusion import finish
from .._diagnose.program import Program
from .._diagnose.questions import QUESTIONS
from .._diagnose.reference import reference_losses
from .._diagnose.session import ANSWER, Plan, Session


def _say(line: str) -> None:
    sys.stderr.write(f"{visible(line)}\n")
    sys.stderr.flush()


def _plan(options: argparse.Namespace) -> Plan:
    command = options.command_line[1:] if options.command_line[:1] == ["--"] else options.command_line
    if not command:
        raise UsageError("which program? op-tools diagnose [options] -- train.py ...")
    if launched_ranks() > 1 or os.environ.get("RANK"):
        raise UsageError(
            "this is a rank of a launcher: give the launcher to it, op-tools diagnose -- torchrun ... train.py"
        )
    program = Program(tuple(command))
    if script := program.script:
        check_program(script)
    folder = Path(options.output)
    plan = Plan(program, folder, options.reference, options.budget, options.steps, options.stall, options.all)
    try:
        reference_losses(plan)
    except Error as error:
        raise UsageError(str(error)) from None
    return plan


def _print(answer: Answer, folder: Path) -> None:
    lines = [answer.text(), "", *([answer.report] if answer.report else []), str(folder / ANSWER)]
    sys.stdout.write(visible("\n".join(lines)) + "\n")


def run_command(options: argparse.Namespace) -> int:
    plan = _plan(options)
    answer = Session(plan, QUESTIONS, resume=options.resume, say=_say).run(finish)
    _print(answer, plan.folder)
    return status_of(answer.verdict, allow_unseen=options.allow_unseen)
