"""Cases of the source "faults": calls that show faults of kernels which people reported publicly, and which samples do not
meet: they need many equal indices, NaN at the end of a vector, points far from zero. A group is the `mutation` of its cases.

They are few and made anew in each process: the needs of a fault are better read here than in a list.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import values
from .case import Case
from .trees import TensorSpec, channels_last

_FLOATS = ("float32", "bfloat16", "float16")


def fault_cases() -> Iterator[Case]:
    """All of them, in an order that is always the same."""
    for group, make in GROUPS.items():
        for case in make():
            yield case.with_changes(mutation=group)


def _case(op: str, *args: Any, variant: str = "function", **kwargs: Any) -> Case:
    return Case.make("faults", op, variant, args, kwargs, gradient=any(_requires_grad(one) for one in args))


def _requires_grad(value: Any) -> bool:
    return isinstance(value, TensorSpec) and value.requires_grad


def _filled(value: float, shape: tuple[int, ...], dtype: str, **more: Any) -> TensorSpec:
    return TensorSpec(shape, dtype, values=f"uniform {value!r} {value!r}", **more)


# The gradient at NaN: in whole vectors, and in the elements behind the last of them.
_ACTIVATIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *((f"torch.nn.functional.{name}", ()) for name in ("hardtanh", "relu6", "hardshrink", "softshrink", "elu", "celu")),
    *(
        (f"torch.nn.functional.{name}", ())
        for name in ("selu", "hardswish", "hardsigmoid", "leaky_relu", "relu", "gelu")
    ),
    *((f"torch.nn.functional.{name}", ()) for name in ("silu", "mish", "softplus", "logsigmoid")),
    ("torch.special.logit", (0.1,)),
    ("torch.sigmoid", ()),
    ("torch.tanh", ()),
    ("torch.clamp", (-1.0, 1.0)),
    ("torch.abs", ()),
)


def _nan_lengths() -> Iterator[Case]:
    for dtype in ("float32", "bfloat16"):
        for length in (1, 7, 33, 67):
            nan = values.packed(torch.full((length,), math.nan, dtype=getattr(torch, dtype)))
            spec = TensorSpec((length,), dtype, values=nan, requires_grad=True)
            for op, others in _ACTIVATIONS:
                yield _case(op, spec, *others)


# A sum of ones in 16 bits stops at 256 (bfloat16) or 2,048 (float16).
_TERMS = 4096


def _equal_indices() -> Iterator[Case]:
    index = TensorSpec((_TERMS,), "int64", values="integers 0 0")
    for dtype in _FLOATS:
        ones, zero = _filled(1, (_TERMS,), dtype), _filled(0, (3,), dtype)
        yield _case("torch.index_put", zero, (index,), ones, True)
        yield _case("torch.index_add", zero, 0, index, ones)
        yield _case("torch.scatter_add", zero, 0, index, ones)
        yield _case("torch.scatter_reduce", zero, 0, index, ones, "sum")
        yield _case("torch.scatter_reduce", zero, 0, index, ones, "mean")
        yield _case("torch.index_reduce", zero, 0, index, ones, "mean")
        read = _filled(1, (3,), dtype, requires_grad=True)
        yield _case("torch.index_select", read, 0, index)
        yield _case("torch.gather", read, 0, index)
        yield _case("torch.take", read, index)
        yield _case("torch.Tensor.__getitem__", read, index, variant="method")
        yield _case("torch.nn.functional.embedding", index, _filled(1, (3, 8), dtype, requires_grad=True))
        yield _case("torch.Tensor.expand", _filled(1, (1, 3), dtype, requires_grad=True), _TERMS, 3, variant="method")


def _large_means() -> Iterator[Case]:
    """A variance in a single pass, mean(x²) - mean(x)², has no digit left."""
    shape = (2, 8, 32, 32)
    for stride in (None, channels_last(shape)):
        x = TensorSpec(shape, "float32", stride, values="uniform 9998.0 10002.0")
        yield _case("torch.nn.functional.group_norm", x, 2)
        yield _case("torch.nn.functional.instance_norm", x)
        yield _case("torch.nn.functional.batch_norm", x, None, None, training=True)
        yield _case("torch.nn.functional.layer_norm", x, [32])
        yield _case("torch.nn.functional.layer_norm", x, [8, 32, 32])
        for function in ("torch.var", "torch.std", "torch.var_mean", "torch.std_mean"):
            yield _case(function, x, [2, 3])
            yield _case(function, x, [0])
        yield _case("torch.logsumexp", x, 1)
        yield _case("torch.nn.functional.softmax", x, 1)


def _far_away() -> Iterator[Case]:
    """|a|² + |b|² - 2ab of points that are near each other and far from zero; powers that overflow before the root is taken."""
    for dtype in ("float32", "float64"):
        for rows in (8, 64):  # torch takes the matrix product for more than 25
            a, b = (TensorSpec((rows, 3), dtype, values="uniform 99.998 100.002") for _ in range(2))
            yield _case("torch.cdist", a, b)
            yield _case("torch.cdist", a, b, compute_mode=2)  # never the product
            yield _case("torch.cdist", a, b, p=math.inf)
            yield _case("torch.pdist", a)
            yield _case("torch.nn.functional.pairwise_distance", a, b)
            yield _case("torch.nn.functional.cosine_similarity", a, b)
        near = TensorSpec((5, 4), dtype, values="uniform 0.0 1.0")
        for p in (0.01, 0.1, 30.0):
            yield _case("torch.cdist", near, near, p=p)
            yield _case("torch.dist", near, near, p)
            yield _case("torch.linalg.vector_norm", near, p)


def _overlap() -> Iterator[Case]:
    """In-place calls that read the elements that they write, at other places: copies give the right result, each order of a loop another."""
    for dtype in ("float32", "int64"):
        recipe = "integers 1 9" if dtype == "int64" else "normal"
        make = functools.partial(TensorSpec, dtype=dtype, values=recipe, alias=0)
        ahead, behind = make((4, 15), stride=(16, 1), offset=1), make((4, 15), stride=(16, 1))
        for op in ("copy_", "add_", "sub_", "mul_"):
            yield _case(f"torch.Tensor.{op}", ahead, behind, variant="inplace")
            yield _case(f"torch.Tensor.{op}", behind, ahead, variant="inplace")
            yield _case(f"torch.Tensor.{op}", make((4, 16)), make((4, 1), stride=(16, 1)), variant="inplace")


def _quotients() -> Iterator[Case]:
    """A quotient without its fraction, of a division that is rounded first: 560 // 3 is 187 in bfloat16."""
    pairs = ((560.0, 3.0), (2158.0, 3.0), (-560.0, 3.0), (100.0, 7.0))
    for dtype in _FLOATS:
        for numerator, denominator in pairs:
            for length in (1, 64):
                a, b = _filled(numerator, (length,), dtype), _filled(denominator, (length,), dtype)
                yield _case("torch.floor_divide", a, b)
                for mode in ("floor", "trunc"):
                    yield _case("torch.div", a, b, rounding_mode=mode)
                yield _case("torch.remainder", a, b)
                yield _case("torch.fmod", a, b)


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "nan-lengths": _nan_lengths,
    "equal-indices": _equal_indices,
    "large-means": _large_means,
    "far-away": _far_away,
    "overlap": _overlap,
    "quotients": _quotients,
}
