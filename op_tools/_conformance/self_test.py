"""Does the suite find what is wrong, here and now? Faults are planted on the simulated device: python -m op_tools._conformance.self_test

Runs in a process of its own, beside each shard: torch has one place for a device of another library, which the device that is
tested may have. Prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

_MODULE = "op_tools._conformance.self_test"
# What is planted, and where: (kind, operators, what becomes of the case whose function ends so).
_FAULTS = (
    ("scale", "mm", "mm", "failed"),
    ("missing", "_softmax", "softmax", "unsupported"),
    ("scale", "mul.Tensor", "mul", "failed"),
    ("nan", "tanh_backward", "tanh", "failed"),
)


class SelfTest:
    """The self-test of a shard, which runs while the cases do."""

    def __init__(self) -> None:
        # Of the environment the search paths are wanted, and none of our variables nor the import of other backends.
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OP_", "AUTOCOMPARE_"))}
        environment = {**kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OP_TOOLS_LOG_LEVEL": "error"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def outcome(self, seconds: float = 300) -> str:
        """Waits for it; "" where all faults were found and nothing else, else what is wrong."""
        try:
            out, err = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return f"the self-test did not end in {seconds:.0f} s"
        try:
            found: dict[str, str] = json.loads(out.strip().splitlines()[-1])
            return found["trouble"]
        except (ValueError, IndexError, KeyError):
            return f"the self-test ended with status {self._process.returncode}: {err.strip()[-300:]}"

    def cancel(self) -> None:
        """It is not needed any more."""
        self._process.kill()
        self._process.communicate()


def _cases() -> list[Any]:
    from .case import Case, TensorSpec

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


def find_trouble() -> str:
    """Plants each fault; "" where the suite finds it and nothing else."""
    import torch

    from .. import sim_device
    from .rows import PASSED
    from .verdict import Judge

    judge = Judge(torch.device("sim:0"))
    cases = _cases()
    wrong = {case.op: row.reason for case in cases for row in judge.rows(case) if row.status != PASSED}
    if wrong:
        return f"without a fault: {wrong}"
    for kind, ops, function, status in _FAULTS:
        with sim_device.fault(kind, ops=ops):
            found = {case.op.rpartition(".")[2]: {row.status for row in judge.rows(case)} - {PASSED} for case in cases}
        expected = {name: {status} if name == function else set() for name in found}
        if found != expected:
            return f"a planted fault, {kind} of {ops}: found {found}"
    return ""


if __name__ == "__main__":
    try:
        said = find_trouble()
    except Exception as error:  # whatever it is, the suite cannot be trusted here
        said = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps({"trouble": said}) + "\n")
