"""Calls of repr of a tensor are none of the program's: tools at the aten level do not see them, but those that run operators
elsewhere run them. At the torch level the repr is a single call that shows nothing of its inside."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .._base.core import unobserved

_str = torch._tensor_str._str


@functools.wraps(_str)
def _unobserved_str(*args: Any, **kwargs: Any) -> str:
    text: str = unobserved(_str, *args, **kwargs)
    return text


def patch_torch() -> None:
    torch._tensor_str._str = _unobserved_str
