"""Bring-up of a device: training diverges. Which operator is wrong, where, and how to train without it?

    ./dev run python examples/demo_bring_up.py

The device is the simulated one, with a wrong kernel planted: the gradient of relu has the wrong sign. OpAutoCompare
names the operator and the line, and saves the call; run_op_from_data reproduces the failure from the file, without the model;
OpFallback runs that operator on the CPU, and the loss curve is what it should be.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import op_tools
import op_tools.sim_device as sim

WRONG = "aten::threshold_backward"
FAULT = f"scale:ops={WRONG},scale=-1"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


def train(steps: int) -> list[float]:
    digits = load_digits()
    torch.manual_seed(0)
    images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1).to("sim")
    labels = torch.tensor(digits.target).to("sim")
    net = Net().to("sim")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        rows = slice(step * 32 % 1600, step * 32 % 1600 + 32)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(images[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def curve(losses: list[float]) -> str:
    shown = losses[:: max(1, len(losses) // 8)] + losses[-1:]
    return "   ".join(f"{loss:.3f}" for loss in shown)


def replay(folder: str) -> int:
    """Runs the saved call again on the device, in a process of its own, whose device has the same wrong kernel."""
    program = shutil.which("run_op_from_data")
    command = [program] if program else [sys.executable, "-m", "op_tools.run_op_from_data"]
    command += [f"{folder}/device", "--acc_check", "--load", "libop_tools_sim_device.so", "--device", "sim"]
    print("$", " ".join([Path(command[0]).name, *command[1:]]), flush=True)
    environment = {**os.environ, "OP_TOOLS_SIM_FAULTS": FAULT, "OP_TOOLS_LOG_LEVEL": "info"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    print("\n".join(done.stderr.splitlines()[:6]))
    print(done.stdout, end="")
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    parser.add_argument("--output", type=Path, help="folder for the result (a new temporary one)")
    options = parser.parse_args()
    output = options.output or Path(tempfile.mkdtemp(prefix="op_tools_bring_up_"))

    right = train(options.steps)
    print("1. The loss as it should be:   ", curve(right))
    with sim.fault("scale", ops=WRONG, scale=-1):
        wrong = train(options.steps)
        print("2. The loss on the new device: ", curve(wrong))

        with op_tools.OpAutoCompare(output_dir=output) as compare:
            train(1)
        result = compare.result()
        print(f"\n3. OpAutoCompare on one step: {result.failed} results wrong, {result.passed} right")
        failure = result.failures[0]
        print(
            f"   {failure['op']} {failure['what']}: {failure['deciding']} {failure['number']:.3g}, limit {failure['limit']:.3g}"
        )
        print(f"   called at {failure['source']}")
        print(f"   saved in {failure['saved']}\n")

        print("4. The same failure from the file, without the model")
        status = replay(failure["saved"])

        with op_tools.OpFallback(ops=failure["op"]):
            restored = train(options.steps)
        print(f"\n5. {failure['op']} on the CPU:", curve(restored))
    same = max(abs(a - b) for a, b in zip(right, restored, strict=True)) < 1e-3
    print("   the loss is what it should be" if same else "   the loss is still not what it should be")
    return 0 if status == 1 and same and wrong[-1] > right[-1] + 1 else 1


if __name__ == "__main__":
    sys.exit(main())
