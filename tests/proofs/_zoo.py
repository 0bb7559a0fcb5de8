"""Models of many kinds, small enough to train for a step in some milliseconds: tools are tried on them besides the usual four.

Each is a module whose `loss(step)` makes its own data from the step's number and returns a scalar; `optimizer` makes its optimizer.
"""

# Shapes: B batch, T time or tokens, C channels or width, H and W image sides.
from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Model(nn.Module):
    optimizer: ClassVar = functools.partial(torch.optim.AdamW, lr=1e-2)

    def draw(self, step: int, *shape: int) -> Tensor:
        """Normal numbers of the model's dtype, the same on every device."""
        generator = torch.Generator().manual_seed(1000 + step)
        like = next(self.parameters())
        return torch.randn(shape, generator=generator).to(like.device, like.dtype)

    def choose(self, step: int, below: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(2000 + step)
        return torch.randint(below, shape, generator=generator).to(next(self.parameters()).device)

    def loss(self, step: int) -> Tensor:
        raise NotImplementedError


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class Llama(Model):
    """Rotary positions, grouped keys, gated feed-forward, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norms = nn.ModuleList(RmsNorm(32) for _ in range(3))
        self.q, self.k, self.v = nn.Linear(32, 32, bias=False), nn.Linear(32, 16, bias=False), nn.Linear(32, 16)
        self.o, self.gate = nn.Linear(32, 32, bias=False), nn.Linear(32, 64, bias=False)
        self.up, self.down = nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)

    @staticmethod
    def rotate(x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[-2], device=x.device), torch.logspace(0, -2, 4, device=x.device))
        cos, sin = angles.cos().repeat(1, 2).to(x.dtype), angles.sin().repeat(1, 2).to(x.dtype)
        first, two = x.chunk(2, -1)
        return x * cos + torch.cat((-two, first), -1) * sin

    def loss(self, step: int) -> Tensor:
        tokens = self.choose(step, 50, 4, 13)
        x = self.embed(tokens[:, :-1])
        h = self.norms[0](x)
        q = self.rotate(self.q(h).view(4, 12, 4, 8).transpose(1, 2))
        k = self.rotate(self.k(h).view(4, 12, 2, 8).transpose(1, 2)).repeat_interleave(2, 1)
        v = self.v(h).view(4, 12, 2, 8).transpose(1, 2).repeat_interleave(2, 1)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(4, 12, 32))
        h = self.norms[1](x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        logits = F.linear(self.norms[2](x), self.embed.weight)
        return F.cross_entropy(logits.float().view(-1, 50), tokens[:, 1:].reshape(-1))


class Gpt(Model):
    """Attention written out, with a mask of -inf and dropout."""

    optimizer: ClassVar = functools.partial(torch.optim.Adam, lr=1e-2, foreach=False)

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(40, 24), nn.Parameter(torch.randn(10, 24) * 0.02)
        self.norm, self.after = nn.LayerNorm(24), nn.LayerNorm(24)
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.wide = nn.Sequential(nn.Linear(24, 96), nn.GELU("tanh"), nn.Linear(96, 24), nn.Dropout(0.1))
        self.head = nn.Linear(24, 40, bias=False)

    def loss(self, step: int) -> Tensor:
        tokens = self.choose(step, 40, 3, 11)
        x = self.embed(tokens[:, :-1]) + self.places
        q, k, v = self.qkv(self.norm(x)).split(24, -1)
        scores = torch.baddbmm(torch.zeros_like(q[:, :, :10]), q, k.mT, alpha=1 / math.sqrt(24))
        future = torch.ones(10, 10, dtype=torch.bool, device=x.device).triu(1)
        weights = F.dropout(scores.masked_fill(future, float("-inf")).softmax(-1), 0.1)
        x = x + self.out(weights @ v)
        x = x + self.wide(self.after(x))
        return F.cross_entropy(self.head(x).float().flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=3)


class UNet(Model):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=2, dilation=2, padding_mode="reflect")
        self.norm = nn.GroupNorm(4, 8)
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
        self.last = nn.Conv2d(11, 3, 1)

    def loss(self, step: int) -> Tensor:
        image = self.draw(step, 2, 3, 12, 12)
        low = F.silu(self.norm(self.middle(F.silu(self.down(image)))))
        wide = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        return F.mse_loss(self.last(torch.cat((self.up(low) + wide, image), 1)).float(), image.float().roll(1, -1))


class Vae(Model):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(20, 16), nn.Linear(8, 20)

    def loss(self, step: int) -> Tensor:
        x = self.draw(step, 6, 20)
        mean, log_variance = self.into(x).chunk(2, -1)
        code = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
        fit = F.binary_cross_entropy_with_logits(self.out(code).float(), x.float().sigmoid(), reduction="sum")
        return fit - 0.5 * (1 + log_variance - mean.square() - log_variance.exp()).float().sum()


class Gan(Model):
    """A generator and a judge, trained together: transposed convolutions, batch norm, leaky ReLU."""

    optimizer: ClassVar = functools.partial(torch.optim.RMSprop, lr=1e-3)

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(True), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Tanh()
        )
        self.tell = nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Flatten(), nn.Linear(128, 1))

    def loss(self, step: int) -> Tensor:
        image = self.make(self.draw(step, 4, 8, 1, 1))
        real = self.tell(self.draw(step, 4, 1, 8, 8)).float()
        return F.softplus(self.tell(image).float()).mean() + F.softplus(-real).mean()


class Speech(Model):
    """A bidirectional GRU over packed sequences, trained with CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(5, 8, 3, padding=1)
        self.gru = nn.GRU(8, 8, bidirectional=True)
        self.head = nn.Linear(16, 6)

    def loss(self, step: int) -> Tensor:
        sound = F.instance_norm(self.mix(self.draw(step, 3, 5, 14))).permute(2, 0, 1)
        lengths = torch.tensor([14, 11, 9])
        packed, _ = self.gru(nn.utils.rnn.pack_padded_sequence(sound, lengths))
        hidden, _ = nn.utils.rnn.pad_packed_sequence(packed)
        scores = self.head(hidden).float().log_softmax(-1)
        words = self.choose(step, 5, 3, 4) + 1
        return F.ctc_loss(scores, words.cpu(), lengths, torch.tensor([4, 3, 2]), zero_infinity=True)


class Graph(Model):
    """Messages along edges: gather, index_add, scatter."""

    optimizer: ClassVar = functools.partial(torch.optim.Adagrad, lr=1e-2)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 12), nn.Linear(24, 12), nn.Linear(12, 3)

    def loss(self, step: int) -> Tensor:
        nodes, edges = self.first(self.draw(step, 10, 6)), self.choose(step, 10, 2, 30)
        sums = torch.zeros_like(nodes).index_add(0, edges[1], nodes[edges[0]])
        most = torch.full_like(nodes, -1e4).scatter_reduce(
            0, edges[1].unsqueeze(1).expand(-1, 12), nodes.index_select(0, edges[0]), "amax"
        )
        hidden = F.elu(self.second(torch.cat((sums, most.clamp_min(-5)), 1)))
        return F.nll_loss(F.dropout(self.head(hidden).float(), 0.2).log_softmax(1), self.choose(step, 3, 10))


class Experts(Model):
    """Each token goes to its two best experts."""

    optimizer: ClassVar = functools.partial(torch.optim.SGD, lr=0.1, nesterov=True, momentum=0.9, foreach=True)

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.wide, self.narrow = nn.Parameter(torch.randn(4, 8, 16) / 3), nn.Parameter(torch.randn(4, 16, 8) / 4)

    def loss(self, step: int) -> Tensor:
        x = self.draw(step, 12, 8)
        share, chosen = self.gate(x).float().softmax(-1).topk(2, -1)
        share = (share / share.sum(-1, keepdim=True)).to(x.dtype)
        result = torch.zeros_like(x)
        for expert in range(4):
            rows, which = torch.where(chosen == expert)
            hidden = F.relu(torch.einsum("tc,cd->td", x[rows], self.wide[expert])) @ self.narrow[expert]
            result.index_put_((rows,), hidden.to(result.dtype) * share[rows, which, None], accumulate=True)
        balance = F.one_hot(chosen, 4).float().mean((0, 1)).var()
        return F.huber_loss(result.float(), x.float().flip(-1)) + balance


class Table(Model):
    optimizer: ClassVar = functools.partial(torch.optim.NAdam, lr=1e-2)

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 8, mode="mean")
        self.numbers = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.PReLU(), nn.Dropout(0.1))
        self.cross = nn.Bilinear(8, 8, 4)

    def loss(self, step: int) -> Tensor:
        words = self.bag(self.choose(step, 30, 7, 5))
        numbers = self.numbers(self.draw(step, 7, 6))
        scores = self.cross(numbers.to(words.dtype), words)
        return F.multi_margin_loss(scores.float(), self.choose(step, 4, 7)) + scores.float().logsumexp(-1).mean()


class Mobile(Model):
    """Depthwise convolutions, squeeze and excite, channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.squeeze, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)

    def loss(self, step: int) -> Tensor:
        image = self.draw(step, 3, 3, 10, 10).contiguous(memory_format=torch.channels_last)
        x = F.hardswish(self.norm(self.depth(self.stem(image))))
        x = x * F.hardsigmoid(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        scores = self.head(F.avg_pool2d(x, 5).flatten(1))
        return F.cross_entropy(scores.float(), self.choose(step, 5, 3), label_smoothing=0.1)


class Sound(Model):
    """The spectrum of a wave."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Conv1d(9, 4, 3)
        self.head = nn.Linear(4, 1)

    def loss(self, step: int) -> Tensor:
        wave = self.draw(step, 2, 64).float().cumsum(-1)
        spectrum = torch.stft(wave, 16, 8, window=torch.hann_window(16, device=wave.device), return_complex=True)
        x = self.scale(spectrum.abs().add(1e-3).log().to(self.scale.weight.dtype)).tanh().amax(-1)
        return F.l1_loss(self.head(x).float().squeeze(-1), wave.std(-1))


class Vision(Model):
    """Patches as tokens, a class token, the library's own attention layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Linear(16, 16), nn.Parameter(torch.zeros(1, 1, 16))
        self.attention, self.norm = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def loss(self, step: int) -> Tensor:
        patches = F.unfold(self.draw(step, 3, 1, 12, 12), 4, stride=4).transpose(1, 2)
        x = torch.cat((self.token.expand(3, -1, -1), self.patch(patches)), 1)
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return F.gaussian_nll_loss(
            self.head(x[:, 0]).float(), self.draw(step, 3, 4).float(), torch.ones(3, 4).to(x.device)
        )


class Pairs(Model):
    """Like things come close: normalised vectors, distances, triplets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 16), nn.Mish(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)))

    def loss(self, step: int) -> Tensor:
        here, near, far = (F.normalize(self.net(self.draw(step + n, 5, 10)), dim=-1).float() for n in range(3))
        apart = torch.cdist(here, far).clamp(max=1.5).mean()
        return (
            F.triplet_margin_loss(here, near, far)
            - apart
            + F.cosine_embedding_loss(here, near, -torch.ones(5).to(here))
        )


class Volume(Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv3d(1, 4, 3, padding=1), nn.Conv3d(4, 2, 1)

    def loss(self, step: int) -> Tensor:
        x = F.max_pool3d(F.celu(self.first(self.draw(step, 2, 1, 6, 6, 6))), 2)
        x = self.second(F.pad(x, (1, 1, 0, 0, 0, 0))).float()
        return F.cross_entropy(x, self.choose(step, 2, 2, *x.shape[2:])) + x.flatten(1).norm(dim=1).mean() * 0.1


class Policy(Model):
    """A choice by chance and its reward; gradients clipped by their norm, weights averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))

    def loss(self, step: int) -> Tensor:
        choices = torch.distributions.Categorical(logits=self.net(self.draw(step, 9, 6)).float())
        action = choices.sample()
        reward = (action == self.choose(step, 3, 9)).float()
        advantage = (reward - reward.mean()) / (reward.std() + 1e-3)
        return -(choices.log_prob(action) * advantage).mean() - 0.01 * choices.entropy().mean()


ZOO: dict[str, type[Model]] = {
    kind.__name__.lower(): kind
    for kind in (
        Llama, Gpt, UNet, Vae, Gan, Speech, Graph, Experts, Table, Mobile, Sound, Vision, Pairs, Volume, Policy
    )
}  # fmt: skip


def train(name: str, device: str, precision: str, steps: int, step_done=lambda: None) -> list[float]:
    """Trains from a fixed seed; returns the losses. `precision`: "float32", "bfloat16" or "autocast"."""
    torch.manual_seed(7)
    network = ZOO[name]().to(device, torch.bfloat16 if precision == "bfloat16" else torch.float32)
    method = network.optimizer(network.parameters())
    losses = []
    for step in range(steps):
        method.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"):
            loss = network.loss(step)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        method.step()
        losses.append(loss.detach())
        step_done()
    return [loss.item() for loss in losses]
