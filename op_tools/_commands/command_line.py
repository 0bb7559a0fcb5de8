"""The common part of the commands: their parser, the status of wrong usage, and text for terminals."""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from .._base.error_text import printable
from .._base.optional_parts import Group, MissingPartError, part, part_names
from .._base.own_command import WRONG_USAGE, package_version

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # generic for type checkers only

# Module of this folder -> the commands that it registers. Only the module of the command that is given is imported. Other packages bring
# further commands.
COMMANDS = {
    "ops": ("ops",),
    "run": ("run", "env"),
    "show": ("show",),
    "report": ("report",),
    "serve": ("serve",),
    "compare": ("compare",),
    "one_iter": ("one-iter",),
    "importing": ("import",),
    "exporting": ("export",),
    "bisect": ("bisect",),
    "repro": ("repro",),
    "diagnose": ("diagnose",),
    "blackbox": ("blackbox",),
    "support": ("support",),
    "analyse": ("analyse",),
    "conformance": ("conformance",),
    "graph_test": ("graph-test",),
    "doctor": ("doctor",),
    "completion": ("completion",),
    "help": ("help",),
}

_LONGEST = 1e6
_MOST_USAGE = 3  # lines of a usage, below an error


def _nearest(word: object, known: Iterable[object]) -> str:
    """A question for the end of an error; "" where no known word is like this word."""
    near = difflib.get_close_matches(str(word), map(str, known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def work(
    module: str, name: str, reads: Sequence[str] = (), copies: Sequence[str] = ()
) -> Callable[[argparse.Namespace], int]:
    """A function of a module of op_tools/_work (of a package of your own: its full name), which is imported when it is called. So help,
    completion and errors of usage need neither torch nor the core.

    Args:
        module: "bisect", or "package.module".
        name: the function: takes the options, returns the exit status.
        reads: the options whose paths may be URLs (op_tools._base.remote_files); files of captures, recordings and black boxes are
            loaded as far as they are read.
        copies: the same, of a command whose other processes, or other libraries, read the files: all are loaded.
    """

    def run(options: argparse.Namespace) -> int:
        function = _function_of(module, name)
        values = [getattr(options, option) for option in (*reads, *copies)]
        if any("://" in path for value in values for path in (value if isinstance(value, list) else [value or ""])):
            return int(_function_of("on_urls", "run_on_local_files")(function, options, reads, copies))
        return int(function(options))

    return run


def _function_of(module: str, name: str) -> Callable[..., Any]:
    """As for work()."""
    place = module if "." in module else f"{__package__.partition('.')[0]}._work.{module}"
    function: Callable[..., Any] = getattr(importlib.import_module(place), name)
    return function


class UsageError(Exception):
    """A command line whose parts do not go together."""


def positive(text: str) -> int:
    """A number from 1, as the type of an argument."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not allowed; give a number from 1")
    return number


def above_zero(text: str) -> float:
    """A number above 0 of seconds or minutes, as the type of an argument: a process can wait for days, and for no number of years."""
    number = float(text)
    if not 0 < number < _LONGEST:  # false of nan, too
        raise argparse.ArgumentTypeError(f"{number:g} is not allowed; give a number above 0 and below {_LONGEST:g}")
    return number


def check_script(path: str) -> None:
    """Before anything runs.

    Raises:
        UsageError: there is no such file, nor a folder with a __main__.py.
    """
    if not Path(path).is_file() and not (Path(path) / "__main__.py").is_file():
        raise UsageError(f"{path}: there is no such script; a module is run with -m")


def check_module(name: str) -> None:
    """Before anything runs. A part of a package is found only by importing it, which is left to the run.

    Raises:
        UsageError: there is no such module, or no such package, in the working folder or installed.
    """
    first = name.partition(".")[0]
    is_there = first and (PathFinder.find_spec(first, [str(Path.cwd())]) or first in sys.modules or find_spec(first))
    if not is_there:
        raise UsageError(f"-m {name}: there is no such module")


def check_program(words: Sequence[str]) -> None:
    """Before anything runs: a script with its arguments, or -m and a module with its.

    Raises:
        UsageError: there is no such script, or module.
    """
    if words[0] != "-m":
        check_script(words[0])
    elif len(words) > 1:
        check_module(words[1])


class Parser(argparse.ArgumentParser):
    """Ends with status 64 if it does not understand the command line. Options are written out: `--time 5` where there is no
    --time would else be --timeout."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        """Ends with the first lines of the usage, which may have a hundred."""
        usage = self.format_usage().splitlines()
        if len(usage) > _MOST_USAGE:
            usage = [*usage[: _MOST_USAGE - 1], f"  ... ({self.prog} --help)"]
        self.exit(WRONG_USAGE, visible("\n".join([*usage, f"{self.prog}: error: {message}", ""])))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Names the nearest word where argparse refuses a word; refuses an empty one (of a variable that is not set) for a file."""
        if value == "" and action.metavar == "FILE":
            raise argparse.ArgumentError(action, "is empty: give a file")
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            raise argparse.ArgumentError(action, f"{error.message}{_nearest(value, action.choices or ())}") from None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses arguments that it does not know: the parser above would print the usage of all commands."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest(unknown[0].partition('=')[0], known)}")
        return parsed, unknown


def parser_of(command: str = "") -> Parser:
    """The parser of a command; of all where there is none of that name."""
    parser = Parser(
        prog="op-tools",
        description="Look at every operator that a PyTorch program runs.",
        epilog="Options of a tool: op-tools help autocompare; captured calls again: run_op_from_data FOLDER --acc_check",
    )
    parser.add_argument("--version", action="version", version=f"op_tools {package_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    modules = [module for module, names in COMMANDS.items() if command in names]
    if not modules and command in part_names(Group.COMMANDS):
        part(Group.COMMANDS, command)(commands)
        return parser
    for module in modules or COMMANDS:
        importlib.import_module(f".{module}", __package__).add(commands)
    for name in () if modules else part_names(Group.COMMANDS):
        try:
            part(Group.COMMANDS, name)(commands)
        except MissingPartError as error:  # the list of all commands says why
            commands.add_parser(name, help=str(error).replace("%", "%%"))
    return parser


def command_names() -> list[str]:
    """All commands, those of op_tools_compat among them, installed or not."""
    return [*(name for names in COMMANDS.values() for name in names), *part_names(Group.COMMANDS)]


def visible(text: str) -> str:
    """Text of several lines for a terminal."""
    return printable(text, keep="\n")


def add_imports(parser: argparse.ArgumentParser) -> None:
    """Adds the option --import, which names backends of devices (op_tools._torch.backends)."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: the backend (torch_npu, op_tools.sim_device)",
    )


def add_allow_unseen(parser: argparse.ArgumentParser) -> None:
    """Adds the option --allow-unseen, of commands whose verdict may be "not judged" (op_tools._base.verdict.status_of)."""
    parser.add_argument("--allow-unseen", action="store_true", help="status 0 instead of 2 where it was not judged")
