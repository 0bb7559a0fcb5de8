"""op-tools export: captured calls that stand alone, or in another tool's format."""

from __future__ import annotations

from .._base.optional_parts import WRITTEN_FORMATS, Group, part_names
from .command_line import Commands, work


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "export",
        help="captured calls as folders that stand alone, or for other tools",
        description="Writes calls to folders, each with all its bytes in its own files: out of a container, or of a run "
        "whose calls share the bytes of tensors (dedupe). With --format, as the files of another tool. Exit status 1 when "
        "some could not be exported.",
    )
    command.add_argument("source", help="a call's folder, any folder above, or a container calls.zip")
    command.add_argument("target", help="the folder to write to; made where it is missing")
    command.add_argument(
        "--format", choices=(*WRITTEN_FORMATS, *part_names(Group.WRITERS)), help="the files of another tool"
    )
    command.set_defaults(run=work("exporting", "run_command", reads=("source",)))
