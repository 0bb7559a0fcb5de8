"""Runs clang-tidy over the C++ files of src, bindings and tools.

    python cmake/clang_tidy.py build/tidy --changed | --whole

`--changed`: those whose text differs from clang_tidy_passed.txt, the committed list of files that passed; a header through the
file that it belongs to, else through the first that reaches it. `--whole`: all. Where nothing is found the list is
written; commit it with the change.

The folder is a configured build without precompiled headers in which each file is compiled by itself. Files of a folder are
checked several at a time, as a single file that includes them: torch's headers take most of the time. Where that finds
something (names that two of them have, too), each is checked by itself. A file that passed leaves a stamp, named after
a hash of all that the verdict depends on: the file, the headers of the project that it reaches, the checks, clang-tidy
and the compiler's flags; it is not checked again.
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
PASSED = Path(__file__).with_name("clang_tidy_passed.txt")


@cache
def included(path: Path) -> tuple[Path, ...]:
    """The project's headers that a file names itself."""
    names = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
    folders = [path.parent, *(ROOT / folder for folder in FOLDERS)]
    return tuple(folder / name for name in names for folder in folders if (folder / name).is_file())


def reached(path: Path) -> set[Path]:
    """The file and all headers of the project that it includes, directly or not."""
    files, waiting = {path}, [path]
    while waiting:
        new = set(included(waiting.pop())) - files
        files |= new
        waiting += new
    return files


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


def tidy(path: Path, checked: Checked) -> subprocess.CompletedProcess[str]:
    command = [CLANG_TIDY, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(path), "--", *checked.flags]
    return subprocess.run(command, cwd=checked.folder, capture_output=True, text=True, check=False)


def check_group(group: Sequence[Checked]) -> list[str]:
    """The findings in the files."""
    if len(group) > 1:
        with tempfile.TemporaryDirectory() as folder:
            together = Path(folder) / "together.cpp"
            together.write_text("".join(f'#include "{one.path}"\n' for one in group))
            if tidy(together, group[0]).returncode == 0:
                for checked in group:
                    checked.stamp.touch()
                return []
    findings = []
    for checked in group:
        done = tidy(checked.path, checked)
        if done.returncode == 0:
            checked.stamp.touch()
        else:
            findings.append(f"{checked.path.relative_to(ROOT)}:\n{done.stdout or done.stderr}")
    return findings


def groups_of(todo: Sequence[Checked]) -> list[list[Checked]]:
    alike: dict[tuple[Path, tuple[str, ...]], list[Checked]] = {}
    for checked in sorted(todo, key=lambda one: one.path):
        alike.setdefault((checked.path.parent, checked.flags), []).append(checked)
    return [some[first : first + TOGETHER] for some in alike.values() for first in range(0, len(some), TOGETHER)]


def texts() -> dict[str, str]:
    """A hash of each file's text, by its path; of the checks as well."""
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".h", ".cpp")]
    files.append(ROOT / ".clang-tidy")
    return {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in sorted(files)}


def changed(sources: Sequence[Path]) -> set[Path]:
    """The files that have to be checked, so that every text that changed since the list was written is looked at."""
    passed = dict(line.split() for line in PASSED.read_text().splitlines())
    differing = [ROOT / path for path, text in texts().items() if passed.get(path) != text]
    if ROOT / ".clang-tidy" in differing:
        return set(sources)
    representatives = set(sources).intersection(differing)
    for header in (path for path in differing if path.suffix == ".h"):
        through = [source for source in sources if header in reached(source)]
        if not representatives.intersection(through):
            representatives.update(sorted(through, key=lambda source: (source.stem != header.stem, source))[:1])
    return representatives


def main() -> int:
    build, extent = Path(sys.argv[1]).resolve(), sys.argv[2]
    tool = subprocess.run([CLANG_TIDY, "--version"], capture_output=True, text=True, check=True).stdout
    stamps = build / "stamps"
    stamps.mkdir(exist_ok=True)
    todo = []
    current = set()
    entries = {Path(entry["file"]): entry for entry in json.loads((build / "compile_commands.json").read_text())}
    sources = [path for path in entries if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FOLDERS]
    chosen = changed(sources) if extent == "--changed" else set(sources)
    for path in chosen:
        entry = entries[path]
        stamp = stamps / stamp_name(path, entry["command"], tool)
        current.add(stamp)
        if not stamp.exists():
            todo.append(Checked(path, flags_of(entry["command"]), entry["directory"], stamp))
    for stamp in set(stamps.iterdir()) - current if extent == "--whole" else ():
        stamp.unlink()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        findings = [finding for found in pool.map(check_group, groups_of(todo)) for finding in found]
    print("\n".join([*findings, f"{len(todo)} of {len(sources)} files checked, {len(findings)} with findings"]))
    if not findings:
        PASSED.write_text("".join(f"{path} {text}\n" for path, text in texts().items()))
    return len(findings) > 0


if __name__ == "__main__":
    sys.exit(main())
