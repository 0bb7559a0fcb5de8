"""The text of an error, in one line of a table or of a message."""

from __future__ import annotations

_LONGEST = 200  # characters; errors of kernels may quote whole sources


def one_line(error: BaseException) -> str:
    """The text of an error without its line breaks, cut where it becomes too long."""
    return " ".join(str(error).split())[:_LONGEST]


def with_type(error: BaseException) -> str:
    """The type of an error and its text: "RuntimeError: not implemented"."""
    return f"{type(error).__name__}: {one_line(error)}"
