"""The tools as they are declared, for the command line: read from a file, so that help and errors of usage need no core and no torch.

tools/generate_declared.py makes the file of the declarations in C++. load_tools() enters the tools of libraries.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("declared_tools.json")
FAIL_ON: dict[str, tuple[str, ...]] = {"wrong": (), "variant": ("OpInvariance",)}
"""The subject of a run's exit status (`--fail-on`), and the tools that decide it; none: all that judge."""
CONFIG_FILE = "op_tools.toml"
"""Tools and options for op-tools run and op-tools env, where it is in the working directory."""


@dataclass(frozen=True)
class Option:
    """An option of a tool."""

    name: str
    type: str  # "bool", "int", "float", "str", "choice", "ints", "names", "path" or "dtypes"
    variable: str  # read when the option is not given; empty: none
    default: str  # for people
    help: str
    choices: tuple[str, ...]

    @property
    def annotation(self) -> str:
        """Its type as Python writes it."""
        single = {
            "bool": "bool",
            "int": "int",
            "float": "float",
            "str": "str",
            "choice": f"Literal[{', '.join(map(repr, self.choices)).replace(chr(39), chr(34))}]",
            "ints": "Iterable[int]",
            "names": "str | Iterable[str]",
            "path": "str | os.PathLike[str]",
            "dtypes": "str | Mapping[torch.dtype, torch.dtype]",
        }[self.type]
        return f"{single} | None"

    @property
    def sentence(self) -> str:
        """Help, default and variable in a line."""
        return f"{self.help}. None: {self.variable + ', else ' if self.variable else ''}{self.default}."


@dataclass(frozen=True)
class Column:
    """A column of a tool's rows."""

    name: str
    type: str
    help: str


@dataclass(frozen=True)
class Row:
    """The fields of a row of a tool's result."""

    name: str
    help: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Kind:
    """A tool."""

    name: str  # "OpCapture"
    feature: str  # its word in apply_feature: "op_capture"
    flag: str  # its word on the command line and in OP_TOOLS: "capture"
    prefix: str  # of the names of its filter variables: "OP_CAPTURE"
    options: tuple[Option, ...]
    rows: tuple[Row, ...]
    shared: frozenset[str]
    """The names of those of its options that all tools share."""
    summary: str = ""
    """The first line of its class's docstring, where that is known."""

    @property
    def own_options(self) -> list[Option]:
        """Its options besides those that all tools share."""
        return [option for option in self.options if option.name not in self.shared]


def options_of(described: Iterable[Mapping[str, Any]]) -> tuple[Option, ...]:
    """Options as the core describes them."""
    return tuple(Option(**{**option, "choices": tuple(option["choices"])}) for option in described)


@functools.cache
def _declarations() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


@functools.cache
def declared_shared_options() -> tuple[Option, ...]:
    """The options that all tools share."""
    return options_of(_declarations()["shared"])


_of_libraries: dict[str, Kind] = {}


def add_kinds(kinds: Iterable[Kind]) -> None:
    """Enters tools of a library. Any thread."""
    _of_libraries.update({kind.name: kind for kind in kinds})


def declared_kinds() -> dict[str, Kind]:
    """The tools by name, in the order of their registration, those of libraries last; their rows are left out."""
    shared = frozenset(option.name for option in declared_shared_options())
    declared = (
        Kind(**{**kind, "options": options_of(kind["options"]), "rows": (), "shared": shared})
        for kind in _declarations()["tools"]
    )
    return {kind.name: kind for kind in declared} | _of_libraries
