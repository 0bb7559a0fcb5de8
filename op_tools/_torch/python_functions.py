"""Which torch functions a captured call may name when it is replayed in Python.

A captured file is data from somewhere: it may make the replay call torch's operators, never torch.load, torch.hub or
anything else that reads files or runs code. So the names are those of torch's own table of overridable functions and
of its generated operator functions, and nothing is looked up in modules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .._base.core import function_name, has_trait

# Written in Python and in no table of torch, yet called by models.
_PLAIN: dict[str, Callable[..., Any]] = {
    "torch.tensor": torch.tensor,
    "torch.as_tensor": torch.as_tensor,
    "torch.nn.functional.hardswish": torch.nn.functional.hardswish,
    "torch.nn.functional.hardsigmoid": torch.nn.functional.hardsigmoid,
}


def _opens_file(name: str) -> bool:
    return has_trait(name, "opens_a_file")


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    table = dict(_PLAIN)
    generated = torch._C._VariableFunctions
    for name in dir(generated):
        if not name.startswith("__"):
            function = getattr(generated, name)
            table[f"torch.{name}"] = function
            table[function_name(function)] = function
    for functions in torch.overrides.get_overridable_functions().values():
        for function in functions:
            table[function_name(function)] = function
    return {name: function for name, function in table.items() if not _opens_file(name)}


def find(name: str) -> Callable[..., Any] | None:
    """The torch function of that name, as captures write it; None when there is none that may be called."""
    parts = name.split(".")
    if name.startswith("torch.ops.aten.") and len(parts) in (4, 5):
        packet = getattr(torch.ops.aten, parts[3], None)
        # Whatever else has that name on torch.ops.aten or on an operator (__class__, __dict__) is no operator.
        if not isinstance(packet, torch._ops.OpOverloadPacket) or _opens_file(name):
            return None
        if len(parts) == 4:
            return packet
        overloads: list[str] = packet.overloads()  # type: ignore[no-untyped-call]
        return getattr(packet, parts[4]) if parts[4] in overloads else None
    return _functions().get(name)
