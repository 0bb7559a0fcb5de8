"""Builds and tests op_tools with several versions of torch, each in an environment and a copy of the sources of its own.

    ./dev matrix 2.7 2.10 2.12/3.12 2.11=/path/to/venv    # a minor of torch, /Python, =environment that is there already
    ./dev matrix --write                                  # the table of all rows that were run, into docs/torch_versions.md

A row's folder is build/matrix/2.12-3.12: `venv`, `source` (a copy of the tracked files; built in `source/build/dev`), logs, and
`row.json`. The checkout's own build is not touched. Compiled without optimisation: what differs between versions of torch are
declarations. The rows that are there read each other's files (tests/files_of_torch.py), and each row's build is run with the torch
of each other row of the same Python, where it has to end with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = ROOT / "build" / "matrix"
PAGE = ROOT / "docs" / "torch_versions.md"
BEGIN, END = "<!-- matrix: written by ./dev matrix -->\n", "<!-- end of matrix -->"
PYTHON = "3.11"  # of a row that names none
# A room's files are compiled together: most of the time goes into torch's headers.
FLAGS = (
    "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -g0 -DNDEBUG",
    "-DCMAKE_UNITY_BUILD=ON",
    "-DCMAKE_UNITY_BUILD_BATCH_SIZE=8",
)
TARGETS = (
    "op_tools_tests",
    "op_tools_sim_tests",
    "_C",
    "_sim",
    "run_op_from_data",
    "write_sample_pth",
    "op_tools_cut_writes",
)
TRANSPARENCY = "test_op_db.py"
CORE = (
    "test_autocompare.py",
    "test_replay_end_to_end.py",
    "test_record.py",
    "test_compare_runs.py",
    "test_fallback.py",
    "test_time_measure.py",
    "test_overflow.py",
    "test_unseen_threads.py",
    "test_saved_calls.py",
    "test_sim_device.py",
    "test_blackbox.py",
    "test_launcher.py",
    "test_as_cuda.py",
    "test_compiled.py",
    "test_invariance.py",
    "test_wrong_torch.py",
    "test_torch_limits.py",
)
HEADS = ("torch", "Python", "built", "C++ tests", "pytest core", "transparency", "files of other rows", "wrong torch")


@dataclass
class Row:
    """A cell is a text, "" where it was not run."""

    name: str  # of the folder: 2.12-3.12
    torch: str = ""  # the whole version
    python: str = ""
    built: str = ""
    cpp: str = ""
    core: str = ""
    transparency: str = ""
    files: str = ""
    wrong: str = ""
    faults: list[str] = field(default_factory=list)  # names of tests that failed

    @property
    def folder(self) -> Path:
        return ROWS / self.name

    @property
    def source(self) -> Path:
        return self.folder / "source"

    @property
    def build(self) -> Path:
        return self.source / "build" / "dev"

    @property
    def interpreter(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    def environment(self, interpreter: Path | None = None) -> dict[str, str]:
        venv = (interpreter or self.interpreter).parents[1]
        return {
            **os.environ,
            "PATH": f"{venv / 'bin'}:{self.build}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(venv),
            "PYTHONPATH": str(self.source),
            "OP_TOOLS_BUILD_DIR": str(self.build),
            "CCACHE_BASEDIR": str(self.source),
        }

    def run(self, log: str, *command: object, seconds: int = 3600) -> tuple[int, str]:
        """The exit status, and all that was printed, which is in the folder's file of that name as well."""
        with (self.folder / log).open("w+") as file:
            try:
                status = subprocess.run(
                    list(map(str, command)),
                    cwd=self.source,
                    env=self.environment(),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=seconds,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                status = 124
            file.seek(0)
            return status, file.read()

    def keep(self) -> None:
        (self.folder / "row.json").write_text(json.dumps(asdict(self), indent=1))


def find_interpreter(version: str) -> str:
    """Of a Python in PATH (where a command of pyenv may be for a version that is switched off), or of pyenv."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    for candidate in filter(None, (shutil.which(f"python{version}"), *map(str, pyenv))):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    raise FileNotFoundError(f"no Python {version} is installed")


def answer(interpreter: Path, code: str) -> str:
    """The text that a program prints."""
    command = [str(interpreter), "-W", "ignore", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make_environment(row: Row, torch: str, python: str, given: str) -> None:
    venv = row.folder / "venv"
    if given:
        if not venv.is_symlink():
            venv.symlink_to(Path(given).absolute())
    elif not (venv / "ready").exists():
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([find_interpreter(python), "-m", "venv", venv], check=True)
        pip = [str(row.interpreter), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, f"torch=={torch}.*"], check=True)
        installed = answer(row.interpreter, "from importlib.metadata import version; print(version('torch'))")
        constraint = venv / "constraint.txt"
        constraint.write_text(f"torch=={installed}\n")
        subprocess.run([*pip, "-c", str(constraint), "-r", str(ROOT / "requirements.txt")], check=True)
        (venv / "ready").touch()
    ask = "import platform, torch; print(torch.__version__, platform.python_version())"
    row.torch, row.python = answer(row.interpreter, ask).split()


def copy_sources(row: Row) -> None:
    """The tracked files; those that are the same keep their time, so that nothing is compiled twice. Sources that are gone
    are gone from the copy, where CMake would find them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).exists()}
    for suffix in ("*.cpp", "*.h", "*.py"):
        for copy in row.source.rglob(suffix):
            name = str(copy.relative_to(row.source))
            if name not in names and not name.startswith("build/") and name != "op_tools/_build_info.py":
                copy.unlink()
    for name in names:
        file, copy = ROOT / name, row.source / name
        if not copy.exists() or copy.read_bytes() != file.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)


def install_parts(row: Row) -> None:
    """The package beside the product, whose commands the tests expect. (Not into an environment of somebody's own.)"""
    if not (row.folder / "venv").is_symlink():
        options = ["-q", "--no-index", "--no-deps", "--no-build-isolation"]
        row.run("parts.log", row.interpreter, "-m", "pip", "install", *options, "-e", row.source / "compat")


def build(row: Row) -> bool:
    command = ["cmake", "--preset", "dev", f"-DPython_EXECUTABLE={row.interpreter}", *FLAGS]
    status, text = row.run("configure.log", *command)
    if status == 0:
        jobs = os.environ.get("OP_TOOLS_JOBS", str(os.cpu_count()))
        status, text = row.run("build.log", "cmake", "--build", row.build, "-j", jobs, "--target", *TARGETS)
    if status != 0:
        errors = [line for line in text.splitlines() if "error" in line.lower()]
        row.built = f"no: {(errors or text.splitlines() or ['?'])[0].strip()[:160]}"
        return False
    row.built = "yes"
    return True


def test_cpp(row: Row) -> None:
    passed = failed = 0
    for program in ("op_tools_tests", "op_tools_sim_tests"):
        status, text = row.run(f"{program}.log", row.build / "tests" / "cpp" / program)
        whole = re.search(r"All tests passed \(.* in (\d+) test cases?\)", text)
        parts = re.search(r"test cases: +\d+ \|(?: +(\d+) passed)?(?: \|)? +(\d+) failed", text)
        if whole and status == 0:
            passed += int(whole[1])
        elif parts:
            passed += int(parts[1] or 0)
            failed += int(parts[2])
        else:
            failed += 1
            row.faults.append(f"{program}: status {status}")
        row.faults += [f"{program}: {name}" for name in re.findall(r"^-+\n(.+)\n-+$", text, re.MULTILINE)]
    row.cpp = counted(passed, failed, 0)


def counted(passed: int, failed: int, skipped: int) -> str:
    return f"{passed} of {passed + failed}" + (f", {skipped} skipped" if skipped else "")


def test_python(row: Row, files: tuple[str, ...]) -> str:
    """Each file in a process of its own: a test that brings its process down spoils no other file."""
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    for file in files:
        command = [row.interpreter, "-m", "pytest", "-q", "-rfE", "--tb=short", f"tests/python/{file}"]
        status, text = row.run(f"{file}.log", *command, seconds=900)
        last = text.splitlines()[-1:]
        found = re.findall(r"(\d+) (passed|failed|error|skipped)", last[0]) if status in (0, 1) and last else []
        for number, kind in found:
            counts[kind] += int(number)
        if not found:
            counts["failed"] += 1
            row.faults.append(f"{file}: status {status}")
        row.faults += re.findall(r"^(?:FAILED|ERROR) tests/python/(\S+)", text, re.MULTILINE)
    return counted(counts["passed"], counts["failed"] + counts["error"], counts["skipped"])


def read_files(rows: list[Row]) -> None:
    """Each row writes; then each reads those of all others."""
    script = ROOT / "tests" / "files_of_torch.py"
    written = []
    for row in rows:
        status, text = row.run("write.log", row.interpreter, script, "write", row.folder / "files")
        if status == 0:
            written.append(row)
        else:
            row.files = "wrote none"
            row.faults.append(f"files: {text.splitlines()[-1:]}")
    for row in written:
        others = [other for other in written if other is not row]
        read = 0
        for other in others:
            log = f"read-{other.name}.log"
            status, text = row.run(log, row.interpreter, script, "read", other.folder / "files", row.folder / "files")
            read += status == 0
            if status != 0:
                row.faults.append(f"files of {other.name}: {text.splitlines()[:1]}")
        row.files = f"{read} of {len(others)}" if others else "no other row"


def ends_with_a_sentence(row: Row, other: Row) -> list[str]:
    """The row's build beside the other's torch: what is wrong about the ends of the program, the import and a command."""
    environment = row.environment(other.interpreter)
    site = answer(other.interpreter, "import importlib.util as u; print(u.find_spec('torch').origin)")
    libraries = {**environment, "LD_LIBRARY_PATH": str(Path(site).parent / "lib")}
    problems = []
    for title, command, variables in (
        ("import", [other.interpreter, "-W", "ignore", "-c", "import op_tools"], environment),
        ("command", [other.interpreter, "-W", "ignore", "-m", "op_tools.run_op_from_data", "nowhere"], environment),
        ("program", [row.build / "run_op_from_data", "--jobs", "2", "nowhere"], libraries),
    ):
        words = list(map(str, command))
        # Not in the sources, whose package Python would find first.
        done = subprocess.run(words, cwd=row.folder, env=variables, capture_output=True, text=True, check=False)
        last = (done.stderr.splitlines() or [""])[-1]
        if done.returncode <= 0 or done.returncode >= 128 or "install torch" not in last.lower():
            problems.append(f"{title}: status {done.returncode}: {last[:200]}")
    return problems


def try_wrong_torch(rows: list[Row]) -> None:
    for row in rows:
        others = [other for other in rows if other.python == row.python and other is not row]
        right = 0
        for other in others:
            problems = ends_with_a_sentence(row, other)
            right += not problems
            row.faults += [f"with torch {other.torch}: {problem}" for problem in problems]
        row.wrong = f"{right} of {len(others)}" if others else "no other row of this Python"


def known_rows() -> list[Row]:
    rows = [Row(**json.loads(file.read_text())) for file in ROWS.glob("*/row.json")]
    return sorted(rows, key=lambda row: [int(part) for part in re.findall(r"\d+", row.name)])


def table(rows: list[Row]) -> str:
    """Cells that were not run, and the reason; the names of the tests that failed below."""
    lines = [list(HEADS), ["---"] * len(HEADS)]
    for row in rows:
        cells = [row.built, row.cpp, row.core, row.transparency, row.files, row.wrong]
        reason = "not run" if row.built == "yes" else "not built"
        lines.append([row.torch, row.python, *(cell or reason for cell in cells)])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    faults = "".join(f"- {row.name}: `{fault}`\n" for row in rows for fault in row.faults)
    return text + (f"\nFailed:\n\n{faults}" if faults else "")


def write_page(text: str) -> None:
    page = PAGE.read_text()
    begin = page.index(BEGIN) + len(BEGIN)
    PAGE.write_text(f"{page[:begin]}\n{text}\n{page[page.index(END, begin) :]}")


def run_row(version: str) -> None:
    named, _, given = version.partition("=")
    torch, _, python = named.partition("/")
    row = Row(f"{torch}-{python or PYTHON}")
    row.source.mkdir(parents=True, exist_ok=True)
    make_environment(row, torch, python or PYTHON, given)
    copy_sources(row)
    install_parts(row)
    if build(row):
        row.keep()
        test_cpp(row)
        row.core = test_python(row, CORE)
        row.transparency = test_python(row, (TRANSPARENCY,))
    row.keep()
    sys.stdout.write(table([row]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev matrix")
    parser.add_argument("versions", nargs="*", metavar="TORCH[/PYTHON][=ENVIRONMENT]")
    parser.add_argument("--write", action="store_true", help="the table into docs/torch_versions.md")
    options = parser.parse_args()
    for version in options.versions:
        run_row(version)
    built = [row for row in known_rows() if row.built == "yes"]
    for row in built:
        row.faults = [fault for fault in row.faults if not fault.startswith(("files", "with torch"))]
    read_files(built)
    try_wrong_torch(built)
    for row in built:
        row.keep()
    text = table(known_rows())
    sys.stdout.write(text)
    if options.write:
        write_page(text)


if __name__ == "__main__":
    main()
