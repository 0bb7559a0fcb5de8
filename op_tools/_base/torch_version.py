"""Does the installed torch fit the torch that op_tools was built with?

Asked before the extension is loaded: it uses torch's C++ classes, whose layout differs between minor versions, and beside another
torch it would crash rather than fail.
"""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from collections.abc import MutableSequence
from pathlib import Path

import torch

from .own_command import own_command

_COULD_NOT_BE_JUDGED = 2  # status of a command that could not do its work


def minor(version: str) -> tuple[str, ...]:
    """Of "2.7.1.post4+npu": ("2", "7")."""
    return tuple(re.findall(r"\d+", version)[:2])


def _version_of_library(folder: Path) -> str:
    """The version that torch's library tells; "" where it tells none (older than 2.7, or named otherwise). A library of another
    torch may come before torch's own, by LD_LIBRARY_PATH."""
    try:
        ask = ctypes.CDLL(str(folder / "lib" / "libtorch_cpu.so")).aoti_torch_abi_version
    except (OSError, AttributeError):
        return ""
    ask.restype = ctypes.c_uint64
    told: int = ask()
    return f"{told >> 56}.{told >> 48 & 0xFF}.{told >> 40 & 0xFF}"


def _add_build(package_path: MutableSequence[str]) -> list[str]:
    """In a wheel for several versions of torch (cmake/combine_wheels.py), adds the folder with the extension for the torch that is
    imported; the newest where there is none, and the check then says what is wrong. Returns the minor versions, oldest first."""
    builds = {minor(folder.name): folder for folder in Path(package_path[0]).glob("torch_*_*")}
    versions = sorted(builds, key=lambda version: tuple(map(int, version)))
    if builds and len(package_path) == 1:
        package_path.append(str(builds.get(minor(str(torch.__version__)), builds[versions[-1]])))
    return [".".join(version) for version in versions]


def _wrong_torch(built_with: str, minors: list[str]) -> str:
    """Why the extension cannot be loaded beside the torch that is imported, and what to do; "" where it can.

    Args:
        minors: all that the package has builds for, where those are several.
    """
    installed, folder = str(torch.__version__), Path(torch.__file__).parent
    needed = minor(built_with)
    if minor(installed) == needed:
        told = _version_of_library(folder)
        if not told or minor(told) == needed:
            return ""
        installed = f"{installed}, whose library is of torch {told},"
    wanted = ".".join(needed)
    all_builds = f" (its wheel is for {', '.join(minors)})" if len(minors) > 1 else ""
    return (
        f"op_tools was built with torch {built_with}{all_builds}, but torch {installed} is installed ({folder}). "
        f"Install torch {wanted}.*: pip install 'torch=={wanted}.*', or build op_tools again with the torch that is installed: "
        "pip install --force-reinstall --no-deps . in its source folder"
    )


def check_torch(package_path: MutableSequence[str]) -> None:
    """Raises ImportError with both versions when op_tools was built against another minor version of torch. A command of the
    package ends with that sentence instead; `op-tools doctor` answers without the extension.

    Args:
        package_path: ``op_tools.__path__``, to which the folder with the extension is added where that is not the package's own.
    """
    minors = _add_build(package_path)
    from .._build_info import TORCH_VERSION, VERSION

    problem = _wrong_torch(TORCH_VERSION, minors)
    if not problem:
        return
    command = own_command()
    if command is None:
        raise ImportError(problem)
    if command[1][:1] != ["doctor"]:
        sys.stderr.write(f"op-tools: {problem}\n")
        sys.exit(_COULD_NOT_BE_JUDGED)
    sys.stdout.write(
        f"op_tools     {VERSION}, built with torch {TORCH_VERSION}, in {Path(__file__).parents[1]}\n"
        f"torch        PROBLEM: {problem}\n"
        f"Python       {platform.python_version()}, {sys.executable}\n"
    )
    sys.exit(1)
