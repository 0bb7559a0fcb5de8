"""The backend: AOT autograd gives aten graphs, forward and backward; each becomes a program that a single call in C++ runs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch._aot_autograd.utils import make_boxed_func

from .._sim import GraphProgram
from . import faults, fusions, layouts
from .conversions import program_of
from .kernels import KERNELS, add_relu
from .lowering import lower

_programs: dict[str, GraphProgram] = {}
"""By the hash of their text."""


def _linear_relu(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Of the fault "wrong fusion"."""
    return add_relu(torch.mm(x, weight), bias)


def _linear_and_relu(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.addmm(bias, x, weight)
    return y, torch.relu(y)


_WRONG_KERNELS = {"linear_relu": _linear_relu, "linear_and_relu": _linear_and_relu}


@register_backend(name="sim_graph")
def sim_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles a graph of torch.compile.

    Args:
        graph: of torch functions.
        inputs: tensors and sizes of the first call, as torch.compile knows them.
    """
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=_compile, bw_compiler=_compile, keep_inference_input_mutations=True
    )(graph, inputs)
    planted = faults.current()
    if planted is None or planted.at_boundary is None or not _has(graph, planted):
        return compiled
    change = planted.at_boundary

    def run(*args: Any) -> Any:
        return tuple(change(result) if isinstance(result, torch.Tensor) else result for result in compiled(*args))

    return run


def _has(graph: fx.GraphModule, planted: faults.Fault) -> bool:
    names = {str(getattr(node.target, "__name__", node.target)) for node in graph.graph.nodes}
    return not planted.operators.isdisjoint(names)


def compiled_programs() -> int:
    """How many different programs the compiler made in this process."""
    return len(_programs)


def _compile(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    program = program_of(graph.graph)
    fusions.fuse(program)
    layouts.choose(program)
    fusions.drop_unread(program)
    planted = faults.current()
    is_dynamic = any(isinstance(value, torch.SymInt) for value in inputs)
    if planted is not None and planted.change is not None and (planted.only != "dynamic" or is_dynamic):
        planted.change(program)
    lowered = lower(program, {**KERNELS, **_WRONG_KERNELS}, inputs)
    key = hashlib.sha256(lowered.text.encode()).hexdigest()
    if key not in _programs:
        _programs[key] = lowered.compiled()
    run, constants = _programs[key].run, lowered.constants
    return make_boxed_func(lambda *args: run(*args, *constants))
