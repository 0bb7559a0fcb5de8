"""op-tools convert: arrays between .h5, .pth, .npy and .txt."""

from __future__ import annotations

from op_tools._commands.command_line import Commands, work


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "convert",
        help="arrays between .h5, .pth, .npy and .txt",
        description="Converts by the suffixes of the names. Where a file holds several arrays and the other form holds one, "
        "the latter is a folder: its suffix names the files in it (out.npy/).",
        epilog="op-tools convert dump.h5 arrays.npy; op-tools convert a.npy a.txt; op-tools convert arrays.npy all.pth",
    )
    command.add_argument("source", help="a file .h5, .pth, .pt, .npy or .txt, or a folder of .npy or .txt")
    command.add_argument("target", help="a file or folder with such a suffix; it must not be there")
    command.set_defaults(run=work("op_tools_compat._convert_work", "run_command"))
