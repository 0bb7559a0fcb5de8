"""op-tools report: a page, or a text, of all that folders of results hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .._base.core import Error
from .._report.of_result import write_page
from .._report.page import GENERATED
from .._report.scan import read_parts
from .._report.summary import verdict_of_parts, verdict_sentence
from .._report.text import text_of_parts
from .command_line import Commands, UsageError, visible

_USUAL = Path("report.html")
_HEAD = 100_000  # characters


def _is_of_another(file: Path) -> bool:
    """It is there, and another program, or a person, wrote it."""
    if not file.is_file():
        return False
    with file.open(encoding="utf-8", errors="replace") as content:
        return GENERATED not in content.read(_HEAD)


def _report(options: argparse.Namespace) -> int:
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


def add(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="a page of all results: coverage, verdict, a line per kind of finding, all rows",
        description="Makes a page of all results below folders: a single file of HTML that asks nothing of any network. It reads "
        "captures, the files of the tools, recordings, files of op-tools compare --json, results of op-tools conformance, and "
        "black boxes. Exit status: 0 the page was made, 2 there is nothing to read, 64 wrong usage.",
        epilog="op-tools run --autocompare --time train.py; op-tools report . -o report.html",
    )
    report.add_argument(
        "folders", nargs="+", metavar="DIR", help="a folder with results, at any depth, or a file of them"
    )
    report.add_argument("-o", "--output", metavar="FILE", help="the page (report.html)")
    report.add_argument("--title", metavar="TEXT", help="the page's title")
    report.add_argument("--text", action="store_true", help="print a text instead")
    report.add_argument(
        "--lines", type=int, default=20, metavar="N", help="of --text: kinds of finding, at most; -1: all (20)"
    )
    report.set_defaults(run=_report)
