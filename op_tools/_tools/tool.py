"""The tools as Python objects: thin scopes of the C++ core.

Every tool can be used as a context manager, as a decorator, or with start() and stop(); it can be started again after
it was stopped, and entered again while it is on (the outermost exit stops it).
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import html
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from typing_extensions import Self, Unpack

from .._base.config_file import switched
from .._base.core import (
    Call,
    CoreHook,
    Error,
    Scope,
    Switch,
    check_settings,
    hook_scope,
    log_warn,
    open_tool,
    python_hook,
    running_tools,
    set_rank,
    termination_begins,
    watch_termination,
)
from .._base.declared_options import OpCaptureOptions, ToolOptions
from .._base.declared_rows import CaptureRow
from .._base.results import DEFAULT_ROWS, Shown, SortableResult, counted, megabytes, sorted_rows, worded
from .._base.tool_declarations import Option
from .._base.tool_descriptions import arguments_text, for_core, hook_options, kind_of, row_class, signature_of
from .._base.verdict import Coverage, accelerator
from .._torch.host import take_places
from .._torch.module_calls import watch_modules
from .._torch.operator_names import tell_core
from .._torch.unseen_work import Watch
from .children import Report, follow_processes
from .decorate import decorated

P = ParamSpec("P")
R = TypeVar("R")


def _for_core(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings whose paths may have no UTF-8 form: the core takes the bytes of these."""
    return {
        name: os.fsencode(value) if isinstance(value, str) and not value.isprintable() else value
        for name, value in settings.items()
    }


def _terminated(number: int, _: object) -> None:
    """SIGTERM while a tool is on: schedulers and launchers end programs so, and their results are still wanted."""
    termination_begins()
    stop_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _watch_termination(*, on: bool = True) -> None:
    """While a tool is on SIGTERM flushes, unless the program has a handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        return  # Python allows handlers in the main thread only
    handler = signal.getsignal(signal.SIGTERM)
    running = running_tools()
    if on and running and handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
        watch_termination()  # where the interpreter never gets to it
    elif handler is _terminated and not (on and running):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# A forked child starts without tools and without the handler. It must not have it for a moment either: Python drops a
# signal that arrives before the child is set up, which would then never end.
os.register_at_fork(
    before=lambda: _watch_termination(on=False),
    after_in_parent=_watch_termination,
    after_in_child=lambda: _watch_termination(on=False),
)


def _tell_rank() -> None:
    """Files are sorted by distributed rank; the default process group knows it better than the environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        set_rank(distributed.get_rank())


@dataclass(frozen=True, repr=False)
class ToolResult(SortableResult):
    """The results of a tool without a result class of its own. Its table has the rows as they were recorded."""

    rows: list[Any] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # the other entries of its report
    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were seen, and which were not."""

    def _columns(self) -> list[Shown[Any]]:
        columns = []
        for column in fields(self.rows[0]):
            is_number = isinstance(getattr(self.rows[0], column.name), (int, float))
            columns.append(Shown[Any](column.name, worded("", column.name).text, is_number))
        return columns

    def table(self, sort_by: str | None = None, row_limit: int = DEFAULT_ROWS) -> str:
        return super().table(sort_by, row_limit) if self.rows else ""


class Tool(Switch):
    """The common part of all tools. Options are read, from arguments and environment, when the tool starts.

    Raises:
        TypeError: when made with a keyword that is no option of the tool.
        op_tools.Error: on start, when an argument or an environment value is wrong.
    """

    _kind: ClassVar[str] = ""  # the core's name of the tool
    _defaults: ClassVar[dict[str, Any]] = {"level": "torch"}  # where they are not the core's
    _in_children: ClassVar[bool] = False  # op-tools run starts it in Pythons that the program starts, too
    _goes_to_children = True  # processes that the program starts by multiprocessing get it, too
    _further: ClassVar[tuple[str, ...]] = ()  # parameters of __init__ that are no options

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        options = cls._options()
        parameters = inspect.signature(cls.__init__).parameters
        further = [parameters[name] for name in cls._further]
        cls.__signature__ = signature_of(options, further, cls._defaults)  # type: ignore[attr-defined]
        before, args, after = inspect.cleandoc(cls.__doc__ or "").partition("\n\nArgs:\n")
        own, gap, rest = after.partition("\n\n")
        listed = "\n".join(filter(None, [own if args else "", arguments_text(options)]))
        cls.__doc__ = f"{before}\n\nArgs:\n{listed}{gap}{rest}\n"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        known = {option.name: option for option in self._options()}
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{type(self).__name__}() has no option {name!r}{hint}")
        self._arguments: dict[str, Any] = {
            name: for_core(known[name], value) for name, value in options.items() if value is not None
        }
        self._condition: Callable[[Call], bool] | None = None  # set by apply_feature
        self._watch: Watch | None = None  # of the last run
        self._marks_steps = False  # optimizers end its steps
        self._report_to_parent: Report | None = None  # in a process that a process with this tool started

    @classmethod
    def _options(cls) -> tuple[Option, ...]:
        return kind_of(cls._kind).options if cls._kind else hook_options()

    def _open_watched(self) -> tuple[CoreHook, Scope] | None:
        """As _open(); the run's account has the other events."""
        opened = self._open()
        if opened is not None and self._watch is not None:
            opened[1].look_beside(self._add_beside(self._watch, opened[1].level))
        return opened

    def _add_beside(self, watch: Watch, level: str) -> Callable[[Coverage], None]:
        """The watch's knowledge, for the account of a run; holds no tool, which holds the run."""
        variables = {option.name: option.variable for option in self._options()}
        sees_threads = bool(self._arguments.get("all_threads", switched(variables["all_threads"])))
        return lambda account: watch.add_to(account, sees_threads=sees_threads, level=level)

    def _open(self) -> tuple[CoreHook, Scope] | None:
        """Makes hook and scope of a new run; reads options and environment. None: nothing is to be recorded now."""
        _tell_rank()
        return open_tool(self._kind, _for_core(self._settings()), self._condition)

    def _settings(self) -> dict[str, Any]:
        """The arguments as the core takes them, with the defaults that are not the core's where no variable is set."""
        tell_core()
        variables = {option.name: option.variable for option in self._options()}
        defaults = {name: value for name, value in self._defaults.items() if not os.environ.get(variables[name])}
        return {**defaults, **self._arguments}

    def check(self) -> None:
        """Reads arguments and environment as start() does, and starts nothing.

        Raises:
            op_tools.Error: an argument or an environment variable is wrong.
        """
        check_settings(self._kind, _for_core(self._settings()))

    def start(self) -> Self:
        """Starts the tool on this thread. A tool that was started twice must be stopped twice.

        Raises:
            op_tools.Error: an argument or an environment variable is wrong.
        """
        if self._depth == 0:
            self._begin_watch()
        try:
            self._switch_on(self._open_watched)
            follow_processes()
        finally:
            if self._depth == 0:
                self._end_watch()
        _watch_termination()
        watch_modules()
        return self

    def stop(self) -> None:
        """Stops the tool and waits until everything it recorded is on disk.

        Raises:
            op_tools.Error: called in another thread than start(), which has not ended.
        """
        self._switch_off()
        _watch_termination()
        watch_modules()
        if self._depth == 0:
            self._end_watch()
            if self._report_to_parent is not None:
                self._report_to_parent.write(self)

    end = stop

    def _begin_watch(self) -> None:
        self._end_watch()
        self._watch = Watch()

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.end()

    def coverage(self) -> Coverage:
        """Which calls the last run saw so far, and which it did not see."""
        if self._scope is not None:
            return self._scope.coverage()
        account = Coverage(accelerator=accelerator())
        if self._watch is not None:
            self._add_beside(self._watch, "torch")(account)
        return account

    def step(self) -> None:
        """Ends a training step. Steps count from 0."""
        if self._scope is not None:
            self._scope.step()

    def flush(self) -> None:
        """Waits until everything recorded so far is on disk, for example gradients of a backward pass after stop()."""
        if self._hook is not None:
            self._hook.flush()
        if self._scope is not None and not self._scope.is_on:
            self._scope.write_account()  # the files may have more rows since stop()

    def result(self) -> Any:
        """The results of the last run so far."""
        report = self._report_and_coverage()
        rows, coverage = report.pop("rows"), report.pop("coverage")
        row = row_class(kind_of(self._kind).rows[0]) if rows else None
        return ToolResult([row(**one) for one in rows] if row else [], report, coverage)

    def _report(self) -> dict[str, Any]:
        """The results of the last run so far, as the core has them."""
        return (self._hook.report() if self._hook is not None else None) or {"rows": []}

    def _report_and_coverage(self) -> dict[str, Any]:
        """The same, and the account of the run: the parts of results."""
        return {**self._report(), "coverage": self.coverage()}

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        return f"<op_tools.{type(self).__name__}({arguments}), {'on' if self._depth else 'off'}>"

    def _repr_html_(self) -> str:
        """For notebooks: the results so far."""
        to_html = getattr(self.result(), "_repr_html_", str)
        return f"<p>{html.escape(repr(self))}</p>{to_html()}"

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The tool as a decorator: on while the function's own code runs. A generator or a coroutine is suspended where it
        gives a value or waits: calls made meanwhile are not recorded."""
        return decorated(self, function)


@dataclass(frozen=True, repr=False)
class CaptureResult(SortableResult):
    """The calls that a run of OpCapture saved. Its table has the operators with most bytes first."""

    rows: list[CaptureRow] = field(default_factory=list)
    """A row per operator."""
    root: str = ""
    """Folder of the run; "" if nothing was recorded."""
    bytes_on_disk: int = 0
    """Size of all files."""
    skipped: int = 0
    """Calls that max_calls and max_per_signature excluded, and those after `limit` was reached."""
    lost: int = 0
    """Calls that could not be written."""
    waits: int = 0
    """How often the program waited because max_pending_mb was reached."""
    incomplete_gradients: int = 0
    """Backward passes that ended before all parts of a gradient had arrived."""
    failure: str = ""
    """The first failed write, or ""."""
    limit: str = ""
    """The reason for an early end of the capture: max_gb, or too little free space on the disk; else ""."""
    coverage: Coverage = field(default_factory=Coverage)
    """Which calls were seen, and which were not."""

    def _in_order(self) -> Sequence[CaptureRow]:
        return sorted_rows(self.rows, "bytes")

    def _columns(self) -> list[Shown[Any]]:
        return [
            worded("op", "op"),
            counted("calls", "calls"),
            counted("backward", "backward"),
            megabytes("MB", "bytes"),
        ]


class OpCapture(Tool):
    """Saves the real inputs, outputs and gradients of operator calls to files.

    A folder per call: ``op_capture_result/<rank>/<time>/<op>/<id>/`` with ``input.pth``, ``output.pth``,
    ``grad_inputs.pth``, ``grad_outputs.pth`` (each opens with ``torch.load(path, weights_only=True)``) and ``meta.json``.
    ``run_op_from_data`` replays them.
    """

    _kind = "OpCapture"

    def __init__(self, **options: Unpack[OpCaptureOptions]) -> None:
        super().__init__(**options)

    def result(self) -> CaptureResult:
        """The saved calls of the last run so far. Call flush() first to count the calls on disk."""
        report = self._report_and_coverage()
        return CaptureResult(**{**report, "rows": [CaptureRow(**row) for row in report["rows"]]})


class Hook:
    """A hook of your own: override before() and after(), then use it in a :class:`HookScope`.

    An object serves many calls on many threads. The state of a call belongs in the value that before() returns. An
    exception in a hook is logged and disables the hook; the program goes on.
    """

    gradients = False
    """True: before() and after() are also called for the backward pass (torch level)."""

    def before(self, call: Call) -> object:
        """Called before the operator runs.

        Args:
            call: the call; valid until after() returns. Its tensors are the program's own: do not write them.

        Returns:
            state of this call, for after().
        """

    def after(self, call: Call, state: object) -> None:
        """Called after the operator ran.

        Args:
            call: `call.result` is its result; `call.error` its exception, "" if it returned.
            state: the value that before() returned.
        """


class HookScope(Tool):
    """The scope in which a :class:`Hook` of your own sees every call that the filters admit.

    Args:
        hook: the hook.
    """

    _further = ("hook",)
    _goes_to_children = False  # the hook's state is in this process

    def __init__(self, hook: Hook, **options: Unpack[ToolOptions]) -> None:
        super().__init__(**options)
        self.hook = hook

    def _open(self) -> tuple[CoreHook, Scope]:

        def is_defined(name: str) -> bool:
            method = getattr(self.hook, name)
            return getattr(method, "__func__", method) is not getattr(Hook, name)

        _tell_rank()
        hook = python_hook(self.hook, is_defined("before"), is_defined("after"))
        return hook, hook_scope(hook, _for_core(self._settings()))

    @property
    def calls_seen(self) -> int:
        """Number of calls that the hook has seen in the last run."""
        return 0 if self._scope is None else self._scope.calls_seen


def stop_all() -> None:
    """Stops every tool that is still on; called when the interpreter exits."""
    interrupt: BaseException | None = None
    for tool in running_tools():
        while (depth := tool._depth) > 0:
            try:
                tool.__exit__(None, None, None)
            except Error as error:
                log_warn(f"still on at exit: {error}")
                break
            except BaseException as error:  # the others are stopped as well
                interrupt = interrupt or error
                if tool._depth >= depth:  # it will not stop
                    break
    if interrupt is not None:
        raise interrupt
    # Python ends by SIGINT, as shells expect it, when a KeyboardInterrupt ended the program; it forgets that when a string is
    # executed afterwards, which importing a module with dataclasses does.
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102


# At the import, because a tool needs them: first the answers to the core's questions.
take_places()
atexit.register(stop_all)
