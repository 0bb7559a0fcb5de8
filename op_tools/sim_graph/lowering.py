"""From the compiler's steps to calls of torch's operators on registers, which a single call in C++ runs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch.fx.experimental.proxy_tensor import make_fx

from .._sim import GraphProgram, Register
from .steps import Name, Program

# Of sizes: torch's operators on numbers; their overloads go by the types of the arguments.
_OF_NUMBERS: dict[Any, str] = {
    operator.add: "aten::add", operator.sub: "aten::sub", operator.mul: "aten::mul", operator.floordiv: "aten::floordiv",
    operator.truediv: "aten::div", operator.mod: "aten::remainder", operator.neg: "aten::neg", operator.pow: "aten::pow",
    operator.eq: "aten::eq", operator.ne: "aten::ne", operator.lt: "aten::lt", operator.le: "aten::le", operator.gt: "aten::gt",
    operator.ge: "aten::ge", torch.sym_max: "prim::max", torch.sym_min: "prim::min", torch.sym_float: "aten::Float",
    torch.sym_int: "aten::Int",
}  # fmt: skip


@dataclass
class Call:
    """Of an operator."""

    name: str
    overload: str
    args: tuple[Any, ...]
    """Constants, and Register in the place of values."""
    kwargs: dict[str, Any]
    results: list[int]
    """Registers, one for each result."""
    dead: list[int] = field(default_factory=list)
    """Registers that nothing reads behind it."""


@dataclass
class Lowered:
    """Calls in their order."""

    constants: list[torch.Tensor]
    """The program's last inputs."""
    inputs: int = 0
    """Registers of the inputs, the first ones."""
    registers: int = 0
    calls: list[Call] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The same for graphs with the same calls, whatever their constants are."""
        return "\n".join(map(repr, [self.inputs, *self.calls, self.outputs]))

    def compiled(self) -> GraphProgram:
        """The program that runs it."""
        return GraphProgram(self.inputs, self.registers, list(map(_plain_call, self.calls)), self.outputs)


def _plain_call(call: Call) -> tuple[Any, ...]:
    return (call.name, call.overload, call.args, call.kwargs, call.results, call.dead)


def lower(program: Program, kernels: dict[str, Callable[..., Any]], examples: Sequence[Any]) -> Lowered:
    """The operators that the steps call.

    Args:
        program: the steps.
        kernels: functions of torch's operators, by name.
        examples: an input each, without memory: fake tensors, and sizes.

    Raises:
        NotImplementedError: a step is no operator of tensors or of sizes: it takes functions.
    """

    def run(*values: Any) -> list[Any]:
        known = dict(zip([*program.inputs, *program.constants], values, strict=True))
        for step in program.steps:
            function = step.function or kernels[step.kernel]
            known[step.result] = function(*_in_place(step.args, known), **_in_place(step.keywords, known))
        return list(_in_place(program.outputs, known))

    for name, constant in program.constants.items():
        if not isinstance(constant, torch.Tensor):
            raise NotImplementedError(f"sim_graph has no operators that take functions (torch.cond): {name}")
    constants = list(program.constants.values())
    fake: Any = detect_fake_mode(list(examples))
    with fake, enable_python_dispatcher():
        graph = make_fx(run)(*examples, *map(fake.from_tensor, constants)).graph
    return _lowered(graph, constants)


def _in_place(value: Any, known: dict[str, Any]) -> Any:
    """Arguments with values in the place of names."""
    if isinstance(value, Name):
        return known[value.text]
    if isinstance(value, dict):
        return {key: _in_place(item, known) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_in_place(item, known) for item in value)
    return value


def _lowered(graph: fx.Graph, constants: list[torch.Tensor]) -> Lowered:
    lowered = Lowered(constants)
    places: dict[fx.Node, list[int]] = {}  # the registers of a node's results
    readers: dict[int, Call] = {}

    def with_registers(value: Any, call: Call | None) -> Any:
        def register_of(node: fx.Node) -> Any:
            (number,) = places[node]
            if call is not None:
                readers[number] = call
            return Register(number)

        return fx.node.map_arg(value, register_of)

    def new_registers(count: int) -> list[int]:
        lowered.registers += count
        return list(range(lowered.registers - count, lowered.registers))

    for node in graph.nodes:
        if node.op == "placeholder":
            places[node] = new_registers(1)
            lowered.inputs += 1
        elif node.op == "output":
            lowered.outputs = list(with_registers(node.args[0], None))
        elif node.target is operator.getitem and len(places[node.args[0]]) > 1:  # of an operator with several results
            places[node] = [places[node.args[0]][node.args[1]]]
        else:
            name, overload, count = _called_operator(node)
            call = Call(name, overload, (), {}, new_registers(count))
            call.args, call.kwargs = (with_registers(each, call) for each in (node.args, node.kwargs))
            readers |= dict.fromkeys(call.results, call)  # results that nothing reads
            places[node] = call.results
            lowered.calls.append(call)
    kept = {output.number for output in lowered.outputs if isinstance(output, Register)}
    for number, call in readers.items():
        if number not in kept:
            call.dead.append(number)
    return lowered


def _called_operator(node: fx.Node) -> tuple[str, str, int]:
    """Its name, its overload, and how many results it has."""
    if isinstance(node.target, torch._ops.OpOverload):
        schema = node.target._schema
        return schema.name, schema.overload_name, len(schema.returns)
    if node.target is operator.getitem:  # of a list
        return "aten::__getitem__", "t", 1
    name = _OF_NUMBERS.get(node.target)
    kinds = [_number_type(argument) for argument in node.args]
    if name is None or None in kinds:
        raise NotImplementedError(f"sim_graph has no operator for {node.target} of {node.args}")
    return name, _overload(name, kinds), 1


def _number_type(argument: Any) -> str | None:
    value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
    if isinstance(value, int | torch.SymInt):
        return "int"
    return "float" if isinstance(value, float | torch.SymFloat) else None


def _overload(name: str, kinds: list[str | None]) -> str:
    if name in ("aten::Float", "aten::Int"):
        return "Scalar"
    return str(kinds[0]) if len(set(kinds)) == 1 else "_".join(map(str, kinds))
