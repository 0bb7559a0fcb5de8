"""A graph that torch.compile handed to a backend, as a file: its nodes, without the backend and without the program.

`graph.json` names functions; it holds no code. Functions are looked up among those of torch that a graph may call, as those of
captured calls are (python_functions.py): a file from somewhere cannot open other files by it.
"""

from __future__ import annotations

import contextlib
import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from .._base.core import GRAPH_CALLS, Error, current_module
from .graph_arguments import (
    Ref,
    argument_from_json,
    argument_of_fx,
    argument_text,
    argument_to_json,
    mapped,
    named,
    refs_in,
)
from .graph_functions import are_public_names, graph_function, graph_function_name, is_tensor_method
from .graph_operators import GraphOperators, line_of_node, module_of_node

FILE, ATTRIBUTES_FILE = "graph.json", "attributes.pth"
_STATE = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled")


@dataclass(frozen=True)
class GraphNode:
    """An operator of a graph."""

    name: str
    target: str
    """The name of a function; ".relu" is a method of the first argument."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    line: str = ""
    """ "file:line function" of the user's code; "" where torch noted none."""
    module: str = ""
    dtype: str = ""
    """Of its result, where that is a tensor."""

    @property
    def sets_state(self) -> bool:
        """It switches autocast or gradients for the nodes behind it."""
        return self.target.rpartition(".")[2] in _STATE

    @property
    def sets_item(self) -> bool:
        """x[i] = y, which has no value."""
        return self.target == "_operator.setitem" and len(self.args) == 3

    @property
    def inputs(self) -> list[str]:
        """The names of values that it reads, each once."""
        return list(dict.fromkeys(ref.name for ref in refs_in((self.args, self.kwargs))))

    def call(self, values: Mapping[str, Any]) -> Any:
        """Runs it with the values of these names."""
        args, kwargs = (mapped(item, lambda ref: values[ref.name]) for item in (self.args, self.kwargs))
        if self.target.startswith("."):
            return getattr(args[0], self.target[1:])(*args[1:], **kwargs)
        return graph_function(self.target)(*args, **kwargs)


@dataclass(frozen=True)
class SavedGraph:
    """A graph, and how it was compiled."""

    name: str
    """As in the rows of tools: "torch.compile.graph_0"."""
    backend: str
    nodes: tuple[GraphNode, ...]
    inputs: tuple[str, ...]
    outputs: Any
    """Tuples and lists of Ref, and plain values."""
    options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of torch.compile: `mode`, `options`."""
    dynamic: bool = False
    """Some of its inputs are sizes."""
    state: dict[str, Any] = field(default_factory=dict)
    """Where it was compiled, as in a capture's meta.json."""
    examples: tuple[dict[str, Any], ...] = ()
    """The form of each input: shape, stride, dtype, device, requires_grad; or number."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Tensors of the graph's own, by name."""

    @property
    def device(self) -> str:
        """The device of its inputs."""
        devices = [str(example["device"]) for example in self.examples if "device" in example]
        return next((device for device in devices if device.partition(":")[0] not in ("cpu", "meta")), "cpu")

    def is_for_other_sizes(self, args: Sequence[Any]) -> bool:
        """Was it compiled for any sizes, by a call whose sizes were others than those of `args`?"""
        sizes = [list(arg.shape) if isinstance(arg, torch.Tensor) else arg for arg in args]
        examples = [example["shape"] if "dtype" in example else example.get("number") for example in self.examples]
        return self.dynamic and len(examples) == len(sizes) and examples != sizes

    def operators(self) -> GraphOperators:
        """The graph, to be run operator by operator with torch's own kernels."""
        graph = fx.Graph()
        values: dict[str, fx.Node] = {}
        for name, example in zip(self.inputs, self.examples or [{}] * len(self.inputs), strict=True):
            values[name] = graph.placeholder(name)
            if "dtype" in example:
                device, dtype = example["device"], named(example["dtype"], torch.dtype)
                values[name].meta["example_value"] = torch.empty(0, dtype=dtype, device=device)
        for name in self.attributes:
            values[name] = graph.get_attr(name)
        for node in self.nodes:
            args, kwargs = (mapped(item, lambda ref: values[ref.name]) for item in (node.args, node.kwargs))
            if node.target.startswith("."):
                values[node.name] = graph.call_method(node.target[1:], args, kwargs)
            else:
                values[node.name] = graph.call_function(graph_function(node.target), args, kwargs)
            if node.dtype:
                values[node.name].meta["dtype"] = named(node.dtype, torch.dtype)
        graph.output(mapped(self.outputs, lambda ref: values[ref.name]))
        return GraphOperators(fx.GraphModule(self.attributes, graph))

    def source(self, function: str) -> str:
        """The graph as the text of a function of its inputs and its attributes.

        Args:
            function: its name.
        """
        names = {name: f"x{number}" for number, name in enumerate([*self.inputs, *self.attributes])}
        names |= {node.name: _identifier(node.name) for node in self.nodes}
        lines = [f"def {function}({', '.join(names[name] for name in [*self.inputs, *self.attributes])}):"]
        for node in self.nodes:
            place = " ".join(filter(None, [node.module, node.line]))
            lines += [f"    # {_plain(place)}"] if place and f"    # {_plain(place)}" not in lines[-2:] else []
            lines.append(f"    {_statement(node, names)}")
        return "\n".join([*lines, f"    return {argument_text(self.outputs, names)}"]) + "\n"

    def write(self, folder: Path) -> Path:
        """Writes it into a folder, which is made.

        Returns:
            the file.
        """
        folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "format": 1,
            "name": self.name,
            "backend": self.backend,
            "options": self.options,
            "dynamic": self.dynamic,
            "state": self.state,
            "inputs": list(self.inputs),
            "examples": list(self.examples),
            "nodes": [
                {
                    "name": node.name,
                    "target": node.target,
                    "args": argument_to_json(node.args),
                    "kwargs": argument_to_json(node.kwargs),
                    "line": node.line,
                    "module": node.module,
                    "dtype": node.dtype,
                }
                for node in self.nodes
            ],
            "outputs": argument_to_json(self.outputs),
        }
        if self.attributes:
            torch.save(self.attributes, folder / ATTRIBUTES_FILE)
        path = folder / FILE
        path.write_text(json.dumps(facts, indent=1))
        return path


@contextlib.contextmanager
def program_state(state: dict[str, Any]) -> Iterator[None]:
    """Autocast and gradients as they were where the graph was compiled."""
    with contextlib.ExitStack() as stack:
        for device, dtype in (state.get("autocast") or {}).items():
            stack.enter_context(torch.autocast(device, named(dtype, torch.dtype)))
        if state.get("inference_mode"):
            stack.enter_context(torch.inference_mode())
        elif not state.get("grad_enabled", True):
            stack.enter_context(torch.no_grad())
        yield


def read_graph(folder: Path) -> SavedGraph:
    """The graph in a folder.

    Raises:
        op_tools.Error: there is none, or it is damaged, or calls a function that a file may not name.
    """
    path = folder / FILE
    try:
        facts = json.loads(path.read_text())
        nodes = tuple(
            GraphNode(
                str(node["name"]),
                str(node["target"]),
                tuple(argument_from_json(node["args"])),
                dict(argument_from_json(node["kwargs"])),
                str(node["line"]),
                str(node["module"]),
                str(node["dtype"]),
            )
            for node in facts["nodes"]
        )
        attributes = path.with_name(ATTRIBUTES_FILE)
        graph = SavedGraph(
            str(facts["name"]),
            str(facts["backend"]),
            nodes,
            tuple(map(str, facts["inputs"])),
            argument_from_json(facts["outputs"]),
            dict(facts["options"]),
            bool(facts["dynamic"]),
            dict(facts["state"]),
            tuple(facts["examples"]),
            torch.load(attributes, weights_only=True) if attributes.is_file() else {},
        )
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Error(f"{path}: damaged: {type(error).__name__}: {error}") from None
    for node in nodes:
        if node.target == "builtins.getattr" and not are_public_names(node.args[1:2]):
            raise Error(f"{path}: {node.args[1:2]} is no attribute of tensors that a file may name")
        if not node.target.startswith("."):
            graph_function(node.target)
        elif not is_tensor_method(node.target[1:]):
            raise Error(f"{path}: {node.target[1:]!r} is no method of tensors that a file may name")
    return graph


def graph_folder(folder: Path) -> Path | None:
    """The folder with the graph of a saved call: `folder`, or above it."""
    return next((place for place in [folder, *folder.absolute().parents[:2]] if (place / FILE).is_file()), None)


def graphs_below(path: Path) -> dict[str, SavedGraph]:
    """The graphs of saved calls in a folder of results, or around it, by name; without names that several graphs have."""
    place = graph_folder(path)
    folders = [place] if place else [file.parent for file in path.rglob(f"{GRAPH_CALLS}*/{FILE}")]
    names = [folder.name for folder in folders]
    graphs = [read_graph(folder) for folder in folders if names.count(folder.name) == 1]
    return {graph.name: graph for graph in graphs}


def saved_form(graph: fx.GraphModule, name: str, backend: str, options: Mapping[str, Any]) -> SavedGraph:
    """A graph of torch.compile as a file has it.

    Args:
        graph: as torch.compile hands it to its backend.
        name: in the rows of tools.
        backend: its name.
        options: further arguments of torch.compile.

    Raises:
        op_tools.Error: a node has no form in a file: a function of the user's, or a node that takes functions.
    """
    nodes, inputs, examples, outputs = [], [], [], None
    attributes: dict[str, Any] = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
            examples.append(_example(node.meta.get("example_value")))
        elif node.op == "output":
            outputs = argument_of_fx(node.args[0])
        elif node.op == "get_attr":
            value = operator.attrgetter(node.target)(graph)
            if not isinstance(value, torch.Tensor):
                raise Error(f"{node.name}: {type(value).__name__} has no form in a file")
            attributes[node.name] = value.detach().clone()
        elif node.target is not torch._C._log_api_usage_once:  # computes nothing
            nodes.append(_node(node))
    is_dynamic = any("number" in example and not example["constant"] for example in examples)
    state = {
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "autocast": {"cpu": str(torch.get_autocast_dtype("cpu"))} if torch.is_autocast_enabled("cpu") else {},
    }
    kept = {key: value for key, value in options.items() if _is_json(value)}
    return SavedGraph(
        name, backend, tuple(nodes), tuple(inputs), outputs, kept, is_dynamic, state, tuple(examples), attributes
    )


def cut(graph: SavedGraph, names: Sequence[str], kept_state: bool = True) -> SavedGraph:
    """Some nodes of a graph as a graph: values of the other nodes are its inputs, values that the others read its outputs.

    Args:
        graph: the whole.
        names: of its nodes.
        kept_state: with the nodes that switch autocast and gradients.
    """
    chosen = {*names, *(node.name for node in graph.nodes if node.sets_state and kept_state)}
    nodes = [node for node in graph.nodes if node.name in chosen]
    inputs = list(dict.fromkeys(name for node in nodes for name in node.inputs if name not in chosen))
    read_by_others = {name for node in graph.nodes if node.name not in chosen for name in node.inputs}
    read_by_others |= {ref.name for ref in refs_in(graph.outputs)}
    read = {name for node in nodes for name in node.inputs}
    outputs = [
        Ref(node.name)
        for node in nodes
        if not (node.sets_state or node.sets_item) and (node.name in read_by_others or node.name not in read)
    ]
    return replace(graph, nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(outputs), examples=(), attributes={})


def _node(node: fx.Node) -> GraphNode:
    if node.op == "call_method":
        target = f".{node.target}"
        is_known = is_tensor_method(str(node.target))
    elif node.op == "call_function":
        target = graph_function_name(node.target)
        is_known = bool(target)
    else:
        target, is_known = str(node.target), False
    if not is_known:
        raise Error(f"{node.name}: {node.target} has no form in a file")
    kwargs = {str(key): argument_of_fx(value) for key, value in node.kwargs.items()}
    args = tuple(argument_of_fx(value) for value in node.args)
    dtype = str(getattr(node.meta.get("example_value"), "dtype", ""))
    return GraphNode(
        node.name, target, args, kwargs, line_of_node(node), module_of_node(node, current_module()).lstrip("."), dtype
    )


def _identifier(name: str) -> str:
    return name if name.isidentifier() and not re.fullmatch(r"x\d+|torch|math|operator|_operator", name) else f"{name}_"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _statement(node: GraphNode, names: Mapping[str, str]) -> str:
    if node.sets_item:
        target, place, value = (argument_text(arg, names) for arg in node.args)
        return f"{target}[{place}] = {value}"
    return f"{names[node.name]} = {_call_text(node, names)}"


def _call_text(node: GraphNode, names: Mapping[str, str]) -> str:
    items = [argument_text(value, names) for value in node.args]
    items += [f"{key}={argument_text(value, names)}" for key, value in node.kwargs.items()]
    if node.target.startswith("."):
        return f"{items[0]}.{node.target[1:]}({', '.join(items[1:])})"
    return f"{node.target.removeprefix('builtins.').removeprefix('_')}({', '.join(items)})"


def _example(value: Any) -> dict[str, Any]:
    """The form of an input as the tracer knows it; sizes as they were."""

    def number(size: Any) -> int:
        return int(size if isinstance(size, int) else size.node.hint or 0)

    if isinstance(value, torch.Tensor):
        return {
            "shape": list(map(number, value.shape)),
            "stride": list(map(number, value.stride())) if value.layout == torch.strided else [],
            "dtype": str(value.dtype),
            "device": str(value.device),
            "requires_grad": value.requires_grad,
        }
    if isinstance(value, torch.SymInt):
        return {"number": number(value), "constant": False}
    return {"number": value if isinstance(value, bool | int | float) else None, "constant": True}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
