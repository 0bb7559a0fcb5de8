"""Cases of the 8-bit floating-point dtypes. Torch's sample database has two operators of them; the CPU has about twenty:
conversions, and operators that copy, move, fill and compare elements. They belong to the suite op_db."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from . import values
from .case import Case
from .op_db import first_that_runs
from .trees import DEVICE, TensorSpec

DTYPES = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_WIDER = ("float32", "float16", "bfloat16", "float64")
_SHAPE = (8, 9)


def float8_cases() -> Iterator[Case]:
    """Those that the CPU runs."""
    for name in DTYPES:
        for case in (*_conversions(name), *_moves(name)):
            if (runnable := first_that_runs(case)) is not None:
                yield runnable


def _case(op: str, *args: Any, variant: str = "function", gradient: bool = False, **kwargs: Any) -> Case:
    return Case.make("op_db", op, variant, args, kwargs, gradient=gradient)


def _conversions(name: str) -> Iterator[Case]:
    dtype: torch.dtype = getattr(torch, name)
    for other in _WIDER:
        wider: torch.dtype = getattr(torch, other)
        for kind in ("normal", *(f"adversarial:{one}" for one in values.ADVERSARIAL)):
            yield _case("torch.Tensor.to", TensorSpec(_SHAPE, other, values=kind), dtype, variant="method")
            yield _case("torch.Tensor.to", TensorSpec(_SHAPE, name, values=kind), wider, variant="method")
        transposed = TensorSpec(_SHAPE, other, stride=(1, 8))
        yield _case("torch.Tensor.to", transposed, dtype, variant="method")
        leaf = TensorSpec(_SHAPE, other, requires_grad=True)
        yield _case("torch.Tensor.to", leaf, dtype, variant="method", gradient=True)
        yield _case("torch.Tensor.copy_", TensorSpec(_SHAPE, name), TensorSpec(_SHAPE, other), variant="inplace")
        yield _case("torch.Tensor.copy_", TensorSpec(_SHAPE, other), TensorSpec(_SHAPE, name), variant="inplace")


def _moves(name: str) -> Iterator[Case]:
    dtype: torch.dtype = getattr(torch, name)
    plain, other = TensorSpec(_SHAPE, name), TensorSpec((3, 9), name)
    mask = TensorSpec(_SHAPE, "bool", values="integers 0 1")
    places = TensorSpec((4,), "int64", values="integers 0 7")
    for spec in (plain, TensorSpec(_SHAPE, name, stride=(1, 8)), TensorSpec(_SHAPE, name, stride=(0, 1))):
        yield _case("torch.clone", spec)
        yield _case("torch.Tensor.contiguous", spec, variant="method")
    image = TensorSpec((2, 3, 4, 5), name)
    yield _case("torch.Tensor.contiguous", image, variant="method", memory_format=torch.channels_last)
    yield _case("torch.Tensor.view", plain, torch.uint8, variant="method")
    yield _case("torch.cat", [plain, other])
    yield _case("torch.stack", [plain, plain], 1)
    yield _case("torch.Tensor.__getitem__", plain, (slice(1, 7, 2), slice(None, 5)), variant="method")
    yield _case("torch.index_select", plain, 0, places)
    yield _case("torch.Tensor.__getitem__", plain, places, variant="method")
    yield _case("torch.Tensor.fill_", plain, 1.5, variant="inplace")
    yield _case("torch.Tensor.zero_", plain, variant="inplace")
    yield _case("torch.zeros_like", plain)
    yield _case("torch.full", list(_SHAPE), 1.5, dtype=dtype, device=DEVICE)
    yield _case("torch.where", mask, plain, plain)
    yield _case("torch.eq", plain, plain)
    yield _case("torch.ne", plain, TensorSpec(_SHAPE, name, values="adversarial:nan"))
    yield _case("torch.isnan", TensorSpec(_SHAPE, name, values="adversarial:nan"))
    yield _case("torch.abs", plain)
    yield _case("torch.neg", plain)
    yield _case("torch.flip", plain, [0, 1])
