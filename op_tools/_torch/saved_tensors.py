"""The functions that pack the tensors which autograd saves (torch.autograd.graph.saved_tensors_hooks)."""

from __future__ import annotations

import torch


def packs_saved_tensors() -> bool:
    """Do functions pack them on this thread that are not torch's own? Those of checkpoints and of save_on_cpu give the same numbers
    back; others may give rounded numbers. True where this torch does not tell."""
    functions_of = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if functions_of is None:
        return True
    functions = functions_of(True)
    return functions is not None and any(
        not str(getattr(function, "__module__", "")).startswith("torch.") for function in functions
    )
