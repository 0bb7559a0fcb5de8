"""No false alarm: usual models train for 20 steps under OpAutoCompare, and nothing is reported.

    ./dev prove compare_models [--steps 20] [--models lenet llama ...] [--devices cpu sim]

On the CPU and on the simulated device without faults, at both levels, in float32, bfloat16 and autocast. The compared run's
losses must be the uncompared run's.
"""

# ruff: noqa: E402  (the path and the log level come before the imports)
from __future__ import annotations

import argparse
import importlib
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "proofs"), str(ROOT / "tests" / "python"), str(ROOT)]
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import _zoo
import torch
import torch.nn.functional as F
from models import MODELS, OPTIMIZERS, ResNet, digits

import op_tools

OF_DIGITS = {**MODELS, "resnet": ResNet}
PRECISIONS = ("float32", "bfloat16", "autocast")


def train(
    model: str, device: str, precision: str, steps: int, tool: op_tools.OpAutoCompare | None = None
) -> list[float]:
    """Trains from a fixed seed; returns the losses."""
    if model not in OF_DIGITS:
        return _zoo.train(model, device, precision, steps, tool.step if tool else lambda: None)
    torch.manual_seed(7)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    images, labels = digits()
    images, labels = images.to(device, dtype), labels.to(device)
    network = OF_DIGITS[model]().to(device, dtype)
    method = OPTIMIZERS["adam" if model in ("lstm", "resnet") else "sgd"](network.parameters())
    losses = []
    for number in range(steps):
        rows = slice(number * 16, number * 16 + 16)
        method.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"):
            loss = F.cross_entropy(network(images[rows]).float(), labels[rows])
        loss.backward()
        method.step()
        losses.append(loss.detach())
        if tool is not None:
            tool.step()
    return [loss.item() for loss in losses]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", nargs="*", default=[*OF_DIGITS, *_zoo.ZOO])
    parser.add_argument("--devices", nargs="*", default=["cpu", "sim"])
    parser.add_argument("--levels", nargs="*", default=["torch", "aten"])
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS))
    options = parser.parse_args()
    if "sim" in options.devices:  # not beside CUDA: torch has one accelerator in a process
        importlib.import_module("op_tools.sim_device")
    wrong = 0
    for device, model, precision in itertools.product(options.devices, options.models, options.precisions):
        plain = train(model, device, precision, options.steps)
        repeats = plain == train(model, device, precision, options.steps)  # not where a kernel adds in any order
        for level in options.levels:
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                tool = op_tools.OpAutoCompare(level=level, output_dir=folder, max_saved=0)
                with tool:
                    compared = train(model, device, precision, options.steps, tool)
                result = tool.result()
            moved = repeats and compared != plain
            wrong += result.failed + moved
            print(
                f"{device:<4} {model:<12} {precision:<9} {level:<6} {result.calls:>6} calls, {result.passed:>6} right, "
                f"{result.failed} failures, {result.not_judged:>4} not judged, "
                f"losses {'DIFFER' if moved else 'the same' if repeats else 'differ without it'}, {time.monotonic() - start:.0f} s",
                flush=True,
            )
            shown = set()
            for row in result.failures:
                if (row["op"], row["what"]) not in shown:
                    shown.add((row["op"], row["what"]))
                    print(
                        f"    {row['op']} {row['what']} step {row['step']}: {row['kind']} {row['reason']} "
                        f"{row['deciding']} {row['number']:.3g} over {row['limit']:.3g} {row.get('shape')} {row.get('dtype')}"
                    )
    print("no false alarm" if not wrong else f"{wrong} FALSE ALARMS")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
