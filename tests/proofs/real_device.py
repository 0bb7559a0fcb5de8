"""A device of another project: torchvulkan, a PrivateUse1 backend whose kernels run on Mesa's llvmpipe on any processor.

    ./dev prove real_device [--only autocompare compare overflow bisect conformance] [--steps 3] [--sample 500]

Needs `pip install torchvulkan` (as torch's version has it) and Debian's mesa-vulkan-drivers. A transformer, a CNN and an LSTM
written out are trained on it under each tool. Its known faults, below, have to be named, and nothing else may be: a report
about another operator ends it with status 1. Takes five minutes, most of them for conformance.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")

import torch
import torch.nn.functional as F
from _program import parser
from torch import Tensor, nn

try:
    import torchvulkan  # noqa: F401  (the backend: it has no entry point that torch would load)
except ImportError as error:
    raise SystemExit(
        f"real_device: no torchvulkan ({error}): pip install torchvulkan, apt-get install mesa-vulkan-drivers"
    ) from None

import op_tools

DEVICE = "vulkan"
# Operators that torchvulkan 0.2.1 gets wrong, each tried with torch alone against float64. Regular expressions of base names of
# operators.
KNOWN = {
    r"(eq|ne|ge|gt|le|lt|logical_and|logical_or|logical_xor|logical_not)_": "in place on numbers they write a byte an element",
    r"mean": "of a tensor without dimensions it gives the memory of its input",
    r"column_stack|argmax|argmin": "out= is not resized",
    r"lu_unpack|lu_factor(_ex)?|lu": "wrong permutations of complex128",
    r"matrix_exp|linalg_matrix_exp": "an empty batch raises",
    r"(acos|asin|atan|atan2|tanh|atanh)_?": "some hundred units in the last place",
    r"lgamma|mvlgamma|digamma|polygamma": "some units of 1 where the result is 0",
    r"_?(safe_|log_)?softmax.*|softmin": "strides of the input, where torch's own account is contiguous; float64 of integers in float32",
    r"linalg_lstsq|lstsq": "NaN for matrices of low rank, which torch asks of no driver but gelsy and gelsd",
}
# It computes float64 in float32, and says so: conformance cases of float64 that fail are counted, and not looked at further.
IN_FLOAT32 = "float64 in float32"


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (part.view(4, 12, 4, 8).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        weights = scores.softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(4, 12, 32))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return F.linear(x, self.embed.weight)[:, -1]


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.bn, self.fc = nn.BatchNorm2d(8), nn.Linear(16 * 4, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = (tokens.float() / 32).view(4, 1, 3, 4).repeat(1, 1, 4, 3)[..., :8, :8]
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        return self.fc(F.avg_pool2d(F.relu(self.conv2(x)), 2).flatten(1))


class Lstm(nn.Module):
    """Written out, because the device has none."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gates, self.fc = nn.Embedding(32, 16), nn.Linear(32, 64), nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        h = c = torch.zeros(4, 16, device=tokens.device)
        for x in self.embed(tokens).unbind(1)[:4]:
            i, f, g, o = self.gates(torch.cat((x, h), -1)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.fc(h)


class Gated(Transformer):
    """With the device's fault in its path: a comparison in place."""

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens)
        return logits * (logits.detach().clone().gt_(-0.1) + 0.5)


class Broken(Cnn):
    """With a logarithm of negative numbers."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + (tokens[:, :1].float() - 100).log().nan_to_num(0)


MODELS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "cnn": Cnn, "lstm": Lstm}


def train(make: Callable[[], nn.Module], device: str, steps: int, tool: object = None) -> Iterator[float]:
    torch.manual_seed(3)
    model = make().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        tokens = torch.randint(32, (4, 12), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step = getattr(tool, "step", None)
        if step is not None:
            step()
        yield loss.item()


def is_known(op: str) -> bool:
    return any(re.fullmatch(pattern, op_tools._C.base_name(op)) for pattern in KNOWN)


@dataclass
class Part:
    """A line of the table."""

    name: str
    looked_at: str
    named: list[str]
    """Operators, by the tool."""
    wanted: str = ""
    """An operator that has to be among them."""

    @property
    def blamed(self) -> list[str]:
        return sorted({op for op in self.named if not is_known(op) and op_tools._C.base_name(op) != self.wanted})

    @property
    def missed(self) -> bool:
        return bool(self.wanted) and self.wanted not in {op_tools._C.base_name(op) for op in self.named}

    def line(self) -> str:
        named = ", ".join(sorted(set(self.named))) or "nothing"
        verdict = (
            "BLAMED " + ", ".join(self.blamed)
            if self.blamed
            else "MISSED " + self.wanted
            if self.missed
            else "as it is"
        )
        return f"| {self.name} | {self.looked_at} | {named} | {verdict} |"


def autocompare(steps: int) -> Iterator[Part]:
    for name, make in {**MODELS, "gt_ in the model": Gated}.items():
        for level in ("torch", "aten"):
            with op_tools.OpAutoCompare(level=level, max_saved=0) as tool:
                list(train(make, DEVICE, steps, tool))
            result = tool.result()
            looked_at = (
                f"{result.passed + result.failed} of {result.passed + result.failed + result.not_judged} results"
            )
            wanted = "gt_" if make is Gated else ""
            yield Part(f"autocompare, {name}, {level}", looked_at, [row.op for row in result.failures], wanted)


def recorded(make: Callable[[], nn.Module], steps: int, folder: Path) -> list[Path]:
    for device in ("cpu", DEVICE):
        with op_tools.OpRecord(output_dir=str(folder / device), level="aten") as tool:
            list(train(make, device, steps, tool))
    return [folder / "cpu", folder / DEVICE]


def compare(steps: int) -> Iterator[Part]:
    for name, make in {**MODELS, "gt_ in the model": Gated}.items():
        with tempfile.TemporaryDirectory() as folder:
            compared = op_tools.compare_runs(*map(str, recorded(make, steps, Path(folder))))
            births = [rank.rows[i].op for rank in compared.ranks for i in rank.births]
            yield Part(f"compare, {name}", f"{len(compared.rows)} rows", births, "gt_" if make is Gated else "")


def overflow(steps: int) -> Iterator[Part]:
    for name, make in {**MODELS, "log of negative numbers": Broken}.items():
        for level in ("torch", "aten"):
            with op_tools.OpOverflowCheck(level=level) as tool:
                list(train(make, DEVICE, steps, tool))
            result = tool.result()
            makers = [row.op for row in result.rows if row.kind == "producer"]
            yield Part(f"overflow, {name}, {level}", f"{result.calls} calls", makers, "log" if make is Broken else "")


_PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import real_device
for loss in real_device.train(real_device.Gated, sys.argv[1] if len(sys.argv) > 1 else real_device.DEVICE, {steps}):
    print("loss", loss)
"""


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "op_tools", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def bisect(steps: int) -> Iterator[Part]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(_PROGRAM.format(paths=[str(Path(__file__).parent)], steps=steps))
        done = command("bisect", "--", "program.py", folder=folder)
        lines = done.stdout.splitlines()
        table = next((i for i, line in enumerate(lines) if line.startswith("op ")), len(lines))
        operators = [line.split()[0] for line in lines[table + 1 :] if "::" in line.split(" ")[0]]
        runs = next(
            (line for line in lines if re.match(r"\d+ runs", line)), f"status {done.returncode}: {done.stderr[-300:]}"
        )
        yield Part("bisect, gt_ in the model", runs, operators, "gt_")


def conformance(sample: int) -> Iterator[Part]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = (
            "--device",
            DEVICE,
            "--import",
            "torchvulkan",
            "-o",
            "result",
            "--source",
            "op_db",
            "--sample",
            str(sample),
        )
        command("conformance", "run", *words, folder=folder)
        rows = list(csv.DictReader((folder / "result" / "cases.csv").open()))
    failed = [row for row in rows if row["status"] in ("differs", "crashed", "hung", "error")]
    wide = [
        row for row in failed if row["dtype"] in ("float64", "complex128") and not row["reason"].startswith("after")
    ]
    named = [operator_of(row) for row in failed if row not in wide]
    judged = sum(row["status"] not in ("not judged", "unsupported") for row in rows)
    text = f"{judged} of {len(rows)} cases; {len(failed)} wrong, {len(wide)} of them {IN_FLOAT32}"
    yield Part("conformance", text, named, "mean")


def operator_of(row: dict[str, str]) -> str:
    """The operator that a reason blames ("aten::mean.dim: alias of output"), else the case's function."""
    blamed = re.match(r"((?:aten::|torch\.)[\w.]+): ", row["reason"])
    return blamed[1] if blamed else f"{row['op']}"


PARTS: dict[str, Callable[..., Iterable[Part]]] = {
    "autocompare": autocompare,
    "compare": compare,
    "overflow": overflow,
    "bisect": bisect,
    "conformance": conformance,
}


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    options.add_argument("--steps", type=int, default=3, metavar="N", help="of each training")
    options.add_argument("--sample", type=int, default=500, metavar="N", help="cases of conformance")
    parsed = options.parse_args()
    print("| tool, model | looked at | named | verdict |\n|---|---|---|---|")
    bad = 0
    for name in parsed.only:
        for part in PARTS[name](parsed.sample if name == "conformance" else parsed.steps):
            bad += bool(part.blamed) or part.missed
            print(part.line(), flush=True)
    print(f"{bad} parts not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
