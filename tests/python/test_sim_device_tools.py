"""op_tools on a device that is not the CPU: captured calls, and where they can be replayed."""

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
    assert on_cpu.summary["ran"] == on_cpu.summary["calls"] > 3 and on_cpu.summary["differs"] == 0
    on_sim = replay(root, "--acc_check", "--load", "libop_tools_sim_device.so", "--device", "sim")
    assert on_sim.status == 0, on_sim.out
    assert on_sim.summary["bit_equal"] == on_sim.summary["agrees"] == on_sim.summary["ran"] == on_cpu.summary["calls"]


def test_a_factory_moved_to_another_device_draws_numbers_of_its_own_there(replay, tmp_path):
    with op_tools.OpCapture(output_dir=str(tmp_path)):
        torch.rand(3, device="cpu")
        torch.ones(3, device="cpu")
        torch.ones(3)
    report = replay(tmp_path, "--acc_check", "--load", "libop_tools_sim_device.so", "--device", "sim")
    assert report.status == 0, report.out
    assert report.summary["differs"] == 0 and report.summary["ran"] == 3
    assert report.summary["bit_equal"] == 2 and report.summary["not_judged"] == 1, report.out


def test_a_fault_in_a_captured_run_is_found_by_replaying_it_on_the_cpu(replay):
    x = torch.randn(4, 4, device="sim")
    with op_tools.OpCapture(level="aten", ops="mm,sigmoid") as tool, sim.fault("element", ops="mm", call=2) as fault:
        for _ in range(4):
            torch.sigmoid(torch.mm(x, x))
    tool.flush()
    done = replay(tool.result().root, "--acc_check")
    wrong = [call["name"] for call in done.calls if call["status"] == "differs"]
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
    on_device = x.to("sim"), y.to("sim")
    with (
        op_tools.OpAutoCompare(level=level, output_dir=str(tmp_path)) as compare,
        op_tools.OpCapture(level=level, ops=".*mm,.*mul.*", output_dir=str(tmp_path)) as capture,
    ):
        product = torch.mm(on_device[0], on_device[1].conj())
        torch.mul(on_device[1].conj().imag, 2.0)
        torch.mm(on_device[0][:, ::2], on_device[1].mH[::2])
    assert torch.equal(product.cpu(), torch.mm(x, y.conj()))
    assert compare.result().failed == 0, [row for row in compare.result().rows if row["verdict"] == "differs"]
    capture.flush()
    captured = [
        op_tools.load(path)["args"][:2] for path in sorted(Path(capture.result().root).glob("*mm*/*/input.pth"))
    ]
    assert len(captured) == 2
    for argument, right in zip(captured[0], (x, y.conj()), strict=True):
        assert torch.equal(argument, right) and argument.is_conj() == right.is_conj()
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
    assert done.summary["agrees"] == done.summary["calls"] == sum(row.calls for row in tool.result().rows)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_recording_of_a_device_has_the_numbers_of_the_cpu_in_one_transfer_a_step(level, tmp_path):
    """The same values on both sides: equal hashes and counts, and projections up to their summation."""
    inputs = [
        torch.randn(300, 7),
        torch.randn(5).to(torch.bfloat16),
        torch.arange(12).reshape(3, 4).t(),
        torch.zeros(0),
    ]
    recordings = {}
    for device in ("cpu", "sim"):
        tensors = [one.to(device) for one in inputs]
        with op_tools.OpRecord(level=level, output_dir=tmp_path / device) as tool:
            for tensor in tensors:
                torch.neg(tensor)
            tool.step()
            torch.neg(tensors[0])
        # Of two steps; those of the first are the first of their kinds, and are compared with the host's at once.
        assert tool.result().failure == "" and tool.result().read_backs == (1 if device == "sim" else 0)
        recordings[device] = [call.inputs[0][1] for call in op_tools.read_recording(tool.path).calls]
    for on_cpu, on_sim in zip(recordings["cpu"], recordings["sim"], strict=True):
        assert on_sim.known and on_sim.device == "sim:0"
        exact = [(one.hash, one.shape, one.nan, one.inf, one.zero, one.min, one.max) for one in (on_cpu, on_sim)]
        assert exact[0] == exact[1]
        assert on_sim.projections == pytest.approx(on_cpu.projections, rel=1e-9, abs=1e-9)
        assert on_sim.norm == pytest.approx(on_cpu.norm, rel=1e-12)


NUMBERS = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("size", [1, 64, 129, 512, 513, 1024, 5000])
def test_a_devices_numbers_are_those_of_the_cpu(dtype, size, tmp_path):
    """Of whole tensors and of a view that begins in the middle of a word, with and without special values."""
    torch.manual_seed(size)
    plain = (torch.randn(size + 3, dtype=torch.float64) * 3).to(dtype)
    tensors = [plain, plain[3:]]
    if dtype.is_floating_point or dtype.is_complex:
        for place, special in ((0, float("inf")), (size // 2, -float("inf")), (size - 1, float("nan"))):
            tensors.append(tensors[-1].to(torch.complex128 if dtype.is_complex else torch.float64).clone())
            tensors[-1][place] = special
            tensors[-1] = tensors[-1].to(dtype)
    statistics = []
    for device in ("cpu", "sim"):
        here = [one.to(device) if i != 1 else tensors[0].to(device)[3:] for i, one in enumerate(tensors)]
        with op_tools.OpRecord(output_dir=tmp_path / device) as tool:
            for tensor in here:
                tensor.clone()
        statistics.append([call.inputs[0][1] for call in op_tools.read_recording(tool.path).calls])
    for cpu, sim_ in zip(*statistics, strict=True):
        assert cpu.known and sim_.known
        for name in ("hash", "nan", "inf", "zero"):
            assert getattr(sim_, name) == getattr(cpu, name), name
        for name in ("min", "max"):
            assert getattr(sim_, name) == pytest.approx(getattr(cpu, name), rel=1e-15, nan_ok=True), name
        for name in ("mean", "norm"):
            assert getattr(sim_, name) == pytest.approx(getattr(cpu, name), rel=1e-12, abs=1e-12, nan_ok=True), name
        assert sim_.projections == pytest.approx(cpu.projections, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("tensor", "most"),
    [
        (torch.randn(100), 27),
        (torch.randn(128), 26),
        (torch.randn(2048), 28),
        (torch.randn(1000), 29),
        (torch.randn(64, 32).t(), 28),
        (torch.randn(2048).to(torch.bfloat16), 28),
        (torch.arange(2048), 25),
    ],
    ids=["part of a chunk", "chunk", "blocks", "part of a block", "transposed", "bfloat16", "int64"],
)
def test_a_devices_statistics_take_few_operators(tensor, most, tmp_path):
    """Copies are not counted: the conversion to float64, elements made contiguous."""
    x = tensor.to("sim")

    def launched(work):
        before = sim.statistics()
        work()
        after = sim.statistics()
        return after["calls"] - before["calls"] - (after["views"] - before["views"])

    def recorded(folder, statistics):
        with op_tools.OpRecord(output_dir=tmp_path / folder, level="aten", statistics=statistics):
            return launched(x.neg_)

    recorded("first", True)  # makes the tables
    values = 2  # before and after the call
    assert recorded("with", True) - recorded("without", False) <= values * most


@pytest.mark.parametrize(
    "name", ["OpAutoCompare", "OpCapture", "OpMemoryCheck", "OpOverflowCheck", "OpRecord", "OpTimeMeasure"]
)
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_device_that_is_not_there_is_the_programs_error_alone(name, level, tmp_path):
    options = {"guard": True} if name == "OpMemoryCheck" else {}
    with getattr(op_tools, name)(level=level, output_dir=str(tmp_path), **options) as tool:
        with pytest.raises(RuntimeError, match="sim has devices 0 to 1, not 9"):
            torch.empty(2, device="sim:9")
        torch.ones(2, device="sim").relu()
    assert not tool.result().coverage.off
