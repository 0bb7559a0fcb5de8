"""The module torch.sim, which torch itself and programs ask for, like torch.cuda for CUDA."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch.utils import backend_registration

from .. import _sim

Device = torch.device | str | int | None


def _index(device: Device) -> int:
    """The number of a device however it is written; the current device for None and "sim"."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


_initialized = True  # torch.utils.checkpoint asks, and leaves the random state alone where it is missing


def is_available() -> bool:
    return not _is_in_bad_fork()


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing is left to do: importing op_tools.sim_device did it."""


def _lazy_init() -> None:
    """The same. Where a device's module has no such function, torch 2.7 waits for none of its work in torch.accelerator.synchronize()."""


def device_count() -> int:
    return _sim.DEVICES


def current_device() -> int:
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: Device) -> None:
    torch._C._accelerator_setDeviceIndex(_index(device))


def get_device_name(device: Device = None) -> str:
    return f"simulated accelerator {_index(device)}"


def synchronize(device: Device = None) -> None:
    torch.accelerator.synchronize(_index(device))


class device:  # noqa: N801  (torch asks for this name)
    """Makes a device current for a block."""

    def __init__(self, device: Device) -> None:
        self._index = -1 if device is None else _index(device)
        self._before = -1

    def __enter__(self) -> None:
        self._before = torch.accelerator.current_device_index()
        if self._index >= 0:
            torch.accelerator.set_device_index(self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.accelerator.set_device_index(self._before)


class device_of(device):  # noqa: N801
    """Makes a tensor's device current for a block."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.get_device() if tensor.get_device() >= 0 else None)


# --- Streams


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream | None) -> Any:
    """A block in which work goes to a stream."""
    return stream if stream is not None else current_stream()


class Stream(torch.Stream):
    def __new__(cls, device: Device = None, **options: Any) -> torch.Stream:  # type: ignore[misc]
        return torch.Stream(device=f"sim:{_index(device)}", **options)


class Event(torch.Event):
    def __new__(cls, enable_timing: bool = False, **options: Any) -> torch.Event:  # type: ignore[misc]
        return torch.Event(device="sim", enable_timing=enable_timing, **options)


# --- Random numbers


def manual_seed(seed: int) -> None:
    _sim.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    _sim.manual_seed(int(seed))


def initial_seed() -> int:
    return _sim.initial_seed(current_device())


def get_rng_state(device: Device = "sim") -> torch.Tensor:
    return _sim.get_rng_state(_index(device))


def set_rng_state(new_state: torch.Tensor, device: Device = "sim") -> None:
    _sim.set_rng_state(_index(device), new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(i) for i in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for i, state in enumerate(new_states):
        set_rng_state(state, i)


# --- Memory


def memory_allocated(device: Device = None) -> int:
    return _sim.statistics(_index(device))["allocated_bytes"]


def max_memory_allocated(device: Device = None) -> int:
    return _sim.statistics(_index(device))["peak_bytes"]


def reset_peak_memory_stats(device: Device = None) -> None:
    _sim.reset_peak(_index(device))


memory_reserved = memory_allocated  # nothing is cached
max_memory_reserved = max_memory_allocated


def empty_cache() -> None:
    """Nothing is cached."""


# --- Names that torch asks for


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:  # noqa: ARG001
    return True


def _is_in_bad_fork() -> bool:
    return _sim.in_forked_child()


def install() -> None:
    """Makes this module torch.sim, and Tensor.sim(), Module.sim(), and the other functions of a device."""
    if getattr(torch, "sim", None) is not None:
        return
    backend_registration.rename_privateuse1_backend("sim")
    module: ModuleType = sys.modules[__name__]
    torch._register_device_module("sim", module)  # type: ignore[no-untyped-call]
    backend_registration.generate_methods_for_privateuse1_backend()
    if torch.distributed.is_available():  # gloo works on the memory of the host, which is the device's
        backend = torch.distributed.Backend
        backend.default_device_backend_map["sim"] = backend.GLOO
        backend.backend_capability[backend.GLOO].append("sim")
