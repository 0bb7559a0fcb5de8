"""Results of collectives are recorded when they have arrived, and compared between ranks."""

import json
import math
from pathlib import Path

import pytest
import torch
from conftest import launched

import op_tools
from op_tools.__main__ import main

BROUGHT = """
import json, os, sys
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
import op_tools

folder, level = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
observe = op_tools.OpObserve(level=level, output_dir=f"{folder}/observe{rank}")
capture = op_tools.OpCapture(level=level, output_dir=f"{folder}/capture{rank}", ops=".*reduce.*,.*broadcast.*")
with op_tools.OpRecord(level=level, output_dir=f"{folder}/record"), observe, capture:
    summed = torch.ones(2, 3) * (rank + 1)
    dist.all_reduce(summed)
    sent = torch.full((4,), float(rank + 1))
    dist.broadcast(sent, 1)
    late = torch.ones(5) * (rank + 1)
    work = dist.all_reduce(late, async_op=True)
    work.wait()
    late * 1
    gathered = torch.zeros(4)
    dist.all_gather_into_tensor(gathered, torch.ones(2) * (rank + 1))
    total = functional.all_reduce(torch.ones(7) * (rank + 1), "sum", dist.group.WORLD)
    total * 1
dist.barrier()
dist.destroy_process_group()
"""
NORMS = {(2, 3): 3 * math.sqrt(6), (4,): 4.0, (5,): 3 * math.sqrt(5), (7,): 3 * math.sqrt(7)}


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_results_of_collectives_are_what_arrived(level, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BROUGHT)
    launched(script, tmp_path, level, ranks=2)
    files = sorted((tmp_path / "record").glob("*.oprec"))
    assert len(files) == 2
    for file in files:
        calls = op_tools.read_recording(file).calls
        shared = [call for call in calls if "reduce" in call.op or "broadcast" in call.op]
        brought = {tensor.shape: tensor.norm for call in shared for _, tensor in call.outputs}
        if level == "torch":
            brought.pop((7,))  # waited for below the torch level
        assert brought == pytest.approx({shape: norm for shape, norm in NORMS.items() if shape in brought})
        assert len(brought) >= 3
        gathered = next(call for call in calls if "gather" in call.op)
        assert dict(gathered.outputs)[gathered.outputs[-1][0]].norm == pytest.approx(math.sqrt(10))
        multiplied = [call for call in calls if "mul" in call.op and call.inputs[0][1].shape == (5,)]
        assert multiplied[-1].inputs[0][1].norm == pytest.approx(NORMS[5,])
    if level == "aten":  # torch functions write their arguments
        for rank in range(2):
            (rows,) = (tmp_path / f"observe{rank}").rglob("calls.jsonl")
            for row in map(json.loads, rows.read_text().splitlines()):
                if row["op"] == "c10d::broadcast_":
                    assert row["result"][0][0]["norm"] == 4.0
            (path,) = {
                path.parent for path in (tmp_path / f"capture{rank}").rglob("output.pth") if "broadcast" in str(path)
            }
            assert torch.equal(op_tools.load_call(path).result[0][0], torch.full((4,), 2.0))


REPLICAS = """
import sys
import torch, torch.distributed as dist
import op_tools

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
with op_tools.OpRecord(level=sys.argv[2], output_dir=sys.argv[1]):
    weight = torch.randn(4, 3).t()[:, ::2]
    if sys.argv[3] == "right":
        weight = weight.contiguous()
    dist.broadcast(weight, 0)
    torch.manual_seed(7)
    for _ in range(2):
        x = torch.randn(5, 3)
        gradient = x.t() @ (x @ weight)
        dist.all_reduce(gradient)
        weight = weight - 0.01 * gradient
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("ranks", "level"), [(2, "aten"), (3, "aten"), (2, "torch")])
def test_a_broadcast_after_which_replicas_differ_is_named(ranks, level, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(REPLICAS)
    launched(script, tmp_path / "wrong", level, "wrong", ranks=ranks)
    assert main(["compare", str(tmp_path / "wrong")]) == 1
    assert "does not follow from the inputs of the ranks" in capsys.readouterr().out
    many = op_tools.compare_many([tmp_path / "wrong"])
    assert all("broadcast" in row.op and Path(row.line.split(":")[0]).name == "train.py" for row in many.rows)
    assert 0 < len(many.rows) < ranks
    if ranks == 2:
        launched(script, tmp_path / "right", level, "right", ranks=ranks)
        assert main(["compare", str(tmp_path / "right")]) == 0


PASSED_ON = """
import sys
import torch, torch.distributed as dist
import op_tools

folder, level, group = sys.argv[1:]
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
named = {"group": dist.new_group(list(range(n)))} if group == "own" else {}


def column(value, contiguous):
    # gloo's broadcast, reduce, scatter and all_reduce are wrong where it is not contiguous (pytorch/pytorch#192920).
    whole = torch.tensor([[float(value), -1.0], [value + 0.5, -2.0]])[:, 0]
    return whole.contiguous() if contiguous else whole


def scatter(right):
    # The list's items may have any strides.
    out = column(0, right)
    items = [torch.ones(2), torch.full((2,), 3.0)]
    dist.scatter(out, items if rank == 0 else None, 0, **named)


def rest(right):
    # Collectives that gloo does right.
    items, places = [torch.randn(2) for _ in range(n)], [torch.zeros(2) for _ in range(n)]
    dist.all_reduce(torch.randn(50), op=dist.ReduceOp.MAX, **named)
    dist.all_reduce(torch.randn(50, dtype=torch.bfloat16), **named)
    dist.all_reduce(torch.arange(5) + rank, **named)
    dist.gather(items[0], places if rank == 1 else None, 1, **named)
    dist.all_gather([torch.zeros(2) for _ in range(n)], items[0], **named)
    dist.all_gather_into_tensor(torch.zeros(2 * n), items[0], **named)
    dist.reduce_scatter(torch.zeros(2), items, **named)
    dist.reduce_scatter_tensor(torch.zeros(2), torch.randn(2 * n), **named)
    dist.all_to_all_single(torch.zeros(2 * n), torch.randn(2 * n), **named)


CALLS = {
    "broadcast": lambda right: dist.broadcast(column(rank + 1, right), 0, **named),
    "reduce": lambda right: dist.reduce(column(rank + 1, right), 0, **named),
    "all_reduce": lambda right: dist.all_reduce(column(rank + 1, right), **named),
    "scatter": scatter,
    "rest": rest,
}
for op, call in CALLS.items():
    for right in (True, False):
        torch.manual_seed(rank)
        with op_tools.OpRecord(level=level, output_dir=f"{folder}/{op}-{right}", format="jsonl"):
            call(right)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("level", "group"), [("torch", "default"), ("aten", "default"), ("torch", "own")])
def test_what_a_collective_gives_follows_from_what_the_ranks_gave(level, group, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PASSED_ON)
    launched(script, tmp_path, level, group, ranks=2)
    for op in ("broadcast", "reduce", "all_reduce", "scatter", "rest"):
        right = op_tools.compare_many(
            [tmp_path / f"{op}-True"]
        )  # of other data on each rank: collectives alone are compared
        assert right.rows == [] and right.calls["compared"] >= (1 if op == "reduce" else 2), right.table()
        assert main(["compare", str(tmp_path / f"{op}-False")]) == (0 if op == "rest" else 1), op
        rows = op_tools.compare_many([tmp_path / f"{op}-False"]).rows
        assert all(op.replace("_", "") in row.op.replace("_", "") for row in rows)
        assert all(row.finding == "its result does not follow from the inputs of the ranks" for row in rows)
    assert altered(tmp_path / "rest-True", tmp_path / "altered") >= 9


RIGHT = """
import sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
import op_tools

folder, level = sys.argv[1:]
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (n,))


def record(name):
    return op_tools.OpRecord(level=level, output_dir=f"{folder}/{name}", format="jsonl")


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))


def data(width=8, rows=6):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rank))


def train(model, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        model(data()).square().mean().backward()
        optimizer.step()


model = net()
for layer in [*model, model]:
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with record("in_place"):
    train(model, optimizer)
model = torch.nn.parallel.DistributedDataParallel(net())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)
with record("shared_steps"):
    train(model, optimizer)
model = torch.nn.Sequential(torch.nn.Linear(16, 16))
parallelize_module(model, mesh, {"0": RowwiseParallel()})
with record("views"):
    for _ in range(4):
        model(data(16 // n, 600)).square().mean().backward()
with record("views_of_work"):
    for _ in range(4):
        x = torch.randn(400_000, generator=torch.Generator().manual_seed(rank))
        work = dist.all_reduce(x, async_op=True)
        rows, part = x.view(4, -1), x[100:]
        work.wait()
        rows * 2, part * 2
with record("coalesced"):
    a, b = torch.ones(8) * (rank + 1), torch.ones(4) * (rank + 5)
    with dist._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    a * 2, b * 2
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_collectives_of_right_programs_are_not_odd(level, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(RIGHT)
    launched(script, tmp_path, level, ranks=2)
    # FSDP gathers into the tensor that the rank's own piece is a part of; ZeRO's ranks step other parameters, and make other
    # calls; DTensor's views are made before the program waits.
    for name in ("in_place", "shared_steps", "views", "views_of_work", "coalesced"):
        many = op_tools.compare_many([tmp_path / name])
        assert many.rows == [] and many.calls["compared"] >= 2, (name, many.table())
        for file in (tmp_path / name).glob("*.oprec"):
            reductions = [call for call in op_tools.read_recording(file).calls if "reduce" in call.op]
            results = [tensor for call in reductions for _, tensor in call.outputs]
            is_written_unseen = (
                name == "coalesced" and level == "torch"
            )  # gloo copies the results, where no function is called
            assert is_written_unseen or not results or any(tensor.known for tensor in results), name
    assert altered(tmp_path / "in_place", tmp_path / "altered_gather", "gather_") > 0
    assert altered(tmp_path / "shared_steps", tmp_path / "altered_broadcast", "broadcast") >= 8
    assert altered(tmp_path / "coalesced", tmp_path / "altered_sum", "reduce") == (level == "aten")


def altered(folder, other, of=""):
    """Alters the results of each collective in turn on rank 1, those whose names have `of`; each is named. How many there are."""
    first, two = sorted(folder.glob("*.jsonl"))
    rows = [json.loads(line) for line in two.read_text().splitlines()]
    calls = [row for row in rows if row["kind"] == "call" and ("distributed" in row["op"] or "c10d" in row["op"])]
    values = [row for row in rows if row["kind"] == "value"]
    calls = [call for call in calls if of in call["op"]]
    if of:  # the last ones are read by nobody
        calls = [call for call in calls if all(values[number]["known"] for _, number in call["outputs"])]
    other.mkdir()
    (other / first.name).write_text(first.read_text())
    for call in calls:
        before = {}
        for _, number in call["outputs"]:
            value = values[number]
            if value["known"] and number not in before:
                before[number] = dict(value)
                value |= {
                    "hash": "1",
                    "max": 99.0,
                    "mean": 1.7,
                    "norm": 99.0,
                    "projections": [50.0, -50.0, 50.0, -50.0],
                }
        (other / two.name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (named, *_) = op_tools.compare_many([other / first.name, other / two.name]).rows
        assert named.op == call["op"]
        for number, value in before.items():
            values[number].update(value)
    return len(calls)


LAUNCHES = """
import sys
import torch, torch.distributed as dist
import op_tools

folder, level, fault, sick = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 3 if wrong else x * 2


for launch in range(3):
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    with op_tools.OpRecord(level=level, output_dir=f"{folder}/launch{launch}"):
        for step in range(3):
            is_faulty = launch == 2 and step == 1 and str(rank) == sick
            wrong = is_faulty and fault == "kernel"  # of the operator, which is told nothing of it
            gradient = doubled(weight + rank)
            if is_faulty and fault == "memory":
                gradient = torch.from_numpy(gradient.numpy() * 1.5)
            dist.all_reduce(gradient)
            weight = weight - 0.01 * gradient
            dist.all_reduce(gradient.sum())
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("level", ["aten", "torch"])
@pytest.mark.parametrize(
    ("fault", "op", "finding"),
    [("kernel", "doubled", "other results"), ("memory", "all_reduce", "it was given other values than in other runs")],
)
def test_a_sick_rank_of_one_of_several_launches_is_named_alone(fault, op, finding, level, tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(LAUNCHES)
    launched(script, tmp_path, level, fault, "1", ranks=2)
    launches = [tmp_path / f"launch{number}" for number in range(3)]
    for runs in (launches, launches[::-1]):
        many = op_tools.compare_many(runs)
        assert [(row.rank, row.finding) for row in many.rows] == [(1, finding)], many.table()
        assert op in many.rows[0].op.replace("allreduce", "all_reduce") and "launch2" in many.rows[0].run
        assert many.reached == 1 and many.exit_status == 1
    assert main(["compare", *map(str, launches)]) == 1
    assert "1 of 6 runs are odd; a collective brought 1 more the difference of an odd rank" in capsys.readouterr().out
    assert op_tools.compare_many([*launches[:2], launches[0]]).exit_status == 0
    # Of the healthy rank alone it is not known what the other rank gave the collective.
    files = [next(launch.glob("rank0-*.oprec")) for launch in launches]
    many = op_tools.compare_many(files)
    assert [row.finding for row in many.rows] == ["other results"], many.table()
    assert "reduce" in many.rows[0].op
