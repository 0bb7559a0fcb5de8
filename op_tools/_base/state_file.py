"""The file by which --resume goes on with a command that was ended at any moment: a line of JSON for each thing that is done."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .core import Error


def append_state(path: Path, line: dict[str, Any]) -> None:
    """Adds a line, which is on the disk then.

    Raises:
        op_tools.Error: it cannot be written.
    """
    try:
        with path.open("ab+") as file:
            if size := file.seek(0, os.SEEK_END):
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # ends a line that was cut, which would take this line with it
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Error(f"{path}: {error.strerror}") from None


def read_state(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of the file, and how many are damaged: the runs of damaged lines are made again. A last line that is cut does not
    count: it was being written.

    Raises:
        op_tools.Error: it cannot be read.
    """
    lines: list[dict[str, Any]] = []
    damaged = 0
    try:
        content = path.read_bytes().split(b"\n")
    except OSError as error:
        raise Error(f"--resume: {path}: {error.strerror}") from None
    for place, text in enumerate(content, 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # no UTF-8, too
            line = None
        if isinstance(line, dict):
            lines.append(line)
        else:
            damaged += bool(text) and place < len(content)
    return lines, damaged
