"""The callbacks for training loops of others, and the launcher under torchrun and with compiled scripts."""

import json

import pytest
import torch
from conftest import launched
from torch import nn

import op_tools
from op_tools.integrations._steps import ToolsInSteps

QUIET = {"lines": False, "files": False}


class Counts(op_tools.Hook):
    """How often each step's calls were met."""

    def __init__(self):
        self.steps = []

    def before(self, call):
        self.steps.append(call.step)


def test_steps_that_were_not_chosen_are_left_alone(captured):
    hook = Counts()
    scope = op_tools.HookScope(hook, ops="torch.neg")
    capture = op_tools.OpCapture(ops="torch.neg")
    steps = ToolsInSteps([scope, capture], steps=[1, 2, 5])
    met = []
    for number in range(7):
        for _ in range(2):  # batches whose gradients are accumulated
            steps.step_begins(number)
            before = len(hook.steps)
            torch.neg(torch.ones(1))
            met.append((number, len(hook.steps) - before))
        steps.step_ends(number)
    steps.training_ends()
    assert {number for number, count in met if count} == {1, 2, 5}
    assert hook.steps == [0, 0, 1, 1, 0, 0]
    torch.neg(torch.ones(1))
    assert len(hook.steps) == 6


def test_wrong_arguments_are_said():
    with pytest.raises(op_tools.Error, match="give a tool, or several"):
        ToolsInSteps([])
    with pytest.raises(op_tools.Error, match="counted from 0, not -1"):
        ToolsInSteps([op_tools.OpCapture()], steps=[-1])


class Examples(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index)), "labels": torch.tensor([float(index)])}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x, labels=None):
        out = self.linear(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


@pytest.mark.filterwarnings("ignore")  # theirs, about each other and about torch
def test_in_the_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed", exc_type=ImportError)
    pytest.importorskip("accelerate", reason="accelerate is not installed", exc_type=ImportError)
    from op_tools.integrations.transformers import OpToolsCallback

    time = op_tools.OpTimeMeasure(ops="torch.nn.functional.linear", **QUIET)
    hook = Counts()
    callback = OpToolsCallback([time, op_tools.HookScope(hook, ops="torch.nn.functional.linear")], steps=[1, 2])
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        remove_unused_columns=False,
    )
    transformers.Trainer(model=Model(), args=arguments, train_dataset=Examples(), callbacks=[callback]).train()
    assert hook.steps == [0, 0, 1, 1]
    assert {(row.phase, row.calls) for row in time.result().rows} == {("forward", 4), ("backward", 4)}


@pytest.mark.filterwarnings("ignore")  # theirs, about each other and about torch
def test_in_the_trainer_of_lightning(tmp_path):
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed", exc_type=ImportError)
    from op_tools.integrations.lightning import OpToolsCallback

    class Lit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    time = op_tools.OpTimeMeasure(ops="torch.nn.functional.linear", **QUIET)
    hook = Counts()
    callback = OpToolsCallback([time, op_tools.HookScope(hook, ops="torch.nn.functional.linear")], steps=[1, 2])
    trainer = pl.Trainer(
        max_steps=3,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[callback],
    )
    trainer.fit(Lit(), torch.utils.data.DataLoader(Examples(), batch_size=2))
    assert hook.steps == [0, 0, 1, 1]
    assert {(row.phase, row.calls) for row in time.result().rows} == {("forward", 4), ("backward", 4)}


DDP = """
import os, time
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((3, 4), float(dist.get_rank() + 1))).sum().backward()
    optimizer.step()
line = f"rank {dist.get_rank()} {[round(p.sum().item(), 4) for p in model.parameters()]}\\n"
os.write(1, line.encode())  # at once: the ranks share a pipe
time.sleep(1)  # gloo's thread frees the last gradient's work; where Python ends first, torch aborts
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_the_launcher_under_torchrun(tmp_path):
    """DDP in two processes: each writes to the folder of its rank, and trains as it trains without."""
    (tmp_path / "train.py").write_text(DDP)
    alone = launched("train.py", ranks=2, cwd=tmp_path)
    tools = ("-m", "op_tools", "run", "--capture", "--time", "--ops", "torch.nn.functional.*")
    done = launched(*tools, "train.py", ranks=2, cwd=tmp_path, fresh=True)
    assert sorted(done.stdout.splitlines()) == sorted(alone.stdout.splitlines()) != []
    for rank in ("0", "1"):
        files = list(tmp_path.glob(f"op_capture_result/{rank}/*/torch.nn.functional.linear/*/meta.json"))
        metas = [json.loads(path.read_text()) for path in files]
        assert len(metas) == 4 and {meta["rank"] for meta in metas} == {int(rank)}
        assert {meta["step"] for meta in metas} == {0, 1}
        assert {meta["module"] for meta in metas} == {"module.0", "module.2"}
        assert len(list(tmp_path.glob(f"op_time_measure_result/{rank}/*/summary.csv"))) == 1


COLLECTIVES = """
import os, sys, time
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import op_tools

dist.init_process_group("gloo")
rank, one = dist.get_rank(), torch.ones(2)

def program():
    values = one * (rank + 1)
    gathered = [torch.zeros(2) for _ in range(2)] if rank == 0 else None
    dist.gather(values, gathered)
    dist.all_reduce(values)
    total = functional.all_reduce(values, "sum", dist.group.WORLD) + 0
    dist.broadcast(values, 1)
    return [gathered, values, total]

alone = str(program())
for level in ("torch", "aten"):
    if rank:  # this process takes part in the program's work, and in nothing else
        program()
        continue
    with op_tools.OpAutoCompare(level=level) as tool:
        under = str(program())
    rows = [row["op"] for row in tool.result().rows if row["reason"].startswith("other processes take part in it")]
    os.write(1, f"{level} {alone == under} {sorted(set(rows))} {len(tool.result().failures)}\\n".encode())
time.sleep(1)  # gloo's thread frees the last work; where Python ends first, torch aborts
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_collectives_are_not_run_again_by_one_process_alone(tmp_path):
    (tmp_path / "train.py").write_text(COLLECTIVES)
    done = launched("train.py", ranks=2, cwd=tmp_path)
    expected = {
        "torch": ["torch.distributed.distributed_c10d.gather", "torch.ops._c10d_functional.all_reduce"],
        "aten": ["_c10d_functional::all_reduce", "c10d::allreduce_", "c10d::broadcast_"],
    }
    for level, met in expected.items():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{level} ")]
        assert line.startswith(f"{level} True") and line.endswith(" 0") and all(name in line for name in met)


COMPILED = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
step = torch.compile(model, backend="aot_eager")
for _ in range(2):
    step(torch.ones(3, 4)).sum().backward()
print([round(p.grad.sum().item(), 4) for p in model.parameters()])
"""


def test_a_compiled_script_through_the_launcher(tmp_path):
    (tmp_path / "compiled.py").write_text(COMPILED)
    alone = launched("compiled.py", cwd=tmp_path)
    for level in ("torch", "aten"):
        folder = tmp_path / level
        flags = ("--capture", "--level", level, "--output-dir", folder)
        done = launched("-m", "op_tools", "run", *flags, "compiled.py", cwd=tmp_path)
        assert done.stdout == alone.stdout
        assert list(folder.glob("op_capture_result/0/*/*/*/input.pth"))
