"""op-tools export: captured calls that stand alone, or in another tool's format."""

from __future__ import annotations

import argparse
import os
import sys

from .._base.core import export_calls
from .._commands.command_line import visible
from ..formats import export_captures


def run_command(options: argparse.Namespace) -> int:
    if options.format:
        done = export_captures(options.source, options.target, options.format)
        exported, problems = done.calls, done.problems
    else:
        exported, problems = export_calls(os.fsencode(options.source), os.fsencode(options.target))
    sys.stderr.write("".join(f"op-tools: {visible(problem)}\n" for problem in problems))
    sys.stdout.write(visible(f"{exported} calls in {options.target}\n"))
    return 1 if problems else 0
