"""The commands of a diagnosis: a program with tools on, and other commands of op-tools."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from .._base.own_command import is_this_python, op_tools_words

_END_AFTER = 30  # seconds between SIGTERM and SIGKILL: a launcher ends its ranks meanwhile


@dataclass(frozen=True)
class Program:
    """The command line of a user's program: a script and its arguments, or any command, such as a launcher."""

    words: tuple[str, ...]

    @property
    def script(self) -> tuple[str, ...]:
        """The words behind `op-tools run`; empty where the program is started by a command of its own, such as a launcher."""
        words = self.words
        if len(words) > 1 and is_this_python(words[0]) and (words[1] == "-m" or words[1].endswith(".py")):
            words = words[1:]
        if words[0] == "-m":  # a module that is given a script may be a launcher: -m torch.distributed.run train.py
            return () if any(word.endswith(".py") for word in words) else words
        return words if words[0].endswith(".py") else ()

    def with_tools(self, options: Sequence[str], seconds: float | None = None) -> list[str]:
        """The program with tools on, ended after `seconds`.

        Args:
            options: those of op-tools run: tools, and their options.
            seconds: None: it has all the time.
        """
        if script := self.script:
            return [*ended_after(seconds), *op_tools_words(), "run", *options, *script]
        setting = shlex.join([*op_tools_words(), "env", *options])
        return [*ended_after(seconds), "sh", "-c", f'eval "$({setting})"; exec {shlex.join(self.words)}']

    def plain(self) -> list[str]:
        """As a shell starts it, without tools, for commands that put their own on it."""
        return list(self.words)


def ended_after(seconds: float | None) -> list[str]:
    """The words in front of a command that is to end."""
    return [] if seconds is None else ["timeout", "-k", str(_END_AFTER), str(max(1, round(seconds)))]


def as_program(command: str) -> Program:
    """A program that is an argument: `--reference "ref.py --device cpu"`."""
    return Program(tuple(shlex.split(command)))


def shown(words: Sequence[str | os.PathLike[str]]) -> str:
    """A command as a shell takes it."""
    return shlex.join(os.fspath(word) for word in words)
