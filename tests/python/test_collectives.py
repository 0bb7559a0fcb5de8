"""What collectives bring is recorded when it has arrived, and compared between ranks."""

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
    assert "must have the same" in capsys.readouterr().out
    found = op_tools.compare_many([tmp_path / "wrong"])
    assert all("broadcast" in row.op and Path(row.line.split(":")[0]).name == "train.py" for row in found.rows)
    assert 0 < len(found.rows) < ranks
    if ranks == 2:
        assert found.rows[0].finding.endswith("which is right is not known")
        launched(script, tmp_path / "right", level, "right", ranks=ranks)
        assert main(["compare", str(tmp_path / "right")]) == 0
