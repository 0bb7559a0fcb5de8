"""The facts of a single source file, before the meaning of names of other files is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Value(NamedTuple):
    """The known value of an expression."""

    kind: str
    """"name": the thing that a dotted name names; "instance": an object of the class so named; "tensor"; "mask": a tensor
    of booleans."""
    symbol: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor of any kind."""
        return self.kind in ("tensor", "mask")


TENSOR = Value("tensor")
MASK = Value("mask")


@dataclass(frozen=True)
class Use:
    """A place where a name is used."""

    symbol: str
    """Its full name, as far as a file tells: "torch.nn.functional.relu", "pkg.layers.conv", "torch.Tensor.add_". A method
    of an object of which nothing is known begins with "?."."""
    kind: str
    """"call", "operator" (of Python, on a tensor), "name" (handed on, not called here)."""
    line: int
    end: int
    scope: str
    """The function that it stands in: "pkg.layers.Block.forward", or "pkg.layers.<module>"."""
    position: tuple[int, int] = (0, 0)
    """Line and byte column where the call's closing parenthesis is; (0, 0) if it is no call."""
    positional: int = 0
    keywords: tuple[tuple[str, str], ...] = ()
    """Names of keyword arguments with their source text, when they are constants or names; else ""."""
    open: bool = False
    """It is called with *args or **kwargs: its arguments are not known."""
    detail: str = ""
    """"mask" for tensor[mask] = value."""


@dataclass
class Definition:
    """A function or a class."""

    name: str
    line: int
    end: int
    parameters: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    """Of a class: names that stand for other names (`act = torch.relu`, a method for itself)."""
    is_class: bool = False


@dataclass
class Problem:
    """Something that was not read, and why."""

    file: str
    line: int
    reason: str


@dataclass
class FileFacts:
    """The facts of a file."""

    file: str
    module: str
    is_package: bool = False
    exports: dict[str, str] = field(default_factory=dict)
    """Names of the module, with their meaning."""
    values: list[str] = field(default_factory=list)
    """Other names of the module."""
    stars: list[str] = field(default_factory=list)
    """Modules whose names are all taken over."""
    definitions: dict[str, Definition] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    native: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    """Functions that C++ gives to Python: name, or namespace.name -> (schema or signature, first line, last line)."""
    lines: int = 0
