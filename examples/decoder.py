"""A decoder with a KV cache. `train` computes all tokens at once, as a trainer does; `serve` the prompts, and then a token of each request
after the other, as an engine does. Which operator gives a token other bits?

    op-tools run --record --row-hashes --output-dir train examples/decoder.py train
    op-tools run --record --row-hashes --output-dir serve examples/decoder.py serve
    op-tools compare train serve --as-sequence
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional as F

Cache = list[torch.Tensor]  # empty, or keys and values: [batch, heads, tokens, channels]


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, *, eager: bool) -> None:
        super().__init__()
        self.heads, self.eager = heads, eager
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        batch, count, dim = x.shape
        q, k, v = self.qkv(x).view(batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        past = k.shape[2] - count
        mask = torch.ones(count, k.shape[2], dtype=torch.bool, device=x.device).tril(past)
        if self.eager:
            scores = torch.matmul(q, k.transpose(2, 3)) / q.shape[-1] ** 0.5
            y = torch.matmul(torch.softmax(scores.masked_fill(~mask, float("-inf")), -1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(batch, count, dim))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, *, eager: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, eager=eager)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: torch.Tensor, cache: Cache | None) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cache)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(
        self, dim: int = 32, *, eager: bool = False, vocabulary: int = 64, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, dim), nn.Embedding(64, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, eager=eager) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary)

    def forward(self, tokens: torch.Tensor, caches: list[Cache] | None = None) -> torch.Tensor:
        past = caches[0][0].shape[2] if caches and caches[0] else 0
        x = self.embed(tokens) + self.place(torch.arange(past, past + tokens.shape[1], device=tokens.device))
        for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
            x = block(x, cache)
        return self.head(self.norm(x))


def log_probs(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, 1]"""
    return torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None])


def train(model: Decoder, tokens: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of all tokens but the first, from a single forward pass."""
    return log_probs(model(tokens[:, :-1]), tokens[:, 1:])


def serve(model: Decoder, tokens: torch.Tensor, prompt: int, batches: int = 1) -> torch.Tensor:
    """The same of requests in so many batches: the prompt, then a token of each request after the other."""
    results = []
    for batch in tokens.chunk(batches):
        caches: list[Cache] = [[] for _ in model.blocks]
        begin, parts = 0, []
        for end in range(prompt, tokens.shape[1]):
            logits = model(batch[:, begin:end], caches)
            parts.append(log_probs(logits, batch[:, begin + 1 : end + 1]))
            begin = end
        results.append(torch.cat(parts, 1))
    return torch.cat(results)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=("train", "serve"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--batches", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Decoder(options.dim, eager=options.eager).to(getattr(torch, options.dtype))
    tokens = torch.randint(64, (4, 13))
    with torch.no_grad():
        result = train(model, tokens) if options.side == "train" else serve(model, tokens, 5, options.batches)
    print(f"mean log-probability: {result.mean():.9f}")


if __name__ == "__main__":
    main()
