"""The places of a graph's nodes in the user's code, as torch.compile noted them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import fx

_NOT_THE_USERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))


def line_of_node(node: fx.Node) -> str:
    """ "file:line function", the user's innermost line; "" where torch noted none."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    return next(
        ("{}:{} {}".format(*frame) for frame in reversed(frames) if not frame[0].startswith(_NOT_THE_USERS)), ""
    )


def module_of_node(node: fx.Node, caller: str) -> str:
    """The innermost module around it, as "MLP.layers.0"; "" where none is below the caller, the module that runs the graph."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    if not modules:
        return ""
    (outermost, kind), innermost = modules[0], modules[-1][0]
    below = _parts(innermost)  # of the caller, or of a module in a variable
    return ".".join([caller if _parts(outermost) else getattr(kind, "__name__", str(kind)), *below])


def _parts(path: str) -> list[str]:
    """L['self'].layers._modules['0'] without the variable: layers, 0."""
    return [part for part in re.findall(r"\w+", re.sub(r"^[A-Z]\['?\w+'?\]", "", str(path))) if part != "_modules"]
