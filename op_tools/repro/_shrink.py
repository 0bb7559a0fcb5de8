"""Drives the search for a smaller call: run_op_from_data --shrink, started again where an operator ended its process."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._base.core import Error
from ._script import Plan
from ._trial import package_environment, replay_command

_ENDED_BY_ITSELF = (0, 1, 2, 64)


@dataclass
class ShrunkCall:
    """The smallest call that still fails."""

    folder: str
    attempts: int = 0
    elements_before: int = 0
    elements: int = 0
    notes: list[str] = field(default_factory=list)
    """The findings about sizes: "fails from 257 on; passes at 256"."""


def _pass_on(lines: Any, say: Callable[[str], None], last: list[str]) -> None:
    for line in lines:
        text = line.rstrip("\n")
        if text.startswith("shrink "):
            say(text)
        elif text:
            last[:] = [text]


def _one_process(command: list[str], timeout: float, say: Callable[[str], None]) -> tuple[int, str]:
    """Runs until it ends by itself or an operator ends it. Each attempt has a time limit of its own inside (SIGALRM)."""
    last = [""]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=package_environment(),
    ) as process:
        reader = threading.Thread(target=_pass_on, args=(process.stderr, say, last))
        reader.start()
        try:
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            reader.join(timeout)
    return process.returncode, last[0]


def shrink(
    folder: str, into: str, plan: Plan, *, attempts: int, timeout: float, say: Callable[[str], None]
) -> ShrunkCall:
    """Looks for the smallest call that fails as a saved one does.

    Args:
        folder: the saved call.
        into: a folder that is there, for the smaller call.
        plan: device, imports, libraries.
        attempts: at most.
        timeout: seconds for each of them.
        say: gets a line for each attempt.

    Raises:
        op_tools.Error: the call does not fail, or cannot be run.
    """
    report = Path(into) / "shrink.json"
    command = [*replay_command(plan.imports), folder, "--shrink", into, "--device", plan.device, "--json", str(report)]
    command += ["--attempts", str(attempts), "--attempt_seconds", str(max(1, int(timeout)))]
    for library in plan.libraries:
        command += ["--load", library]
    for _ in range(attempts + 2):
        status, last = _one_process(command, timeout, say)
        if status in _ENDED_BY_ITSELF:
            break
        say(f"the operator ended the process (status {status}); going on")
    if status != 1 or not report.exists():
        raise Error(f"{folder}: it cannot be made smaller: {last or f'status {status}'}")
    done = json.loads(report.read_text())
    notes = [f"{one['what']}: fails from {one['fails']} on; passes at {one['passes']}" for one in done["limits"]]
    smaller = f"{done['elements_before']} elements before, {done['elements']} now, {done['attempts']} attempts"
    return ShrunkCall(done["folder"], done["attempts"], done["elements_before"], done["elements"], [*notes, smaller])


__all__ = ["ShrunkCall", "shrink"]
