"""What a verdict covers: the core's verdicts, exit statuses and account of a run (docs/verdicts.md); and what only Python
knows of a run: threads, processes and compiled graphs that no tool looks into."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from . import _C
from ._graphs import GraphRuns

Coverage = _C.Coverage
accelerator = _C.accelerator

# What the accounts of a program's processes are together says whether these are gaps: one of them may have had no work.
_OF_SUMS = {"nothing_seen", "most_unjudged", "most_lost", "not_on_accelerator", "wide_limits"}


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


class Watch:
    """What goes on beside the tools of this process while one of them is on."""

    def __init__(self) -> None:
        self._unseen, self._graphs = _C.UnseenCalls(), GraphRuns()
        self.loaders = 0
        self.children: list[Path] = []  # the files in which processes tell what the tool saw in them

    def add_to(self, coverage: Coverage, *, sees_threads: bool, sees_scripts: bool) -> None:
        """Writes what was noted so far to the account of a tool."""
        threads, calls, on_device, processes, scripts = self._unseen.count()
        coverage.loaders, coverage.processes = self.loaders, processes
        if not sees_threads:
            coverage.threads, coverage.thread_calls, coverage.thread_calls_on_device = threads, calls, on_device
        coverage.compiled = self._graphs.count + (0 if sees_scripts else scripts)
        for path in self.children:
            if path.exists():
                told = json.loads(path.read_text())
                _add_child(coverage, Coverage(**told["coverage"]), wrong=told["wrong"])
            else:
                coverage.processes += 1

    def end(self) -> None:
        """The tool is off; what was noted stays."""
        self._unseen.end()
        self._graphs.end()


def _add_child(coverage: Coverage, told: Coverage, *, wrong: bool) -> None:
    """The account of a process that this one started, with the same tool."""
    for name in ("seen", "judged", "bytes", "wide_limits"):
        setattr(coverage, name, getattr(coverage, name) + getattr(told, name))
    for name in ("not_judged", "lost", "devices"):
        setattr(coverage, name, dict(Counter(getattr(coverage, name)) + Counter(getattr(told, name))))
    coverage.on_device = coverage.on_device or told.on_device
    coverage.children += 1 + told.children
    coverage.children_wrong += wrong
    coverage.children_with_gaps += not _OF_SUMS.issuperset(told.gaps())
