"""The command line: python -m op_tools, installed as op-tools."""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence

import torch

from . import _C
from ._tools import OpCapture


def _torch_names() -> list[str]:
    functions = torch.overrides.get_overridable_functions()
    names = {_C.function_name(function) for group in functions.values() for function in group}
    names.update(f"torch.{name}" for name in dir(torch._C._VariableFunctions) if not name.startswith("_"))
    return sorted(names)


def _aten_names(composite: bool) -> list[str]:
    return [name for name, is_composite in _C.known_ops() if composite or not is_composite]


def _list_ops(options: argparse.Namespace) -> int:
    if options.excluded:
        names = _C.metadata_ops()
    elif options.level == "torch":
        names = _torch_names()
    else:
        # Composite operators are met only when a filter names them; their parts are met always.
        names = _aten_names(composite=options.ops is not None)
    for name in _C.admitted(names, options.ops or "", options.skip or "") if not options.excluded else names:
        sys.stdout.write(name + "\n")
    return 0


def _run_script(options: argparse.Namespace) -> int:
    sys.argv = [options.script, *options.arguments]
    sys.path.insert(0, str(options.script).rpartition("/")[0] or ".")
    with OpCapture(ops=options.ops, skip=options.skip, level=options.level, output_dir=options.output_dir):
        runpy.run_path(options.script, run_name="__main__")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="op-tools",
        description="Look at every operator that a PyTorch program runs.",
        epilog="Replay what was captured: run_op_from_data FOLDER --acc_check",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def filters(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--level", choices=("torch", "aten"), default="torch", help="names as Python's or torch's own"
        )
        command.add_argument("--ops", metavar="LIST", help="only these: regular expressions, comma-separated")
        command.add_argument("--skip", metavar="LIST", help="all but these")

    ops = commands.add_parser("ops", help="list the operators that a filter would match")
    filters(ops)
    ops.add_argument(
        "--excluded", action="store_true", help="the metadata calls that are left out unless a filter names them"
    )
    ops.set_defaults(run=_list_ops)

    run = commands.add_parser("run", help="run an unchanged script with a tool on")
    filters(run)
    run.add_argument(
        "--capture", action="store_true", required=True, help="save inputs, outputs and gradients (OpCapture)"
    )
    run.add_argument("--output-dir", metavar="DIR", help="where op_capture_result is made (default: here)")
    run.add_argument("script", help="the script")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    run.set_defaults(run=_run_script)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status (0 success, 2 wrong usage or an op_tools.Error)."""
    options = _parser().parse_args(arguments)
    try:
        return options.run(options)
    except _C.Error as error:
        sys.stderr.write(f"op-tools: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
