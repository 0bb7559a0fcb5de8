"""What the commands share: the type of their list, and text for terminals."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # generic for type checkers only


def visible(text: str) -> str:
    """Text for a terminal: names and strings in files come from outside, and control characters would drive it."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)


def add_imports(parser: argparse.ArgumentParser) -> None:
    """Adds the option --import, which names backends of devices (op_tools._backends)."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this first: the backend (torch_npu, op_tools.sim_device)",
    )
