"""Ctrl-C, and exceptions that another thread sends, at random moments: each reaches the program, and no tool is left between.

A program enters a tool, runs a few steps and leaves it, again and again, until something arrives: SIGINT, a handler of a
signal that raises, or an exception that another thread sends. Then the program has to have it, every tool has to be off, no
function mode may be left, and the tools have to work as before. An exception that Python itself drops (it says so:
"Exception ignored in", for exceptions in a destructor) is counted apart.

    interrupts.py [--moments 2000] [--seed 0]
"""

from __future__ import annotations

import collections
import ctypes
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from _program import parser, quiet

import op_tools

Make = Callable[[], Any]


class SentError(Exception):
    """Sent by another thread."""


class SentExit(BaseException):
    """Sent by another thread; no Exception."""


class AlarmError(Exception):
    """Raised by a handler."""


def on_alarm(*_: object) -> None:
    raise AlarmError("the handler's")


def send(kind: type[BaseException]) -> None:
    """Makes it arrive in the main thread."""
    if kind is KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)
    elif kind is AlarmError:
        os.kill(os.getpid(), signal.SIGUSR1)
    else:
        main = ctypes.c_ulong(threading.main_thread().ident or 0)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(kind)) == 1


KINDS: list[type[BaseException]] = [KeyboardInterrupt, AlarmError, SentError, SentExit, SystemExit, GeneratorExit]


class Looks(op_tools.Hook):
    """A hook in Python, which is where most of it arrives."""

    gradients = True

    def before(self, call: Any) -> object:
        return [argument for argument in call.args if isinstance(argument, torch.Tensor)]

    def after(self, call: Any, state: object) -> None:
        for _ in range(20):
            call.module  # noqa: B018


def tools(folder: str) -> dict[str, Make]:
    """Every tool at both levels, and some together."""
    alone: dict[str, Make] = {}
    for level in ("torch", "aten"):
        common: dict[str, Any] = {"level": level, "output_dir": folder}
        alone.update(
            {
                f"hook {level}": lambda c=common: op_tools.HookScope(Looks(), level=c["level"]),
                f"capture {level}": lambda c=common: op_tools.OpCapture(**c, format="container", max_calls=50),
                f"autocompare {level}": lambda c=common: op_tools.OpAutoCompare(**c),
                f"time {level}": lambda c=common: op_tools.OpTimeMeasure(**c, lines=False, with_modules=True),
                f"observe {level}": lambda c=common: op_tools.OpObserve(**c, max_calls=50),
                f"overflow {level}": lambda c=common: op_tools.OpOverflowCheck(**c),
                f"fallback {level}": lambda c=common: op_tools.OpFallback(**c),
                f"dtype cast {level}": lambda c=common: op_tools.OpDtypeCast(**c, cast="float32->float64"),
            }
        )
    return alone


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.softmax(self.inner(x), -1)) + F.layer_norm(x, (4,))


def step(model: torch.nn.Module, x: torch.Tensor) -> None:
    model(x).square().sum().backward()


def nested(tools: list[Any], work: Callable[[], None]) -> None:
    if tools:
        with tools[0]:
            nested(tools[1:], work)
    else:
        work()


class Run:
    def __init__(self, seed: int, folder: str) -> None:
        self.chance = random.Random(seed)
        self.makes = tools(folder)
        self.arrived: collections.Counter[str] = collections.Counter()
        self.dropped = 0  # by Python
        self.failures: list[str] = []
        self.model = Model()
        self.x = torch.linspace(-1, 1, 12).reshape(3, 4)
        self.span = self.measured()

    def measured(self) -> float:
        """Seconds of a round, about: moments are drawn from a few of them."""
        begun = time.perf_counter()
        for make in self.makes.values():
            self.round([make()])
        return (time.perf_counter() - begun) / len(self.makes)

    def round(self, tools: list[Any]) -> None:
        nested(tools, lambda: step(self.model, self.x))

    def until_it_arrives(self, tools: list[Any], kind: type[BaseException]) -> bool:
        """False: Python dropped it."""
        sent = threading.Event()
        told: list[Any] = []
        delay = self.chance.uniform(0, 4 * self.span)

        def sender() -> None:
            time.sleep(delay)
            send(kind)
            sent.set()

        hook, sys.unraisablehook = sys.unraisablehook, told.append
        thread = threading.Thread(target=sender)
        try:
            thread.start()
            while not sent.is_set():
                self.round(tools)
            for _ in range(3):  # it was sent: now it comes, if it ever does
                self.round(tools)
                time.sleep(0)
        except kind:
            return True
        finally:
            sys.unraisablehook = hook
            thread.join()
        if any(isinstance(one.exc_value, kind) or one.exc_type is kind for one in told):
            return False
        raise AssertionError(f"{kind.__name__} was lost")

    def check(self, tools: list[Any]) -> None:
        for tool in tools:
            name = type(tool).__name__
            assert tool._depth == 0 and not tool._is_running, f"{name} is still on"
            scope = tool._scope
            assert scope is None or scope.hook_failures == 0, f"{name} went off by it"
        assert not op_tools._C.running_tools(), "a tool is still held"
        assert torch.overrides._len_torch_function_stack() == 0, "a function mode was left"
        entries = op_tools._C.kernel_entries()
        step(self.model, self.x)
        assert op_tools._C.kernel_entries() == entries, "operators are still intercepted"
        assert torch._C._len_torch_dispatch_stack() == 0, "a dispatch mode was left"
        for tool in tools:  # each works as before
            with tool:
                torch.exp(self.x)
            assert tool._scope.calls_seen >= 1 and tool._scope.hook_failures == 0, f"{type(tool).__name__} sees nothing"
        name = op_tools._C.function_name(torch.exp)
        assert name == "torch.exp", name

    def moment(self) -> None:
        names = self.chance.sample(sorted(self.makes), k=self.chance.choice([1, 1, 2, 3]))
        kind = self.chance.choice(KINDS)
        tools = [self.makes[name]() for name in names]
        try:
            if self.until_it_arrives(tools, kind):
                self.arrived[kind.__name__] += 1
            else:
                self.dropped += 1
            self.check(tools)
        except BaseException as error:
            self.failures.append(f"{kind.__name__} in {' in '.join(names)}: {type(error).__name__}: {error}")
            for tool in tools:
                while tool._depth:
                    tool.__exit__(None, None, None)


def interrupted(moments: int, seed: int, folder: str) -> Run:
    """That many moments."""
    # Started in the background by a shell, a program ignores Ctrl-C, and Python makes no KeyboardInterrupt.
    handlers = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGUSR1, on_alarm), (signal.SIGINT, signal.default_int_handler))
    }
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the sender's moment is anywhere, not only where the main thread waits
    try:
        run = Run(seed, folder)
        for _ in range(moments):
            run.moment()
    finally:
        sys.setswitchinterval(interval)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return run


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--moments", type=int, default=2000, metavar="N")
    command_line.add_argument("--seed", type=int, default=0, metavar="N")
    options = command_line.parse_args()
    quiet("off")
    with tempfile.TemporaryDirectory(prefix="interrupts-") as folder:
        run = interrupted(options.moments, options.seed, folder)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(run.arrived.items()))
    print(f"{options.moments} moments: {kinds}; {run.dropped} dropped by Python itself; {len(run.failures)} failures")
    for failure in run.failures:
        print(failure)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
