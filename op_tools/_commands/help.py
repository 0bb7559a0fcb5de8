"""op-tools help: the options of a command or of a tool."""

from __future__ import annotations

import argparse
import sys

from .command_line import Commands, UsageError, command_names, parser_of
from .questions import Question, answers
from .run import kinds_by_flag, tool_help


def _print_help(options: argparse.Namespace) -> int:
    topic = " ".join(options.topic)
    commands = command_names()
    tools = kinds_by_flag()
    if topic and topic not in commands and topic not in tools:
        if known := answers(topic):
            sys.stdout.write("\n\n".join(map(_answer_text, known)) + "\n")
            return 0
        raise UsageError(f"{topic} is no command ({', '.join(commands)}) and no tool ({', '.join(tools)})")
    if topic in tools:
        sys.stdout.write(tool_help(topic) + ("\n" if topic in commands else ""))
    if topic in commands or not topic:
        parser_of(topic).parse_args([topic, "--help"] if topic else ["--help"])
    return 0


def _answer_text(question: Question) -> str:
    lines = [f"{question.text[:1].upper()}{question.text[1:]}?", *(f"  {command}" for command in question.commands)]
    return "\n".join([*lines, f"  more: docs/{question.page}"])


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "help",
        help="the options of a command or of a tool; the commands that answer a question",
        epilog="op-tools help autocompare; op-tools help compare; op-tools help which operator is slow",
    )
    command.add_argument(
        "topic", nargs="*", default=[], help="a command, a tool, or words of a question; without it: all commands"
    )
    command.set_defaults(run=_print_help)
