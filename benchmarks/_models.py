"""Training steps of whole models, small and large, as a user writes them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class Block(nn.Module):
    """A layer of a language model: attention and a four times wider feed-forward part, normalised before each."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def step_of(
    model: nn.Module, x: torch.Tensor, loss_of: Callable[[torch.Tensor], torch.Tensor], device: str = "cpu"
) -> Callable[[], torch.Tensor]:
    model, x = model.to(device), x.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        if device != "cpu":
            torch.accelerator.synchronize()
        return loss.detach()

    return step


def lenet(batch: int = 64, device: str = "cpu") -> Callable[[], torch.Tensor]:
    torch.manual_seed(0)
    target = torch.randint(0, 10, (batch,)).to(device)
    return step_of(LeNet(), torch.randn(batch, 1, 28, 28), lambda out: F.cross_entropy(out, target), device)


def transformer(
    hidden: int = 64, layers: int = 2, batch: int = 8, length: int = 32, device: str = "cpu"
) -> Callable[[], torch.Tensor]:
    """Small operators: the cost of a tool per call decides."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(hidden, 4, 4 * hidden, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return step_of(model, torch.randn(batch, length, hidden), lambda out: out.square().mean(), device)


def block(hidden: int = 1024, length: int = 512, device: str = "cpu") -> Callable[[], torch.Tensor]:
    """Large operators, shaped like a language model's: the work of a tool on the bytes decides."""
    torch.manual_seed(0)
    return step_of(Block(hidden, 16), torch.randn(1, length, hidden), lambda out: out.square().mean(), device)
