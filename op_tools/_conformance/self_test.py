"""Does the suite find wrong operators, here and now? Faults are planted on the simulated device.

Runs in a process of its own, beside each shard: torch has a single place for a device of another library, which the device that is
tested may have.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from .._base.core import reload_log_level
from .case import Case, TensorSpec
from .rows import AGREES
from .verdict import Judge
from .workers import StartError, work_through

_SECONDS = 300.0
# Planted faults: (kind, operators, the status of the case whose function ends so).
_FAULTS = (
    ("scale", "mm", "mm", "differs"),
    ("missing", "_softmax", "softmax", "unsupported"),
    ("scale", "mul.Tensor", "mul", "differs"),
    ("nan", "tanh_backward", "tanh", "differs"),
)


class SelfTest:
    """The self-test of a shard, which runs while the cases do."""

    def __init__(self) -> None:
        self._outcome = "it did not end"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # None of our variables, which may plant faults, nor other backends.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OP_", "AUTOCOMPARE_"))}
        environment = {**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OP_TOOLS_LOG_LEVEL": "off"}
        try:
            work = work_through([0], _start, find_trouble, jobs=1, seconds=_SECONDS, environment=environment)
            ((_, trouble, failure),) = list(work)
            self._outcome = str(failure) if failure else trouble
        except (StartError, OSError) as error:
            self._outcome = f"its process could not start: {error}"

    def outcome(self) -> str:
        """Waits for it; "" where all faults were found and nothing else, else the failure."""
        self._thread.join()
        return f"the self-test failed: {self._outcome}" if self._outcome else ""


def _start() -> None:
    reload_log_level()
    torch.set_num_threads(1)


def _cases() -> list[Case]:
    def tensor(*shape: int, gradient: bool = False) -> TensorSpec:
        return TensorSpec(shape, "float32", requires_grad=gradient)

    def case(op: str, *args: Any, gradient: bool = False) -> Case:
        return Case.make("mine", op, "function", args, {}, gradient=gradient)

    return [
        case("torch.mm", tensor(7, 9), tensor(9, 5)),
        case("torch.nn.functional.softmax", tensor(6, 8), -1),
        case("torch.tanh", tensor(40, gradient=True), gradient=True),
        case("torch.mul", tensor(4, 6), tensor(6)),
        case("torch.add", tensor(4, 6), tensor(4, 6)),
    ]


def find_trouble(_: object = None) -> str:
    """Plants each fault; "" where the suite finds it and nothing else."""
    from .. import sim_device  # torch has a single place for such a device

    judge = Judge(torch.device("sim:0"))
    cases = _cases()
    wrong = {case.op: row.reason for case in cases for row in judge.rows(case) if row.status != AGREES}
    if wrong:
        return f"without a fault: {wrong}"
    for kind, ops, function, status in _FAULTS:
        with sim_device.fault(kind, ops=ops):
            statuses = {
                case.op.rpartition(".")[2]: {row.status for row in judge.rows(case)} - {AGREES} for case in cases
            }
        expected = {name: {status} if name == function else set() for name in statuses}
        if statuses != expected:
            return f"a planted fault, {kind} of {ops}: found {statuses}"
    return ""
