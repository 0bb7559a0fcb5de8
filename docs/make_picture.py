"""Makes docs/images/report.png from a real run: the picture of docs/report.md.

    ./dev pictures      (needs Debian's chromium)

A small network trains on the simulated device, with two planted faults. op-tools report makes the page of its results, and a
headless Chromium takes the picture.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGE = Path(__file__).parent / "images" / "report.png"
FAULTS = "scale:ops=convolution_backward,call=10-12,scale=1.01;scale:ops=native_layer_norm,scale=1.02"
WIDTH, HEIGHT = 1200, 880  # pixels
SCRIPT = """\
import torch
import torch.nn.functional as F

import op_tools.sim_device


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return F.relu(x + self.conv2(F.relu(self.norm(self.conv1(x)))))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


torch.manual_seed(0)
model = Net().to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    images, labels = torch.randn(4, 3, 8, 8).to("sim"), torch.randint(10, (4,)).to("sim")
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def main() -> None:
    """Writes the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        environment = {**os.environ, "OP_TOOLS_SIM_FAULTS": FAULTS, "OP_TOOLS_LOG_LEVEL": "error"}
        command = [sys.executable, "-m", "op_tools"]
        run = ["run", "--autocompare", "--time", "--time-with-modules", "--time-with-stack", "train.py"]
        subprocess.run([*command, *run], cwd=folder, env=environment, check=True)
        report = ["report", ".", "-o", "report.html", "--title", "A network with two planted faults"]
        subprocess.run([*command, *report], cwd=folder, env=environment, check=True)
        page = folder / "report.html"
        # Lines of the program, without the name of the folder, which may be broken at its strokes.
        page.write_text(re.sub(re.escape(f"{folder}/").replace("/", "/(?:<wbr>)?"), "", page.read_text()))
        # The time is Chromium's own: it lets so much pass before it takes the picture.
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"]
        picture = [f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={IMAGE}", page.as_uri()]
        subprocess.run(["chromium", *options, *picture], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
