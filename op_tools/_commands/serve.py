"""op-tools serve: the page of a run in progress."""

from __future__ import annotations

import argparse

from .command_line import Commands, work


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"{number} is not allowed; give a port from 0 to 65535")
    return number


def _seconds(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is not allowed; give a number from 0")
    return number


def add(commands: Commands) -> None:
    serve = commands.add_parser(
        "serve",
        help="the page of op-tools report for a run in progress, in a browser of this machine",
        description="Answers a browser of this machine (127.0.0.1) with the page of all results below folders as they are now: load it "
        "again to see more. The printed address has a secret word; without it nothing is shown. Files are read only, and no symbolic "
        "link is followed. Ctrl-C ends it. Exit status: 0; 2 the port is taken, or there is no such folder; 64 wrong usage.",
        epilog="op-tools run --autocompare train.py & op-tools serve . --every 10",
    )
    serve.add_argument(
        "folders", nargs="+", metavar="DIR", help="a folder with results, at any depth; it may be empty yet"
    )
    serve.add_argument("--port", type=_port, default=0, metavar="N", help="(a free port)")
    serve.add_argument(
        "--every",
        type=_seconds,
        default=0,
        metavar="S",
        help="the browser loads the page again every S seconds (0: never)",
    )
    serve.set_defaults(run=work("serve", "run_command"))
