"""op-tools report: a page, or a text, of all that folders of results hold."""

from __future__ import annotations

import argparse

from .command_line import Commands, work


def _count_or_all(text: str) -> int:
    number = int(text)
    if number < -1:
        raise argparse.ArgumentTypeError(f"{number} is not allowed; give a number from 0, or -1 for all")
    return number


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
        "--lines",
        type=_count_or_all,
        default=20,
        metavar="N",
        help="of --text: kinds of finding, at most; -1: all (20)",
    )
    report.set_defaults(run=work("report", "run_command", reads=("folders",)))
