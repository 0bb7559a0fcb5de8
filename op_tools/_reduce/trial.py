"""A trial: a part of a graph is compiled and run under OpAutoCompare, which judges it as it judges the graphs of a program."""

from __future__ import annotations

import json
import math
import operator
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .._base.core import GRAPH_CALLS, reload_log_level
from .._base.error_text import with_type
from .._conformance.workers import Failure
from .._tools.autocompare import OpAutoCompare
from .._torch.backends import import_backends
from .._torch.saved_graphs import GraphNode, SavedGraph, program_state, read_graph
from .values import Value, with_other_numbers

RAISED = "raised"
_FUNCTION = "graph"
_FILE = "<part>"  # of the part's text, in its nodes' lines


@dataclass(frozen=True)
class Trial:
    """A part of a graph, and its inputs."""

    part: SavedGraph
    values: tuple[Value, ...]
    is_written: bool
    """It changes an input in place."""
    folder: str
    """For the files of OpAutoCompare."""
    imports: tuple[str, ...] = ()
    first: tuple[Value, ...] = ()
    """Inputs of a call before, with the sizes that the program compiled the graph for; empty: none is made."""
    holds: bool = False
    """A call with other numbers follows, while the results are held."""


@dataclass(frozen=True)
class TrialResult:
    """How a part ran."""

    kinds: frozenset[str] = frozenset()
    """How it fails: kinds of OpAutoCompare's rows, `raised`, `crashed`, `hung`; empty: it does not."""
    note: str = ""
    saved: str = ""
    """The folder of the graph's saved call, with the inputs, results and limits that the judge knew."""

    @classmethod
    def of_failure(cls, failure: Failure) -> TrialResult:
        """Of a process that gave no result."""
        return cls(frozenset([failure.kind]), failure)


def start_trials() -> None:
    """Runs first in a process of trials."""
    os.environ["OP_TOOLS_LOG_LEVEL"] = "off"  # the search says how each trial ended
    reload_log_level()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def run_trial(trial: Trial) -> TrialResult:
    """Compiles a part, runs it forward and backward, and judges it."""
    import_backends(trial.imports)
    torch._dynamo.reset()
    part = trial.part
    text = part.source(_FUNCTION)
    names: dict[str, Any] = {"torch": torch, "operator": operator, "math": math}
    exec(compile(text, _FILE, "exec"), names)  # noqa: S102  (of functions that read_graph admits)
    compiled: Callable[..., Any] = torch.compile(
        names[_FUNCTION], backend=part.backend, dynamic=part.dynamic, **part.options
    )
    later = with_other_numbers(trial.values) if trial.holds else ()
    calls = [
        _leaves_and_inputs(values, is_written=trial.is_written)
        for values in (trial.first, trial.values, later)
        if values
    ]
    held = []
    with program_state(part.state), OpAutoCompare(output_dir=trial.folder, compiled="check", level="torch") as tool:
        try:
            for leaves, inputs in calls:
                held.append(compiled(*inputs))
                _backward(held[-1], leaves)
        except Exception as error:
            note = with_type(error)
            raised = RAISED
        else:
            note = raised = ""
    result = tool.result()
    rows = [row for row in result.failures if row.op.startswith(GRAPH_CALLS)]
    kinds = frozenset([*(row.kind for row in rows), *filter(None, [raised])])
    saved = next((row.saved for row in rows if row.saved), "") or ""
    if saved:
        _restore_places(Path(saved), part, text)
    texts = [f"{row.part} {'' if row.index is None else row.index} {row.reason}" for row in rows]
    return TrialResult(kinds, note or " ".join(next(iter(texts), "").split()), saved)


def _leaves_and_inputs(values: Sequence[Value], *, is_written: bool) -> tuple[list[torch.Tensor], list[Any]]:
    """Tensors whose gradients are wanted, and the inputs."""
    leaves: list[torch.Tensor] = []

    def of(value: Value) -> Any:
        if not value.wants_gradient:
            return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value.content)
        leaves.append(value.content.detach().requires_grad_())
        return leaves[-1].clone() if is_written else leaves[-1]  # operators in place refuse leaves

    return leaves, [of(value) for value in values]


def _backward(results: Any, leaves: Sequence[torch.Tensor]) -> None:
    outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not leaves or not outputs:
        return
    draw = torch.Generator().manual_seed(0)
    arriving = [torch.randn(leaf.shape, generator=draw).to(leaf.device, leaf.dtype) for leaf in outputs]
    torch.autograd.grad(outputs, list(leaves), arriving, allow_unused=True)


def _restore_places(saved: Path, part: SavedGraph, text: str) -> None:
    """Puts the places in the user's code into the files of the part's graph, whose nodes have those in the part's text."""
    folder = saved.parent
    lines = [number for number, line in enumerate(text.splitlines(), 1) if re.match(r"\s{4}(?!#|return\b)", line)]
    origins = {f"{_FILE}:{number} {_FUNCTION}": node for number, node in zip(lines, part.nodes, strict=True)}
    graph = read_graph(folder)
    replace(graph, nodes=tuple(_at_place(node, origins.get(node.line)) for node in graph.nodes)).write(folder)
    line = next((node.line for node in part.nodes if node.line), "")
    for path in saved.glob("*/meta.json"):
        meta = json.loads(path.read_text())
        path.write_text(json.dumps({**meta, "stack": [line] if line else []}))


def _at_place(node: GraphNode, origin: GraphNode | None) -> GraphNode:
    return replace(node, line=origin.line, module=origin.module) if origin else node
