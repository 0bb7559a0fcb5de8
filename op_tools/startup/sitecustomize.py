"""Starts the tools that OP_TOOLS names when the program imports torch.

Python runs this file at its start when its folder is on PYTHONPATH (``op-tools env`` prints the line to set it). Another
sitecustomize further down the path is run as well.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType


def _run_the_next_one() -> None:
    here = str(Path(__file__).parent)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _start_tools(_: ModuleType) -> None:
    if account := os.environ.get("OP_TOOLS_ACCOUNT"):  # who started the program asks whether it has torch
        with contextlib.suppress(OSError):
            Path(f"{account}.{os.getpid()}").touch()
    try:
        from op_tools._tools.launch import start_from_environment
    except Exception as error:  # a Python of the program that is not ours: it has another torch, or no op_tools
        sys.stderr.write(f"op_tools warning: no tool was started in {sys.executable}: {error}\n")
    else:
        start_from_environment()


def _start_tools_after_torch() -> None:
    # By its path: importing the package imports torch.
    path = Path(__file__).parent.parent / "_base" / "after_import.py"
    spec = importlib.util.spec_from_file_location("op_tools_after_import", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.AfterImport("torch", _start_tools)


_run_the_next_one()
if any(os.environ.get(name) for name in ("OP_TOOLS", "OP_TOOLS_IMPORT", "OP_TOOLS_AS_CUDA", "DIPU_MEM_CHECK")):
    _start_tools_after_torch()
