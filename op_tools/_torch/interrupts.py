"""Which exceptions are not of the code that they ended, but of the program around it.

Python runs the handlers of signals, and raises exceptions that another thread sends, between any two instructions of any code: a
hook's, or ours. Such an exception is no failure of that code.
"""

from __future__ import annotations

import functools
import opcode
import signal
import sys
import traceback
from types import CodeType

# Nothing in them raises, but Python looks there for signals and sent exceptions.
_QUIET = ("RESUME", "JUMP", "POP_JUMP", "NOP", "CACHE", "INSTRUMENTED_RESUME", "INSTRUMENTED_JUMP")


def _code_of(function: object) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")  # an object that can be called
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_written_in_python(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and file.endswith((".py", ".pyc")))


def is_from_outside(error: Exception) -> bool:
    """Did it arrive while the code ran that it ended?

    Args:
        error: with its traceback from that code on.
    """
    trace = list(traceback.walk_tb(error.__traceback__))
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    if any(frame.f_code in handlers for frame, _ in trace):
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    if last.tb_lasti < 0:  # before the first instruction
        return True
    name = opcode.opname[last.tb_frame.f_code.co_code[last.tb_lasti]]
    if name.startswith(_QUIET):
        return True
    # A sent exception has no arguments, as only its class is passed. Functions in C that raise without arguments raise classes that
    # are written in C.
    return name.startswith(("CALL", "PRECALL")) and not error.args and _is_written_in_python(type(error))
