"""Makes docs/images/autocompare.svg from a real run: the picture of the README.

    ./dev run python docs/make_image.py      (needs: pip install rich)

A small model runs a training step on the simulated device, whose gradient of relu has the wrong sign. OpAutoCompare finds
it; run_op_from_data runs the saved call again. The lines are those of the programs, with the temporary folder's name taken out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

IMAGE = Path(__file__).parent / "images" / "autocompare.svg"
WIDTH = 120
MOST_ROWS = 5  # of the table
FAULT = "scale:ops=threshold_backward,scale=-1"
SCRIPT = """\
import torch
import torch.nn.functional as F

import op_tools.sim_device

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
).to("sim")
images, labels = torch.randn(32, 1, 8, 8).to("sim"), torch.randint(10, (32,)).to("sim")
F.cross_entropy(model(images), labels).backward()
"""


def output_of(command: list[str], folder: Path, fault: str) -> list[str]:
    """Both output streams of a command, as lines."""
    environment = {**os.environ, "OP_TOOLS_LOG_LEVEL": "warn", "OP_TOOLS_SIM_FAULTS": fault}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout.replace(f"{folder}/", "").splitlines()


def main() -> int:
    console = Console(record=True, width=WIDTH, file=sys.stderr, force_terminal=True, color_system="truecolor")

    def show(command: str, lines: list[str]) -> None:
        console.print(Text("$ " + command, style="bold green"))
        for line in lines:
            text = Text(line)
            text.highlight_words(["WRONG", "is wrong", "Differ", "this run is right"], "bold red")
            text.highlight_regex(r"train\.py:\d+", "bold cyan")
            console.print(text)
        console.print()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "train.py").write_text(SCRIPT)
        output = output_of([sys.executable, "-m", "op_tools", "run", "--autocompare", "train.py"], folder, FAULT)
        first = next(number for number, line in enumerate(output) if line.startswith("op  "))
        rows = [line for line in output[first + 1 :] if not line.startswith("op_tools")]
        show("op-tools run --autocompare train.py", output[: first + 1] + rows[:MOST_ROWS])
        (call,) = folder.glob("op_autocompare_result/*/*/*/*/device")
        replay = ["run_op_from_data", str(call.relative_to(folder)), "--acc_check"]
        show(" ".join(replay), [line for line in output_of([*replay, "--quiet"], folder, "") if line])
    console.save_svg(str(IMAGE), title="op_tools")
    return 0


if __name__ == "__main__":
    sys.exit(main())
