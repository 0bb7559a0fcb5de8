"""torch.distributed: the backend that a program names for CUDA is the accelerator's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .._base.core import Error
from .names import Names
from .patches import Patches, with_changed

# The names that programs have for the collectives of their accelerator.
_BACKENDS = ("nccl", "hccl", "cncl", "mccl", "xccl")


def _own_backend(names: Names) -> str:
    own = torch.distributed.Backend.default_device_backend_map.get(names.backend)
    if own is None:
        raise Error(
            f"torch.distributed has no backend for {names.backend}: import the package that registers it, or name gloo"
        )
    return str(own)


def _backend(names: Names, requested: Any) -> Any:
    """A backend as init_process_group() takes it: "nccl", "cpu:gloo,cuda:nccl"."""
    if not isinstance(requested, str):
        return requested
    parts = []
    for part in requested.lower().split(","):
        device, colon, backend = part.rpartition(":")
        own = _own_backend(names) if backend in _BACKENDS else backend
        parts.append(f"{names.rename(device)}{colon}{own}")
    return ",".join(parts)


def _renamed(names: Names, function: Callable[..., Any]) -> Callable[..., Any]:
    return with_changed(
        function, {"backend": partial(_backend, names), "device_type": names.rename, "device": names.rename}
    )


def patch_distributed(names: Names, patches: Patches) -> None:
    """Where a program names a backend or a device to torch.distributed."""
    if not torch.distributed.is_available():
        return
    core = torch.distributed.distributed_c10d
    for name in ("init_process_group", "new_group"):
        function = _renamed(names, getattr(core, name))
        patches.set(core, name, function)
        patches.set(torch.distributed, name, function)
    has_own = names.backend in torch.distributed.Backend.default_device_backend_map
    for owner in (core, torch.distributed):
        patches.set(owner, "is_nccl_available", lambda: has_own)
    meshes = torch.distributed.device_mesh
    for owner in (meshes, torch.distributed):
        patches.set(owner, "init_device_mesh", _renamed(names, meshes.init_device_mesh))
    patches.set(meshes.DeviceMesh, "__init__", _renamed(names, meshes.DeviceMesh.__init__))
