"""OpAutoCompare says nothing about right kernels where much is added up: models at the sizes of real training steps.

The other proofs use small models, in which no sum is long. Here a mean runs over up to a million elements, and torch's
CPU kernels that add one element after the other round by a thousand units. Each model trains for two steps on the CPU
itself, where float64 alone judges; also in channels_last, under autocast, compiled by inductor.

    large_tensors.py [--names REGEX] [--ways REGEX] [--seed 1]
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from _program import parser, quiet
from torch import Tensor, nn

import op_tools

STEPS = 2


class Residual(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module], bias: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=bias), norm(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=bias), norm(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


def _images(norm: Callable[[int], nn.Module], bias: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=bias), norm(32), nn.ReLU(), Residual(32, norm, bias), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=bias), norm(64), nn.GELU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 100),
    )  # fmt: skip


class ScaleAndShift(nn.Module):
    """An image from an image: transposed convolutions, interpolation, a loss over every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 24, 4, 2, 1), nn.InstanceNorm2d(24, affine=True), nn.SiLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(24, 24, 4, 2, 1), nn.BatchNorm2d(24), nn.LeakyReLU(0.1))
        self.last = nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        low = F.interpolate(self.down(x), scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(self.up(self.down(x)) + low)


class Tokens(nn.Module):
    """Embedding, attention, a vocabulary: every gradient is a sum over all tokens."""

    def __init__(self, words: int = 4000, width: int = 128) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(self.words(tokens)))).flatten(0, 1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.norm, self.head = nn.LSTM(32, 64, 1, batch_first=True), nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.cells(x)[0].flatten(0, 1)))


class Signal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 32, 9, padding=4), nn.BatchNorm1d(32), nn.Tanh(), nn.Conv1d(32, 1, 9))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y - y.mean()


@dataclass(frozen=True)
class Case:
    network: Callable[[], nn.Module]
    data: Callable[[torch.Generator], Tensor]
    loss: Callable[[Tensor], Tensor]
    of_images: bool = False


def _pictures(count: int, side: int, shift: float = 0.4) -> Callable[[torch.Generator], Tensor]:
    return lambda draw: torch.rand(count, 3, side, side, generator=draw) + shift


def _classes(y: Tensor) -> Tensor:
    return F.cross_entropy(y.float(), torch.arange(len(y), device=y.device) % y.shape[1])


CASES = {
    "batch norm": Case(lambda: _images(nn.BatchNorm2d), _pictures(16, 96), _classes, of_images=True),
    "batch norm, biases": Case(lambda: _images(nn.BatchNorm2d, True), _pictures(16, 64), _classes, of_images=True),
    "group norm": Case(lambda: _images(lambda c: nn.GroupNorm(8, c)), _pictures(8, 96), _classes, of_images=True),
    "pixels": Case(ScaleAndShift, _pictures(4, 128, -0.5), lambda y: y.float().square().mean(), of_images=True),
    "two norms": Case(
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 8, 3)),
        _pictures(16, 64),
        lambda y: y.float().abs().mean(),
        of_images=True,
    ),
    "tokens": Case(Tokens, lambda draw: torch.randint(4000, (8, 256), generator=draw), _classes),
    "recurrent": Case(Recurrent, lambda draw: torch.randn(64, 100, 32, generator=draw), _classes),
    "signal": Case(
        Signal, lambda draw: torch.randn(8, 1, 40_000, generator=draw), lambda y: F.smooth_l1_loss(y, y.detach().roll(1))
    ),
    "elements": Case(
        lambda: nn.Sequential(nn.Linear(512, 512), nn.Softplus(), nn.Linear(512, 1)),
        lambda draw: torch.randn(16_384, 512, generator=draw),
        lambda y: (y - y.mean()).square().sum() / y.std(),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    level: str = "torch"
    channels_last: bool = False
    autocast: bool = False
    compiled: bool = False
    dynamic: bool = False
    threads: int = 1


WAYS = {
    "plain": Way(),
    "aten": Way("aten"),
    "two threads": Way("aten", threads=2),
    "channels_last": Way("aten", channels_last=True),
    "channels_last, torch": Way(channels_last=True),
    "autocast": Way("aten", autocast=True),
    "inductor": Way(compiled=True),
    "inductor, dynamic": Way(compiled=True, dynamic=True),
    "inductor, channels_last": Way(compiled=True, channels_last=True),
}


def _train(case: Case, way: Way, seed: int) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(seed)
    torch.set_num_threads(way.threads)
    network = case.network()
    if way.channels_last:
        network = network.to(memory_format=torch.channels_last)
    method = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    step = torch.compile(network, dynamic=way.dynamic or None) if way.compiled else network
    draw = torch.Generator().manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        tool = op_tools.OpAutoCompare(level=way.level, output_dir=folder, max_saved=0)
        with tool:
            for number in range(STEPS):
                x = case.data(draw)[number if way.dynamic else 0 :]
                if way.channels_last:
                    x = x.contiguous(memory_format=torch.channels_last)
                method.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=way.autocast):
                    y = step(x)
                case.loss(y).backward()
                method.step()
        return tool.result()


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--names", default="", metavar="REGEX")
    options.add_argument("--ways", default="", metavar="REGEX")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    quiet()
    named = judged = runs = 0
    for name, case in CASES.items():
        for text, way in WAYS.items():
            if not re.search(chosen.names, name) or not re.search(chosen.ways, text):
                continue
            if way.channels_last and not case.of_images:
                continue
            before = time.monotonic()
            result = _train(case, way, chosen.seed)
            wrong = [row for row in result.rows if row.verdict == "differs"]
            judged += sum(row.verdict == "agrees" for row in result.rows)
            runs += 1
            named += len(wrong)
            print(f"{name}, {text}: {result.verdict.value}, {time.monotonic() - before:.0f} s", flush=True)
            for row in wrong:
                print(
                    f"    {row.op} {row.phase} {row.what} {row.shape}: {row.deciding} {row.number:.3g} > {row.limit:.3g} "
                    f"({row.number / row.limit:.1f}), of the CPU {row.cpu_error_rmse}: {row.thresholds}",
                    flush=True,
                )
    print(f"{runs} trainings, {judged} results agree, {named} named")
    return 1 if named else 0


if __name__ == "__main__":
    sys.exit(main())
