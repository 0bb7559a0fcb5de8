"""run_op_from_data against Python: how long until its first operator, and how fast it gets through many small captures.

./dev bench replay [--quick] [--calls 10000]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _measure import PROMISE, ROOT, Report, Spent, Turns, arguments, verdict

import op_tools

PROGRAM = Path(os.environ.get("OP_TOOLS_BUILD_DIR", ROOT / "build" / "dev")) / "run_op_from_data"
LOOP = """
import pathlib, sys, torch
torch.set_num_threads(1)
functions = {"torch.add": torch.add, "torch.mm": torch.mm, "torch.relu": torch.relu, "torch.softmax": torch.softmax}
for file in pathlib.Path(sys.argv[1]).rglob("input.pth"):
    call = torch.load(file, weights_only=True)
    functions[call["name"]](*call["args"], **call["kwargs"])
"""


def process(*command: object) -> Callable[[], Spent]:
    """Wall time, and CPU time of all its threads, of a process."""

    def run() -> Spent:
        before = os.times()
        start = time.perf_counter()
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        after = os.times()
        return Spent(wall, after.children_user + after.children_system - before.children_user - before.children_system)

    return run


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--calls", type=int, default=10_000)
    options = parser.parse_args()
    calls = options.calls // (10 if options.quick else 1)
    report = Report("replay")
    table = report.table("run_op_from_data", *PROMISE)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    with tempfile.TemporaryDirectory() as folder:
        with op_tools.OpCapture(output_dir=f"{folder}/single"):
            torch.add(x, y)
        turns = Turns(
            {
                "replay": process(PROGRAM, f"{folder}/single"),
                "import": process(sys.executable, "-c", "import torch"),
                "library": process(PROGRAM, "--help"),
            },
            5 if options.quick else 21,
        )
        ratio = turns.ratio("replay", "import")
        table.row(
            "run_op_from_data, start to first operator (a whole run of one call)",
            'python -c "import torch"',
            "<= 0.5x",
            f"{ratio:.2f}x of the CPU time, {turns.ratio('replay', 'import', 'wall'):.2f}x wall",
            verdict(ratio, most=0.5),
            f"{turns.median('replay', 'wall'):.2f} s against {turns.median('import', 'wall'):.2f} s; "
            f"loading libtorch alone: {turns.median('library', 'wall'):.2f} s",
        )
        for layout in ("folders", "container"):
            with op_tools.OpCapture(output_dir=f"{folder}/{layout}", format=layout):
                for _ in range(calls // 4):
                    torch.add(x, y)
                    torch.mm(x, y)
                    torch.relu(x)
                    torch.softmax(x, 0)
        turns = Turns(
            {
                "loop": process(sys.executable, "-c", LOOP, f"{folder}/folders"),
                "folders": process(PROGRAM, f"{folder}/folders", "--jobs", os.cpu_count()),
                "container": process(PROGRAM, f"{folder}/container", "--jobs", os.cpu_count()),
            },
            3 if options.quick else 7,
        )
        for layout in ("folders", "container"):
            ratio = turns.ratio("loop", layout, "wall")
            table.row(
                f"run_op_from_data, {calls} small captures, {layout}, a job per core",
                "a Python loop with torch.load and the call (folders)",
                "at least 5x faster",
                f"{ratio:.1f}x, {turns.ratio('loop', layout):.1f}x less CPU",
                verdict(ratio, least=5),
                f"{turns.median(layout, 'wall'):.2f} s against {turns.median('loop', 'wall'):.2f} s",
            )
    report.write()


if __name__ == "__main__":
    main()
