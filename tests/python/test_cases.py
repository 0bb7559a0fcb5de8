"""Programs that other tools break: with ours they give the same results as without, at both levels."""

import gc
import os
import signal
from pathlib import Path

import pytest
import torch
from case_programs import NEED_PACKAGES, PROGRAMS, functions_and_one_tensor_as_several_inputs, threads_and_a_pool
from conftest import launched
from torch import nn
from torch.utils.checkpoint import checkpoint
from unchanged import LEVELS, all_tools, assert_same, run

import op_tools
import op_tools.sim_device as sim

pytestmark = pytest.mark.filterwarnings("ignore")


def check(program, level, capfd, monkeypatch):
    monkeypatch.setenv("OP_CAPTURE_FORMAT", "container")
    expected = run(program, [])
    assert_same(run(program, all_tools([level])), expected)
    assert "op_tools error" not in capfd.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("level", LEVELS)
def test_the_program_gives_the_same(program, level, capfd, monkeypatch):
    check(program, level, capfd, monkeypatch)


@pytest.mark.parametrize("package", NEED_PACKAGES)
@pytest.mark.parametrize("level", LEVELS)
def test_the_program_of_a_package_gives_the_same(package, level, capfd, monkeypatch):
    pytest.importorskip(package, reason=f"{package} is not installed", exc_type=ImportError)
    check(NEED_PACKAGES[package], level, capfd, monkeypatch)


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_of_tensors_that_are_several_inputs_are_right(level):  # DeepLink-org/ditorch#37
    with op_tools.OpAutoCompare(level=level) as tool:
        functions_and_one_tensor_as_several_inputs()
    assert tool.result().ok and tool.result().failures == []


@pytest.mark.parametrize("level", LEVELS)
def test_operators_of_threads_and_pools_are_seen(level):
    with op_tools.OpTimeMeasure(level=level) as tool:
        threads_and_a_pool()
    calls = {(op_tools._C.base_name(row.op), row.phase): row.calls for row in tool.result().rows}
    assert calls["add", "forward"] == 8 * 20
    assert calls["mul", "forward"] == 8 * 20


@pytest.mark.parametrize("level", LEVELS)
def test_a_compiled_step_is_compiled_once(level):  # pytorch/pytorch#144787, #164143, #105929
    """Tools neither compile it anew nor keep it from being compiled."""
    from torch._dynamo.utils import counters

    def train():
        torch._dynamo.reset()
        counters.clear()
        net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        step = torch.compile(lambda x, y: nn.functional.mse_loss(net(x), y), backend="aot_eager")
        for number in range(5):
            loss = step(torch.randn(6, 8), torch.randn(6, 4))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch._dynamo.config.error_on_recompile = number > 0
        return loss.detach(), [parameter.detach() for parameter in net.parameters()], counters["stats"]["unique_graphs"]

    try:
        *expected, graphs = run(train, [])
        *result, graphs_with_tools = run(train, all_tools([level]))
    finally:
        torch._dynamo.config.error_on_recompile = False
        torch._dynamo.reset()
    assert graphs == graphs_with_tools == 1
    assert_same(result, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("level", LEVELS)
def test_compiled_for_sizes_that_change_every_tool_stays_on(level, backend, capfd):
    def train():
        torch._dynamo.reset()
        net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        step = torch.compile(net, backend=backend, dynamic=True)
        x = torch.randn(8, 16)
        step(x).sum().backward()
        return step(torch.cat([x, x])), [parameter.grad for parameter in net.parameters()]

    try:
        expected = run(train, [])
        assert_same(run(train, all_tools([level])), expected)  # run() asks each tool for its failures
    finally:
        torch._dynamo.reset()
    assert "op_tools error" not in capfd.readouterr().err


# pytorch/pytorch#194014
WITHOUT_STATISTICS = """
import torch
y = torch.relu(torch.full((9, 2, 8, 8), 2.0))
print("before", flush=True)
torch.ops.aten.native_batch_norm(y, None, None, None, None, False, 0.1, 1e-5)
print("after")
"""


@pytest.mark.parametrize("tools", [["--autocompare"], ["--autocompare", "--level", "aten"], ["--blackbox"]])
def test_a_kernel_that_dies_for_want_of_a_check_dies_as_without_tools(tools, tmp_path):
    program = tmp_path / "without_statistics.py"
    program.write_text(WITHOUT_STATISTICS)
    plain, with_tools = launched(program, check=False), launched("-m", "op_tools", "run", *tools, program, check=False)
    if plain.returncode == 0:
        pytest.skip("this torch checks the argument")
    assert plain.returncode == with_tools.returncode == -signal.SIGSEGV
    assert plain.stdout == with_tools.stdout == "before\n"
    if tools == ["--blackbox"]:
        (path,) = tmp_path.rglob("*.blackbox")
        (guilty,) = op_tools.read_black_box(path).open
        assert guilty.op == "aten::native_batch_norm" and guilty.line.endswith("without_statistics.py:5 <module>")


WORKERS = """
import contextlib, hashlib, torch
from torch.utils.data import DataLoader, Dataset

class Noise(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.randn(3, 5).mul_(i).relu(), torch.tensor(i)

def train():
    digest = hashlib.sha256()
    for context, persistent in (("fork", False), ("fork", True), ("spawn", False)):
        torch.manual_seed(0)
        count = 1 if context == "spawn" else 2
        loader = DataLoader(Noise(), 4, num_workers=count, shuffle=True, multiprocessing_context=context, persistent_workers=persistent)
        layer = torch.nn.Linear(5, 2)
        for x, i in [batch for _ in range(2 if persistent else 1) for batch in loader]:
            ((layer(x).sum(-1) * i[:, None]).mean()).backward()
        digest.update(layer.weight.grad.numpy().tobytes())
    return digest.hexdigest()

if __name__ == "__main__":
    import op_tools
    expected = train()
    tools = [getattr(op_tools, name)(level=level) for name in ("OpCapture", "OpAutoCompare", "OpRecord") for level in ("torch", "aten")]
    with contextlib.ExitStack() as stack:
        for tool in [*tools, op_tools.OpBlackBox()]:
            stack.enter_context(tool)
        assert train() == expected
    assert all(op_tools.read_recording(tool.result().path).complete for tool in tools[4:])
    assert not any(tool.result().failure for tool in tools)
    print("same")
"""


def test_workers_of_data_loaders(python, tmp_path):  # pytorch/pytorch#6313
    done = python(WORKERS, OP_TOOLS_LOG_LEVEL="warn")
    assert done.stdout.split() == ["same"]
    assert "op_tools error" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".part", ".tmp")]


def test_memory_stays_where_it_is_while_steps_go_on():  # pytorch/pytorch#139214, #122417, DeepLink-org/ditorch#18
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32))
    optimizer = torch.optim.Adam(net.parameters())
    kinds = (op_tools.OpRecord, op_tools.OpOverflowCheck, op_tools.OpObserve, op_tools.OpTimeMeasure)
    tools = [kind(level=level) for kind, level in zip(kinds, LEVELS * 2, strict=True)] + [
        op_tools.OpCapture(max_calls=3)
    ]
    marks = {}

    def train():
        for number in range(101):
            checkpoint(net, torch.randn(16, 32), use_reentrant=False).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number in (40, 100):
                marks[number] = resident()

    run(train, tools)
    assert marks[100] - marks[40] < 5, marks  # MB


def lightning_module(pl):
    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

        def training_step(self, batch, _):
            x, y = batch
            loss = nn.functional.mse_loss(self.net(x)[:, 0], y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, _):
            self.log("val", self.net(batch[0]).mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return Model()


@pytest.mark.parametrize("profiler", [None, "pytorch"])
def test_the_trainer_of_lightning_gives_the_same(profiler, tmp_path):  # Lightning-AI/pytorch-lightning#20779
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed", exc_type=ImportError)
    from op_tools.integrations.lightning import OpToolsCallback

    def train(callbacks=()):
        pl.seed_everything(3, verbose=False)
        data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32))
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
        model = lightning_module(pl)
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=0.5,
            accumulate_grad_batches=2,
            default_root_dir=tmp_path,
            callbacks=list(callbacks),
            profiler=profiler,
        )
        trainer.fit(model, loader, loader)
        return trainer.callback_metrics["loss"], [parameter.detach() for parameter in model.parameters()]

    expected = train()
    for level in LEVELS:
        assert_same(run(train, all_tools([level])), expected)
    compare = op_tools.OpAutoCompare()
    assert_same(train([OpToolsCallback([compare, op_tools.OpTimeMeasure()], steps=[1])]), expected)
    assert compare.result().rows


def test_cells_of_a_notebook():  # pytorch/pytorch#64795: lines without a file, exceptions in a cell, a tool that is left on
    space = {"torch": torch, "op_tools": op_tools, "sim": sim}

    def cell(number, text):
        exec(compile(text, f"<ipython-input-{number}>", "exec"), space)  # noqa: S102 (as a notebook does it)

    cell(1, "compare = op_tools.OpAutoCompare()\ncompare.start()")
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        cell(2, "x = torch.randn(3, 4)\ny = x @ x")
    cell(3, "with sim.fault('scale', ops='aten::exp', scale=1.5):\n    z = torch.exp(torch.ones(20, device='sim'))")
    cell(4, "compare.stop()\nr = compare.result()")
    assert not space["r"].ok
    (failure,) = space["r"].failures
    assert failure.op == "torch.exp" and "<ipython-input-3>:2" in failure.source
    cell(5, "with op_tools.OpTimeMeasure() as t:\n    torch.ones(3).exp()")
    assert space["t"].result().rows
    with pytest.raises(KeyError, match="mine"):
        cell(6, "with op_tools.OpCapture() as c:\n    torch.ones(3).exp()\n    raise KeyError('mine')")
    assert "torch.Tensor.exp" in {row.op for row in space["c"].result().rows}
