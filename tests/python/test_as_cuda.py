"""Programs that name CUDA run on another accelerator with the CPU's numbers, and everything is given back."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import launched

from op_tools._as_cuda import cuda_module, entry_points

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/data/as_cuda/programs.txt"


def programs() -> dict[str, tuple[str, bool]]:
    """The programs by name, each with whether its numbers are those of the device itself."""
    programs_by_name = {}
    for part in re.split(r"^### ", PROGRAMS.read_text(), flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        name, _, kind = head.partition(" ")
        programs_by_name[name] = (body, kind == "native")
    return programs_by_name


def reference(body: str, native: bool) -> str:
    """The same program without as_cuda: for the CPU, or for the device under its own name."""
    if native:
        return "import op_tools.sim_device\n" + body.replace("cuda", "sim")
    lines = []
    for line in body.splitlines():
        code, mark, other = line.partition("  # cpu: ")
        indent = re.match(" *", line)[0]  # type: ignore[index]  (matches always)
        lines.append(indent + other if mark else re.sub(r'"cuda(:0)?"', '"cpu"', code))
    return "\n".join(lines) + "\n"


# The names of torch that a program can see, for "everything is given back".
OWNERS = """
import torch, torch._dynamo, torch.distributed, torch.profiler  # torch._dynamo replaces torch.manual_seed

def state():
    owners = [torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.nvtx, torch.cuda.profiler,
              torch.Tensor, torch._C.TensorBase, torch.nn.Module, torch.amp, torch.amp.autocast, torch.amp.GradScaler, torch._C, torch._C._nn,
              torch.serialization, torch.jit, torch.utils.data.DataLoader, torch.profiler.profile, torch.distributed,
              torch.distributed.distributed_c10d, torch.distributed.device_mesh.DeviceMesh, torch.nn.DataParallel]
    return [{name: id(value) for name, value in vars(owner).items()} for owner in owners]
"""

# Each program in a child of its own: torch is imported once.
DRIVER = (
    OWNERS
    + """
import contextlib, io, json, os, sys, tempfile, traceback, warnings
import torch, op_tools, op_tools._as_cuda.switch as switch
import torch.profiler, torch.utils.checkpoint, torch.optim.swa_utils  # once for all
results = {}
for name, (body, reference) in json.load(sys.stdin).items():
    shown = []
    for text, on in ((body, True), (reference, False)):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            out = io.StringIO()
            try:
                warnings.simplefilter("ignore")
                # torch makes its pool of threads anew after a fork when it is first asked for; autograd's threads, one for each
                # device, would ask at once, and one of them would find none.
                torch.set_num_threads(torch.get_num_threads())
                before = state()
                if on:
                    switch.start("sim", **json.loads(sys.argv[1]))
                with contextlib.redirect_stdout(out):
                    exec(compile(text, name, "exec"), {"__name__": "__main__"})
                if on:
                    switch.stop()
                # torch itself replaces some, such as nn.Module.__init__ where it compiles: in both runs.
                other = [[place, key] for place, (old, new) in enumerate(zip(before, state())) for key in old if old[key] != new.get(key)]
                out.write(f"not what it was: {other}" if other else "")
            except BaseException:
                out.write(traceback.format_exc())
            os.write(write, out.getvalue().encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            shown.append(stream.read().decode())
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            shown[-1] += f"ended with status {status}"
    results[name] = shown
print(json.dumps(results))
"""
)


def run_all(which: dict[str, tuple[str, bool]], **options: bool) -> dict[str, list[str]]:
    request = json.dumps({name: [body, reference(body, native)] for name, (body, native) in which.items()})
    command = ["-X", "faulthandler", "-c", DRIVER, json.dumps(options)]
    done = launched(*command, standard_input=request, timeout=600, OMP_NUM_THREADS="1")
    sys.stderr.write(done.stderr)  # of programs that died
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[str]]:
    return run_all(programs())


@pytest.mark.parametrize("name", programs())
def test_a_program_for_cuda_prints_what_it_prints_without(outputs, name):
    ours, theirs = outputs[name]
    assert theirs and "Traceback" not in theirs, theirs
    assert ours == theirs


def test_programs_that_do_not_ask_for_the_name_run_with_the_own_name_shown():
    asked = {
        name: program
        for name, program in programs().items()
        if name in ("dot_cuda", "mnist_example", "amp", "optimizers")
    }
    asked["dot_cuda"] = (asked["dot_cuda"][0].replace(', loss.device.type == "cuda"', ""), False)
    asked["own"] = ('import torch\nprint(torch.zeros(1, device="cuda").device)\n', False)
    shown = run_all(asked, show=False)
    assert shown.pop("own") == ["sim:0\n", "cpu\n"]
    for name, (ours, theirs) in shown.items():
        assert ours == theirs != "", name


# --- Complete: every place where torch takes a device, every name of torch.cuda


def test_every_constructor_of_torch_is_renamed():
    """Torch 2.7 counts two functions that take no device."""
    from torch.utils._device import _device_constructors

    ours = {id(one) for one in entry_points.c_functions()}
    missing = {one.__name__ for one in _device_constructors() if id(one) not in ours and not inspect.isfunction(one)}
    assert missing <= {"fill", "vander"} and len(_device_constructors()) >= 36


def test_every_function_whose_schema_takes_a_device_is_renamed():
    names = {
        schema.name.removeprefix("aten::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::") and any(one.name == "device" for one in schema.arguments)
    }
    public = {name for name in names if not name.startswith("_") and inspect.isbuiltin(getattr(torch, name, None))}
    methods = {name for name in names if inspect.ismethoddescriptor(getattr(torch.Tensor, name, None))}
    assert public - set(entry_points.TORCH_FUNCTIONS) == set()
    assert {name for name in methods if not name.startswith("_")} - set(entry_points.TENSOR_METHODS) == {
        "cuda"
    } & methods


MINOR = tuple(map(int, torch.__version__.split(".")[:2]))
# A function of torch.cuda whose parameters are not those of ours: its name, ours, torch's.
OLDER = ["memory_snapshot", ["mempool_id", "include_traces"], [] if MINOR < (2, 9) else ["mempool_id"]]


def test_every_public_name_of_torch_cuda_has_a_rule_and_its_signature():
    done = launched("-c", RULES, OP_TOOLS_AS_CUDA="sim", DITORCH_DISABLE_MOCK="1")
    told = json.loads(done.stdout)
    assert told["names"] == sorted(torch.cuda.__all__) and told["unknown"] == []
    assert told["signatures"] == ([] if MINOR >= (2, 11) else [OLDER])
    assert told["mapped"] >= 50


RULES = """
import inspect, json, torch
from op_tools import as_cuda
assert not as_cuda.is_on()
rules = as_cuda.rules()
def names(function):
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
wrong = []
for rule in rules:
    original = getattr(torch.cuda, rule.name)
    if rule.kind != "left" and inspect.isfunction(original) and names(rule.value) != names(original):
        wrong.append([rule.name, names(rule.value), names(original)])
print(json.dumps({
    "names": [rule.name for rule in rules],
    "unknown": [rule.name for rule in rules if "not known" in rule.reason],
    "mapped": sum(rule.kind == "mapped" for rule in rules),
    "signatures": wrong,
}))
"""

# --- Everything is given back

GIVEN_BACK = (
    OWNERS
    + """
import sys
import op_tools.sim_device
from op_tools._as_cuda import switch, entry_points

x = torch.ones(2, device="sim")
hashes = [hash(one) for one in entry_points.c_functions()]
before = state() + [sorted(sys.modules)]
for program in (("cuda",), ("npu", "mlu", "musa", "xpu")):
    switch.start("sim", program=program)
    during = state() + [sorted(sys.modules)]
    assert during != before
    assert [hash(one) for one in entry_points.c_functions()] == hashes
    assert torch.ones(2, device=program[0]).device == x.device
    switch.stop()
    switch.stop()
    after = state() + [sorted(sys.modules)]
    for a, b in zip(before, after):
        assert a == b, [name for name in b if b.get(name) != a.get(name)] if isinstance(a, dict) else set(a) ^ set(b)
    assert str(x.device) == "sim:0" and x.device.type == "sim" and not x.is_cuda and not torch.cuda.is_available()
    for make in (lambda: torch.zeros(1, device="cuda"), lambda: x.to("cuda:0"), lambda: torch.Generator("cuda")):
        try:
            make()
        except (RuntimeError, AssertionError):
            continue
        raise AssertionError("cuda is still there")
switch.start("sim")
try:
    switch.start("sim")
except op_tools.Error as error:
    print("already" in str(error))
"""
)


def test_stop_gives_every_object_back():
    assert launched("-c", GIVEN_BACK).stdout == "True\n"


# --- Who is told that CUDA is there


def test_packages_for_nvidia_alone_are_told_that_cuda_is_missing(tmp_path):
    for package in ("flash_attn", "mine", "mine_too"):
        (tmp_path / f"{package}.py").write_text("import torch\nfound = torch.cuda.is_available()\n")
    program = "import op_tools.as_cuda, torch, flash_attn, mine, mine_too\nprint(torch.cuda.is_available(), flash_attn.found, mine.found, mine_too.found)"
    variables = {"OP_TOOLS_AS_CUDA": "sim", "OP_TOOLS_AS_CUDA_UNAVAILABLE_FOR": "mine"}
    done = launched("-c", program, cwd=tmp_path, **variables)
    assert done.stdout == "True False False True\n"


# --- The command line


def op_tools(*arguments, cwd, **more):
    return launched("-m", "op_tools", *arguments, cwd=cwd, **more)


def test_the_command_runs_a_program_and_its_processes(tmp_path):
    (tmp_path / "train.py").write_text(
        "import subprocess, sys, torch\n"
        "x = torch.nn.Linear(2, 2).cuda()(torch.ones(1, 2).cuda())\n"
        "print(x.device, sys.argv[1:])\n"
        "if len(sys.argv) == 2:\n"
        "    sys.stdout.flush()\n"
        "    subprocess.run([sys.executable, sys.argv[0], 'child', '2'], check=True)\n"
    )
    flags = ("--as-cuda", "sim", "--autocompare")
    done = op_tools("run", *flags, "train.py", "1", cwd=tmp_path, OP_TOOLS_LOG_LEVEL="info")
    assert done.stdout.splitlines() == ["cuda:0 ['1']", "cuda:0 ['child', '2']"]
    assert "0 results WRONG" in done.stderr


def test_a_program_for_another_vendor(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch, torch_npu\n"
        "from torch_npu.contrib import transfer_to_npu\n"
        "x = torch.ones(2, device='npu:0')\n"
        "torch.npu.synchronize(); torch.npu.set_device(0); torch.npu.set_rng_state(torch.npu.get_rng_state())\n"
        "print(x.is_npu, torch.ones(2).npu().sum().item(), torch.npu.is_available(), torch.nn.Linear(2, 2).npu().weight.is_npu)\n"
    )
    done = op_tools("run", "--as-accelerator", "sim", "train.py", cwd=tmp_path)
    assert done.stdout == "True 2.0 True True\n"


def test_mistakes_are_told(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    for arguments, status, text in (
        (("--as-cuda", "nothing"), 2, "no device module torch.nothing"),
        (("--as-cuda", "sim", "--as-accelerator", "sim"), 64, "the name that the program is written for"),
    ):
        done = op_tools("run", *arguments, "train.py", cwd=tmp_path, check=False)
        assert done.returncode == status and text in done.stderr, done.stderr


def test_doctor_prints_the_table(tmp_path):
    done = op_tools("doctor", "--as-cuda", "sim", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == len(torch.cuda.__all__) + 1 and any(re.match(r"synchronize +mapped", line) for line in lines)
    assert all(len(line) <= 140 for line in lines)


def test_visible_devices_are_counted(tmp_path):
    (tmp_path / "count.py").write_text(
        "import os, torch\n"
        "for visible in (None, '', '0,1,2,3'):\n"
        "    if visible is not None:\n"
        "        os.environ['CUDA_VISIBLE_DEVICES'] = visible\n"
        "    print(torch.cuda.device_count(), torch.cuda.is_available())\n"
    )
    done = op_tools("run", "--as-cuda", "sim", "count.py", cwd=tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert done.stdout == "1 True\n0 False\n2 True\n"


def test_ditorch_variables():
    cases = (
        ({"DITORCH_DISABLE_MOCK": "1"}, "False "),
        ({"DITORCH_SHOW_DEVICE_AS_CUDA": "0"}, "True sim:0"),
        ({"OP_TOOLS_AS_CUDA_SHOW": "1"}, "True cuda:0"),
    )
    program = (
        "import json, os, sys, torch, op_tools\n"
        "for variables in json.loads(sys.argv[1]):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os.environ.update(variables)\n"
        "        import op_tools.as_cuda as a\n"
        "        print(a.is_on(), torch.zeros(1, device='cuda').device if a.is_on() else '', flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    done = launched("-c", program, json.dumps([variables for variables, _ in cases]), OP_TOOLS_AS_CUDA="sim")
    assert done.stdout.splitlines() == [text for _, text in cases], done.stderr


# --- Several processes

PARALLEL = """
import time, torch, torch.distributed as dist
from torch import nn
torch.cuda.set_device(0)
dist.init_process_group(backend="nccl")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2).cuda(), device_ids=[0])
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.full((3, 4), rank + 1.0 + step).cuda()).square().mean()
    loss.backward()
    optimizer.step()
values = torch.full((2,), rank + 1.0, device="cuda")
gathered = [torch.zeros(2, device="cuda") for _ in range(2)]
dist.all_gather(gathered, values)
work = dist.all_reduce(values, async_op=True)
work.wait()
dist.broadcast(values, 1)
dist.barrier()
if rank == 0:
    print([f"{p.sum().item():.5f}" for p in model.parameters()], [g.tolist() for g in gathered], values.tolist(), values.device.type)
time.sleep(1)  # gloo's thread frees the last gradient's work; where Python ends first, torch aborts
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")
def test_ddp_with_nccl_named_trains_what_it_trains_on_the_cpu(tmp_path):
    (tmp_path / "train.py").write_text(PARALLEL)
    cpu = PARALLEL.replace("torch.cuda.set_device(0)\n", "").replace('"nccl"', '"gloo"').replace(".cuda()", "")
    (tmp_path / "cpu.py").write_text(cpu.replace(", device_ids=[0]", "").replace('"cuda"', '"cpu"'))
    shown = {}
    for name, flags in (("train.py", ("-m", "op_tools", "run", "--as-cuda", "sim")), ("cpu.py", ())):
        done = launched(*flags, name, ranks=2, cwd=tmp_path)
        text = done.stdout.replace("'cuda'", "").replace(" cuda", "").replace(" cpu", "")
        # Up to torch 2.9 gloo prints such lines, of all ranks at once.
        shown[name] = [line for line in text.splitlines() if line and "[Gloo]" not in line and "peer ranks" not in line]
    assert shown["train.py"] == shown["cpu.py"] != []


TRAINERS = {
    "transformers": """
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.arange(8) + i, "labels": torch.tensor(i % 2)} for i in range(16)]
options = TrainingArguments(sys.argv[1], max_steps=4, per_device_train_batch_size=4, report_to=[], disable_tqdm=True, learning_rate=0.01)
print(f"{Trainer(model, options, train_dataset=data).train().training_loss:.5f}", file=out)
""",
    "lightning": """
import lightning
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)
    def training_step(self, batch, _):
        loss = self.linear(batch[0]).square().mean()
        print(f"{loss.item():.6f}", file=out)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
trainer = lightning.Trainer(max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False, devices=1)
trainer.fit(Module(), loader)
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator()
model = torch.nn.Linear(4, 2)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), loader)
for (x,) in loader:
    loss = model(x).square().mean()
    accelerator.backward(loss); optimizer.step(); optimizer.zero_grad()
    print(f"{loss.item():.6f}", file=out)
""",
}


@pytest.mark.parametrize("library", TRAINERS)
def test_trainers_of_others_take_the_device_for_cuda(library, tmp_path):
    pytest.importorskip(library, reason=f"{library} is not installed")
    (tmp_path / "train.py").write_text(
        "import sys, torch\nout = open(sys.argv[2], 'w')\ntorch.manual_seed(0)\n"
        "rows = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(8, 4) / 32)\n"
        "loader = torch.utils.data.DataLoader(rows, batch_size=2)\n"
        + TRAINERS[library]
        + "print(torch.cuda.is_available())\n"
    )
    shown = []
    for name, flags in (("cuda", ("-m", "op_tools", "run", "--as-cuda", "sim")), ("cpu", ())):
        done = launched(*flags, "train.py", f"folder-{name}", name, cwd=tmp_path, CUDA_VISIBLE_DEVICES="0")
        assert done.stdout.splitlines()[-1] == str(name == "cuda")
        shown.append((tmp_path / name).read_text())
    assert shown[0] == shown[1] != ""


# Of torch.cuda, by the version that brought them.
NEW_IN = {
    (2, 10): {"GreenContext"},
    (2, 12): {"caching_allocator_disabled"},
    (2, 13): {"current_solver_handle"},
    (2, 14): {"export_dot", "export_graph_data", "graph_annotations"},
}
GONE_AFTER = {(2, 8): {"MemPoolContext"}}


def test_no_name_of_the_table_is_gone_from_torch():
    listed = {*cuda_module.CONSTANTS, *cuda_module.NO_EFFECT, *cuda_module.REFUSED, *cuda_module.LEFT}
    missing = listed - set(torch.cuda.__all__)
    newer = {name for version, names in NEW_IN.items() if version > MINOR for name in names}
    assert missing == newer | {name for version, names in GONE_AFTER.items() if version < MINOR for name in names}


def test_libraries_of_nvidia_are_asked_for_nothing():
    """A CUDA build of torch has them, and asks them for tensors whose is_cuda is true."""
    done = launched(
        "-c",
        "import torch, op_tools.sim_device, op_tools.as_cuda\n"
        "torch._C._nccl_all_reduce = torch._C._has_cudnn = True\n"
        "torch.backends.cudnn._init = lambda: True\n"
        "x = torch.ones(2, device='cuda')\n"
        "print(x.is_cuda, torch.backends.cudnn.is_acceptable(x), torch.cuda.nccl.is_available([x]))",
    )
    assert done.stdout.splitlines()[-1] == "True False False"
