"""Names of operators: ours, and those of the tools that name them by kind (Functional, Tensor, Torch, VF, Aten)."""

from __future__ import annotations

from typing import Any

import torch

from .. import _C

# The tool's word for a kind of function, and where torch has the functions.
_PLACES: dict[str, tuple[str, Any]] = {
    "Functional": ("torch.nn.functional.", torch.nn.functional),
    "Tensor": ("torch.Tensor.", torch.Tensor),
    "Torch": ("torch.", torch),
    "VF": ("torch.", torch),
}


def our_name(kind: str, function: str) -> str:
    """Our name of an operator that a tool calls so; "" if torch has no such function.

    Args:
        kind: "Functional", "Tensor", "Torch", "VF", "Aten" or "Distributed".
        function: "linear", "__mul__"; "add.Tensor" of Aten.
    """
    if kind == "Aten":
        return aten_name(function)
    if kind == "Distributed":
        return f"torch.distributed.{function}" if hasattr(torch.distributed, function) else ""
    prefix, place = _PLACES.get(kind, ("", None))
    found = getattr(place, function, None) if place is not None else None
    if not callable(found) or isinstance(found, type):
        return ""
    return _C.function_name(found) or prefix + function


def aten_name(function: str) -> str:
    """The name of an aten operator with its overload: "add.Tensor", "relu" or "relu.default"; "" if there is none."""
    base, _, overload = function.partition(".")
    packet = getattr(torch.ops.aten, base, None) if base.isidentifier() else None
    if packet is None or (overload or "default") not in packet.overloads():
        return ""
    return f"aten::{base}" if overload in ("", "default") else f"aten::{base}.{overload}"


def their_name(name: str) -> tuple[str, str]:
    """The kind and the function by which the tools know an operator of ours; ("", "") if they have no word for it.

    Args:
        name: "torch.nn.functional.linear", "aten::add.Tensor".
    """
    if name.startswith("aten::"):
        return "Aten", name.removeprefix("aten::")
    for kind in ("Functional", "Tensor", "Torch"):
        prefix = _PLACES[kind][0]
        function = name.removeprefix(prefix)
        if name.startswith(prefix) and "." not in function:
            return kind, function
    if name.startswith("torch.distributed."):
        return "Distributed", name.removeprefix("torch.distributed.")
    return "", ""


def is_in_place(name: str) -> bool:
    """Whether an operator writes its first argument, by torch's convention for names: add_, __iadd__."""
    function = name.rpartition("::")[2].partition(".")[0] if "::" in name else name.rpartition(".")[2]
    if function.startswith("__") and function.endswith("__"):
        return function.startswith("__i") and hasattr(torch.Tensor, "__" + function.removeprefix("__i"))
    return function.endswith("_")
