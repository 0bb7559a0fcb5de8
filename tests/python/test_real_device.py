"""On a device of another project (torchvulkan on llvmpipe): its faults are named, its own rounding and choices are not. More:
./dev prove real_device."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROOF = Path(__file__).resolve().parents[1] / "proofs" / "real_device.py"

PROGRAM = """
import torch, torchvulkan, op_tools

def named(program):
    ops = []
    for level in ("torch", "aten"):
        with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
            program()
        ops.append({op_tools._C.base_name(row.op): (row.kind, row.reason, row.thresholds) for row in tool.result().failures})
    return ops

D = "vulkan"
t = torch.tensor
torch.manual_seed(0)
x = torch.randint(0, 9, (5, 7), dtype=torch.uint8)
RIGHT = {
    "fft of integers": lambda: torch.fft.fft(x.to(D)),
    "logsigmoid": lambda: torch.nn.functional.logsigmoid(torch.randn(3, 7, device=D)),
    "embedding_bag": lambda: torch.nn.functional.embedding_bag(t([0, 2, 1], device=D), torch.randn(4, 3, device=D), t([0], device=D)),
    "nonzero": lambda: torch.nonzero(torch.zeros(3, 2, device=D)),
    "qr": lambda: torch.linalg.qr(torch.randn(5, 5, device=D)),
    "unique_consecutive": lambda: torch.unique_consecutive(t([1, 1, 2], device=D)),
    "convolution": lambda: torch.conv1d(torch.randn(2, 3, 9, device=D, dtype=torch.float16),
                                        torch.randn(4, 3, 3, device=D, dtype=torch.float16), torch.randn(4, device=D).half()),
    "scatter_add": lambda: torch.zeros(5, dtype=torch.bfloat16, device=D).scatter_add_(
        0, t([0, 1, 0, 3, 0, 1] * 4, device=D), torch.randn(24, device=D).bfloat16()),
    "complex NaN": lambda: torch.fft.rfft(t([1.0, float("nan"), 2.0], device=D)),
}
for name, program in RIGHT.items():
    assert named(program) == [{}, {}], (name, named(program))
WRONG = {
    "eq_": lambda: t([1, 2, 3], dtype=torch.int16, device=D).eq_(t([1, 0, 3], dtype=torch.int16, device=D)),
    "gt_": lambda: t([1.0, 5.0, 3.0], device=D).gt_(t([2.0, 2.0, 2.0], device=D)),
    "logical_not_": lambda: t([1.0, 0.0, 3.0], device=D).logical_not_(),
    "mean": lambda: torch.mean(t(3.0, device=D), -1),
    "logsumexp": lambda: torch.randn(3, 4, dtype=torch.complex64).to(D).logsumexp(1),
    "acos": lambda: torch.linspace(-0.99, 0.99, 1001, device=D).acos(),
    "tanh": lambda: torch.linspace(-0.99, 0.99, 1001, device=D).tanh(),
}
for name, program in WRONG.items():
    torch_level, aten_level = named(program)
    assert set(torch_level) == {name}, (name, torch_level)
    assert set(aten_level) <= {name, "log"} and aten_level, (name, aten_level)
assert named(WRONG["mean"])[0]["mean"][0] == "alias"
with op_tools.OpAutoCompare(max_saved=0) as tool:
    torch.linspace(-0.99, 0.99, 1001, device=D).acos()
row = tool.result().failures[0]
assert row.worst_result != row.worst_reference
error = abs(float(row.worst_result) - float(row.worst_reference))
assert error / abs(float(row.worst_reference)) > 100 * 2**-23 or row.deciding != "max_ulp", row  # the element that decided
"""


def _backend():
    if find_spec("torchvulkan") is None:
        pytest.skip("torchvulkan is not installed (requirements-extras.txt)")
    done = subprocess.run(
        [sys.executable, "-c", "import torch, torchvulkan; torch.ones(2, device='vulkan').sum().item()"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"torchvulkan has no device (mesa-vulkan-drivers): {done.stderr.strip().splitlines()[-1:]}")


def test_a_device_with_its_own_rounding_is_judged_by_its_faults(tmp_path):
    _backend()
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_models_on_it_are_judged_by_its_faults(tmp_path):
    _backend()
    words = ["--only", "autocompare", "overflow", "--steps", "1"]
    done = subprocess.run([sys.executable, PROOF, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 parts not as they should be" in done.stdout
