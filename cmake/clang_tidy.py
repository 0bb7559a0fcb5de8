"""Runs clang-tidy over the C++ files of src, bindings and tools that changed since they passed.

    python cmake/clang_tidy.py build/tidy

The folder is a configured build without precompiled headers in which each file is compiled by itself. Files of a folder are
checked several at a time, as one file that includes them: torch's headers take most of the time. Where that finds
something (names that two of them have, too), each is checked by itself. A file that passed leaves a stamp, named after
a hash of all that the verdict depends on: the file, the headers of the project that it reaches, the checks, clang-tidy
and the compiler's flags.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "bindings", "tools")
CLANG_TIDY = "clang-tidy-14"
TOGETHER = 8  # files at a time


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


def flags_of(command: str) -> tuple[str, ...]:
    """Those for the compiler's front end: its own warnings are for gcc, and --param is gcc's alone."""
    words = shlex.split(command)[1:]
    files = {word for word in words if word.endswith((".cpp", ".o"))}
    return tuple(word for word in words if word not in files | {"-c", "-o"} and not word.startswith(("--param", "-W")))


def stamp_name(path: Path, command: str, tool: str) -> str:
    parts = [tool, (ROOT / ".clang-tidy").read_text(), command]
    parts += [file.read_text() for file in sorted(reached(path))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Checked:
    """A file that has to be checked."""

    path: Path
    flags: tuple[str, ...]
    folder: str  # in which the compiler is started
    stamp: Path


def tidy(path: Path, one: Checked) -> subprocess.CompletedProcess[str]:
    command = [CLANG_TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(path), "--", *one.flags]
    return subprocess.run(command, cwd=one.folder, capture_output=True, text=True, check=False)


def check_group(group: Sequence[Checked]) -> list[str]:
    """What is found in the files."""
    if len(group) > 1:
        with tempfile.TemporaryDirectory() as folder:
            together = Path(folder) / "together.cpp"
            together.write_text("".join(f'#include "{one.path}"\n' for one in group))
            if tidy(together, group[0]).returncode == 0:
                for one in group:
                    one.stamp.touch()
                return []
    findings = []
    for one in group:
        done = tidy(one.path, one)
        if done.returncode == 0:
            one.stamp.touch()
        else:
            findings.append(f"{one.path.relative_to(ROOT)}:\n{done.stdout or done.stderr}")
    return findings


def groups_of(todo: Sequence[Checked]) -> list[list[Checked]]:
    alike: dict[tuple[Path, tuple[str, ...]], list[Checked]] = {}
    for one in sorted(todo, key=lambda one: one.path):
        alike.setdefault((one.path.parent, one.flags), []).append(one)
    return [some[first : first + TOGETHER] for some in alike.values() for first in range(0, len(some), TOGETHER)]


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    tool = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
    stamps = build / "stamps"
    stamps.mkdir(exist_ok=True)
    todo = []
    current = set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in FOLDERS:
            continue
        stamp = stamps / stamp_name(path, entry["command"], tool)
        current.add(stamp)
        if not stamp.exists():
            todo.append(Checked(path, flags_of(entry["command"]), entry["directory"], stamp))
    for stamp in set(stamps.iterdir()) - current:
        stamp.unlink()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = [finding for found in pool.map(check_group, groups_of(todo)) for finding in found]
    print("\n".join([*findings, f"{len(todo)} files checked, {len(findings)} with findings"]))
    return len(findings) > 0


if __name__ == "__main__":
    sys.exit(main())
