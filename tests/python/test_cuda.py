"""The tools on CUDA, a device whose work is asynchronous and whose sums round otherwise than the CPU's. Skipped where there is no GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import op_tools

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),  # of bfloat16
]
LEVELS = ["torch", "aten"]
# Kernels without a counterpart on the host, and calls without a form in a file.
ONLY_ON_CUDA = [".*cudnn.*", ".*efficient_attention.*", ".*set_.*", ".*rand.*"]
VALUE_READERS = ["OpAutoCompare", "OpCapture", "OpRecord", "OpOverflowCheck", "OpFallback"]


@pytest.fixture(params=LEVELS)
def level(request):
    return request.param


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 64)
        self.attend = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.convolve = nn.Conv1d(64, 64, 3, padding=1)
        self.remember = nn.LSTM(64, 64, batch_first=True)
        self.out = nn.Linear(64, 64)

    def forward(self, tokens):
        x = self.attend(self.embed(tokens))
        x = x + self.convolve(x.transpose(1, 2)).transpose(1, 2)
        x, _ = self.remember(x)
        return self.out(x)


def train(tool=None, device="cuda", dtype=torch.float32, steps=3):
    torch.manual_seed(1)
    model = Network().to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        tokens = torch.randint(64, (4, 16), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if tool is not None:
            tool.step()
    return [loss.item() for loss in losses]


def named(result):
    return sorted({row.op for row in result.failures})


@pytest.mark.parametrize(
    "name",
    ["OpCapture", "OpTimeMeasure", "OpOverflowCheck", "OpMemoryCheck", "OpBlackBox", "OpRecord", "OpObserve"],
)
def test_training_is_the_same_under_a_tool(name, level, tmp_path):
    alone = train()
    with getattr(op_tools, name)(level=level, output_dir=str(tmp_path)) as tool:
        assert train(tool) == alone
    assert tool.result().coverage.on_device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tf32", [False, True])
def test_cudas_own_kernels_are_right(level, dtype, tf32, tmp_path):
    """cuDNN multiplies float32 in TF32 unless the program says otherwise; matrices are when it says so."""
    cudnn, matmul = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        alone = train(dtype=dtype)
        with op_tools.OpAutoCompare(level=level, output_dir=str(tmp_path)) as tool:
            assert train(tool, dtype=dtype) == alone
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = cudnn, matmul
    # cuDNN's recurrent kernels are less exact than the CPU's, with and without TF32.
    assert set(named(tool.result())) <= {"torch.lstm"}
    assert tool.result().passed > 500


def test_a_wrong_kernel_is_named(tmp_path):
    library = torch.library.Library("op_tools_cuda_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", lambda x: x * 2.001, "CUDA")
    with op_tools.OpAutoCompare(level="aten", output_dir=str(tmp_path)) as tool:
        (torch.ops.op_tools_cuda_test.twice(torch.randn(64, device="cuda")) + 1).relu()
    assert named(tool.result()) == ["op_tools_cuda_test::twice"]


@pytest.mark.parametrize("name", [*VALUE_READERS, "OpTimeMeasure", "OpBlackBox", "OpMemoryCheck", "OpObserve"])
def test_a_captured_graph_stays_what_it_is(name, level, tmp_path):
    x = torch.randn(64, 64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (x @ x).relu()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with getattr(op_tools, name)(level=level, output_dir=str(tmp_path)) as tool:
        with torch.cuda.graph(graph):
            y = (x @ x).relu()
        x.copy_(torch.randn(64, 64, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(y, (x @ x).relu())
    account = tool.result().coverage
    assert not account.off
    if name in VALUE_READERS:
        assert account.lost["in_graph"] >= 2


@pytest.mark.parametrize("name", [name for name in VALUE_READERS if name != "OpFallback"])  # which computes on the host
def test_work_on_another_stream_is_waited_for(name, level, tmp_path):
    side = torch.cuda.Stream()

    def program():
        torch.manual_seed(2)
        a = torch.randn(2048, 2048, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a @ a
            for _ in range(10):
                b = (b @ a) / 100
        torch.cuda.current_stream().wait_stream(side)
        return b.sum().item()

    alone = program()
    with getattr(op_tools, name)(level=level, output_dir=str(tmp_path)) as tool:
        assert program() == alone
    if name == "OpAutoCompare":
        assert named(tool.result()) == []


def test_padding_of_attention_is_no_infinity(level, tmp_path):
    q = torch.randn(2, 4, 17, 16, device="cuda", requires_grad=True)
    with op_tools.OpOverflowCheck(level=level, output_dir=str(tmp_path)) as tool:
        F.scaled_dot_product_attention(q, q, q).sum().backward()
        (torch.ones(8, device="cuda") - 2).log().sum()
    assert [row.op.rpartition(".")[2].rpartition(":")[2] for row in tool.result().rows if row.kind == "producer"] == [
        "log"
    ]


@pytest.mark.parametrize("mode", ["sync", "event"])
def test_times_are_the_devices(mode, tmp_path):
    a = torch.randn(4096, 4096, device="cuda")
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a @ a
    begin.record()
    a @ a
    end.record()
    torch.cuda.synchronize()
    with op_tools.OpTimeMeasure(level="aten", mode=mode, output_dir=str(tmp_path)) as tool:
        for _ in range(5):
            a @ a
        torch.cuda.synchronize()
    (row,) = [row for row in tool.result().rows if row.op == "aten::mm"]
    # The queueing of such a call takes a hundredth of it.
    assert row.calls == 5 and row.p50_ms > begin.elapsed_time(end) / 4


def test_the_peak_of_memory_is_the_allocators(tmp_path):
    train()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with op_tools.OpMemoryCheck(output_dir=str(tmp_path)) as tool:
        train(tool, steps=4)
    (device,) = [row for row in tool.result().devices if row.device.startswith("cuda")]
    peak = torch.cuda.max_memory_allocated() - before
    assert device.peak_bytes == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_captured_calls_replay(device, level, tmp_path):
    with op_tools.OpCapture(level=level, skip=ONLY_ON_CUDA, output_dir=str(tmp_path)) as tool:
        train(tool, steps=1)
    done = subprocess.run(
        [sys.executable, "-m", "op_tools.run_op_from_data", tmp_path, "--acc_check", "--device", device],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_the_host_and_the_device_agree(level, tmp_path):
    torch.backends.cudnn.allow_tf32 = False

    def run(device):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 32, device=device).cumsum(1)).square().mean().backward()
            optimizer.step()

    try:
        for device in ("cpu", "cuda"):
            with op_tools.OpRecord(level=level, output_dir=str(tmp_path / device)):
                run(device)
    finally:
        torch.backends.cudnn.allow_tf32 = True
    compared = op_tools.compare_runs(str(tmp_path / "cpu"), str(tmp_path / "cuda"))
    assert [rank.rows[i].op for rank in compared.ranks for i in rank.births] == []
    assert compared.verdict == "agrees"


def test_an_operator_moves_to_the_host(tmp_path):
    x = torch.randn(8, 32, device="cuda", requires_grad=True)
    expected = x.detach().cpu().softmax(-1)
    with op_tools.OpFallback(ops=".*softmax.*", output_dir=str(tmp_path)) as tool:
        y = x.softmax(-1)
        y.sum().backward()
    assert y.is_cuda and x.grad.is_cuda and torch.equal(y.detach().cpu(), expected)
    assert sum(row.calls for row in tool.result().rows) >= 1


def test_a_sticky_error_of_the_device_passes_through(tmp_path):
    """An index out of range kills the CUDA context: the program has torch's error, and the black box its call."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "x = torch.randn(8, device='cuda')\n"
        "torch.cuda.synchronize()\n"
        "x[torch.tensor([99], device='cuda')]\n"
        "torch.cuda.synchronize()\n"
    )
    command = [sys.executable, "-m", "op_tools", "run", "--blackbox", "--output-dir", tmp_path / "out", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0 and "CUDA error" in done.stderr + done.stdout
    assert list(Path(tmp_path / "out").rglob("*")) != []
