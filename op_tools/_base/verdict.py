"""The core's verdicts, exit statuses and account of a run (docs/verdicts.md)."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from . import core
from .core import Coverage as Coverage
from .core import accelerator as accelerator
from .core import exit_status, worst_verdict


class Verdict(str, enum.Enum):
    """The answer about a run, two runs, or calls; the values are the core's words."""

    AGREES = "agrees"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"

    __str__ = str.__str__  # in a text its value


def verdict_of(*, wrong: bool, unseen: Iterable[str] | bool) -> Verdict:
    """The verdict by the findings and by the gaps; a wrong result stays wrong."""
    return Verdict(core.verdict_of(wrong, unseen if isinstance(unseen, bool) else any(unseen)))


def status_of(verdict: Verdict, *, allow_unseen: bool = False) -> int:
    """The exit status: 0 all that was to be judged agrees, 1 something differs, 2 not judged (0 where that is allowed)."""
    return exit_status(verdict.value, allow_unseen)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several verdicts: `differs` comes before `not judged`."""
    return Verdict(worst_verdict([one.value for one in verdicts]))
