"""op-tools import: a dump of another tool as captured calls."""

from __future__ import annotations

from .._base.optional_parts import READ_FORMATS, Group, part_names
from .command_line import Commands, work


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
    command.add_argument(
        "--format", choices=(*READ_FORMATS, *part_names(Group.READERS), "ditorch"), help="else known by the files"
    )
    command.add_argument("--all", action="store_true", help="a line for each call that was not imported")
    command.set_defaults(run=work("importing", "run_command", copies=("source",)))
