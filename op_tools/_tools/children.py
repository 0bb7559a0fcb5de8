"""Processes that the program starts by multiprocessing while tools are on: each gets the same tools, in a folder of its
own rank, and sends its parent their results.

A process object carries the tools to its child for the time of its start, by fork, spawn and forkserver alike. Nothing is
in the environment, where every other program would find it. Data loader workers, and servers that compute nothing, are
started as they are. Under the GIL; in the thread that starts a process.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import multiprocessing
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from .._base.core import is_of_data_loader, log_warn, running_tools, set_rank, start_known
from .._base.verdict import Verdict
from .training_steps import mark_steps

_OF_SERVERS = (
    "multiprocessing.managers",
    "torch._inductor.",
)  # functions of these modules call no operator of the program


@dataclass(frozen=True)
class _Given:
    """A tool as the child makes it."""

    tool_class: type[Any]
    arguments: dict[str, Any]
    condition: Any
    marks_steps: bool
    report: str
    """The file with the tool's results in the child."""


class Report:
    """The file in which a tool of a child leaves its results for the parent, once it is off."""

    def __init__(self, path: str) -> None:
        self._path, self._process = Path(path), os.getpid()

    def write(self, tool: Any) -> None:
        """A failure is a warning, and the parent counts the process as unseen."""
        if os.getpid() != self._process:  # a fork of the child, with a copy of the tool
            return
        try:
            verdict = getattr(tool.result(), "verdict", None)
            told = {"coverage": tool.coverage().to_dict(), "wrong": verdict is Verdict.DIFFERS}
            unfinished = self._path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(told))
            unfinished.replace(self._path)
        except Exception as error:
            log_warn(f"{type(tool).__name__}: its parent process does not get its results: {error}")


class _Run:
    """Stands before run() of a process object, in the child."""

    def __init__(self, process: BaseProcess, tools: list[_Given], rank: int) -> None:
        self._process, self._given, self._rank = process, tools, rank
        self._forks = _forks(process)

    def __call__(self) -> None:
        del self._process.__dict__["run"]
        with _tools_on(self._given, self._rank, self._forks):
            self._process.run()


@contextlib.contextmanager
def _tools_on(inherited: list[_Given], rank: int, forked: bool) -> Iterator[None]:
    """A tool of a kind that went on in the fork goes on; a tool that the environment started, before the rank was known, begins anew."""
    global _ranks
    running: list[Any] = running_tools()
    on = {tool._kind: tool for tool in running if tool._is_running}
    tools: list[tuple[Any, Report]] = []
    set_rank(rank)
    _ranks = itertools.count(rank + 1)
    for description in inherited:
        try:
            if (tool := on.get(description.tool_class._kind)) is None:
                tool = description.tool_class(**description.arguments)
                tool._condition = description.condition
                tool.start()
                if description.marks_steps:
                    mark_steps([tool])
            elif not forked and not tool._in_children:
                tool.stop()
                tool.start()
            tool._report_to_parent = Report(description.report)
            tools.append((tool, tool._report_to_parent))
        except Exception as error:
            log_warn(f"{description.tool_class._kind} is not on in process {os.getpid()}: {error}")
    try:
        yield
    finally:
        for tool, report in reversed(tools):
            try:
                if tool._in_children and tool._kind in on:  # it stays on to the end of the process
                    report.write(tool)
                else:
                    tool.stop()
            except Exception as error:
                log_warn(f"{tool._kind} in process {os.getpid()}: {error}")


def _is_server(process: BaseProcess) -> bool:
    """By the functions that it is started to run: its target, and the target's arguments."""
    kept = vars(process)
    functions = [kept.get("_target"), *kept.get("_args", ()), *kept.get("_kwargs", {}).values()]
    functions += [one.func for one in functions if isinstance(one, functools.partial)]
    return any(callable(one) and str(getattr(one, "__module__", "")).startswith(_OF_SERVERS) for one in functions)


def _is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def _declared_class(tool: Any) -> type[Any]:
    """The class that stands for the core's tool; a program may have derived its own from it."""
    return next(one for one in type(tool).__mro__ if vars(one).get("_kind"))


def _is_of_one_process(tool: Any) -> bool:
    """It selects calls of this process by their numbers: op-tools bisect."""
    options = [option for option in tool._options() if option.name in ("only_calls", "list_calls")]
    return any(tool._arguments.get(one.name) or os.environ.get(one.variable) for one in options)


_numbers = itertools.count()  # of reports
_ranks = itertools.count(1)  # of children without an index, after this process's own


@functools.cache
def _report_folder(process: int) -> Path:
    """For the reports of this process's children; it ends with the process."""
    folder = Path(tempfile.mkdtemp(prefix="op_tools_children_"))

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _rank_of(process: BaseProcess) -> int:
    """The index that torch.multiprocessing.spawn gives; else their number in the order of their starts, after this process."""
    kept = vars(process)
    target, arguments = kept.get("_target"), kept.get("_args", ())
    if getattr(target, "__module__", "") == "torch.multiprocessing.spawn" and len(arguments) > 1:
        return int(arguments[1])
    return next(_ranks)


def _forks(process: BaseProcess) -> bool:
    """It begins as a fork of this process."""
    way = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
    return bool(way == "fork")


def _give(process: BaseProcess) -> list[tuple[Any, Path]] | None:
    """Gives the tools that are on to the process, which is about to start. Returns the accounts that wait for a report; None:
    the core counts the process, if it runs operators."""
    if _is_server(process):
        return []
    running: list[Any] = running_tools()
    tools = [tool for tool in running if tool._is_running and tool._watch is not None]
    if is_of_data_loader(process):
        for tool in tools:
            tool._watch.loaders += 1
        return []
    inherited, waiting = [], []
    for tool in tools:
        report = _report_folder(os.getpid()) / f"{next(_numbers)}.json"
        waiting.append((tool._watch, report))
        goes = tool._goes_to_children and _is_picklable(tool._condition) and not _is_of_one_process(tool)
        tool_class = _declared_class(tool)
        if goes and (_forks(process) or _is_picklable(tool_class)):
            inherited.append(
                _Given(tool_class, dict(tool._arguments), tool._condition, tool._marks_steps, os.fspath(report))
            )
    if inherited and "run" not in vars(process):
        vars(process)["run"] = _Run(process, inherited, _rank_of(process))
    return waiting if inherited or not _forks(process) else None


_start: Any = None  # of BaseProcess, as it was


def _start_with_tools(process: BaseProcess) -> None:
    waiting: list[tuple[Any, Path]] | None = None
    try:
        waiting = _give(process)
    except Exception as error:
        log_warn(f"process {process.name} is started without tools: {error}")
    if waiting is None:
        _start(process)
        return
    for watch, report in waiting:
        watch.children.append(report)
    try:
        start_known(_start, process)
    except BaseException:
        for watch, report in waiting:
            watch.children.remove(report)
        raise
    finally:
        if isinstance(vars(process).get("run"), _Run):
            del vars(process)["run"]


def follow_processes() -> None:
    """From the first tool on. It stays when the tools are off: who else took its place meanwhile calls it."""
    global _start
    if _start is None:
        _start = BaseProcess.start
        BaseProcess.start = _start_with_tools  # type: ignore[method-assign,assignment]
