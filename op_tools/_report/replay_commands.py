"""The commands that take a saved call further."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .._base.core import Coverage
from .._base.own_command import op_tools_line, replay_line
from .part import Command, Finding, worst_first

_SIMULATED = "sim"


def _import_of(account: Coverage | None) -> list[str]:
    """The option that brings the device of a run, where its module is known."""
    is_simulated = account is not None and _SIMULATED in (account.accelerator, *account.devices)
    return ["--import", "op_tools.sim_device"] if is_simulated else []


_MOST = 3  # calls whose commands are shown


def commands_of_findings(
    findings: Sequence[Finding], account: Coverage | None, *, of_bits: bool = False
) -> list[Command]:
    """Of the saved calls of the first operators that are wrong, a call each. `of_bits`: they are findings of OpInvariance."""
    saved = {finding.op: finding.saved for finding in reversed(worst_first(findings)) if finding.saved}
    folders = list(reversed(saved.values()))[:_MOST]
    return [command for folder in folders for command in commands_of_call(Path(folder), account, of_bits=of_bits)]


def commands_of_call(folder: Path, account: Coverage | None, *, of_bits: bool = False) -> list[Command]:
    """Of the folder of a saved call; nothing where it is gone."""
    if not (folder / "input.pth").is_file():
        return []
    place = str(folder)
    return [
        Command("run this call again, judged", replay_line(place, "--invariance" if of_bits else "--acc_check")),
        Command(
            "a script that shows it without op_tools",
            op_tools_line("repro", place, *([] if of_bits else ["--shrink"]), *_import_of(account)),
        ),
    ]
