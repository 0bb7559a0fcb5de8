"""op-tools support: the operators that a device runs, as a table for op-tools analyse."""

from __future__ import annotations

from .command_line import Commands, add_imports, positive, work


def add(commands: Commands) -> None:
    """Registers the command."""
    command = commands.add_parser(
        "support",
        help="which operators and functions of torch a device runs, as a table for op-tools analyse",
        description="Asks the dispatcher which operators the device has, and makes torch's own sample calls on it, "
        "forward and backward: which operators each function calls, and which the device refuses. Any machine can "
        "analyse code with the table. Takes a minute or two.",
        epilog="op-tools support --device npu --import torch_npu -o npu.json; "
        "op-tools analyse -i train -o out --support npu.json",
    )
    command.add_argument("--device", required=True, metavar="D", help="a device of this machine: cpu, cuda, npu, sim")
    command.add_argument("-o", "--output", required=True, metavar="FILE", help="the table to write (JSON)")
    add_imports(command)
    command.add_argument(
        "--samples", type=positive, default=1000, metavar="N", help="sample calls per function at most (1000: all)"
    )
    command.add_argument(
        "--conformance",
        metavar="RESULT",
        help="a folder that op-tools conformance run wrote for this device: its results per dtype go into the table",
    )
    command.set_defaults(run=work("support", "run_command"))
