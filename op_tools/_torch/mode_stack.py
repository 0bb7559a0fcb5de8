"""Torch functions that are written in Python call a mode with the mode off its stack. In torch's own code an interrupt (Ctrl-C)
between pop and push leaves it off: a tool that is on would see nothing from then on."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .._base.core import ModeOffStack

_of_torch = torch.overrides._pop_mode_temporarily


@functools.wraps(_of_torch)
def _pop_mode_temporarily() -> Any:
    if torch.compiler.is_dynamo_compiling():  # it reads the code, and cannot look into C++
        return _of_torch()
    return ModeOffStack()


def patch_torch() -> None:
    torch.overrides._pop_mode_temporarily = _pop_mode_temporarily
