"""Runs in fresh processes: of the judge over a saved call, and of a finished script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error
from .._base.verdict import Verdict

TIMEOUT = 300.0
"""Seconds after which a process counts as hanging."""


@dataclass
class Ended:
    """How a process ended."""

    status: int | None
    """None: it was still running at the time limit."""
    out: str = ""
    err: str = ""

    @property
    def died(self) -> str:
        """Words for a process that did not end by itself; "" for a process that did."""
        if self.status is None:
            return "hangs"
        if self.status < 0:
            try:
                return f"ends with {signal.Signals(-self.status).name}"
            except ValueError:
                return f"ends with signal {-self.status}"
        return ""


def run(
    command: list[str], timeout: float = TIMEOUT, environment: dict[str, str] | None = None, folder: Path | None = None
) -> Ended:
    """Runs a command; its output is text that may hold anything."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            env=environment,
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        return Ended(None)
    except OSError as error:
        raise Error(f"{command[0]}: {error.strerror}") from None
    return Ended(done.returncode, done.stdout, done.stderr)


@dataclass
class Judged:
    """The report of run_op_from_data on a call on a device."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    trouble: str = ""
    """Why there are no rows."""
    died: str = ""
    expected: list[dict[str, Any]] = field(default_factory=list)
    """The expectations of each result, for _expected.py."""

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["verdict"] == Verdict.DIFFERS]


def replay_command(imports: tuple[str, ...]) -> list[str]:
    """run_op_from_data in a Python of its own, with a vendor's modules imported first."""
    lines = "".join(f"import {one}\n" for one in imports)
    text = f"import sys\n{lines}from op_tools.run_op_from_data import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", text]


def package_environment() -> dict[str, str]:
    """The environment for a process that has to find this op_tools, wherever this process got it from."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OP_TOOLS_LOG_LEVEL": "error"}


def judge(folder: str, device: str, imports: tuple[str, ...], libraries: tuple[str, ...], calls: int = 1) -> Judged:
    """Has a call judged on the device, by the judge of OpAutoCompare: against the CPU, on the CPU against float64."""
    with tempfile.TemporaryDirectory() as folder_of_report:
        report, expected = Path(folder_of_report) / "report.json", Path(folder_of_report) / "expected.pth"
        command = [*replay_command(imports), folder, "--acc_check", "--device", device, "--json", str(report)]
        command += ["--expected", str(expected)]
        command += ["--quiet", "--no_summary", "--run_times", str(calls)]
        for library in libraries:
            command += ["--load", library]
        done = run(command, environment=package_environment())
        if done.died:
            return Judged(died=done.died)
        if not report.exists():
            raise Error(
                f"{folder}: it cannot be run: {done.err.strip().splitlines()[-1] if done.err.strip() else 'no reason'}"
            )
        (call,) = json.loads(report.read_text())["calls"]
        (checks,) = torch.load(expected, weights_only=True).values()
    return Judged(call.get("checks", []), call.get("reason", ""), expected=checks)


def run_fresh(path: Path, device: str = "", timeout: float = TIMEOUT, imports: tuple[str, ...] = ()) -> Ended:
    """Runs a script in a fresh process, which does not find the op_tools of this process unless it imports a part of it."""
    ours = Path(__file__).resolve().parents[2]
    if any(name.partition(".")[0] == __package__.partition(".")[0] for name in imports):
        return run([sys.executable, str(path), *([device] if device else [])], timeout, package_environment())
    kept = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one and Path(one).resolve() != ours]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}
    return run([sys.executable, str(path), *([device] if device else [])], timeout, environment)
