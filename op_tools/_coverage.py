"""What a verdict covers: the verdicts, the exit statuses that they give, and the account of what a tool saw and did not see.

"Nothing wrong" holds only for what was looked at. Work that no tool could see (a thread, another process, a compiled
graph), a tool that is off, an accelerator that no tensor was on, or nothing at all: the verdict is *not judged*.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from . import _C

_OF_DATA_LOADERS = ("_pin_memory_loop", "_worker_loop")  # functions of threads and processes that compute nothing


class Verdict(enum.Enum):
    """The answer about a run, two runs, or calls."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"


def verdict_of(*, wrong: bool, unseen: Iterable[str] | bool) -> Verdict:
    """The verdict on what was found and on what was not looked at; what is wrong stays wrong."""
    if wrong:
        return Verdict.DIFFERS
    return Verdict.NOT_JUDGED if any([unseen] if isinstance(unseen, bool) else unseen) else Verdict.AGREES


def status_of(verdict: Verdict, *, allow_unseen: bool = False) -> int:
    """The exit status: 0 all that was to be judged agrees, 1 something differs, 2 not judged (0 where that is allowed)."""
    if verdict is Verdict.DIFFERS:
        return 1
    return 2 if verdict is Verdict.NOT_JUDGED and not allow_unseen else 0


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several verdicts: what differs comes before what is not judged."""
    all_of_them = set(verdicts)
    return next((one for one in (Verdict.DIFFERS, Verdict.NOT_JUDGED) if one in all_of_them), Verdict.AGREES)


def accelerator() -> str:
    """The type of the accelerator that this process has; "" for none."""
    with contextlib.suppress(Exception):  # of a device whose runtime is broken
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "" if device is None else device.type
    return ""


@dataclass
class _Elsewhere:
    """Operators that a thread ran where no tool saw them. Written by that thread alone."""

    calls: int = 0
    on_device: int = 0


@dataclass
class Coverage:
    """What a run of a tool saw, and what it did not see."""

    seen: int = 0
    """Calls that came to the tool."""
    judged: int = 0
    """Results with a verdict."""
    not_judged: int = 0
    """Results without one."""
    lost: int = 0
    """Calls that were left out for want of room, or could not be written."""
    steps: int = 0
    """Training steps."""
    accelerator: str = ""
    """The one that this process has; "" for none."""
    devices: dict[str, int] = field(default_factory=dict)
    """Results by the type of their device, where the tool notes it."""
    on_device: bool | None = None
    """A call gave a tensor on a device other than the host, whatever tool took part in it; None: not asked."""
    threads: int = 0
    """Python threads that ran operators unseen."""
    thread_calls: int = 0
    """Their calls."""
    thread_calls_on_device: int = 0
    """Those of them that gave tensors on an accelerator."""
    processes: int = 0
    """Processes that the program started to compute beside this one, without a tool."""
    loaders: int = 0
    """Processes that load data: they do not count against a verdict."""
    compiled: int = 0
    """Graphs that torch.compile made and the tool did not look into."""
    off: bool = False
    """The tool failed and was switched off."""

    def reasons(self) -> list[str]:
        """Why it is not known that nothing is wrong; empty where it is."""
        reasons = []
        if self.off:
            reasons.append("the tool failed and was off")
        if not self.seen:
            reasons.append("no call was seen")
        if self.not_judged > self.judged:
            reasons.append(f"{self.not_judged} of {self.judged + self.not_judged} results have no verdict")
        if self.lost > self.judged:
            reasons.append(f"{self.lost} calls were left out")
        on_device = bool(self.devices.get(self.accelerator)) if self.devices else self.on_device
        if self.accelerator and self.seen and on_device is False:
            reasons.append(f"no tensor was on {self.accelerator}")
        # Operators on the host beside a run on the device cannot matter.
        if self.thread_calls_on_device or self.thread_calls > self.seen:
            reasons.append(f"{self.threads} threads made {self.thread_calls} calls unseen")
        if self.processes:
            reasons.append(f"{self.processes} processes of the program had no tool")
        if self.compiled:
            reasons.append(f"{self.compiled} compiled graphs were not looked into")
        return reasons

    def lines(self) -> list[str]:
        """For people, above the verdict."""
        parts = [f"{self.seen} calls seen"]
        if self.judged or self.not_judged:
            parts.append(f"{self.judged} results judged, {self.not_judged} not")
        parts += [f"{count} on {device}" for device, count in sorted(self.devices.items())]
        if self.lost:
            parts.append(f"{self.lost} left out")
        if self.threads:
            parts.append(f"{self.thread_calls} calls of {self.threads} threads unseen")
        if self.loaders:
            parts.append(f"{self.loaders} data loader processes")
        reasons = self.reasons()
        lines = [f"Looked at: {', '.join(parts)}"]
        if reasons:
            lines.append(f"NOT JUDGED: {'; '.join(reasons)}")
        return [part for line in lines for part in textwrap.wrap(line, 80, subsequent_indent="  ")]


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
        self.on_device = False

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
        self.note_device()
        coverage.on_device = self.on_device
        coverage.compiled = (_graphs() if self._graphs_after < 0 else self._graphs_after) - self._graphs

    def note_device(self) -> None:
        """Before another run begins to look for tensors on a device, and while this one is on."""
        if self._graphs_after < 0:
            self.on_device = self.on_device or _C.device_tensor_seen()

    def end(self) -> None:
        """The tool is off."""
        self.note_device()
        self._graphs_after = _graphs()


def _graphs() -> int:
    """Graphs that torch.compile has made in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


_watches: list[Watch] = []  # of the tools that are on


def begin_watch() -> Watch:
    """Of a tool that is switched on."""
    _install()
    for other in _watches:
        other.note_device()
    _C.look_for_device_tensors()
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
