"""Options, and variables in their place, that the core refuses before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .._base.core import Error
from .._commands.command_line import UsageError


@contextlib.contextmanager
def wrong_usage() -> Iterator[None]:
    """An error in the block, which reads options and variables, is wrong usage: nothing has run yet."""
    try:
        yield
    except Error as error:
        raise UsageError(str(error)) from None
