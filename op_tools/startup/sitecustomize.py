"""Starts the tools that OP_TOOLS names when the program imports torch.

Python runs this file at its start when its folder is on PYTHONPATH (``op-tools env`` prints the line to set it). Another
sitecustomize further down the path is run as well.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def _run_the_next_one() -> None:
    here = str(Path(__file__).parent)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torch once, loads it with its own loader, and starts the tools behind it."""

    def __init__(self) -> None:
        self._loader: Any = None

    def find_spec(self, name: str, *_: Any) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # it is being imported
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if account := os.environ.get("OP_TOOLS_ACCOUNT"):  # who started the program asks whether it has torch
            with contextlib.suppress(OSError):
                Path(f"{account}.{os.getpid()}").touch()
        try:
            from op_tools._tools.launch import start_from_environment
        except Exception as error:  # a Python of the program that is not ours: it has another torch, or no op_tools
            sys.stderr.write(f"op_tools warning: no tool was started in {sys.executable}: {error}\n")
        else:
            start_from_environment()


_run_the_next_one()
if any(os.environ.get(name) for name in ("OP_TOOLS", "OP_TOOLS_IMPORT", "OP_TOOLS_AS_CUDA", "DIPU_MEM_CHECK")):
    sys.meta_path.insert(0, _AfterTorch())
