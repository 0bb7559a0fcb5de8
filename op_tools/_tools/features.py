"""apply_feature: a tool for a few operators, and only for the calls that a condition picks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from .._base.core import Call, Error, ToolHolder, find_tool
from .tool import Tool
from .tool_classes import tool_classes


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a call as a condition sees it: its description, without values."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    strides: tuple[int, ...]
    """In elements; empty for layouts without strides."""
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorInfo:
        """Describes a `tensor`."""
        strides = tensor.stride() if tensor.layout == torch.strided and not tensor.is_nested else ()
        shape = torch.Size() if tensor.is_nested else tensor.shape
        return cls(shape, tensor.dtype, tensor.device, tensor.layout, strides, tensor.requires_grad)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_cpu(self) -> bool:
        """On the CPU."""
        return self.device.type == "cpu"

    @property
    def is_cuda(self) -> bool:
        """On a CUDA device."""
        return self.device.type == "cuda"

    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return self.shape.numel()

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape, or the size of dimension `dim`."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """The strides in elements, or the stride of dimension `dim`."""
        return self.strides if dim is None else self.strides[dim]

    def element_size(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """A floating point dtype."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """A complex dtype."""
        return self.dtype.is_complex


@dataclass(frozen=True)
class CallInfo:
    """A call as a condition sees it, before it runs. It holds no memory of the program."""

    name: str
    """"torch.add" or "aten::add.Tensor"."""
    level: str
    """"torch" or "aten"."""
    step: int
    """The training step, from 0."""
    args: tuple[Any, ...]
    """Positional arguments; tensors are TensorInfo."""
    kwargs: Mapping[str, Any]
    """Keyword arguments; tensors are TensorInfo."""

    @classmethod
    def of(cls, call: Call) -> CallInfo:
        """Describes a `call` that is about to run."""
        return cls(call.name, call.level, call.step, _with_infos(call.args), _with_infos(call.kwargs))

    @property
    def tensors(self) -> list[TensorInfo]:
        """All tensors among the arguments, in order."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, TensorInfo)]


def _with_infos(value: Any) -> Any:
    return tree_map_only(torch.Tensor, TensorInfo.of, value)


def _condition(function: Callable[..., object]) -> Callable[[Call], bool]:
    """A condition as the core asks it."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        parameters = []
    if parameters == ["call"]:
        return lambda call: bool(function(CallInfo.of(call)))

    def of_arguments(call: Call) -> bool:
        info = CallInfo.of(call)
        return bool(function(*info.args, **info.kwargs))

    return of_arguments


class Feature(ToolHolder):
    """A tool that apply_feature() has switched on; off after stop(), or at the end of a `with` block."""

    def __init__(self, tool: Tool) -> None:
        super().__init__(tool)

    def step(self) -> None:
        """Marks the end of a training step."""
        self.tool.step()

    def stop(self) -> None:
        """Switches it off, and waits until everything it recorded is on disk."""
        self.tool.stop()

    end = stop

    def result(self) -> Any:
        """The tool's results, as its class says."""
        return self.tool.result()


def apply_feature(
    ops: str | Iterable[str] | None,
    feature: str,
    condition_func: Callable[..., object] | None = None,
    **settings: Any,
) -> Feature:
    """Switches a tool on for these operators, from here on: a feature for the calls that need it.

    Args:
        ops: the operators, as in the tools' filters: names or expressions, as a list or comma-separated.
        feature: the tool by its feature's name: "op_capture", "autocompare", "measure_op_time", "fallback", "cast_dtype",
            "overflow_check", "dump_op_args" (OpObserve), or that of a tool of your own.
        condition_func: asked before each call, on the thread that makes it; the tool takes part where the answer is true.
            With `call` as its only parameter it gets a :class:`CallInfo`. With any others it gets the operator's own
            arguments, as in ditorch: ``lambda a, b: a.dtype == torch.float16``. Tensors are :class:`TensorInfo` in both.
            Where it raises, that is logged once and the answer is no.
        settings: those of the tool's class (level, output_dir, steps, ...).

    Returns:
        The feature, on: keep it to stop() it or ask its result(), or use it in a `with` statement. If it is not held, it is on
        until the program ends.

    Raises:
        op_tools.Error: there is no such feature, or a setting is wrong.
    """
    tool = tool_classes()[find_tool(feature)](ops=ops, **settings)
    if condition_func is not None:
        if not callable(condition_func):
            raise Error(f"condition_func={condition_func!r}: give a function, or leave it out")
        tool._condition = _condition(condition_func)
    tool.start()
    return Feature(tool)
