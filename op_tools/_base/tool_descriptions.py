"""The tools as the core describes them: the options of each, and the fields of its rows."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import core
from .core import Error, find_tool, tool_kinds

Names = str | Iterable[str] | None


def joined(names: Any) -> Any:
    """A list of names as the core reads it, a comma-separated string; everything else as it is."""
    return ",".join(map(str, names)) if isinstance(names, Iterable) and not isinstance(names, str) else names


@dataclass(frozen=True)
class Option:
    """An option of a tool."""

    name: str
    type: str  # "bool", "int", "float", "str", "choice", "ints", "names", "path" or "dtypes"
    variable: str  # read when the option is not given; empty: none
    default: str  # for people
    help: str
    choices: tuple[str, ...]

    def to_core(self, value: Any) -> Any:
        """A value as the core takes it: lists of names, paths and dicts of dtypes are strings there."""
        if self.type == "names":
            listed = value if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else [value]
            listed = list(listed)
            for item in listed:
                if not isinstance(item, str):
                    raise Error(f"{self.name}=: {item!r} is not a string, or a list of strings")
            return joined(value if isinstance(value, str) else listed)
        if self.type == "path" and isinstance(value, os.PathLike):
            return os.fspath(value)
        if self.type == "dtypes" and isinstance(value, Mapping):
            return ",".join(f"{before}->{after}" for before, after in value.items())
        if self.type == "ints" and not isinstance(value, str) and isinstance(value, Iterable):
            return list(value)
        return value

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

    @property
    def own_options(self) -> list[Option]:
        """Its options besides those that all tools share."""
        return [option for option in self.options if option.name not in shared_names()]


def _options(described: list[dict[str, Any]]) -> tuple[Option, ...]:
    return tuple(Option(**{**one, "choices": tuple(one["choices"])}) for one in described)


def _rows(described: list[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(Row(row["name"], row["help"], tuple(Column(**one) for one in row["columns"])) for row in described)


@functools.cache
def hook_options() -> tuple[Option, ...]:
    """The options of a HookScope: those that all tools share."""
    return _options(core.hook_options())


@functools.cache
def shared_names() -> frozenset[str]:
    """The names of the options that all tools share."""
    return frozenset(option.name for option in hook_options())


def kinds() -> dict[str, Kind]:
    """The tools that are registered now, by name, in the order of their registration."""
    return {
        declared["name"]: Kind(
            **{**declared, "options": _options(declared["options"]), "rows": _rows(declared["rows"])}
        )
        for declared in tool_kinds()
    }


def enumerations() -> dict[str, list[tuple[str, str]]]:
    """Of strings in rows: token and string of each member, by the name of the enumeration."""
    return core.enumerations()


def further_rows() -> tuple[Row, ...]:
    """Rows of results that are no tool's."""
    return _rows(core.further_rows())


@functools.cache
def kind_of(name: str) -> Kind:
    """The tool of that name.

    Raises:
        op_tools.Error: there is none; the text lists those there are.
    """
    return kinds()[find_tool(name)]


def signature_of(
    options: Iterable[Option], further: Iterable[inspect.Parameter] = (), defaults: Mapping[str, Any] | None = None
) -> inspect.Signature:
    """The keywords as help() and completion show them."""
    return inspect.Signature(
        [
            *further,
            *(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=(defaults or {}).get(option.name),
                    annotation=option.annotation,
                )
                for option in options
            ),
        ]
    )


def arguments_text(options: Iterable[Option]) -> str:
    """The options as the "Args:" section of a docstring has them."""
    return "\n".join(f"    {option.name}: {option.sentence}" for option in options)


@functools.cache
def row_class(row: Row) -> type[Any]:
    """A class for the rows of a tool that has none in this package."""
    return dataclasses.make_dataclass(
        row.name, [(column.name, column.type) for column in row.columns], frozen=True, namespace={"__doc__": row.help}
    )
