"""compare_package: a program of torch.export against the AOTInductor package that was compiled from it."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.export._tree_utils import reorder_kwargs
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from .._base.core import Error
from .._base.error_text import one_line
from .._torch.compiled_graphs import package_graph
from .._torch.exported_programs import lifted_graph
from .autocompare import CompareResult, OpAutoCompare


def compare_package(
    package: Callable[..., Any],
    program: torch.export.ExportedProgram,
    inputs: Any = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
) -> CompareResult:
    """Calls a compiled package twice, and judges it by the program that it was made of, as OpAutoCompare judges a compiled graph.

    The second call gets other numbers, while the results of the first are held. The program's graph runs operator by operator with torch's kernels, on the CPU and in float64. Results, their strides
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
    others = tree_map_only(torch.Tensor, _with_other_numbers, (args, kwargs))
    try:  # a fault may show in a later call only
        _buffers_changed(program, *tree_map_only(torch.Tensor, _clone, others))
    except Error:
        others = (args, kwargs)
    if changed:
        raise Error(
            f"compare_package: the program changes its buffers ({', '.join(changed)}), and those of a package cannot be read; "
            "export it with them as inputs and results"
        )
    in_form, out_form = program.call_spec.in_spec, program.call_spec.out_spec
    # As the program has seen them.
    inputs_of_calls = [tree_flatten((a, reorder_kwargs(k, in_form))) for a, k in ((args, kwargs), others)]
    leaves, form = inputs_of_calls[0]
    graph, values = lifted_graph(program)

    def compiled(*flat: Any) -> tuple[Any, ...]:
        args, kwargs = tree_unflatten(flat[: len(leaves)], form)
        return _flat_results(package(*args, **kwargs), out_form)

    call = package_graph(getattr(package, "__name__", type(package).__name__), compiled, graph).run_compiled
    copies = [tree_map_only(torch.Tensor, _clone, tensors) for tensors, _ in inputs_of_calls]
    held: list[Any] = []  # a later call must not write them
    failure: Exception | None = None
    tool = OpAutoCompare(output_dir=output_dir, level="torch", compiled="check")
    with torch.no_grad(), tool:
        for tensors in copies:
            try:
                held.append(call(*tensors, *values))
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


def _flat_results(results: Any, form: TreeSpec) -> tuple[Any, ...]:
    """In the order of the program's, whatever the order of a dict's keys."""
    try:
        return tuple(form.flatten_up_to(results))
    except ValueError:  # of another form
        return tuple(tree_leaves(results))


def _with_other_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Of the same form; those of integers are the tensor's own, so that indices stay indices."""
    other = _clone(tensor)
    is_float = tensor.is_floating_point() or tensor.is_complex()
    if tensor.layout is torch.strided and not (is_float and tensor.itemsize == 1):
        with torch.no_grad():
            other.copy_(tensor.roll(1) * 1.25 if is_float else tensor.roll(1))
    return other


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
