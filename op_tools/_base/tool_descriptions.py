"""The tools as the core describes them: the options of each, and the fields of its rows."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

from . import core
from .core import Error, find_tool, tool_kinds
from .tool_declarations import Column, Kind, Option, Row, options_of

Names = str | Iterable[str] | None


def joined(names: Any) -> Any:
    """A list of names as the core reads it, a comma-separated string; everything else as it is."""
    return ",".join(map(str, names)) if isinstance(names, Iterable) and not isinstance(names, str) else names


def for_core(option: Option, value: Any) -> Any:
    """A value of an option as the core takes it: lists of names, paths and dicts of dtypes are strings there."""
    if option.type == "names":
        listed = value if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else [value]
        listed = list(listed)
        for item in listed:
            if not isinstance(item, str):
                raise Error(f"{option.name}=: {item!r} is not a string, or a list of strings")
        return joined(value if isinstance(value, str) else listed)
    if option.type == "path" and isinstance(value, os.PathLike):
        return os.fspath(value)
    if option.type == "dtypes" and isinstance(value, Mapping):
        return ",".join(f"{before}->{after}" for before, after in value.items())
    if option.type == "ints" and not isinstance(value, str) and isinstance(value, Iterable):
        return list(value)
    return value


def _rows(described: list[dict[str, Any]]) -> tuple[Row, ...]:
    return tuple(Row(row["name"], row["help"], tuple(Column(**one) for one in row["columns"])) for row in described)


@functools.cache
def hook_options() -> tuple[Option, ...]:
    """The options of a HookScope: those that all tools share."""
    return options_of(core.hook_options())


@functools.cache
def shared_names() -> frozenset[str]:
    """The names of the options that all tools share."""
    return frozenset(option.name for option in hook_options())


def kinds() -> dict[str, Kind]:
    """The tools that are registered now, by name, in the order of their registration."""
    return {
        declared["name"]: Kind(
            **{
                **declared,
                "options": options_of(declared["options"]),
                "rows": _rows(declared["rows"]),
                "shared": shared_names(),
            }
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
