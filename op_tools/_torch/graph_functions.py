"""The functions that a saved graph may name: of torch and of Python's operators, none of which reads files or runs code."""

from __future__ import annotations

import builtins
import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .._base.core import Error, has_trait
from .python_functions import find

_BUILTINS = {"builtins.getattr": getattr, "builtins.abs": abs, "builtins.max": max, "builtins.min": min}
_BUILTINS |= {f"builtins.{name}": getattr(builtins, name) for name in ("bool", "int", "float", "round", "len")}
# Below these names stand functions, and nothing that reads files or runs code.
_SPACES: dict[str, Any] = {
    "torch": torch,
    "torch.nn.functional": torch.nn.functional,
    "torch._C._nn": torch._C._nn,
    "torch._C._linalg": torch._C._linalg,  # type: ignore[attr-defined]
    "torch._C._fft": torch._C._fft,  # type: ignore[attr-defined]
    "torch._C._special": torch._C._special,  # type: ignore[attr-defined]
    "torch.functional": torch.functional,
    "torch.amp.autocast_mode": torch.amp.autocast_mode,
    "_operator": operator,
    "math": math,
}
# Functions that graphs call and that python_functions.py does not list.
_OF_TORCH = {"_check", "_check_is_size", "Size"}


@functools.cache
def graph_function(name: str) -> Callable[..., Any]:
    """The function of a name.

    Raises:
        op_tools.Error: the name stands for nothing that a file may call.
    """
    space, _, base = name.rpartition(".")
    function: Any = _BUILTINS.get(name)
    if function is None and name.startswith("torch.ops."):
        function = torch.ops
        for part in name.split(".")[2:]:
            function = getattr(function, part, None)
        if not isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            function = None
    elif function is None and space in _SPACES:
        function = getattr(_SPACES[space], base, None)
        if space == "torch" and find(name) is None and not (base.startswith(("sym_", "_sym_")) or base in _OF_TORCH):
            function = None
    elif function is None and name == "torch._C._set_grad_enabled":
        function = torch._C._set_grad_enabled
    elif function is None:
        function = find(name)
    is_operator = function is None and name.startswith("torch.ops.")
    is_class = isinstance(function, type) and function is not torch.Size
    if not callable(function) or is_class or has_trait(name, "opens_a_file"):
        advice = "; an operator of another library: --import the module that registers it" if is_operator else ""
        raise Error(f"{name!r} is no function of this torch that a saved graph may call{advice}")
    return function  # type: ignore[no-any-return]


def are_public_names(names: tuple[Any, ...]) -> bool:
    """They name attributes that getattr may read: no underscore in front."""
    return all(isinstance(name, str) and bool(re.fullmatch(r"[A-Za-z]\w*", name)) for name in names)


def is_tensor_method(name: str) -> bool:
    """A method of tensors that a file may call: it writes no file and shares no memory."""
    is_plain = re.fullmatch(r"[A-Za-z]\w*", name) or re.fullmatch(r"__\w+__", name)
    return bool(is_plain) and hasattr(torch.Tensor, name) and name not in ("tofile", "share_memory_", "__reduce_ex__")


def graph_function_name(function: Any) -> str:
    """The name by which a file may call it; "" where there is none."""
    if isinstance(function, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        name = f"torch.ops.{function}"
    else:
        try:
            name = str(fx.node._get_qualified_name(function))
            name = name if "." in name else f"builtins.{name}"
        except (RuntimeError, AttributeError):
            return ""
    try:
        return name if graph_function(name) is function or graph_function(name) == function else ""
    except Error:
        return ""
