"""Safe rewrites of rules, as a unified diff. No file is changed."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from pathlib import Path

from ._rules import Hit


def unified_diff(path: str, file: str, hits: Iterable[Hit]) -> str:
    """The diff of a file, for `patch -p1` in the analysed folder; "" if no rewrite is safe.

    Args:
        path: where the file is.
        file: its name below the folder.
        hits: the hits of rules in it.
    """
    try:
        before = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    lines = before.splitlines(keepends=True)
    by_place: dict[tuple[int, int], list[str]] = {}
    for hit in hits:
        fix = hit.rule.get("fix", {})
        if fix.get("safe") and fix.get("keyword") and hit.position != (0, 0):
            by_place.setdefault(hit.position, []).append(fix["keyword"])
    for (line, column), keywords in sorted(by_place.items(), reverse=True):
        if line <= len(lines):
            changed = _inserted(lines, line, column, ", ".join(keywords))
            if _parses(changed):
                lines = changed
    after = "".join(lines)
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{file}", f"b/{file}"
        )
    )


def _inserted(lines: list[str], line: int, column: int, text: str) -> list[str]:
    """With a comma before it, or without after a comma or an empty call: whichever is Python."""
    content = lines[line - 1].encode("utf-8")
    for separator in (", ", "", " "):
        changed = content[:column] + (separator + text).encode("utf-8") + content[column:]
        fixed = [*lines[: line - 1], changed.decode("utf-8"), *lines[line:]]
        if content[column : column + 1] == b")" and _parses(fixed):
            return fixed
    return lines


def _parses(lines: list[str]) -> bool:
    try:
        ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
