"""What a verdict covers: the core's verdicts, exit statuses and account of a run (docs/verdicts.md); and what only Python
knows of a run: threads, processes and compiled graphs that no tool looks into."""

from __future__ import annotations

import enum
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from . import _C

_OF_DATA_LOADERS = ("_pin_memory_loop", "_worker_loop")  # functions of threads and processes that compute nothing

Coverage = _C.Coverage
accelerator = _C.accelerator


class Verdict(enum.Enum):
    """The answer about a run, two runs, or calls; the values are the core's words."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"


def verdict_of(*, wrong: bool, unseen: Iterable[str] | bool) -> Verdict:
    """The verdict on what was found and on what was not looked at; what is wrong stays wrong."""
    return Verdict(_C.verdict_of(wrong, unseen if isinstance(unseen, bool) else any(unseen)))


def status_of(verdict: Verdict, *, allow_unseen: bool = False) -> int:
    """The exit status: 0 all that was to be judged agrees, 1 something differs, 2 not judged (0 where that is allowed)."""
    return _C.exit_status(verdict.value, allow_unseen)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several verdicts: what differs comes before what is not judged."""
    return Verdict(_C.worst_verdict([one.value for one in verdicts]))


@dataclass
class _Elsewhere:
    """Operators that a thread ran where no tool saw them. Written by that thread alone."""

    calls: int = 0
    on_device: int = 0


class _Counts(torch.overrides.TorchFunctionMode):
    """Counts the torch functions of a thread that no tool sees."""

    def __init__(self, elsewhere: _Elsewhere) -> None:
        super().__init__()
        self._elsewhere = elsewhere

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not torch.compiler.is_compiling() and getattr(func, "__name__", "") not in ("__get__", "__set__"):
            self._elsewhere.calls += 1
            first = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(first, torch.Tensor) and first.device.type not in ("cpu", "meta"):
                self._elsewhere.on_device += 1
        return result


class Watch:
    """What goes on beside the tools of this process while one of them is on."""

    def __init__(self) -> None:
        self.threads: list[_Elsewhere] = []
        self.processes = self.loaders = 0
        self._graphs, self._graphs_after = _graphs(), -1  # -1: it is on

    def note_process(self, name: str) -> None:
        """A process begins, to run the function of that name."""
        if name in _OF_DATA_LOADERS:
            self.loaders += 1
        elif name == "_wrap":  # of torch.multiprocessing.spawn: a rank
            self.processes += 1

    def add_to(self, coverage: Coverage, *, sees_threads: bool) -> None:
        """Writes what was noted so far to the account of a tool."""
        coverage.processes, coverage.loaders = self.processes, self.loaders
        if not sees_threads:
            busy = [one for one in self.threads if one.calls]
            coverage.threads = len(busy)
            coverage.thread_calls = sum(one.calls for one in busy)
            coverage.thread_calls_on_device = sum(one.on_device for one in busy)
        coverage.compiled = (_graphs() if self._graphs_after < 0 else self._graphs_after) - self._graphs

    def end(self) -> None:
        """The tool is off."""
        self._graphs_after = _graphs()


def _graphs() -> int:
    """Graphs that torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


_watches: list[Watch] = []  # of the tools that are on


def begin_watch() -> Watch:
    """Of a tool that is switched on."""
    _install()
    watch = Watch()
    _watches.append(watch)
    return watch


def end_watch(watch: Watch) -> None:
    """Of a tool that is switched off; what it noted stays."""
    if watch in _watches:
        _watches.remove(watch)
        watch.end()


_is_installed = False


def _install() -> None:
    """From the first tool on. They stay when the tools are off: who else took their place meanwhile calls them."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    start_process = BaseProcess.start

    def run_thread(thread: threading.Thread, bootstrap: Callable[[threading.Thread], None]) -> None:
        target = getattr(getattr(thread, "_target", None), "__name__", "")
        if not _watches or target in _OF_DATA_LOADERS:
            bootstrap(thread)
            return
        elsewhere = _Elsewhere()
        for watch in _watches:
            watch.threads.append(elsewhere)
        with _Counts(elsewhere):
            bootstrap(thread)

    def start(process: BaseProcess) -> None:
        name = getattr(getattr(process, "_target", None), "__name__", "")
        for watch in _watches:
            watch.note_process(name)
        start_process(process)

    _C.run_unfollowed_threads_by(run_thread)
    BaseProcess.start = start  # type: ignore[method-assign,assignment]
