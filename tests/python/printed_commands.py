"""Commands that texts of ours show for copying, and what the command line has against them."""

import contextlib
import functools
import io
import re
import shlex

from op_tools._commands.command_line import parser_of

parser_of_command = functools.cache(parser_of)  # `run` has 300 flags; a parser parses any number of times

# A variable's value in front of a command, and what starts Python; behind it all words to the end, a comment, or the next command.
_COMMAND = re.compile(
    r"(?<![\w./-])(op-tools|\S*python[\d.]* -m op_tools(?:\.run_op_from_data)?|run_op_from_data)(?![\w.-])"
    r"((?: (?:'[^']*'|\"[^\"]*\"|[^\s#;>|&)`'\"])+)*)"
)


def commands_in(text):
    """The words of each command in a text: `op-tools` or `run_op_from_data`, however it is called, and its arguments."""
    for line in text.splitlines():
        for program, rest in _COMMAND.findall(line):
            name = "run_op_from_data" if program.endswith("run_op_from_data") else "op-tools"
            yield [name, *shlex.split(rest)]


def refused(words):
    """What the parser of op-tools says against the arguments of a command; "" where it takes them. Nothing is run."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser_of_command(*words[:1]).parse_args(words)
        except SystemExit as end:
            return said.getvalue().strip().splitlines()[-1] if end.code else ""
    return ""
