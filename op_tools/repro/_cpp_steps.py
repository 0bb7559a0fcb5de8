"""A function of torch that is written in Python, as the dispatcher's operators that it calls: a C++ program can call these."""

from __future__ import annotations

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .._base.captured_calls import tensors_of
from .._base.core import Error
from .._torch.python_functions import find
from ._saved import Saved


@dataclass(frozen=True)
class Reference:
    """A value that the program has: an input, or a result of an earlier step."""

    text: str
    """As an IValue, or as a value that becomes an IValue."""
    tensor: str
    """As a tensor."""


@dataclass(frozen=True)
class Step:
    """A call of an operator."""

    target: torch._ops.OpOverload
    values: tuple[Any, ...]
    """By schema position; a Reference for values that the program has."""


def steps_of(saved: Saved) -> tuple[list[Step], list[Reference]]:
    """The operators behind a call, with autograd and autocast still to come; and its results.

    Raises:
        op_tools.Error: the function may not be called by name, or does more than operators do.
    """
    function = find(saved.call.name)
    if function is None:
        raise Error(f"{saved.call.name} has no form in a C++ program here")
    tensors = [*tensors_of(saved.args), *tensors_of(saved.kwargs)]
    steps: list[Step] = []
    known: dict[Any, Any] = {}  # a Reference for each node
    inputs = (Reference(f"x[{number}]", f"x[{number}]") for number in range(len(tensors)))
    for node in _trace(function, saved, tensors).nodes:
        arguments = torch.fx.node.map_arg(node.args, known.__getitem__)
        if node.op == "placeholder":
            known[node] = next(inputs)
        elif node.op == "output":
            leaves = torch.utils._pytree.tree_leaves(arguments)
            return steps, [one for one in leaves if isinstance(one, Reference)]
        elif node.target is operator.getitem:
            known[node] = _item(known[node.args[0]], node.args[0], node.args[1])
        elif isinstance(node.target, torch._ops.OpOverload):
            options = torch.fx.node.map_arg(node.kwargs, known.__getitem__)
            known[node] = Reference(f"v{len(steps)}[0]", f"v{len(steps)}[0].toTensor()")
            steps.append(Step(node.target, _by_position(node.target, arguments, options)))
        else:
            raise Error(f"{saved.call.name} calls {node.target}, which has no form in a C++ program here")
    raise AssertionError("a graph has an output")


def _trace(function: Any, saved: Saved, tensors: list[torch.Tensor]) -> torch.fx.Graph:
    def call(*replaced: torch.Tensor) -> Any:
        def chosen(leaf: Any) -> Any:
            return (
                replaced[saved.index[id(leaf)]] if isinstance(leaf, torch.Tensor) and id(leaf) in saved.index else leaf
            )

        args, kwargs = torch.utils._pytree.tree_map(chosen, (saved.args, saved.kwargs))
        return function(*args, **kwargs)

    copies = copy.deepcopy([one.detach() for one in tensors])  # the function may change its inputs
    try:
        return make_fx(call, pre_dispatch=True)(*copies).graph
    except Exception as error:
        raise Error(f"{saved.call.name} has no form in a C++ program here: {error}") from None


def _item(of: Reference, node: torch.fx.Node, number: int) -> Reference:
    """One of several results: each has a place of its own, those of a list share a place."""
    assert isinstance(node.target, torch._ops.OpOverload)
    own = len(node.target._schema.returns) > 1
    text = f"{of.text.removesuffix('[0]')}[{number}]" if own else f"{of.text}.toListRef()[{number}]"
    return Reference(text, f"{text}.toTensor()")


def _by_position(target: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[Any, ...]:
    rest = target._schema.arguments[len(args) :]
    return (*args, *(kwargs.get(one.name, one.default_value) for one in rest))
