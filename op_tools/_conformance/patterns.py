"""Functions of several operators that graph compilers rewrite as a whole, with the shapes of real models: cases of op-tools graph-test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from .case import Case, TensorSpec

SOURCE = "patterns"
Tensor = torch.Tensor


@dataclass(frozen=True)
class Pattern:
    """A function, and the shapes of its inputs by model."""

    function: Callable[..., Any]
    shapes: Mapping[str, tuple[tuple[int, ...], ...]]
    dtypes: tuple[str, ...] = ("float32",)
    integers: frozenset[int] = frozenset()
    """Places of inputs that are indices below 8."""
    trains: bool = True


def _linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias))


def _linear_gelu_tanh(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def _layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, x.shape[-1:], weight, bias, 1e-5)


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def _causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 1.0


def _written_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1) @ v


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _conv_norm_relu(x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    y = F.conv2d(x, weight, None, 1, 1)
    return F.relu(F.batch_norm(y, mean, scale.abs() + 0.5, scale, mean, False))


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 4, weight, bias))


def _max_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1)


def _embedding(indices: Tensor, table: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(indices, table), table.shape[-1:], weight)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def _standardized(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x * 1.0)
    return variance * 1.0, mean * 1.0


def _std_of_all(x: Tensor) -> Tensor:
    return torch.std(x * 1.0) * 1.0


def _running_sum(state: Tensor, x: Tensor) -> Tensor:
    state.add_(x)
    return state * 2.0


def _key_value_cache(cache: Tensor, row: Tensor) -> Tensor:
    cache[:, 1] = row
    return cache.sum(-1)


def _view_of_input(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x.view(-1), F.linear(x, weight) + 1.0


def _transposed(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).transpose(0, 1)


def _large_integers(x: Tensor) -> Tensor:
    return x * 3_000_000_000 + 1


def _positions(x: Tensor) -> Tensor:
    return (x * 1.0).argmax(-1) + torch.arange(x.shape[0])


def _top(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = (x * 1.0).topk(2, -1)
    return values * 1.0, places


def _masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask > 0, float("-inf")).softmax(-1).nan_to_num(0.0)


def _cumulated(x: Tensor) -> Tensor:
    return (x * 1.0).cumsum(-1) / (torch.arange(x.shape[-1]) + 1)


def _matrix_product(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y) * 1.0


def _branches(x: Tensor, weight: Tensor) -> Tensor:
    y = F.linear(x, weight)
    _, second = torch.cat((y.relu(), y.tanh()), -1).chunk(2, -1)
    return second + y


def _long_chain(x: Tensor) -> Tensor:
    for _ in range(6):
        x = torch.tanh(x * 1.1 + 0.1)
    return x


_WIDE, _TOKENS = ("float32", "float64", "bfloat16"), {"bert": (2, 9, 32), "gpt2": (1, 5, 48)}


def _on_tokens(*more: Callable[[int], tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], ...]]:
    return {name: (shape, *(of(shape[-1]) for of in more)) for name, shape in _TOKENS.items()}


def _square(width: int) -> tuple[int, ...]:
    return (width, width)


def _of_width(width: int) -> tuple[int, ...]:
    return (width,)


_HEADS = {"bert": ((2, 4, 9, 8),) * 3, "gpt2": ((1, 3, 5, 16),) * 3}
PATTERNS: dict[str, Pattern] = {
    "linear_gelu": Pattern(_linear_gelu, _on_tokens(_square, _of_width), _WIDE),
    "linear_gelu_tanh": Pattern(_linear_gelu_tanh, _on_tokens(_square, _of_width)),
    "add_layer_norm": Pattern(
        _layer_norm, {name: (shape, shape, shape[-1:], shape[-1:]) for name, shape in _TOKENS.items()}, _WIDE
    ),
    "rms_norm": Pattern(_rms_norm, _on_tokens(_of_width), _WIDE),
    "swiglu": Pattern(_swiglu, _on_tokens(_square, _square, _square)),
    "attention": Pattern(_fused_attention, _HEADS, ("float32", "bfloat16")),
    "causal_attention": Pattern(_causal_attention, _HEADS),
    "written_attention": Pattern(_written_attention, _HEADS),
    "rotary": Pattern(_rotary, {"llama": ((1, 4, 6, 8), (6, 8), (6, 8))}),
    "conv_norm_relu": Pattern(_conv_norm_relu, {"resnet": ((2, 3, 8, 8), (4, 3, 3, 3), (4,), (4,))}),
    "group_norm": Pattern(_group_norm, {"unet": ((2, 8, 6, 6), (8,), (8,))}),
    "pooling": Pattern(_max_pool, {"resnet": ((2, 4, 9, 9),)}),
    "embedding": Pattern(_embedding, {"bert": ((2, 7), (8, 16), (16,))}, integers=frozenset([0])),
    "cross_entropy": Pattern(_cross_entropy, {"gpt2": ((6, 8), (6,))}, integers=frozenset([1])),
    "standardized": Pattern(_standardized, _on_tokens(), _WIDE),
    "moments": Pattern(_moments, _on_tokens()),
    "std_of_all": Pattern(_std_of_all, _on_tokens()),
    "running_sum": Pattern(_running_sum, {"adam": ((4, 6), (4, 6))}, trains=False),
    "key_value_cache": Pattern(_key_value_cache, {"gpt2": ((2, 3, 8), (2, 8))}, trains=False),
    "view_of_input": Pattern(_view_of_input, {"mlp": ((4, 6), (6, 6))}, trains=False),
    "transposed": Pattern(_transposed, {"mlp": ((4, 6), (6, 5))}),
    "large_integers": Pattern(_large_integers, {"hash": ((5,),)}, ("int64",), trains=False),
    "positions": Pattern(_positions, {"gpt2": ((4, 9),)}, trains=False),
    "top": Pattern(_top, {"moe": ((6, 8),)}),
    "masked_softmax": Pattern(_masked_softmax, {"bert": ((2, 5, 5), (2, 5, 5))}),
    "cumulated": Pattern(_cumulated, _on_tokens()),
    "product": Pattern(_matrix_product, {"mlp": ((8, 8), (8, 8)), "lm_head": ((2, 64), (64, 40))}, _WIDE),
    "branches": Pattern(_branches, {"mlp": ((4, 6), (6, 6))}),
    "long_chain": Pattern(_long_chain, _on_tokens(), _WIDE),
}


_VALUES = {"int64": "integers 1 9"}


def pattern_cases(*, training: bool) -> Iterator[Case]:
    """The cases of all patterns.

    Args:
        training: with gradients, where the pattern has any.
    """
    for name, pattern in PATTERNS.items():
        trains = training and pattern.trains
        for model, shapes in pattern.shapes.items():
            for dtype in pattern.dtypes:
                specs = [
                    TensorSpec(shape, "int64", values="integers 0 7")
                    if place in pattern.integers
                    else TensorSpec(shape, dtype, values=_VALUES.get(dtype, "normal"), requires_grad=trains)
                    for place, shape in enumerate(shapes)
                ]
                yield Case.make(SOURCE, name, "function", tuple(specs), {}, gradient=trains, models={model: 1})
