"""Where a program hands a device to torch: these places take the program's name for the accelerator's.

Functions and types in C are renamed in C (bindings/device_names.h); here are their lists, and the entry points that
are written in Python."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .names import Names
from .patches import Patches, with_changed

# torch.NAME with a device among its arguments; all are written in C.
TORCH_FUNCTIONS = (
    *("arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like", "empty_permuted"),
    *("empty_quantized", "empty_strided", "eye", "from_dlpack", "from_file", "full", "full_like", "hamming_window"),
    *("hann_window", "kaiser_window", "linspace", "logspace", "normal", "ones", "ones_like", "rand", "rand_like"),
    *("randint", "randint_like", "randn", "randn_like", "randperm", "range", "scalar_tensor", "sparse_bsc_tensor"),
    *("sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor", "sparse_csc_tensor", "sparse_csr_tensor"),
    *("tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
TENSOR_METHODS = (
    *("is_pinned", "new", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"),
    *("pin_memory", "to"),
)


def c_functions() -> list[Any]:
    """The functions and methods in C that take a device."""
    functions = [getattr(torch, name) for name in TORCH_FUNCTIONS]
    functions += [getattr(torch.Tensor, name) for name in TENSOR_METHODS]
    functions += [torch.fft.fftfreq, torch.fft.rfftfreq, torch._C._nn._parse_to]
    functions += [getattr(torch._C, "_nested").nested_tensor]  # noqa: B009  (torch's stubs do not know it)
    return [one for one in functions if not inspect.isfunction(one)]


def c_types() -> list[type]:
    """The types in C that take a device."""
    return [torch.device, torch.Generator, torch.Stream, torch.Event, torch.UntypedStorage]


def _renamed(names: Names, function: Callable[..., Any], argument: str) -> Callable[..., Any]:
    return with_changed(function, {argument: names.rename})


def _tensor_methods(names: Names, patches: Patches) -> None:
    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        return self.to(names.device(device), non_blocking=non_blocking, memory_format=memory_format)

    type_in_c = torch.Tensor.type

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **keywords: Any) -> Any:
        if dtype is None:
            text = type_in_c(self)
            return text.replace(f"torch.{names.backend}.", f"torch.{names.program[0]}.")
        if type(dtype) is str:
            for name in names.program:
                dtype = dtype.replace(f"torch.{name}.", f"torch.{names.backend}.")
        wanted = getattr(dtype, "dtype", None)
        if getattr(dtype, "is_cuda", False) and wanted is not None:
            return self.to(names.device(None), wanted, non_blocking=non_blocking)
        return type_in_c(self, dtype, non_blocking, **keywords)

    of_accelerator = {names.backend, names.shown}
    for name in names.program:
        patches.set(torch.Tensor, name, cuda)
        if name != "cuda":
            patches.set(torch.nn.Module, name, _module_method(names))
            patches.set(torch.Tensor, f"is_{name}", property(lambda one: one.device.type in of_accelerator))
    patches.set(torch.Tensor, "type", functools.update_wrapper(type_, type_in_c))


def _module_method(names: Names) -> Any:
    def to_device(self: torch.nn.Module, device: Any = None) -> torch.nn.Module:
        return self.to(names.device(device))

    return to_device


def _autocast(names: Names, patches: Patches) -> None:
    patches.set(torch.amp.autocast, "__init__", _renamed(names, torch.amp.autocast.__init__, "device_type"))
    patches.set(torch.amp.GradScaler, "__init__", _renamed(names, torch.amp.GradScaler.__init__, "device"))
    if not names.shown:  # they compare with device.type
        for name in ("custom_fwd", "custom_bwd"):
            patches.set(torch.amp, name, _renamed(names, getattr(torch.amp, name), "device_type"))

    # Without a device they speak of CUDA.
    def asks(function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(device_type: str = "cuda") -> Any:
            return function(names.rename(device_type))

        return functools.update_wrapper(ask, function)

    def sets(function: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> None:
            device_type, value = arguments if len(arguments) == 2 else ("cuda", *arguments)
            function(names.rename(device_type), value)

        return functools.update_wrapper(change, function)

    for owner, name, function in (
        (torch, "is_autocast_enabled", asks(torch.is_autocast_enabled)),
        (torch, "get_autocast_dtype", asks(torch.get_autocast_dtype)),
        (torch, "get_autocast_gpu_dtype", asks(torch.get_autocast_dtype)),
        (torch, "set_autocast_enabled", sets(torch.set_autocast_enabled)),
        (torch, "set_autocast_dtype", sets(torch.set_autocast_dtype)),
        (torch, "set_autocast_gpu_dtype", sets(torch.set_autocast_dtype)),
        (torch._C, "_is_autocast_available", asks(torch._C._is_autocast_available)),
    ):
        patches.set(owner, name, function)


def _loading(names: Names, patches: Patches) -> None:
    def location_of(storage: Any) -> str | None:
        device = torch.device(storage.device)
        if device.type not in (names.backend, names.shown):
            return None
        return f"{names.program[0]}:{device.index or 0}"  # a file that opens where there is CUDA

    def restore(storage: Any, location: str) -> Any:
        renamed = names.rename(location)
        return None if renamed is location else storage.to(device=names.device(location))

    packages = [(0, location_of, restore), *torch.serialization._package_registry]
    patches.set(torch.serialization, "_package_registry", packages)
    patches.set(torch.jit, "load", _renamed(names, torch.jit.load, "map_location"))
    set_type = torch.set_default_tensor_type

    def set_default_tensor_type(t: Any) -> None:
        for name in names.program:
            if type(t) is str and t.startswith(f"torch.{name}."):
                t = getattr(getattr(torch, name), t.rpartition(".")[2])
        if getattr(t, "is_cuda", False):
            torch.set_default_dtype(t.dtype)
            torch.set_default_device(names.backend)
        else:
            set_type(t)

    patches.set(torch, "set_default_tensor_type", functools.update_wrapper(set_default_tensor_type, set_type))
    loader = torch.utils.data.DataLoader
    patches.set(loader, "__init__", _renamed(names, loader.__init__, "pin_memory_device"))


def _profiler(patches: Patches) -> None:
    activity = torch.profiler.ProfilerActivity

    def of_accelerator(asked: Iterable[Any] | None) -> list[Any] | None:
        if asked is None:
            return None
        listed = list(asked)
        supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        device = [activity.PrivateUse1] if activity.PrivateUse1 in supported else []
        kept = [one for one in listed if one != activity.CUDA or one in supported]
        return kept + device if len(kept) < len(listed) else kept

    start = torch.profiler.profile.__init__
    patches.set(torch.profiler.profile, "__init__", with_changed(start, {"activities": of_accelerator}))


def _module_moves(patches: Patches) -> None:
    """Module.to() leaves parameters the same objects, as it does between the CPU and CUDA: an optimizer may hold them already.
    For a device that came as a plugin torch makes new ones otherwise."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    patches.on_undo(functools.partial(torch.__future__.set_swap_module_params_on_conversion, before))


def _data_parallel(names: Names, patches: Patches) -> None:
    """The copies of torch.nn.DataParallel between devices: functions that torch has in builds for CUDA."""

    def scatter(
        tensor: torch.Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, _: Any
    ) -> list[torch.Tensor]:
        parts = torch.split(tensor, list(chunk_sizes), dim) if chunk_sizes else torch.chunk(tensor, len(devices), dim)
        return [part.to(names.device(device)) for part, device in zip(parts, devices, strict=False)]

    def gather(tensors: Sequence[torch.Tensor], dim: int, destination: int | None) -> torch.Tensor:
        device = torch.device("cpu") if destination == -1 else names.device(destination)
        return torch.cat([tensor.to(device) for tensor in tensors], dim)

    def broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
        return [tensor.to(names.device(device)) for device in devices]

    def broadcast_coalesced(
        tensors: Sequence[torch.Tensor], devices: Sequence[int], _: int
    ) -> list[list[torch.Tensor]]:
        return [[tensor.to(names.device(device)) for tensor in tensors] for device in devices]

    for function in (scatter, gather, broadcast, broadcast_coalesced):
        patches.set(torch._C, f"_{function.__name__}", function)


def patch_entry_points(names: Names, patches: Patches) -> None:
    """The entry points in Python take the names of the program."""
    _tensor_methods(names, patches)
    _autocast(names, patches)
    _loading(names, patches)
    _profiler(patches)
    _module_moves(patches)
    _data_parallel(names, patches)
