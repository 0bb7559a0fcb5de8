"""From an operator of an aten graph to the compiler's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from .kernels import ELEMENTWISE
from .layouts import IMAGES
from .steps import Name, Program, Step

aten = torch.ops.aten
Conversion = Callable[[fx.Node], tuple[str, tuple[Any, ...], dict[str, Any]]]
"""Gives kernel, arguments and keyword arguments, with the graph's nodes in them."""

CONVERSIONS: dict[Any, Conversion] = {}


def converts(*operators: Any) -> Callable[[Conversion], Conversion]:
    """Registers the conversion of some operators."""

    def register(conversion: Conversion) -> Conversion:
        CONVERSIONS.update(dict.fromkeys(operators, conversion))
        return conversion

    return register


def _same(kernel: str, *operators: Any) -> None:
    converts(*operators)(lambda node: (kernel, tuple(node.args), dict(node.kwargs)))


for _name in ELEMENTWISE:
    _packet = getattr(aten, _name)
    _same(
        _name, *(getattr(_packet, overload) for overload in ("default", "Tensor", "self") if hasattr(_packet, overload))
    )
_same("product", aten.mm.default)
_same("batched_product", aten.bmm.default)
_same("softmax", aten._softmax.default)
_same("gelu", aten.gelu.default)
_same("variance", aten.var.correction)
_same("variance_mean", aten.var_mean.correction)
_same("standard_deviation", aten.std.correction)
_same("power", aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor)
_same("store", aten.copy_.default)


@converts(aten.addmm.default)
def _linear(node: fx.Node) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if node.kwargs:  # beta, alpha
        raise NotImplementedError
    return "linear", tuple(node.args), {}


@converts(aten.native_layer_norm.default)
def _convert_layer_norm(node: fx.Node) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    return "layer_norm", tuple(node.args), {"statistics": node.meta["val"][1].dtype}


@converts(aten.convolution.default)
def _convert_convolution(node: fx.Node) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Of images with known sizes, on channels-last memory."""
    value = node.meta["val"]
    is_known = not any(isinstance(size, torch.SymInt) for size in value.shape)
    is_image = value.dim() == 4 and is_known and value.is_contiguous()
    return IMAGES if is_image else "convolution", tuple(node.args), dict(node.kwargs)


def program_of(graph: fx.Graph) -> Program:
    """The steps of an aten graph; an operator without a conversion is a step of torch's own kernel."""
    inputs: list[str] = []
    steps: list[Step] = []
    outputs: Any = ()
    constants: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            sizes[node.name] = int(value.node.hint)
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "output":
            outputs = _with_names(node.args[0])
        elif node.op == "get_attr":
            value = node.graph.owning_module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            constants[node.name] = value
        else:
            steps.append(_step_of_node(node))
    return Program(inputs, steps, outputs, constants, sizes)


def _step_of_node(node: fx.Node) -> Step:
    conversion = CONVERSIONS.get(node.target)
    if conversion is not None:
        try:
            kernel, args, keywords = conversion(node)
        except NotImplementedError:
            pass
        else:
            return Step(node.name, kernel, _with_names(args), _with_names(keywords))
    assert callable(node.target)
    return Step(node.name, "torch", _with_names(tuple(node.args)), _with_names(dict(node.kwargs)), node.target)


def _with_names(value: Any) -> Any:
    """Arguments with names in the place of nodes."""
    if isinstance(value, fx.Node):
        return Name(value.name)
    if isinstance(value, dict):
        return {key: _with_names(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        kind = tuple if isinstance(value, tuple) else list
        return kind(map(_with_names, value))
    return value
