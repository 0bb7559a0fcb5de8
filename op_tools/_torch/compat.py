"""Gaps between the versions of torch, for Python; those of C++ are in src/compat. Each names the missing function, and the first version that has it."""

from __future__ import annotations

import types
from typing import Any

_OF_GRAPHS = "do not trace Dynamo-compiled graph"  # why torch's own compiler is to leave a function alone
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class _Globals(dict[str, Any]):
    """A module's globals, read when they are asked for, with answers of its own for some names."""

    def __init__(self, module_globals: dict[str, Any], own: dict[str, Any]) -> None:
        super().__init__(own)
        self._module_globals = module_globals

    def __missing__(self, name: str) -> Any:
        return self._module_globals[name]


def _says_no(*_: object) -> bool:
    return False


def without_own_check(function: Any) -> Any:
    """A copy of a Python function of torch that does not ask for __torch_function__ itself; its callees do. None where it cannot be made.

    Gap: ``PythonTorchFunctionTLS::exchange_skip_next``, since torch 2.13 (src/compat/skip_next.h).
    """
    if not isinstance(function, types.FunctionType):
        return None
    names = [name for name in _CHECKS if name in function.__code__.co_names and name in function.__globals__]
    if not names:
        return None
    own = dict.fromkeys(names, _says_no) | {"__builtins__": function.__globals__["__builtins__"]}
    copy = types.FunctionType(
        function.__code__,
        _Globals(function.__globals__, own),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def is_graph(frame: types.FrameType) -> bool:
    """Whether a graph of torch.compile begins in this frame, in which a function begins that the compiler is to leave alone.

    Gap: the reason, ``DisableContext.msg``, since torch 2.8. Before, the code that the compiler made has a name for the graph.
    """
    reason: Any = getattr(frame.f_locals.get("self"), "msg", None)
    caller = frame.f_back
    if reason is not None or caller is None:
        return bool(reason == _OF_GRAPHS)
    graphs = [caller.f_globals.get(name) for name in caller.f_code.co_names if name.startswith("__compiled_fn")]
    return any(getattr(graph, "_torchdynamo_orig_callable", None) is frame.f_locals.get("fn") for graph in graphs)
