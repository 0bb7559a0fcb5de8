"""Finds and reads source files. An unreadable file is a problem with a reason; nothing is left out in silence."""

from __future__ import annotations

import ast
import io
import json
import os
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ._file_facts import FileFacts, Problem
from ._native import scan_native
from ._scan import scan

_PYTHON = frozenset((".py", ".pyw"))
_NATIVE = frozenset((".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hpp", ".mm"))
_NOTEBOOK = ".ipynb"
# Folders in which no program's sources are; docs/analyse.md names them.
LEFT_OUT = frozenset((".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints"))
_LARGEST = 50 * 1024 * 1024


@dataclass(frozen=True)
class Source:
    """A file to read."""

    path: str
    file: str
    """As reports name it: the path below the input."""
    module: str
    is_package: bool = False


def find_sources(root: Path) -> tuple[list[Source], list[Problem]]:
    """The source files of a folder, or a single file, in the order of their names.

    Args:
        root: a folder or a file. A folder with an `__init__.py` is a package, and its name begins its modules' names.
    """
    root = root.resolve()
    if root.is_file():
        return [_source(root, root.name, root.stem, [])], []
    package = [root.name] if (root / "__init__.py").is_file() else []
    problems: list[Problem] = []
    sources: list[Source] = []
    for path, relative in _walk(root, problems):
        suffix = path.suffix.lower()
        if suffix in _PYTHON or suffix in _NATIVE or suffix == _NOTEBOOK:
            sources.append(_source(path, relative, path.stem, [*package, *Path(relative).parts[:-1]]))
    return sources, problems


def _source(path: Path, relative: str, stem: str, place: list[str]) -> Source:
    is_package = stem == "__init__" and path.suffix in _PYTHON
    return Source(str(path), relative, ".".join([*place, *([] if is_package else [stem])]) or stem, is_package)


def _walk(root: Path, problems: list[Problem]) -> Iterator[tuple[Path, str]]:
    """Regular files below a folder, sorted. Links are followed; a folder is entered once, whatever leads to it."""
    entered: set[tuple[int, int]] = set()
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        relative = folder.relative_to(root).as_posix()
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda one: one.name)
        except OSError as error:
            problems.append(Problem(_readable(relative), 0, f"the folder cannot be read: {error.strerror}"))
            continue
        if (status.st_dev, status.st_ino) in entered:
            problems.append(Problem(_readable(relative), 0, "a link to a folder that was read already"))
            continue
        entered.add((status.st_dev, status.st_ino))
        folders = []
        for entry in entries:
            path = Path(entry.path)
            name = _readable(path.relative_to(root).as_posix())
            try:
                mode = entry.stat().st_mode
            except OSError as error:
                problems.append(Problem(name, 0, f"a link that leads nowhere, or no access: {error.strerror}"))
                continue
            if stat.S_ISDIR(mode):
                if entry.name not in LEFT_OUT:
                    folders.append(path)
            elif stat.S_ISREG(mode):
                yield path, path.relative_to(root).as_posix()
            elif path.suffix.lower() in _PYTHON | _NATIVE | {_NOTEBOOK}:
                problems.append(Problem(name, 0, "not a regular file"))
        waiting += reversed(folders)


def _readable(name: str) -> str:
    """A file's name as text; bytes that are no UTF-8 as \\x..."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def read_facts(source: Source) -> FileFacts:
    """The facts of a file. Never raises for a file's content: faults are among its problems."""
    facts = FileFacts(_readable(source.file), source.module, source.is_package)
    suffix = Path(source.path).suffix.lower()
    try:
        if Path(source.path).stat().st_size > _LARGEST:
            raise _UnreadableError(0, "larger than 50 MB")
        content = Path(source.path).read_bytes()
        if suffix in _NATIVE:
            text = content.decode("utf-8", "replace")
            facts.native = scan_native(text)
            facts.lines = text.count("\n") + 1
            return facts
        cell_problems: list[Problem] = []
        text = _notebook(content, facts.file, cell_problems) if suffix == _NOTEBOOK else _decoded(content)
        scanned = _scanned(text, facts, source)
        scanned.problems = cell_problems
        scanned.lines = text.count("\n") + 1
        return scanned
    except _UnreadableError as problem:
        facts.problems.append(Problem(facts.file, problem.line, problem.reason))
    except OSError as error:
        facts.problems.append(Problem(facts.file, 0, error.strerror or str(error)))
    except (RecursionError, MemoryError):
        facts.problems.append(Problem(facts.file, 0, "expressions are nested too deeply"))
    return facts


class _UnreadableError(Exception):
    """A file's content does not fit its name."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason


def _scanned(text: str, facts: FileFacts, source: Source) -> FileFacts:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 8000))
    try:
        return scan(_parsed(text), facts.file, source.module, source.is_package)
    finally:
        sys.setrecursionlimit(before)


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        raise _UnreadableError(error.lineno or 0, f"syntax error: {error.msg}") from None
    except ValueError as error:  # null bytes, in older Pythons
        raise _UnreadableError(0, f"syntax error: {error}") from None


def _decoded(content: bytes) -> str:
    """As Python decodes a source file: by its declaration, else UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return io.TextIOWrapper(io.BytesIO(content), encoding).read()
    except (SyntaxError, LookupError) as error:
        raise _UnreadableError(1, f"encoding: {error}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _UnreadableError(line, f"encoding: not {error.encoding}: {error.reason}") from None


def _notebook(content: bytes, file: str, problems: list[Problem]) -> str:
    """The code cells of a notebook, in order. A cell that is no Python is empty lines, and a problem."""
    try:
        document = json.loads(content)
        cells = document["cells"] if "cells" in document else document["worksheets"][0]["cells"]
        texts = [_cell_text(cell) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise _UnreadableError(0, f"not a notebook: {type(error).__name__}") from None
    kept = []
    line = 1
    for number, text in enumerate(texts, 1):
        try:
            _parsed(text)
        except _UnreadableError as problem:
            problems.append(Problem(file, line + problem.line - 1, f"code cell {number}: {problem.reason}"))
            text = "\n" * text.count("\n")
        kept.append(text)
        line += text.count("\n") + 1
    return "\n".join(kept)


def _cell_text(cell: dict[str, object]) -> str:
    source = cell.get("source", cell.get("input", ""))
    text = source if isinstance(source, str) else "".join(map(str, source))  # type: ignore[call-overload]
    if text.lstrip().startswith("%%"):  # another language, or a timer: its first line says
        head, _, rest = text.lstrip().partition("\n")
        python = head.split()[0] in ("%%time", "%%timeit", "%%capture")
        return "\n" + rest if python else "\n" * text.count("\n")
    lines = text.split("\n")
    commands = ("%", "!", "?")
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + "pass" if line.lstrip().startswith(commands) else line
        for line in lines
    )
