"""Differences of two runs of the same call: other bits, memory that is not freed, numbers of another device's generator."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Result = TypeVar("Result")
_LEAKING_RUNS, _MOST_RUNS = 4, 8
_PIECE = 1 << 20  # bytes that are compared at once: numpy's temporaries stay in the cache


@dataclass
class Outputs:
    """The results of a call, on the CPU."""

    results: list[torch.Tensor]
    gradients: list[torch.Tensor | None]

    def named(self) -> Iterator[tuple[str, str, torch.Tensor | None]]:
        """(phase of the pass, name, tensor) of each."""
        for place, result in enumerate(self.results):
            yield "", f"result {place}", result
        for place, gradient in enumerate(self.gradients):
            yield "backward", f"gradient {place}", gradient


def outputs_of(results: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> Outputs:
    """Copies on the CPU, with the strides that they have."""
    return Outputs(
        [one.detach().cpu() for one in results], [None if one is None else one.detach().cpu() for one in gradients]
    )


def _elements(tensor: torch.Tensor) -> NDArray[np.uint8] | None:
    """The bytes of its elements in their order; None where the layout has none."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if plain._is_zerotensor():  # a gradient that torch knows to be zero has no memory
        plain = torch.zeros(plain.shape, dtype=plain.dtype)
    flat = plain.as_strided((plain.numel(),), (1,))  # a dimension of size 1 may have any stride
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def digest_of(tensor: torch.Tensor) -> str:
    """Of form and elements; two tensors with equal digests have the same bits. "" where the layout has none."""
    elements = _elements(tensor)
    if elements is None:
        return ""
    digest = hashlib.blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=16)
    digest.update(elements.data)
    return digest.hexdigest()


def equal_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether form and elements are equal; where the layouts have no elements in an order, they are taken to be."""
    a, b = _elements(tensor), _elements(other)
    if a is None or b is None:
        return a is b
    if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
        return False
    return all(np.array_equal(a[at : at + _PIECE], b[at : at + _PIECE]) for at in range(0, a.size, _PIECE))


def find_differences(outputs: Outputs, other: Outputs) -> list[tuple[str, str]]:
    """(phase of the pass, name) of results with other bits."""
    differing = []
    for (phase, name, a), (_, _, b) in zip(outputs.named(), other.named(), strict=False):
        if (a is None) != (b is None) or (a is not None and b is not None and not equal_bits(a, b)):
            differing.append((phase, name))
    return differing


def _module_of(device: torch.device) -> Any:
    return getattr(torch, device.type, None)


def wait_for(device: torch.device) -> None:
    """Waits for the device."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def allocated(device: torch.device) -> int | None:
    """Bytes that tensors of the device hold; None where it does not say."""
    ask = getattr(_module_of(device), "memory_allocated", None)
    return None if device.type == "cpu" or ask is None else int(ask(device.index))


def first_and_leak(run: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    """The results of the first run of a call, and the bytes that a run leaves behind; 0 where fewer than four of eight do."""
    before, left = allocated(device), list[int]()
    first = run()
    for number in range(_MOST_RUNS):
        if number:
            run()
        wait_for(device)
        # From end to end of the runs: a device may free a little later than it is waited for.
        after = allocated(device)
        # Once it grew, a run without growth does not end it: memory of an earlier call may be freed in that moment.
        if before is None or after is None or (after == before and not left):
            break
        if after > before and number > 0:  # else earlier memory was freed meanwhile
            left.append(after - before)
        if len(left) == _LEAKING_RUNS:
            return first, min(left)
        before = after
    return first, 0


class Generators:
    """Which of two random generators moved: the CPU's and the device's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = self._states()

    def _states(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        ask = getattr(_module_of(self._device), "get_rng_state", None)
        is_cpu = self._device.type == "cpu"
        return torch.get_rng_state(), None if is_cpu or ask is None else ask(self._device).cpu()

    def moved(self) -> tuple[bool, bool]:
        """The CPU's; the device's."""
        (cpu, own), (cpu_now, own_now) = self._before, self._states()
        return not torch.equal(cpu, cpu_now), own is not None and own_now is not None and not torch.equal(own, own_now)


@contextmanager
def deterministic() -> Iterator[None]:
    """While it is entered, torch uses deterministic algorithms, and raises where an operator has none."""
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was)
