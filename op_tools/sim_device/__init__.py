"""A simulated accelerator: torch device "sim" on host memory, with planted faults and latencies.

    import op_tools.sim_device                      # before the first backward() of the process

    x = torch.randn(64, 64, device="sim")
    with op_tools.sim_device.fault("scale", ops="mm|addmm", call=3) as fault:
        train_step()
    print(fault.hits, fault.log)

Importing this module loads the device; importing op_tools does not. torch has a single place for a device like this
(PrivateUse1), so a process with another vendor's backend cannot have it. docs/sim_device.md has the table of faults.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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
    """Waits for the device, which must not compute while libraries are taken down, and 50 ms more at exit. Autograd's device threads release the last graph shortly after backward() has returned, and
    need Python for it; while the interpreter shuts down that would end the process with SIGABRT.
    """
    if not _sim.in_forked_child():
        _sim.finish()
    time.sleep(0.05)


class _Planted:
    """Base class of faults and latencies: start, stop, with."""

    _core: Any

    def start(self) -> None:
        """Makes it active, also again after stop()."""
        self._core.start()
        _started.add(self)  # type: ignore[arg-type]

    def stop(self) -> None:
        """Makes it inactive. Its effects remain."""
        self._core.stop()
        _started.discard(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Fault(_Planted):
    """A fault of the simulated device; made by fault()."""

    _core: _sim.Fault

    def __init__(self, core: _sim.Fault, description: str) -> None:
        self._core = core
        self._description = description

    def __enter__(self) -> Fault:
        self.start()
        return self

    @property
    def matched(self) -> int:
        """Number of calls of its operators, changed or not."""
        return self._core.matched

    @property
    def hits(self) -> int:
        """Number of calls in which it changed something."""
        return self._core.hits

    @property
    def log(self) -> list[tuple[str, int]]:
        """(operator, number of the call) of the first 10,000 changed calls; matching calls are counted from 0."""
        return self._core.log

    def __repr__(self) -> str:
        return f"<{self._description}: {self.hits} hits in {self.matched} calls>"


class Latency(_Planted):
    """Latencies of the simulated device; made by latency()."""

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
    """Makes a fault; it is active inside `with fault(...) as planted:`, or from start() to stop().

    Args:
        kind: of FAULT_KINDS; docs/sim_device.md describes each.
        ops: the operators, by their names as they reach the device ("aten::addmm", not "linear"): filter expressions, as
            a list or comma-separated. Empty: all.
        call: only this matching call, or a range of them, counted from 0 from the first start() on. None: all.
        probability: probability of each of them, from 0 to 1.
        seed: seed of the fault's random numbers: the calls, and the places in their results.
        scale: factor of wrong values. None: the default of the kind.
        size: for "above_size": the number of elements that stay right.
        microseconds: for "latency": the time that the operator takes in addition, on the device.

    Raises:
        op_tools.Error: an argument is wrong, or `ops` names only operators that never reach a device.
        ValueError: the step of `call` is less than 1.
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
    """Stops all faults of the process, those of OP_TOOLS_SIM_FAULTS too, and frees the memory of `leak` faults."""
    for planted in [planted for planted in _started if isinstance(planted, Fault)]:
        planted.stop()
    _sim.faults_clear()


def library() -> str:
    """The file of the device, for ``--load`` of ``op-tools repro`` and ``run_op_from_data``, and
    ``torch.ops.load_library()`` in programs without op_tools."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    return next(line.split(maxsplit=5)[-1] for line in lines if "libop_tools_sim_device" in line)


def latency(microseconds: Mapping[str, float]) -> Latency:
    """Sets the least time of operators on the device, until stop() or the end of a `with` block.

    The time passes on the stream's queue, not in the calling thread.

    Args:
        microseconds: the time by operator, as a filter expression: {"mm|addmm": 200}.

    Raises:
        op_tools.Error: an expression or a time is wrong.
    """
    planted = Latency(_sim.Latency(list(microseconds.items())))
    planted.start()
    return planted


def set_asynchronous(on: bool) -> None:
    """Selects where kernels run.

    Args:
        on: True: later, in the stream's worker thread (the default). False: at once, in the calling thread.
    """
    _sim.set_asynchronous(on)


def is_asynchronous() -> bool:
    """Whether kernels run later, in the stream's worker thread."""
    return _sim.is_asynchronous()


def set_rounding(on: bool) -> None:
    """Selects how kernels round.

    Args:
        on: True: as another correct implementation: sums run in another order, and the last bit differs in
            places. False: results have the CPU's bits (the default, without OP_TOOLS_SIM_ROUNDING=1).
    """
    _sim.set_rounding(on)


def is_rounding() -> bool:
    """Whether kernels round as another correct implementation."""
    return _sim.is_rounding()


@contextmanager
def rounding(on: bool = True) -> Iterator[None]:
    """Kernels round in the `with` block as `set_rounding(on)` says, and behind it as before.

    Args:
        on: as of set_rounding().
    """
    before = is_rounding()
    set_rounding(on)
    try:
        yield
    finally:
        set_rounding(before)


def statistics(device: int = 0) -> dict[str, int]:
    """Counts of the simulated devices.

    Args:
        device: the device whose memory is reported.

    Returns:
        "calls", "asynchronous" and "views" (numbers of calls, of all devices); "allocations", "live_allocations",
        "allocated_bytes" and "peak_bytes" of `device`.
    """
    return _sim.statistics(device)


__all__ = [
    "FAULT_KINDS",
    "Fault",
    "Latency",
    "fault",
    "faults_clear",
    "is_asynchronous",
    "is_rounding",
    "latency",
    "library",
    "rounding",
    "set_asynchronous",
    "set_rounding",
    "statistics",
]
