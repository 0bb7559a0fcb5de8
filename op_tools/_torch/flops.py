"""Floating point operations of a call, by torch's formulas (torch.utils.flop_counter).

They are written again here, with the shapes of the results: that module imports triton, the mode it counts with
torch._dynamo, and torch's kernels for tensors without data sympy. A tool imports nothing that the program has not imported.
If torch's module is there its formulas are used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .python_functions import find


def _product(a: torch.Tensor, b: torch.Tensor) -> int:
    """Of matrices, or of batches of them."""
    return 2 * a.shape.numel() * b.shape[-1]


def _convolved(inputs: Sequence[int], weight: Sequence[int], output: Sequence[int], transposed: bool) -> int:
    places = (inputs if transposed else output)[2:]
    return 2 * inputs[0] * prod(weight) * prod(places)


def _convolution(args: Sequence[Any], result: Any) -> int:
    return _convolved(args[0].shape, args[1].shape, result.shape, args[6])


def _convolution_backward(args: Sequence[Any], result: Any) -> int:
    def swapped(tensor: torch.Tensor) -> Sequence[int]:
        return [tensor.shape[1], tensor.shape[0], *tensor.shape[2:]]

    output, inputs, weight, transposed, mask = args[0], args[1], args[2], args[7], args[10]
    total = 0
    if mask[0]:
        total += _convolved(output.shape, weight.shape, result[0].shape, not transposed)
    if mask[1]:
        first, second = (output, inputs) if transposed else (inputs, output)
        total += _convolved(swapped(first), swapped(second), swapped(result[1]), False)
    return total


def _attention(args: Sequence[Any], _: Any) -> int:
    query, key, value = args[:3]
    rows: int = query.shape[:-1].numel()
    width: int = key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return 2 * rows * width


def _attention_backward(args: Sequence[Any], _: Any) -> int:
    query, key, value = args[1:4]
    rows: int = query.shape[:-1].numel()
    width: int = key.shape[-2] * (3 * query.shape[-1] + 2 * value.shape[-1])
    return 2 * rows * width


def _product_result(args: Sequence[Any]) -> torch.Tensor:
    a, b = args
    result: torch.Tensor = a.new_empty((*a.shape[:-1], b.shape[-1]))
    return result


def _convolution_result(args: Sequence[Any]) -> torch.Tensor:
    inputs, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    sizes = []
    for i, size in enumerate(inputs.shape[2:]):
        step, border, reach = stride[i % len(stride)], padding[i % len(padding)], weight.shape[2 + i] - 1
        reach *= dilation[i % len(dilation)]
        if transposed:
            sizes.append((size - 1) * step - 2 * border + reach + output_padding[i % len(output_padding)] + 1)
        else:
            sizes.append((size + 2 * border - reach - 1) // step + 1)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    result: torch.Tensor = inputs.new_empty((inputs.shape[0], channels, *sizes))
    return result


def _convolution_gradients(args: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
    output, inputs, weight, mask = args[0], args[1], args[2], args[10]
    shapes = (inputs.shape, weight.shape, (output.shape[1],))
    return tuple(output.new_empty(shape) if wanted else None for shape, wanted in zip(shapes, mask, strict=True))


def _stacked(args: Sequence[Any]) -> torch.Tensor:
    shape = list(args[0][0].shape)
    place = args[1] if len(args) > 1 else 0
    shape.insert(place if place >= 0 else len(shape) + 1 + place, len(args[0]))
    result: torch.Tensor = args[0][0].new_empty(shape)
    return result


def _pointwise_result(func: Any, args: Sequence[Any]) -> Any:
    """Its dtype does not matter."""
    if func._schema.is_mutable:
        return args[0]
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    sizes = zip_longest(*(reversed(one.shape) for one in tensors), fillvalue=1)
    shape = [next((size for size in along if size != 1), 1) for along in sizes]
    results = [tensors[0].new_empty(shape[::-1]) for _ in func._schema.returns]
    return results[0] if len(results) == 1 else tuple(results)


class _Formula(NamedTuple):
    operations: Callable[[Sequence[Any], Any], int]  # of arguments and result
    result: Callable[[Sequence[Any]], Any] | None = None  # of arguments, without torch's kernel


_KINDS = ("efficient", "flash", "cudnn")
_CONVOLUTION = _Formula(_convolution, _convolution_result)
_FORMULAS = {
    "aten::mm": _Formula(lambda args, _: _product(*args), _product_result),
    "aten::bmm": _Formula(lambda args, _: _product(*args), _product_result),
    "aten::_scaled_mm": _Formula(lambda args, _: _product(*args[:2])),
    "aten::addmm": _Formula(lambda args, _: _product(*args[1:3]), lambda args: _product_result(args[1:3])),
    "aten::baddbmm": _Formula(lambda args, _: _product(*args[1:3]), lambda args: _product_result(args[1:3])),
    "aten::convolution": _CONVOLUTION,
    "aten::_convolution": _CONVOLUTION,
    "aten::convolution_overrideable": _CONVOLUTION,
    "aten::stack": _Formula(lambda *_: 0, _stacked),
    "aten::convolution_backward": _Formula(_convolution_backward, _convolution_gradients),
    **{f"aten::_scaled_dot_product_{kind}_attention": _Formula(_attention) for kind in _KINDS},
    **{f"aten::_scaled_dot_product_{kind}_attention_backward": _Formula(_attention_backward) for kind in _KINDS},
}


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operators that it sees."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        counter = sys.modules.get("torch.utils.flop_counter")
        self._of_torch: dict[Any, Callable[..., int]] = getattr(counter, "flop_registry", {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import torch._dynamo to skip it

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        of_torch, own = self._of_torch.get(func._overloadpacket), _FORMULAS.get(func._schema.name)
        if of_torch is None and own is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if own is not None and own.result is not None:
            result = own.result(args)
        elif torch.Tag.pointwise in func.tags:
            result = _pointwise_result(func, args)
        else:
            result = func(*args, **kwargs)
        if of_torch is not None:
            self.total += of_torch(*args, **kwargs, out_val=result)
        elif own is not None:
            self.total += own.operations(args, result)
        return result


def _operator(name: str) -> Callable[..., Any] | None:
    if "::" not in name:
        return find(name)
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    overload_function: Callable[..., Any] = getattr(
        getattr(getattr(torch.ops, namespace), packet), overload or "default"
    )
    return overload_function


def count_flops(name: str, backward: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The call's operations, by running it on tensors without data; -1: there is no formula. The core calls it: without
    gradients and function modes, and where nothing can be imported.

    Args:
        name: of the operator or function.
        backward: those of its backward pass.
        args: its arguments; tensors on the meta device.
        kwargs: likewise.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    function = _operator(name) if tensors else None
    if function is None:
        return -1
    # Each product has two in its backward pass. An operator of the backward engine is the operator itself.
    passes = 2 if backward and "::" not in name else 1
    if name.endswith("scaled_dot_product_attention") and len(args) >= 3:
        return passes * _attention(args, None)  # the kernels between its two products would import
    with _Counter() as counter:
        function(*args, **kwargs)
    return passes * counter.total or -1
