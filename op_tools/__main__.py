"""The command line: python -m op_tools, installed as op-tools."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import _C
from ._commands import (
    analyse,
    bisect,
    blackbox,
    compare,
    conformance,
    convert,
    doctor,
    exporting,
    files,
    importing,
    one_iter,
    ops,
    repro,
    run,
    support,
)
from ._commands._command_line import WRONG_USAGE, Parser, UsageError, visible

_COMMANDS = (
    ops,
    run,
    files,
    compare,
    one_iter,
    importing,
    exporting,
    convert,
    bisect,
    repro,
    blackbox,
    support,
    analyse,
    conformance,
    doctor,
)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="op-tools",
        description="Look at every operator that a PyTorch program runs.",
        epilog="Replay what was captured: run_op_from_data FOLDER --acc_check",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for one in _COMMANDS:
        one.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (0 success, 1 nothing found or something wrong, 2 an op_tools.Error, 64 wrong usage)."""
    options = _parser().parse_args(arguments)
    options.is_program = arguments is None
    try:
        status: int = options.run(options)
        return status
    except UsageError as error:
        sys.stderr.write(f"op-tools {options.command}: {visible(str(error))}\n")
        return WRONG_USAGE
    except _C.Error as error:
        sys.stderr.write(f"op-tools: {visible(str(error))}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
