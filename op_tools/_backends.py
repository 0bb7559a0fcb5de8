"""Modules that bring a device: torch_npu, op_tools.sim_device."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from . import _C


def import_backends(names: Iterable[str]) -> None:
    """Imports the modules that bring a device.

    Raises:
        op_tools.Error: one cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise _C.Error(f"--import {name}: {error}") from error
