"""A call that was saved looks the same whoever saved it: OpCapture, OpAutoCompare (a failure), OpOverflowCheck (a producer)."""

import json
from pathlib import Path

import pytest
import torch

import op_tools
import op_tools.__main__ as command_line
import op_tools.sim_device as sim

LEVELS = ["aten", "torch"]
TOOLS = ["capture", "compare", "overflow"]


class Doubling(torch.nn.Module):
    def forward(self, x):
        return torch.mul(x, 2.0)


class Drawing(torch.nn.Module):
    def forward(self, x):
        return torch.bernoulli(x)


# The module, the operator in which the fault is, the input.
PROGRAMS = {
    "a column of a large matrix": (Doubling, "mul.Tensor", lambda: torch.rand(1000, 64, device="sim")[:, 3]),
    "random numbers": (Drawing, "bernoulli", lambda: torch.full((100,), 0.5, device="sim")),
}


def saved_by(tool, program, level, folder):
    """The folder of the only call of the program that the tool saved."""
    module, op, make_input = PROGRAMS[program]
    torch.manual_seed(3)
    model, x = module(), make_input()
    ops = f"torch.{op.partition('.')[0]}" if level == "torch" else f"aten::{op}"
    kind = {"capture": op_tools.OpCapture, "compare": op_tools.OpAutoCompare, "overflow": op_tools.OpOverflowCheck}[
        tool
    ]
    scope = kind(level=level, ops=ops, output_dir=folder)
    # (The device runs bernoulli as bernoulli_.)
    with sim.fault("nan", ops=op.partition(".")[0] + ".*"), scope:
        model(x)
    result = scope.result()
    if tool == "capture":
        (file,) = Path(result.root).rglob("input.pth")
        return file.parent
    if tool == "compare":
        (failure,) = result.failures
        return Path(failure["saved"], "device")
    (row,) = result.rows
    assert row.not_saved is None
    return Path(row.saved)


def keys_of(folder):
    """The keys of each file."""
    keys = {file.name: set(op_tools.load(file)) for file in folder.glob("*.pth")}
    keys["meta.json"] = set(json.loads((folder / "meta.json").read_text()))
    return keys


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_files_of_three_tools_hold_the_same(level, program, tmp_path):
    folders = {tool: saved_by(tool, program, level, tmp_path / tool) for tool in TOOLS}
    keys = {tool: keys_of(folder) for tool, folder in folders.items()}
    assert {"input.pth", "output.pth", "meta.json"} == keys["capture"].keys()
    expected = "restrided" if program.startswith("a column") else "rng"
    assert expected in keys["capture"]["input.pth"]
    if level == "torch":
        assert "aten" in keys["capture"]["input.pth"]
        # Which operator is behind a call is known only where every operator is watched: two microseconds for each call.
        for tool in ("compare", "overflow"):
            keys[tool]["input.pth"].add("aten")
            keys[tool]["meta.json"].add("aten")
    # A failure says besides by which facts it was judged.
    keys["compare"]["input.pth"].remove("judged")
    keys["compare"]["output.pth"].remove("memory")
    assert keys["compare"] == keys["capture"]
    assert keys["overflow"] == keys["capture"]

    calls = {tool: op_tools.load_call(folder) for tool, folder in folders.items()}
    for tool in ("compare", "overflow"):
        captured_call, other = calls["capture"], calls[tool]
        assert torch.equal(captured_call.args[0], other.args[0])
        for key in ("name", "level", "schema", "module", "model", "state", "rng_consumed", "rank", "inputs"):
            assert captured_call.meta.get(key) == other.meta.get(key), (tool, key)
        assert "test_saved_calls.py" in other.meta["stack"][0]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("level", LEVELS)
def test_each_is_shown_replayed_and_exported(level, tool, tmp_path, capsys, replay):
    folder = saved_by(tool, "a column of a large matrix", level, tmp_path / "saved")
    assert command_line.main(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "test_saved_calls.py" in shown and "not finite: " in shown
    again = replay(folder, "--acc_check")
    assert again.status == 1, again.out + again.err  # the CPU makes no NaN of it
    assert command_line.main(["export", str(tmp_path / "saved"), str(tmp_path / "out")]) == 0
    capsys.readouterr()
    (exported,) = [file.parent for file in (tmp_path / "out").rglob("input.pth") if file.parent.name != "cpu"]
    saved, other = op_tools.load_call(folder), op_tools.load_call(exported)
    assert saved.meta == other.meta
    assert torch.equal(saved.args[0], other.args[0]) and saved.args[1:] == other.args[1:]
    assert keys_of(exported) == keys_of(folder)
    assert replay(exported, "--acc_check").status == 1


def test_a_wrong_second_backward_pass_is_saved_with_its_call(tmp_path):
    x = torch.rand(8, device="sim", requires_grad=True)
    with op_tools.OpAutoCompare(ops="torch.sigmoid", output_dir=tmp_path) as tool:
        y = torch.sigmoid(x)
        y.sum().backward(retain_graph=True)
        with sim.fault("nan", ops="sigmoid_backward"):
            y.sum().backward()
    (failure,) = tool.result().failures
    saved = op_tools.load_call(Path(failure["saved"], "device"))
    assert torch.equal(saved.args[0].detach(), x.detach().cpu())
    assert saved.grad_inputs[0].isnan().any()
    assert not op_tools.load_call(Path(failure["saved"], "cpu")).grad_inputs[0].isnan().any()
