"""Attributes that are replaced, and given back as they were."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, MutableMapping
from functools import partial
from typing import Any

_ABSENT = object()


def with_changed(function: Callable[..., Any], changes: Mapping[str, Callable[[Any], Any]]) -> Callable[..., Any]:
    """`function` with arguments that `changes` replaces, by their names; also where they have their default value."""
    signature = inspect.signature(function)
    known = {name: change for name, change in changes.items() if name in signature.parameters}

    @functools.wraps(function)
    def changed(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        for name, change in known.items():
            before = bound.arguments.get(name, signature.parameters[name].default)
            if (after := change(before)) is not before:
                bound.arguments[name] = after
        return function(*bound.args, **bound.kwargs)

    return changed


class Patches:
    """Replaced attributes and entries of dicts."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute of a module or class until undo()."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append(partial(delattr, owner, name) if before is _ABSENT else partial(setattr, owner, name, before))
        setattr(owner, name, value)

    def set_item(self, owner: MutableMapping[str, Any], name: str, value: Any) -> None:
        """Replaces an entry of a dict until undo()."""
        before = owner.get(name, _ABSENT)
        self._undo.append(
            partial(owner.pop, name, None) if before is _ABSENT else partial(owner.__setitem__, name, before)
        )
        owner[name] = value

    def on_undo(self, action: Callable[[], Any]) -> None:
        """Done by undo(), for changes of other kinds."""
        self._undo.append(action)

    def undo(self) -> None:
        """Every attribute is the object that it was, or is gone if it was not there."""
        while self._undo:
            self._undo.pop()()
