"""Programs with a planted cause, for op-tools diagnose: tests/proofs/stories.py tells all of them, test_diagnose.py the quick ones."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from op_tools._diagnose.answer import Cause

TRAIN = """
import argparse
import os
import sys

import torch

options = argparse.ArgumentParser()
options.add_argument("--device", default="sim")
options.add_argument("--seed", type=int, default=0)
options.add_argument("--data", default="")
options.add_argument("--steps", type=int, default=12)
options.add_argument("--sick", type=int, default=-1)
options.add_argument("--trouble", default="")
options = options.parse_args()
rank = int(os.environ.get("RANK", "0"))
if rank == options.sick:
    os.environ["OP_TOOLS_SIM_FAULTS"] = "scale:ops=_softmax,scale=1.25"
if options.device == "sim":
    import op_tools.sim_device
torch.manual_seed(options.seed)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(16, 16)
        self.out = torch.nn.Linear(16, 4)

    def forward(self, x):
        hidden = torch.tanh(self.into(x))
        hidden = torch.softmax(hidden, -1)
        return self.out(hidden)


def wrong_backend(graph, inputs):
    def compiled(*arguments):
        return tuple(output * 1.02 for output in graph(*arguments))

    return compiled


model = Block().to(options.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = torch.compile(model, backend=wrong_backend) if options.trouble == "compiler" else model
if options.data:
    import numpy

    data = torch.from_numpy(numpy.load(options.data))
else:
    data = torch.linspace(-1, 1, 512).reshape(32, 16).sin()
kept = []
for step in range(options.steps):
    x = data.to(options.device)
    y = run(x)
    if options.trouble == "leak":
        kept.append(y * 2)
    loss = (y - x[:, :4]).square().mean()
    if options.trouble == "nan":
        share = torch.relu(y - y.mean())
        loss = loss + (share * share.log()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("loss", loss.item(), flush=True)
"""


@dataclass(frozen=True)
class Story:
    """A program with a planted cause."""

    name: str
    cause: Cause
    ops: frozenset[str] = frozenset()
    """The operators to name; empty: any, or none."""
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    reference: str = ""
    """Arguments of the reference; "" for none."""
    options: tuple[str, ...] = ()
    ranks: int = 1
    rank: str = ""
    line: str = ""
    """A part of the guilty line's text."""
    prepare: Callable[[Path], None] = lambda _: None


def _save_data(folder: Path) -> None:
    import numpy

    data = numpy.sin(numpy.linspace(-1, 1, 512, dtype=numpy.float32)).reshape(32, 16)
    numpy.save(folder / "right.npy", data)
    data = data.copy()
    data[3, 5] += 0.75
    numpy.save(folder / "wrong.npy", data)


def _faults(text: str) -> dict[str, str]:
    return {"OP_TOOLS_SIM_FAULTS": text}


STORIES = (
    Story(
        "wrong kernel",
        Cause.WRONG_OPERATOR,
        frozenset({"aten::tanh_backward"}),
        variables=_faults("scale:ops=tanh_backward,scale=1.5"),
        line="hidden = torch.tanh",
    ),
    Story(
        "slow kernel",
        Cause.SLOW_OPERATOR,
        frozenset({"aten::_softmax"}),
        variables={"OP_TOOLS_SIM_LATENCY": "_softmax=40000"},
        reference="--device cpu",
        line="torch.softmax",
    ),
    Story("NaN", Cause.NOT_FINITE, frozenset({"aten::log"}), ("--trouble", "nan"), line="share.log()"),
    Story(
        "leak",
        Cause.MEMORY_GROWS,
        arguments=("--trouble", "leak", "--steps", "40"),
        reference="--device cpu --trouble leak",
        line="",
    ),
    Story(
        "hang",
        Cause.HANG,
        frozenset({"aten::tanh"}),
        variables=_faults("hang:ops=tanh,call=3"),
        options=("--stall", "20"),
        line="hidden = torch.tanh",
    ),
    Story("wrong rank", Cause.WRONG_RANK, frozenset({"aten::_softmax"}), ("--sick", "1"), ranks=2, rank="1"),
    Story(
        "wrong compiler",
        Cause.WRONG_COMPILER,
        frozenset({"torch.compile.graph_0"}),
        ("--trouble", "compiler", "--device", "cpu"),
        line="def forward",
    ),
    Story(
        "wrong data",
        Cause.DATA,
        arguments=("--data", "wrong.npy"),
        reference="--data right.npy",
        prepare=_save_data,
    ),
    Story("wrong seed", Cause.RANDOM_NUMBERS, arguments=("--seed", "1"), reference="--seed 0"),
    Story(
        "missing operator",
        Cause.MISSING_OPERATOR,
        frozenset({"aten::_softmax"}),
        variables=_faults("missing:ops=_softmax"),
        line="torch.softmax",
    ),
    Story(
        "two culprits",
        Cause.WRONG_OPERATOR,
        frozenset({"aten::tanh_backward", "aten::_softmax"}),
        variables=_faults("scale:ops=tanh_backward,scale=1.5;swap_rows:ops=_softmax"),
    ),
    Story("none", Cause.NOT_KNOWN, reference="--device cpu", arguments=("--steps", "10")),
)


def command_of(story: Story, folder: Path, launcher: Sequence[str]) -> list[str]:
    """The arguments of op-tools for a story; writes its files into a folder.

    Args:
        story: the story.
        folder: in which the command is to be run.
        launcher: the words in front of the program where it has several ranks.
    """
    (folder / "train.py").write_text(TRAIN.lstrip(), encoding="utf-8")
    story.prepare(folder)
    reference = ["--reference", f"train.py {story.reference}"] if story.reference else []
    words = [*(launcher if story.ranks > 1 else ()), "train.py", *story.arguments]
    return ["diagnose", *reference, *story.options, "--", *words]


def environment_of(story: Story) -> dict[str, str]:
    """The variables of the program."""
    return {"OMP_NUM_THREADS": "1", **story.variables}


def answer_in(folder: Path) -> dict[str, Any]:
    """The answer of a diagnosis that was run in a folder."""
    content: dict[str, Any] = json.loads((folder / "op_diagnose_result" / "diagnosis.json").read_text(encoding="utf-8"))
    return content


def faults_of(story: Story, answer: dict[str, Any]) -> list[str]:
    """Why an answer is not that of the story; empty where it is."""
    culprits = [culprit for culprit in answer["culprits"] if culprit["cause"] == answer["cause"]]
    faults = [] if answer["cause"] == story.cause.value else [f"cause {answer['cause']}"]
    ops = {culprit["op"] for culprit in culprits}
    if story.ops and ops != story.ops:
        faults.append(f"operators {', '.join(sorted(ops)) or 'none'}")
    if story.rank and {culprit["rank"] for culprit in culprits} != {story.rank}:
        faults.append("rank")
    if story.line and not any(_text_of_line(culprit["line"]).count(story.line) for culprit in culprits):
        faults.append(f"line {', '.join(culprit['line'] for culprit in culprits)}")
    if story.cause is Cause.NOT_KNOWN and answer["culprits"]:
        faults.append("a culprit is named")
    return faults


def _text_of_line(place: str) -> str:
    number = place.rpartition(":")[2].split()[0] if ":" in place else ""
    lines = TRAIN.lstrip().splitlines()
    return lines[int(number) - 1] if number.isdigit() else ""


def shown_command(story: Story, launcher: Sequence[str]) -> str:
    """For people."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in story.variables.items())
    return f"{variables} {story.name} {os.fspath(launcher[0]) if launcher else ''}".strip()
