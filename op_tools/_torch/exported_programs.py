"""A program of torch.export as a graph that torch.compile would hand to a backend."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx


def lifted_graph(program: torch.export.ExportedProgram) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The program's graph: its inputs as a flat list, then its parameters, buffers and constants; its results as a flat list.

    Args:
        program: not changed.

    Returns:
        the graph, and the values of its parameters, buffers and constants.
    """
    module: Any = program.module()
    graph = module.graph
    last = next((node for node in reversed(graph.nodes) if node.op == "placeholder"), graph._root)
    values: list[torch.Tensor] = []
    for node in list(graph.nodes):
        node.meta["example_value"] = node.meta.get("val")
        value = operator.attrgetter(node.target)(module) if node.op == "get_attr" else None
        if isinstance(
            value, torch.Tensor
        ):  # as an input it is read in float64, too, where all other inputs are integers
            with graph.inserting_after(last):
                last = graph.placeholder(f"own_{len(values)}")
            last.meta["example_value"] = value
            node.replace_all_uses_with(last)
            graph.erase_node(node)
            values.append(value)
        elif node.op == "call_module" and not node.users:  # checks of inputs, which call no operator
            graph.erase_node(node)
    graph.set_codegen(fx.graph.CodeGen())
    return fx.GraphModule(module, graph), values
