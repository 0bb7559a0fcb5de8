"""kill -9 at random moments of a capturing run: a file with its final name is whole, and the replay program names the others.

In each round a child captures without end and is killed; then every file (every whole entry of the container) is opened
by torch.load and json, and run_op_from_data has to replay whole files and to name cut ones: temporary files,
calls whose files are not all there, containers without a directory.

    crash.py [--rounds 200] [--layout folders container] [--seed 0]
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _program import parser, quiet
from _workers import Progress

import op_tools

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev")) / "run_op_from_data"
LONGEST = 0.25  # seconds until a child is killed


def capture_without_end(folder: Path, layout: str, started: int) -> None:
    """Small and large calls with backward, scopes that end now and then: every moment of writing comes along."""
    small = torch.randn(4, 4, requires_grad=True)
    large = torch.randn(300, 300, requires_grad=True)
    while True:
        with op_tools.OpCapture(format=layout, output_dir=str(folder)):
            for _ in range(20):
                F.linear(small, small).relu().sum().backward()
                torch.exp(large)
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(started, b"x")


def kill_after(seconds: float, folder: Path, layout: str) -> None:
    come, started = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(come)
            os.set_blocking(started, False)
            capture_without_end(folder, layout, started)
        finally:
            os._exit(9)
    os.close(started)
    os.read(come, 1)
    os.close(come)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def walk(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The whole entries of an archive, from header to header; returns where the last entry ends."""
    position = 0
    while data[position : position + 4] == b"PK\x03\x04":
        size = int.from_bytes(data[position + 18 : position + 22], "little")
        name_size, extra_size = (int.from_bytes(data[position + at : position + at + 2], "little") for at in (26, 28))
        start = position + 30 + name_size + extra_size
        if start + size > len(data):
            break
        yield data[position + 30 : position + 30 + name_size].decode(), data[start : start + size]
        position = start + size
    return position


@dataclass
class Found:
    """The files of a killed run."""

    files: int = 0
    calls: set[str] = field(default_factory=set)  # with an input.pth
    cut: set[str] = field(default_factory=set)  # files that the replay program has to name


def open_file(name: str, data: bytes) -> None:
    if name.endswith(".pth"):
        torch.load(io.BytesIO(data), weights_only=True)
    else:
        json.loads(data)


def note_calls(content: Found, names: set[str], prefix: str) -> None:
    """Calls and their missing files; `names` are paths below the run's folder."""
    for folder in {name.rpartition("/")[0] for name in names}:
        have = {name.rpartition("/")[2] for name in names if name.rpartition("/")[0] == folder}
        if "input.pth" in have:
            content.calls.add(prefix + folder)
        whole = {"input.pth", "meta.json"} <= have and ("grad_inputs.pth" in have) == ("grad_outputs.pth" in have)
        if not whole:
            content.cut.add(prefix + folder)


def look(folder: Path) -> Found:
    """Opens everything that has its final name; raises when something does not open."""
    whole = Found()
    for root in sorted(folder.glob("op_capture_result/0/*")):
        container = root / "calls.zip"
        if container.exists():
            data = container.read_bytes()
            entries, names = walk(data), set()
            end = None
            while end is None:
                try:
                    name, content = next(entries)
                except StopIteration as stop:
                    end = stop.value
                else:
                    open_file(name, content)
                    names.add(name)
            whole.files += len(names)
            if not has_directory(data, end, len(names)):
                whole.cut.add(str(container))
            note_calls(whole, names, f"{container}!")
        names = set()
        for path in root.rglob("*"):
            if not path.is_file() or path == container:
                continue
            if path.suffix == ".tmp":
                whole.cut.add(str(path))
                continue
            open_file(path.name, path.read_bytes())
            names.add(str(path.relative_to(root)))
        whole.files += len(names)
        note_calls(whole, names, f"{root}/")
    return whole


def has_directory(data: bytes, end: int, entries: int) -> bool:
    """After the last entry there is a whole directory of all of them, and nothing else."""
    tail = data[-22:]
    return (
        tail[:4] == b"PK\x05\x06"
        and int.from_bytes(tail[16:20], "little") == end
        and int.from_bytes(tail[10:12], "little") == entries
    )


def replay(folder: Path) -> dict[str, Any]:
    report = folder / "report.json"
    command = [PROGRAM, folder, "--acc_check", "-q", "--json", report]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert report.exists(), f"the replay program ended with status {done.returncode}: {done.stderr}"
    return {**json.loads(report.read_text()), "status": done.returncode}


def one_round(number: int, layout: str, chance: random.Random, parent: Path, totals: dict[str, int]) -> None:
    folder = parent / f"{layout}-{number}"
    folder.mkdir()
    kill_after(chance.random() * LONGEST, folder, layout)
    content = look(folder)
    totals["files"] += content.files
    totals["calls"] += len(content.calls)
    totals["cut"] += bool(content.cut)
    if content.files or content.cut:
        report = replay(folder)
        problems = report["problems"]
        unsaid = {path for path in content.cut if not any(problem.startswith(path + ":") for problem in problems)}
        assert not unsaid, f"nothing says that these were cut off: {unsaid}; said: {problems}"
        said = {problem.partition(": ")[0] for problem in problems}
        assert said <= content.cut, f"said to be cut off, and whole: {said - content.cut}"
        assert report["status"] == (2 if content.cut else 0), (report["status"], content.cut)
        summary = report["summary"]
        assert summary["differs"] == 0 and summary["could_not_run"] == 0, summary
        assert summary["calls"] == len(content.calls), (summary, len(content.calls))
        totals["replayed"] += summary["bit_equal"]
    shutil.rmtree(folder)


def main() -> int:
    command_line = parser(__doc__)
    command_line.add_argument("--rounds", type=int, default=200, metavar="N", help="kills per layout")
    command_line.add_argument("--layout", nargs="+", default=["folders", "container"], choices=["folders", "container"])
    command_line.add_argument("--seed", type=int, default=0)
    options = command_line.parse_args()
    quiet("off")
    parent = Path(tempfile.mkdtemp(prefix="crash-"))
    failed = 0
    for layout in options.layout:
        chance = random.Random(options.seed)
        totals = dict.fromkeys(("files", "calls", "replayed", "cut"), 0)
        progress = Progress(options.rounds, f"crash {layout}")
        for number in range(options.rounds):
            try:
                one_round(number, layout, chance, parent, totals)
            except Exception as error:
                failed += 1
                print(f"{parent / f'{layout}-{number}'} (kept): {type(error).__name__}: {error}")
            progress.step(f"{totals['files']} files")
        print(
            f"{layout}: {options.rounds} kills, {totals['cut']} of them cut something off, each said so; "
            f"{totals['files']} files of {totals['calls']} calls open, {totals['replayed']} replayed bit for bit"
        )
    if not failed:
        shutil.rmtree(parent)
    print(f"{failed} rounds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
