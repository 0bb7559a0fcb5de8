"""Names from outside: captures whose entries, operators and ids are called "../../x", "/etc/x", "", NUL, escape sequences.

Each round makes a container (or a folder) with some such names beside good ones, and gives it to everything that reads
captures: op-tools export and show, op_tools.load and load_call, replay in Python and, for some, in C++. Nothing may be
made or changed outside of the folder that the export was given, no reader may fail otherwise than with its own message, no
control character may reach the terminal, no name may call anything but an operator, and the good calls are still read.

    names.py [--rounds 300] [--seed 0]
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch
from _program import parser, quiet
from _workers import Progress

import op_tools
from op_tools import __main__ as command_line
from op_tools import run_op_from_data

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev")) / "run_op_from_data"

PARTS = [
    "..",
    ".",
    "",
    "~",
    "/etc",
    "a\\..\\b",
    "\x1b[2J",
    "\x7f",
    "\udcff",
    "n" * 300,
    "calls.zip!x",
    "tensors",
    "7",
    "-1",
]
# False names of operators in a file.
OPERATORS = [
    "../../../escape",
    "/etc/escape",
    "..",
    "torch.add/../../escape",
    "torch.\x1b]0;mine\x07add",
    "torch.ops.aten.__class__",
    "torch.ops.aten.__dict__.update",
    "torch.ops.aten.add.__init__",
    "torch.ops.aten.from_file",
    "torch.ops.aten.from_file.default",
    "torch.from_file",
    "torch.load",
    "torch.hub.load",
    "torch.os.system",
    "aten::from_file",
    "os.system",
    "aten.from_file.default",
]
CANARY = "made-by-a-name"  # the file that operators which open files are asked for


def hostile_name(good: str, choose: random.Random) -> str:
    """An entry's name with parts that lead elsewhere, before, inside or behind."""
    parts = good.split("/")
    at = choose.randrange(len(parts))
    parts[at:at] = choose.choices(PARTS, k=choose.randint(1, 4))
    return "/".join(parts)


def call_file(name: str) -> bytes:
    """input.pth of a call that says it is of `name`; its arguments would make a file, if a name could."""
    args = (torch.ones(3), 1) if name.endswith("add") else (CANARY, True, 8)
    file = io.BytesIO()
    torch.save({"name": name, "args": args, "kwargs": {}, "id": 1}, file)
    return file.getvalue()


def make_capture(folder: Path, choose: random.Random) -> int:
    """A container with good and hostile entries, and folders with hostile operators; returns how many calls are good."""
    good = choose.randint(1, 3)
    run = folder / "op_capture_result" / "0" / "2024-08-06--11-41"
    run.mkdir(parents=True)
    with zipfile.ZipFile(run / "calls.zip", "w", zipfile.ZIP_STORED) as container:
        names = [f"torch.add/{number}/input.pth" for number in range(1, good + 1)]
        entries = dict.fromkeys(names, "torch.add")
        for number in range(choose.randint(1, 5)):
            entries[hostile_name(f"torch.add/{90 + number}/input.pth", choose)] = "torch.add"
        for name, operator in sorted(entries.items(), key=lambda _: choose.random()):
            container.writestr(_entry(name), call_file(operator))
        for name in names:
            container.writestr(name.replace("input.pth", "meta.json"), '{"name": "torch.add", "format": 1}')
    for number in range(choose.randint(1, 3)):
        call = run / "torch.mul" / str(50 + number)
        call.mkdir(parents=True)
        (call / "input.pth").write_bytes(call_file(choose.choice(OPERATORS)))
    return good


def _entry(name: str) -> zipfile.ZipInfo:
    """With the name as it is; the constructor would mend it."""
    info = zipfile.ZipInfo("x")
    info.filename = name.encode("utf-8", "replace").decode()
    return info


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """All that is below a folder: path, size, time."""
    paths = (path for path in folder.rglob("*"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in paths}


def said(run: list[str], statuses: set[int]) -> tuple[str, list[str]]:
    """The output of a command of op-tools, or of the replay (run[0] == "replay"), and its faults."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text), _descriptors() as file:
        status = run_op_from_data.main(run[1:]) if run[0] == "replay" else command_line.main(run)
        whole = text.getvalue() + file.read_text("utf-8", "surrogateescape")
    return whole, _complaints(run, whole, status, statuses)


@contextlib.contextmanager
def _descriptors() -> Iterator[Path]:
    """The standard output and error of C++ go to a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "printed")
        kept = [os.dup(1), os.dup(2)]
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            for descriptor in (1, 2):
                os.dup2(file, descriptor)
            yield path
        finally:
            for descriptor, old in zip((1, 2), kept, strict=True):
                os.dup2(old, descriptor)
                os.close(old)
            os.close(file)


def _complaints(run: list[str], text: str, status: int, statuses: set[int]) -> list[str]:
    complaints = []
    if status not in statuses:
        complaints.append(f"{run[0]}: exit status {status}: {text}")
    if any(not (character.isprintable() or character == "\n") for character in text):
        complaints.append(f"{run[0]}: printed control characters: {text!r}")
    return complaints


def _reads(capture: Path, good: int) -> list[str]:
    """load and load_call: op_tools.Error or a call."""
    complaints = []
    container = next(capture.rglob("calls.zip"))
    with zipfile.ZipFile(container) as entries:
        names = [name.rpartition("/")[0] for name in entries.namelist()]
    read = 0
    for name in names:
        with contextlib.suppress(op_tools.Error):
            read += op_tools.load_call(f"{container}!{name}").name == "torch.add"
    if read < good:
        complaints.append(f"load_call: {read} of {good} good calls")
    for file in capture.rglob("input.pth"):
        with contextlib.suppress(op_tools.Error):
            op_tools.load(file)
            op_tools.load_call(file.parent)
    return complaints


def one_round(folder: Path, choose: random.Random, *, with_program: bool) -> list[str]:
    """Makes a capture in `folder`/in, exports to `folder`/jail/out; the complaints."""
    capture, out = folder / "in", folder / "jail" / "deep" / "out"
    out.parent.mkdir(parents=True)
    good = make_capture(capture, choose)
    before = tree(folder)
    text, complaints = said(["export", str(capture), str(out)], {0, 1})
    exported = list(out.rglob("input.pth"))
    if len(exported) < good:
        complaints.append(f"export: {len(exported)} of {good} good calls: {text}")
    container = str(next(capture.rglob("calls.zip")))
    for run, statuses in (
        (["show", str(capture)], {0}),
        (["show", container], {0}),
        (["show", f"{container}!../../escape/1"], {2}),
        (["replay", str(capture), "--acc_check", "-v"], {0, 2}),
    ):
        complaints += said(run, statuses)[1]
    complaints += _reads(capture, good)
    if with_program:
        run = [str(PROGRAM), str(capture), "-v"]
        done = subprocess.run(run, capture_output=True, text=True, errors="surrogateescape", check=False, cwd=folder)
        complaints += _complaints(run, done.stdout + done.stderr, done.returncode, {0, 2})
    changed = {path for path, what in tree(folder).items() if before.get(path) != what}
    ours = {str(out.parent), *(path for path in changed if Path(path).is_relative_to(out))}
    complaints += [f"{path}: was made or changed" for path in sorted(changed - ours)]
    return complaints


def main() -> int:
    command = parser(__doc__)
    command.add_argument("--rounds", type=int, default=300, metavar="N")
    command.add_argument("--seed", type=int, default=0, metavar="N")
    options = command.parse_args()
    quiet("info")
    choose = random.Random(options.seed)
    wrong = 0
    progress = Progress(options.rounds, "names")
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder, "here")
            here.mkdir()
            os.chdir(here)  # a file that a name opens relative to the working directory is seen
            complaints = one_round(here, choose, with_program=number % 10 == 0)
            os.chdir(ROOT)
        progress.step()
        for line in complaints:
            print(f"round {number}: {line}")
        wrong += bool(complaints)
    print(f"{options.rounds} captures with names from outside: {wrong} with a finding")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
