"""op-tools one-iter: an iteration that is saved where it is right and compared where it is tested."""

import json
import sys
import types
from pathlib import Path

import pytest
import torch
from test_record_modules import trained
from torch import nn

import op_tools
import op_tools._runs.one_iter
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._modules.module_runs import CpuNumbers
from op_tools._runs.one_iter import compare_iterations

PROGRAM = """
import sys
import torch
from torch import nn
import op_tools.sim_device

device = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(16, 32, device=device), nn.Dropout(0.5), nn.Linear(32, 16, device=device)

    def forward(self, x):
        return self.fc2(self.drop(torch.relu(self.fc1(x))))


net, loss_of = Net(), nn.MSELoss()
method = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = loss_of(net(torch.randn(8, 16, device=device)), torch.randn(8, 16, device=device))
    if sys.argv[2:]:
        raise ValueError(sys.argv[2])
    method.zero_grad()
    loss.backward()
    method.step()
    print("step", step)
"""


@pytest.fixture
def work(tmp_path, monkeypatch, capfd):
    """op-tools one-iter in a folder with train.py: its exit status and its output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(command):
        before = sys.argv, list(sys.path), sys.modules["__main__"]
        try:
            status = main(["one-iter", *command.split()])
        finally:
            sys.argv, sys.path[:], sys.modules["__main__"] = before
        return status, "".join(capfd.readouterr())

    return run


def test_what_agrees_agrees_on_another_device_that_draws_the_same_numbers(work):
    status, shown = work("save right train.py cpu")
    assert status == 0 and "saved: right/rank0-" in shown
    assert "step" not in shown  # the program ends in the optimizer's step
    recording = op_tools.read_recording(next(Path("right").glob("*.oprec")))
    assert {call.step for call in recording.calls} == {0} and recording.header["seeds"]["cpu"] == "10086"
    status, shown = work("compare right train.py sim")
    assert status == 0, shown
    assert "11 results: 11 agrees" in shown
    assert work("compare right op_one_iter_result")[0] == 0


@pytest.mark.parametrize(
    ("ops", "call", "named"),
    [
        ("aten::addmm", 1, "First: Net.fc2 (forward): other numbers"),
        ("aten::mse_loss", 0, "First: MSELoss (forward): other numbers"),
        ("aten::mse_loss_backward", 0, "First: MSELoss (backward): other numbers"),
        # Code of Net itself, between its modules.
        ("aten::threshold_backward", 0, "First: Net.fc1 (backward): an input differs from the start"),
        ("aten::_foreach_add_", 0, "First: optimizer:SGD (weights): other numbers"),
    ],
)
def test_the_layer_with_a_planted_fault_is_named(ops, call, named, work):
    work("save right train.py sim")
    with sim.fault("scale", ops=ops, call=call, scale=1.05) as fault:
        status, shown = work("compare --json report.json right train.py sim")
    assert fault.hits == 1 and status == 1, shown
    assert named in shown
    records = [json.loads(line) for line in Path("report.json").read_text().splitlines()]
    assert records[-1]["exit_status"] == 1 and records[-1]["verdicts"]["differs"] >= 1
    assert [one["kind"] for one in records[:-1]] == ["result"] * 11


def test_tolerances_are_by_model_and_exceptions_are_counted(work, tmp_path):
    work("save right train.py sim")
    with sim.fault("scale", ops="aten::addmm", call=1, scale=1.01):
        assert work("compare right train.py sim")[0] == 1
    file = tmp_path / "tolerance.json"

    def status_with(content):
        file.write_text(json.dumps(content))
        return work("compare --tolerance tolerance.json right op_one_iter_result")

    assert status_with({"Net": 0.1, "MSELoss": 0.1})[0] == 0
    assert status_with({"*": 0.1})[0] == 0
    assert status_with({"Net": 1e-6, "MSELoss": 0.1})[0] == 1
    assert status_with({"*": {"forward": 0.1, "backward": 0.1, "loss": 1e-7, "weights": 0.1}})[0] == 1
    excused = [{"module": r"fc2|Net", "kind": "forward", "limit": 0.05, "why": "another rounding"}]
    status, shown = status_with(
        {"*": {"forward": 1e-6, "backward": 0.1, "loss": 0.1, "weights": 0.1, "exceptions": excused}}
    )
    assert status == 1 and "2 excused" in shown and "another rounding" in shown  # the loss' module is not excused
    excused.append({"module": "MSELoss", "why": "of its input"})
    status, shown = status_with(
        {"*": {"forward": 1e-6, "backward": 0.1, "loss": 0.1, "weights": 0.1, "exceptions": excused}}
    )
    assert status == 0 and "3 excused" in shown
    excused[0]["limit"] = 1e-5
    content = {"*": {"forward": 1e-6, "backward": 0.1, "loss": 0.1, "weights": 0.1, "exceptions": excused}}
    assert status_with(content)[0] == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], "expected models"),
        ({"Net": "wide"}, "Net: 'wide' is no number"),
        ({"Net": {"sideways": 1}}, "Net: unknown 'sideways'; there are forward"),
        ({"Net": {"exceptions": [{"module": "fc2"}]}}, "why"),
        ({"Net": {"exceptions": [{"module": "(", "why": "x"}]}}, "module: '\\('"),
        ({"Net": {"exceptions": [{"kind": "all", "why": "x"}]}}, "kind: 'all' is not allowed; give forward"),
    ],
)
def test_a_wrong_file_of_tolerances_is_an_error(content, text, tmp_path):
    file = tmp_path / "tolerance.json"
    file.write_text(json.dumps(content))
    with pytest.raises(op_tools.Error, match=text):
        op_tools._runs.one_iter.read_tolerances(file)


def test_yaml_is_read_where_there_is_a_library(tmp_path, monkeypatch):
    file = tmp_path / "tolerance.yaml"
    file.write_text("Net: 1e-4\n")
    monkeypatch.setitem(sys.modules, "yaml", types.SimpleNamespace(safe_load=lambda _: {"Net": "1e-4"}))
    assert op_tools._runs.one_iter.read_tolerances(file)["Net"].limits["loss"] == 1e-4
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(op_tools.Error, match="YAML needs a library"):
        op_tools._runs.one_iter.read_tolerances(file)


YAML = """
# a model a line, the last line for all others
Net: &net {forward: 1e-4, loss: 1.0e-6, exceptions: [{module: Net.fc2, kind: forward, limit: 0.5, why: "TF32, see #12"}]}
Twin: *net
"*": 0.25
"""


def test_yaml_as_the_library_reads_it(tmp_path):
    pytest.importorskip("yaml", reason="pyyaml is not installed")
    (tmp_path / "tolerance.yaml").write_text(YAML)
    tolerances = op_tools._runs.one_iter.read_tolerances(tmp_path / "tolerance.yaml")
    assert tolerances["Net"] == tolerances["Twin"] and tolerances["Net"].limits == {"forward": 1e-4, "loss": 1e-6}
    assert tolerances["*"].limits["weights"] == 0.25
    (exemption,) = tolerances["Net"].exceptions
    assert (exemption.module, exemption.kind, exemption.limit) == ("Net.fc2", "forward", 0.5)
    for text in ("Net: [1", "Net: !!python/object/apply:os.getcwd []", "- 1"):
        (tmp_path / "wrong.yml").write_text(text)
        with pytest.raises(op_tools.Error, match=r"wrong\.yml"):
            op_tools._runs.one_iter.read_tolerances(tmp_path / "wrong.yml")


def test_yaml_decides_the_verdict(work, tmp_path):
    pytest.importorskip("yaml", reason="pyyaml is not installed")
    work("save right train.py cpu")
    for limit, status in (("10", 0), ("1e-9", 1)):
        (tmp_path / "tolerance.yaml").write_text(f"'*': {limit}\n")
        with sim.fault("scale", ops="aten::addmm", call=1, scale=1.01):
            assert work("compare --tolerance tolerance.yaml right train.py sim")[0] == status, limit


def test_what_could_not_be_compared_has_its_own_status(work):
    work("save right train.py cpu")
    status, shown = work("compare right train.py cpu fails")
    assert status == 2 and "ValueError: fails" in shown and "only in A" in shown
    status, shown = work("save right train.py cpu")
    assert status == 2 and "right: has a recording already" in shown
    assert work("save other train.py cpu fails")[0] == 2


def test_wrong_usage(work, tmp_path):
    work("save right train.py cpu")
    assert work("compare right nothing.py")[0] == 64
    assert work("compare right right more")[0] == 64
    with pytest.raises(SystemExit, match="64"):
        work("save --iterations 0 other train.py cpu")
    with op_tools.OpRecord(output_dir="operators"):
        torch.ones(2).neg()
    with pytest.raises(op_tools.Error, match="not recorded with op-tools one-iter"):
        compare_iterations(op_tools.compare_runs("operators", "operators"))


def test_recordings_of_modules_are_compared_too(tmp_path):
    trained(tmp_path / "a", steps=1)
    trained(tmp_path / "b", steps=1)
    report = compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))
    assert report.exit_status == 0 and report.first is None
    assert {row.kind for row in report.rows} == {"forward", "backward", "loss", "weights"}


def test_results_that_cannot_be_compared_are_no_agreement(tmp_path):
    class Sparse(torch.nn.Module):
        def forward(self, x):
            return x.to_sparse()

    for name, factor in (("a", 1.0), ("b", 2.0)):
        with op_tools.OpRecord(output_dir=tmp_path / name, modules_only=True):
            Sparse()(torch.eye(3) * factor)
    report = compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))
    assert [row.verdict for row in report.rows] == ["not compared"]
    assert report.exit_status == 2 and "1 not compared" in report.table()


@pytest.mark.parametrize("keeps", [True, False], ids=["right", "lost"])
def test_running_statistics_are_results_of_a_single_iteration(keeps, tmp_path):
    for name in "ab":
        torch.manual_seed(1)
        norm = nn.BatchNorm1d(8)
        before = norm.running_mean.clone()
        with op_tools.OpRecord(output_dir=tmp_path / name, modules_only=True):

            def lose(module, *_, before=before):
                module.running_mean.data.copy_(before)

            if name == "b" and not keeps:
                norm.register_forward_hook(lose)
            norm(torch.randn(16, 8) + 3).sum().backward()
    report = compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))
    assert report.exit_status == (0 if keeps else 1)
    if not keeps:
        assert report.first.op == "module:BatchNorm1d" and report.first.kind == "forward"


class Attention(nn.Module):
    """The gradient of the key's bias is zero but for rounding: softmax takes away a common part of all scores."""

    def __init__(self):
        super().__init__()
        self.qkv, self.key, self.value = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        x = (query @ key.mT / 4).softmax(-1) @ value
        return (query @ self.key(x).mT / 4).softmax(-1) @ self.value(x)


def iteration(folder, device, method=torch.optim.AdamW, factor=1.0, **options):
    torch.manual_seed(3)
    model = Attention().to(device)
    optimizer = method(model.parameters(), **{"lr": 1e-3, **options})
    batch = torch.randn(4, 5, 16).to(device)
    with op_tools.OpRecord(output_dir=folder, modules_only=True) as tool:
        model(batch).square().mean().backward()
        model.value.weight.grad *= factor
        optimizer.step()
        tool.step()


@pytest.fixture
def compared(tmp_path):
    """The report of two iterations: A on the CPU, B on a device that rounds otherwise."""

    def compare(method=torch.optim.AdamW, **fault):
        iteration(tmp_path / "a", "cpu", method)
        with sim.rounding():
            iteration(tmp_path / "b", "sim", method, **fault)
        return compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))

    return compare


@pytest.mark.parametrize("method", [torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_a_whole_step_on_a_gradient_that_is_rounding_alone_is_no_fault(method, compared):
    report = compared(method)
    assert report.exit_status == 0, report.table()
    step = next(row for row in report.rows if row.kind == "weights")
    assert step.difference > 1e-5  # some elements went another way


@pytest.mark.parametrize("fault", [{"lr": 1.02e-3}, {"weight_decay": 0.0}, {"eps": 1e-3}])
def test_a_step_that_is_wrong_is_named_beside_gradients_that_are_rounding(fault, compared):
    report = compared(**fault)
    assert report.exit_status == 1 and report.first.kind == "weights", report.table()


def test_a_gradient_that_is_wrong_is_named_though_the_step_is_of_its_sign_alone(compared):
    report = compared(factor=1.1)
    assert report.exit_status == 1 and report.first.op == "optimizer:AdamW", report.table()


class Smooth(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(4, 4, 3), nn.ELU(), nn.LayerNorm(6), nn.Conv2d(4, 4, 3))


def smooth_iteration(folder, device, method=torch.optim.SGD, change=lambda model: None):
    """Two steps; `change` comes between gradients and step."""
    torch.manual_seed(3)
    model = Smooth().to(device)
    optimizer = method(model.parameters(), lr=0.05)
    batch = torch.randn(48, 4, 8, 8).to(device)
    with op_tools.OpRecord(output_dir=folder, modules_only=True) as tool:
        for _ in range(2):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            change(model)
            optimizer.step()
            tool.step()
    return model, tool.result().path


def test_gradients_are_read_again_after_operators_that_no_counter_shows(tmp_path):
    """Under a dispatch mode of torch's operators on lists move none."""

    def clip(model):
        before = [parameter.grad._version for parameter in model.parameters()]
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        assert [parameter.grad._version for parameter in model.parameters()] == before

    with CpuNumbers():
        model, path = smooth_iteration(tmp_path / "a", "cpu", change=clip)
    step = [call for call in op_tools.read_recording(path).calls if call.op == "optimizer:SGD"][-1]
    norms = {place.rpartition("Smooth.")[2]: tensor.norm for place, tensor in step.inputs}
    right = {name: float(parameter.grad.norm()) for name, parameter in model.named_parameters()}
    assert norms == pytest.approx(right, rel=1e-6)


def test_a_gradient_off_by_a_hundredth_is_named_though_single_elements_could_have_jumped(tmp_path):
    smooth_iteration(tmp_path / "a", "cpu")
    with sim.rounding(), sim.fault("scale", ops="aten::elu_backward", scale=1.01):
        smooth_iteration(tmp_path / "b", "sim")
    report = compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))
    assert report.exit_status == 1 and report.first.op == "optimizer:SGD", report.table()


def test_a_weight_that_is_written_between_two_steps_is_named(tmp_path):
    steps = []

    def change(model):
        steps.append(model)
        if len(steps) == 4:  # the second of the device
            torch._foreach_add_([model[3].bias.detach()], 0.02)  # moves no counter

    for name, device in (("a", "cpu"), ("b", "sim")):
        with sim.rounding():
            smooth_iteration(tmp_path / name, device, torch.optim.RMSprop, change)
    report = compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))
    assert report.exit_status == 1, report.table()


def test_iterations_that_round_otherwise_agree(tmp_path):
    smooth_iteration(tmp_path / "a", "cpu")
    with sim.rounding():
        smooth_iteration(tmp_path / "b", "sim")
    report = compare_iterations(op_tools.compare_runs(tmp_path / "a", tmp_path / "b"))
    assert report.exit_status == 0, report.table()
