"""op-tools import: a dump of another tool as captured calls."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .. import formats
from .._base.core import Error, export_calls, find_calls
from .._commands.command_line import visible
from ..formats import _import


def run_command(options: argparse.Namespace) -> int:
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
