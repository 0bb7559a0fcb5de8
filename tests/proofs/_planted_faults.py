"""Faults planted into a device: the simulated device has them built in; on another device a wrong kernel of Python calls the right one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class Fault(Protocol):
    """A fault, planted while it is entered."""

    @property
    def hits(self) -> int:
        """The calls that were made wrong."""

    def __enter__(self) -> Fault: ...
    def __exit__(self, *error: object) -> None: ...


def plant(
    device: str, kind: str, operator: str, *, call: int | None, **arguments: Any
) -> AbstractContextManager[Fault]:
    """A fault of all calls of the operator on the device, or of a single one (0: the first)."""
    if device == "sim":
        import op_tools.sim_device as sim  # not beside CUDA: torch has a single accelerator in a process

        return sim.fault(kind, ops=operator, call=call, **arguments)
    return WrongKernel(device, kind, operator, call=call, **arguments)


def kinds(device: str) -> frozenset[str]:
    if device == "sim":
        import op_tools.sim_device as sim

        return frozenset(sim.FAULT_KINDS)
    return frozenset(_SPOILS)


@functools.cache
def has_kernel(device: str, operator: str) -> bool:
    """Does a kernel of the device's own run the operator, so that a fault can be planted?"""
    try:
        plant(device, "scale", operator, call=None, scale=0.5)
    except (RuntimeError, KeyError):
        return False
    return True


# --- Wrong kernels ----------------------------------------------------------------------------------------------------


def _scale(result: Tensor, scale: float) -> Tensor:
    return result * scale


def _element(result: Tensor, scale: float) -> Tensor:
    """The largest element."""
    flat = result.flatten()
    worst = flat.abs().argmax()
    return torch.where(torch.arange(flat.numel(), device=flat.device) == worst, flat * scale, flat).view(result.shape)


def _all_of(number: float) -> Callable[[Tensor], Tensor]:
    return lambda result: torch.full_like(result, number)


def _swap_rows(result: Tensor) -> Tensor:
    return result.roll(1, 0) if result.dim() else result


def _low_precision(result: Tensor) -> Tensor:
    return result.bfloat16().to(result.dtype) if result.dtype == torch.float32 else result


_SPOILS: dict[str, Callable[..., Tensor]] = {
    "scale": _scale,
    "element": _element,
    "nan": _all_of(float("nan")),
    "inf": _all_of(float("inf")),
    "swap_rows": _swap_rows,
    "low_precision": _low_precision,
}


class WrongKernel:
    """In the place of the device's kernel while it is entered: the kernel's first floating result is spoiled.

    Raises:
        RuntimeError: the device has no kernel of the operator.
    """

    def __init__(self, device: str, kind: str, operator: str, *, call: int | None, **arguments: Any) -> None:
        self.hits = 0
        self._spoil = functools.partial(_SPOILS[kind], **arguments)
        self._key = torch._C._dispatch_key_for_device(device)
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator, self._key):
            raise RuntimeError(f"{operator} has no kernel for {self._key}")
        self._right = torch.library.get_kernel(operator, self._key)
        schema = torch._C._get_schema(*operator.partition(".")[::2])
        self._are_tensors = [argument.type.kind() == "TensorType" for argument in schema.arguments]
        self._operator, self._call, self._calls = operator, call, 0
        self._library: torch.library.Library | None = None
        self._is_spoiling = False

    def __enter__(self) -> WrongKernel:
        namespace, name = self._operator.split("::")
        self._library = torch.library.Library(namespace, "IMPL")
        self._library.impl(name, self._run, self._key, with_keyset=True, allow_override=True)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._library is not None
        self._library._destroy()

    def _run(self, keyset: object, *args: Any, **kwargs: Any) -> Any:
        # torch hands a number in the place of a tensor to a kernel of Python as the number.
        args = tuple(
            torch.tensor(value) if is_tensor and isinstance(value, (int, float)) else value
            for value, is_tensor in zip(args, self._are_tensors, strict=False)
        )
        results = self._right.call_boxed(keyset, *args, **kwargs)
        if self._is_spoiling:  # the spoil itself calls the operator
            return results
        first = results[0] if isinstance(results, (tuple, list)) and results else results
        number, self._calls = self._calls, self._calls + 1
        is_hit = self._call in (None, number)
        if is_hit and isinstance(first, Tensor) and first.is_floating_point() and first.numel():
            self.hits += 1
            self._is_spoiling = True
            try:
                first.copy_(self._spoil(first))
            finally:
                self._is_spoiling = False
        return results
