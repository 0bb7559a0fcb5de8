"""The compiler's own form of a graph: steps in their order, each with a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Name:
    """The value of a step or of an input."""

    text: str


@dataclass
class Step:
    """A call of a kernel."""

    result: str
    kernel: str
    args: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    """torch's operator, for a step without a kernel of the compiler's."""

    @property
    def inputs(self) -> list[str]:
        """The names of values that it reads."""
        return list(dict.fromkeys(name.text for name in names_in((self.args, self.keywords))))


@dataclass
class Program:
    """A graph as steps."""

    inputs: list[str]
    steps: list[Step]
    outputs: Any
    constants: dict[str, Any] = field(default_factory=dict)
    """Tensors of the graph's own, by name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Symbolic sizes by their names, as they were when it was compiled."""

    def readers(self, name: str) -> list[Step]:
        """The steps that read a value."""
        return [step for step in self.steps if name in step.inputs]

    def is_returned(self, name: str) -> bool:
        return any(output.text == name for output in names_in(self.outputs))


def names_in(value: Any) -> Iterator[Name]:
    """All names in arguments, in their order."""
    if isinstance(value, Name):
        yield value
    elif isinstance(value, dict):
        yield from names_in(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from names_in(item)


def renamed(value: Any, old: str, new: Any) -> Any:
    """Arguments with another value in the place of a name."""
    if isinstance(value, Name):
        return new if value.text == old else value
    if isinstance(value, dict):
        return {key: renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(renamed(item, old, new) for item in value)
    return value
