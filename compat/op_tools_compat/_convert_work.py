"""The work of op-tools convert."""

from __future__ import annotations

import argparse
import sys

from op_tools._commands.command_line import visible

from .arrays import convert


def run_command(options: argparse.Namespace) -> int:
    written = convert(options.source, options.target)
    more = ", ..." if len(written) > 3 else ""
    sys.stdout.write(visible(f"{len(written)} files: {', '.join(written[:3])}{more}\n"))
    return 0
