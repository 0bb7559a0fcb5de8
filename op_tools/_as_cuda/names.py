"""The names that a program uses for its device, and the name that torch has for the accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from .._base.core import Error
from .._torch.backends import not_imported


@dataclass(frozen=True)
class Names:
    """The names that are exchanged.

    Attributes:
        backend: torch's name of the accelerator, such as "sim".
        program: the names that the program uses for it, such as "cuda".
        shown: the value of device.type; ""  for the accelerator's own name.
    """

    backend: str
    program: tuple[str, ...]
    shown: str

    @property
    def module(self) -> ModuleType:
        """The accelerator's torch.cuda, such as torch.sim."""
        module: ModuleType = getattr(torch, self.backend)
        return module

    def rename(self, value: Any) -> Any:
        """Another name for a device that a program's name stands for ("cuda:1": "sim:1"); everything else as it is."""
        if type(value) is str:
            kind, colon, index = value.partition(":")
            if kind in self.program:
                return f"{self.backend}{colon}{index}"
        return value

    def device(self, device: Any) -> torch.device:
        """A device argument of torch.cuda: a number, a string, a device, None for the current one."""
        if device is None:
            return torch.device(self.backend, self.module.current_device())
        if isinstance(device, int):
            return torch.device(self.backend, self.module.current_device() if device < 0 else device)
        renamed = torch.device(self.rename(device))
        if renamed.type not in (self.backend, self.shown):
            raise ValueError(f"Expected a {' or '.join(self.program)} device, but got: {device}")
        return renamed if renamed.index is not None else torch.device(self.backend, self.module.current_device())


def _import_advice() -> str:
    installed = not_imported()
    return f"op-tools run --import {' or '.join(installed) or 'MODULE'}; OP_TOOLS_IMPORT"


def names_for(device: str | None, program: tuple[str, ...], show: bool) -> Names:
    """The names for an accelerator.

    Raises:
        op_tools.Error: when this process has no such accelerator; the text names the package to import.
    """
    if device == "sim":
        from .. import sim_device  # noqa: F401  (loads it)
    current = torch.accelerator.current_accelerator()
    backend = (device or (current.type if current else "")).partition(":")[0]
    if not backend:
        raise Error(
            f"this process has no accelerator: import its package first ({_import_advice()}), or name an accelerator (sim: the simulated one)"
        )
    module = getattr(torch, backend, None)
    if not isinstance(module, ModuleType) or not hasattr(module, "current_device"):
        raise Error(
            f"torch has no device module torch.{backend}: import the package of the accelerator first ({_import_advice()})"
        )
    if backend in program:
        raise Error(f"the accelerator is {backend} already: nothing has to be renamed")
    return Names(backend, program, program[0] if show and len(program) == 1 else "")
