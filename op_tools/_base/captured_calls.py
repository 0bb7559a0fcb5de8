"""Reads captured calls in Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .core import Error, read_call, read_pth


def load(path: str | Path) -> Any:
    """Reads a captured .pth file, with the values that torch.load cannot restore: slices, Ellipsis, memory formats,
    generators, tensors with shared contents, named tuples, dataclasses, arrays of numpy. A class is taken from the modules that
    are imported; where there is none, a dataclass is a dict, a named tuple a tuple.

    Args:
        path: the file.

    Returns:
        a dict with the keys of docs/architecture.md; tensors are on the CPU, with their shapes, strides and dtypes.

    Raises:
        op_tools.Error: the file is missing, damaged, or not a .pth file. No code in it is run.
    """
    return read_pth(os.fsencode(path))


_INPUT, _DEVICE_SIDE = "input.pth", "device"


@dataclass(frozen=True)
class CapturedCall:
    """A captured call. Tensors are on the CPU, with their original shapes, strides and dtypes. grad_inputs and
    grad_outputs are None if backward did not run."""

    name: str
    """"torch.nn.functional.linear" or "aten::add.Tensor"."""
    args: tuple[Any, ...]
    """Positional arguments, as they were before the call."""
    kwargs: dict[str, Any]
    """Keyword arguments, as they were before the call."""
    result: Any = None
    """The call's result; None if it raised."""
    grad_inputs: tuple[Any, ...] | None = None
    """A gradient per tensor of (args, kwargs), in order; None where the call has none."""
    grad_outputs: tuple[Any, ...] | None = None
    """A gradient per tensor of the result, in order; None where none arrived."""
    meta: dict[str, Any] = field(default_factory=dict)
    """The content of meta.json: shapes, dtypes, devices, random and autograd state, source line."""


def load_call(folder: str | Path) -> CapturedCall:
    """Reads a captured call.

    Args:
        folder: ``op_capture_result/<rank>/<time>/<op>/<id>``, or ``.../calls.zip!<op>/<id>`` in a container. Shared
            contents (``dedupe=True``) are read from their files.

    Returns:
        the call; gradients are those of its first backward pass.

    Raises:
        op_tools.Error: input.pth is missing, a file is damaged, or the call is cut off because its program ended while it
            wrote it; :func:`load` reads the files that are there.
    """
    call = read_call(os.fsencode(folder))
    try:
        meta = json.loads(call["meta"]) if call["meta"] is not None else {}
    except (ValueError, RecursionError) as error:
        raise Error(f"{folder}: meta.json is damaged: {error}") from None
    return CapturedCall(**{**call, "meta": meta})


def call_folder(folder: str) -> str:
    """The folder of a saved call. OpAutoCompare names a folder that has a failed call twice: this is that of the device's side."""
    place = Path(folder)
    is_above = not (place / _INPUT).exists() and (place / _DEVICE_SIDE / _INPUT).exists()
    return str(place / _DEVICE_SIDE) if is_above else folder


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a value, in the order of their indices."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, slice):
        yield from tensors_of((value.start, value.stop, value.step))
