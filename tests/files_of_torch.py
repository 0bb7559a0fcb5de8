"""Files that an op_tools of one torch writes, and an op_tools of another reads: captures, recordings, repros, replay's tables.

    python tests/files_of_torch.py write FOLDER
    python tests/files_of_torch.py read FOLDER OWN    # of another torch; OWN: those that `write` made with this torch

`read` ends with 0 if each file gave what it has to give, with 1 and a line for each that did not. A saved result that is wrong is
among them: a reader that finds everything right fails. tests/torch_matrix.py runs both for each pair of versions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

import op_tools

PROGRAM = Path(os.environ["OP_TOOLS_BUILD_DIR"]) / "run_op_from_data"
SHOWS_NO_FAILURE = 1  # status of op-tools repro: all calls here are right
CALLS = "calls"  # in FOLDER: how many calls the capture has


def run_model() -> None:
    """The same numbers with every torch, up to rounding; several dtypes, views, random numbers, lists."""
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(shape, generator=generator) for shape in ((5, 6), (4, 6), (4,), (3, 4))]
    x, *weights = [tensor.requires_grad_(index > 0) for index, tensor in enumerate(draw)]
    hidden = torch.nn.functional.layer_norm(torch.nn.functional.linear(x, weights[0], weights[1]), (4,))
    logits = torch.nn.functional.gelu(hidden) @ weights[2].T
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2, 0, 1]))
    loss.backward()  # type: ignore[no-untyped-call]
    half = torch.cat([x.to(torch.bfloat16), x.to(torch.bfloat16)])[::2]
    torch.stack([half.sum(), half.max()])
    torch.complex(x[0], x[1]).abs()
    torch.arange(6).view(2, 3).to(torch.int8).argsort(dim=1)


def saved_call(capture: Path) -> Path:
    """The folder of the call whose result is spoilt for a replay that has to differ."""
    return next(meta.parent for meta in sorted(capture.rglob("meta.json")) if meta.parent.parent.name == "aten.gelu")


def write(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for form in ("folders", "container"):
        with op_tools.OpCapture(output_dir=folder / form, level="aten", format=form) as capture:
            run_model()
    (folder / CALLS).write_text(str(sum(row.calls for row in capture.result().rows)))
    with op_tools.OpRecord(output_dir=folder / "recording"):
        run_model()
    call = saved_call(folder / "folders")
    shutil.copytree(call, folder / "spoilt")
    saved = torch.load(folder / "spoilt" / "output.pth")
    torch.save({**saved, "args": tuple(tensor + 1 for tensor in saved["args"])}, folder / "spoilt" / "output.pth")
    done = ended("-m", "op_tools", "repro", call, "-o", folder / "repro.py")
    if done.returncode != SHOWS_NO_FAILURE:
        sys.exit(f"op-tools repro ended with {done.returncode}: {done.stderr[-2000:]}")


def ended(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def read(folder: Path, own: Path) -> list[str]:
    """A line for each file that did not give what it has to give."""
    problems = []

    def expect(title: str, done: subprocess.CompletedProcess[str], status: int) -> None:
        if done.returncode != status:
            problems.append(f"{title}: status {done.returncode}, not {status}: {(done.stderr or done.stdout)[-600:]}")

    def replay(part: str) -> subprocess.CompletedProcess[str]:
        command = [PROGRAM, folder / part, "--acc_check", "--json", report]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)

    report = own / "replayed.json"
    calls = int((folder / CALLS).read_text())
    for form in ("folders", "container"):
        expect(f"replay of {form}", replay(form), 0)
        if len(json.loads(report.read_text())["calls"]) != calls:
            problems.append(f"replay of {form}: not {calls} calls")
    expect("replay of the spoilt call", replay("spoilt"), 1)
    for file in sorted((folder / "folders").rglob("*.pth")):
        torch.load(file, weights_only=True)
    expect("compare", ended("-m", "op_tools", "compare", folder / "recording", own / "recording"), 0)
    expect("the repro", ended(folder / "repro.py"), 0)
    again = ended("-m", "op_tools", "repro", saved_call(folder / "folders"), "-o", own / "again.py")
    expect("op-tools repro", again, SHOWS_NO_FAILURE)
    return problems


def main() -> None:
    command, folder, *own = sys.argv[1:]
    if command == "write":
        write(Path(folder).absolute())
        return
    problems = read(Path(folder).absolute(), Path(own[0]).absolute())
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
