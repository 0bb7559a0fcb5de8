"""op-tools import: a dump of another tool as captured calls."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import formats
from .._base.core import Error, export_calls, find_calls
from ..formats import _import
from .command_line import Commands, visible


def _run(options: argparse.Namespace) -> int:
    if options.format == "ditorch" or (options.format is None and _holds_captures(options.source)):
        count, problems = export_calls(os.fsencode(options.source), os.fsencode(options.target))
    else:
        dump = formats.read_dump(options.source, options.format)
        imported = formats.import_dump(dump, options.target)
        count, problems = imported.calls, list(imported.problems) if options.all else _import.summary(imported)
    sys.stderr.write("".join(f"op-tools: {visible(line)}\n" for line in problems))
    sys.stdout.write(visible(f"{count} calls in {options.target}\n"))
    return 1 if problems else 0


def _holds_captures(source: str) -> bool:
    """Calls of ditorch, or ours: both are read as they are."""
    path = Path(source)
    if not path.exists():
        raise Error(f"{source}: there is no such file or folder")
    if path.is_file() and path.suffix != ".zip":
        return False
    return bool(find_calls(os.fsencode(source))[0])


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "import",
        help="a dump of troubleshooter, msprobe, PyTorch 1.5 or ditorch as captured calls",
        description="Makes captured calls of another tool's dump, for run_op_from_data and op-tools show. Calls that cannot be "
        "imported are listed with their reasons. No pickle is run. Exit status 1 when something could not be imported.",
        epilog="op-tools import ts_api_dump calls; run_op_from_data calls --acc_check",
    )
    command.add_argument("source", help="the folder of the dump, or the .h5 file")
    command.add_argument("target", help="the folder to write to: new or empty")
    command.add_argument("--format", choices=(*formats.read_formats(), "ditorch"), help="else known by the files")
    command.add_argument("--all", action="store_true", help="a line for each call that was not imported")
    command.set_defaults(run=_run)
