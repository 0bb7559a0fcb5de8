"""From a wrong loss to a script for who made the device, by itself: op-tools bisect, then op-tools repro.

    ./dev run python examples/demo_bisect.py

The device is simulated, with a wrong kernel planted: the gradient of gelu is too large. op-tools bisect runs the
training script, which is not changed, with other operators on the CPU each time, until it knows which of them has to move. op-tools
repro makes a script of its first call: exit status 1 on the device, 0 on the CPU.
"""

import json
import os
import sys

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

from _demo import curve, hand_out, output_folder, parser_with_output, run, story, title

import op_tools.sim_device  # noqa: F401  (its library is named in a command)

WRONG = "aten::gelu_backward"
FAULT = f"scale:ops={WRONG},scale=1.5"
# SGD: with Adam, gradients that are too large by a constant factor change nothing but rounding.
SCRIPT = """\
import torch
import op_tools.sim_device

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)
).to("sim")
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
x = torch.randn(32, 8)
y = x.sum(1, keepdim=True).tanh()
for _ in range(5):
    loss = torch.nn.functional.mse_loss(model(x.to("sim")), y.to("sim"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
"""


def main() -> int:
    options = parser_with_output(__doc__).parse_args()
    output = output_folder(options, "bisect")
    script, report = output / "train.py", output / "result.json"
    script.write_text(SCRIPT)

    story(3, "the loss is wrong; from there to a script for who made the device")
    title("1. A training script, and which operator has to move for its loss to be right")
    print(SCRIPT)
    print(f"Planted: {WRONG} is 1.5 times too large.\n")
    command = [sys.executable, "-m", "op_tools", "bisect", "--jobs", "2", "--output", str(output / "bisect")]
    bisected = run([*command, "--json", str(report), "--", str(script)], {"OP_TOOLS_SIM_FAULTS": FAULT})
    result = json.loads(report.read_text())
    print("before:", curve(result["before"]))
    print("after: ", curve(result["after"]))

    title("2. A script of its first call: exit status 1 on the device, 0 on the CPU")
    handed_out = hand_out(result["captured"][0], output / "repro.py", FAULT)
    named = [culprit["op"] for culprit in result["culprits"]]
    print("op-tools bisect found the planted operator" if named == [WRONG] else f"found: {named}, planted: {WRONG}")
    return 0 if bisected == 0 and named == [WRONG] and handed_out == [0, 1, 0] else 1


if __name__ == "__main__":
    sys.exit(main())
