"""op-tools report: a page, or a text, of all that folders of results hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .._base.core import Error
from .._commands.command_line import UsageError, visible
from .._report.of_result import write_page
from .._report.page import GENERATED
from .._report.scan import read_parts
from .._report.summary import verdict_of_parts, verdict_sentence
from .._report.text import text_of_parts

_USUAL = Path("report.html")
_HEAD = 100_000  # characters


def _is_of_another(file: Path) -> bool:
    """It is there, and another program, or a person, wrote it."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as content:
        return GENERATED not in content.read(_HEAD)


def run_command(options: argparse.Namespace) -> int:
    if options.text and options.output:
        raise UsageError("--text prints; -o is for the page")
    parts = read_parts(options.folders)
    if options.text:
        sys.stdout.write(visible(text_of_parts(parts, options.lines)) + "\n")
        return 0
    names = ", ".join(dict.fromkeys(Path(folder).resolve().name for folder in options.folders))
    if options.output is None and _is_of_another(_USUAL):
        raise Error(f"{_USUAL}: is there, and no page of op-tools report; give the page another name: -o FILE")
    file = write_page(parts, options.output or _USUAL, options.title or f"op_tools report: {names}")
    size = file.stat().st_size / 1e6
    sys.stdout.write(visible(f"{verdict_of_parts(parts).value}: {verdict_sentence(parts)}\n{file} ({size:.1f} MB)\n"))
    return 0
