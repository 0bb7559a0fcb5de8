"""Rows of files: JSON lines and CSV, a row at a time, because there may be millions. A damaged line is left out, and counted."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._base.written_file import no_link
from .part import Origin


def is_own_file(path: Path) -> bool:
    """It is a file, and no symbolic link to another."""
    return path.is_file() and not path.is_symlink()


def rows_of(file: Path, origin: Origin, *, is_needed: bool = True) -> Iterator[dict[str, Any]]:
    """The rows of a file of a run, by its suffix. A gap says which are missing: of a file that is needed, or that the account of
    the run names, and of a file that has not as many as the run wrote.

    Raises:
        op_tools.Error: the file cannot be read.
    """
    if is_own_file(file):
        yield from (csv_rows if file.suffix == ".csv" else json_rows)(file, origin)
    elif is_needed or origin.rows.get(file.name):
        why = "is a symbolic link, and was not followed" if file.is_symlink() else "is missing"
        origin.gaps.append(f"{file}: {why}: its rows are not known")


def _compare_with_account(path: Path, rows: int, origin: Origin) -> None:
    """A file may have been cut at the end of a line, which no line shows."""
    written = origin.rows.get(path.name, rows)
    if rows < written:
        origin.gaps.append(f"{path}: {written - rows:,} of {written:,} rows are missing")
    elif rows > written:
        origin.gaps.append(f"{path}: has {rows - written:,} rows more than its run wrote before it wrote its account")


_TOO_LONG = 10_000_000  # bytes of a field of CSV


def json_rows(path: Path, origin: Origin) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines.

    Raises:
        op_tools.Error: the file cannot be read.
    """
    damaged = rows = 0
    try:
        with open(path, encoding="utf-8", errors="replace", opener=no_link) as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    rows += 1
                    yield row
                elif line.strip():
                    damaged += 1
    except OSError as error:
        raise Error(f"{path}: cannot be read: {error.strerror}") from None
    if damaged:
        origin.gaps.append(f"{path}: {damaged} lines are damaged, and left out")
    _compare_with_account(path, rows + damaged, origin)


def csv_rows(path: Path, origin: Origin) -> Iterator[dict[str, Any]]:
    """The rows of a file of CSV by the names in its first line.

    Raises:
        op_tools.Error: the file cannot be read.
    """
    damaged = rows_read = 0
    limit = csv.field_size_limit(_TOO_LONG)  # of the process: shapes of lists of tensors are long
    try:
        with open(path, encoding="utf-8", errors="replace", newline="", opener=no_link) as file:
            rows = csv.DictReader(line.replace("\0", "") for line in file)
            while True:
                try:
                    row = next(rows, None)
                except csv.Error:
                    damaged += 1
                    continue
                if row is None:
                    break
                if None in row or None in row.values():
                    damaged += 1  # cut off, or with more fields than names
                else:
                    rows_read += 1
                    yield row
    except OSError as error:
        raise Error(f"{path}: cannot be read: {error.strerror}") from None
    finally:
        csv.field_size_limit(limit)
    if damaged:
        origin.gaps.append(f"{path}: {damaged} lines are damaged, and left out")
    _compare_with_account(path, rows_read + damaged, origin)
