"""Random networks with a last layer that a fault of the compiler sim_graph is about."""

# Shapes: N rows or sequences or images, T tokens, C width or channels, H image sides.
from __future__ import annotations

import torch
from _random_programs import CLASSES, C, Edit, H, N, Network, T, program
from torch import Tensor, nn

_SHAPES = {"rows": (C,), "tokens": (T, C), "images": (C, H, H)}


def data_of(seed: int, generator: torch.Generator, rows: int = N) -> Tensor:
    """Input of the network of a seed, float32."""
    return torch.randn((rows, *_SHAPES[program(seed).data]), generator=generator)


class Layer(nn.Module):
    """Operators to which faults belong, on rows (n, CLASSES)."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.linear, self.norm = nn.Linear(CLASSES, CLASSES), nn.LayerNorm(CLASSES)
        self.images = nn.Conv2d(1, 3, 3)
        self.register_buffer("calls", torch.tensor([3, 5]))
        self.register_buffer("table", torch.zeros(2, CLASSES))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        fault = self.fault
        if fault == "wrong fusion":
            return (nn.functional.gelu(self.linear(x)),)
        if fault in ("wrong constant", "no gradient function"):
            return (self.norm(x * 0.02),)
        if fault in ("wrong scale", "16-bit softmax"):
            return (x + torch.softmax((x @ x.mT) * 0.3, -1) @ x,)
        if fault in ("int64 narrowed", "lost mutation"):
            self.calls += 1
            return (x, self.calls * 3_000_000_000)
        if fault == "no correction":
            return ((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1),)
        if fault == "dead code":
            y = x * 2.0
            y[0] = 0.5
            return (y,)
        if fault == "reused buffer":
            y = x * 1.5
            return (torch.sigmoid(y) * y,)
        if fault == "wrong kernel":
            return (nn.functional.silu(x),)
        if fault == "copied view":
            return (x, self.table.view(-1), self.linear(x))
        if fault == "other strides":
            return (self.linear(x), x @ x.mT)
        if fault == "wrong layout":
            images = self.images(x[:, None, :, None] * x[:, None, None, :])
            return (images.relu().mean((2, 3)), images)
        if fault == "stale size":
            return (x.sum(0) / x.shape[0],)
        return (self.linear(x).relu() + x,)


class Model(nn.Module):
    """A random network, and the layer behind it."""

    def __init__(self, seed: int, fault: str) -> None:
        super().__init__()
        self.network, self.layer = Network(program(seed), Edit()), Layer(fault)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.layer(self.network(x))
