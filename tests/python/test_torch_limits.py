"""What the tools cannot do with an older torch: said by doctor, and true of the installed torch."""

import inspect

import pytest
import torch

from op_tools._torch.torch_limits import TORCH_LIMITS, limits_of
from op_tools._work.doctor import examine


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.7.1.post4+npu", 3), ("2.8.0", 3), ("2.9.1", 2), ("2.11.0", 2), ("2.12.0", 0), ("2.15.0", 0)],
)
def test_a_limit_is_that_of_the_versions_before(version, known):
    assert len(limits_of(version)) == known


def has_limit(of):
    return of in {limit.of for limit in limits_of(torch.__version__)}


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_the_installed_torch_asks_in_functions_of_distributed_or_has_the_limit():
    text = inspect.getsource(torch.distributed.broadcast)
    assert ("torch_function" in text) != has_limit("level torch")


def test_the_installed_torch_has_functions_of_memory_or_the_limit():
    assert hasattr(torch.accelerator, "memory_allocated") != has_limit("device sim")


def test_doctor_names_the_limits_of_the_installed_torch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.8.0+npu")
    lines = examine().lines
    said = " ".join(line.strip() for line in lines)
    assert all(f"before {limit.since[0]}.{limit.since[1]}: {limit.of} {limit.text}" in said for limit in TORCH_LIMITS)
    device = next(number for number, line in enumerate(lines) if line.startswith("device"))
    assert all(len(line) <= 80 for line in lines[2:device])
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    assert not any("before 2." in line for line in examine().lines)
