"""Bring-up of a device: training diverges. Which operator is wrong, where, and how to train without it?

    ./dev run python examples/demo_bring_up.py

The device is simulated, with a wrong kernel planted: the gradient of relu has the wrong sign. OpAutoCompare
names the operator and the line, and saves the call; run_op_from_data reproduces the failure from the file, without the model;
op-tools repro makes a script of it that needs torch alone, for who made the device; OpFallback runs that operator on the CPU, and the loss curve is right.
"""

import os
import sys

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
import torch.nn.functional as F
from _demo import curve, hand_out, output_folder, parser_with_output, replay, story, title, wrapped
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


def replay_failure(folder: str) -> int:
    """Runs the saved call again on the device, whose kernel is wrong in the new process, too."""
    done = replay([f"{folder}/device", "--acc_check"], {"OP_TOOLS_SIM_FAULTS": FAULT})
    print(wrapped("\n".join(done.stderr.splitlines()[:6])))
    print(wrapped(done.stdout))
    return done.returncode


def show_failures(result: op_tools.CompareResult) -> None:
    for number, failure in enumerate(result.failures, 1):
        print(
            f"{number}. {failure['op']} {failure['what']}: "
            f"{failure['deciding']} {failure['number']:.3g}, limit {failure['limit']:.3g}"
        )
        print(f"   called at {failure['source']}")
        print(f"   saved in {failure['saved']}")


def main() -> int:
    parser = parser_with_output(__doc__)
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    options = parser.parse_args()
    output = output_folder(options, "bring_up")

    story(2, "training diverges on a new device; which operator is wrong?")
    title("1. The loss as it should be, and on the new device")
    print(f"Planted: {WRONG} (the gradient of relu) has the wrong sign.\n")
    right = train(options.steps)
    print("right:  ", curve(right))
    with sim.fault("scale", ops=WRONG, scale=-1):
        wrong = train(options.steps)
        print("device: ", curve(wrong))

        with op_tools.OpAutoCompare(output_dir=output) as compare:
            train(1)
        result = compare.result()
        title(f"2. OpAutoCompare on a step: {result.failed} results wrong, {result.passed} right")
        show_failures(result)
        failure = result.failures[0]

        title("3. The first failure again, from its file, without the model")
        status = replay_failure(failure["saved"])

        title("4. A script for who made the device: torch alone, exit status 1 there, 0 on the CPU")
        handed_out = hand_out(f"{failure['saved']}/device", output / "repro.py", FAULT)

        title(f"5. OpFallback: {failure['op']} on the CPU")
        with op_tools.OpFallback(ops=failure["op"]):
            restored = train(options.steps)
        print("right:  ", curve(right))
        print("device: ", curve(restored))
    same = max(abs(a - b) for a, b in zip(right, restored, strict=True)) < 1e-3
    print("the loss is right" if same else "the loss is still wrong")
    return 0 if status == 1 and handed_out == [0, 1, 0] and same and wrong[-1] > right[-1] + 1 else 1


if __name__ == "__main__":
    sys.exit(main())
