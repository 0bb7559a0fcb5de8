"""Is this process a command of the package? And the package's version. Asked before torch is imported."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def own_command() -> tuple[str, list[str]] | None:
    """The module and the arguments, if this process is a command of the package: `op-tools ...` or `python -m op_tools...`.

    A process that such a command starts by multiprocessing has the command's sys.argv, but not its sys.orig_argv.
    """
    words = sys.orig_argv
    if Path(sys.argv[0]).name == "op-tools" and sys.argv[0] in words:
        return "op_tools", sys.argv[1:]
    # While the package is imported, Python has "-m" there; afterwards the module's file.
    is_module = sys.argv[0] == "-m" or Path(__file__).parents[1] in Path(sys.argv[0]).parents
    if is_module and "-m" in words[:-1]:
        module = words[words.index("-m") + 1]
        if module.partition(".")[0] == "op_tools":
            return module, sys.argv[1:]
    return None


def is_command_line() -> bool:
    """This process is `op-tools`, which loads torch and the core when its command needs them."""
    command = own_command()
    return command is not None and command[0] in ("op_tools", "op_tools.__main__")


def package_version() -> str:
    """As CMake wrote it; the same in each folder of a wheel for several versions of torch."""
    package = Path(__file__).parents[1]
    file = next(iter([*package.glob("_build_info.py"), *package.glob("torch_*_*/_build_info.py")]), None)
    version = re.search(r'^VERSION\s*=\s*"(.*)"$', file.read_text(encoding="utf-8"), re.MULTILINE) if file else None
    return version[1] if version else "(not built)"
