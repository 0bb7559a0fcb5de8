"""OpRecord: what a call wrote is read again, a device under suspicion is not asked, traces of compilers are no calls."""

import pytest
import torch

import op_tools
import op_tools.sim_device as sim


def record(work, path, level="aten"):
    with op_tools.OpRecord(output_dir=path, level=level) as tool:
        work()
    assert tool.result().failure == ""
    found = op_tools.read_recording(tool.result().path)
    assert found.complete
    return found


def test_a_view_of_what_a_fused_optimizer_wrote_is_read_again(tmp_path):
    weight = torch.nn.Parameter(torch.randn(8, 8))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    norms = []

    def work():
        for _ in range(3):
            norms.append(float(weight.detach().double().norm()))
            torch.mm(torch.ones(2, 8), weight.t()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    views = [call.outputs[0][1].norm for call in record(work, tmp_path).calls if call.op == "aten::t"]
    assert len(set(norms)) == 3
    for norm in norms:
        assert any(abs(norm - view) < 1e-6 for view in views)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_what_an_operator_of_a_library_writes_is_read_again(level, tmp_path):
    library = torch.library.Library(f"record_trust_{level}", "DEF")
    library.define("double(Tensor(a!) x) -> ()")
    library.impl("double", lambda x: x.numpy().__imul__(2) is None or None, "CPU")
    double = getattr(torch.ops, f"record_trust_{level}").double
    x = torch.ones(4)

    def work():
        torch.neg(x)
        double(x)
        torch.neg(x)

    calls = [call for call in record(work, tmp_path, level).calls if call.op.rsplit(".")[-1].endswith("neg")]
    assert [call.inputs[0][1].max for call in calls] == [1, 2]


@pytest.mark.parametrize("op", ["mm", "sum", "cat"])
@pytest.mark.parametrize("jitter", [0, 1])
def test_a_wrong_operator_that_statistics_are_made_of_is_named(op, jitter, tmp_path):
    def run(device, path, jitter):
        torch.manual_seed(0)
        net = torch.nn.Linear(64, 64).to(device)
        x, w = torch.randn(32, 64).to(device), torch.randn(64, 5).to(device)
        with op_tools.OpRecord(output_dir=path, level="aten", jitter=jitter):
            y = torch.tanh(net(x))
            torch.mm(torch.cat([y, y]), w).sum().item()

    run("cpu", tmp_path / "a", 0)
    with sim.fault("scale", ops=op, scale=1.05):
        run("sim", tmp_path / "b", jitter)
    first = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].first
    assert first is not None
    assert first.op.split("::")[1].split(".")[0] == op


def test_an_export_does_not_end_a_recording(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())

    def work():
        x = torch.randn(5, 4)
        torch.export.export(net, (x,))
        for _ in range(5):
            x = torch.tanh(x)

    assert sum(call.op == "aten::tanh" for call in record(work, tmp_path).calls) == 5


def test_a_view_expanded_without_end_is_not_read(tmp_path):
    calls = record(lambda: torch.ones(1).expand(2**33).view(2, -1), tmp_path).calls
    assert any(tensor.shape == (2**33,) and not tensor.known for call in calls for _, tensor in call.outputs)
