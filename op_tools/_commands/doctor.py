"""op-tools doctor: versions, devices, variables, filters."""

from __future__ import annotations

import argparse
import sys

from .._doctor import examine
from ._command_line import Commands


def _doctor(_: argparse.Namespace) -> int:
    findings = examine()
    sys.stdout.write("\n".join(findings.lines) + "\n")
    return 1 if findings.problems else 0


def add(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="why is my result empty: versions, devices, variables, what the filters match",
        description="Looks at this machine and this environment. Exit status 1 when something is wrong.",
    )
    doctor.set_defaults(run=_doctor)
