"""Output of a run of 200 training steps under each tool of `op-tools run`: lines that are printed, files, their bytes, and the CPU
time of the steps, of all threads, as a multiple of that without a tool.

    ./dev bench run_output [--package FOLDER] [--steps 200] [--quick]

A network of two layers trains on the simulated device, of which two operators are wrong in each step, and a third makes NaN. The lines of
another version: --package names a checkout that is built.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from _measure import arguments

ROOT = Path(__file__).resolve().parents[1]
TOOLS = {
    "(none)": (),
    "--autocompare": (),
    "--overflow": (),
    "--observe": (),
    "--time": (),
    "--memory": (),
    "--record": ("RECORDING",),
    "--capture": (),
    "--invariance": (),
    "--blackbox": (),
}
PROGRAM = """
import time
import torch
import op_tools.sim_device

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64)).to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
values = torch.randn(32, 64).to("sim")
began = time.process_time()
for step in range({steps}):
    loss = torch.exp(torch.tanh(model(values))).mean() + torch.sin(values).mean()
    (values * 0).log()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("seconds of the steps:", time.process_time() - began)
"""
FAULTS = "scale:ops=exp,scale=1.5;scale:ops=sin,scale=1.25"
_NO_SUCH_TOOL = 64  # the exit status of wrong usage
_SECONDS = re.compile(r"seconds of the steps: ([\d.]+)")


def measured(package: Path, words: tuple[str, ...], steps: int) -> tuple[int, int, int, float] | None:
    """Lines, files, bytes, and CPU seconds of the steps; None for a tool that a version does not have."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "train.py").write_text(PROGRAM.format(steps=steps))
        variables = {
            **os.environ,
            "PYTHONPATH": str(package),
            "OP_TOOLS_BUILD_DIR": str(package / "build" / "dev"),
            "OP_TOOLS_SIM_FAULTS": FAULTS,
            "OP_TOOLS_LOG_LEVEL": "notice",
        }
        tool = ["-m", "op_tools", "run", *words] if words else []
        done = subprocess.run(
            [sys.executable, *tool, "train.py"], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        output = done.stdout + done.stderr
        if done.returncode == _NO_SUCH_TOOL:
            return None
        seconds = _SECONDS.search(output)
        if seconds is None:
            raise SystemExit(f"{' '.join(words)}: status {done.returncode}\n{output[-2000:]}")
        lines = [line for line in output.splitlines() if line.strip() and not _SECONDS.match(line)]
        files = [path for path in folder.rglob("*") if path.is_file() and path.name != "train.py"]
        return len(lines), len(files), sum(path.stat().st_size for path in files), float(seconds[1])


def main() -> None:
    """Prints the rows of a table."""
    options = arguments(__doc__)
    options.add_argument("--package", type=Path, default=ROOT)
    options.add_argument("--steps", type=int, default=200)
    chosen = options.parse_args()
    rounds = 1 if chosen.quick else 2
    without = 0.0
    print("| tool | lines | files | MB | CPU time |\n|---|---|---|---|---|", flush=True)
    for tool, more in TOOLS.items():
        words = (tool, *more) if tool.startswith("--") else ()
        rows = [measured(chosen.package, words, chosen.steps) for _ in range(rounds)]
        best = min(filter(None, rows), key=lambda row: row[-1], default=None)
        if best is None:
            print(f"| `{tool}` | | | | |", flush=True)
            continue
        lines, files, size, seconds = best
        without = without or seconds
        print(f"| `{tool}` | {lines:,} | {files:,} | {size / 1e6:.2f} | {seconds / without:.2f} |", flush=True)


if __name__ == "__main__":
    main()
