"""The values of a tensor of a dump, out of the file that has them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch

from .._base.captured_calls import load
from .._base.core import Error
from ._files import dtype_named, load_npy
from ._model import ForeignTensor


def load_values(tensor: ForeignTensor) -> torch.Tensor:
    """The values of a tensor of a dump, in the dtype that it had.

    Args:
        tensor: the tensor.

    Raises:
        op_tools.Error: the dump has no values of it, or they are damaged, or do not fit the dump's facts.
    """
    if not tensor.values:
        raise Error(f"{tensor.role} {tensor.place}: the dump has no values, only statistics")
    path = Path(tensor.values)
    container, bang, key = tensor.values.partition("!")
    if tensor.load is not None:
        value = tensor.load(tensor.values)
    elif bang:
        value = _state(container)[key].detach()
    elif path.suffix == ".npy":
        value = load_npy(path)
    else:
        loaded = load(path)
        if not isinstance(loaded, torch.Tensor):
            raise Error(f"{path}: holds a {type(loaded).__name__}, expected a tensor")
        value = loaded.detach()
    if tensor.shape is not None and tuple(value.shape) != tensor.shape:
        raise Error(f"{tensor.values}: shape {tuple(value.shape)}, but the dump says {tensor.shape}")
    dtype = dtype_named(tensor.dtype)
    # Dtypes that the format does not have are stored wider: bfloat16 as float32.
    return value if dtype is None else value.to(dtype)


@functools.lru_cache(maxsize=1)
def _state(path: str) -> Any:
    """A file of many tensors, of which the last read is held."""
    return load(path)
