"""Two runs agree only where their losses, gradients and parameters do; a device that rounds otherwise is no difference."""

import op_tools.sim_device as sim  # isort: skip  (before the first backward pass)
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import op_tools

LEVELS = ["torch", "aten"]


def train(device, steps, make, loss_of, optimizer, logs=False, record=None):
    torch.manual_seed(0)
    nets = [net.to(device) for net in make()]
    x = torch.randn(12, 6, 8).to(device)
    method = optimizer([parameter for net in nets for parameter in net.parameters()])
    with record:
        for _ in range(steps):
            y = x
            for net in nets:
                y = net(y)
            loss = loss_of(y[0] if isinstance(y, tuple) else y)
            method.zero_grad()
            loss.backward()
            if logs:
                for net in nets:
                    for parameter in net.parameters():
                        parameter.grad.cpu().double()
            method.step()
            record.step()


def square(y):
    return y.square().mean()


def mlp():
    return [nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def compared(folder, level, make=mlp, loss_a=square, loss_b=square, optimizer=sgd, device="sim", logs=False):
    """A on the CPU; B on the device, whose inputs are off by one unit in the last place."""
    for name, on, loss_of in (("a", "cpu", loss_a), ("b", device, loss_b)):
        record = op_tools.OpRecord(output_dir=folder / name, level=level, jitter=int(name == "b"))
        train(on, 2, make, loss_of, optimizer, logs, record)
    return op_tools.compare_runs(folder / "a", folder / "b")


@pytest.mark.parametrize("level", LEVELS)
def test_a_wrong_gradient_is_named_where_the_runs_round_differently(level, tmp_path):
    with sim.fault("scale", ops="aten::tanh_backward", scale=1.02):
        first = compared(tmp_path, level).ranks[0].first
    assert first is not None and "tanh" in first.op
    assert first.phase == "backward" and first.verdict == "born here"
    assert first.limit < 1e-3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("factor", [2.0, -1.0, 1000.0])
def test_another_loss_never_agrees(level, factor, tmp_path):
    found = compared(tmp_path, level, loss_b=lambda y: square(y) * factor)
    assert found.exit_status == 1 and not found.agrees


@pytest.mark.parametrize("level", LEVELS)
def test_other_logits_never_agree(level, tmp_path):
    labels = torch.arange(12) % 8

    def of_classes(factor):
        return lambda y: F.cross_entropy((y * factor if factor != 1 else y)[:, 0], labels.to(y.device))

    found = compared(tmp_path, level, loss_a=of_classes(1), loss_b=of_classes(2.0))
    assert found.exit_status == 1


@pytest.mark.parametrize("level", LEVELS)
def test_copies_to_the_host_are_no_calls(level, tmp_path):
    found = compared(tmp_path, level, logs=True)
    assert found.agrees, found.table()


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)  # lists of tensors on the device, one by one on the CPU


def two_roots():
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh())]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("make", [mlp, two_roots, lambda: [nn.LSTM(8, 8)], lambda: [nn.GRU(8, 8)]])
def test_the_same_program_on_a_device_agrees(level, make, tmp_path):
    found = compared(tmp_path, level, make=make, optimizer=adam)
    assert found.agrees, found.table()
