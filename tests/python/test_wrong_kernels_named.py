"""Where a kernel of a device gives a wrong result compare names the call that ran it, though the device rounds otherwise.
tests/proofs/compare_faults.py does more of it."""

import op_tools.sim_device as sim  # isort: skip  (before the first backward pass)
import contextlib
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import op_tools

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
import compare_faults
from _unused_models import MENDED

LEVELS = ["torch", "aten"]


def compared(folder, level, make, loss_of, operator, call=0, scale=1.5):
    """A on the CPU, B on the device, where a single call of an operator, counted from 0, is scaled."""
    kernel = compare_faults.Kernel(operator, call, 0, "")
    spoiled = compare_faults.Spoiled(kernel, sim.fault("scale", ops=operator, scale=scale))
    for name, device in (("a", "cpu"), ("b", "sim")):
        torch.manual_seed(0)
        net = make().to(device)
        record = op_tools.OpRecord(output_dir=folder / name, level=level)
        hook = op_tools.HookScope(spoiled, level="aten") if device == "sim" else contextlib.nullcontext()
        with compare_faults.rounding(device), record, hook:
            loss_of(net, device).backward()
    assert spoiled.calls, "the fault changed nothing"
    return op_tools.compare_runs(folder / "a", folder / "b").ranks[0]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", ["Segment", "Siamese", "TwoViews"])
def test_a_sample_of_the_proof(level, model):
    scores = compare_faults.Scores()
    lines = list(compare_faults.try_model(model, MENDED[model], level, 3, 5, scores))
    assert lines == []
    assert scores.alarms == 0
    assert sum(score.named for score in scores.parts.values()) >= 4


@pytest.mark.parametrize("model", ["Tagger", "Summary", "Elman"])
def test_wrong_kernels_of_recurrent_networks_are_named_by_the_fused_calls(model):
    """The device has other operators for them than the CPU."""
    scores = compare_faults.Scores()
    lines = list(compare_faults.try_model(model, MENDED[model], "aten", 4, 6, scores))
    forward = scores.parts["aten", compare_faults.FORWARD]
    assert scores.alarms == 0 and forward.missed == 0
    assert forward.named == forward.trials >= 3, lines


def alike(net, device):
    z = F.normalize(net(torch.randn(6, 8).to(device)), dim=1)
    others = (z @ z.T / 0.5).masked_fill(torch.eye(6, dtype=torch.bool, device=device), -1e9)
    own = torch.arange(6, device=device).roll(1)
    return (others.logsumexp(1) - others.gather(1, own[:, None]).squeeze(1)).mean()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("operator", ["aten::logsumexp", "aten::gather"])
def test_a_mask_of_large_numbers_hides_nothing(level, operator, tmp_path):
    first = compared(tmp_path, level, lambda: nn.Linear(8, 4), alike, operator, scale=1.02).first
    assert first is not None and operator.split("::")[1] in first.op
    assert (first.phase, first.verdict) == ("forward", "born here")
    assert first.limit < 1e-3


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(6, 8)

    def forward(self, x):
        state = torch.zeros(4, 8, device=x.device)
        for t in range(3):
            state = self.cell(x[:, t], state)
        return state


@pytest.mark.parametrize(
    ("operator", "call"), [("aten::mm", 2), ("aten::mm", 3), ("aten::_thnn_fused_gru_cell", 1), ("aten::mm", 9)]
)
def test_a_wrong_part_of_a_fused_operator_is_in_the_group_that_is_named(operator, call, tmp_path):
    """The CPU has a formula of ten operators in the place of the fused cell."""

    def loss_of(net, device):
        return net(torch.randn(4, 3, 6).to(device)).square().mean()

    rank = compared(tmp_path, "aten", Cell, loss_of, operator, call)
    assert rank.first is not None and rank.first.verdict == "born here"
    assert operator in rank.first.op_b.split(" + ")
    assert rank.first.calls_b > 1


def test_who_reads_a_gradient_early_is_not_named_for_who_made_it(tmp_path):
    """The embedding's backward runs before the last node of the lstm's has."""

    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.lstm = nn.Embedding(9, 8), nn.LSTM(8, 8)

        def forward(self, tokens):
            return self.lstm(self.embed(tokens))[0]

    def loss_of(net, device):
        return net(torch.arange(12).reshape(4, 3).to(device) % 9).square().mean()

    operator = "aten::_thnn_fused_lstm_cell_backward_impl"
    first = compared(tmp_path, "torch", Text, loss_of, operator, 1, scale=1.1).first
    assert first is not None and (first.op, first.phase, first.verdict) == ("torch.lstm", "backward", "born here")


def test_a_wrong_sum_of_small_gradients_is_seen_beside_large_ones(tmp_path):
    """At the torch level the engine's sums are no calls: the reader of a sum is named."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            h = torch.tanh(self.small(x))
            return self.large(x).square().sum() + 1e-4 * (h.sin().sum() + h.exp().sum())

    first = compared(
        tmp_path, "torch", Branches, lambda net, device: net(torch.randn(5, 8).to(device)), "aten::add_.Tensor", 0, 1.02
    ).first
    assert first is not None and (first.op, first.phase) == ("torch.tanh", "backward")
    assert first.finding == "an input differs from the start"
