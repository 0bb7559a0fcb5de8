"""The compiler's kernels: functions of tensors, none of which changes an input, but for `store`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


def linear(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """`x` (n, k) times `weight` (k, m), plus `bias`."""
    return torch.addmm(bias, x, weight)


def linear_gelu(bias: Tensor, x: Tensor, weight: Tensor, approximate: str = "none") -> Tensor:
    """gelu of a linear layer."""
    return F.gelu(torch.addmm(bias, x, weight), approximate=approximate)


def linear_and_gelu(bias: Tensor, x: Tensor, weight: Tensor, approximate: str = "none") -> tuple[Tensor, Tensor]:
    """The same, and the linear layer's result before it."""
    y = torch.addmm(bias, x, weight)
    return y, F.gelu(y, approximate=approximate)


def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y)


def batched_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.bmm(x, y)


def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float, statistics: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, the mean and the reciprocal of the standard deviation over the last dimensions; contiguous, whatever `x` is, as torch
    promises: a view of the result relies on it. `statistics`: the dtype of the latter two."""
    dims = list(range(-len(shape), 0))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x.double()
    variance, mean = torch.var_mean(wide, dims, correction=0, keepdim=True)
    scale = torch.rsqrt(variance + eps)
    y = (wide - mean) * scale
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    results = y.to(x.dtype), mean.to(statistics), scale.to(statistics)
    return results[0].contiguous(), results[1].contiguous(), results[2].contiguous()


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    """`geometry`: stride, padding, dilation, transposed, output_padding, groups."""
    return torch.convolution(x, weight, bias, *geometry)


def image_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
    """On channels-last memory, and so is the result."""
    return torch.convolution(x, weight, bias, *geometry).contiguous(memory_format=torch.channels_last)


def to_channels_last(x: Tensor) -> Tensor:
    """`x` (N, C, H, W) with the channels next to each other in memory."""
    return x.contiguous(memory_format=torch.channels_last)


def planar(x: Tensor) -> Tensor:
    """`x` (N, C, H, W) with the rows of a channel next to each other in memory."""
    return x.contiguous()


def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return torch._softmax(x, dim, half_to_float)


def scaled_softmax(x: Tensor, scale: float, dim: int) -> Tensor:
    """softmax of `x` times a number, the middle of attention."""
    return torch._softmax(x * scale, dim, False)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    return F.gelu(x, approximate=approximate)


def variance(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    return torch.var(x, dim, correction=correction, keepdim=keepdim)


def variance_mean(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, dim, correction=correction, keepdim=keepdim)


def standard_deviation(x: Tensor, dim: Any = None, correction: float = 1, keepdim: bool = False) -> Tensor:
    return torch.std(x, dim, correction=correction, keepdim=keepdim)


def store(target: Tensor, value: Tensor) -> Tensor:
    """Writes an input of the graph."""
    return target.copy_(value)


def power(x: Any, exponent: Any) -> Any:
    return torch.pow(x, exponent)


def add_relu(x: Tensor, y: Any) -> Tensor:
    """relu of a sum, in a single pass."""
    return torch.relu(torch.add(x, y))


KERNELS = {
    function.__name__: function
    for function in (
        linear, linear_gelu, linear_and_gelu, convolution, image_convolution, to_channels_last, planar, product, batched_product, layer_norm, softmax, scaled_softmax, gelu, variance, variance_mean,
        standard_deviation, store, power, add_relu,
    )
}  # fmt: skip
ELEMENTWISE = (
    "add", "sub", "mul", "div", "relu", "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "sin", "cos",
    "erf", "silu", "maximum", "minimum", "where",
)  # fmt: skip
KERNELS |= {name: getattr(torch, name, None) or getattr(F, name) for name in ELEMENTWISE}
