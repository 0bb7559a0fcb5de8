"""The public names of torch.cuda on another accelerator: each is a function that does it, a constant, nothing, or an error
that says why. Signatures are those of torch.cuda."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from .._base.core import Error
from .names import Names

Device = torch.device | str | int | None

# To callers in these packages torch.cuda.is_available() says False: they would take ways that need NVIDIA's libraries.
UNAVAILABLE_FOR = (
    "apex",
    "bitsandbytes",
    "cupy",
    "deepspeed",
    "flash_attn",
    "numba",
    "torch._dynamo",
    "torch._inductor",
    "torch.testing",
    "torch.utils.cpp_extension",
    "triton",
    "xformers",
)

CAPABILITY = (8, 0)  # of an A100: programs ask whether bfloat16 is there


@dataclass(frozen=True)
class DeviceProperties:
    """The result of torch.cuda.get_device_properties(); constants but for name and total_memory."""

    name: str
    total_memory: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = 1
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # noqa: N815  (the name in torch)


class StreamContext:
    """Work goes to a stream inside of `with`."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: list[torch.Stream] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            self._before.append(torch.accelerator.current_stream(self.stream.device))
            torch.accelerator.set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            torch.accelerator.set_stream(self._before.pop())


class CudaFunctions:
    """The functions of torch.cuda on an accelerator. torch.cuda gets its public methods."""

    def __init__(self, names: Names, unavailable_for: Iterable[str] = ()) -> None:
        self._names = names
        self._module = names.module
        self._unavailable_for = tuple(f"{one}." for one in (*UNAVAILABLE_FOR, *unavailable_for))

    def _call(self, name: str, *arguments: Any, otherwise: Any = None) -> Any:
        """A function of the accelerator's module; `otherwise` where it has none of this name."""
        function = getattr(self._module, name, None)
        return otherwise if function is None else function(*arguments)

    # --- Devices

    def is_available(self) -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "") + "."
        return (
            not caller.startswith(self._unavailable_for)
            and bool(self._module.is_available())
            and self.device_count() > 0
        )

    def is_initialized(self) -> bool:
        return bool(self._call("is_initialized", otherwise=True))

    def init(self) -> None:
        self._call("init")

    def device_count(self) -> int:
        """CUDA_VISIBLE_DEVICES limits the number; the vendor's own variable chooses which."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        count = int(self._module.device_count())
        return count if visible is None else min(count, sum(bool(one.strip()) for one in visible.split(",")))

    def current_device(self) -> int:
        return int(self._module.current_device())

    def set_device(self, device: Device) -> None:
        if not isinstance(device, int) or device >= 0:
            self._module.set_device(self._names.device(device))

    def device(self, device: Any) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._module.device(
            None if device is None else self._names.device(device).index
        )
        return context

    def device_of(self, obj: Any) -> AbstractContextManager[None]:
        return self.device(obj.get_device() if obj.is_cuda else -1)

    def get_device_name(self, device: Device = None) -> str:
        return str(self._call("get_device_name", self._names.device(device).index, otherwise=self._names.backend))

    def get_device_properties(self, device: Device = None) -> DeviceProperties:
        return DeviceProperties(self.get_device_name(device), self.mem_get_info(device)[1])

    def get_device_capability(self, device: Device = None) -> tuple[int, int]:
        self._names.device(device)
        return CAPABILITY

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return bool(self._call("is_bf16_supported", including_emulation, otherwise=True))

    def synchronize(self, device: Device = None) -> None:
        torch.accelerator.synchronize(self._names.device(device))

    # --- Streams

    def current_stream(self, device: Device = None) -> torch.Stream:
        return torch.accelerator.current_stream(self._names.device(device))

    def default_stream(self, device: Device = None) -> torch.Stream:
        default = self._call("default_stream", self._names.device(device).index)
        if default is None:
            raise Error(f"torch.{self._names.backend} has no default_stream(); current_stream() is there")
        stream: torch.Stream = default
        return stream

    def set_stream(self, stream: torch.Stream) -> None:
        if stream is not None:
            torch.accelerator.set_stream(stream)

    def stream(self, stream: torch.Stream | None) -> StreamContext:
        return StreamContext(stream)

    # --- Random numbers

    def manual_seed(self, seed: int) -> None:
        self._module.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        self._module.manual_seed_all(seed)

    def seed(self) -> None:
        self._module.manual_seed(int.from_bytes(os.urandom(7), "little"))

    def seed_all(self) -> None:
        self._module.manual_seed_all(int.from_bytes(os.urandom(7), "little"))

    def initial_seed(self) -> int:
        return int(self._module.initial_seed())

    def _current_for(self, device: Device) -> torch.device:
        return self._names.device(None if device == "cuda" else device)  # torch's default, also of torch.npu here

    def get_rng_state(self, device: Device = "cuda") -> torch.Tensor:
        state: torch.Tensor = self._module.get_rng_state(self._current_for(device))
        return state

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state(self, new_state: torch.Tensor, device: Device = "cuda") -> None:
        self._module.set_rng_state(new_state, self._current_for(device))

    def set_rng_state_all(self, new_states: Iterable[torch.Tensor]) -> None:
        for index, state in enumerate(new_states):
            self.set_rng_state(state, index)

    # --- Memory, in bytes

    def empty_cache(self) -> None:
        self._call("empty_cache")

    def memory_allocated(self, device: Device = None) -> int:
        return int(self._call("memory_allocated", self._names.device(device), otherwise=0))

    def max_memory_allocated(self, device: Device = None) -> int:
        return int(self._call("max_memory_allocated", self._names.device(device), otherwise=0))

    def memory_reserved(self, device: Device = None) -> int:
        return int(self._call("memory_reserved", self._names.device(device), otherwise=0))

    def max_memory_reserved(self, device: Device = None) -> int:
        return int(self._call("max_memory_reserved", self._names.device(device), otherwise=0))

    def memory_cached(self, device: Device = None) -> int:
        return self.memory_reserved(device)

    def max_memory_cached(self, device: Device = None) -> int:
        return self.max_memory_reserved(device)

    def device_memory_used(self, device: Device = None) -> int:
        free, total = self.mem_get_info(device)
        return total - free

    def reset_peak_memory_stats(self, device: Device = None) -> None:
        self._call("reset_peak_memory_stats", self._names.device(device))

    def reset_max_memory_allocated(self, device: Device = None) -> None:
        self.reset_peak_memory_stats(device)

    def reset_max_memory_cached(self, device: Device = None) -> None:
        self.reset_peak_memory_stats(device)

    def mem_get_info(self, device: Device = None) -> tuple[int, int]:
        """Free and total; of the machine's main memory where the accelerator does not tell."""
        sizes = self._call("mem_get_info", self._names.device(device))
        if sizes is None:
            page = os.sysconf("SC_PAGE_SIZE")
            sizes = (page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES"))
        return int(sizes[0]), int(sizes[1])

    def memory_stats(self, device: Device = None) -> dict[str, Any]:
        stats = self._call("memory_stats", self._names.device(device))
        if stats is not None:
            return dict(stats)
        return {
            "allocated_bytes.all.current": self.memory_allocated(device),
            "allocated_bytes.all.peak": self.max_memory_allocated(device),
            "reserved_bytes.all.current": self.memory_reserved(device),
            "reserved_bytes.all.peak": self.max_memory_reserved(device),
        }

    def memory_stats_as_nested_dict(self, device: Device = None) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, value in self.memory_stats(device).items():
            *path, last = name.split(".")
            functools.reduce(lambda at, part: at.setdefault(part, {}), path, nested)[last] = value
        return nested

    def memory_summary(self, device: Device = None, abbreviated: bool = False) -> str:
        rows = self.memory_stats(device).items()
        lines = [f"{name:<60}{value:>19,}" for name, value in rows if not abbreviated or ".all." in name]
        return "\n".join([f"memory of {self.get_device_name(device)}, bytes", *lines])

    def memory_snapshot(self, mempool_id: Any = None, include_traces: bool = True) -> Sequence[Any]:  # noqa: ARG002
        return []


# --- Names that have a constant value here, with the reason

CONSTANTS: dict[str, tuple[Any, str]] = {
    "can_device_access_peer": (False, "no copies between devices without the host"),
    "get_allocator_backend": ("native", "no choice of allocators"),
    "get_arch_list": ([], "kernels are not compiled for CUDA architectures"),
    "get_gencode_flags": ("", "kernels are not compiled for CUDA architectures"),
    "get_per_process_memory_fraction": (1.0, "memory is not limited"),
    "get_sync_debug_mode": (0, "waiting is not reported"),
    "has_half": (True, "16-bit floats are a dtype like any other"),
    "has_magma": (False, "a library of CUDA"),
    "host_memory_stats": ({}, "pinned memory is not counted"),
    "host_memory_stats_as_nested_dict": ({}, "pinned memory is not counted"),
    "is_current_stream_capturing": (False, "there are no graphs of CUDA"),
    "is_tf32_supported": (False, "a number format of CUDA"),
}

# --- Names whose call has no effect, with the reason; they return None

NO_EFFECT: dict[str, str] = {
    "ipc_collect": "nothing is shared through CUDA's IPC",
    "reset_accumulated_host_memory_stats": "pinned memory is not counted",
    "reset_accumulated_memory_stats": "totals are not counted",
    "reset_peak_host_memory_stats": "pinned memory is not counted",
    "set_per_process_memory_fraction": "memory is not limited",
    "set_sync_debug_mode": "waiting is not reported",
}

_GRAPHS = "graphs of CUDA cannot be captured on another accelerator; run without them"
_ALLOCATOR = "the allocator of CUDA cannot be used for another accelerator"
_NVIDIA = "NVIDIA's management library knows no other accelerator"
_LIBRARY = "a handle of CUDA's libraries has no meaning on another accelerator"
_STORAGE = "typed storages are deprecated; use tensor.untyped_storage()"

# --- Names whose call is an error, with the reason

REFUSED: dict[str, str] = {
    "CUDAGraph": _GRAPHS,
    "CUDAPluggableAllocator": _ALLOCATOR,
    "ExternalStream": "a stream of CUDA cannot be used on another accelerator",
    "GreenContext": "a part of a CUDA device is no part of another accelerator",
    "MemPool": _ALLOCATOR,
    "MemPoolContext": _ALLOCATOR,
    "caching_allocator_alloc": _ALLOCATOR,
    "caching_allocator_delete": _ALLOCATOR,
    "caching_allocator_disabled": _ALLOCATOR,
    "caching_allocator_enable": _ALLOCATOR,
    "change_current_allocator": _ALLOCATOR,
    "check_error": _LIBRARY,
    "clock_rate": _NVIDIA,
    "cudart": _LIBRARY,
    "current_blas_handle": _LIBRARY,
    "current_solver_handle": _LIBRARY,
    "export_dot": _GRAPHS,
    "export_graph_data": _GRAPHS,
    "get_stream_from_external": "a stream of CUDA cannot be used on another accelerator",
    "graph": _GRAPHS,
    "graph_pool_handle": _GRAPHS,
    "list_gpu_processes": _NVIDIA,
    "make_graphed_callables": _GRAPHS,
    "memory_usage": _NVIDIA,
    "power_draw": _NVIDIA,
    "temperature": _NVIDIA,
    "use_mem_pool": _ALLOCATOR,
    "utilization": _NVIDIA,
}

# --- Names that stay as they are, with the reason

LEFT: dict[str, str] = {
    "CudaError": "a type for `except`",
    "DeferredCudaCallError": "a type for `except`",
    "amp": "autocast and GradScaler take the device's name from torch.amp, which is renamed",
    "cudaStatus": "a list of numbers",
    "graph_annotations": f"module: {_GRAPHS}",
    "graphs": f"module: {_GRAPHS}",
    "jiterator": "module: kernels in CUDA's language; its functions say that CUDA is missing",
    "memory": "module: its functions are those of this table",
    "nccl": "module: collectives go through torch.distributed, which is renamed",
    "nvtx": "module: ranges have no effect",
    "profiler": "module: start and stop have no effect",
    "random": "module: its functions are those of this table",
    "sparse": "module: empty in torch",
    "streams": "module: its classes are those of this table",
    "tunable": "module: settings of CUDA's libraries",
}

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


def _refused(name: str, reason: str, original: Any) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Error(f"torch.cuda.{name}: {reason}")

    if isinstance(original, type):
        return type(name, (), {"__new__": refuse, "__doc__": reason})
    return functools.update_wrapper(refuse, original)


def _always(value: Any, original: Any) -> Any:
    if not callable(original):
        return value

    def give(*_: Any, **__: Any) -> Any:
        return value

    return functools.update_wrapper(give, original)


class _Proxy(type):
    """A class of torch.cuda: calling it makes an object of the accelerator, isinstance() asks for the common class."""

    make: Callable[..., Any]
    is_one: Callable[[Any], bool]

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls.make(*arguments, **keywords)

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.is_one(instance)


def _proxy(name: str, make: Callable[..., Any], is_one: Callable[[Any], bool]) -> Any:
    return _Proxy(name, (), {"make": staticmethod(make), "is_one": staticmethod(is_one)})


def _stream_classes(names: Names) -> dict[str, Any]:
    def stream(device: Device = None, priority: int = 0, **_: Any) -> torch.Stream:
        return torch.Stream(device=names.device(device), priority=priority)

    def event(
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,  # noqa: ARG001
    ) -> torch.Event:
        return torch.Event(
            device=torch.device(names.backend),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )

    return {
        "Stream": _proxy("Stream", stream, lambda one: isinstance(one, torch.Stream)),
        "Event": _proxy("Event", event, lambda one: isinstance(one, torch.Event)),
        "StreamContext": StreamContext,
    }


def _tensor_type(names: Names, name: str, dtype: torch.dtype) -> Any:
    def make(*arguments: Any) -> torch.Tensor:
        if len(arguments) == 1 and not isinstance(arguments[0], int):
            return torch.tensor(arguments[0], dtype=dtype, device=names.backend)
        return torch.empty(arguments, dtype=dtype, device=names.backend)

    def is_one(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == dtype

    proxy = _proxy(name, make, is_one)
    proxy.dtype, proxy.is_cuda = dtype, True
    return proxy


class _NoGenerators(tuple[Any, ...]):
    """torch.cuda.default_generators where the accelerator's module has none."""

    def __getitem__(self, index: Any) -> Any:
        raise Error("torch.cuda.default_generators: the accelerator does not give its generators to Python")


@dataclass(frozen=True)
class Rule:
    """A name of torch.cuda.

    Attributes:
        name: the name in torch.cuda.
        kind: "mapped", "constant", "no effect", "error" or "left".
        reason: why, where it is not mapped.
        value: the object that torch.cuda gets; None where it is left.
    """

    name: str
    kind: str
    reason: str
    value: Any = None


def cuda_rules(names: Names, unavailable_for: Iterable[str] = ()) -> list[Rule]:
    """A rule for each public name of torch.cuda in the running torch, sorted by name."""
    functions = CudaFunctions(names, unavailable_for)
    mapped = {name: getattr(functions, name) for name in vars(CudaFunctions) if not name.startswith("_")}
    mapped |= _stream_classes(names)
    mapped |= {f"{word}Tensor": _tensor_type(names, f"{word}Tensor", dtype) for word, dtype in _DTYPES.items()}
    mapped["default_generators"] = getattr(names.module, "default_generators", _NoGenerators())
    rules = []
    for name in sorted(torch.cuda.__all__):
        original = getattr(torch.cuda, name)
        if name in mapped:
            rules.append(Rule(name, "mapped", "", mapped[name]))
        elif name in CONSTANTS:
            value, reason = CONSTANTS[name]
            rules.append(Rule(name, "constant", reason, _always(value, original)))
        elif name in NO_EFFECT:
            rules.append(Rule(name, "no effect", NO_EFFECT[name], _always(None, original)))
        elif name in LEFT:
            rules.append(Rule(name, "left", LEFT[name]))
        else:
            is_storage = name.endswith("Storage")
            reason = _STORAGE if is_storage else REFUSED.get(name, "this name of torch.cuda is not known to op_tools")
            rules.append(Rule(name, "error", reason, _refused(name, reason, original)))
    return rules
