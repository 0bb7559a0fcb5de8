"""The values in a graph, from a run of its nodes one by one with torch's own kernels: the inputs of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .._base.core import Error
from .._base.error_text import one_line
from .._torch.graph_arguments import named
from .._torch.saved_graphs import GraphNode, SavedGraph, program_state

_LARGEST_INDEX = 2  # of made integers: they may be indices


@dataclass
class Value:
    """A value as it was before a node. Tensors in it have no gradient function."""

    before: int
    """The number of the first node that saw it so."""
    content: Any
    wants_gradient: bool = False


@dataclass
class GraphValues:
    """All values of a graph."""

    by_name: dict[str, list[Value]] = field(default_factory=dict)
    """In the order of their changes."""
    written: dict[str, set[str]] = field(default_factory=dict)
    """Node -> the values that it changes in place."""

    def inputs_of(self, graph: SavedGraph, part: SavedGraph) -> list[Value]:
        """The inputs of a part as its first node that reads them saw them."""
        places = {node.name: number for number, node in enumerate(graph.nodes)}
        inputs = []
        for name in part.inputs:
            reader = next(places[node.name] for node in part.nodes if name in node.inputs)
            inputs.append([value for value in self.by_name[name] if value.before <= reader][-1])
        return inputs

    def are_written(self, part: SavedGraph) -> bool:
        """Does the part change an input in place?"""
        return any(name in part.inputs for node in part.nodes for name in self.written.get(node.name, ()))


def with_other_numbers(values: Sequence[Value]) -> tuple[Value, ...]:
    """Values of the same forms, so that a compiled call takes them as they are: indices stay indices."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        numbers = leaf.detach().reshape(-1).roll(1)
        if leaf.is_floating_point() and leaf.itemsize > 1:
            numbers = numbers * 1.25
        return leaf.detach().clone().copy_(numbers.view(leaf.shape))

    return tuple(replace(value, content=tree_map(of, value.content)) for value in values)


def values_of(graph: SavedGraph, args: Sequence[Any]) -> GraphValues:
    """Runs the graph.

    Args:
        graph: the graph.
        args: its inputs; not changed.

    Raises:
        op_tools.Error: an operator of the graph raises.
    """
    values = GraphValues()
    live: dict[str, Any] = dict(graph.attributes)
    with program_state(graph.state):
        for name, arg in zip(graph.inputs, args, strict=True):
            live[name] = _not_a_leaf(with_own_memory(arg), arg)
        for name in live:
            _note_value(values, name, live[name], 0)
        for number, node in enumerate(graph.nodes):
            _run_node(values, live, node, number)
    return values


def _run_node(values: GraphValues, live: dict[str, Any], node: GraphNode, number: int) -> None:
    before = {name: _versions(value) for name, value in live.items() if name in node.inputs}
    try:
        live[node.name] = node.call(live)
    except Exception as error:
        raise Error(f"{node.name} ({node.target}) raises without the compiler: {one_line(error)}") from error
    written = {name for name, versions in before.items() if _versions(live[name]) != versions}
    if written:
        values.written[node.name] = written
    memories = {memory for name in written for memory in _memories(live[name])}
    for name, value in live.items() if written else ():
        if name != node.name and not memories.isdisjoint(_memories(value)):
            _note_value(values, name, value, number + 1)
    _note_value(values, node.name, live[node.name], number + 1)


def _note_value(values: GraphValues, name: str, value: Any, before: int) -> None:
    wants = isinstance(value, torch.Tensor) and value.requires_grad
    values.by_name.setdefault(name, []).append(Value(before, with_own_memory(value), wants))


def with_own_memory(value: Any) -> Any:
    """A value whose tensors have memory of their own, with the same strides."""
    return tree_map(_copied_tensor, value)


def _copied_tensor(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach()
    if tensor.layout != torch.strided or tensor.is_contiguous() or not tensor.numel():
        return tensor.clone()
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    memory = tensor.as_strided((extent,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


def _not_a_leaf(copy: Any, original: Any) -> Any:
    """Operators in place refuse leaves."""
    if not isinstance(original, torch.Tensor) or not original.requires_grad:
        return copy
    return copy.requires_grad_().clone()


def _versions(value: Any) -> list[int]:
    return [tensor._version for tensor in _tensors(value) if not tensor.is_inference()]


def _memories(value: Any) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in _tensors(value) if tensor.layout == torch.strided}


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def made_inputs(graph: SavedGraph) -> list[Any]:
    """Inputs of the forms that torch.compile noted, for a graph whose inputs were not saved; the same in each run.

    Raises:
        op_tools.Error: an input has no form in the file.
    """
    draw = torch.Generator().manual_seed(0)
    inputs: list[Any] = []
    for name, example in zip(graph.inputs, graph.examples, strict=True):
        if "dtype" not in example:
            if example.get("number") is None:
                raise Error(f"{graph.name}: the file has no form of the input {name}")
            inputs.append(example["number"])
            continue
        dtype, shape = named(example["dtype"], torch.dtype), example["shape"]
        if dtype.is_floating_point or dtype.is_complex:
            values = torch.randn(shape, generator=draw).to(dtype)
        else:
            values = torch.randint(0, _LARGEST_INDEX, shape, generator=draw).to(dtype)
        if example["stride"] and all(example["stride"]):
            values = torch.empty_strided(shape, example["stride"], dtype=dtype).copy_(values)
        tensor = values.to(example["device"])
        inputs.append(tensor.requires_grad_(example["requires_grad"]) if dtype.is_floating_point else tensor)
    return inputs
