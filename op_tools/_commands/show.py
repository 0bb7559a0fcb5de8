"""op-tools show: the content of a folder of results, or a captured call in full."""

from __future__ import annotations

from .command_line import Commands, work


def add(commands: Commands) -> None:
    showing = commands.add_parser("show", help="the results in a folder, of any tool, or a captured call in full")
    showing.add_argument(
        "folder",
        help="the results of a tool, a recording, op_capture_result, any folder in it, a container calls.zip, or a call in it: "
        "calls.zip!OP/ID",
    )
    showing.set_defaults(run=work("show", "run_command", reads=("folder",)))
