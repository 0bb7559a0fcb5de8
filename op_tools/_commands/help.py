"""op-tools help: the options of a command or of a tool."""

from __future__ import annotations

import argparse
import sys

from .command_line import Commands, UsageError, command_names, parser_of
from .run import kinds_by_flag, tool_help


def _print_help(options: argparse.Namespace) -> int:
    topic = options.topic
    commands = command_names()
    tools = kinds_by_flag()
    if topic and topic not in commands and topic not in tools:
        raise UsageError(f"{topic} is no command ({', '.join(commands)}) and no tool ({', '.join(tools)})")
    if topic in tools:
        sys.stdout.write(tool_help(topic) + ("\n" if topic in commands else ""))
    if topic in commands or not topic:
        parser_of(topic).parse_args([topic, "--help"] if topic else ["--help"])
    return 0


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "help",
        help="the options of a command or of a tool",
        epilog="op-tools help autocompare; op-tools help compare",
    )
    command.add_argument("topic", nargs="?", default="", help="a command or a tool; without it: all commands")
    command.set_defaults(run=_print_help)
