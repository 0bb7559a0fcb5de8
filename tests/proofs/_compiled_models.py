"""The models of compiled_models.py: small, with random weights, of transformers, timm and this file.

Each stands for a difficulty of torch.compile: caches that grow, tied weights, graph breaks, buffers that are changed, autocast,
activations that are computed again, random numbers.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from library_models import NotHereError, declare_torchvision, tiny_config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Inputs = dict[str, Tensor]


@dataclass
class Case:
    """A model, and what a program does with it.

    Args:
        model: with parameters that are trained.
        inputs: for a number of rows or tokens, of torch's generator; with `labels` where the model makes its own loss.
        infer: calls the (compiled) model in inference; its results.
        autocast: the program's steps run under autocast to bfloat16.
    """

    model: nn.Module
    inputs: Callable[[int], Inputs]
    infer: Callable[[Any, Inputs], Any] = lambda model, inputs: model(**inputs)
    autocast: bool = False


def _tokens(rows: int) -> Inputs:
    return {"input_ids": torch.randint(3, 99, (rows, 10)), "labels": torch.randint(3, 99, (rows, 10))}


def _transformer(kind: str, head: str, inputs: Callable[[int], Inputs], **more: Any) -> Case:
    if importlib.util.find_spec("transformers") is None:
        raise NotHereError("transformers is not installed")
    declare_torchvision()
    import transformers

    infer = more.pop("infer", Case.infer)
    config = tiny_config(kind, **more)
    for name in more.keys() - config.to_dict().keys():  # not every configuration lists it
        setattr(config, name, more[name])
    return Case(getattr(transformers, head).from_config(config), inputs, infer)


def _with_cache(model: Any, inputs: Inputs) -> Any:
    """A prompt, and two tokens after it with the keys and values of those before."""
    seen = [model(input_ids=inputs["input_ids"], use_cache=True)]
    for _ in range(2):
        token = seen[-1].logits[:, -1:].argmax(-1)
        seen.append(model(input_ids=token, past_key_values=seen[-1].past_key_values, use_cache=True))
    return [step.logits for step in seen]


def decoder() -> Case:
    """llama: a cache that grows with each token, rotary positions, RMSNorm."""
    return _transformer("llama", "AutoModelForCausalLM", _tokens, infer=_with_cache)


def tied() -> Case:
    """gpt2: the embedding is the head's weight, too; dropout in training."""
    return _transformer("gpt2", "AutoModelForCausalLM", _tokens, tie_word_embeddings=True)


def encoder() -> Case:
    """bert: masked tokens, without dropout."""
    return _transformer(
        "bert", "AutoModelForMaskedLM", _tokens, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )


def two_parts() -> Case:
    """t5: encoder and decoder, relative positions, tied weights."""
    return _transformer("t5", "AutoModelForSeq2SeqLM", _tokens, dropout_rate=0.0, decoder_start_token_id=0)


def images() -> Case:
    """vit: an image in patches."""

    def inputs(rows: int) -> Inputs:
        return {"pixel_values": torch.randn(rows, 3, 32, 32), "labels": torch.randint(5, (rows,))}

    return _transformer("vit", "AutoModelForImageClassification", inputs, num_labels=5)


def routed() -> Case:
    """mixtral: experts that a router picks for each token."""
    return _transformer("mixtral", "AutoModelForCausalLM", _tokens, router_jitter_noise=0.0, output_router_logits=False)


class Scored(nn.Module):
    """A model of images with its loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.inner(images)
        return F.cross_entropy(logits.float(), labels), logits


def _of_timm(name: str, side: int, *, autocast: bool = False, **more: Any) -> Case:
    if importlib.util.find_spec("timm") is None:
        raise NotHereError("timm is not installed")
    declare_torchvision()
    import timm

    def inputs(rows: int) -> Inputs:
        return {"images": torch.randn(rows, 3, side, side), "labels": torch.randint(5, (rows,))}

    return Case(Scored(timm.create_model(name, num_classes=5, **more)), inputs, autocast=autocast)


def convolutions() -> Case:
    """timm's lcnet_035: batch norm, depthwise convolutions, squeeze and excitation."""
    return _of_timm("lcnet_035", 64)


def in_bfloat16() -> Case:
    """timm's convnext_atto under autocast: wide convolutions, channels last, layer scale."""
    return _of_timm("convnext_atto", 32, autocast=True, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))


class Bags(nn.Module):
    """Sums of word vectors beside numbers, as in recommenders; a dropout whose seed the program sets."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(31, 12, mode=mode) for mode in ("sum", "mean"))
        self.numbers, self.norm, self.head = nn.Linear(5, 12), nn.LayerNorm(12), nn.Linear(12 + 3, 9)

    def forward(self, words: Tensor, numbers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        parts = torch.stack([*(bag(words) for bag in self.bags), F.silu(self.numbers(numbers))], 1)
        pairs = torch.bmm(parts, parts.mT)[:, [0, 0, 1], [1, 2, 2]]
        x = F.dropout(torch.cat((self.norm(parts.sum(1)), pairs), 1), 0.2, self.training)
        logits = self.head(x)
        return F.cross_entropy(logits, labels), logits


def bags() -> Case:
    """Embedding bags, an interaction by indices, dropout."""

    def inputs(rows: int) -> Inputs:
        words, labels = torch.randint(31, (rows, 4)), torch.randint(9, (rows,))
        return {"words": words, "numbers": torch.randn(rows, 5), "labels": labels}

    return Case(Bags(), inputs)


class Signal(nn.Module):
    """Convolutions in time, then an LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Conv1d(4, 16, 3, padding=2, dilation=2)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 6)

    def forward(self, wave: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = F.glu(self.into(wave), 1)
        seen, (last, _) = self.lstm(x.transpose(1, 2))
        logits = self.head(seen.mean(1) + last.transpose(0, 1).flatten(1))
        return F.cross_entropy(logits, labels), logits


def signal() -> Case:
    """conv1d, glu, an LSTM (a graph break: torch.compile does not trace it)."""

    def inputs(rows: int) -> Inputs:
        return {"wave": torch.randn(rows, 4, 14), "labels": torch.randint(6, (rows,))}

    return Case(Signal(), inputs)


class Experts(nn.Module):
    """Experts that are called where a token chose them, by Python's branches; counts and averages in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.register_buffer("load", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("average", torch.zeros(8))

    def add_expert(self, number: int, y: Tensor, x: Tensor, shares: Tensor) -> Tensor:
        mine = shares.argmax(-1) == number
        self.load[number] += mine.sum()
        if mine.any():  # not in a loop: torch.compile would give up the whole function
            y[mine] = self.experts[number](x[mine]) * shares[mine, number, None]
        return y

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.router(x).softmax(-1)
        y = self.add_expert(0, torch.zeros_like(x), x, shares)
        y = self.add_expert(1, y, x, shares)
        y = self.norm(x + self.add_expert(2, y, x, shares))
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        logits = self.head(y - self.average)
        return F.cross_entropy(logits, labels), logits


def experts() -> Case:
    """Graph breaks where Python looks at the data, masks, changes of buffers in place."""

    def inputs(rows: int) -> Inputs:
        return {"x": torch.randn(rows + 6, 8), "labels": torch.randint(4, (rows + 6,))}

    return Case(Experts(), inputs)


class Again(nn.Module):
    """Layers whose activations are computed again in the backward pass; attention, a returned view."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        logits = self.head(x.mean(1))
        return F.cross_entropy(logits, labels), logits, x[:, 0]


def again() -> Case:
    """Checkpoint with dropout in it, a result that is a view."""

    def inputs(rows: int) -> Inputs:
        return {"x": torch.randn(rows, 6, 16), "labels": torch.randint(5, (rows,))}

    return Case(Again(), inputs)


class Waves(nn.Module):
    """Complex weights of low frequencies, float64 between float32, einsum, cumulative sums, int64."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.out = nn.Linear(2, 6), nn.Linear(6, 1)
        self.weight = nn.Parameter(torch.randn(6, 6, 4, 2) / 6)

    def forward(self, wave: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.linspace(0, 1, wave.shape[-1], device=wave.device).expand_as(wave)
        x = self.lift(torch.stack((wave.cumsum(-1), places), -1)).mT
        low = torch.einsum("bcf,cdf->bdf", torch.fft.rfft(x)[..., :4], torch.view_as_complex(self.weight))
        x = F.gelu(torch.fft.irfft(F.pad(low, (0, wave.shape[-1] // 2 - 3)), n=wave.shape[-1])) + x
        y = self.out(x.mT).squeeze(-1).double().logsumexp(-1)
        return F.mse_loss(y.float(), labels.float() * 3_000_000_001 % 7), y


def waves() -> Case:
    """FFT, complex numbers, float64 and int64."""

    def inputs(rows: int) -> Inputs:
        return {"wave": torch.randn(rows, 16), "labels": torch.randint(5, (rows,))}

    return Case(Waves(), inputs)


MODELS: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        decoder, tied, encoder, two_parts, images, routed, convolutions, in_bfloat16, bags, signal, experts, again, waves,
    )
}  # fmt: skip
OF_SIM = ("encoder", "images", "bags", "experts")
"""Those that are compiled for the simulated device, too."""


def precision(case: Case) -> contextlib.AbstractContextManager[Any]:
    """In which a program runs the model."""
    return torch.autocast("cpu", torch.bfloat16) if case.autocast else contextlib.nullcontext()


@functools.cache
def meaning(make: Callable[[], Case]) -> str:
    """A line about a model."""
    return (make.__doc__ or "").splitlines()[0].rstrip(".")
