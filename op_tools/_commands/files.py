"""op-tools show: what is in files of captured calls."""

from __future__ import annotations

import argparse
import sys

from .._show import show
from ._command_line import Commands, visible


def _show(options: argparse.Namespace) -> int:
    sys.stdout.write(visible(show(options.folder)) + "\n")
    return 0


def add(commands: Commands) -> None:
    showing = commands.add_parser("show", help="what is in a folder of captured calls, or one call in full")
    showing.add_argument(
        "folder", help="op_capture_result, any folder in it, a container calls.zip, or one call in it: calls.zip!OP/ID"
    )
    showing.set_defaults(run=_show)
