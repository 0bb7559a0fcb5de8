"""Usual models train on the device as they do on the CPU: the same losses, gradients and parameters."""

import copy

import pytest
import torch
import torch.nn.functional as F
from models import LeNet, ResNet, digits
from torch import nn

import op_tools.sim_device as sim

STEPS, BATCH = 3, 16


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.cells(x.squeeze(1))[0][:, -1])


class Transformer(nn.Module):
    """With dropout: the device's random numbers are the CPU's for the same seed."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(8, device=x.device)
        return self.head(self.layers(self.embed(x.squeeze(1)), mask=mask, is_causal=True).mean(1))


class Words(nn.Module):
    """Embeddings of the grey values, a table that is sparse in its use, and a bag."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(17, 12, padding_idx=0)
        self.bag = nn.EmbeddingBag(17, 12, mode="sum")
        self.head = nn.Linear(12, 10)

    def forward(self, x):
        words = (x * 16).long().flatten(1)
        return self.head(self.words(words).mean(1) + self.bag(words))


MODELS = {
    "lenet": LeNet,
    "resnet": ResNet,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "transformer": Transformer,
    "embedding": Words,
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
}
# torch takes another way on devices (fused cells, attention in parts) than on the CPU (oneDNN): rounding differs.
ANOTHER_ALGORITHM = {"lstm", "gru", "transformer"}


def train(model, optimizer, device):
    torch.manual_seed(3)
    network = copy.deepcopy(model).to(device)
    method = OPTIMIZERS[optimizer](network.parameters())
    images, labels = digits()
    seen = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        method.zero_grad()
        loss = F.cross_entropy(network(images[rows].to(device)), labels[rows].to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        method.step()
        seen.append(loss.item())
    seen += [p.grad.cpu() for p in network.parameters()] + [p.detach().cpu() for p in network.parameters()]
    return seen


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_training_gives_the_numbers_of_the_cpu(name, optimizer):
    torch.manual_seed(0)
    model = MODELS[name]()
    before = sim.statistics()["asynchronous"]
    right, result = train(model, optimizer, "cpu"), train(model, optimizer, "sim")
    close = dict(rtol=1e-4, atol=1e-5) if name in ANOTHER_ALGORITHM else dict(rtol=0, atol=0)
    torch.testing.assert_close(result, right, **close)
    assert sim.statistics()["asynchronous"] > before


def test_backward_uses_the_programs_number_of_threads():
    """torch's thread for the device's backward begins with the number of threads of its first backward."""
    before = torch.get_num_threads()
    images = torch.randn(32, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    try:
        for threads in (2, 1):
            torch.set_num_threads(threads)
            gradients = []
            for device in ("cpu", "sim"):
                torch.manual_seed(0)
                network = nn.Conv2d(1, 6, 3).to(device)
                network(images.to(device)).square().sum().backward()
                gradients.append(network.weight.grad.cpu())
            torch.testing.assert_close(*gradients, rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)
