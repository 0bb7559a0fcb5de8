"""Replays captured calls, those too that exist in Python only; under torchrun the ranks share them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from .._base.core import Error, run_op_from_data
from .._base.error_text import one_line, printable
from .._base.remote_files import is_url, local_path
from .._torch.backends import import_backends, modules_of
from .._torch.python_functions import find
from .._torch.rank_shares import is_shared, replay_part
from .._torch.saved_graphs import SavedGraph, graphs_below


def _find(name: str) -> Callable[..., Any] | None:
    """The function of a name. torch.tensor() imports torch.<backend>, which a library of a device (--load) does not have."""
    backend = torch._C._get_privateuse1_backend_name()
    if backend != "privateuseone" and not hasattr(torch, backend):
        torch._register_device_module(backend, types.ModuleType(f"torch.{backend}"))  # type: ignore[no-untyped-call]
    return find(name)


def _named_device(command_line: Sequence[str]) -> str:
    """The device on which calls are to run; "" where none is named."""
    for word, following in zip(command_line, [*command_line[1:], ""], strict=True):
        if word == "--device":
            return following
        if word.startswith("--device="):
            return word.partition("=")[2]
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the replay.

    Args:
        arguments: command-line arguments without the program's name; None: those of this process.

    Returns:
        0 all ran and agree, 1 some differ, 2 some could not be run or read, or most have no verdict, 64 wrong usage.
    """
    try:
        return _replay(sys.argv[1:] if arguments is None else arguments)
    except (Error, OSError) as error:  # Python would end with status 1: some differ
        sys.stderr.write(f"run_op_from_data: {printable(one_line(error))}\n")
        return int(getattr(error, "exit_status", 2))


def _replay(arguments: Sequence[str]) -> int:
    """As main()."""
    command_line = [_local_word(word) for word in arguments]
    if "--load" not in command_line:
        import_backends(modules_of(_named_device(command_line), []))
    graphs = {name: graph.operators() for word in command_line for name, graph in _graphs_in(word).items()}

    def find_all(name: str) -> Callable[..., Any] | None:
        return graphs.get(name) or _find(name)

    return replay_part(command_line, find_all) if is_shared(command_line) else run_op_from_data(command_line, find_all)


def _local_word(word: str) -> str:
    """A word of the command line, with the local path of the calls at a URL; a line says which."""
    if not is_url(word):
        return word
    place = local_path(word)
    sys.stderr.write(f"run_op_from_data: {word} is read through {place}\n")
    return place


def _graphs_in(word: str) -> dict[str, SavedGraph]:
    """The compiled graphs in a folder that a command line names: their calls are replayed operator by operator."""
    return graphs_below(Path(word)) if not word.startswith("-") and Path(word).is_dir() else {}
