"""A copy of a program whose training loops go through a Detector, which writes the report of dynamic shapes as the program runs."""

from __future__ import annotations

import ast
import shutil
import tokenize
from pathlib import Path

from .._base.core import Error
from ._file_facts import Problem
from ._sources import LEFT_OUT

COPY = "detector"


def copy_with_detector(source: Path, folder: Path) -> tuple[list[str], list[Problem]]:
    """Copies a program to `folder`/detector and sends the innermost loops that call backward() through a Detector.

    Args:
        source: a Python file, or a folder with some.
        folder: of the results; the report will be written here. An earlier copy in it is replaced.

    Returns:
        the places of these loops, "train.py:12"; the files that could not be read.

    Raises:
        op_tools.Error: the copy cannot be written.
    """
    target = folder / COPY
    loops, problems = [], []
    try:
        shutil.rmtree(target, ignore_errors=True)
        if source.is_file():
            target.mkdir(parents=True)
            shutil.copy2(source, target)
        else:
            results = folder.resolve()

            def left_out(place: str, names: list[str]) -> list[str]:
                return [one for one in names if one in (*LEFT_OUT, ".venv") or Path(place, one).resolve() == results]

            shutil.copytree(source, target, ignore=left_out, ignore_dangling_symlinks=True)
        for file in sorted(one for one in target.rglob("*.py") if one.is_file()):
            name = str(file.relative_to(target))
            try:
                loops += [f"{name}:{line}" for line in _rewrite(file, folder.resolve())]
            except (SyntaxError, UnicodeDecodeError, ValueError, RecursionError) as error:
                problems.append(Problem(name, getattr(error, "lineno", None) or 0, f"is copied as it is: {error}"))
    except (OSError, shutil.Error) as error:
        raise Error(f"{target}: cannot be written: {error}") from error
    return loops, problems


def _rewrite(path: Path, folder: Path) -> list[int]:
    """The lines of the loops in a file that were rewritten. Lines keep their numbers, but where no simple statement is first."""
    content = path.read_bytes()
    with path.open("rb") as file:
        encoding, _ = tokenize.detect_encoding(file.readline)
    text = content.decode(encoding)
    tree = ast.parse(text)
    loops = [loop for loop in ast.walk(tree) if isinstance(loop, ast.For) and _trains(loop.body)]
    loops = [loop for loop in loops if not any(other is not loop and other in ast.walk(loop) for other in loops)]
    if not loops:
        return []
    name = "DETECTOR"
    while name in text:  # a name of the program
        name = f"_{name}"
    # ast counts columns in bytes of UTF-8, and lines as bytes.splitlines() does: str.splitlines() also ends a line at a form feed.
    lines = text.encode().splitlines(keepends=True)
    for loop in sorted(loops, key=lambda loop: -loop.lineno):
        over = loop.iter
        assert over.end_lineno is not None and over.end_col_offset is not None
        _insert(lines, over.end_lineno, over.end_col_offset, b"))")
        _insert(lines, over.lineno, over.col_offset, f"{name}.start((".encode())
    import_line = f"from op_tools.analyse.detector import Detector as {name}; {name} = {name}({str(folder)!a})"
    _insert(lines, *_place_of_import(tree, import_line))
    changed = b"".join(lines).decode()
    ast.parse(changed)
    path.write_bytes(changed.encode(encoding))
    return sorted(loop.lineno for loop in loops)


def _trains(body: list[ast.stmt]) -> bool:
    calls = (node for one in body for node in ast.walk(one) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "backward" for call in calls)


def _insert(lines: list[bytes], line: int, column: int, text: bytes) -> None:
    before = lines[line - 1]
    lines[line - 1] = before[:column] + text + before[column:]


def _place_of_import(tree: ast.Module, import_line: str) -> tuple[int, int, bytes]:
    """Line, column and text: behind the docstring and imports from __future__, which have to stay first, or at the beginning."""
    last: ast.stmt | None = None
    for number, statement in enumerate(tree.body):
        is_docstring = number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_docstring and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            break
        last = statement
    if last is not None and last.end_lineno is not None and last.end_col_offset is not None:
        return last.end_lineno, last.end_col_offset, f"; {import_line}".encode()
    first = tree.body[0]
    decorators: list[ast.expr] = getattr(first, "decorator_list", [])
    line = min([first.lineno, *(one.lineno for one in decorators)])
    is_simple = not hasattr(first, "body") and not isinstance(first, ast.Match)
    return line, 0, f"{import_line}; ".encode() if is_simple else f"{import_line}\n".encode()
