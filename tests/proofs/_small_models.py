"""The models of `compiled_models.py --backend`: small, in inference, of operators that graph compilers for inference know."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _compiled_models import Case, Inputs
from torch import Tensor, nn


def perceptron() -> Case:
    """Linear layers, gelu and softmax."""
    model = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10), nn.Softmax(-1))
    return _of_tensor(model, 24)


def convolution_net() -> Case:
    """Convolutions with batch norm, one of them depthwise, pooling, a residual sum."""
    return _of_tensor(ConvolutionNet(), 3, 16, 16)


class ConvolutionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.SiLU())
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.into(x), 2)
        y: Tensor = self.head((x + self.wide(x)).mean((2, 3)))
        return y


def causal_layer() -> Case:
    """A layer of a decoder: words, a causal mask, norms before, the head."""
    return _of_words(Layer(is_causal=True))


def encoder_layer() -> Case:
    """A layer of an encoder: words, a mask of those that are not there, norms behind, the head."""
    return _of_words(Layer(is_causal=False))


class Layer(nn.Module):
    """Written out: torch's own is a single operator in inference."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.words, self.norm, self.norm_after = nn.Embedding(50, 32), nn.LayerNorm(32), nn.LayerNorm(32)
        self.parts, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.wide, self.narrow, self.head = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 50, bias=False)

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        rows, length, _ = x.shape
        parts = self.parts(x).view(rows, length, 3, 4, 8).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts.unbind(), attn_mask=mask, is_causal=self.is_causal)
        y: Tensor = self.out(seen.transpose(1, 2).reshape(rows, length, 32))
        return y

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        if self.is_causal:
            x = x + self.attention(self.norm(x), None)
            x = x + self.narrow(F.gelu(self.wide(self.norm_after(x))))
        else:
            x = self.norm(x + self.attention(x, (words > 4)[:, None, None]))
            x = self.norm_after(x + self.narrow(F.relu(self.wide(x))))
        y: Tensor = self.head(x)
        return y


def word_bags() -> Case:
    """Sums and means of word vectors, products of pairs by indices."""
    return _of_words(WordBags())


class WordBags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 12, mode=mode) for mode in ("sum", "mean"))
        self.words, self.head = nn.Embedding(50, 12), nn.Linear(12 + 3, 9)

    def forward(self, words: Tensor) -> Tensor:
        parts = torch.stack([*(bag(words) for bag in self.bags), self.words(words[:, 0])], 1)
        pairs = torch.bmm(parts, parts.mT)[:, [0, 0, 1], [1, 2, 2]]
        y: Tensor = self.head(torch.cat((parts.sum(1), pairs), 1))
        return y


def norms() -> Case:
    """Norms over groups, channels and rows, of torch and written out; a running mean in a buffer."""
    return _of_tensor(Norms(), 8, 12)


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.group, self.layer, self.root = nn.GroupNorm(4, 8), nn.LayerNorm(12), nn.RMSNorm(12)
        self.register_buffer("average", torch.zeros(12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.average.mul_(0.9).add_(x.mean((0, 1)), alpha=0.1)
        y = self.root(self.layer(self.group(x))) + self.average
        return (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1e-5), y / y.var()


def _of_tensor(model: nn.Module, *sizes: int) -> Case:
    def inputs(rows: int) -> Inputs:
        return {"x": torch.randn(rows, *sizes)}

    return Case(model, inputs, lambda compiled, inputs: compiled(inputs["x"]))


def _of_words(model: nn.Module) -> Case:
    def inputs(rows: int) -> Inputs:
        return {"words": torch.randint(50, (rows, 9))}

    return Case(model, inputs)


SMALL = {make.__name__: make for make in (perceptron, convolution_net, causal_layer, encoder_layer, word_bags, norms)}
