"""Modules that bring a device: torch_npu, op_tools.sim_device."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import torch

from . import _C
from ._error_text import one_line


def is_simulated(device: str) -> bool:
    """Is it our simulated device? `device`: "sim", "npu:1"."""
    return device.partition(":")[0] == "sim"


def modules_of(device: str, given: Iterable[str]) -> list[str]:
    """What has to be imported for a device: the modules given; without any, our own for the simulated device. torch loads
    the backends of vendors by itself, where they say so to Python.

    Args:
        device: "sim", "npu:1".
        given: the values of --import.
    """
    return list(given) or (["op_tools.sim_device"] if is_simulated(device) else [])


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


def usable_device(name: str, number: int = 0) -> torch.device:
    """The device of a name, which has been asked for memory.

    Args:
        name: "npu", "npu:1".
        number: of a worker process: where the name has no index, the workers are spread over the devices of the machine.

    Raises:
        op_tools.Error: there is no such device.
    """
    try:
        device = torch.device(name)
        accelerator = torch.accelerator.current_accelerator()
        if device.index is None and accelerator is not None and accelerator.type == device.type:
            device = torch.device(device.type, number % torch.accelerator.device_count())
        torch.empty(1, device=device)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise _C.Error(f"--device {name}: {one_line(error)}; import its backend first: --import NAME") from error
    return device
