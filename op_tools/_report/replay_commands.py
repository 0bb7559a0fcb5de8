"""The commands that take a saved call further."""

from __future__ import annotations

import shlex
from pathlib import Path

from .._base.core import Coverage
from .part import Command

_SIMULATED = "sim"


def _import_of(account: Coverage | None) -> str:
    """The option that brings the device of a run, where its module is known."""
    is_simulated = account is not None and _SIMULATED in (account.accelerator, *account.devices)
    return " --import op_tools.sim_device" if is_simulated else ""


def commands_of_call(folder: Path, account: Coverage | None) -> list[Command]:
    """Of the folder of a saved call; nothing where it is gone."""
    if not (folder / "input.pth").is_file():
        return []
    place = shlex.quote(str(folder))
    return [
        Command("run this call again, judged", f"python -m op_tools.run_op_from_data {place} --acc_check"),
        Command(
            "a script that shows it without op_tools",
            f"op-tools repro {place} --shrink{_import_of(account)}",
        ),
    ]
