"""The command line: python -m op_tools, installed as op-tools."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from ._base.optional_parts import MissingPartError
from ._base.own_command import WRONG_USAGE
from ._commands.command_line import UsageError, parser_of, visible

_RUN = "run"
_NO_READER = 141  # as a shell has it for a program that SIGPIPE ended: op-tools ops | head


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status (0 success, 1 nothing found or something wrong, 2 an op_tools.Error, 64 wrong usage)."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = parser_of(*words[:1]).parse_args(words)
        options.is_program = arguments is None
        options.words = list(words)
        if (
            options.is_program and options.command != _RUN
        ):  # the user's program has its own way with characters that a terminal lacks
            _show_all_characters()
        status: int = options.run(options)
        if options.is_program and options.command != _RUN:
            sys.stdout.flush()  # a reader that is gone shows here, and not at exit
        return status
    except BrokenPipeError:
        if arguments is not None or words[:1] == [_RUN]:
            raise  # of the caller, or of the user's program
        _give_up_output()
        return _NO_READER
    except OSError as error:
        if words[:1] == [_RUN]:
            raise  # of the user's program
        name = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "  # a full disk names no file
        sys.stderr.write(f"op-tools: {visible(f'{name}{error.strerror or error}')}\n")
        if arguments is None:
            _give_up_output()
        return 2
    except UsageError as error:
        sys.stderr.write(f"op-tools {options.command}: {visible(str(error))}\n")
        return WRONG_USAGE
    except Exception as error:
        if not _is_ours(error):
            if arguments is not None or words[:1] == [_RUN]:
                raise
            sys.excepthook(type(error), error, error.__traceback__)  # as Python does, with status 1: "they differ"
            return 2
        sys.stderr.write(f"op-tools: {visible(str(error))}\n")
        return int(getattr(error, "exit_status", 2))  # wrong variables are wrong usage


def _give_up_output() -> None:
    """Where standard output takes no more: Python writes the rest at exit, and would say so with a status of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_all_characters() -> None:
    """A terminal that lacks a character gets its number, and no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_ours(error: Exception) -> bool:
    """A part of op_tools that is missing, or an op_tools.Error: a class of the core, which is loaded only by commands that need it."""
    core = sys.modules.get(f"{__package__}._base.core")
    return isinstance(error, MissingPartError) or (core is not None and isinstance(error, core.Error))


if __name__ == "__main__":
    sys.exit(main())
