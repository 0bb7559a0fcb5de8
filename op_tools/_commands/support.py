"""op-tools support: the operators that a device runs, as a table for op-tools analyse."""

from __future__ import annotations

import argparse
import sys

from .._base.core import log_progress
from .._torch.backends import import_backends, modules_of
from ..analyse._judged import enter_conformance, read_conformance
from ..analyse._support import make_table
from .command_line import Commands, add_imports, visible


def _support(options: argparse.Namespace) -> int:
    import_backends(modules_of(options.device, options.imports))
    judged = read_conformance(options.conformance, options.device) if options.conformance else {}
    table = make_table(options.device, options.samples, log_progress)
    log_progress("")
    enter_conformance(table, judged)
    table.write(options.output)
    lines = [f"torch {table.torch}, device {table.device}: {len(table.content['operators'])} operators"]
    lines += [f"{count:6} functions {status}" for status, count in table.counts().items()]
    if options.conformance:
        wrong = sum(bool(table.support(name).warning) for name in table.content["functions"])
        lines.append(
            f"{options.conformance}: {len(judged)} functions and operators judged; {wrong} functions are wrong or call an operator that is"
        )
    lines.append(f"Next: op-tools analyse -i YOUR_CODE -o RESULTS --support {options.output}")
    sys.stdout.write(visible("\n".join(lines)) + "\n")
    return 0


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
        "--samples", type=int, default=1000, metavar="N", help="sample calls per function at most (1000: all)"
    )
    command.add_argument(
        "--conformance",
        metavar="RESULT",
        help="a folder that op-tools conformance run wrote for this device: its results per dtype go into the table",
    )
    command.set_defaults(run=_support)
