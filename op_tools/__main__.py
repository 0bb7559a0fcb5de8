"""The command line: python -m op_tools, installed as op-tools."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from . import _C
from ._commands._command_line import WRONG_USAGE, Parser, UsageError, visible

# Module in _commands -> the commands that it registers. Only the module of the command that is given is imported.
_MODULES = {
    "ops": ("ops",),
    "run": ("run", "env"),
    "files": ("show",),
    "compare": ("compare",),
    "one_iter": ("one-iter",),
    "importing": ("import",),
    "exporting": ("export",),
    "convert": ("convert",),
    "bisect": ("bisect",),
    "repro": ("repro",),
    "blackbox": ("blackbox",),
    "support": ("support",),
    "analyse": ("analyse",),
    "conformance": ("conformance",),
    "doctor": ("doctor",),
}


def _parser(command: str = "") -> argparse.ArgumentParser:
    """Of one command; of all where there is none of that name."""
    parser = Parser(
        prog="op-tools",
        description="Look at every operator that a PyTorch program runs.",
        epilog="Replay what was captured: run_op_from_data FOLDER --acc_check",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    named = [module for module, names in _MODULES.items() if command in names]
    for module in named or _MODULES:
        importlib.import_module(f"._commands.{module}", __package__).add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (0 success, 1 nothing found or something wrong, 2 an op_tools.Error, 64 wrong usage)."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _parser(*given[:1]).parse_args(given)
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
