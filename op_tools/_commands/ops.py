"""op-tools ops: the operators that a filter matches."""

from __future__ import annotations

from .command_line import Commands, work


def add(commands: Commands) -> None:
    ops = commands.add_parser("ops", help="list the operators that a filter would match")
    ops.add_argument("--level", choices=("torch", "aten"), default="torch", help="names as Python's or torch's own")
    ops.add_argument("--ops", metavar="LIST", help="only these: regular expressions, comma-separated")
    ops.add_argument("--skip", metavar="LIST", help="all but these")
    ops.add_argument(
        "--excluded", action="store_true", help="the metadata calls that are left out unless a filter names them"
    )
    ops.set_defaults(run=work("ops", "run_command"))
