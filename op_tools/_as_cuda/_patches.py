"""Attributes that are replaced, and given back as they were."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

_ABSENT = object()


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
        """Done by undo(), for what is no attribute."""
        self._undo.append(action)

    def undo(self) -> None:
        """Every attribute is the object that it was, or is gone if it was not there."""
        while self._undo:
            self._undo.pop()()
