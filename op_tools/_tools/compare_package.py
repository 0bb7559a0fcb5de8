"""compare_package: a program of torch.export against the AOTInductor package that was compiled from it."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.export._tree_utils import reorder_kwargs
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from .._base.core import Error
from .._base.error_text import one_line
from .._torch.compiled_graphs import package_graph
from .._torch.exported_programs import lifted_graph
from .autocompare import CompareResult, OpAutoCompare

_CALLS = 2  # a fault may show in a later call only


def compare_package(
    package: Callable[..., Any],
    program: torch.export.ExportedProgram,
    inputs: Any = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
) -> CompareResult:
    """Calls a compiled package twice, and judges it by the program that it was made of, as OpAutoCompare judges a compiled graph.

    The program's graph runs operator by operator with torch's kernels, on the CPU and in float64. Results, their strides
    and aliases, and inputs that the program changes are judged; docs/compiled.md says how. All calls are without gradients.

    Args:
        package: what torch._inductor.aoti_load_package gives, or another callable with the program's arguments.
        program: of torch.export.export, with the weights that the package has.
        inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments, where the package runs. They are
            copied. None: the example inputs of the program.
        output_dir: the folder in which the folder of the result is made. None: OP_TOOLS_OUTPUT_DIR, else the working
            directory.

    Returns:
        the result of OpAutoCompare; its only op is the package.

    Raises:
        op_tools.Error: there are no inputs, or others than the program's, or the program changes buffers: those of the
            package cannot be read.
    """
    args, kwargs = _arguments(program, inputs)
    changed = _buffers_changed(program, *tree_map_only(torch.Tensor, _clone, (args, kwargs)))
    if changed:
        raise Error(
            f"compare_package: the program changes its buffers ({', '.join(changed)}), and those of a package cannot be read; "
            "export it with them as inputs and results"
        )
    leaves, form = tree_flatten(
        (args, reorder_kwargs(kwargs, program.call_spec.in_spec))
    )  # as the program has seen them
    graph, values = lifted_graph(program)

    def compiled(*flat: Any) -> tuple[Any, ...]:
        args, kwargs = tree_unflatten(flat[: len(leaves)], form)
        return tuple(tree_leaves(package(*args, **kwargs)))

    call = package_graph(getattr(package, "__name__", type(package).__name__), compiled, graph).run_compiled
    copies = [tree_map_only(torch.Tensor, _clone, leaves) for _ in range(_CALLS)]
    failure: Exception | None = None
    tool = OpAutoCompare(output_dir=output_dir, level="torch", compiled="check")
    with torch.no_grad(), tool:
        for tensors in copies:
            try:
                call(*tensors, *values)
            except Exception as error:
                failure = error
                break
    result = tool.result()
    if failure is not None and not result.failures:  # not the package's: it was not judged
        raise failure
    return result


def _buffers_changed(program: torch.export.ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Runs the program once, which looks at its inputs; packages may take others without a word."""
    try:
        module = copy.deepcopy(program.module())
        tensors = dict(itertools.chain(module.named_parameters(), module.named_buffers()))
        versions = {name: tensor._version for name, tensor in tensors.items()}
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:
        raise Error(f"compare_package: the program itself does not take these inputs: {one_line(error)}") from error
    return [name for name, tensor in tensors.items() if tensor._version != versions[name]]


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _arguments(program: torch.export.ExportedProgram, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments."""
    if inputs is None:
        if program.example_inputs is None:
            raise Error("compare_package: the program has no example inputs; give inputs=")
        args, kwargs = program.example_inputs
        return args, kwargs
    if isinstance(inputs, dict):  # the program knows some of them by their positions
        signature = program.module_call_graph[0].signature
        names = getattr(signature, "forward_arg_names", None) or []
        places = [name for name in names[: signature.in_spec.children_specs[0].num_children] if name in inputs]
        return tuple(inputs[name] for name in places), {key: inputs[key] for key in inputs if key not in places}
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
