"""The tools as Python objects: thin scopes round the C++ core.

Every tool can be used as a context manager, as a decorator, or with start() and stop(); it can be started again after
it was stopped, and entered again while it is on (the outermost exit stops it).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch

from . import (
    _C,
    _compiled,  # noqa: F401  (gives the core the torch level's mode)
    _higher_order,  # noqa: F401  (lets torch's operators in Python pass)
    _modules,  # noqa: F401  (tells the core the names of modules)
)

P = ParamSpec("P")
R = TypeVar("R")
Names = str | Iterable[str] | None

# Tools that are on, so that a program which ends inside one still gets its files and its summary.
# They are kept alive: OpCapture().start() is on until the end, whether or not the caller keeps the tool.
_running: set[Tool] = set()


def _names(value: Names) -> str | None:
    """A filter list as the core reads it: comma-separated text."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(value)


def _tell_rank() -> None:
    """Files are kept by distributed rank; the default process group knows it better than the environment."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        _C.set_rank(distributed.get_rank())


class Tool:
    """What all tools have in common.

    Args:
        ops: only these operators: regular expressions, as a list or comma-separated. None: the tool's OP_*_LIST.
        skip: all but these. None: the tool's OP_*_DISABLE_LIST.
        level: "torch" (Python's torch functions, names as users write them) or "aten" (every operator that torch
            dispatches, of C++ callers and the backward engine too).
        output_dir: the folder in which the result folder is made. None: OP_TOOLS_OUTPUT_DIR, else the working directory.
        modules: only calls made in these modules, or in modules inside them: "layer3", "layer3.0.conv1", ".*.attention",
            "ResNet.layer3" (a model of that class). A list, or comma-separated. None: the tool's OP_*_MODULES, else all.
        steps: record only in these steps, counted from 0 by step(). None: in all.
        skip_cpu: pass over calls whose tensors are all on the CPU. None: OP_TOOLS_SKIP_CPU.
        all_threads: aten level: also the operators of threads that start no tool themselves, but the first one of each.

    Raises:
        op_tools.Error: on start, when an argument or an environment value is wrong.
    """

    _kind: ClassVar[str] = ""  # the core's name of the tool
    _flag: ClassVar[str]  # its word on the command line and in OP_TOOLS
    _variables: ClassVar[str]  # what the names of its filter variables begin with

    def __init__(
        self,
        *,
        ops: Names = None,
        skip: Names = None,
        level: str = "torch",
        output_dir: str | None = None,
        modules: Names = None,
        steps: Iterable[int] | None = None,
        skip_cpu: bool | None = None,
        all_threads: bool = False,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "ops": _names(ops),
            "skip": _names(skip),
            "level": level,
            "output_dir": None if output_dir is None else str(output_dir),
            "modules": _names(modules),
            "steps": None if steps is None else list(steps),
            "skip_cpu": skip_cpu,
            "all_threads": all_threads,
        }
        self._hook: _C.CoreHook | None = None
        self._scope: _C.Scope | None = None
        self._depth = 0
        self._condition: Callable[[_C.Call], bool] | None = None  # set by apply_feature

    def _open(self) -> tuple[_C.CoreHook, _C.Scope]:
        """Makes hook and scope of a new run; reads options and environment."""
        return _C.open_tool(self._kind, self._arguments, self._condition)

    def start(self) -> Tool:
        """Starts the tool on this thread. A tool that was started twice must be stopped twice.

        Raises:
            op_tools.Error: an argument or an environment variable is wrong.
        """
        if self._depth == 0:
            _tell_rank()
            hook, scope = self._open()
            scope.enter()
            self._hook, self._scope = hook, scope
            _running.add(self)
        self._depth += 1
        return self

    def stop(self) -> None:
        """Stops the tool and waits until everything it recorded is on disk.

        Raises:
            op_tools.Error: called in another thread than start().
        """
        if self._depth == 0:
            return
        if self._depth == 1 and self._scope is not None:
            self._scope.leave()
            _running.discard(self)
        self._depth -= 1

    end = stop

    def step(self) -> None:
        """Ends a training step. Steps count from 0."""
        if self._scope is not None:
            self._scope.step()

    def flush(self) -> None:
        """Waits until everything recorded so far is on disk, for example gradients of a backward pass after stop()."""
        if self._hook is not None:
            self._hook.flush()

    def _report(self) -> dict[str, Any]:
        """What the last run recorded so far, as the core tells it."""
        return (self._hook.report() if self._hook is not None else None) or {"rows": []}

    def __enter__(self) -> Tool:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The tool as a decorator: on while the function runs."""

        @functools.wraps(function)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return inside


@dataclass(frozen=True)
class CaptureRow:
    """What was captured of one operator."""

    op: str
    calls: int  # forward calls
    backward: int  # backward passes
    bytes: int  # of tensors, in memory
    unsupported: int  # values without a form in a file; meta.json says which
    failed: int  # calls whose operator raised; their inputs are saved


@dataclass(frozen=True)
class CaptureResult:
    """What a run of OpCapture recorded."""

    rows: list[CaptureRow] = field(default_factory=list)
    """One row per operator."""
    root: str = ""
    """Folder of the run; "" if nothing was recorded."""
    bytes_on_disk: int = 0
    """Size of all files."""
    skipped: int = 0
    """Calls that max_calls and max_per_signature excluded."""
    lost: int = 0
    """Calls that could not be written."""
    waits: int = 0
    """How often the program waited because max_pending_mb was reached."""
    incomplete_gradients: int = 0
    """Backward passes that ended before all parts of a gradient had arrived."""
    failure: str = ""
    """The first failed write, or ""."""

    def table(self) -> str:
        """The rows as a text table, most bytes first."""
        return _C.text_table(
            [("op", False), ("calls", True), ("backward", True), ("MB", True)],
            [
                [row.op, str(row.calls), str(row.backward), f"{row.bytes / 1e6:.3f}"]
                for row in sorted(self.rows, key=lambda row: -row.bytes)
            ],
            120,
        )


class OpCapture(Tool):
    """Saves the real inputs, outputs and gradients of operator calls to files.

    One folder per call: ``op_capture_result/<rank>/<time>/<op>/<id>/`` with ``input.pth``, ``output.pth``,
    ``grad_inputs.pth``, ``grad_outputs.pth`` (each opens with ``torch.load(path, weights_only=True)``) and ``meta.json``.
    ``run_op_from_data`` replays them.

    Args:
        format: "folders" (default) or "container": one append-only zip for many small calls. None: OP_CAPTURE_FORMAT.
        dedupe: store the bytes of a tensor once by their content, in ``tensors/`` of the run's folder; the calls refer to
            them (``op-tools export`` makes calls that stand alone). None: OP_CAPTURE_DEDUPE, else off.
        max_calls: record at most so many calls. None: OP_CAPTURE_MAX_CALLS, else no limit.
        max_per_signature: record the first so many calls per operator, shapes and dtypes.
            None: OP_CAPTURE_MAX_PER_SIGNATURE, else no limit.
        max_pending_mb: memory in MB that may wait to be written; the program waits when it is full, nothing is dropped.
            None: OP_TOOLS_MAX_PENDING_MB, else 1024.

    The other arguments are those of :class:`Tool`; filters in the environment: OP_CAPTURE_LIST, OP_CAPTURE_DISABLE_LIST.
    """

    _kind = "OpCapture"
    _flag = "capture"
    _variables = "OP_CAPTURE"

    def __init__(
        self,
        *,
        format: str | None = None,
        dedupe: bool | None = None,
        max_calls: int | None = None,
        max_per_signature: int | None = None,
        max_pending_mb: int | None = None,
        **tool: Any,
    ) -> None:
        super().__init__(**tool)
        self._arguments.update(
            format=format,
            dedupe=dedupe,
            max_calls=max_calls,
            max_per_signature=max_per_signature,
            max_pending_mb=max_pending_mb,
        )

    def result(self) -> CaptureResult:
        """What the last run recorded so far. Call flush() first to count what is on disk."""
        report = self._report()
        return CaptureResult(**{**report, "rows": [CaptureRow(**row) for row in report["rows"]]})


class Hook:
    """A hook of your own: override before() and after(), then use it in a :class:`HookScope`.

    One object serves many calls on many threads. State of one call belongs in the value that before() returns. An
    exception in a hook is logged and disables the hook; the program goes on.
    """

    gradients = False
    """True: before() and after() are also called for the backward pass (torch level)."""

    def before(self, call: _C.Call) -> object:
        """Called before the operator runs.

        Args:
            call: the call; valid until after() returns. Its tensors are the program's own: do not write them.

        Returns:
            state of this call, for after().
        """

    def after(self, call: _C.Call, state: object) -> None:
        """Called after the operator ran.

        Args:
            call: `call.result` is what it returned; `call.error` is what it raised, "" if it returned.
            state: what before() returned.
        """


class HookScope(Tool):
    """The scope in which a :class:`Hook` of your own sees every call that the filters admit.

    Args:
        hook: the hook.

    The other arguments are those of :class:`Tool`; filters in the environment: OP_HOOK_LIST, OP_HOOK_DISABLE_LIST.
    """

    def __init__(self, hook: Hook, **tool: Any) -> None:
        super().__init__(**tool)
        self.hook = hook

    def _open(self) -> tuple[_C.CoreHook, _C.Scope]:

        def is_defined(name: str) -> bool:
            method = getattr(self.hook, name)
            return getattr(method, "__func__", method) is not getattr(Hook, name)

        hook = _C.python_hook(self.hook, is_defined("before"), is_defined("after"))
        return hook, _C.hook_scope(hook, self._arguments, "OP_HOOK")

    @property
    def calls_seen(self) -> int:
        """Number of calls that the hook has seen in the last run."""
        return 0 if self._scope is None else self._scope.calls_seen


def tool_classes() -> dict[str, type[Tool]]:
    """The tools by the core's names of them ("OpCapture"), in the order in which they were made."""
    found: dict[str, type[Tool]] = {}
    waiting = [Tool]
    while waiting:
        one = waiting.pop(0)
        waiting[:0] = one.__subclasses__()
        if vars(one).get("_kind"):
            found[one._kind] = one
    return found


def stop_all() -> None:
    """Stops every tool that is still on; called when the interpreter exits."""
    for tool in list(_running):
        while tool._depth > 0:
            try:
                tool.stop()
            except _C.Error as error:
                _C.log_warn(f"still on at exit: {error}")
                break
    # Python ends by SIGINT, as shells expect it, when a KeyboardInterrupt ended the program; it forgets that when a text is
    # executed afterwards, which importing a module with dataclasses does.
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102
