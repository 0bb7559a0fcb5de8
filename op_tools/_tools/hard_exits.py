"""os._exit() and os.exec*(): a program ends by them past atexit, and with it the rows and the verdict of its tools."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from .._base.core import log_warn
from .._base.error_text import one_line
from .._base.verdict import Verdict, status_of
from .tool import stop_all


def watch_hard_exits(status_of_tools: Callable[[], int]) -> Callable[[], None]:
    """From now on os._exit(0) stops the tools first, and os.exec*() says that the program goes on without them. In this thread alone:
    another thread ends a program that hangs, and waits for nothing; a forked process has no tools to stop. Another status than 0 is a
    death, as by a signal: OpBlackBox's file says where.

    Args:
        status_of_tools: the exit status by the verdicts of the tools, which are stopped; it takes the place of 0.

    Returns:
        gives os its own functions back.
    """
    here = os.getpid(), threading.get_ident()
    own: dict[str, Callable[..., NoReturn]] = {name: getattr(os, name) for name in ("_exit", "execv", "execve")}

    def give_back() -> None:
        for name, function in own.items():
            setattr(os, name, function)

    @functools.wraps(os._exit)
    def exit_now(status: int) -> NoReturn:
        if status == 0 and (os.getpid(), threading.get_ident()) == here:
            give_back()
            try:
                stop_all()
                status = status_of_tools()
            except Exception as error:  # the program ends in any case
                log_warn(f"NOT JUDGED: {one_line(error)}")
                status = status_of(Verdict.NOT_JUDGED)
        own["_exit"](status)

    def saying_so(function: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(function)
        def go_on(path: Any, *arguments: Any, **named: Any) -> NoReturn:
            if (os.getpid(), threading.get_ident()) == here:
                log_warn(f"the program becomes another one, {os.fsdecode(path)}: its tools end without a verdict")
            function(path, *arguments, **named)

        return go_on

    for name, function in {"_exit": exit_now, "execv": saying_so(os.execv), "execve": saying_so(os.execve)}.items():
        setattr(os, name, function)
    return give_back
