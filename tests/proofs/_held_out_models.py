"""Models like those of _unused_models.py that were only measured: no limit of compare was set by them."""

# Shapes: B batch, T time or tokens, C channels or width, H and W image sides.
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from _unused_models import Model
from torch import Tensor, nn


class RelativePositions(Model):
    """As T5: a bias for each distance, no scale of the scores, an encoder and a decoder that looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(29, 24)
        self.bias = nn.Embedding(8, 3)
        self.norms = nn.ParameterList(torch.ones(24) for _ in range(4))
        self.own = nn.ModuleList(nn.Linear(24, 24, bias=False) for _ in range(4))
        self.cross = nn.ModuleList(nn.Linear(24, 24, bias=False) for _ in range(4))
        self.gate, self.up, self.down = (nn.Linear(*sizes, bias=False) for sizes in ((24, 40), (24, 40), (40, 24)))

    def norm(self, x: Tensor, number: int) -> Tensor:
        return self.norms[number] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def attend(self, layers: nn.ModuleList, x: Tensor, seen: Tensor, biased: bool) -> Tensor:
        q = layers[0](x).view(*x.shape[:2], 3, 8).transpose(1, 2)
        k, v = (layer(seen).view(*seen.shape[:2], 3, 8).transpose(1, 2) for layer in layers[1:3])
        scores = torch.matmul(q * 0.5, k.transpose(3, 2))
        if biased:
            places = torch.arange(x.shape[1], device=x.device)
            far = (places[None, :] - places[:, None]).abs().clamp(max=7)
            scores = scores + self.bias(far).permute(2, 0, 1).unsqueeze(0)
        shares = F.softmax(scores.float(), dim=-1).type_as(scores)
        return layers[3](torch.matmul(shares, v).transpose(1, 2).contiguous().view(*x.shape))

    def loss(self, step: int) -> Tensor:
        read, written = self.choose(step, 29, 3, 9), self.choose(step + 1, 29, 3, 7)
        x, y = self.embed(read), self.embed(written)
        h = self.norm(x, 0)
        x = x + self.attend(self.own, h, h, True)
        h = self.norm(x, 1)
        x = x + self.down(F.gelu(self.gate(h), approximate="tanh") * self.up(h))
        y = y + self.attend(self.cross, self.norm(y, 2), x, False)
        logits = F.linear(self.norm(y, 3) * 24**-0.5, self.embed.weight)
        return F.cross_entropy(logits.view(-1, 29), written.roll(-1, 1).view(-1), label_smoothing=0.1)


class DenseExperts(Model):
    """The two best of four experts for each token, by a single einsum over all of them; a loss of the router."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.router, self.head = nn.Linear(10, 16), nn.Linear(16, 4, bias=False), nn.Linear(16, 6)
        self.first, self.second = nn.Parameter(torch.randn(4, 16, 24) / 4), nn.Parameter(torch.randn(4, 24, 16) / 5)

    def loss(self, step: int) -> Tensor:
        x = self.into(self.draw(step, 20, 10))
        logits = self.router(x)
        best, chosen = logits.topk(2, dim=-1)
        shares = torch.zeros_like(logits).scatter(1, chosen, best.softmax(-1))
        hidden = F.silu(torch.einsum("tc,ecd->etd", x, self.first))
        x = x + torch.einsum("etd,edc,te->tc", hidden, self.second, shares)
        return F.cross_entropy(self.head(x), self.choose(step, 6, 20)) + 1e-2 * logits.logsumexp(-1).square().mean()


class LinearAttention(Model):
    """Attention without softmax: running sums of keys times values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(12, 36, bias=False), nn.Linear(12, 12)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 3)

    def loss(self, step: int) -> Tensor:
        x = self.draw(step, 3, 8, 12)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        memory = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), dim=1)
        size = (q * k.cumsum(1)).sum(-1, keepdim=True).clamp_min(1e-4)
        x = self.norm(x + self.out((q.unsqueeze(-2) @ memory).squeeze(-2) / size))
        return F.mse_loss(self.head(x), self.draw(step + 5, 3, 8, 3))


class SqueezeResNet(Model):
    """Residual blocks with group norm, strides, and a gate for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8)
        self.a, self.second = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False), nn.GroupNorm(4, 16)
        self.b, self.third = nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False), nn.GroupNorm(4, 16)
        self.side = nn.Conv2d(8, 16, 1, stride=2)
        self.squeeze, self.excite, self.head = nn.Linear(16, 4), nn.Linear(4, 16), nn.Linear(16, 5)

    def loss(self, step: int) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(self.stem(self.draw(step, 4, 3, 12, 12)))), 3, 2, 1)
        h = self.third(self.b(F.relu(self.second(self.a(x)))))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3))))))
        x = F.relu(h * gate[:, :, None, None] + self.side(x))
        return F.cross_entropy(self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), self.choose(step, 5, 4))


class ImageVae(Model):
    """Convolutions into means and variances of a code, and back; binary cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mean, self.spread = nn.Conv2d(1, 6, 3, 2, 1), nn.Linear(96, 4), nn.Linear(96, 4)
        self.back, self.up = nn.Linear(4, 96), nn.ConvTranspose2d(6, 1, 4, 2, 1)

    def loss(self, step: int) -> Tensor:
        image = self.draw(step, 5, 1, 8, 8).sigmoid()
        h = F.elu(self.conv(image)).flatten(1)
        mean, spread = self.mean(h), self.spread(h)
        code = mean + torch.exp(spread / 2) * self.draw(step + 3, 5, 4)
        image_again = torch.sigmoid(self.up(F.elu(self.back(code)).view(5, 6, 4, 4)))
        fit = F.binary_cross_entropy(image_again, image, reduction="none").sum((1, 2, 3)).mean()
        return fit - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp(), 1).mean()


class GraphAttention(Model):
    """Messages along edges, weighed by a softmax over the edges of each node."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.score = nn.Linear(6, 16), nn.Parameter(torch.randn(2, 16) / 4)
        self.update, self.head = nn.Linear(32, 16), nn.Linear(16, 3)

    def loss(self, step: int) -> Tensor:
        x, (start, end) = self.lift(self.draw(step, 12, 6)), self.choose(step, 12, 2, 40)
        scores = F.leaky_relu(x[start] @ self.score[0] + x[end] @ self.score[1], 0.2)
        weights = (scores - scores.detach().amax()).exp()
        sums = torch.zeros(12, device=x.device).scatter_add(0, end, weights)
        shares = weights / (sums.index_select(0, end) + 1e-9)
        seen = torch.zeros_like(x).index_add(0, end, shares[:, None] * x.index_select(0, start))
        x = F.elu(self.update(torch.cat((x, seen), -1)))
        return F.cross_entropy(self.head(torch.stack((x[:6].mean(0), x[6:].sum(0)))), self.choose(step, 3, 2))


class Mixture(Model):
    """A density of several normal distributions for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.parts = nn.Sequential(nn.Linear(4, 20), nn.Tanh()), nn.Linear(20, 15)

    def loss(self, step: int) -> Tensor:
        share, mean, spread = self.parts(self.net(self.draw(step, 16, 4))).split(5, -1)
        spread = F.softplus(spread) + 1e-2
        apart = (self.draw(step + 1, 16, 1) - mean) / spread
        density = -0.5 * apart.square() - spread.log() - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(share.log_softmax(-1) + density, -1).mean()


class Flowing(Model):
    """A differential equation by four steps of Runge and Kutta."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.net = nn.Linear(3, 8), nn.Sequential(nn.Linear(8, 16), nn.Softsign(), nn.Linear(16, 8))

    def loss(self, step: int) -> Tensor:
        x, h = self.into(self.draw(step, 6, 3)), 0.25
        for _ in range(4):
            a = self.net(x)
            b = self.net(x + h / 2 * a)
            c = self.net(x + h / 2 * b)
            x = x + h / 6 * (a + 2 * b + 2 * c + self.net(x + h * c))
        return F.huber_loss(x, self.draw(step + 1, 6, 8), delta=0.7)


class Clicks(Model):
    """Vectors of several tables, all products of two of them, and a network for numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(3))
        self.numbers, self.head = nn.Sequential(nn.Linear(5, 8), nn.GELU()), nn.Linear(14, 1)

    def loss(self, step: int) -> Tensor:
        number = self.numbers(self.draw(step, 9, 5))
        vectors = torch.stack(
            [number, *(table(self.choose(step + n, 20, 9)) for n, table in enumerate(self.tables))], 1
        )
        rows, columns = torch.tril_indices(4, 4, -1, device=number.device)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
        score = self.head(torch.cat((number, pairs), 1)).flatten()
        return F.binary_cross_entropy_with_logits(score, self.choose(step, 2, 9).to(score.dtype))


class Coupling(Model):
    """A flow: halves that scale and shift each other, and the logarithm of the change of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(3, 12), nn.ReLU6(), nn.Linear(12, 6)) for _ in range(3))

    def loss(self, step: int) -> Tensor:
        x = self.draw(step, 10, 6) * 1.3 + 0.2
        grown = torch.zeros(10, device=x.device)
        for net in self.nets:
            first, two = x.chunk(2, -1)
            scale, shift = net(first).chunk(2, -1)
            scale = torch.tanh(scale)
            x = torch.cat((two * scale.exp() + shift, first), -1)
            grown = grown + scale.sum(-1)
        return (0.5 * x.pow(2).sum(-1) - grown).mean()


class Translator(Model):
    """A GRU in both directions reads, LSTM cells write and look back."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.read = nn.Embedding(19, 10), nn.GRU(10, 8, bidirectional=True, batch_first=True)
        self.start, self.write, self.head = nn.Linear(16, 16), nn.LSTMCell(26, 16), nn.Linear(32, 19)

    def loss(self, step: int) -> Tensor:
        source, target = self.choose(step, 19, 3, 6), self.choose(step + 1, 19, 3, 5)
        seen, _ = self.read(self.embed(source))
        state, cell, total = torch.tanh(self.start(seen[:, -1])), torch.zeros(3, 16, device=seen.device), 0.0
        for t in range(4):
            shares = torch.einsum("bc,btc->bt", state, seen).softmax(-1)
            looked = torch.einsum("bt,btc->bc", shares, seen)
            state, cell = self.write(torch.cat((self.embed(target[:, t]), looked), 1), (state, cell))
            total = total + F.cross_entropy(self.head(torch.cat((state, looked), 1)), target[:, t + 1])
        return total / 4


class Ranking(Model):
    """The library's transformer layer scores lists; of two items the better shall win."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 1)

    def loss(self, step: int) -> Tensor:
        items = self.draw(step, 3, 6, 4)
        scores = self.head(self.layer(self.into(items))).squeeze(-1)
        apart = scores.unsqueeze(2) - scores.unsqueeze(1)
        better = (items[..., 0].unsqueeze(2) > items[..., 0].unsqueeze(1)).to(apart.dtype)
        return -(better * F.logsigmoid(apart)).sum() / better.sum()


class Latents(Model):
    """As the Perceiver: a few vectors look at many bytes, then at each other; the bytes are asked for again."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.latents = nn.Embedding(17, 12), nn.Parameter(torch.randn(4, 12) / 3)
        self.kv, self.q, self.own = nn.Linear(12, 24, bias=False), nn.Linear(12, 12), nn.Linear(12, 36)
        self.norm, self.asked, self.head = nn.LayerNorm(12), nn.Linear(12, 12), nn.Linear(12, 17)

    @staticmethod
    def look(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v

    def loss(self, step: int) -> Tensor:
        tokens = self.choose(step, 17, 3, 10)
        x = self.embed(tokens)
        k, v = self.kv(self.norm(x)).chunk(2, -1)
        z = self.latents + self.look(self.q(self.latents).expand(3, 4, 12), k, v)
        z = z + self.look(*self.own(z).split(12, -1))
        y = self.look(self.asked(x.roll(1, 1)), z, z)
        return F.cross_entropy(self.head(F.hardswish(y)).flatten(0, 1), tokens.flatten())


HELD_OUT: dict[str, type[Model]] = {
    kind.__name__: kind
    for kind in (
        RelativePositions, DenseExperts, LinearAttention, SqueezeResNet, ImageVae, GraphAttention, Mixture, Flowing,
        Clicks, Coupling, Translator, Ranking, Latents,
    )
}  # fmt: skip
