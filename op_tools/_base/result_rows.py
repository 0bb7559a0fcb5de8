"""A result's file of rows that Python writes: a row in each line of JSON, behind them a line with the facts of all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .core import claim_run_folder
from .results import finite_json
from .written_file import whole_file

SUMMARY = "summary"
"""The name in the last line; without it the file is cut off."""


def claim_folder(output_dir: str | os.PathLike[str] | None, name: str) -> Path:
    """A folder of its own for a run: <output_dir>/<name>/<rank>/<time>.

    Args:
        output_dir: None: OP_TOOLS_OUTPUT_DIR, else the working directory.
        name: "op_capture_result".

    Raises:
        op_tools.Error: it cannot be made.
    """
    place = output_dir if output_dir is not None else os.environ.get("OP_TOOLS_OUTPUT_DIR") or "."
    return Path(claim_run_folder(os.fspath(place), name))


def write_rows(file: Path, rows: Iterable[Any], summary: Mapping[str, Any]) -> None:
    """Writes rows (dataclasses), in place of a file of this name; nobody sees half of it.

    Raises:
        op_tools.Error: it cannot be written.
    """
    with whole_file(file, errors="backslashreplace") as lines:
        for content in (*map(asdict, rows), {SUMMARY: dict(summary)}):
            lines.write(json.dumps(finite_json(content)) + "\n")
