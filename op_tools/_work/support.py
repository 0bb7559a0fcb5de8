"""op-tools support: the operators that a device runs, as a table for op-tools analyse."""

from __future__ import annotations

import argparse
import sys

from .._base.core import log_progress
from .._base.own_command import op_tools_line
from .._commands.command_line import visible
from .._torch.backends import import_backends, modules_of
from ..analyse._judged import enter_conformance, read_conformance
from ..analyse._support import make_table


def run_command(options: argparse.Namespace) -> int:
    import_backends(modules_of(options.device, options.imports))
    judged = read_conformance(options.conformance, options.device) if options.conformance else {}
    table = make_table(options.device, options.samples, log_progress)
    log_progress("")
    enter_conformance(table, judged)
    table.write(options.output)
    lines = [f"torch {table.torch}, device {table.device}: {len(table.content['operators'])} operators"]
    lines += [f"{count:6} functions {status}" for status, count in table.counts().items()]
    if options.conformance:
        wrong = sum(bool(table.support(name).warning) for name in table.content["functions"])
        lines.append(
            f"{options.conformance}: {len(judged)} functions and operators judged; {wrong} functions are wrong or call an operator that is"
        )
    lines.append(f"Next: {op_tools_line('analyse', '-i', 'YOUR_CODE', '-o', 'RESULTS', '--support', options.output)}")
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    return 0
