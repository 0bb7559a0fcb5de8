#!/usr/bin/env python3
"""The command run_op_from_data of an installed package: becomes the C++ program, with the torch that this Python would import.

The program itself can look for torch beside its own package only; torch may also be a vendor's in the system's folder, under
~/.local, or on PYTHONPATH. Imports neither torch nor op_tools, which would take seconds.
"""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path


def folder_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        sys.stderr.write(f"run_op_from_data: {sys.executable} has no {package}: install it for this Python\n")
        sys.exit(2)
    return Path(spec.origin).parent


def prefix_for(torch: Path) -> Path:
    """The package, or in a wheel for several versions of torch (cmake/combine_wheels.py) the folder for this torch. Any other where
    there is none: the program then says what is wrong."""
    package = folder_of("op_tools")
    version = re.search(r"(\d+)\.(\d+)", (torch / "version.py").read_text())
    own = package / f"torch_{version[1]}_{version[2]}" if version else package
    return next((folder for folder in (own, *package.glob("torch_*_*")) if folder.exists()), package)


if __name__ == "__main__":
    torch = folder_of("torch")
    libraries = [str(torch / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    program = prefix_for(torch) / "bin" / "run_op_from_data"
    os.execv(program, [str(program), *sys.argv[1:]])  # noqa: S606
