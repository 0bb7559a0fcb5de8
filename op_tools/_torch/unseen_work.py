"""Work that no tool sees while tools are on: other threads, processes and compiled graphs, for the account of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from .._base.core import UnseenCalls
from .._base.verdict import Coverage
from .compiled_graphs import GraphRuns

# Only the accounts of all processes of a program say whether these are gaps: a single process may have had no work.
_OF_SUMS = {"nothing_seen", "most_unjudged", "most_lost", "not_on_accelerator", "wide_limits"}


class Watch:
    """The work beside the tools of this process while any of them is on."""

    def __init__(self) -> None:
        self._unseen, self._graphs = UnseenCalls(), GraphRuns()
        self.loaders = 0
        self.children: list[Path] = []  # the files with the tool's results in child processes

    def add_to(self, coverage: Coverage, *, sees_threads: bool, level: str) -> None:
        """Adds the notes so far to the account of a tool."""
        threads, calls, on_device, processes, scripts, native, native_on_device = self._unseen.count()
        coverage.loaders, coverage.processes = self.loaders, processes
        if not sees_threads:
            coverage.threads, coverage.thread_calls, coverage.thread_calls_on_device = threads, calls, on_device
        if level == "torch":
            coverage.native_calls, coverage.native_calls_on_device = native, native_on_device
        self._graphs.add_to(coverage, level)
        coverage.compiled += 0 if level == "aten" else scripts
        for path in self.children:
            if path.exists():
                told = json.loads(path.read_text())
                _add_child(coverage, Coverage(**told["coverage"]), wrong=told["wrong"])
            else:
                coverage.processes += 1

    def save_graphs(self, folder: Callable[[], str]) -> None:
        """Compiled graphs that a tool judges are written into a folder, which `folder` makes; "": it cannot be made."""
        self._graphs.folder_of_graphs = folder

    def end(self) -> None:
        """The tool is off; the notes stay."""
        self._unseen.end()
        self._graphs.end()


def _add_child(coverage: Coverage, told: Coverage, *, wrong: bool) -> None:
    """The account of a child process with the same tool."""
    for name in ("seen", "judged", "bytes", "wide_limits"):
        setattr(coverage, name, getattr(coverage, name) + getattr(told, name))
    for name in ("not_judged", "lost", "devices"):
        setattr(coverage, name, dict(Counter(getattr(coverage, name)) + Counter(getattr(told, name))))
    coverage.on_device = coverage.on_device or told.on_device
    coverage.children += 1 + told.children
    coverage.children_wrong += wrong
    coverage.children_with_gaps += not _OF_SUMS.issuperset(told.gaps())
