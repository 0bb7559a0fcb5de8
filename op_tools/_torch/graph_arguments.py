"""Arguments of a saved graph's nodes: as values, as JSON, as text of Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from .._base.core import Error


@dataclass(frozen=True)
class Ref:
    """The value of a node, or of an input, as an argument of a node."""

    name: str


def refs_in(value: Any) -> Iterator[Ref]:
    """All values that arguments name, in order."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, slice):
        yield from refs_in((value.start, value.stop, value.step))
    elif isinstance(value, dict):
        yield from refs_in(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from refs_in(item)


def mapped(value: Any, of_ref: Callable[[Ref], Any]) -> Any:
    if isinstance(value, Ref):
        return of_ref(value)
    if isinstance(value, slice):
        return slice(*(mapped(item, of_ref) for item in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: mapped(item, of_ref) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, of_ref) for item in value)
    return value


def argument_of_fx(value: Any) -> Any:
    """An argument of a node, with Ref in the place of nodes.

    Raises:
        op_tools.Error: it has no form in a file.
    """
    if isinstance(value, fx.Node):
        return Ref(value.name)
    if isinstance(value, slice):
        return slice(*map(argument_of_fx, (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {str(key): argument_of_fx(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(argument_of_fx, value))
    if isinstance(value, list):
        return list(map(argument_of_fx, value))
    if isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat):
        raise Error("a size that is no node has no form in a file")
    argument_to_json(value)
    return value


_NAMED = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def argument_to_json(value: Any) -> Any:
    """Raises Error for a value without a form in a file."""
    if isinstance(value, Ref):
        return {"node": value.name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [argument_to_json(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [argument_to_json(item) for item in value]}
    if isinstance(value, slice):
        return {"slice": [argument_to_json(item) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, dict):
        return {"dict": [[key, argument_to_json(item)] for key, item in value.items()]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, kind in _NAMED.items():
        if isinstance(value, kind):
            return {name: str(value)}
    raise Error(f"{type(value).__name__} has no form in a file")


def argument_from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [argument_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "node":
        return Ref(str(content))
    if kind == "tuple":
        return tuple(map(argument_from_json, content))
    if kind == "slice":
        return slice(*map(argument_from_json, content))
    if kind == "dict":
        return {str(key): argument_from_json(item) for key, item in content}
    if kind == "ellipsis":
        return Ellipsis
    if kind == "complex":
        return complex(*content)
    if kind == "float":
        return float(content)
    if kind == "device":
        return torch.device(content)
    return named(str(content), _NAMED[kind])


def named(text: str, kind: type) -> Any:
    """The dtype, layout or memory format of a file's text: "torch.float32".

    Raises:
        ValueError: it is none.
    """
    value = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(value, kind):
        raise ValueError(f"{text!r} is no {kind.__name__}")
    return value


def argument_text(value: Any, names: Mapping[str, str]) -> str:
    """A value as text of Python."""

    def of(item: Any) -> str:
        return argument_text(item, names)

    if isinstance(value, Ref):
        return names[value.name]
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, slice):
        return f"slice({of(value.start)}, {of(value.stop)}, {of(value.step)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{of(item)}, " for item in value).removesuffix(" ") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(of, value)) + "]"
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    return str(value) if isinstance(value, torch.dtype | torch.layout | torch.memory_format) else repr(value)
