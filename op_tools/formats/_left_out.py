"""May a call have had arguments that its dump leaves out? Of dumps that have no numbers and no keyword arguments."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from .._torch.python_functions import find

# Where and how a result is stored, not which numbers it has.
_SAME_NUMBERS = frozenset(
    ("inplace", "out", "memory_format", "layout", "device", "pin_memory", "requires_grad", "non_blocking", "generator")
)


def may_lack_arguments(name: str, count: int) -> bool:
    """Whether a function could have been called with more arguments than those, and then give other numbers.

    Args:
        name: our name of the function.
        given: how many positional arguments the dump has.
    """
    function = find(name)
    names = _of_python(function, count) if inspect.isfunction(function) else _of_schemas(name, count)
    return names is None or bool(names - _SAME_NUMBERS)


def _of_python(function: Any, count: int) -> set[str] | None:
    """The parameters behind the given ones; None: not known."""
    parameters = list(inspect.signature(function).parameters.values())
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    return {one.name for one in parameters[count:] if not one.name.startswith("_")}


def _of_schemas(name: str, count: int) -> set[str] | None:
    """Of the operators that have the function's name and can take its arguments."""
    base = name.rpartition("::")[2].partition(".")[0] if "::" in name else name.rpartition(".")[2]
    names: set[str] | None = None
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{base}"):
        arguments = schema.arguments
        if not arguments or "Tensor" not in str(arguments[0].type) or len(arguments) < count:
            continue
        names = (names or set()) | {one.name for one in arguments[count:] if not one.is_out}
    return names
