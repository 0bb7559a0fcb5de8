"""Texts for people: of errors, and of names that come from outside."""

from __future__ import annotations

_LONGEST = 200  # characters; errors of kernels may quote whole sources


def one_line(error: BaseException) -> str:
    """The text of an error without its line breaks, cut where it becomes too long."""
    return " ".join(str(error).split())[:_LONGEST]


def with_type(error: BaseException) -> str:
    """The type of an error and its text: "RuntimeError: not implemented"."""
    return f"{type(error).__name__}: {one_line(error)}"


def printable(text: str, keep: str = "") -> str:
    """A text that comes from outside, for a terminal or a page: a character that would drive it, or turn the direction of what
    follows, becomes its number.

    Args:
        text: of a file, a program, a user.
        keep: characters that stay, as line feeds.
    """
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)
