"""The backend: AOT autograd gives aten graphs, forward and backward; each becomes the text of a function."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch._functorch._aot_autograd.utils import make_boxed_func

from . import faults, fusions, layouts
from .conversions import program_of
from .kernels import KERNELS, add_relu
from .steps import Name, Program

_texts: dict[str, Callable[..., Any]] = {}


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


def compiled_texts() -> int:
    """How many different functions the compiler made in this process."""
    return len(_texts)


def _compile(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    program = program_of(graph.graph)
    fusions.fuse(program)
    layouts.choose(program)
    fusions.drop_unread(program)
    planted = faults.current()
    is_dynamic = any(isinstance(value, torch.SymInt) for value in inputs)
    if planted is not None and planted.change is not None and (planted.only != "dynamic" or is_dynamic):
        planted.change(program)
    text, functions = _text_of(program)
    key = hashlib.sha256(text.encode()).hexdigest()
    if key not in _texts:
        names: dict[str, Any] = {"torch": torch}
        exec(compile(text, f"<sim_graph {key[:8]}>", "exec"), names)  # noqa: S102  (the compiler's own text)
        _texts[key] = names["run"]
    run = _texts[key]
    kernels = {**KERNELS, **_WRONG_KERNELS}
    return make_boxed_func(lambda *args: run(kernels, functions, *args))


def _text_of(program: Program) -> tuple[str, list[Callable[..., Any]]]:
    """The text of a function of kernels, torch's functions, and the inputs; and those functions. Values are let go where nothing reads
    them any more."""
    functions: list[Callable[..., Any]] = []
    lines = [f"def run(kernels, functions, {', '.join(program.inputs)}):"]
    last = {name: number for number, step in enumerate(program.steps) for name in step.inputs}
    for number, step in enumerate(program.steps):
        if step.function is not None:
            called = f"functions[{len(functions)}]"
            functions.append(step.function)
        else:
            called = f"kernels[{step.kernel!r}]"
        keywords = [f"{key}={_expression(value)}" for key, value in step.keywords.items()]
        lines.append(f"    {step.result} = {called}({', '.join([*map(_expression, step.args), *keywords])})")
        dead = [name for name in step.inputs if last[name] == number and not program.is_returned(name)]
        if dead:
            lines.append(f"    {' = '.join(dead)} = None")
    return "\n".join([*lines, f"    return {_expression(program.outputs)}"]) + "\n", functions


def _expression(value: Any) -> str:
    if isinstance(value, Name):
        return value.text
    if isinstance(value, tuple):
        return f"({''.join(f'{_expression(item)}, ' for item in value)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_expression, value))}]"
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    return repr(value)
