"""op_tools on a device that is not the CPU: what is captured there, and where it can be replayed."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim


@pytest.fixture
def step():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Dropout(0.5)).to("sim")
    rows = torch.randn(3, 6, device="sim")

    def run():
        F.mse_loss(model(rows), torch.ones(3, 4, device="sim")).backward()

    return run


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_calls_on_the_device_replay_on_the_cpu_and_on_the_device(step, replay, level):
    with op_tools.OpCapture(level=level) as tool:
        step()
    tool.flush()
    root = tool.result().root
    on_cpu = replay(root, "--acc_check")
    assert on_cpu.status == 0, on_cpu.out
    assert on_cpu.summary["ran"] == on_cpu.summary["calls"] > 3 and on_cpu.summary["disagreed"] == 0
    on_sim = replay(root, "--acc_check", "--load", "libop_tools_sim_device.so", "--device", "sim")
    assert on_sim.status == 0, on_sim.out
    assert on_sim.summary["bit_equal"] == on_sim.summary["agreed"] == on_sim.summary["ran"] == on_cpu.summary["calls"]


def test_a_factory_moved_to_another_device_draws_numbers_of_its_own_there(replay, tmp_path):
    with op_tools.OpCapture(output_dir=str(tmp_path)):
        torch.rand(3, device="cpu")
        torch.ones(3, device="cpu")
        torch.rand(3)
    report = replay(tmp_path, "--acc_check", "--load", "libop_tools_sim_device.so", "--device", "sim")
    assert report.status == 0, report.out
    assert report.summary["disagreed"] == 0 and report.summary["ran"] == 3
    assert report.summary["bit_equal"] == 2 and report.summary["not_comparable"] == 1, report.out


def test_a_fault_in_a_captured_run_is_found_by_replaying_it_on_the_cpu(replay):
    x = torch.randn(4, 4, device="sim")
    with op_tools.OpCapture(level="aten", ops="mm,sigmoid") as tool, sim.fault("element", ops="mm", call=2) as fault:
        for _ in range(4):
            torch.sigmoid(torch.mm(x, x))
    tool.flush()
    done = replay(tool.result().root, "--acc_check")
    wrong = [call["name"] for call in done.calls if call["status"] == "disagreed"]
    assert done.status == 1 and wrong == ["aten::mm"] and fault.hits == 1


def test_capturing_changes_nothing_on_the_device(step):
    def seen():
        torch.manual_seed(4)
        calls = sim.statistics()["calls"]
        step()
        return sim.statistics()["calls"] - calls

    seen()
    without = seen()
    with op_tools.OpCapture(level="aten", ops="nothing_of_this_name"):
        assert seen() == without


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_conjugate_and_negative_bits_of_device_tensors_are_kept(replay, tmp_path, level):
    x, y = torch.randn(4, 4, dtype=torch.complex64), torch.randn(4, 4, dtype=torch.complex64)
    there = x.to("sim"), y.to("sim")
    with (
        op_tools.OpAutoCompare(level=level, output_dir=str(tmp_path)) as compare,
        op_tools.OpCapture(level=level, ops=".*mm,.*mul.*", output_dir=str(tmp_path)) as capture,
    ):
        product = torch.mm(there[0], there[1].conj())
        torch.mul(there[1].conj().imag, 2.0)
        torch.mm(there[0][:, ::2], there[1].mH[::2])
    assert torch.equal(product.cpu(), torch.mm(x, y.conj()))
    assert compare.result().failed == 0, [row for row in compare.result().rows if row["verdict"] == "fail"]
    capture.flush()
    captured = [
        op_tools.load(path)["args"][:2] for path in sorted(Path(capture.result().root).glob("*mm*/*/input.pth"))
    ]
    assert len(captured) == 2
    for given, right in zip(captured[0], (x, y.conj()), strict=True):
        assert torch.equal(given, right) and given.is_conj() == right.is_conj()
    report = replay(capture.result().root, "--acc_check")
    assert report.status == 0 and report.summary["bit_equal"] == report.summary["ran"] == 3, report.out


@pytest.mark.parametrize("cells", [torch.nn.GRU, torch.nn.LSTM])
def test_cells_that_only_devices_have_as_one_operator_replay_on_the_cpu(cells, replay, tmp_path):
    torch.manual_seed(0)
    network = cells(4, 5, 2).to("sim")
    x = torch.randn(3, 2, 4).to("sim")
    with op_tools.OpCapture(level="aten", output_dir=tmp_path) as tool:
        network(x)[0].square().mean().backward()
    names = {row.op for row in tool.result().rows}
    assert any("_thnn_fused" in name and "backward" in name for name in names)
    done = replay(tool.result().root, "--acc_check")
    assert done.status == 0, done.out
    assert done.summary["agreed"] == done.summary["calls"] == sum(row.calls for row in tool.result().rows)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_recording_of_a_device_has_the_numbers_of_the_cpu_in_one_transfer_a_step(level, tmp_path):
    """The same values on both sides: equal hashes and counts, and projections up to their summation."""
    inputs = [
        torch.randn(300, 7),
        torch.randn(5).to(torch.bfloat16),
        torch.arange(12).reshape(3, 4).t(),
        torch.zeros(0),
    ]
    found = {}
    for device in ("cpu", "sim"):
        given = [one.to(device) for one in inputs]
        with op_tools.OpRecord(level=level, output_dir=tmp_path / device) as tool:
            for one in given:
                torch.neg(one)
            tool.step()
            torch.neg(given[0])
        assert tool.result().failure == "" and tool.result().read_backs == (2 if device == "sim" else 0)  # of two steps
        found[device] = [call.inputs[0][1] for call in op_tools.read_recording(tool.path).calls]
    for on_cpu, on_sim in zip(found["cpu"], found["sim"], strict=True):
        assert on_sim.known and on_sim.device == "sim:0"
        exact = [(one.hash, one.shape, one.nan, one.inf, one.zero, one.min, one.max) for one in (on_cpu, on_sim)]
        assert exact[0] == exact[1]
        assert on_sim.projections == pytest.approx(on_cpu.projections, rel=1e-9, abs=1e-9)
        assert on_sim.norm == pytest.approx(on_cpu.norm, rel=1e-12)
