"""Faults of a graph compiler, to be planted: each is a rule about kernels, so that a part of a graph has it as the whole graph has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .fusions import bypass
from .steps import Name, Program, Step

VARIABLE = "OP_TOOLS_SIM_GRAPH_FAULT"
"""The name of the fault that is on, also for processes that are started."""
Change = Callable[[Program], int]
"""Changes a program before its text is made; the number of changed steps."""


@dataclass(frozen=True)
class Fault:
    """A fault."""

    name: str
    change: Change | None
    """None: a fault at the boundary of the graph."""
    operators: frozenset[str]
    """Of the graph of torch functions: base names of those to which it belongs."""
    only: str = ""
    """ "dynamic": graphs with sizes of their own; "forward": graphs that are no backward pass."""
    at_boundary: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Changes each tensor that a compiled graph returns."""


def current() -> Fault | None:
    """The fault that is on."""
    return FAULTS.get(os.environ.get(VARIABLE, ""))


@contextlib.contextmanager
def plant(name: str) -> Iterator[Fault]:
    """Plants a fault in graphs that are compiled meanwhile, here and in processes that are started.

    Args:
        name: of :data:`FAULTS`.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield FAULTS[name]
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _each(program: Program, kernels: tuple[str, ...], change: Callable[[Step], bool | None]) -> int:
    """Changes steps of these kernels; `change` says False where it did not."""
    steps = [step for step in program.steps if step.kernel in kernels]
    return sum(change(step) is not False for step in steps)


def _other_kernel(kernels: tuple[str, ...], new: str, keep: int | None = None) -> Change:
    def change(step: Step) -> None:
        step.kernel, step.keywords = new, {}
        step.args = step.args[:keep]

    return lambda program: _each(program, kernels, change)


def _argument(kernel: str, place: int, new: Callable[[Any], Any]) -> Change:
    def change(step: Step) -> bool:
        if place >= len(step.args) or isinstance(step.args[place], Name):
            return False
        args = list(step.args)
        args[place] = new(args[place])
        step.args = tuple(args)
        return True

    return lambda program: _each(program, (kernel,), change)


def _keyword(kernels: tuple[str, ...], name: str, value: Any) -> Change:
    def change(step: Step) -> None:
        step.keywords[name] = value

    return lambda program: _each(program, kernels, change)


def _after(kernels: tuple[str, ...], function: Callable[[Any], Any]) -> Change:
    """A function of the result."""

    def change(program: Program) -> int:
        steps = [step for step in program.steps if step.kernel in kernels]
        for step in steps:
            inner = f"{step.result}_right"
            program.steps.insert(
                program.steps.index(step) + 1, Step(step.result, "torch", (Name(inner),), {}, function)
            )
            step.result = inner
        return len(steps)

    return change


def _lost(kernel: str) -> Change:
    """Its first argument in the place of its result."""

    def change(program: Program) -> int:
        steps = [step for step in program.steps if step.kernel == kernel]
        for step in steps:
            bypass(program, step, step.args[0])
        return len(steps)

    return change


def _wrong_fusion(program: Program) -> int:
    """A fused kernel of another activation."""

    def change(step: Step) -> None:
        step.kernel, step.keywords = step.kernel.replace("gelu", "relu"), {}
        step.args = step.args[:3]

    return _each(program, ("linear_gelu", "linear_and_gelu"), change)


_WRITES = tuple(f"aten.{name}" for name in ("select_scatter", "slice_scatter", "index_put", "copy.default", "scatter"))


def _dead_code(program: Program) -> int:
    """An update of a part of a tensor, which looks as if nothing read it."""
    steps = [step for step in program.steps if str(step.function).startswith(_WRITES)]
    for step in steps:
        bypass(program, step, step.args[0])
    return len(steps)


def _reused(program: Program) -> int:
    """A buffer is written while a later step still reads it."""

    def change(step: Step) -> bool:
        x = step.args[0]
        later = program.steps[program.steps.index(step) + 1 :]
        if not isinstance(x, Name) or x.text in program.inputs or not any(x.text in other.inputs for other in later):
            return False
        step.kernel, step.keywords, step.function = "torch", {}, _into_first
        return True

    return _each(program, ("sigmoid", "tanh"), change)


def _into_first(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid_(x)


def _abort(program: Program) -> int:
    if any(step.kernel in ("linear", "linear_gelu", "product") for step in program.steps):
        os.abort()
    return 0


def _to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(x.dtype) if x.dtype == torch.float32 else x


def _to_float32(x: torch.Tensor) -> torch.Tensor:
    return x.float().double() if x.dtype == torch.float64 else x


def _to_int32(x: torch.Tensor) -> torch.Tensor:
    return x.int().long() if x.dtype == torch.int64 else x


def _stale_size(program: Program) -> int:
    """A symbolic size as a number, that of the first call."""

    def change(step: Step) -> bool:
        *first, last = step.args
        if not isinstance(last, Name) or last.text not in program.sizes:
            return False
        step.args = (*first, program.sizes[last.text])
        return True

    return _each(program, ("mul", "div"), change)


def _misread(x: torch.Tensor) -> torch.Tensor:
    """Channels-last memory, read as if the rows of a channel were next to each other."""
    return x.permute(0, 2, 3, 1).contiguous().view(x.shape)


def _misread_memory(program: Program) -> int:
    def change(step: Step) -> None:
        step.kernel, step.function = "torch", _misread

    return _each(program, ("planar",), change)


def _to_rows(x: torch.Tensor) -> torch.Tensor:
    """The right values in the wrong layout."""
    return x.mT.contiguous().mT if x.dim() > 1 else x


_LINEAR = frozenset({"linear", "addmm"})
_PRODUCTS = frozenset({"linear", "matmul", "bmm", "mm"})


def _detached(result: torch.Tensor) -> torch.Tensor:
    return result.detach()


def _copied(result: torch.Tensor) -> torch.Tensor:
    return result.clone() if result._is_view() else result


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("wrong fusion", _wrong_fusion, _LINEAR | {"gelu"}),
        Fault("wrong constant", _argument("layer_norm", 4, lambda eps: eps * 30), frozenset({"layer_norm"})),
        Fault("wrong scale", _argument("scaled_softmax", 1, lambda scale: scale * 1.01), frozenset({"softmax", "mul", "truediv", "div"})),
        Fault("16-bit products", _after(("linear", "linear_gelu", "product"), _to_bfloat16), _PRODUCTS | {"gelu"}),
        Fault("16-bit softmax", _after(("softmax", "scaled_softmax"), _to_bfloat16), frozenset({"softmax", "scaled_dot_product_attention"})),
        Fault("float64 narrowed", _after(("linear", "product", "batched_product"), _to_float32), _PRODUCTS),
        Fault("int64 narrowed", _after(("mul", "add"), _to_int32), frozenset({"mul", "add", "mul_", "add_", "iadd", "imul"})),
        Fault("no correction", _keyword(("variance", "variance_mean", "standard_deviation"), "correction", 0), frozenset({"var", "std", "var_mean", "std_mean"})),
        Fault("wrong layout", _misread_memory, frozenset({"conv2d"})),
        Fault("stale size", _stale_size, frozenset({"mul", "truediv", "div"}), only="dynamic"),
        Fault("other strides", _after(("linear", "product", "batched_product", "gelu", "add_relu"), _to_rows), _PRODUCTS | {"gelu", "relu", "add"}),
        Fault("lost mutation", _lost("store"), frozenset({"add_", "mul_", "copy_", "setitem", "batch_norm", "iadd"})),
        Fault("dead code", _dead_code, frozenset({"setitem", "copy_"})),
        Fault("reused buffer", _reused, frozenset({"sigmoid", "tanh"})),
        Fault("wrong kernel", _other_kernel(("silu",), "relu"), frozenset({"silu"})),
        Fault("crash", _abort, _PRODUCTS, only="dynamic"),
        Fault("no gradient function", None, frozenset({"layer_norm"}), at_boundary=_detached),
        Fault("copied view", None, frozenset({"view", "transpose", "t", "reshape"}), at_boundary=_copied),
    )
}  # fmt: skip
