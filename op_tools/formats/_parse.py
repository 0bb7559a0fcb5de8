"""The common part of the readers: numbers, stack lines, arguments by their places, and modules that are functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .._base.core import Error
from ._model import ForeignTensor, Missing

# Modules whose forward is a function of their input and parameters and of nothing else that a constructor sets.
_MODULE_FUNCTIONS = {
    "Linear": ("linear", ("weight", "bias")),
    "ReLU": ("relu", ()),
    "ReLU6": ("relu6", ()),
    "SELU": ("selu", ()),
    "SiLU": ("silu", ()),
    "Mish": ("mish", ()),
    "Hardswish": ("hardswish", ()),
    "Hardsigmoid": ("hardsigmoid", ()),
    "LogSigmoid": ("logsigmoid", ()),
    "Softsign": ("softsign", ()),
    "Tanhshrink": ("tanhshrink", ()),
    "Sigmoid": ("sigmoid", ()),
    "Tanh": ("tanh", ()),
}
_STACK_LINE = re.compile(r"File (?P<file>.+), line (?P<line>\d+), in (?P<function>.+?)(?:, \n|,? *$)", re.DOTALL)
MODULE = "a call of a whole module, whose arguments and parameters the dump does not hold"


def number(value: Any) -> float | None:
    """A statistic: a number, or a string as " inf"; None for anything else."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return None


def shape_of(value: Any, where: str) -> tuple[int, ...]:
    """A shape.

    Raises:
        op_tools.Error: it is no list of sizes.
    """
    is_list = isinstance(value, (list, tuple)) and len(value) <= 64
    if not is_list or not all(type(size) is int and 0 <= size < 2**63 for size in value):
        raise Error(f"{where}: the shape is {value!r:.80}, expected a list of sizes")
    return tuple(value)


def stack_lines(lines: Any) -> tuple[str, ...]:
    """Lines of Python's form (File a.py, line 3, in f) as "a.py:3 f", others as they are; without torch's own."""
    if not isinstance(lines, (list, tuple)):
        return ()
    parsed = [_STACK_LINE.match(line) or line for line in lines if isinstance(line, str)]
    named = [one if isinstance(one, str) else f"{one['file']}:{one['line']} {one['function']}" for one in parsed]
    return tuple([one for one in named if "site-packages/torch/" not in one] or named)


def by_place(items: Iterable[tuple[tuple[int, ...], Any]], why: str) -> tuple[Any, ...]:
    """Arguments by their places: (0,) is the first argument, (1, 0) the first of a list.

    Args:
        items: places and arguments.
        why: why an argument between others is missing.
    """
    tree: dict[int, Any] = {}
    for place, value in items:
        node = tree
        for index in place[:-1]:
            below = node.get(index)
            node[index] = node = below if isinstance(below, dict) else {}
        node[place[-1]] = value

    def listed(node: Any, kind: type) -> Any:
        if not isinstance(node, dict):
            return node
        if max(node) > 100_000:
            return Missing(why)
        return kind(listed(node[i], list) if i in node else Missing(why) for i in range(max(node) + 1))

    return listed(tree, tuple) if tree else ()


def function_of_module(kind: str, parameters: dict[str, ForeignTensor]) -> tuple[str, list[Any]]:
    """The function that a module's forward is, and its arguments after the input; ("", []) if it is none.

    Args:
        kind: the module's class: "Linear".
        parameters: those that the dump holds.
    """
    function, names = _MODULE_FUNCTIONS.get(kind, ("", ()))
    if not function or (names and names[0] not in parameters):
        return "", []
    if set(parameters) - set(names):
        return "", []
    prefix = "torch." if function in ("sigmoid", "tanh") else "torch.nn.functional."
    return prefix + function, [parameters[name] for name in names if name in parameters]
