"""Runs clang-tidy over the C++ files of src, bindings and tools that changed since they passed.

    python cmake/clang_tidy.py build/tidy

The folder is a configured build without precompiled headers in which each file is compiled by itself. A file that
passed leaves a stamp there, named after a hash of all that the verdict depends on: the file, the headers of the
project that it reaches, the checks, clang-tidy and the compiler's flags.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "bindings", "tools")
CLANG_TIDY = "clang-tidy-14"


@cache
def included(path: Path) -> tuple[Path, ...]:
    """The project's headers that a file names itself."""
    names = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
    folders = [path.parent, *(ROOT / folder for folder in FOLDERS)]
    return tuple(folder / name for name in names for folder in folders if (folder / name).is_file())


def reached(path: Path) -> set[Path]:
    """The file and all headers of the project that it includes, directly or not."""
    found, waiting = {path}, [path]
    while waiting:
        new = set(included(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def stamp_name(path: Path, command: str, tool: str) -> str:
    parts = [tool, (ROOT / ".clang-tidy").read_text(), command]
    parts += [file.read_text() for file in sorted(reached(path))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    tool = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
    stamps = build / "stamps"
    stamps.mkdir(exist_ok=True)
    todo: dict[Path, tuple[list[str], str, Path]] = {}
    current = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in FOLDERS:
            continue
        stamp = stamps / stamp_name(path, entry["command"], tool)
        current.add(stamp)
        # The compiler's own warnings are for gcc, and --param is gcc's alone.
        flags = [word for word in shlex.split(entry["command"])[1:] if not word.startswith(("--param", "-W"))]
        if not stamp.exists():
            todo[path] = flags, entry["directory"], stamp
    for stamp in set(stamps.iterdir()) - current:
        stamp.unlink()

    def check(path: Path) -> subprocess.CompletedProcess[str]:
        flags, folder, _ = todo[path]
        command = [CLANG_TIDY, "--quiet", str(path), "--", *flags]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, done in zip(todo, pool.map(check, todo), strict=True):
            if done.returncode == 0:
                todo[path][2].touch()
            else:
                failed += 1
                print(f"{path.relative_to(ROOT)}:\n{done.stdout or done.stderr}")
    print(f"{len(todo)} files checked, {failed} with findings")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
