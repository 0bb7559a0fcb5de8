"""Compiles the files that depend on torch's own classes against the headers of other versions of torch, without an installation of them.

    ./dev matrix --headers 2.7 2.14

The headers are those of torch's wheels for aarch64, the smallest (100 MB of 2.7, 450 MB of 2.14); they are the same on all processors, but for
parts that the compiler chooses. Kept in build/headers. Nothing is linked or run: `./dev matrix 2.7` does that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "bindings", "tools")
HEADERS = ROOT / "build" / "headers"
# What changes between minor versions: torch's own classes, and our answers to that.
FRAGILE = re.compile(
    r'^#include [<"](compat/|torch/csrc|c10/core/impl|ATen/detail|ATen/core/(dispatch|boxing|PythonFallback))',
    re.MULTILINE,
)
PLATFORMS = [f"--platform={tag}_aarch64" for tag in ("manylinux_2_28", "manylinux2014")]
PYTHON = "3.11"  # of the wheel; its headers are the same for all


def fragile_files() -> list[Path]:
    files = (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.cpp")))
    return [file for file in files if FRAGILE.search(file.read_text())]


def fetch_headers(minor: str) -> Path:
    """The folder of the package torch of that minor version, with its headers and version.py alone."""
    folder = HEADERS / minor / "torch"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory() as name:
        wanted = ["--no-deps", "--only-binary=:all:", *PLATFORMS, f"--python-version={PYTHON}", f"torch=={minor}.*"]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-cache-dir", *wanted, "-d", name]
        subprocess.run(pip, check=True)
        (wheel,) = Path(name).glob("*.whl")
        unpacked = Path(name) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            parts = [part for part in archive.namelist() if part.startswith("torch/include/")]
            archive.extractall(unpacked, [*parts, "torch/version.py"])
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked / "torch", folder)
    return folder


def compile_options(files: list[Path], torch: Path) -> list[str]:
    """Include folders and definitions of these files in build/tidy, with another folder of torch's."""
    entries = json.loads((ROOT / "build" / "tidy" / "compile_commands.json").read_text())
    options: dict[str, list[str]] = {}  # in the order in which they come
    for entry in entries:
        if Path(entry["file"]) not in files:
            continue
        words = iter(shlex.split(entry["command"]))
        for word in words:
            if word == "-isystem":
                include = next(words)
                include = re.sub(r"^.*/torch/include\b", str(torch / "include"), include)
                options[include] = [word, include]
            elif word.startswith(("-I", "-D", "-std=", "-fvisibility")):
                options[word] = [word]
    return [word for words in options.values() for word in words]


def compile_with(minor: str, files: list[Path]) -> tuple[str, str]:
    """The whole version of torch, and the compiler's errors, "" for none. All files at once: most of the time goes into torch's headers."""
    torch = fetch_headers(minor)
    version = re.search(r"__version__ = '([^']+)'", (torch / "version.py").read_text())
    text = "".join(f'#include "{file}"\n' for file in files)
    command = ["-fsyntax-only", "-Wno-attributes", "-x", "c++", "-", *compile_options(files, torch)]
    compiler = os.environ.get("CXX", "c++")
    done = subprocess.run([compiler, *command], cwd=ROOT, input=text, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if re.search(r"\berror\b", line)]
    failure = "\n".join(errors[:20]) or done.stderr[-2000:] if done.returncode else ""
    return version[1] if version else minor, failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev matrix --headers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("minors", nargs="+", metavar="TORCH", help="a minor version: 2.7")
    options = parser.parse_args()
    files, failed = fragile_files(), 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for version, errors in pool.map(partial(compile_with, files=files), options.minors):
            failed += bool(errors)
            said = f"do not compile:\n{errors}" if errors else "compile"
            sys.stdout.write(f"torch {version}: {len(files)} files that depend on its classes {said}\n")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
