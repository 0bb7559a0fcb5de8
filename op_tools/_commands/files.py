"""op-tools show and op-tools export: files of captured calls."""

from __future__ import annotations

import argparse
import os
import sys

from .. import _C
from .._show import show
from ._command_line import Commands, visible


def _show(options: argparse.Namespace) -> int:
    sys.stdout.write(visible(show(options.folder)) + "\n")
    return 0


def _export(options: argparse.Namespace) -> int:
    exported, problems = _C.export_calls(os.fsencode(options.source), os.fsencode(options.target))
    sys.stderr.write("".join(f"op-tools: {visible(problem)}\n" for problem in problems))
    sys.stdout.write(f"{exported} calls in {options.target}\n")
    return 1 if problems else 0


def add(commands: Commands) -> None:
    showing = commands.add_parser("show", help="what is in a folder of captured calls, or one call in full")
    showing.add_argument(
        "folder", help="op_capture_result, any folder in it, a container calls.zip, or one call in it: calls.zip!OP/ID"
    )
    showing.set_defaults(run=_show)
    export = commands.add_parser(
        "export",
        help="captured calls as folders that stand alone",
        description="Writes calls to folders, each with all its bytes in its own files: out of a container, or of a run "
        "whose calls share the bytes of tensors (dedupe). Exit status 1 when some could not be exported.",
    )
    export.add_argument("source", help="a call's folder, any folder above, or a container calls.zip")
    export.add_argument("target", help="the folder to write to; made where it is missing")
    export.set_defaults(run=_export)
