"""op-tools run and op-tools env: a program with tools on, and the variables that do the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from .._as_cuda import OTHER_ACCELERATORS
from .._base.tool_declarations import CONFIG_FILE, FAIL_ON, Kind, Option, declared_kinds, declared_shared_options
from .command_line import Commands, Parser, add_imports, work


def _add_option(group: Any, flag: str, dest: str, option: Option, *, hidden: bool = False) -> None:
    """An option of a tool as a flag, made from its declaration. It is in the result only where it was given."""
    of_type: dict[str, dict[str, Any]] = {
        "bool": {"action": argparse.BooleanOptionalAction},
        "int": {"type": int, "metavar": "N"},
        "float": {"type": float, "metavar": "X"},
        "choice": {"choices": option.choices},
        "ints": {"type": _integers, "metavar": "N,N|N:N|first:N"},
        "names": {"metavar": "LIST"},
        "path": {"metavar": "DIR"},
    }
    text = f"{option.help} ({option.variable + ', else ' if option.variable else ''}{option.default})".replace(
        "%", "%%"
    )
    help_text = argparse.SUPPRESS if hidden else text
    group.add_argument(
        flag, dest=dest, default=argparse.SUPPRESS, help=help_text, **of_type.get(option.type, {"metavar": "TEXT"})
    )


def kinds_by_flag() -> dict[str, Kind]:
    """The tools by their words on the command line ("capture")."""
    return {kind.flag: kind for kind in declared_kinds().values()}


def flag_of(name: str) -> str:
    """Of an option's name, as in Python: the flag without its dashes."""
    return name.strip("_").replace("_", "-")


def _integers(text: str) -> list[int]:
    """Numbers: 0,5; a range without its end: 3:6; the first of all: first:3."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        begin, colon, end = part.partition(":")
        try:
            first = 0 if colon and begin.strip() == "first" else int(begin)
            last = int(end) if colon else first + 1
        except ValueError:
            first, last = 0, 0
        if last - first > _MOST_STEPS:
            raise argparse.ArgumentTypeError(f"'{text}' is not allowed; a range has at most {_MOST_STEPS:,} steps")
        if last <= first:
            raise argparse.ArgumentTypeError(
                f"'{text}' is not allowed; give integers, as 0,5; a range without its end, as 3:6; or the first of all, as first:3"
            )
        numbers |= dict.fromkeys(range(first, last))
    return list(numbers)


_MOST_STEPS = 1_000_000  # in a range


def _add_shared_options(command: argparse.ArgumentParser) -> None:
    """The options that every tool has."""
    shared = command.add_argument_group("options of every tool")
    for option in declared_shared_options():
        _add_option(shared, f"--{flag_of(option.name)}", f"all:{option.name}", option)


def _add_own_options(command: argparse.ArgumentParser) -> None:
    """The options of the tools: --max-calls for every chosen tool that has it, --capture-max-calls for a single tool."""
    taken = {flag.replace("-", "_") for flag in kinds_by_flag()}
    words: dict[str, list[str]] = {}  # of choices: those of all tools that have an option of this name
    for option in (option for kind in declared_kinds().values() for option in kind.own_options):
        words[option.name] = list(dict.fromkeys([*words.get(option.name, []), *option.choices]))
    for kind in declared_kinds().values():
        for option in kind.options:
            flag, dest = f"--{kind.flag}-{flag_of(option.name)}", f"{kind.flag}:{option.name}"
            _add_option(command, flag, dest, option, hidden=True)
            if option in kind.own_options and option.name not in taken:
                taken.add(option.name)
                of_all = replace(option, choices=tuple(words[option.name]))
                _add_option(command, f"--{flag_of(option.name)}", f"all:{option.name}", of_all, hidden=True)


class _Help(argparse.Action):
    """--help: the tools and the options of all; behind --autocompare or another tool, the options of that tool."""

    def __init__(self, option_strings: Sequence[str], **_: Any) -> None:
        text = "show this text; --autocompare --help (or op-tools help autocompare): the options of that tool"
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=text)

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> NoReturn:
        flags = [flag for flag in kinds_by_flag() if getattr(namespace, flag.replace("-", "_"))]
        sys.stdout.write("\n".join(map(tool_help, flags)) if flags else parser.format_help())
        raise SystemExit(0)


def tool_help(flag: str) -> str:
    """The options of a tool, as text for a terminal."""
    kind = kinds_by_flag()[flag]
    parser = Parser(
        prog="op-tools run",
        usage=f"op-tools run --{flag} [options] program ...",
        description=kind.summary,
        epilog=f"The word {flag} may be left out of an option. Options of every tool: op-tools run --help",
        add_help=False,
    )
    group = parser.add_argument_group(f"options of {kind.name}")
    for option in kind.own_options:
        _add_option(group, f"--{kind.flag}-{flag_of(option.name)}", option.name, option)
    return parser.format_help()


def _add_launch(command: argparse.ArgumentParser) -> None:
    """The options of op-tools run and of op-tools env."""
    command.add_argument("-h", "--help", action=_Help)
    _add_tools(command)
    add_imports(command)
    command.add_argument(
        "--as-cuda", metavar="DEVICE", help='the program\'s "cuda" is this device (npu, sim, ...); needs no tool'
    )
    command.add_argument(
        "--as-accelerator",
        metavar="DEVICE",
        help=f"the same for a program that names {', '.join(OTHER_ACCELERATORS)}",
    )
    command.add_argument(
        "--fail-on",
        choices=tuple(FAIL_ON),
        help="wrong: exit status 1 when a tool found something wrong, 2 when most was not looked at (autocompare, invariance, overflow, "
        "memory, against, shadow); variant: the same of invariance alone: a result did not keep its bits",
    )
    command.add_argument(
        "--fail-on-wrong", dest="fail_on", action="store_const", const="wrong", help="the same as --fail-on wrong"
    )
    command.add_argument(
        "--allow-unseen", action="store_true", help="with --fail-on: status 0 although most was not looked at"
    )
    command.add_argument("--config", metavar="FILE", help=f"tools and options; without it {CONFIG_FILE}, if it exists")
    loudness = command.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="a line for each call")
    loudness.add_argument("-q", "--quiet", action="store_true", help="warnings and errors only")
    _add_shared_options(command)
    _add_own_options(command)


def _add_tools(command: argparse.ArgumentParser) -> None:
    for flag, kind in kinds_by_flag().items():
        command.add_argument(f"--{flag}", action="store_true", help=f"{kind.name}: {kind.summary}")


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        add_help=False,
        usage="op-tools run --TOOL [--TOOL ...] [options] [-m] program ...",
        help="run an unchanged script or module with tools on",
        description="Runs a program as python does, with tools on for its main thread. An optimizer's step is a training "
        "step. The tool's word in front of an option may be left out (--max-calls): then each chosen tool that has the "
        "option takes it.",
        epilog="op-tools run --capture --time --ops 'torch.nn.functional.*' train.py --lr 0.1",
    )
    _add_launch(run)
    run.add_argument(
        "--against",
        metavar="A",
        help="compare with this recording as the program runs, and save the first call that differs",
    )
    run.add_argument("--stop", action="store_true", help="with --against: end the program there, with status 1")
    run.add_argument(
        "--shadow", metavar="CAPTURE", help="give each operator the captured inputs: which are wrong by themselves?"
    )
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module, as with python -m")
    run.add_argument("program", help="the script, or the module")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    run.set_defaults(run=work("run", "run_command"), parser=run)


def _add_env(commands: Commands) -> None:
    environment = commands.add_parser(
        "env",
        add_help=False,
        usage="op-tools env --TOOL [--TOOL ...] [options]",
        help="print the variables that put tools on programs which others start",
        description="Prints shell lines. A Python that is started with them has the tools on as soon as it imports torch; "
        "OP_TOOLS can be changed by hand: OP_TOOLS=capture,time:aten. Options are those of op-tools run.",
        epilog='eval "$(op-tools env --capture)"; torchrun --nproc-per-node 8 train.py',
    )
    _add_launch(environment)
    environment.set_defaults(run=work("run", "print_environment"))


def add(commands: Commands) -> None:
    _add_run(commands)
    _add_env(commands)
