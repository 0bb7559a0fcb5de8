"""From a CUDA script to another device: which calls run there, whether the device is right, and a script for its maker.

    ./dev demo --port

The device is simulated, with a wrong kernel planted: the gradient of gelu is too large. The script says `cuda`
everywhere and is never changed.
"""

import csv
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

from _demo import curve, hand_out, output_folder, parser_with_output, run, story, title

import op_tools.sim_device  # noqa: F401  (its library is named in a command)

WRONG = "aten::gelu_backward"
FAULT = f"scale:ops={WRONG},scale=1.5"
SCRIPT = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x = torch.randn(32, 8).pin_memory()
y = x.sum(1, keepdim=True).tanh()
for _ in range(5):
    batch = x.cuda(non_blocking=True)
    loss = torch.nn.functional.mse_loss(model(batch), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item())
torch.cuda.synchronize()
"""


def wrong_operators(rows: Path) -> list[str]:
    """The failures in a result of op-tools conformance: the reasons name the operators."""
    with rows.open(newline="") as file:
        return sorted({row["reason"].split(":  ")[0] for row in csv.DictReader(file) if row["status"] == "differs"})


def main() -> int:
    options = parser_with_output(__doc__).parse_args()
    output = output_folder(options, "port")
    script, report = output / "train.py", output / "bisect.json"
    script.write_text(SCRIPT)
    op_tools_command = [sys.executable, "-m", "op_tools"]
    planted = {"OP_TOOLS_SIM_FAULTS": FAULT}

    def tool(*words: str | Path, **environment: str) -> int:
        return run([*op_tools_command, *map(str, words)], {**planted, **environment})

    story(4, "from a CUDA script to another device")
    print(SCRIPT)
    print(f"Planted in the device: {WRONG} is 1.5 times too large.")

    title("1. Before the first run: which calls of the script does the device run?")
    analysed = tool("analyse", "-i", script, "-o", output, "--device", "sim", "--fail-on", "unsupported")

    title("2. The script runs there as it is; its calls are captured")
    ran = tool("run", "--as-cuda", "sim", "--capture", "--output-dir", output, script)

    title("3. Is the device right? The script's own calls as a certificate")
    cases = ["--device", "sim", "--import", "op_tools.sim_device", "--captures", output / "op_capture_result"]
    certified = tool("conformance", "run", *cases, "-o", output / "conformance")
    named = wrong_operators(output / "conformance" / "cases.csv")
    print("\n".join(named))

    title("4. In the running program: which call is wrong, at which line")
    compared = tool("run", "--as-cuda", "sim", "--autocompare", "--fail-on-wrong", "--output-dir", output, script)

    title("5. Does the loss depend on it? Which operators have to move")
    search = ["bisect", "--jobs", "2", "--output", output / "bisect", "--json", report, "--", script]
    bisected = tool(*search, OP_TOOLS_AS_CUDA="sim")
    result = json.loads(report.read_text())
    print("before:", curve(result["before"]))
    print("after: ", curve(result["after"]))

    title("6. A script for who made the device: status 1 there, 0 on the CPU")
    handed_out = hand_out(result["captured"][0], output / "repro.py", FAULT)
    culprits = [culprit["op"] for culprit in result["culprits"]]
    right = culprits == [WRONG] and any("gelu" in name for name in named)
    print("conformance and bisect name the planted operator" if right else f"found: {named}, {culprits}")
    statuses = [analysed, ran, certified, compared, bisected, *handed_out]
    return 0 if right and statuses == [0, 0, 1, 1, 0, 0, 1, 0] else 1


if __name__ == "__main__":
    sys.exit(main())
