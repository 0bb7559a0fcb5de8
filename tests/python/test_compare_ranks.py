"""One rank against several: the plan by which tensors are spread is proven, and the call that breaks it is named."""

import json

import pytest
import torch
from conftest import launched

import op_tools
import op_tools._runs.compare_ranks
from op_tools.__main__ import main

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
import op_tools, op_tools.sim_device as sim

folder, fault = sys.argv[1:]
count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if count > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
wide, narrow = torch.randn(16, 8), torch.randn(4, 16)
x = torch.randn(6, 8).to("sim")


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Parameter(wide.chunk(count, 0)[rank].contiguous().to("sim"))
        self.narrow = nn.Parameter(narrow.chunk(count, 1)[rank].contiguous().to("sim"))

    def forward(self, x):
        hidden = torch.relu(nn.functional.linear(x, self.wide))
        return nn.functional.linear(hidden, self.narrow)


net = Parallel()
if rank == 1 and fault:
    sim.fault("scale", ops=fault, call=0, scale=1.5).start()
with op_tools.OpCapture(output_dir=folder + "_capture"), op_tools.OpRecord(output_dir=folder) as tool:
    out = net(x)
    out.backward(torch.ones_like(out))
    if count > 1:
        whole = out.detach().cpu()
        dist.all_reduce(whole)
if count > 1:
    time.sleep(1)  # gloo's thread frees the last work
    dist.destroy_process_group()
"""


def recorded(tmp_path, folder, ranks=1, fault=""):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    launched(script, tmp_path / folder, fault, ranks=ranks)
    return tmp_path / folder


def plans(comparison):
    return {(row.op.rpartition(".")[2], row.phase, row.place, row.shape): row.plan for row in comparison.rows}


def test_the_plan_of_a_linear_layer_on_two_ranks_is_proven_and_a_sick_shard_is_named(tmp_path, capsys):
    single, two = recorded(tmp_path, "one"), recorded(tmp_path, "two", ranks=2)
    comparison = op_tools.compare_ranks(single, two)
    seen = plans(comparison)
    assert seen["linear", "forward", "result", (6, 16)] == "concatenation along dim 1"
    assert seen["relu", "forward", "result", (6, 16)] == "concatenation along dim 1"
    assert seen["linear", "forward", "result", (6, 4)] == "sum"
    assert seen["linear", "backward", "result[0]", (6, 16)] == "concatenation along dim 1"
    assert seen["linear", "backward", "result[1]", (4, 16)] == "concatenation along dim 1"
    assert comparison.first is None and comparison.exit_status == 0
    assert main(["compare", str(single), str(two)]) == 0
    assert "concatenation along dim 1 (by statistics)" in capsys.readouterr().out

    both = (tmp_path / "one_capture", tmp_path / "two_capture")
    proven = op_tools.compare_ranks(single, two, captures=both)
    assert plans(proven) == seen
    assert {row.proof for row in proven.rows if row.phase == "forward"} == {"values"}

    sick = recorded(tmp_path, "sick", ranks=2, fault="aten::relu")
    first = op_tools.compare_ranks(single, sick).first
    assert first.op == "torch.relu" and first.module == "Parallel" and first.plan == "" and first.ranks == []
    lines = tmp_path / "found.jsonl"
    captures = [str(tmp_path / "one_capture"), str(tmp_path / "sick_capture")]
    assert main(["compare", str(single), str(sick), "--captures", *captures, "--json", str(lines)]) == 1
    assert "First divergence: torch.relu (forward, step 0) on rank 1" in capsys.readouterr().out
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    (record,) = [one for one in records if one["kind"] == "first_divergence"]
    assert record["ranks"] == [1] and record["op"] == "torch.relu"


DISTRIBUTED = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
import op_tools

folder, level, data, sick = sys.argv[1:]
count, rank, data = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0")), int(data)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
x, y = torch.randn(8, 16), torch.randn(8, 8)
if count > 1:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (data, count // data), mesh_dim_names=("data", "tensor"))
    if count > data:
        parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(net, mesh=mesh["data"])
    else:
        net = nn.parallel.DistributedDataParallel(net)
    part = mesh["data"].get_local_rank()
    x, y = x.chunk(data)[part], y.chunk(data)[part]
library = torch.library.Library("aten", "IMPL")
if str(rank) == sick:
    library.impl("relu", lambda x: x.clamp(min=0) * 1.5, "CPU")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
with op_tools.OpRecord(level=level, output_dir=folder):
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
if count > 1:
    dist.destroy_process_group()
os._exit(0)  # gloo's thread frees the last gradient's work; where Python ends first, torch aborts
"""


def distributed(tmp_path, folder, ranks=1, level="aten", data=1, sick=""):
    script = tmp_path / "distributed.py"
    script.write_text(DISTRIBUTED)
    launched(script, tmp_path / folder, level, data, sick, ranks=ranks)
    return tmp_path / folder


def test_each_rank_of_data_parallel_training_has_the_gradients_of_its_own_loss(tmp_path):
    single = distributed(tmp_path, "one", level="torch")
    comparison = op_tools.compare_ranks(single, distributed(tmp_path, "two", ranks=2, level="torch", data=2))
    assert comparison.first is None and comparison.exit_status == 0
    seen = {(row.op, row.phase, row.shape): row.plan for row in comparison.rows}
    assert seen["torch.nn.functional.linear", "forward", (8, 8)] == "concatenation along dim 0"
    assert seen["torch.nn.functional.mse_loss", "forward", ()] == "mean"
    assert seen["torch.nn.functional.mse_loss", "backward", (8, 8)] == "concatenation along dim 0, times 2"
    assert seen["torch.Tensor.add_", "forward", (32, 16)] == "replica"


def test_local_operators_of_distributed_tensors_follow_a_plan_and_a_sick_rank_breaks_it(tmp_path):
    single = distributed(tmp_path, "one")
    comparison = op_tools.compare_ranks(single, distributed(tmp_path, "four", ranks=4, data=2))
    seen = {(row.op, row.phase, row.shape): row.plan for row in comparison.rows if row.step == 0}
    assert seen["aten::t", "forward", (16, 32)] == "concatenation along dim 1, 2 copies of each"
    assert seen["aten::addmm", "forward", (8, 32)] == "concatenation along dims 0 and 1"
    assert seen["aten::addmm", "forward", (8, 8)] == "sums, concatenated along dim 0"
    assert seen["aten::mm", "backward", (8, 32)].startswith(("sums, ", "concatenation "))
    assert comparison.first is None
    first = op_tools.compare_ranks(single, distributed(tmp_path, "sick", ranks=4, data=2, sick="1")).first
    assert (first.op, first.module) == ("aten::relu", "Sequential.1")


# ---- tensors of which no program is run ----


def run_of(tmp_path, name, **outputs):
    """Recordings of torch.neg, a rank each: outputs are the results' negatives."""
    folder = tmp_path / name
    for rank, tensor in enumerate(outputs.values()):
        negative = -tensor
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            with op_tools.OpRecord(output_dir=folder):
                torch.neg(negative)
    return folder


def plan_of(tmp_path, whole, *parts, **options):
    single = run_of(tmp_path, "one", a=whole)
    many = run_of(tmp_path, "many", **{str(i): part for i, part in enumerate(parts)})
    (row,) = op_tools.compare_ranks(single, many, **options).rows
    return row.plan, row.proof


WHOLE = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
QUARTERS = [quarter for half in WHOLE.chunk(2, 0) for quarter in half.chunk(2, 1)]
SMALL = torch.full((6, 8), 1e-3) * torch.arange(8)


@pytest.mark.parametrize(
    ("parts", "plan"),
    [
        ([WHOLE, WHOLE.clone()], ("replica", "bits")),
        ([WHOLE, WHOLE * (1 + 1e-7)], ("replica", "projections")),
        ([*WHOLE.split([2, 6], 1)], ("concatenation along dim 1", "statistics")),
        ([*WHOLE.chunk(3, 0)], ("concatenation along dim 0", "statistics")),
        ([WHOLE - SMALL, SMALL], ("sum", "projections")),
        ([WHOLE - SMALL, WHOLE + SMALL], ("mean", "projections")),
        ([WHOLE, WHOLE * 1.01], ("", "")),
        ([WHOLE[:, :4], WHOLE[:, 4:] * 1.01], ("", "")),
        ([WHOLE[:, :4], WHOLE[:, 4:6]], ("", "")),
        ([WHOLE[:3, :4], WHOLE[3:, 4:]], ("", "")),
        ([2 * WHOLE[:, :4], 2 * WHOLE[:, 4:]], ("concatenation along dim 1, times 2", "statistics")),
        ([2 * WHOLE[:, :4], WHOLE[:, 4:]], ("", "")),
        ([2 * WHOLE, 2 * WHOLE], ("replica, times 2", "projections")),
        ([*WHOLE.chunk(2, 1), *WHOLE.chunk(2, 1)], ("concatenation along dim 1, 2 copies of each", "statistics")),
        (
            [part for part in WHOLE.chunk(2, 1) for _ in "ab"],
            ("concatenation along dim 1, 2 copies of each", "statistics"),
        ),
        (QUARTERS, ("concatenation along dims 0 and 1", "statistics")),
        ([*QUARTERS[:3], QUARTERS[3] * 1.01], ("", "")),
        ([WHOLE[:3] - SMALL[:3], SMALL[:3], WHOLE[3:], 0 * SMALL[3:]], ("sums, concatenated along dim 0", "totals")),
        ([WHOLE[:3] - SMALL[:3], SMALL[:3], WHOLE[3:], SMALL[3:]], ("", "")),
        ([WHOLE, WHOLE[:0]], ("concatenation along dim 0", "statistics")),
    ],
)
def test_a_tensor_is_what_its_parts_make(parts, plan, tmp_path):
    assert plan_of(tmp_path, WHOLE, *parts) == plan


def with_old_memory(folder, make, content, factor=3.0, level="torch", rank=0):
    """A recording of calls on memory that holds old values, and is written in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        with op_tools.OpRecord(output_dir=folder, level=level):
            memory = make()
            memory.numpy()[...] = content  # no tool sees it
            memory.neg()
            memory.add_(1).exp()
            memory.fill_(2)
            torch.mul(memory, factor)
    return folder


MEMORY = [
    lambda: torch.empty(12),
    lambda: torch.empty_like(torch.ones(12)),
    lambda: torch.ones(3).new_empty(12),
    lambda: torch.empty_strided((12,), (1,)),
    lambda: torch.ones(3).resize_(12),
]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("make", MEMORY)
def test_memory_that_was_never_written_is_no_divergence(make, level, tmp_path):
    single = with_old_memory(tmp_path / "one", make, 1, level=level)
    for rank in (0, 1):
        with_old_memory(tmp_path / "many", make, 2 + rank, level=level, rank=rank)
        with_old_memory(tmp_path / "sick", make, 2 + rank, level=level, rank=rank, factor=3.0 + rank)
    comparison = op_tools.compare_ranks(single, tmp_path / "many")
    assert comparison.first is None and comparison.exit_status == 0 and comparison.unwritten >= 4, comparison.table()
    assert {row.plan for row in comparison.rows} == {"replica"} and "never written" in comparison.table()
    first = op_tools.compare_ranks(single, tmp_path / "sick").first
    assert "mul" in first.op  # written memory is compared


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("make", MEMORY)
def test_what_is_made_of_such_memory_is_not_compared_until_it_is_written(make, level, tmp_path):
    single = with_old_memory(tmp_path / "one", make, 1, level=level)
    (rank,) = op_tools.compare_runs(single, with_old_memory(tmp_path / "two", make, 2, level=level)).ranks
    assert rank.first is None, rank.first
    verdicts = {op_tools._C.base_name(row.op): row.verdict for row in rank.rows}
    assert {verdicts["neg"], verdicts["add_"], verdicts["exp"]} == {"not compared"}
    assert {verdicts["fill_"], verdicts["mul"]} == {"agrees"}
    (rank,) = op_tools.compare_runs(single, with_old_memory(tmp_path / "sick", make, 2, 4.0, level=level)).ranks
    assert "mul" in rank.first.op


HOLES = torch.tensor([[1.0, float("nan")], [float("inf"), 0.0]])


@pytest.mark.parametrize(
    ("parts", "plan"),
    [
        ([HOLES, HOLES * 2], ("replica", "counts")),
        ([*HOLES.chunk(2, 1)], ("concatenation along dim 1", "counts")),
        ([HOLES[:, :1], HOLES[:, :1]], ("", "")),
        ([HOLES, torch.zeros(2, 2)], ("sum", "counts")),
        ([torch.ones(2, 2), torch.zeros(2, 2)], ("", "")),
    ],
)
def test_of_a_tensor_with_nan_and_infinities_the_counts_are_compared(parts, plan, tmp_path):
    assert plan_of(tmp_path, HOLES, *parts) == plan


def test_values_tell_which_rank_has_which_part(tmp_path):
    def run(name, *outputs):
        for rank, tensor in enumerate(outputs):
            negative = -tensor
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("RANK", str(rank))
                capture = op_tools.OpCapture(output_dir=tmp_path / f"{name}_capture")
                with capture, op_tools.OpRecord(output_dir=tmp_path / name):
                    torch.neg(negative)
        return tmp_path / name, tmp_path / f"{name}_capture"

    single = run("one", WHOLE)
    for name, parts, plan in (
        ("right", WHOLE.chunk(2, 1), "concatenation along dim 1"),
        ("exchanged", WHOLE.chunk(2, 1)[::-1], ""),
        ("in turns", [WHOLE[:, [0, 1, 4, 5]], WHOLE[:, [2, 3, 6, 7]]], "concatenation along dim 1"),
        ("rectangle", QUARTERS, "concatenation along dims 0 and 1"),
        ("rectangle by columns", [QUARTERS[i] for i in (0, 2, 1, 3)], "concatenation along dims 0 and 1"),
        ("shuffled rectangle", [QUARTERS[i] for i in (0, 3, 1, 2)], ""),
        ("copies", [*WHOLE.chunk(2, 1)] * 2, "concatenation along dim 1, 2 copies of each"),
    ):
        many = run(name, *parts)
        assert op_tools.compare_ranks(single[0], many[0]).rows[0].plan.startswith("concatenation along dim")
        comparison = op_tools.compare_ranks(single[0], many[0], captures=(single[1], many[1]))
        assert comparison.rows[0].plan == plan and bool(comparison.first) == (not plan)


def test_rules_say_what_the_plan_is(tmp_path, capsys):
    file = tmp_path / "rules.txt"
    file.write_text("# how tensors are split\nneg result = b h[tp]\n.* = b h\n")
    rules = op_tools._runs.compare_ranks.read_plan_rules(file)
    assert plan_of(tmp_path, WHOLE, *WHOLE.chunk(2, 1), rules=[rules[0]])[0] == "concatenation along dim 1"
    file.write_text("neg result = b[tp] h")
    arguments = ["compare", str(tmp_path / "one"), str(tmp_path / "many"), "--rules", str(file)]
    assert main(arguments) == 1 and "no plan found" in capsys.readouterr().out
    for wrong in ("neg result", "( = b h", "neg = b[dp] s[sp] h[tp]", "= b h"):
        file.write_text(wrong)
        assert main(arguments) == 2
        assert "rules.txt, line 1" in capsys.readouterr().err


def test_one_against_several_is_asked_for(tmp_path):
    single, many = run_of(tmp_path, "one", a=WHOLE), run_of(tmp_path, "many", a=WHOLE, b=WHOLE)
    with pytest.raises(op_tools.Error, match="expected one rank and several, not 2 and 1"):
        op_tools.compare_ranks(many, single)
    with pytest.raises(op_tools.Error, match="two dimensions can be split"):
        op_tools.compare_ranks(single, many, rules=[("x", "b[tp] s[sp] h[tp]")])


def of_ranks(folder, calls, ranks=(0,), world_size=1, level="torch"):
    """A recording of `calls(rank)` for each rank of a launch that has a file."""
    for rank in ranks:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(world_size))
            with op_tools.OpRecord(output_dir=folder, level=level):
                calls(rank)
    return folder


PIECES = [torch.arange(8.0).reshape(4, 2) * (number + 1) for number in range(3)]


def own_piece(rank, count=3):
    """Replicas go in, and a rank's own piece comes out: together the ranks have the whole."""
    base = torch.cat(PIECES)
    piece = base.narrow(0, 4 * rank, 4) if count > 1 else base.narrow(0, 0, 12)
    return piece.exp()


@pytest.mark.parametrize("present", [(0, 1), (0, 2), (1, 2), (0,), (2,)])
def test_where_a_rank_is_absent_no_call_is_to_blame(present, tmp_path, capsys):
    single = of_ranks(tmp_path / "one", lambda _: own_piece(0, 1))
    whole = of_ranks(tmp_path / "whole", own_piece, range(3), 3)
    assert op_tools.compare_ranks(single, whole).exit_status == 0
    many = of_ranks(tmp_path / "many", own_piece, present, 3)
    assert main(["compare", str(single), str(many)]) == 2
    text = capsys.readouterr().out
    absent = sorted({0, 1, 2} - {*present})
    name = f"rank {absent[0]}" if len(absent) == 1 else f"ranks {absent[0]}, {absent[1]}"
    assert f"NOT JUDGED: {name}: no file in {many}" in text and "First divergence" not in text
    assert op_tools.compare_ranks(single, many).first is None


def test_a_result_without_known_values_is_no_divergence(tmp_path):
    # torch.tensor() writes behind aten::empty, whose result nothing reads; lift_fresh gives the program what is in it.
    single = of_ranks(tmp_path / "one", lambda _: torch.tensor(3.0) * 2, level="aten")
    many = of_ranks(tmp_path / "many", lambda _: torch.tensor(3.0) * 2, (0, 1), 2, level="aten")
    comparison = op_tools.compare_ranks(single, many)
    (file,) = single.iterdir()
    assert "aten::empty.memory_format" in {call.op for call in op_tools.read_recording(file).calls}
    assert comparison.first is None and comparison.exit_status == 0, comparison.table()
    assert comparison.unwritten and "aten::empty.memory_format" not in {row.op for row in comparison.rows}
    sick = of_ranks(tmp_path / "sick", lambda rank: torch.tensor(3.0).mul(2 + rank), (0, 1), 2, level="aten")
    assert op_tools.compare_ranks(single, sick).first.op.startswith("aten::mul")


@pytest.mark.parametrize(
    "calls",
    [
        lambda rank: torch.full((4,), 1.0 + rank).exp(),
        lambda rank: torch.manual_seed(rank) and torch.randn(4).exp(),
    ],
)
def test_a_call_without_tensors_gives_what_its_own_arguments_say(calls, tmp_path):
    single, many = of_ranks(tmp_path / "one", calls), of_ranks(tmp_path / "many", calls, (0, 1), 2)
    comparison = op_tools.compare_ranks(single, many)
    assert comparison.first is None and comparison.exit_status == 2, comparison.table()
