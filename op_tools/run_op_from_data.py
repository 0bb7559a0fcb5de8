"""python -m op_tools.run_op_from_data DIR... : replays captured calls, those too that exist in Python only.

The same engine, flags, report and exit status as the stand-alone program run_op_from_data. Under torchrun the ranks share the
calls: torchrun --nproc-per-node 8 -m op_tools.run_op_from_data DIR --acc_check

Also python op_tools/run_op_from_data.py DIR..., as ditorch's op_tools has it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

if not __package__:
    # Started by its path: Python put this folder where the package's own should be.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = "op_tools"

from . import _C
from ._python_calls import find
from ._shards import is_shared, replay_part


def _find(name: str) -> Callable[..., Any] | None:
    """The function of a name. torch.tensor() imports torch.<backend>, which a library of a device (--load) does not have."""
    backend = torch._C._get_privateuse1_backend_name()
    if backend != "privateuseone" and not hasattr(torch, backend):
        torch._register_device_module(backend, types.ModuleType(f"torch.{backend}"))  # type: ignore[no-untyped-call]
    return find(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the replay.

    Args:
        arguments: command-line arguments without the program's name; None: those of this process.

    Returns:
        0 all ran and agreed, 1 some disagreed, 2 some could not be run or read, or most have no verdict, 64 wrong usage.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    return replay_part(given, _find) if is_shared(given) else _C.run_op_from_data(given, _find)


if __name__ == "__main__":
    sys.exit(main())
