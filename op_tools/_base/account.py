"""The account of a run as its files have it: in the header of a recording, and of the processes that a command starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from .core import Error
from .verdict import Coverage

ACCOUNT = "account"
"""Its name in a header (kAccount in src/record/recording.h)."""
ACCOUNT_FILE = "coverage.json"
"""Its file beside the other files of a run (kCoverageFile in src/coverage/coverage_file.h)."""

_ON_THE_HOST = ("cpu", "meta")


def coverage_from(facts: Mapping[str, Any]) -> Coverage:
    """Of a result of Coverage.to_dict(); that of another version may have fewer fields, or more."""
    known = Coverage().to_dict()
    return Coverage(**{name: value for name, value in facts.items() if name in known})


# --- Recordings that are compared ---------------------------------------------------------------------------------------


class Recorded(Protocol):
    """The source of an account: a recording, or the facts of a recording without its rows."""

    @property
    def header(self) -> Any: ...
    @property
    def calls(self) -> int: ...
    @property
    def values(self) -> int: ...
    @property
    def known_values(self) -> int: ...
    @property
    def devices(self) -> dict[str, int]: ...


def _account(recording: Recorded) -> Coverage | None:
    """None: the recording says nothing of it. It is of another tool, of an older version, or its program was killed."""
    facts = recording.header.get(ACCOUNT) if isinstance(recording.header, dict) else None
    if not isinstance(facts, dict):
        return None
    read = recording.known_values
    values = {"judged": read, "not_judged": {"not_saved": recording.values - read}}
    return coverage_from({**facts, **values, "seen": recording.calls, "devices": recording.devices})


def accounts_of(recordings: Mapping[str, Recorded]) -> dict[str, Coverage]:
    """The accounts of recordings that are compared with each other, by the names of the recordings ("A"), where they have one.

    A run on a device is compared with a run on the CPU: that no tensor was on the accelerator counts only where
    it holds for all of them.
    """
    accounts = {name: account for name, one in recordings.items() if (account := _account(one)) is not None}
    if any(device not in _ON_THE_HOST for one in recordings.values() for device in one.devices):
        for account in accounts.values():
            account.accelerator = ""
    return accounts


def reasons_of(accounts: Mapping[str, Coverage]) -> list[str]:
    """Why it is not known that these recordings have all of their programs."""
    return [f"{name}: {reason}" for name, account in accounts.items() for reason in account.reasons()]


def lines_of(account: Coverage | None) -> list[str]:
    """For people, where something was not seen."""
    return account.lines() if account is not None and account.reasons() else []


# --- Processes that a command starts ------------------------------------------------------------------------------------


def write_account(path: str, coverages: Iterable[Coverage]) -> None:
    """Of the tools of this process, for who started it.

    Raises:
        OSError: it cannot be written.
    """
    Path(path).write_text(json.dumps([one.to_dict() for one in coverages]), encoding="utf-8")


def unseen_in(paths: Iterable[Path]) -> list[str]:
    """Why not all calls of the processes were seen, of the files that they wrote. A killed process says nothing; a process
    without calls (a launcher) missed none, and a process on the host alone may be beside another."""
    reasons: dict[str, None] = {}
    for path in paths:
        try:
            accounts = [coverage_from(facts) for facts in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError, AttributeError, Error):
            continue
        for account in accounts:
            account.accelerator = ""
            if account.seen or account.off:
                reasons |= dict.fromkeys(account.reasons())
    return list(reasons)
