"""Rows of files: JSON lines and CSV, a row at a time, because there may be millions. A damaged line is left out, and counted."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._base.core import Error
from .._base.result_rows import no_link
from .part import Origin


def is_own_file(path: Path) -> bool:
    """It is a file, and no symbolic link to another."""
    return path.is_file() and not path.is_symlink()


_TOO_LONG = 10_000_000  # bytes of a field of CSV


def json_rows(path: Path, origin: Origin) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines.

    Raises:
        op_tools.Error: the file cannot be read.
    """
    damaged = 0
    try:
        with open(path, encoding="utf-8", errors="replace", opener=no_link) as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if isinstance(row, dict):
                    yield row
                elif line.strip():
                    damaged += 1
    except OSError as error:
        raise Error(f"{path}: cannot be read: {error.strerror}") from None
    if damaged:
        origin.gaps.append(f"{path}: {damaged} lines are damaged, and left out")


def csv_rows(path: Path, origin: Origin) -> Iterator[dict[str, Any]]:
    """The rows of a file of CSV by the names in its first line.

    Raises:
        op_tools.Error: the file cannot be read.
    """
    damaged = 0
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
                    yield row
    except OSError as error:
        raise Error(f"{path}: cannot be read: {error.strerror}") from None
    finally:
        csv.field_size_limit(limit)
    if damaged:
        origin.gaps.append(f"{path}: {damaged} lines are damaged, and left out")
