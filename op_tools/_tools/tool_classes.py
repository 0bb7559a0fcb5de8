"""All tools by their names, those of libraries too."""

from __future__ import annotations

import ctypes
import os

from .._base.core import Error
from .._base.tool_declarations import add_kinds
from .._base.tool_descriptions import kinds
from . import autocompare, blackbox, fallback, invariance, memory_check, observe, overflow, record, time_measure  # noqa: F401  (the classes)
from .tool import Tool


def tool_classes() -> dict[str, type[Tool]]:
    """The tools by the core's names of them ("OpCapture"), in the order of their registration. A tool that has no class
    in Python gets a generated class."""
    by_kind: dict[str, type[Tool]] = {}
    waiting = [Tool]
    while waiting:
        tool_class = waiting.pop(0)
        waiting[:0] = tool_class.__subclasses__()
        if vars(tool_class).get("_kind"):
            by_kind.setdefault(tool_class._kind, tool_class)
    return {
        name: by_kind.get(name)
        or type(name, (Tool,), {"__doc__": f"The tool {name}.", "_kind": name, "__module__": ""})
        for name in kinds()
    }


def load_tools(path: str | os.PathLike[str]) -> list[type[Tool]]:
    """Loads a library with tools of your own, which register themselves (docs: "Add a tool" in CONTRIBUTING.md).

    Args:
        path: the library.

    Returns:
        a class for each tool that it registered; from then on they are also known to apply_feature() by their feature.

    Raises:
        op_tools.Error: it cannot be loaded, or registered no tool.
    """
    before = set(kinds())
    try:
        ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise Error(f"{os.fspath(path)}: {error}") from error
    added = [made for name, made in tool_classes().items() if name not in before]
    if not added:
        raise Error(f"{os.fspath(path)}: it registered no tool that is not there already")
    known = kinds()
    add_kinds(known[name] for name in tool_classes() if name not in before)
    return added
