"""A copy of a program whose training loops go through a Detector, which writes the report of dynamic shapes as the program runs."""

from __future__ import annotations

import ast
import shutil
import tokenize
from pathlib import Path

from .. import _C
from ._facts import Problem

COPY = "detector"
_LEFT_OUT = shutil.ignore_patterns(".git", "__pycache__", ".venv", "*_analysis")


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
            shutil.copytree(source, target, ignore=_LEFT_OUT, ignore_dangling_symlinks=True)
        for file in sorted(target.rglob("*.py")):
            name = str(file.relative_to(target))
            try:
                loops += [f"{name}:{line}" for line in _rewrite(file, folder.resolve())]
            except (SyntaxError, UnicodeDecodeError, ValueError, RecursionError) as error:
                problems.append(Problem(name, getattr(error, "lineno", None) or 0, f"is copied as it is: {error}"))
    except (OSError, shutil.Error) as error:
        raise _C.Error(f"{target}: cannot be written: {error}") from error
    return loops, problems


def _rewrite(path: Path, folder: Path) -> list[int]:
    """The lines of the loops in a file that were rewritten."""
    content = path.read_bytes()
    with path.open("rb") as file:
        encoding, _ = tokenize.detect_encoding(file.readline)
    text = content.decode(encoding)
    tree = ast.parse(text)
    loops = [loop for loop in ast.walk(tree) if isinstance(loop, ast.For) and _trains(loop.body)]
    loops = [loop for loop in loops if not any(other is not loop and other in ast.walk(loop) for other in loops)]
    if not loops:
        return []
    # ast counts columns in bytes of UTF-8.
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    for loop in sorted(loops, key=lambda loop: -loop.lineno):
        over = loop.iter
        assert over.end_lineno is not None and over.end_col_offset is not None
        _insert(lines, over.end_lineno, over.end_col_offset, b"))")
        _insert(lines, over.lineno, over.col_offset, b"DETECTOR.start((")
    first = _first_statement(tree)
    made = f"from op_tools.analyse.detector import Detector\nDETECTOR = Detector({str(folder)!a})\n"
    lines.insert(first - 1, made.encode())
    path.write_bytes(b"".join(lines).decode().encode(encoding))
    return sorted(loop.lineno for loop in loops)


def _trains(body: list[ast.stmt]) -> bool:
    calls = (node for one in body for node in ast.walk(one) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Attribute) and call.func.attr == "backward" for call in calls)


def _insert(lines: list[bytes], line: int, column: int, text: bytes) -> None:
    before = lines[line - 1]
    lines[line - 1] = before[:column] + text + before[column:]


def _first_statement(tree: ast.Module) -> int:
    """The line of the first statement behind the docstring and imports from __future__, with its decorators."""
    for one in tree.body:
        is_docstring = isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        if is_docstring or (isinstance(one, ast.ImportFrom) and one.module == "__future__"):
            continue
        decorators: list[ast.expr] = getattr(one, "decorator_list", [])
        return min([one.lineno, *(decorator.lineno for decorator in decorators)])
    raise ValueError("nothing but a docstring")  # a file with a loop has a statement
