"""OpRecord of modules: a row for each call of a module, forward and backward; the module with a planted fault is named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import op_tools
import op_tools._runs.judged_captures
import op_tools.run_op_from_data
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._base.own_command import op_tools_line

ROOT = Path(__file__).resolve().parents[2]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(x + self.fc2(self.act(self.fc1(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, x, scale=None):
        for block in self.blocks:
            x = block(x)
        return self.head(x) * scale


def trained(folder, device="cpu", steps=2, **options):
    torch.manual_seed(5)
    model = Net().to(device)
    method = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 16).to(device)
    with op_tools.OpRecord(output_dir=folder, modules_only=True, **options) as tool:
        for _ in range(steps):
            method.zero_grad()
            model(batch, scale=2).square().mean().backward()
            method.step()
            tool.step()
    return op_tools.read_recording(tool.result().path), model


def tensor_at(tensors, place):
    return next(tensor for where, tensor in tensors if where == place)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda weights: torch.optim.SGD(weights, lr=0.1, foreach=True),
        lambda weights: torch.optim.SGD(weights, lr=0.1, foreach=False),
        lambda weights: torch.optim.AdamW(weights, lr=0.1, fused=True),
    ],
)
def test_what_an_optimizer_leaves_is_what_it_wrote(optimizer, tmp_path):
    """Steps over lists of parameters, and fused ones, move no version counters."""
    torch.manual_seed(5)
    model, norms = Net(), []
    method = optimizer(model.parameters())
    with op_tools.OpRecord(output_dir=tmp_path, modules_only=True) as tool:
        for _ in range(3):
            method.zero_grad()
            model(torch.ones(8, 16), scale=2).square().mean().backward()
            method.step()
            norms.append(model.head.weight.norm().item())
            tool.step()
    calls = op_tools.read_recording(tool.result().path).calls
    steps = [call for call in calls if call.op.startswith("optimizer:")]
    written = [tensor_at(call.outputs, "result.Net.head.weight").norm for call in steps]
    assert written == pytest.approx(norms) and len(set(norms)) == 3
    heads = [call for call in calls if call.module == "Net.head" and call.phase == "forward"]
    assert [tensor_at(call.inputs, "self.weight").norm for call in heads[1:]] == pytest.approx(norms[:2])


def test_a_row_for_each_module_the_loss_and_the_optimizer(tmp_path):
    before = (nn.Module._call_impl, torch.autograd.backward)
    recording, model = trained(tmp_path, steps=1)
    assert (nn.Module._call_impl, torch.autograd.backward) == before
    assert recording.complete and recording.header["modules_only"] is True
    forward = [call for call in recording.calls if call.phase == "forward"]
    block = ["Linear", "ReLU", "Linear", "LayerNorm", "Block"]
    kinds = [call.op for call in forward]
    assert kinds == [f"module:{kind}" for kind in [*block * 3, "Linear", "Net"]] + ["loss:backward", "optimizer:SGD"]
    assert [call.module for call in forward[3:6]] == ["Net.blocks.0.norm", "Net.blocks.0", "Net.blocks.1.fc1"]
    assert forward[-3].module == "Net" and json.loads(forward[-3].scalars) == {"kwargs.scale": 2}
    linear = forward[0]
    assert [place for place, _ in linear.inputs] == ["args[0]", "self.weight", "self.bias"]
    assert tensor_at(linear.inputs, "self.weight").name == "Net.blocks.0.fc1.weight"
    assert [place for place, _ in forward[1].outputs] == ["result", "written args[0]"]
    weights = dict(forward[-1].outputs)
    for name, parameter in model.named_parameters():
        module, _, short = name.rpartition(".")
        (call,) = [call for call in recording.calls if call.phase == "backward" and call.module == f"Net.{module}"]
        assert tensor_at(call.outputs, f"grad self.{short}").norm == pytest.approx(
            parameter.grad.norm().item(), rel=1e-6
        )
        assert weights[f"result.Net.{name}"].norm == pytest.approx(parameter.norm().item(), rel=1e-6)
        assert (
            tensor_at(forward[-1].inputs, f"kwargs.grad.Net.{name}").norm
            == tensor_at(call.outputs, f"grad self.{short}").norm
        )


def test_the_program_computes_what_it_computes_without_it(tmp_path):
    def run(recorded):
        torch.manual_seed(1)
        model, batch = Net(), torch.randn(4, 16, requires_grad=True)
        tool = op_tools.OpRecord(output_dir=tmp_path, modules_only=True)
        if recorded:
            tool.start()
        model(batch, scale=3).sum().backward()
        tool.stop()
        return [batch.grad, *(parameter.grad for parameter in model.parameters())]

    for with_it, without in zip(run(recorded=True), run(recorded=False), strict=True):
        assert torch.equal(with_it, without)


@pytest.mark.parametrize(
    ("ops", "call", "module", "phase"),
    [
        ("aten::addmm", 3, "Net.blocks.1.fc2", "forward"),
        ("aten::relu_", 2, "Net.blocks.2.act", "forward"),
        ("aten::threshold_backward", 1, "Net.blocks.1.act", "backward"),
        ("aten::native_layer_norm_backward", 0, "Net.blocks.2.norm", "backward"),
    ],
)
def test_the_module_with_a_fault_is_named_and_those_around_it_carry(ops, call, module, phase, tmp_path):
    trained(tmp_path / "a", "sim")
    with sim.fault("scale", ops=ops, call=call, scale=1.05) as fault:
        trained(tmp_path / "b", "sim")
    assert fault.hits == 1
    (rank,) = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks
    assert (rank.first.module, rank.first.phase, rank.first.step) == (module, phase, 0)
    assert len(rank.births) == 1, rank.table()
    around = {module.rpartition(".")[0], "Net"}
    carried = {row.module for row in rank.rows if row.verdict == "carried" and row.phase == phase and row.step == 0}
    assert around - {"Net"} <= carried


def test_a_weight_gradient_and_an_optimizer_that_are_wrong(tmp_path):
    trained(tmp_path / "a", "sim", steps=1)
    with sim.fault("scale", ops="aten::_foreach_add_", scale=1.05) as fault:
        trained(tmp_path / "b", "sim", steps=1)
    assert fault.hits
    (rank,) = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks
    assert rank.first.op == "optimizer:SGD" and len(rank.births) == 1


def test_other_threads_and_another_device_agree(tmp_path):
    threads = torch.get_num_threads()
    trained(tmp_path / "a")
    trained(tmp_path / "sim", "sim")
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        trained(tmp_path / "b")
    finally:
        torch.set_num_threads(threads)
    for other in ("b", "sim"):
        assert op_tools.compare_runs(tmp_path / "a", tmp_path / other).agrees


def test_a_module_that_raises_and_one_that_is_called_in_backward(tmp_path):
    class Raises(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    layer = nn.Linear(4, 4)
    with op_tools.OpRecord(output_dir=tmp_path, modules_only=True) as tool:
        with pytest.raises(ValueError, match="no"):
            Raises()(torch.ones(2))
        torch.utils.checkpoint.checkpoint(
            layer, torch.ones(2, 4, requires_grad=True), use_reentrant=True
        ).sum().backward()
    calls = op_tools.read_recording(tool.result().path).calls
    (failed,) = [call.error for call in calls if call.op == "module:Raises"]
    assert failed.startswith("ValueError: no")
    assert [call.phase for call in calls if call.op == "module:Linear"] == ["forward", "forward", "backward"]
    assert sum(call.op == "loss:backward" for call in calls) == 1


def test_other_tools_see_operators_and_no_modules(tmp_path):
    both = op_tools.OpRecord(output_dir=tmp_path, modules_only=True), op_tools.OpObserve()
    with both[0], both[1]:
        nn.Linear(2, 2)(torch.ones(1, 2))
    seen = {row.op for row in both[1].result().rows}
    assert "torch.nn.functional.linear" in seen and not any("module:" in op for op in seen)
    assert [row.op for row in both[0].result().rows] == ["module:Linear"]


def test_modules_are_of_the_torch_level(tmp_path):
    with pytest.raises(op_tools.Error, match=r"modules_only= .*torch"):
        op_tools.OpRecord(output_dir=tmp_path, modules_only=True, level="aten").start()


def test_filters_choose_modules_and_steps(tmp_path):
    recording, _ = trained(tmp_path, modules=r"blocks\.1", steps=2)
    assert {call.module for call in recording.calls} == {
        f"Net.blocks.1{part}" for part in ("", ".fc1", ".act", ".fc2", ".norm")
    }


def test_what_to_do_next_records_the_operators_of_the_module(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained("a", "sim")
    with sim.fault("scale", ops="aten::addmm", call=3, scale=1.05):
        trained("b", "sim")
    assert main(["compare", "a", "b", "--next"]) == 1
    shown = capsys.readouterr().out
    commands = [line.strip() for line in shown.partition("Next: ")[2].splitlines() if line.startswith("  ")]
    assert op_tools_line(*"run --record --level aten --steps 0 --modules Net.blocks.1.fc2".split()) + " " in commands[0]
    assert commands[2] == op_tools_line("compare", "op_compare_next/a", "op_compare_next/b", "--next")


# ---- lines of JSON, the header ----


def test_lines_of_json_compare_as_the_recording_does(tmp_path):
    with sim.fault("scale", ops="aten::addmm", call=3, scale=1.05):
        recording, _ = trained(tmp_path / "b", "sim", format="jsonl")
    trained(tmp_path / "a", "sim")
    (lines,) = (tmp_path / "b").glob("*.jsonl")
    same = op_tools.read_recording(lines)
    assert same.complete and same.header == recording.header
    for ours, theirs in zip(recording.calls, same.calls, strict=True):
        assert repr(ours) == repr(theirs)
        assert str(ours.inputs + ours.outputs) == str(theirs.inputs + theirs.outputs)
    assert op_tools.compare_runs(tmp_path / "a", lines).ranks[0].first.module == "Net.blocks.1.fc2"
    kinds = [json.loads(line)["kind"] for line in lines.read_text().splitlines()]
    assert kinds[0] == "header" and kinds[-1] == "end" and set(kinds[1:-1]) == {"value", "call"}


@pytest.mark.parametrize("damage", ["{", '{"kind": "other"}', '{"kind": "call", "inputs": [["args[0]", 9999]]}', "[]"])
def test_damaged_lines_of_json_are_an_error_that_names_the_place(damage, tmp_path):
    trained(tmp_path, steps=1, format="jsonl")
    (lines,) = tmp_path.glob("*.jsonl")
    text = lines.read_text().splitlines()
    lines.write_text("\n".join([*text[:3], damage, *text[3:]]) + "\n")
    with pytest.raises(op_tools.Error, match=r"\.jsonl: (line 4|calls\[0\]): "):
        op_tools.read_recording(lines)
    lines.write_text("\n".join(text)[:-3])
    assert not op_tools.read_recording(lines).complete


def test_lines_of_json_of_another_version_are_refused(tmp_path):
    trained(tmp_path, steps=1, format="jsonl")
    (lines,) = tmp_path.glob("*.jsonl")
    head, _, rest = lines.read_text().partition("\n")
    header = json.loads(head)
    header["header"]["format"] -= 1
    lines.write_text(json.dumps(header) + "\n" + rest)
    with pytest.raises(op_tools.Error, match=r"\.jsonl: line 1: .*another version"):
        op_tools.read_recording(lines)


def test_the_header_says_how_the_program_was_started_and_where_the_capture_is(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "train.py").write_text("import sys, torch\ntorch.neg(torch.ones(2))\n")
    run = [sys.executable, "-m", "op_tools", "run", "--record", "--capture", "--output-dir", "out"]
    for start in (["-m", "package.train"], ["package/train.py"]):
        folder = tmp_path / start[-1].replace("/", "_")
        done = subprocess.run(
            [*run[:-1], str(folder), *start, "--lr", "0.1"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (path,) = folder.glob("*.oprec")
        header = op_tools.read_recording(path).header
        assert header["start"] == [*start, "--lr", "0.1"]
        assert header["capture"] == str(folder / "op_capture_result")
        assert any(Path(header["capture"]).rglob("input.pth"))


# ---- one call of a container ----


def test_a_call_of_a_container_is_replayed_by_the_path_that_is_printed(tmp_path, capfd):
    with op_tools.OpCapture(output_dir=tmp_path, format="container", level="aten") as tool:
        torch.ones(3).neg().exp()
    container = Path(tool.result().root) / "calls.zip"
    (call,) = [
        candidate
        for candidate in op_tools._runs.judged_captures.captured_calls(container)
        if candidate.name.startswith("aten::neg")
    ]
    assert call.path.startswith(f"{container}!")
    assert op_tools.run_op_from_data.main([call.path, "--acc_check", "--json", str(tmp_path / "report.json")]) == 0
    (replayed,) = json.loads((tmp_path / "report.json").read_text())["calls"]
    assert (replayed["path"], replayed["status"]) == (call.path, "agrees")
    assert op_tools.run_op_from_data.main([f"{container}!aten.neg/99999", "--acc_check"]) == 2
    assert "there is no such call" in "".join(capfd.readouterr())
