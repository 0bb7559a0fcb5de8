"""Modules that bring a device: torch_npu, op_tools.sim_device."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points

import torch

from .._base.core import Error
from .._base.error_text import one_line

VARIABLE = "OP_TOOLS_IMPORT"
"""Modules for every command, and for every Python that op-tools run or env gives its tools, as --import names them to one command."""

# Of devices whose package is not called torch_DEVICE.
_PACKAGES = {"vulkan": "torchvulkan", "hpu": "habana_frameworks", "xpu": "intel_extension_for_pytorch"}
_VENDORS = ("torch_npu", "torch_mlu", "torch_musa", "torch_gcu", "torch_xla", *_PACKAGES.values())


def is_simulated(device: str) -> bool:
    """Is it our simulated device? `device`: "sim", "npu:1"."""
    return device.partition(":")[0] == "sim"


def modules_of(device: str, named: Iterable[str]) -> list[str]:
    """The modules to import for a device: those of the environment and the named ones; without named ones our own for the simulated
    device, or the package of a device that torch does not have yet. torch loads the backends of vendors by itself, where they say so
    to Python.

    Args:
        device: "sim", "npu:1".
        named: the values of --import.
    """
    return list(
        dict.fromkeys([*_modules_of_environment(), *(list(named) or _modules_known_for(device.partition(":")[0]))])
    )


def _modules_known_for(name: str) -> list[str]:
    if is_simulated(name):
        return ["op_tools.sim_device"]
    package = _PACKAGES.get(name, f"torch_{name}")
    return [package] if not hasattr(torch, name) and _is_installed(package) else []


def _modules_of_environment() -> list[str]:
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a package that is half there
        return False


def not_imported() -> list[str]:
    """Packages that bring a device, are installed, and were not imported: those of vendors, and those that torch would have
    imported (TORCH_DEVICE_BACKEND_AUTOLOAD)."""
    announced = [one.value.partition(":")[0] for one in entry_points(group="torch.backends")]
    packages = dict.fromkeys([*announced, *_VENDORS])
    return [name for name in packages if name not in sys.modules and _is_installed(name.partition(".")[0])]


def import_backends(names: Iterable[str]) -> None:
    """Imports the modules that bring a device.

    Raises:
        op_tools.Error: a module cannot be imported.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever its code raises, and torch where another backend is registered
            source = VARIABLE if name in _modules_of_environment() else "--import"
            raise Error(f"{source} {name}: {one_line(error)}") from error


def import_from_environment() -> None:
    """Imports the modules in OP_TOOLS_IMPORT.

    Raises:
        op_tools.Error: a module cannot be imported.
    """
    import_backends(_modules_of_environment())


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
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and name.partition(":")[0] == accelerator.type:
            advice = f"there are {torch.accelerator.device_count()}, with numbers from 0"
        else:
            advice = f"import its backend first: --import {' or '.join(not_imported()) or 'NAME'}"
        raise Error(f"--device {name}: {one_line(error)}; {advice}") from error
    return device
