"""The main job, end to end: train on an accelerator, capture the operators of the last step, replay them without Python.

    ./dev demo

Trains a small convolutional network on scikit-learn's 1,797 handwritten digits, on the simulated accelerator. OpCapture
records the last step. run_op_from_data then runs every recorded call again and compares it bit for bit.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "warn")  # a line per file is for looking closely

import torch
import torch.nn.functional as F
from _demo import command_text, output_folder, parser_with_output, replay, replay_command, story, title, wrapped
from sklearn.datasets import load_digits
from torch import nn

import op_tools
import op_tools.sim_device

DEVICE = "sim"
BATCH = 64
TEST = 297  # images for the test


class Net(nn.Module):
    """Two convolutions, two linear layers: 28,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(128, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.conv2(x))), 2)
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), 0.2, self.training)
        return self.fc2(x)


def size(count: int) -> str:
    return f"{count / 1000:.1f} KB" if count < 1_000_000 else f"{count / 1e6:.1f} MB"


def train(steps: int, output: Path) -> op_tools.CaptureResult:
    """Trains; returns the captured calls of the last step."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).div(16).unsqueeze(1).to(DEVICE)
    labels = torch.tensor(digits.target).to(DEVICE)
    torch.manual_seed(0)
    order = torch.randperm(len(images))
    test, rest = order[:TEST], order[TEST:]
    net = Net().to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    with op_tools.OpCapture(steps=[steps - 1], output_dir=output) as capture:
        for step in range(steps):
            rows = rest[torch.randint(len(rest), (BATCH,))]
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            capture.step()
            if step % max(1, steps // 8) == 0 or step == steps - 1:
                print(f"step {step + 1:4}/{steps}   loss {loss.item():.4f}")
    with torch.no_grad():
        right = (net.eval()(images[test]).argmax(1) == labels[test]).sum().item()
    print(f"{right} of {TEST} images of the test set are classified correctly ({100 * right / TEST:.1f}%)")
    return capture.result()


def show_tree(root: Path, most: int = 12) -> None:
    """The captured folders: a line for each operator, the files of a single call in full."""
    ops = sorted(root.iterdir(), key=lambda op: -sum(f.stat().st_size for f in op.rglob("*") if f.is_file()))
    print(f"{root}/")
    for number, op in enumerate(ops[:most]):
        calls = sorted(op.iterdir(), key=lambda call: int(call.name))
        files = [f for f in op.rglob("*") if f.is_file()]
        last = number == min(most, len(ops)) - 1 and len(ops) <= most
        count = f"{len(calls)} call{'s' if len(calls) > 1 else ''}"
        print(
            f"{'└' if last else '├'}── {op.name + '/':<42} {count:>9} {size(sum(f.stat().st_size for f in files)):>10}"
        )
        if number == 0:
            print(f"│   └── {calls[0].name}/")
            inside = sorted(calls[0].iterdir(), key=lambda f: (f.suffix, f.name))
            for file in inside:
                branch = "└" if file is inside[-1] else "├"
                print(f"│       {branch}── {file.name:<34} {size(file.stat().st_size):>20}")
    if len(ops) > most:
        rest = [f for op in ops[most:] for f in op.rglob("*") if f.is_file()]
        name = f"... {len(ops) - most} more operators"
        print(f"└── {name:<52} {size(sum(f.stat().st_size for f in rest)):>10}")


def replay_all(root: Path, report: Path) -> int:
    """Runs everything again on the device and compares; returns the exit status."""
    done = replay([str(root), "--acc_check", "--sync_time_measure", "--json", str(report)])
    lines = done.stderr.splitlines()
    shown = [line for line in lines if "conv2d" in line][:6] or lines[:6]
    print(wrapped("\n".join(shown)))
    if len(lines) > len(shown):
        print(f"... and {len(lines) - len(shown)} lines more like these, for each result, gradient and time\n")
    print(wrapped(done.stdout))
    return done.returncode


def main() -> int:
    parser = parser_with_output(__doc__)
    parser.add_argument("--steps", type=int, default=120, help="training steps (120)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    output = output_folder(options, "demo")

    story(1, "train on an accelerator, capture the operators of a step, run them again")
    title(f"1. Training on 1,500 handwritten digits on the device {DEVICE}, OpCapture on for step {options.steps}")
    captured = train(options.steps, output)
    root = Path(captured.root)

    title("2. The captured calls")
    calls, backward = (sum(getattr(row, key) for row in captured.rows) for key in ("calls", "backward"))
    print(
        f"{calls} calls of {len(captured.rows)} operators, {backward} backward passes, {size(captured.bytes_on_disk)}\n"
    )
    show_tree(root)

    title("3. Replay: the same calls again, without the model and without Python")
    status = replay_all(root, output / "report.json")

    title("Try next")
    call = str(next(root.glob("torch.*conv2d/*")))
    print(command_text([*replay_command(), call, "--acc_check", "--run_times", "5", "--sync_time_measure"]))
    print(command_text([sys.executable, "-m", "op_tools", "show", call]))
    return status


if __name__ == "__main__":
    sys.exit(main())
