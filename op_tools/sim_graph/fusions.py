"""Neighbours as a single step."""

from __future__ import annotations

import operator
from typing import Any

from .steps import Name, Program, Step, renamed


def fuse(program: Program) -> None:
    """All fusions."""
    for first, second, kernel in _PAIRS:
        _fuse_pairs(program, first, second, kernel)
    _scale_softmax(program)


_PAIRS = (("linear", "gelu", "linear_gelu"), ("add", "relu", "add_relu"))
_WITH_BOTH = {"linear_gelu": "linear_and_gelu"}
"""Kernels that give the value between, too: backward reads it."""


def _only_reader(program: Program, step: Step) -> Step | None:
    readers = program.readers(step.result)
    return readers[0] if len(readers) == 1 else None


def _fuse_pairs(program: Program, first: str, second: str, kernel: str) -> None:
    """A step whose only reader is a step of the second kernel, as its first argument; also where a view is between."""
    for step in list(program.steps):
        near = _only_reader(program, step) if step.kernel == first and not step.keywords else None
        view = near if near is not None and _is_view(near) else None
        last = _only_reader(program, view) if view else near
        read = view or step
        if last is None or last.kernel != second or last.args[:1] != (Name(read.result),):
            continue
        arguments = (*step.args, *last.args[1:])
        if not any(program.is_returned(each.result) for each in (step, read)):
            step.kernel, step.args, step.keywords = kernel, arguments, last.keywords
            bypass(program, last, Name(read.result))
        elif kernel in _WITH_BOTH:
            _keep_both(program, step, view, last, _WITH_BOTH[kernel], arguments)


def _keep_both(
    program: Program, step: Step, view: Step | None, last: Step, kernel: str, arguments: tuple[Any, ...]
) -> None:
    """The steps become a kernel, and both its results."""
    both, place = f"{step.result}_both", program.steps.index(step)
    program.steps[place : place + 1] = [
        Step(both, kernel, arguments, last.keywords),
        Step(step.result, "torch", (Name(both), 0), {}, operator.getitem),
    ]
    if view is None:
        last.kernel, last.function, last.args, last.keywords = "torch", operator.getitem, (Name(both), 1), {}
        return
    second = Step(f"{last.result}_flat", "torch", (Name(both), 1), {}, operator.getitem)
    program.steps.insert(program.steps.index(last), second)
    last.kernel, last.function, last.keywords = "torch", view.function, view.keywords
    last.args = renamed(view.args, step.result, Name(second.result))


def _is_view(step: Step) -> bool:
    return str(step.function) == "aten.view.default"


def _scale_softmax(program: Program) -> None:
    """softmax(x * 0.125): attention that is written out."""
    for step in list(program.steps):
        reader = _only_reader(program, step) if step.kernel in ("mul", "div") else None
        if (
            reader is None
            or program.is_returned(step.result)
            or reader.kernel != "softmax"
            or len(step.args) != 2
            or step.keywords
        ):
            continue
        x, number = step.args
        if (
            isinstance(number, int | float)
            and reader.args[0] == Name(step.result)
            and reader.args[2:] in ((), (False,))
        ):
            scale = float(number) if step.kernel == "mul" else 1.0 / number
            reader.kernel, reader.args = "scaled_softmax", (x, scale, reader.args[1])
            program.steps.remove(step)


def drop_unread(program: Program) -> None:
    """Steps whose value nothing reads, but for those that write an input."""
    for step in reversed(list(program.steps)):
        is_pure = step.kernel != "store" and (step.function is None or not _writes(step))
        if is_pure and not program.readers(step.result) and not program.is_returned(step.result):
            program.steps.remove(step)


def _writes(step: Step) -> bool:
    schema = getattr(step.function, "_schema", None)
    return schema is None or bool(schema.is_mutable)


def bypass(program: Program, step: Step, value: object) -> None:
    """Takes a step out; its readers get another value."""
    program.steps.remove(step)
    for other in program.steps:
        other.args = renamed(other.args, step.result, value)
        other.keywords = renamed(other.keywords, step.result, value)
    program.outputs = renamed(program.outputs, step.result, value)
