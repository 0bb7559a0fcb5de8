"""op-tools compare and compare_runs: which calls belong together, where runs part, and the reports for programs and people."""

import contextlib
import copy
import csv
import itertools
import json
import multiprocessing
import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import launched
from torch import nn

import op_tools
import op_tools._runs.judged_captures
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._base.own_command import op_tools_line
from op_tools._runs import compare_runs, comparison
from op_tools._runs.capture_commands import list_of_calls, next_commands

LEVELS = ["torch", "aten"]


class Net(nn.Module):
    """Repeated equal layers, and their outputs after an edit of a test."""

    def __init__(self, layers=4, edits=None):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(layers))
        self.edits = edits or {}

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            x = self.edits.get(number, lambda out: out)(x)
        return x


def recorded(folder, work=None, edits=None, level="torch", device="cpu", steps=1, **options):
    """The recording of a training run from a fixed seed."""
    torch.manual_seed(3)
    net = Net(edits=edits).to(device)
    method = torch.optim.SGD(net.parameters(), lr=0.1)
    with op_tools.OpRecord(output_dir=folder, level=level, **options) as tool:
        for _ in range(steps):
            loss = net(torch.ones(8, 16, device=device)).square().mean()
            loss.backward()
            method.step()
            method.zero_grad()
            tool.step()
        if work is not None:
            work()
    return op_tools.read_recording(tool.result().path)


def compared(*runs, **options):
    (rank,) = op_tools.compare_runs(*runs, **options).ranks
    return rank


def pairs(rank):
    """(id in A, id in B) of all calls that stand alone with a single other call."""
    return [(row.id_a, row.id_b) for row in rank.rows if row.calls_a == row.calls_b == 1]


def by_name(recording, op):
    return [call.id for call in recording.calls if call.op == op and call.phase == "forward"]


@pytest.mark.parametrize("level", LEVELS)
def test_equal_runs_agree(level, tmp_path):
    runs = [recorded(tmp_path / name, level=level, steps=2) for name in "ab"]
    comparison = op_tools.compare_runs(*runs)
    assert comparison.agrees and comparison.exit_status == 0
    assert set(comparison.ranks[0].counts) == {"agrees"}
    assert comparison.ranks[0].first is None and comparison.ranks[0].chain == []
    assert "No difference was born" in comparison.table()


def copied_deeply(folder, seed=1):
    with op_tools.OpRecord(level="aten", output_dir=folder) as tool:
        torch.manual_seed(seed)
        copy.deepcopy(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)))
    return tool.result().path


def test_new_bytes_that_a_deep_copy_writes_over_are_no_results(tmp_path):
    first = copied_deeply(tmp_path / "first")
    for number in range(4):
        # Freed memory has other bytes each time.
        torch.full((16 << number,), float(number))
        comparison = op_tools.compare_runs(first, copied_deeply(tmp_path / str(number)))
        assert comparison.exit_status == 0, comparison.table()
    assert op_tools.compare_runs(first, copied_deeply(tmp_path / "other", seed=2)).exit_status == 1


# ---- mistakes of another tool: see the three tests that follow ----


def test_an_extra_relu_at_the_front_shifts_nothing(tmp_path):
    a = recorded(tmp_path / "a", edits={0: torch.relu})
    b = recorded(tmp_path / "b", edits={3: lambda out: F.dropout(out, 0.0)})
    rank = compared(a, b)
    relus_a, relus_b = by_name(a, "torch.relu"), by_name(b, "torch.relu")
    assert len(relus_a) == 5 and len(relus_b) == 4
    # relu of relu has the same bits: either of the first two may be the one that B lacks.
    partners = {one: other for one, other in pairs(rank) if one in relus_a}
    assert [partners[one] for one in relus_a[2:]] == relus_b[1:]
    alone = [row for row in rank.rows if row.verdict == "only in B" and row.phase == "forward"]
    assert [row.op for row in alone] == ["torch.nn.functional.dropout"]
    assert rank.first is None  # neither changes a number


@pytest.mark.parametrize("level", LEVELS)
def test_nan_is_a_difference_in_one_call_only(level, tmp_path):
    def poisoned(out):
        return out.masked_fill(torch.arange(16) == 3, float("nan"))

    a = recorded(tmp_path / "a", edits={1: lambda out: out.masked_fill(torch.arange(16) == 3, 0.0)}, level=level)
    b = recorded(tmp_path / "b", edits={1: poisoned}, level=level)
    rank = compared(a, b)
    assert rank.first.finding == "NaN or infinity" and "masked_fill" in rank.first.op
    assert rank.counts["born here"] == 1 and rank.counts["carried"] > 3
    assert rank.counts["agrees"] >= 4  # what comes before


def test_calls_are_paired_though_names_are_repeated_and_one_is_missing(tmp_path):
    a = recorded(tmp_path / "a", edits={1: lambda out: out * 1.0})
    b = recorded(tmp_path / "b")
    rank = compared(a, b)
    linears = "torch.nn.functional.linear"
    partners = dict(pairs(rank))
    assert [partners[one] for one in by_name(a, linears)] == by_name(b, linears)
    assert [row.op for row in rank.rows if row.verdict == "only in A" and row.phase == "forward"] == [
        "torch.Tensor.mul"
    ]


# ---- verdicts ----


@pytest.mark.parametrize("level", LEVELS)
def test_a_planted_fault_is_named_with_module_line_and_chain(level, tmp_path):
    a = recorded(tmp_path / "a", level=level, device="sim")
    with sim.fault("scale", ops="aten::addmm", call=2, scale=1.5):
        b = recorded(tmp_path / "b", level=level, device="sim")
    rank = compared(a, b)
    first = rank.first
    assert first.verdict == "born here" and first.finding == "other numbers"
    assert first.op == ("torch.nn.functional.linear" if level == "torch" else "aten::addmm")
    assert first.module == "Net.layers.2" and "test_compare_runs.py" in rank.table()
    assert first.input_difference == 0 and first.output_difference > 0.1 > first.limit
    assert rank.births == [first.row]
    chain = rank.chain
    assert chain[0].row == first.row and len(chain) > 2
    assert all(one.row == other.via for one, other in itertools.pairwise(chain))
    # Lines with a path are as long as the path.
    of_table = [line for line in rank.table().split("\n") if "/" not in line]
    assert len(of_table) > 5 and all(len(line) <= 80 for line in of_table)


def test_what_follows_other_strides_over_the_same_memory_is_compared(tmp_path):
    def pooled(out):  # as adaptive_avg_pool2d ends
        return (out + 0.0).as_strided_((8, 16), (16, 1))

    a = recorded(tmp_path / "a", edits={0: pooled}, level="aten", device="sim")
    with sim.fault("scale", ops="aten::relu", call=2, scale=1.5):
        b = recorded(tmp_path / "b", edits={0: pooled}, level="aten", device="sim")
    assert compared(a, b).first.op == "aten::relu"


def test_each_step_has_one_first_divergence(tmp_path):
    a = recorded(tmp_path / "a", level="aten", device="sim", steps=3)
    with sim.fault("scale", ops="aten::addmm", call=5, scale=1.5):
        b = recorded(tmp_path / "b", level="aten", device="sim", steps=3)
    rank = compared(a, b)
    assert [step for step, _ in rank.first_by_step] == [1, 2]
    assert rank.first.step == 1
    assert rank.rows[rank.first_by_step[1][1]].verdict == "carried"


def test_another_parameter_is_an_input_and_no_operator(tmp_path):
    torch.manual_seed(1)
    weight = nn.Linear(16, 16)
    a = op_tools.OpRecord(output_dir=tmp_path / "a")
    with a:
        weight(torch.ones(2, 16))
    with torch.no_grad():
        weight.weight[0, 0] += 1
    b = op_tools.OpRecord(output_dir=tmp_path / "b")
    with b:
        weight(torch.ones(2, 16))
    rank = compared(a.result().path, b.result().path)
    assert rank.first.finding == "an input differs from the start"
    assert rank.first.tensor_a["name"].endswith("weight")


def test_a_fused_operator_is_a_group(tmp_path):
    a = recorded(tmp_path / "a", edits={1: lambda out: out * out + out})
    b = recorded(tmp_path / "b", edits={1: lambda out: torch.addcmul(out, out, out)})
    rank = compared(a, b)
    (group,) = [row for row in rank.rows if row.calls_a == 2 and row.phase == "forward"]
    assert (group.op, group.op_b) == ("torch.Tensor.mul + torch.Tensor.add", "torch.addcmul")
    assert group.verdict == "agrees" and rank.first is None


def test_noise_is_a_number_beside_the_difference(tmp_path):
    a = recorded(tmp_path / "a")
    b = recorded(tmp_path / "b")
    noise = recorded(tmp_path / "noise", jitter=5)
    rank = compared(a, b, noise=noise)
    assert rank.first is None
    assert any(row.noise for row in compared(a, noise, noise=noise).rows)


def test_a_recording_against_its_jitter_agrees(tmp_path):
    a, b = recorded(tmp_path / "a", steps=2), recorded(tmp_path / "b", steps=2, jitter=7)
    assert any(row.output_difference for row in compared(a, b).rows)
    births = compared(a, b).worst()
    assert [row.op for row in births] == []


# ---- full tensors ----


def captured(folder, form="folders", **options):
    with op_tools.OpCapture(output_dir=folder / "capture", level=options["level"], format=form):
        return recorded(folder / "record", **options)


@pytest.mark.parametrize("form", ["folders", "container"])
def test_with_captures_the_call_that_is_wrong_by_itself_is_named(form, tmp_path):
    a = captured(tmp_path / "a", form, level="aten", device="sim")
    with sim.fault("scale", ops="aten::relu", call=1, scale=1.25):
        b = captured(tmp_path / "b", form, level="aten", device="sim")
    captures = (tmp_path / "a" / "capture", tmp_path / "b" / "capture")
    rank = compared(a, b, captures=captures)
    assert rank.first.op == "aten::relu" and rank.first.module == "Net"
    of_b = {one.id: one.path for one in op_tools._runs.judged_captures.captured_calls(captures[1])}
    assert op_tools._runs.judged_captures.wrong_by_itself(list(of_b.values())) == {of_b[rank.first.id_b]}


def test_confirm_says_operator_or_input(tmp_path, capsys):
    captured(tmp_path / "a", level="aten", device="sim")
    with sim.fault("scale", ops="aten::relu", call=1, scale=1.25):
        captured(tmp_path / "b", level="aten", device="sim")
    captures = [str(tmp_path / side / "capture") for side in "ab"]
    status = main(["compare", "--confirm", *captures, "--json", str(tmp_path / "confirmed.jsonl")])
    shown = capsys.readouterr().out
    assert status == 1
    assert shown.count("B's operator is wrong") == 1
    assert "its input is different" in shown
    *rows, summary = map(json.loads, (tmp_path / "confirmed.jsonl").read_text().splitlines())
    verdict = {"exit_status": 1, "verdict": "differs"}
    assert summary == {"kind": "confirmation", **verdict, "problems": [], "rows": len(rows)}
    (wrong,) = [row for row in rows if row["b"] == "differs"]
    assert (wrong["op"], wrong["a"], wrong["random"], wrong["arguments"]) == ("aten::relu", "agrees", False, "")
    assert wrong["tensors"] == 1


def test_a_listed_call_that_was_not_captured_is_not_judged(tmp_path, capsys):
    for side in "ab":
        captured(tmp_path / side, level="aten", device="sim")
    captures = [tmp_path / side / "capture" for side in "ab"]
    assert main(["compare", "--confirm", *map(str, captures)]) == 0
    count = len(op_tools._runs.judged_captures.captured_calls(captures[0]))
    list_of_calls(captures[0]).write_text("".join(f"{number}\n" for number in range(count + 1)))
    capsys.readouterr()
    assert main(["compare", "--confirm", *map(str, captures)]) == 2
    assert f"1 of the {count + 1} calls in" in capsys.readouterr().out


def test_a_damaged_call_hides_no_wrong_operator(tmp_path, capsys):
    captured(tmp_path / "a", level="aten", device="sim")
    with sim.fault("scale", ops="aten::relu", call=1, scale=1.25):
        captured(tmp_path / "b", level="aten", device="sim")
    captures = [str(tmp_path / side / "capture") for side in "ab"]
    damaged = next(path for path in sorted(Path(captures[1]).rglob("output.pth")) if "relu" not in str(path))
    os.truncate(damaged, 50)
    assert main(["compare", "--confirm", *captures, "--json", str(tmp_path / "confirmed.jsonl")]) == 1
    shown = capsys.readouterr().out
    assert shown.count("B's operator is wrong") == 1
    assert "not known: it could not be run again" in shown
    *rows, summary = map(json.loads, (tmp_path / "confirmed.jsonl").read_text().splitlines())
    assert [row["op"] for row in rows if row["b"] == "differs"] == ["aten::relu"]
    (unread,) = [row for row in rows if row["problem"]]
    assert unread["path_b"] == str(damaged.parent)
    assert str(damaged.parent) in unread["problem"]
    assert summary["problems"] == [f"not judged: {unread['problem']}"]


# ---- many runs, ranks ----


def test_two_files_that_are_named_are_compared_whatever_their_ranks(tmp_path, monkeypatch):
    a = recorded(tmp_path / "a", level="aten", device="sim")
    monkeypatch.setenv("RANK", "1")
    b = recorded(tmp_path / "b", level="aten", device="sim")
    assert [one.calls._core.header["rank"] for one in map(op_tools.read_recording, (a.path, b.path))] == [0, 1]
    assert op_tools.compare_runs(a.path, b.path).verdict.value == "agrees"


def test_of_five_runs_the_one_with_an_intermittent_fault_is_named(tmp_path):
    paths = []
    for number in range(5):
        plant = sim.fault("nondeterministic", ops="aten::addmm", probability=0.5 if number == 2 else 0.0, seed=4)
        with plant:
            paths.append(recorded(tmp_path / str(number), level="aten", device="sim").path)
    many = op_tools.compare_many(paths)
    (odd,) = many.rows
    assert odd.run == paths[2] and odd.op == "aten::addmm" and odd.others == 4
    assert main(["compare", *paths]) == 1
    assert main(["compare", *(paths[i] for i in (0, 1, 3))]) == 0


def test_of_replicas_one_that_is_another_program_is_not_judged(tmp_path, capsys):
    x = torch.arange(8.0).reshape(2, 4)

    def run(name, change=lambda y: y):
        torch.manual_seed(3)
        net = torch.nn.Linear(4, 4)
        tool = op_tools.OpRecord(output_dir=tmp_path / name, level="aten")
        with tool, torch.no_grad():
            net(change(net(x))).sum().item()
        return tool.result().path

    same = [run("a"), run("b")]
    scaled = run("c", lambda y: y * 1.1)
    logged = run("d", lambda y: y.abs().max() is not None and y)  # what it computes for a log goes nowhere
    assert main(["compare", *same, logged]) == 0
    assert op_tools.compare_many([*same, scaled]).apart == 1
    assert main(["compare", *same, scaled]) == 2 and "NOT JUDGED: 1 of 3 runs" in capsys.readouterr().out
    assert main(["compare", scaled, *same]) == 2  # the first lacks nothing, the others do


def replica(folder, level, *, lr=0.1, weight_decay=0.0, keeps_gradients=False, first=1.0):
    """The recording of two steps of training; the numbers of an optimizer are no results of calls that the ranks share."""
    torch.manual_seed(3)
    net = torch.nn.Linear(4, 4)
    with torch.no_grad():
        net.weight[0, 0] = first
    method = torch.optim.SGD(net.parameters(), lr=lr, weight_decay=weight_decay)
    tool = op_tools.OpRecord(output_dir=folder, level=level)
    with tool:
        for _ in range(2):
            net(torch.ones(2, 4)).square().sum().backward()
            method.step()
            if not keeps_gradients:
                method.zero_grad()
            tool.step()
    return tool.result().path


@pytest.mark.parametrize(
    "change", [{"lr": 0.11}, {"weight_decay": 0.01}, {"keeps_gradients": True}], ids=lambda change: next(iter(change))
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_replica_whose_parameters_become_others_is_named(level, change, tmp_path):
    same = [replica(tmp_path / name, level) for name in "ab"]
    other = replica(tmp_path / "c", level, **change)
    assert main(["compare", *same, other]) == 1
    (odd,) = op_tools.compare_many([same[0], other, same[1]]).rows
    assert odd.run == other and odd.finding == "a parameter is another tensor"
    assert main(["compare", *same, replica(tmp_path / "d", level)]) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_parameters_that_begin_apart_are_shards(level, tmp_path):
    runs = [replica(tmp_path / str(first), level, first=first) for first in (1.0, 2.0, 3.0)]
    assert all("parameter" not in row.finding for row in op_tools.compare_many(runs).rows)


@pytest.mark.parametrize("level", LEVELS)
def test_shards_of_which_a_replica_is_missing_are_not_odd(level, tmp_path):
    runs = [replica(tmp_path / f"{number}", level, first=1.0 + number % 2) for number in range(5)]  # three and two
    assert op_tools.compare_many(runs).rows == []
    sick = replica(tmp_path / "sick", level, first=2.0, lr=0.11)
    more = replica(tmp_path / "more", level, first=2.0)
    (odd,) = op_tools.compare_many([*runs, more, sick]).rows
    assert odd.run == sick and odd.finding == "a parameter is another tensor"


@pytest.mark.parametrize("level", LEVELS)
def test_ranks_with_other_data_and_other_random_numbers_are_not_odd(level, tmp_path, monkeypatch):
    def run(folder, rank, data):
        monkeypatch.setenv("RANK", str(rank))
        torch.manual_seed(3)
        net = torch.nn.Linear(4, 4)
        torch.manual_seed(int(data))
        tool = op_tools.OpRecord(output_dir=tmp_path / folder, level=level)
        with tool:
            batch = torch.tensor([[data] * 4] * 2) + torch.rand(2, 4)
            net(batch).square().sum().backward()  # each rank's backward begins with a 1
        return tool.result().path

    for batches in ([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 2.0, 2.0]):
        runs = [run(f"ranks-{len(batches)}", rank, data) for rank, data in enumerate(batches)]
        many = op_tools.compare_many(runs)
        assert many.rows == []
        # Nothing is said of what a rank computes of its own data.
        same = many.calls["compared"] > many.calls["own_inputs"]
        assert same == (len(batches) == 5) and many.calls["drawn"] >= len(batches)
        assert many.verdict == ("agrees" if same else "not judged")
        assert ("NOT JUDGED: most calls cannot be compared" in many.table()) != same
    runs = [run(f"run-{number}", 0, data) for number, data in enumerate((1.0, 1.0, 2.0))]
    (odd,) = op_tools.compare_many(runs).rows  # runs of the same rank should have the same
    assert odd.run == runs[2]


RANK = """
import os, sys, torch, torch.distributed as dist
from torch import nn
import op_tools, op_tools.sim_device as sim
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to("sim")
if rank == 2:
    sim.fault("scale", ops="aten::relu", call=1, scale=1.5).start()
with op_tools.OpRecord(output_dir=sys.argv[1], level="torch") as tool:
    for step in range(2):
        net(torch.ones(4, 8, device="sim")).sum().backward()
        for parameter in net.parameters():
            gradient = parameter.grad.cpu()
            dist.all_reduce(gradient)
            with torch.no_grad():
                parameter -= 0.01 * gradient.to("sim")
            parameter.grad = None
        tool.step()
dist.destroy_process_group()
"""


def test_a_rank_of_a_folder_that_has_no_file_is_named(tmp_path, monkeypatch, capsys):
    def record(name, *ranks, world_size=3):
        monkeypatch.setenv("WORLD_SIZE", str(world_size))
        for rank in ranks:
            monkeypatch.setenv("RANK", str(rank))
            with op_tools.OpRecord(output_dir=tmp_path / name):
                torch.ones(4).exp().sum()
        return str(tmp_path / name)

    single, lost, first = record("single", 0, world_size=1), record("lost", 0, 2), record("first", 0)
    whole, without_size = record("whole", 0, 1, 2), record("without_size", 0, 3, world_size="")
    contradicting = record("contradicting", 0, 3, world_size=2)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object())
    children = record("children", 1, 3, world_size="")  # of which those without calls have no files, as their parent
    file, other = (str(path) for path in sorted(Path(lost).iterdir()))

    def said(*runs):
        status = main(["compare", *runs])
        text = capsys.readouterr().out
        assert (status == 2) == ("NOT JUDGED" in text), text
        return status, {line.partition(": ")[2] for line in text.splitlines() if line.startswith("NOT JUDGED")}

    assert said(lost) == (2, {f"rank 1: no file in {lost}"})
    assert said(whole, whole, first) == (2, {f"ranks 1, 2: no file in {first}"})
    assert said(first, whole) == (2, {"ranks 1, 2: only in B"}) and said(whole, first) == (2, {"ranks 1, 2: only in A"})
    assert said(lost, lost)[1] == {f"rank 1: no file in {lost}"}
    assert said(single, first) == (2, {f"ranks 1, 2: no file in {first}"})
    assert said(single, lost) == (2, {f"rank 1: no file in {lost}"})
    for run in (without_size, contradicting):
        assert said(run) == said(run, run) == (2, {f"ranks 1, 2: no file in {run}"})
    # Files that are named are the user's choice.
    for runs in ((file, other), (file, other, file), (whole,), (whole, whole), (single, whole), (children,)):
        assert said(*runs) == (0, set()), runs


def test_of_four_ranks_the_sick_one_is_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(RANK)
    launched(script, tmp_path / "ranks", ranks=4)
    many = op_tools.compare_many([tmp_path / "ranks"])
    odd = next(row for row in many.rows if row.rank == 2)
    assert odd.op == "torch.nn.functional.relu" and odd.step == 1 and odd.finding == "other results"
    assert [row.rank for row in many.rows] == [2]
    assert main(["compare", str(tmp_path / "ranks")]) == 1


def test_ranks_beyond_what_stays_in_memory_are_compared_again_when_they_are_asked_for(tmp_path, monkeypatch):
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        recorded(tmp_path / "a")
        recorded(tmp_path / "b", edits={2: lambda out: out * 1.5} if rank == 1 else None)
    whole = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(compare_runs, "_MOST_ROWS", 1)
    bounded = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    kinds = [type(rank._found).__name__ for rank in bounded.ranks]
    assert kinds == ["RunComparison", "ComparedAgain", "ComparedAgain"]
    assert bounded.table() == whole.table() and bounded.to_json() == whole.to_json()
    assert bounded.verdict == whole.verdict == "differs" and [rank.first is None for rank in bounded.ranks] == [1, 0, 1]
    assert bounded.ranks[1].chain == whole.ranks[1].chain and bounded.ranks[1].worst() == whole.ranks[1].worst()
    assert len(bounded.ranks[2].rows) == len(whole.ranks[2].rows) == len(list(bounded.ranks[2].rows))


def test_a_hundred_ranks_fit_on_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "100")
    for run in ("a", "b"):
        for rank in range(100 if run == "a" else 97):
            monkeypatch.setenv("RANK", str(rank))
            is_sick = run == "b" and rank in (7, 90, 91, 92)
            fault = sim.fault("scale", ops="aten::relu", scale=1.5) if is_sick else contextlib.nullcontext()
            with fault, op_tools.OpRecord(output_dir=tmp_path / run, level="aten"):
                torch.ones(4, device="sim").relu() + 1
    comparison = op_tools.compare_runs(tmp_path / "a", tmp_path / "b")
    text = comparison.table()
    assert [rank.rank for rank in comparison.ranks if rank.first] == [7, 90, 91, 92]
    assert text.startswith("4 of 97 ranks diverge, the earliest first:")
    assert "ranks 7, 90 to 92" in text and "ranks 0 to 6, 8 to 89, 93 to 96." in text
    assert "not compared: ranks 97 to 99: only in A" in text
    assert "\nrank 7\n" in text and "\nrank 90\n" not in text and len(text.splitlines()) < 40
    again = re.search(r"Another rank: .*\b(compare .*)", text)[1].split()
    assert "rank90" in again[1] and main(again) == 1
    for command, line in (
        (["show"], "ranks 4 to 99: 3 calls, complete"),
        (["report", "--text"], "ranks 4 to 99: no verdict"),
    ):
        capsys.readouterr()
        assert main([*command, str(tmp_path / "a")]) == 0
        shown = capsys.readouterr().out
        assert line in " ".join(shown.split()) and len(shown.splitlines()) < 100


# ---- the command line ----


def test_statuses_and_records(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    a = recorded(tmp_path / "a", level="aten", device="sim").path
    b = recorded(tmp_path / "b", level="aten", device="sim").path
    with sim.fault("scale", ops="aten::addmm", call=2, scale=1.5):
        wrong = recorded(tmp_path / "c", level="aten", device="sim").path
    assert main(["compare", a, b]) == 0
    lines, sheet = tmp_path / "found.jsonl", tmp_path / "found.csv"
    assert main(["compare", a, wrong, "--next", "--json", str(lines), "--csv", str(sheet)]) == 1
    shown = capsys.readouterr().out
    assert (
        "First divergence: addmm" in shown
        and op_tools_line(*"run --capture --level aten --steps 0 --only-calls".split()) in shown
    )
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    (first,) = [one for one in records if one["kind"] == "first_divergence"]
    assert {"op", "phase", "module", "line", "step", "rank", "verdict"} <= first.keys()
    assert first["op"] == "aten::addmm" and first["verdict"] == "born here"
    assert records[-1]["kind"] == "summary" and records[-1]["exit_status"] == 1
    count = sum(one["kind"] == "pair" for one in records)
    assert len(sheet.read_text().splitlines()) == count + 1
    assert main(["compare", a]) == 64
    assert main(["compare", a, b, "--format", "msprobe"]) == 64
    assert main(["compare", a, b, wrong, "--csv", str(sheet)]) == 64
    assert main(["compare", a, b, "--rules", "rules.txt"]) == 64


def test_the_next_look_at_a_compiled_graph_is_at_its_operators(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def compiled(scale):
        def run():
            torch._dynamo.reset()
            backend = lambda graph, _: lambda *inputs: [scale * graph(*inputs)[0]]  # noqa: E731
            torch.compile(lambda x: x.sin() * 2, backend=backend)(torch.ones(4))

        return run

    rank = compared(*(recorded(tmp_path / str(scale), compiled(scale)) for scale in (1.0, 1.5)))
    assert rank.first.op.startswith("torch.compile.")
    commands = next_commands(rank)
    assert len(commands) == 2 and all("--autocompare" in one and "--compiled check" in one for one in commands)


def test_a_shorter_run_is_compared_as_far_as_it_goes(tmp_path):
    a, b = recorded(tmp_path / "a", steps=3), recorded(tmp_path / "b", steps=2)
    assert compared(a, b).structure.steps_only_a == [2]
    assert main(["compare", a.path, b.path]) == 2


def test_cut_off_and_damaged_recordings_are_compared_or_refused(tmp_path, capsys):
    a, b = recorded(tmp_path / "a", level="aten"), recorded(tmp_path / "b", level="aten")
    content = Path(b.path).read_bytes()
    cut = tmp_path / "cut.oprec"
    for part in (0, 1, len(content) // 3, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:part])
        assert main(["compare", a.path, str(cut)]) in (1, 2)
    draw = torch.Generator().manual_seed(0)
    for place in torch.randint(len(content), (40,), generator=draw).tolist():
        cut.write_bytes(content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :])
        assert main(["compare", a.path, str(cut)]) in (1, 2)
    assert main(["compare", a.path, str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def sparse_chain(folder, factor, dense=0):
    """Calls whose results have no statistics, and some that have."""
    with op_tools.OpRecord(output_dir=folder) as tool:
        x = torch.eye(4).to_sparse()
        for _ in range(6):
            x = torch.mul(x, factor)
        y = torch.ones(4)
        for _ in range(dense):
            y = torch.neg(y)
    return op_tools.read_recording(tool.result().path)


def test_what_has_no_statistics_is_not_compared_and_no_agreement(tmp_path, capsys):
    a, b = (sparse_chain(tmp_path / name, factor) for name, factor in (("a", 2.0), ("b", 3.0)))
    files = ["--json", str(tmp_path / "rows.json"), "--csv", str(tmp_path / "rows.csv")]
    assert main(["compare", a.path, b.path, *files]) == 2
    shown = capsys.readouterr().out
    assert "NOT JUDGED: rank 0: 7 of 9 rows were not compared" in shown and "7 not compared" in shown
    records = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [row["verdict"] for row in records if row.get("op") == "torch.mul"] == ["not compared"] * 6
    assert records[-1]["verdicts"]["not compared"] == 7 and records[-1]["exit_status"] == 2
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert sum(row["verdict"] == "not compared" for row in csv.DictReader(file)) == 7


def test_a_few_rows_that_are_not_compared_turn_no_verdict(tmp_path):
    comparison = op_tools.compare_runs(*(sparse_chain(tmp_path / name, 2.0, dense=9) for name in "ab"))
    assert comparison.exit_status == 0 and comparison.ranks[0].is_judged
    assert comparison.ranks[0].counts == {"agrees": 11, "not compared": 7}


def test_runs_that_have_no_call_in_common_are_not_judged(tmp_path, capsys):
    for name, function in (("a", torch.sin), ("b", torch.cumprod)):
        with op_tools.OpRecord(output_dir=tmp_path / name):
            x = torch.rand(4) if name == "a" else torch.randn(3, 5)
            for _ in range(5):
                x = function(x, *([0] if name == "b" else []))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "NOT JUDGED" in capsys.readouterr().out


def test_fusions_are_read_from_a_file(tmp_path):
    a = recorded(tmp_path / "a", edits={1: lambda out: out * 2.0 + 1.0})
    b = recorded(
        tmp_path / "b", edits={1: lambda out: torch.addcmul(torch.ones_like(out), out, torch.full_like(out, 3.0))}
    )
    known = tmp_path / "fusions.json"
    known.write_text('[{"a": ["mul", "add"], "b": ["ones_like", "full_like", "addcmul"]}]')
    assert main(["compare", a.path, b.path, "--fusions", str(known)]) == 1
    rank = compared(a, b, fusions=[(["mul", "add"], ["ones_like", "full_like", "addcmul"])])
    assert (rank.first.calls_a, rank.first.calls_b) == (2, 3)
    known.write_text('{"a": 3}')
    assert main(["compare", a.path, b.path, "--fusions", str(known)]) == 2


def test_a_recording_is_made_of_rows():
    value = {"dtype": "torch.float32", "shape": [4], "hash": "1f", "min": 0.0, "max": 1.0, "norm": 1.0, "origin": 1}
    rows = {
        "header": {"rank": 3},
        "values": [{**value, "producer": 0}],
        "calls": [{"op": "torch.relu", "module": "Net", "outputs": [("result", 0)]}],
    }
    recording, other = op_tools._C.make_recording(rows), op_tools._C.make_recording(rows)
    assert (len(op_tools._C.compare_runs(recording, other)), recording.calls) == (1, 1)
    rows["calls"][0]["outputs"] = [("result", 7)]
    with pytest.raises(op_tools.Error, match=r"calls\[0\]"):
        op_tools._C.make_recording(rows)


@pytest.mark.parametrize("name", ["msprobe_statistics_mix", "troubleshooter"])
def test_dumps_of_other_tools_are_compared(name, tmp_path):
    archive = Path(__file__).resolve().parents[1] / "data" / "formats" / f"{name}.zip"
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / name)
    comparison = op_tools.compare_runs(tmp_path / name, tmp_path / name)
    assert comparison.agrees
    assert comparison.ranks[0].counts.keys() == {"agrees"} and len(comparison.rows) > 5


@pytest.mark.parametrize(
    ("ops", "scale", "verdict"),
    [("mul", 1 + 2e-7, "agrees"), ("masked_fill", 1.01, "born here"), ("mul", 1.01, "carried")],
)
def test_infinities_do_not_hide_the_numbers_beside_them(tmp_path, ops, scale, verdict):
    mask = torch.ones(16, 16, dtype=torch.bool).triu(1).to("sim")
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(7)).to("sim")

    def masked(folder):
        with op_tools.OpRecord(output_dir=folder) as tool:
            torch.softmax(x.mul(3).masked_fill(mask, -torch.inf), -1)
        return op_tools.read_recording(tool.result().path)

    right = masked(tmp_path / "a")
    with sim.fault("scale", ops=f"aten::{ops}.*", scale=scale):
        other = masked(tmp_path / "b")
    (fill,) = (row for row in compared(right, other).rows if "masked_fill" in row.op)
    assert fill.verdict == verdict
    assert fill.output_difference < 0.1


@pytest.mark.parametrize(
    "joined",
    [
        lambda x: torch.cat([torch.tensor([], device="sim"), x]),  # a cache of keys that is empty at first
        lambda x: torch.tensor([2.0] * 64).to("sim") * x,  # torch.tensor(): memory that no operator is seen to write
    ],
    ids=["no elements", "the program's data"],
)
def test_what_is_made_of_the_programs_data_is_compared(tmp_path, joined):
    x = torch.randn(64, generator=torch.Generator().manual_seed(8)).to("sim")

    def run(folder):
        with op_tools.OpRecord(output_dir=folder, level="aten") as tool:
            joined(x).mul(3).tanh()
        return op_tools.read_recording(tool.result().path)

    right = run(tmp_path / "a")
    with sim.fault("scale", ops="aten::tanh", scale=1.01):
        first = compared(right, run(tmp_path / "b")).first
    assert first is not None and first.op == "aten::tanh" and first.verdict == "born here"


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("torch.Tensor.addcdiv_", {"foreach": False}),
        ("torch._foreach_addcdiv_", {"foreach": True}),
        ("torch._fused_adam_", {"fused": True}),
    ],
)
def test_a_quotient_by_next_to_nothing_is_not_born_wrong(tmp_path, op, options):
    """Adam's first step where a gradient is rounding alone: any two signs."""
    gradient = torch.randn(96, generator=torch.Generator().manual_seed(9))
    noise = torch.randn(48, generator=torch.Generator().manual_seed(10)) * 1e-7

    def run(folder, sign):
        parameter = torch.nn.Parameter(torch.zeros(144))
        method = torch.optim.Adam([parameter], **options)
        with op_tools.OpRecord(output_dir=folder) as tool:
            parameter.grad = torch.cat([gradient, noise * sign])
            method.step()
        return op_tools.read_recording(tool.result().path)

    rank = compared(run(tmp_path / "a", 1), run(tmp_path / "b", -1))
    (step,) = (row for row in rank.rows if row.op == op)
    assert step.output_difference > 0.3
    assert step.verdict != "born here"


def test_a_long_path_of_a_line_is_not_cut():
    line = "  line: /cluster/home/" + "deep/" * 20 + "train.py:20 forward"
    assert comparison._cut(line) == line
    assert len(comparison._cut("a word and " * 20)) == 80
