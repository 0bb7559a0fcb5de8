"""The names of the operators that tools can see."""

from __future__ import annotations

import torch

from . import _C


def torch_names() -> list[str]:
    """Level torch: all functions that torch hands to a torch-function mode, as users write them; sorted."""
    functions = torch.overrides.get_overridable_functions()
    names = {_C.function_name(function) for group in functions.values() for function in group}
    names.update(f"torch.{name}" for name in dir(torch._C._VariableFunctions) if not name.startswith("_"))
    return sorted(names)


def aten_names(*, composite: bool) -> list[str]:
    """Level aten: all operators that the dispatcher knows now.

    Args:
        composite: also composite operators, which tools see only when a filter names them.

    Raises:
        op_tools.Error: when the aten level cannot be used in this process.
    """
    return [name for name, is_composite in _C.known_ops() if composite or not is_composite]
