"""Random small training programs, and edits of their source: for the proofs of all-clears.

A program follows from its seed alone: its layers, loss, optimizer, data and sizes. `train` runs it on a device and returns
losses, gradients and parameters of each step. `draw_edit` draws an edit of the source by the seed. As a script it
prints a line of JSON per step, for commands that start a program:

    python tests/proofs/_random_programs.py --seed 3 --device sim --edit loss
"""

# Shapes: N rows or sequences or images, T tokens, C width or channels, H and W image sides.
from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N, T, C, H, CLASSES = 12, 5, 16, 6, 5
MATTERS = 1e-3  # a loss, gradient or parameter that differs by more, as a share of its norm, is different
_EDITS_OF_LAYERS = ("scale", "shift", "drop", "repeat", "flip", "detach", "clip")
EDITS = (*_EDITS_OF_LAYERS, "logits", "loss", "smoothing", "rate", "zero_grad", "reduction", "eps")


@dataclass(frozen=True)
class Edit:
    """A change of the source. `place`: behind which layer; `amount`: a factor, an addend, a bound, a learning rate."""

    kind: str = "none"
    place: int = 0
    amount: float = 1.0


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(x)) * self.value(x)


class Attention(nn.Module):
    """As a single operator, or written out."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.fused = nn.Linear(width, 3 * width), nn.Linear(width, width), fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one.unflatten(-1, (2, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int) -> None:
        super().__init__()
        self.inner = kind(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Over(nn.Module):
    """A layer over channels in the second place, for tokens with channels last."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.mT).mT


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


class Standardized(nn.Module):
    """By running statistics, which are parts of a memory, and with halves that are scaled where they lie."""

    memory: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        mean, square = self.memory.chunk(2)
        with torch.no_grad():
            mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            square.mul_(0.9).add_(x.square().mean(0), alpha=0.1)
        y = (x - mean) * torch.rsqrt(square + 0.1)
        y[: len(y) // 2].mul_(1.5)
        y[len(y) // 2 :].neg_()
        return y


Layers = dict[str, Callable[[], nn.Module]]
SMOOTH: Layers = {
    "relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "softplus": nn.Softplus, "silu": nn.SiLU, "elu": nn.ELU,
    "leaky": lambda: nn.LeakyReLU(0.1), "hardswish": nn.Hardswish, "mish": nn.Mish, "softsign": nn.Softsign,
}  # fmt: skip
LAYERS: dict[str, Layers] = {
    "rows": {
        "linear": lambda: nn.Linear(C, C),
        "linear without bias": lambda: nn.Linear(C, C, bias=False),
        "layer_norm": lambda: nn.LayerNorm(C),
        "batch_norm": lambda: nn.BatchNorm1d(C),
        "rms": lambda: RootMeanSquare(C),
        "gated": lambda: Gated(C),
        "residual": lambda: Residual(nn.Sequential(nn.Linear(C, 2 * C), nn.GELU(), nn.Linear(2 * C, C))),
    },
    "tokens": {
        "linear": lambda: nn.Linear(C, C),
        "layer_norm": lambda: nn.LayerNorm(C),
        "rms": lambda: RootMeanSquare(C),
        "gated": lambda: Gated(C),
        "attention": lambda: Residual(Attention(C, fused=True)),
        "attention by hand": lambda: Residual(Attention(C, fused=False)),
        "lstm": lambda: Recurrent(nn.LSTM, C),
        "gru": lambda: Recurrent(nn.GRU, C),
        "conv1d": lambda: Over(nn.Conv1d(C, C, 3, padding=1)),
        "residual": lambda: Residual(nn.Sequential(nn.LayerNorm(C), nn.Linear(C, 2 * C), nn.SiLU(), nn.Linear(2 * C, C))),
    },
    "images": {
        "conv2d": lambda: nn.Conv2d(C, C, 3, padding=1),
        "depthwise": lambda: nn.Conv2d(C, C, 3, padding=1, groups=C),
        "pointwise": lambda: nn.Conv2d(C, C, 1),
        "batch_norm": lambda: nn.BatchNorm2d(C),
        "group_norm": lambda: nn.GroupNorm(4, C),
        "max_pool": lambda: nn.MaxPool2d(3, 1, 1),
        "avg_pool": lambda: nn.AvgPool2d(3, 1, 1),
        "residual": lambda: Residual(nn.Sequential(nn.Conv2d(C, C, 3, padding=1), nn.ReLU(), nn.Conv2d(C, C, 1))),
    },
}  # fmt: skip
WITHOUT_WEIGHTS = ("max_pool", "avg_pool", *SMOOTH)
LOSSES = ("cross_entropy", "nll", "mse", "l1", "huber", "smooth_l1", "bce", "kl", "cosine", "square")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD, "Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW, "RMSprop": torch.optim.RMSprop,
    "Adagrad": torch.optim.Adagrad,
}  # fmt: skip
RATES = {"SGD": 0.05, "Adam": 1e-2, "AdamW": 1e-2, "RMSprop": 3e-3, "Adagrad": 3e-2}


@dataclass(frozen=True)
class Program:
    """The program of a seed."""

    seed: int
    data: str  # "rows", "tokens", "images"
    layers: tuple[str, ...]
    loss: str
    optimizer: str
    foreach: bool | None  # None: as torch chooses for the device
    momentum: float
    reads_gradients: bool  # for a log
    clips_gradients: bool
    accumulates: bool  # two backward passes per step
    # Parameters, gradients and running statistics are parts of larger memories, and the program decides by numbers that
    # it reads of the device.
    in_parts: bool = False

    @property
    def text(self) -> str:
        return f"{self.data}: {', '.join(self.layers)}; {self.loss}, {self.optimizer}"


def program(seed: int, *, in_parts: bool = False) -> Program:
    draw = random.Random(f"program {seed}")
    data = draw.choice(list(LAYERS))
    layers: list[str] = []
    for _ in range(draw.randrange(2, 5)):
        layers.append(draw.choice(list(LAYERS[data])))
        if draw.random() < 0.6:
            layers.append(draw.choice(list(SMOOTH)))
    if all(name in WITHOUT_WEIGHTS for name in layers):
        layers.insert(0, next(iter(LAYERS[data])))
    optimizer = draw.choice(list(OPTIMIZERS))
    return Program(
        seed=seed,
        data=data,
        layers=tuple(layers),
        loss=draw.choice(LOSSES),
        optimizer=optimizer,
        foreach=draw.choice([None, True, False]),
        momentum=draw.choice([0.0, 0.9]) if optimizer == "SGD" else 0.0,
        reads_gradients=draw.random() < 0.3,
        clips_gradients=draw.random() < 0.2,
        accumulates=draw.random() < 0.15,
        in_parts=in_parts,
    )


def draw_edit(program: Program, number: int, kinds: tuple[str, ...] = EDITS) -> Edit:
    """The number-th edit of a program: each has an effect on paper, though not always on the numbers."""
    draw = random.Random(f"edit {program.seed} {number}")
    can = [
        kind
        for kind in kinds
        if (kind != "smoothing" or program.loss == "cross_entropy")
        and (kind != "reduction" or program.loss != "square")
        and (kind != "eps" or any("norm" in name for name in program.layers))
    ]
    kind = draw.choice(can)
    amounts = {
        "scale": (0.5, 0.9, 1.1, 2.0, -1.0, 1.01), "shift": (0.1, -0.5, 1.0, 0.01), "clip": (0.1, 0.5, 1.0),
        "logits": (0.5, 0.9, 1.1, 2.0, -1.0), "loss": (0.5, 1.1, 2.0, -1.0, 1000.0), "smoothing": (0.05, 0.1, 0.3),
        "rate": (0.5, 0.9, 1.1, 2.0, 10.0), "eps": (1e-3, 1e-2, 0.1),
    }  # fmt: skip
    return Edit(kind, draw.randrange(len(program.layers)), draw.choice(amounts.get(kind, (1.0,))))


class Network(nn.Module):
    def __init__(self, program: Program, edit: Edit) -> None:
        super().__init__()
        self.edit = edit
        self.layers = nn.ModuleList((LAYERS[program.data] | SMOOTH)[name]() for name in program.layers)
        self.standardized = Standardized(C) if program.in_parts else nn.Identity()
        self.head = nn.Linear(C, CLASSES)
        if edit.kind == "eps":
            for layer in self.modules():
                if isinstance(layer, (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm)):
                    layer.eps = edit.amount

    def forward(self, x: Tensor) -> Tensor:
        edit = self.edit
        for number, layer in enumerate(self.layers):
            here = edit.place == number
            if not (here and edit.kind == "drop"):
                x = layer(x)
            if here and edit.kind == "repeat":
                x = layer(x)
            if here and edit.kind in _EDITS_OF_LAYERS:
                x = self.edited(x)
        if x.dim() == 4:
            x = x.mean((2, 3))
        elif x.dim() == 3:
            x = x.mean(1)
        logits = self.head(self.standardized(x))
        return logits * edit.amount if edit.kind == "logits" else logits

    def edited(self, x: Tensor) -> Tensor:
        edit = self.edit
        if edit.kind == "scale":
            return x * edit.amount
        if edit.kind == "shift":
            return x + edit.amount
        if edit.kind == "flip":
            return x.flip(-1)
        if edit.kind == "detach":
            return x.detach()
        return x.clamp(-edit.amount, edit.amount) if edit.kind == "clip" else x


def loss_of(program: Program, edit: Edit, logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    reduction = "sum" if edit.kind == "reduction" else "mean"
    if program.loss == "cross_entropy":
        smoothing = edit.amount if edit.kind == "smoothing" else 0.0
        loss = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction=reduction)
    elif program.loss == "nll":
        loss = F.nll_loss(logits.log_softmax(-1), labels, reduction=reduction)
    elif program.loss == "bce":
        loss = F.binary_cross_entropy_with_logits(logits, targets.sigmoid(), reduction=reduction)
    elif program.loss == "kl":
        loss = F.kl_div(logits.log_softmax(-1), targets.softmax(-1), reduction=reduction)
    elif program.loss == "cosine":
        loss = F.cosine_embedding_loss(logits, targets, torch.ones_like(targets[:, 0]), reduction=reduction)
    elif program.loss == "square":
        loss = (logits - targets).square().sum(-1).sqrt().mean()
    else:
        by_name = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.huber_loss, "smooth_l1": F.smooth_l1_loss}
        loss = by_name[program.loss](logits, targets, reduction=reduction)
    return loss * edit.amount if edit.kind == "loss" else loss


@dataclass
class Outcome:
    """The results of a run, on the CPU: the loss of each step, gradients and parameters after the last step."""

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def difference(self, other: Outcome) -> float:
        """The largest of a loss, a gradient or a parameter, as a share of its size."""
        worst = 0.0
        for loss, two in zip(self.losses, other.losses, strict=True):
            worst = max(worst, abs(loss - two) / max(abs(loss), abs(two), 1e-12))
        worst = max(worst, _largest_share(self.gradients, other.gradients))
        return max(worst, _largest_share(self.parameters, other.parameters))


def _largest_share(tensors: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    if tensors.keys() != two.keys():
        return math.inf  # only one of the runs has this gradient
    if not all(bool(value.isfinite().all()) for value in (*tensors.values(), *two.values())):
        return math.inf
    sizes = {name: float(value.square().mean().sqrt()) for name, value in tensors.items()}
    # A gradient that is a sum of zero is rounding alone: beside the others it is nothing.
    least = max(0.01 * max(sizes.values(), default=0.0), 1e-12)
    shares = [
        float((value - two[name]).square().mean().sqrt()) / max(sizes[name], least) for name, value in tensors.items()
    ]
    return max((share if math.isfinite(share) else math.inf for share in shares), default=0.0)


def lay_into_one_memory(parameters: list[nn.Parameter]) -> None:
    """The parameters become parts of a memory, their gradients of another."""
    memory = torch.cat([parameter.detach().flatten() for parameter in parameters])
    gradients = torch.zeros_like(memory)
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part, gradient in zip(parameters, memory.split(sizes), gradients.split(sizes), strict=True):
        parameter.data = part.view(parameter.shape)
        parameter.grad = gradient.view(parameter.shape)


def damp(parameters: list[nn.Parameter]) -> None:
    """Smaller gradients, by a norm that the program reads."""
    squares = torch.stack([parameter.grad.square().sum() for parameter in parameters if parameter.grad is not None])
    norm = squares.sum().sqrt().item()
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(1 / (1 + norm * norm))


def train(
    program: Program,
    device: str = "cpu",
    edit: Edit | None = None,
    *,
    tool: contextlib.AbstractContextManager[Any] | None = None,
    steps: int = 2,
    step_done: Callable[[float], object] = lambda loss: None,
    dtype: torch.dtype = torch.float32,
) -> Outcome:
    """Trains from the program's seed.

    Args:
        tool: on while the program trains, from the first batch to the last step.
        step_done: called after each step, with its loss; a tool's step().
    """
    edit = edit or Edit()
    outcome = Outcome()
    torch.manual_seed(program.seed)
    network = Network(program, edit).to(device, dtype)
    parameters = list(network.parameters())
    if program.in_parts:
        lay_into_one_memory(parameters)
    rate = RATES[program.optimizer] * (edit.amount if edit.kind == "rate" else 1.0)
    options = {"momentum": program.momentum} if program.momentum else {}
    method = OPTIMIZERS[program.optimizer](parameters, lr=rate, foreach=program.foreach, **options)
    draw = torch.Generator().manual_seed(program.seed)
    shape = {"rows": (N, C), "tokens": (N, T, C), "images": (N, C, H, H)}[program.data]
    with tool or contextlib.nullcontext():
        for _ in range(steps):
            if edit.kind != "zero_grad":
                method.zero_grad(set_to_none=not program.in_parts)
            for _ in range(1 + program.accumulates):
                x = torch.randn(shape, generator=draw).to(device, dtype)
                labels = torch.randint(CLASSES, (N,), generator=draw).to(device)
                targets = torch.randn(N, CLASSES, generator=draw).to(device, dtype)
                loss = loss_of(program, edit, network(x), labels, targets)
                loss.backward()
            if program.reads_gradients:
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.grad.cpu().double()
            if program.clips_gradients:
                nn.utils.clip_grad_norm_(parameters, 1.0)
            if program.in_parts:
                damp(parameters)
            method.step()
            outcome.losses.append(loss.item())
            step_done(outcome.losses[-1])
    for name, parameter in network.named_parameters():
        outcome.parameters[name] = parameter.detach().cpu().double()
        if parameter.grad is not None:
            outcome.gradients[name] = parameter.grad.detach().cpu().double()
    return outcome


def rounding(device: str) -> contextlib.AbstractContextManager[None]:
    """The simulated device rounds otherwise than the CPU, as other hardware does by itself."""
    if device != "sim":
        return contextlib.nullcontext()
    import op_tools.sim_device as sim

    return sim.rounding()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--edit", choices=["none", *EDITS], default="none")
    options = parser.parse_args()
    if options.device == "sim":
        import op_tools.sim_device  # noqa: F401  (loads it)
    drawn = program(options.seed)
    edit = draw_edit(drawn, 0, (options.edit,)) if options.edit != "none" else None
    train(drawn, options.device, edit, steps=options.steps, step_done=lambda loss: print(json.dumps({"loss": loss})))
    return 0


if __name__ == "__main__":
    sys.exit(main())
