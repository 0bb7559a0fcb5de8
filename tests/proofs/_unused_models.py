"""Models of many kinds that no other proof and no test uses: op-tools compare is measured on them.

These were looked at while the limits of compare were set, those of _held_out_models.py only measured.
"""

# Shapes: B batch, T time or tokens, C channels or width, H and W image sides.
from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from _zoo import Model as ZooModel
from torch import Tensor, nn


class Model(ZooModel):
    optimizer: ClassVar = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)

    def forward(self, step: int) -> Tensor:
        return self.loss(step)


class GroupedQueries(Model):
    """Rotary positions by complex numbers, fused RMSNorm, several queries for a key, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(37, 32), nn.Linear(32, 37, bias=False)
        self.before, self.after, self.last = nn.RMSNorm(32), nn.RMSNorm(32), nn.RMSNorm(32)
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.o, self.gate, self.down = nn.Linear(32, 32), nn.Linear(32, 96), nn.Linear(48, 32)
        angles = torch.outer(torch.arange(11.0), torch.logspace(0, -2, 4))
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin()), -1))

    def rotate(self, x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2)) * torch.view_as_complex(self.turns)
        return torch.view_as_real(turned).flatten(-2)

    def loss(self, step: int) -> Tensor:
        tokens = self.choose(step, 37, 3, 12)
        x = self.embed(tokens[:, :-1])
        h = self.before(x)
        q, k, v = (part(h).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + self.o(heads.transpose(1, 2).flatten(2))
        gate, up = self.gate(self.after(x)).chunk(2, -1)
        x = x + self.down(F.silu(gate) * up)
        return F.cross_entropy(self.head(self.last(x)).flatten(0, 1), tokens[:, 1:].flatten())


class SelectiveScan(Model):
    """As Mamba: a causal depthwise convolution, then a state that each token decides to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 32), nn.Linear(16, 5)
        self.conv = nn.Conv1d(16, 16, 3, padding=2, groups=16)
        self.choices, self.rate = nn.Linear(16, 12), nn.Linear(4, 16)
        self.decay, self.skip = nn.Parameter(torch.arange(1.0, 5).log().repeat(16, 1)), nn.Parameter(torch.ones(16))

    def loss(self, step: int) -> Tensor:
        x, gate = self.into(self.draw(step, 2, 7, 6)).chunk(2, dim=-1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., :7].transpose(1, 2))
        rate, write, read = self.choices(x).split(4, dim=-1)
        rate = F.softplus(self.rate(rate))
        keep = torch.exp(rate.unsqueeze(-1) * -self.decay.exp())
        state, seen = torch.zeros(2, 16, 4, device=x.device), []
        for t in range(7):
            state = keep[:, t] * state + (rate[:, t] * x[:, t]).unsqueeze(-1) * write[:, t].unsqueeze(1)
            seen.append(torch.einsum("bcn,bn->bc", state, read[:, t]))
        y = (torch.stack(seen, 1) + self.skip * x) * F.silu(gate)
        return F.cross_entropy(self.out(y).transpose(1, 2), self.choose(step, 5, 2, 7))


class ConvNext(Model):
    """Wide depthwise convolutions, channels last, a norm of responses, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 2, stride=2)
        self.depth, self.norm = nn.Conv2d(12, 12, 5, padding=2, groups=12), nn.LayerNorm(12, eps=1e-6)
        self.wide, self.narrow = nn.Linear(12, 36), nn.Linear(36, 12)
        self.gain, self.shift = nn.Parameter(torch.ones(36)), nn.Parameter(torch.zeros(36))
        self.scale, self.head = nn.Parameter(torch.full((12,), 0.5)), nn.Linear(12, 7)

    def loss(self, step: int) -> Tensor:
        x = self.stem(self.draw(step, 3, 3, 12, 12))
        h = F.gelu(self.wide(self.norm(self.depth(x).permute(0, 2, 3, 1))))
        sizes = torch.norm(h, p=2, dim=(1, 2), keepdim=True)
        h = self.gain * (h * (sizes / (sizes.mean(-1, keepdim=True) + 1e-6))) + self.shift + h
        x = x + (self.scale * self.narrow(h)).permute(0, 3, 1, 2)
        return F.cross_entropy(self.head(x.mean((-2, -1))), self.choose(step, 7, 3))


class Segment(Model):
    """A U-Net of transposed convolutions, nearest and bilinear steps up; cross entropy and the Dice loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)
        self.norm_one, self.norm_two = nn.InstanceNorm2d(6, affine=True), nn.BatchNorm2d(12)
        self.up, self.join = nn.ConvTranspose2d(12, 6, 2, stride=2), nn.Conv2d(12, 6, 3, padding=1)
        self.last = nn.Conv2d(7, 3, 1)

    def loss(self, step: int) -> Tensor:
        image = self.draw(step, 2, 1, 12, 12)
        high = F.leaky_relu(self.norm_one(self.first(image)), 0.1)
        low = F.leaky_relu(self.norm_two(self.second(F.avg_pool2d(high, 2))), 0.1)
        x = F.leaky_relu(self.join(torch.cat((self.up(low), high), 1)), 0.1)
        small = F.interpolate(image, scale_factor=0.5, mode="bilinear", align_corners=False)
        x = self.last(torch.cat((x, F.interpolate(small, scale_factor=2, mode="nearest")), 1))
        labels = self.choose(step, 3, 2, 12, 12)
        shares, wanted = x.softmax(1), F.one_hot(labels, 3).permute(0, 3, 1, 2).to(x.dtype)
        dice = 1 - (2 * (shares * wanted).sum((2, 3)) + 1) / (shares.sum((2, 3)) + wanted.sum((2, 3)) + 1)
        return F.cross_entropy(x, labels) + dice.mean()


class Cells(Model):
    """A GRU cell, step by step; the state that counts is chosen by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.score, self.head = nn.GRUCell(6, 12), nn.Linear(12, 1), nn.Linear(12, 4)

    def loss(self, step: int) -> Tensor:
        x, state, states = self.draw(step, 5, 6, 6), torch.zeros(5, 12, device=self.score.weight.device), []
        for t in range(6):
            state = self.cell(x[:, t], state)
            states.append(state)
        seen = torch.stack(states, 1)
        shares = torch.softmax(torch.tanh(self.score(seen)).squeeze(-1), -1)
        return F.nll_loss(
            F.log_softmax(self.head(torch.bmm(shares.unsqueeze(1), seen).squeeze(1)), -1), self.choose(step, 4, 5)
        )


class Letters(Model):
    """An LSTM of two layers that continues a text; embedding and head share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(23, 16), nn.LSTM(16, 16, 2, batch_first=True)

    def loss(self, step: int) -> Tensor:
        tokens = self.choose(step, 23, 4, 9)
        hidden, (state, _) = self.lstm(self.embed(tokens[:, :-1]))
        logits = torch.matmul(hidden, self.embed.weight.t())
        return F.cross_entropy(logits.reshape(-1, 23), tokens[:, 1:].reshape(-1)) + 1e-2 * state.square().mean()


class Critic(Model):
    """A generator and a critic with hinge losses and a penalty; up-sampling by pixels that are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.make = nn.Linear(5, 72), nn.Conv2d(8, 4, 3, padding=1)
        self.see, self.tell = nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.Linear(72, 1)

    def judged(self, image: Tensor) -> Tensor:
        return self.tell(F.leaky_relu(self.see(image), 0.2).flatten(1))

    def loss(self, step: int) -> Tensor:
        x = F.relu(self.start(self.draw(step, 4, 5))).view(4, 8, 3, 3)
        image = torch.tanh(F.pixel_shuffle(self.make(x), 2))
        real = self.judged(self.draw(step + 1, 4, 1, 6, 6))
        judged_image = self.judged(image)
        return (
            F.relu(1 - real).mean()
            + F.relu(1 + judged_image.detach()).mean()
            - judged_image.mean()
            + 0.1 * real.square().mean()
        )


class TwoViews(Model):
    """As SimCLR: two views of each thing come close, all others go apart."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))

    def loss(self, step: int) -> Tensor:
        x = self.draw(step, 6, 12)
        both = torch.cat((x + 0.1 * self.draw(step + 1, 6, 12), x * (1 + 0.1 * self.draw(step + 2, 6, 12))))
        z = F.normalize(self.net(both), dim=1)
        near = (z @ z.T / 0.5).masked_fill(torch.eye(12, dtype=torch.bool, device=z.device), -1e9)
        own = torch.arange(12, device=z.device).roll(6)
        return (near.logsumexp(1) - near.gather(1, own[:, None]).squeeze(1)).mean()


class Bags(Model):
    """Sums of word vectors; several labels at once."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.norm = nn.EmbeddingBag(31, 12, mode="sum"), nn.LayerNorm(12)
        self.net = nn.Sequential(nn.Linear(12, 20), nn.SELU(), nn.Linear(20, 9))

    def loss(self, step: int) -> Tensor:
        words, starts = self.choose(step, 31, 26), torch.tensor([0, 4, 9, 15, 22]).to(self.bag.weight.device)
        scores = self.net(self.norm(self.bag(words, starts)))
        return F.multilabel_soft_margin_loss(scores, self.choose(step + 1, 2, 5, 9).to(scores.dtype))


class SetPooling(Model):
    """Learned questions look at a set of which some places are empty."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.questions = nn.Linear(5, 16), nn.Parameter(torch.randn(2, 16) / 4)
        self.look, self.norm, self.head = (
            nn.MultiheadAttention(16, 2, batch_first=True),
            nn.LayerNorm(16),
            nn.Linear(32, 1),
        )

    def loss(self, step: int) -> Tensor:
        x = F.relu(self.into(self.draw(step, 4, 7, 5)))
        empty = torch.arange(7, device=x.device) >= torch.tensor([[7], [5], [3], [6]]).to(x.device)
        seen, shares = self.look(self.questions.expand(4, 2, 16), x, x, key_padding_mask=empty)
        y = self.head(self.norm(seen + self.questions).flatten(1)).squeeze(1)
        return F.smooth_l1_loss(y, self.draw(step + 1, 4)) + 0.05 * (shares * (shares + 1e-6).log()).sum(-1).mean()


class Siamese(Model):
    """A network for two images, and how far apart its answers are."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.PReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 8))

    def loss(self, step: int) -> Tensor:
        first, two = self.net(self.draw(step, 5, 1, 8, 8)), self.net(self.draw(step + 1, 5, 1, 8, 8))
        far = F.pairwise_distance(first, two)
        same = self.choose(step, 2, 5).to(far.dtype)
        return (same * far.square() + (1 - same) * F.relu(2 - far).square()).mean()


class Spoken(Model):
    """Convolutions with strides, a bidirectional LSTM, CTC."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lstm, self.head = (
            nn.Conv1d(4, 8, 3, stride=2, padding=1),
            nn.LSTM(8, 8, bidirectional=True),
            nn.Linear(16, 6),
        )

    def loss(self, step: int) -> Tensor:
        x = F.glu(torch.cat((h := self.conv(self.draw(step, 3, 4, 20)), h.roll(1, -1)), 1), 1)
        scores = self.head(self.lstm(x.permute(2, 0, 1))[0]).log_softmax(2)
        lengths = torch.tensor([10, 9, 7]), torch.tensor([3, 2, 3])
        return F.ctc_loss(scores, (self.choose(step, 5, 3, 3) + 1).cpu(), *lengths, zero_infinity=True)


class FourierLayer(Model):
    """As a neural operator: low frequencies go through a weight of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.beside, self.out = nn.Linear(2, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 1)
        self.weight = nn.Parameter(torch.randn(8, 8, 5, 2) / 8)

    def loss(self, step: int) -> Tensor:
        wave = self.draw(step, 3, 16).cumsum(-1)
        places = torch.linspace(0, 1, 16, device=wave.device).expand(3, 16)
        x = self.lift(torch.stack((wave, places), -1)).transpose(1, 2)
        low = torch.einsum("bcf,cdf->bdf", torch.fft.rfft(x)[..., :5], torch.view_as_complex(self.weight))
        x = F.gelu(torch.fft.irfft(F.pad(low, (0, 4)), n=16) + self.beside(x))
        return (self.out(x.transpose(1, 2)).squeeze(-1) - wave.roll(1, -1)).norm(dim=-1).mean()


class Points(Model):
    """As PointNet: a matrix for each cloud turns its points, the largest values of all points count."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.first, self.second, self.head = (
            nn.Linear(6, 9),
            nn.Linear(3, 6),
            nn.Linear(3, 16),
            nn.Linear(16, 4),
        )

    def loss(self, step: int) -> Tensor:
        cloud = self.draw(step, 4, 14, 3)
        matrix = self.turn(F.relu(self.first(cloud)).amax(1)).view(4, 3, 3) + torch.eye(3, device=cloud.device)
        x = F.hardtanh(self.second(cloud @ matrix), -2, 2).max(1).values
        straight = (torch.bmm(matrix, matrix.mT) - torch.eye(3, device=x.device)).square().sum((1, 2)).mean()
        return F.cross_entropy(self.head(x), self.choose(step, 4, 4)) + 1e-2 * straight


class Dilated(Model):
    """Causal convolutions with growing distances, gated as in WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(3, 8, 1)
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**n) for n in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.head = nn.Conv1d(8, 5, 1)

    def loss(self, step: int) -> Tensor:
        x = self.start(self.draw(step, 2, 3, 12))
        total = torch.zeros_like(x)
        for n, (layer, skip) in enumerate(zip(self.layers, self.skips, strict=True)):
            a, b = layer(F.pad(x, (2**n, 0))).chunk(2, 1)
            h = skip(torch.tanh(a) * torch.sigmoid(b))
            total, x = total + h, (x + h) * math.sqrt(0.5)
        return F.cross_entropy(self.head(F.relu(total)), self.choose(step, 5, 2, 12))


class Codebook(Model):
    """As VQ-VAE: the nearest of some vectors stands for each answer; the gradient goes past the choice."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(6, 8), nn.Linear(8, 6)
        self.book = nn.Parameter(torch.randn(10, 8) / 2)

    def loss(self, step: int) -> Tensor:
        x = self.draw(step, 12, 6)
        z = torch.tanh(self.into(x))
        far = z.square().sum(1, keepdim=True) - 2 * z @ self.book.t() + self.book.square().sum(1)
        near = F.embedding(far.argmin(1), self.book)
        decoded = self.out(z + (near - z).detach())
        return F.mse_loss(decoded, x) + F.mse_loss(near, z.detach()) + 0.25 * F.mse_loss(z, near.detach())


class Tagger(Model):
    """A GRU of two layers in both directions gives each token a label."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(21, 8), nn.GRU(8, 6, 2, bidirectional=True)
        self.head = nn.Linear(12, 5)

    def loss(self, step: int) -> Tensor:
        words = self.choose(step, 21, 7, 3)
        scores = self.head(self.gru(self.embed(words))[0])
        return F.cross_entropy(scores.flatten(0, 1), self.choose(step + 1, 5, 21))


class Summary(Model):
    """A GRU reads a text; cells write from its last state and each state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(15, 6), nn.GRU(6, 8, batch_first=True)
        self.write, self.head = nn.GRUCell(14, 8), nn.Linear(16, 15)

    def loss(self, step: int) -> Tensor:
        source, target = self.choose(step, 15, 3, 7), self.choose(step + 1, 15, 3, 4)
        seen, last = self.read(self.embed(source))
        state, total = last[0], torch.zeros((), device=last.device)
        for t in range(3):
            shares = (seen @ state.unsqueeze(-1)).squeeze(-1).softmax(-1)
            looked = (shares.unsqueeze(1) @ seen).squeeze(1)
            state = self.write(torch.cat((self.embed(target[:, t]), looked), 1), state)
            total = total + F.cross_entropy(self.head(torch.cat((state, looked), 1)), target[:, t + 1])
        return total


class Elman(Model):
    """Plain recurrent networks, with tanh and with relu, over a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RNN(4, 10, batch_first=True), nn.RNN(10, 6, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(6, 2)

    def loss(self, step: int) -> Tensor:
        seen = self.second(self.first(self.draw(step, 4, 6, 4))[0])[0]
        return F.smooth_l1_loss(self.head(seen.mean(1)), self.draw(step + 1, 4, 2))


class PlainNorms(Model):
    """Normalisations as formulas, by root and quotient, and by variance; a mixer over places and channels."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.places, self.channels = nn.Linear(5, 12), nn.Linear(6, 6), nn.Linear(12, 12)
        self.gain, self.shift = nn.Parameter(torch.ones(12)), nn.Parameter(torch.zeros(12))
        self.head = nn.Linear(12, 3)

    def by_root(self, x: Tensor) -> Tensor:
        apart = x - x.mean(-1, keepdim=True)
        return apart / torch.sqrt((apart * apart).mean(-1, keepdim=True) + 1e-5) * self.gain + self.shift

    def by_variance(self, x: Tensor) -> Tensor:
        spread, middle = torch.var_mean(x, -1, unbiased=False, keepdim=True)
        return (x - middle) * torch.rsqrt(spread + 1e-5) * self.gain + self.shift

    def loss(self, step: int) -> Tensor:
        x = self.into(self.draw(step, 4, 6, 5))
        x = x + self.places(self.by_root(x).mT).mT
        x = x + F.gelu(self.channels(self.by_variance(x)))
        return F.cross_entropy(self.head(self.by_root(x).mean(1)), self.choose(step, 3, 4))


MENDED: dict[str, type[Model]] = {
    kind.__name__: kind
    for kind in (
        GroupedQueries, SelectiveScan, ConvNext, Segment, Cells, Critic, TwoViews, Bags, Siamese, FourierLayer, Points,
        Dilated, Codebook, Letters, Spoken, SetPooling, Tagger, Summary, Elman, PlainNorms,
    )
}  # fmt: skip
