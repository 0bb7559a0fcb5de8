"""op-tools export: captured calls that stand alone, or in another tool's format."""

from __future__ import annotations

import argparse
import os
import sys

from .._base.core import export_calls
from ..formats import export_captures, written_formats
from .command_line import Commands, visible


def _run(options: argparse.Namespace) -> int:
    if options.format:
        done = export_captures(options.source, options.target, options.format)
        exported, problems = done.calls, done.problems
    else:
        exported, problems = export_calls(os.fsencode(options.source), os.fsencode(options.target))
    sys.stderr.write("".join(f"op-tools: {visible(problem)}\n" for problem in problems))
    sys.stdout.write(visible(f"{exported} calls in {options.target}\n"))
    return 1 if problems else 0


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "export",
        help="captured calls as folders that stand alone, or for other tools",
        description="Writes calls to folders, each with all its bytes in its own files: out of a container, or of a run "
        "whose calls share the bytes of tensors (dedupe). With --format, as the files of another tool. Exit status 1 when "
        "some could not be exported.",
    )
    command.add_argument("source", help="a call's folder, any folder above, or a container calls.zip")
    command.add_argument("target", help="the folder to write to; made where it is missing")
    command.add_argument("--format", choices=written_formats(), help="the files of another tool")
    command.set_defaults(run=_run)
