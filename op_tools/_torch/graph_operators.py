"""A graph that torch.compile handed to its backend, run operator by operator, without the backend.

As it was traced, for tools that look at each operator; and on another device and in other dtypes, for the runs again of the
graph's judge. A copy of the graph is made before the backend has it, which may change it.
"""

from __future__ import annotations

import copy
import operator
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from .._base.core import GraphNodes, current_module, has_trait, unwritten_is_nan

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# Methods that name a dtype by their own name.
_CASTS = {
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}
_NOT_THE_USERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))
_CALLS = ("call_function", "call_method", "call_module")
# Operators that take functions, and do nothing but call them: torch.utils.checkpoint, torch.autograd.Function. "": all others.
_CHECKPOINT = "tag_activation_checkpoint"
_RUN_BY_NODES = ("", _CHECKPOINT, "autograd_function_apply")


class GraphOperators:
    """The operators of a graph. Calling it runs them with torch's own kernels, on the device and in the dtypes of its arguments.

    Args:
        graph: as torch.compile made it; not changed.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self._module = _copied_graph(graph)
        inputs = [node.meta.get("example_value") for node in graph.graph.nodes if node.op == "placeholder"]
        self._dtypes = [one.dtype if isinstance(one, torch.Tensor) else None for one in inputs]
        self._devices = {one.device for one in inputs if isinstance(one, torch.Tensor)}
        self._variants: dict[Any, fx.GraphModule] = {}
        self._places: dict[str, _Places] = {}
        nodes = _operators_in(graph)
        self.count = len(nodes)
        """Operators in the graph."""
        self.runs_by_nodes = all(_name_of_operator(node) in _RUN_BY_NODES for node in nodes)
        """False: some of its operators take functions, which torch may run compiled only."""
        self._is_shared = any(map(_is_collective, nodes))
        self.has_unwritten_memory = any(map(_allocates, nodes))
        """An operator allocates memory and does not write it (torch.empty)."""
        self.adds_product = any(_has_trait(node, "adds_a_product") or "alpha" in node.kwargs for node in nodes)
        """An operator adds a product, in a single rounding (FMA) or in two."""

    def __call__(self, *args: Any) -> Any:
        """The graph's results for these arguments; the attributes of the graph are not changed by it.

        Raises:
            RuntimeError: other processes take part in the graph, and would wait for it.
        """
        if self._is_shared:
            raise RuntimeError("other processes take part in the graph, and would wait for it to be run again")
        dtypes: dict[torch.dtype, torch.dtype] = {}
        for before, now in zip(self._dtypes, args, strict=True):
            if isinstance(now, torch.Tensor) and before is not None and before != now.dtype:
                dtypes[before] = now.dtype
        if torch.float64 in dtypes.values():
            dtypes |= dict.fromkeys(_FLOATS, torch.float64)
        device = next((now.device for now in args if isinstance(now, torch.Tensor)), torch.device("cpu"))
        is_nan = unwritten_is_nan()
        key = (device, is_nan, *sorted(map(str, dtypes.items())))
        if key not in self._variants:
            self._variants[key] = self._variant(device, dtypes)
            if is_nan is not None:
                _fill_unwritten(self._variants[key], is_nan=is_nan)
        return self._variants[key].forward(*args)  # not as a module: the program has none of this name

    def run_nodes(self, *args: Any) -> Any:
        """As it was traced; each operator is made at its node's place in the user's code, for the tools that ask."""
        caller = current_module()
        if caller not in self._places:
            self._places[caller] = _Places(self._module, caller)
        return self._places[caller].run(args)

    def _variant(self, device: torch.device, dtypes: Mapping[torch.dtype, torch.dtype]) -> fx.GraphModule:
        devices = {one: device for one in self._devices if one != device}
        variant = _converted(self._module, devices, dtypes)
        if device.type == "meta":
            _copy_dropped(variant)
        return variant


class _Places:
    """A graph whose code says before each operator which node's turn it is."""

    def __init__(self, module: fx.GraphModule, caller: str) -> None:
        calls = _operators_in(module)
        self._nodes = GraphNodes([(line_of_node(node), module_of_node(node, caller)) for node in calls])
        # The same objects in all nodes: torch 2.7 asks for that in generated code.
        self._enter, self._leave = self._nodes.enter, self._nodes.leave
        self._numbers = {node: number for number, node in enumerate(calls)}
        self._code = self._with_places(module)

    def run(self, args: tuple[Any, ...]) -> Any:
        # A compiled graph casts its weights in each run; autocast's cache would have those of before an optimizer's step.
        caches = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            return self._code.forward(*args)
        finally:
            torch.set_autocast_cache_enabled(caches)
            self._leave()

    def _with_places(self, module: fx.GraphModule, *, is_body: bool = False) -> fx.GraphModule:
        graph, bodies = fx.Graph(), _bodies(module)
        copies: dict[fx.Node, fx.Node] = {}
        for node in module.graph.nodes:
            if node in self._numbers:
                graph.call_function(self._enter, (self._numbers[node],))
            if node.op == "output" and is_body:  # also runs in the backward pass, whose other calls are not the node's
                graph.call_function(self._leave)
            copies[node] = copy = graph.node_copy(node, copies.__getitem__)
            if _name_of_operator(node) == _CHECKPOINT:
                checkpointed = _CheckpointedBody(self._with_places(bodies[node.args[0]], is_body=True), self._leave)
                copy.target, copy.args = checkpointed.run, copy.args[1:]
        code = fx.GraphModule(module, graph)
        for node, body in bodies.items():
            setattr(code, str(node.target), self._with_places(body, is_body=True))
        return code


class _CheckpointedBody:
    """A part of a graph whose values are computed again in the backward pass."""

    def __init__(self, code: fx.GraphModule, leave: Callable[[], None]) -> None:
        self._code, self._leave = code, leave

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """As the program has it: with the same random numbers again. torch's own operator for it leaves that to compilers."""
        chosen = self._code.meta.get("_checkpoint_context_fn")
        kwargs = {**kwargs, "use_reentrant": False, **({"context_fn": chosen} if chosen else {})}
        return checkpoint(self._run_code, *args, **kwargs)

    def _run_code(self, *args: Any) -> Any:
        try:
            return self._code.forward(*args)
        finally:
            self._leave()


def _bodies(module: fx.GraphModule) -> dict[fx.Node, fx.GraphModule]:
    """The functions that its operators take, as graphs, by the node that reads them."""
    read = {node: getattr(module, str(node.target), None) for node in module.graph.nodes if node.op == "get_attr"}
    return {node: body for node, body in read.items() if isinstance(body, fx.GraphModule)}


def _operators_in(module: fx.GraphModule) -> list[fx.Node]:
    """Its operators, with those of the functions that they take."""
    of_bodies = [node for body in _bodies(module).values() for node in _operators_in(body)]
    return [node for node in module.graph.nodes if node.op in _CALLS] + of_bodies


def _name_of_operator(node: fx.Node) -> str:
    """Of an operator that takes functions; else ""."""
    return str(node.target) if isinstance(node.target, torch._ops.HigherOrderOperator) else ""


def _allocates(node: fx.Node) -> bool:
    """Memory that it does not write."""
    return _has_trait(node, "uninitialized_result")


def _has_trait(node: fx.Node, trait: str) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and has_trait(name, trait)


def _fill_unwritten(module: fx.GraphModule, *, is_nan: bool) -> None:
    """Memory that operators allocate and do not write is filled: with zeros, or with NaN (integers: 1)."""
    for node in list(module.graph.nodes):
        if _allocates(node):
            with module.graph.inserting_after(node):
                module.graph.call_function(_set_all, (node, is_nan))
    module.recompile()


def _set_all(tensor: Any, is_nan: bool) -> None:
    if isinstance(tensor, torch.Tensor):
        with torch.no_grad():
            number = 0.0 if not is_nan else float("nan") if tensor.is_floating_point() or tensor.is_complex() else 1
            tensor.fill_(number)


def _copy_dropped(module: fx.GraphModule) -> None:
    """Dropout that drops nothing gives a copy: torch.compile's gives one where torch gives the input itself. For the forms of results,
    of which a compiler may have either."""
    for node in module.graph.nodes:
        is_dropout = getattr(node.target, "__name__", "").rstrip("123d").endswith("dropout")
        if node.op == "call_function" and is_dropout and node.args:
            node.target, node.args, node.kwargs = torch.clone, node.args[:1], {}
    module.recompile()


def _copied_graph(module: fx.GraphModule) -> fx.GraphModule:
    """With copies of the functions that its operators take."""
    copied = fx.GraphModule(module, _copy(module.graph))
    for node, body in _bodies(module).items():
        setattr(copied, str(node.target), _copied_graph(body))
    copied.meta.update(module.meta)
    return copied


def _copy(graph: fx.Graph) -> fx.Graph:
    """Without the tracer's tensors in its nodes."""
    copied = fx.Graph()
    result = copied.graph_copy(graph, {})
    if result is not None:
        copied.output(result)
    for node in copied.nodes:
        example = node.meta.get("example_value")
        node.meta = {name: node.meta[name] for name in ("stack_trace", "nn_module_stack", "dtype") if name in node.meta}
        if isinstance(example, torch.Tensor):
            node.meta["dtype"] = example.dtype
    return copied


def _is_collective(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    name = getattr(node.target, "namespace", getattr(node.target, "__module__", "")) or ""
    return "c10d" in str(name) or str(name).startswith("torch.distributed")


def _converted(
    module: fx.GraphModule, devices: Mapping[torch.device, torch.device], dtypes: Mapping[torch.dtype, torch.dtype]
) -> fx.GraphModule:
    """The graph with other devices and dtypes in its arguments, and with copies of its attributes in their form."""
    from torch.utils._device import _device_constructors

    graph = _copy(module.graph)
    attributes: dict[str, Any] = {}

    def converted(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return dtypes.get(value, value)
        if isinstance(value, torch.device):
            return devices.get(value, value)
        if isinstance(value, str):
            return next((str(now) for before, now in devices.items() if value in (str(before), before.type)), value)
        return value

    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            attributes[node.target] = _converted_attribute(operator.attrgetter(node.target)(module), devices, dtypes)
        if getattr(node.target, "__name__", "") == "_enter_autocast" and dtypes:
            device_type, dtype, _, *cache = node.args
            node.args = (device_type, dtype, False, *cache)
        elif node.op in _CALLS:
            node.args = fx.node.map_aggregate(node.args, converted)
            node.kwargs = fx.node.map_aggregate(node.kwargs, converted)
            default = dtypes.get(node.meta.get("dtype", torch.bool))
            if default is not None and node.target in _device_constructors() and "dtype" not in node.kwargs:
                node.kwargs = {**node.kwargs, "dtype": default}
            cast = _CASTS.get(str(node.target)) if node.op == "call_method" else None
            if cast is not None and cast in dtypes:
                node.target = "to"
                node.args = (*node.args, dtypes[cast])
    return fx.GraphModule(attributes, graph)


def _converted_attribute(
    value: Any, devices: Mapping[torch.device, torch.device], dtypes: Mapping[torch.dtype, torch.dtype]
) -> Any:
    if isinstance(value, torch.Tensor):
        to = value.detach().to(devices.get(value.device, value.device), dtypes.get(value.dtype, value.dtype), copy=True)
        return to.requires_grad_(value.requires_grad)
    if isinstance(value, fx.GraphModule):
        return _converted(value, devices, dtypes)
    return copy.deepcopy(value) if isinstance(value, torch.nn.Module) else value


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
