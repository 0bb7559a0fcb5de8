"""Parts of op_tools that other packages bring: commands, formats and tables. They are found by the packages' entry points, when a
command or a function asks for them, and never at an import.

The package op_tools_compat of this repository is installed by the path of its folder, which the message about a missing part names.
"""

from __future__ import annotations

import enum
from importlib.metadata import EntryPoint, entry_points
from typing import Any

READ_FORMATS = ("troubleshooter", "msprobe")
"""Formats of op_tools.formats itself."""
WRITTEN_FORMATS = ("msprobe", "troubleshooter", "npy")


class MissingPartError(Exception):
    """The package that has a part is not installed, or cannot be imported."""


class Group(str, enum.Enum):
    """A kind of parts: the group of their entry points. The value of each is:"""

    COMMANDS = "op_tools.commands"
    """A function that registers the command, as `add` of the files of op_tools/_commands."""
    READERS = "op_tools.readers"
    """The files of a format, and its reader, as in `_FORMATS` of op_tools/formats."""
    WRITERS = "op_tools.writers"
    """A function that writes captures, as in `_WRITERS` of op_tools/formats/_export.py."""
    TABLES = "op_tools.tables"
    """A function that writes a comparison of two runs to a path."""


_OF_COMPAT: dict[Group, tuple[str, ...]] = {
    Group.COMMANDS: ("convert",),
    Group.READERS: ("h5",),
    Group.WRITERS: ("h5",),
    Group.TABLES: ("msprobe", "troubleshooter"),
}


def _installed(group: Group) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=group.value)}


def installed_parts(group: Group) -> tuple[str, ...]:
    """The names of the parts that are installed."""
    return tuple(sorted(_installed(group)))


def part_names(group: Group) -> tuple[str, ...]:
    """The names of the parts that are installed, and of those of op_tools_compat, installed or not."""
    return tuple(sorted({*_installed(group), *_OF_COMPAT[group]}))


def missing_parts(group: Group, before: str = "") -> str:
    """Which parts of op_tools_compat are not installed, and how to install them, behind the text `before`; "" if they are."""
    installed = _installed(group)
    names = [name for name in _OF_COMPAT[group] if name not in installed]
    return before + _how_to_install(" and ".join(names)) if names else ""


def _how_to_install(names: str) -> str:
    return (
        f"{names}: in the package op_tools_compat, which is not installed: pip install ./compat, in the checkout of "
        "op_tools from which op_tools was installed"
    )


def load_part(group: Group, name: str) -> Any:
    """The value of a part's entry point.

    Raises:
        op_tools.Error: the package that has it is not installed, or cannot be imported.
    """
    try:
        return part(group, name)
    except MissingPartError as missing:
        from .core import Error

        raise Error(str(missing)) from None


def part(group: Group, name: str) -> Any:
    """As load_part(), for callers that need no core.

    Raises:
        MissingPartError: the package that has it is not installed, or cannot be imported.
    """
    entry = _installed(group).get(name)
    if entry is None:
        raise MissingPartError(_how_to_install(name))
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.module
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise MissingPartError(
            f"{name}: the package {package} cannot be loaded: {error}; install it again, with its requirements, from the "
            "checkout from which op_tools was installed"
        ) from None
