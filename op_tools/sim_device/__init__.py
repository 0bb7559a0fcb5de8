"""A simulated accelerator: torch device "sim" on host memory, with planted faults and latencies.

    import op_tools.sim_device                      # before the first backward() of the process

    x = torch.randn(64, 64, device="sim")
    with op_tools.sim_device.fault("scale", ops="mm|addmm", call=3) as fault:
        train_step()
    print(fault.hits, fault.log)

Importing this module loads the device; importing op_tools does not. torch has one place for a device like this, so a
process that another vendor's backend lives in cannot have it. docs/sim_device.md has the table of faults.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from .. import _sim
from . import _torch_module

_sim.load()
_torch_module.install()

FAULT_KINDS: tuple[str, ...] = tuple(_sim.fault_kinds())

# A fault or latency that was started stays, whether or not the caller keeps the object.
_started: set[Fault | Latency] = set()


@atexit.register
def _let_autograd_finish() -> None:
    """Autograd's device threads drop the last graph a moment after backward() has returned, and need Python for it.

    While the interpreter is being taken down that ends the process with SIGABRT, so they get their moment here.
    """
    time.sleep(0.05)


class _Planted:
    """What faults and latencies have in common: start, stop, with."""

    _core: Any

    def start(self) -> None:
        """Plants it; again after stop()."""
        self._core.start()
        _started.add(self)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Takes it out. What it did stays done."""
        self._core.stop()
        _started.discard(self)  # type: ignore[arg-type]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Fault(_Planted):
    """A planted fault; made by fault()."""

    def __init__(self, core: _sim.Fault, description: str) -> None:
        self._core = core
        self._description = description

    def __enter__(self) -> Fault:
        self.start()
        return self

    @property
    def matched(self) -> int:
        """Calls whose operator it names, hit or not."""
        return self._core.matched

    @property
    def hits(self) -> int:
        """Calls in which it really changed something."""
        return self._core.hits

    @property
    def log(self) -> list[tuple[str, int]]:
        """(operator, number of the call) of the first 10,000 hits; calls that match are counted from 0."""
        return self._core.log

    def __repr__(self) -> str:
        return f"<{self._description}: {self.hits} hits in {self.matched} calls>"


class Latency(_Planted):
    """Planted latencies; made by latency()."""

    def __init__(self, core: _sim.Latency) -> None:
        self._core = core

    def __enter__(self) -> Latency:
        self.start()
        return self


def fault(
    kind: str,
    ops: str | Iterable[str] = "",
    *,
    call: int | range | None = None,
    probability: float = 1.0,
    seed: int = 0,
    scale: float | None = None,
    size: int | None = None,
    microseconds: float | None = None,
) -> Fault:
    """A fault to plant: `with fault(...) as planted:`, or start() and stop().

    Args:
        kind: one of FAULT_KINDS.
        ops: the operators, by their names as they reach the device (aten::addmm, not linear): expressions as in the
            tools' filters, as a list or comma-separated. Empty: all.
        call: only this one of the matching calls, or these; counted from 0 from the first start() on.
        probability: of each of them, drawn with `seed`.
        seed: of all that is random about the fault.
        scale: by what wrong values are multiplied; each kind has its default.
        size: above_size: the number of elements up to which results are right.
        microseconds: latency: how much longer the operator takes on the device.

    Raises:
        op_tools.Error: an argument is wrong, or `ops` names only operators that never reach a device.
    """
    calls = None
    if isinstance(call, range):
        if call.step < 1:
            raise ValueError(f"call={call}: the step of a range of calls is at least 1")
        calls = (call.start, call.stop, call.step)
    elif call is not None:
        calls = (call, call + 1, 1)
    names = ops if isinstance(ops, str) else ",".join(ops)
    core = _sim.Fault(kind, names, calls, probability, seed, scale, size, microseconds)
    return Fault(core, f"fault {kind} of {names or 'all operators'}")


def faults_clear() -> None:
    """Takes out all faults of the process, those of OP_TOOLS_SIM_FAULTS too, and frees what `leak` kept."""
    for planted in [planted for planted in _started if isinstance(planted, Fault)]:
        planted.stop()
    _sim.faults_clear()


def latency(microseconds: Mapping[str, float]) -> Latency:
    """From here on, or inside `with`, operators take at least so long on the device: {"mm|addmm": 200}.

    The time is spent on the stream's queue, not in the thread that calls. stop() ends it.
    """
    planted = Latency(_sim.Latency(list(microseconds.items())))
    planted.start()
    return planted


def set_asynchronous(on: bool) -> None:
    """Whether kernels run later, in the stream's worker thread (the default), or in the thread that calls."""
    _sim.set_asynchronous(on)


def is_asynchronous() -> bool:
    """Whether kernels run later, in the stream's worker thread."""
    return _sim.is_asynchronous()


def statistics(device: int = 0) -> dict[str, int]:
    """Calls (asynchronous ones and views among them; of all devices) and the memory of one device."""
    return _sim.statistics(device)


__all__ = [
    "FAULT_KINDS",
    "Fault",
    "Latency",
    "fault",
    "faults_clear",
    "is_asynchronous",
    "latency",
    "set_asynchronous",
    "statistics",
]
