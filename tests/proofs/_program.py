"""The common part of the programs of this folder: their options and how loud they are."""

from __future__ import annotations

import argparse
import os

import torch

import op_tools


def parser(text: str | None) -> argparse.ArgumentParser:
    """For options; the help begins with the program's own text."""
    return argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def parser_over_operators(text: str | None) -> argparse.ArgumentParser:
    """For a program that works through torch's test database."""
    options = parser(text)
    options.add_argument("--level", nargs="+", default=["torch", "aten"], choices=["torch", "aten"])
    options.add_argument("--samples", type=int, default=3, metavar="N", help="of float32, per operator")
    options.add_argument("--ops", default="", metavar="REGEX", help="only operators whose name matches")
    options.add_argument("--jobs", type=int, default=2, metavar="N")
    options.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    return options


def quiet(log_level: str = "error") -> None:
    """A single thread for operators, and of op_tools' lines those of this level and above."""
    os.environ["OP_TOOLS_LOG_LEVEL"] = log_level
    op_tools._C.reload_log_level()
    torch.set_num_threads(1)
