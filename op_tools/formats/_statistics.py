"""Statistics of a tensor as the tools write them, and its values as an array."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch

from .._base.core import Error


def array_of(tensor: torch.Tensor) -> Any:
    """The values as a numpy array of the nearest dtype: bfloat16 and 8-bit floats as float32.

    Raises:
        op_tools.Error: the tensor has no strided values.
    """
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise Error(f"a tensor of layout {tensor.layout} has no array")
    plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    try:
        return plain.numpy()
    except TypeError:
        return plain.float().numpy()


def tensor_statistics(tensor: torch.Tensor) -> dict[str, float]:
    """max, min, mean and norm; NaN for statistics that a tensor of this dtype or size does not have."""
    measured = dict.fromkeys(("max", "min", "mean", "norm"), math.nan)
    if tensor.numel() == 0 or tensor.is_complex() or tensor.is_meta:
        return measured
    # In the tensor's own precision, as the tools compute them; integers and 8-bit floats have no mean of their own.
    plain = tensor.detach().cpu()
    wide = plain if plain.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64) else plain.float()
    if plain.dtype != torch.bool:
        measured.update(max=wide.max().item(), min=wide.min().item(), mean=wide.mean().item())
    measured["norm"] = torch.linalg.vector_norm(wide.float() if wide.dtype != torch.float64 else wide).item()
    return measured


def md5(array: Any) -> str:
    """The md5 of an array's bytes."""
    return hashlib.md5(array.tobytes(), usedforsecurity=False).hexdigest()
