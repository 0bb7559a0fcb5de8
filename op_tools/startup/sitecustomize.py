"""Starts the tools that OP_TOOLS names when the program imports torch.

Python runs this file at its start when its folder is on PYTHONPATH (``op-tools env`` prints the line to set it). Another
sitecustomize further down the path is run as well.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable
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


def _start_tools(_: ModuleType) -> None:
    if account := os.environ.get("OP_TOOLS_ACCOUNT"):  # who started the program asks whether it has torch
        with contextlib.suppress(OSError):
            Path(f"{account}.{os.getpid()}").touch()
    try:
        from op_tools._base.own_command import own_program

        if (command := own_program()) is not None:
            if command[:1] == ["run"] and os.environ.get("OP_TOOLS"):
                sys.stderr.write(
                    "op_tools warning: OP_TOOLS starts no tool here: op-tools run starts those of its options\n"
                )
            return
        from op_tools._tools.launch import start_from_environment
    except Exception as error:  # a Python of the program that is not ours: it has another torch, or no op_tools
        _say_not_started(error)
    else:
        start_from_environment()


def _say_not_started(error: BaseException) -> None:
    sys.stderr.write(f"op_tools warning: no tool was started in {sys.executable}: {error}\n")
    names = ("OP_TOOLS_FAIL_ON_WRONG", "OP_TOOLS_FAIL_ON_VARIANT")
    is_judge = any(os.environ.get(name, "").strip().lower() not in ("", "0", "false", "off") for name in names)
    if is_judge and (os.environ.get("OP_TOOLS") or os.environ.get("DIPU_MEM_CHECK")):
        atexit.register(_end_as_not_judged)


def _end_as_not_judged() -> None:
    """At exit. Status 0 would say that the tools found nothing wrong; the core, which could keep the program's own, is not there."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or there is none
            stream.flush()
    os._exit(1 if hasattr(sys, "last_type") else 2)  # as Python does where an exception ended the program


class _Imports:
    """torch and op_tools, in whichever order the program imports them. op_tools imports torch: its modules are half there then, and
    the tools wait for their end."""

    def __init__(self) -> None:
        self._is_inside = self._torch = False

    def after_torch(self, module: ModuleType) -> None:
        self._torch = True
        if not self._is_inside:
            _start_tools(module)

    def run_op_tools(self, function: Callable[[ModuleType], Any], module: ModuleType) -> None:
        had_torch, self._is_inside = self._torch, True
        try:
            function(module)
        except BaseException as error:
            if self._torch and not had_torch:  # the program may go on without op_tools
                _say_not_started(error)
            raise
        finally:
            self._is_inside = False
        if self._torch and not had_torch:
            _start_tools(module)


def _start_tools_after_torch() -> None:
    # By its path: importing the package imports torch.
    path = Path(__file__).parent.parent / "_base" / "after_import.py"
    spec = importlib.util.spec_from_file_location("op_tools_after_import", path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    imports = _Imports()
    module.AfterImport("torch", imports.after_torch)
    module.AfterImport("op_tools", lambda _: None, imports.run_op_tools)


_run_the_next_one()
if any(os.environ.get(name) for name in ("OP_TOOLS", "OP_TOOLS_IMPORT", "OP_TOOLS_AS_CUDA", "DIPU_MEM_CHECK")):
    _start_tools_after_torch()
