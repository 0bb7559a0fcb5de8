"""Names of operators: ours, and those of the tools that name them by kind (Functional, Tensor, Torch, VF, Aten)."""

from __future__ import annotations

from typing import Any

import torch

from .._base.core import function_name
from .._torch.python_functions import find

# The tool's word for a kind of function, and where torch has the functions.
_PLACES: dict[str, tuple[str, Any]] = {
    "Functional": ("torch.nn.functional.", torch.nn.functional),
    "Tensor": ("torch.Tensor.", torch.Tensor),
    "Torch": ("torch.", torch),
    "VF": ("torch.", torch),
}

# Python's operators, and the methods that torch runs for them: a tool that replaces the methods of torch.Tensor sees the
# former, a torch-function mode the latter.
METHODS = {
    "abs": "abs", "add": "add", "ge": "ge", "gt": "gt", "le": "le", "lt": "lt", "ne": "ne", "mul": "mul", "sub": "sub",
    "matmul": "matmul", "mod": "remainder", "truediv": "div", "div": "div", "neg": "neg", "pos": "positive", "radd": "add",
    "rmul": "mul", "rand": "bitwise_and", "ror": "bitwise_or", "rxor": "bitwise_xor", "rdiv": "__rtruediv__",
    "iadd": "add_", "isub": "sub_", "imul": "mul_", "itruediv": "div_", "idiv": "div_", "imod": "remainder_",
    "ifloordiv": "floor_divide_", "nonzero": "__bool__", "long": "__int__", "iter": "unbind",
}  # fmt: skip


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
    if kind == "Tensor" and function.startswith("__") and function.endswith("__"):
        function = METHODS.get(function[2:-2], function)
    prefix, place = _PLACES.get(kind, ("", None))
    member = getattr(place, function, None) if place is not None and function.isidentifier() else None
    if not callable(member):
        return ""
    # Names come from files, and an import may call the function.
    return next((name for name in (function_name(member), prefix + function) if find(name) is not None), "")


def aten_name(function: str) -> str:
    """The name of an aten operator with its overload: "add.Tensor", "relu" or "relu.default"; "" if there is none."""
    base, _, overload = function.partition(".")
    packet = find(f"torch.ops.aten.{base}") if base.isidentifier() else None
    if packet is None or (overload or "default") not in packet.overloads():  # type: ignore[attr-defined]
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
    """Whether an operator of ours writes its first argument, by torch's convention for names: add_."""
    function = name.rpartition("::")[2].partition(".")[0] if "::" in name else name.rpartition(".")[2]
    return function.endswith("_") and not function.endswith("__")
