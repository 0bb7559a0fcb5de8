"""Checks of content that people write: objects in files, and words of options. Each raises op_tools.Error, whose text begins
with the place of the fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .core import Error

Kinds = Mapping[str, type | tuple[type, ...]]


def checked_object(where: str, content: Any, kinds: Kinds, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Content as an object.

    Args:
        where: the place of the content.
        content: as a file has it.
        kinds: the type of each key that there may be.
        needed: keys that have to be there, with something in them.
    """
    if not isinstance(content, dict):
        raise Error(f"{where}: is no object with {', '.join(kinds)}")
    for key, value in content.items():
        kind = kinds.get(key)
        if kind is None:
            raise Error(f"{where}: unknown {key!r}; there are {', '.join(kinds)}")
        if not isinstance(value, kind):
            names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
            raise Error(f"{where}: {key} is {value!r:.80}; give {names}")
    for key in needed:
        if not content.get(key) or not str(content[key]).strip():
            raise Error(f"{where}: {key} is missing")
    return content


def checked_choice(where: str, word: Any, known: Iterable[str]) -> str:
    """A word of those that are known, among which "" means nothing."""
    allowed = list(known)
    if word not in allowed:
        *others, last = filter(None, allowed)
        raise Error(f"{where}: {word!r} is not allowed; give {', '.join(others)}{' or ' if others else ''}{last}")
    return str(word)


def checked_pattern(where: str, text: Any, flags: int = 0) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text, flags)
    except (re.error, TypeError) as error:
        raise Error(f"{where}: {text!r} is no regular expression: {error}") from None
