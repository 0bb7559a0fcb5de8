"""On and off: everything that is renamed, and given back."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from .._base.config_file import switched
from .._base.core import Error, device_names_start, device_names_stop
from .cuda_module import Rule, cuda_rules
from .distributed import patch_distributed
from .entry_points import c_functions, c_types, patch_entry_points
from .names import Names, names_for
from .patches import Patches

_SUBMODULES = ("memory", "random", "streams")
_NVTX = ("range_push", "range_pop", "range_start", "range_end", "mark")

_patches = Patches()
_names: Names | None = None


def _no_effect(*_: Any, **__: Any) -> int:
    """A mark of nvtx, or the start of NVIDIA's profiler: has no effect."""
    return 0


def _takes_none(*_: Any) -> bool:
    """Whether a library of NVIDIA's may compute with these tensors, which are no CUDA tensors."""
    return False


def _patch_cuda_module(rules: list[Rule]) -> None:
    """torch.cuda stays the same module with other contents; so do its submodules."""
    for rule in rules:
        if rule.kind == "left":
            continue
        original = getattr(torch.cuda, rule.name)
        for word in _SUBMODULES:
            submodule = getattr(torch.cuda, word)
            if not isinstance(original, (bool, tuple)) and vars(submodule).get(rule.name) is original:
                _patches.set(submodule, rule.name, rule.value)
        _patches.set(torch.cuda, rule.name, rule.value)
    for name in _NVTX:
        _patches.set(torch.cuda.nvtx, name, _no_effect)
    for name in ("start", "stop", "init"):
        if hasattr(torch.cuda.profiler, name):
            _patches.set(torch.cuda.profiler, name, _no_effect)
    # Torch asks them where is_cuda is true, and a CUDA build has the libraries: recurrent modules, DataParallel.
    _patches.set(torch.backends.cudnn, "is_acceptable", _takes_none)
    _patches.set(torch.cuda.nccl, "is_available", _takes_none)
    _patches.set(torch.cuda, "_lazy_init", _no_effect)
    _patches.set(torch.cuda, "_is_in_bad_fork", lambda: False)


def _add_module(name: str, rules: list[Rule]) -> None:
    """torch.NAME for an accelerator that this torch does not have, and the packages a program imports for it."""
    module = types.ModuleType(f"torch.{name}", f"torch.{name} on another accelerator; made by op_tools")
    for rule in rules:
        setattr(module, rule.name, getattr(torch.cuda, rule.name) if rule.kind == "left" else rule.value)
    _patches.set(torch, name, module)
    _patches.set_item(sys.modules, f"torch.{name}", module)
    for package in (f"torch_{name}", f"torch_{name}.contrib", f"torch_{name}.contrib.transfer_to_{name}"):
        if package not in sys.modules:
            stand_in = types.ModuleType(package, "takes the place of a vendor's package; made by op_tools")
            stand_in.__path__ = []
            setattr(stand_in, name, module)
            _patches.set_item(sys.modules, package, stand_in)


def _from_variable(name: str) -> list[str]:
    return [one.strip() for one in os.environ.get(name, "").split(",") if one.strip()]


def _chosen(device: str | None) -> str | None:
    return device or os.environ.get("OP_TOOLS_AS_CUDA") or None


def start(
    device: str | None = None,
    *,
    show: bool | None = None,
    unavailable_for: Iterable[str] = (),
    program: Iterable[str] = ("cuda",),
) -> None:
    """From here on, "cuda" in this process is another accelerator.

    Args:
        device: the accelerator, such as "npu" or "sim"; without it OP_TOOLS_AS_CUDA, else torch's.
        show: device.type, str() and repr() of its devices say "cuda". Without it OP_TOOLS_AS_CUDA_SHOW, else
            DITORCH_SHOW_DEVICE_AS_CUDA, else True.
        unavailable_for: packages to which torch.cuda.is_available() says False, besides those that op_tools lists and those
            of OP_TOOLS_AS_CUDA_UNAVAILABLE_FOR.
        program: the names that the program uses for its device.

    Raises:
        op_tools.Error: when there is no such accelerator, or it was started already.
    """
    global _names
    if _names is not None:
        raise Error(f"{', '.join(_names.program)} is {_names.backend} already: stop() first")
    if show is None:
        show = False not in (switched("OP_TOOLS_AS_CUDA_SHOW"), switched("DITORCH_SHOW_DEVICE_AS_CUDA"))
    names = names_for(_chosen(device), tuple(program), show)
    listed = _from_variable("OP_TOOLS_AS_CUDA_UNAVAILABLE_FOR")
    rules = cuda_rules(names, (*unavailable_for, *listed))
    _device_constructors()  # torch keeps the constructors of the first call
    device_names_start(list(names.program), names.backend, names.shown, c_types(), c_functions())
    _names = names
    try:
        for name in names.program:
            if name == "cuda":
                _patch_cuda_module(rules)
            else:
                _add_module(name, rules)
        patch_entry_points(names, _patches)
        patch_distributed(names, _patches)
    except BaseException:
        stop()
        raise


def rename_from_environment() -> None:
    """start() as OP_TOOLS_AS_CUDA, OP_TOOLS_AS_CUDA_NAMES and the other variables say; once."""
    if not is_on():
        start(program=_from_variable("OP_TOOLS_AS_CUDA_NAMES") or ("cuda",))


def stop() -> None:
    """Everything is as it was before start(). Tensors stay where they are. Without start() it does nothing."""
    global _names
    _patches.undo()
    device_names_stop()
    _names = None


def is_on() -> bool:
    """Between start() and stop()."""
    return _names is not None


def rules(device: str | None = None) -> list[Rule]:
    """The public names of torch.cuda on this accelerator, without a change of anything."""
    return cuda_rules(names_for(_chosen(device), ("cuda",), True))
