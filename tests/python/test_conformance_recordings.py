"""Recordings as cases of the conformance suite: the calls of a program, with values that the suite makes."""

import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import op_tools
import op_tools.sim_device as sim
from op_tools import __main__ as command
from op_tools._conformance.case import Case, make_call
from op_tools._conformance.lists import load_cases
from op_tools._conformance.verdict import Judge

CPU = torch.device("cpu")


def program(device):
    image = torch.ones(2, 3, 6, 6, device=device)
    weight = torch.full((8, 3, 3, 3), 0.5, device=device).requires_grad_()
    F.relu(F.conv2d(image, weight, None, padding=1), inplace=True).sum().backward()
    table, index = torch.ones(11, 4, device=device), torch.tensor([[1, 2], [3, 10]], device=device)
    F.embedding(index, table)
    image[:, 1:3, ..., None]
    image[0, torch.tensor([1, 2], device=device)]
    image[[0, 1]]
    torch.add(image.transpose(2, 3), image, alpha=float("inf"), out=torch.empty(2, 3, 6, 6, device=device))
    image.to(torch.bfloat16, memory_format=torch.channels_last)
    torch.mul(image, image) * (1 + 2j)
    torch.clamp(image, None, 1)
    F.batch_norm(image, torch.zeros(3, device=device), torch.ones(3, device=device), training=False)
    for _ in range(3):
        torch.full((3, 4), 7.0, dtype=torch.float64, device=device)


def recorded(folder, device="cpu", **options):
    with op_tools.OpRecord(output_dir=str(folder), **options) as recorder:
        program(device)
    return recorder.path


def cases_in(*paths):
    return list(load_cases(sources=("captures",), captures=tuple(map(Path, paths))))


def last(name):
    return name.rpartition(".")[2]


@pytest.fixture
def cases(tmp_path):
    return {last(one.op): one for one in cases_in(recorded(tmp_path / "A"))}


def test_a_recording_has_what_the_calls_were(cases):
    conv = cases["conv2d"]
    assert conv.gradient and [one.requires_grad for one in conv.tensors] == [False, True]
    assert len(conv.args) == 2 and conv.kwargs == {"padding": 1}
    assert cases["clamp"].args[1:] == (None, 1)  # None between arguments is not in the file
    assert cases["relu"].variant == "inplace" and cases["relu"].kwargs == {"inplace": True}
    assert cases["add"].variant == "out" and cases["add"].kwargs["alpha"] == float("inf")
    assert cases["add"].tensors[0].strides == (108, 36, 1, 6)
    assert cases["to"].args[1] is torch.bfloat16 and cases["to"].kwargs == {"memory_format": torch.channels_last}
    assert cases["mul"].args[1] in (1 + 2j, cases["mul"].tensors[-1])
    assert cases["full"].kwargs["device"] == torch.device("meta")  # that of the run
    assert all(one.source == "captures" and one.data is None for one in cases.values())
    assert all(Case.from_json(one.to_json()) == one for one in cases.values())


def test_each_different_call_is_one_case_and_one_tensor_stays_one(tmp_path):
    cases = cases_in(recorded(tmp_path / "A"))
    assert [one.op for one in cases].count("torch.full") == 2  # of weights, and the three that are equal
    (twice,) = [one for one in cases if one.op == "torch.mul"]
    first, other = make_call(twice, CPU).inputs
    assert first.data_ptr() == other.data_ptr()


def test_indices_and_variances_have_values_that_their_operators_take(cases):
    index = make_call(cases["embedding"], CPU).inputs[0]
    assert index.min() >= 1 and index.max() <= 10
    variance = make_call(cases["batch_norm"], CPU).inputs[2]
    assert variance.min() > 0 and variance.unique().numel() == 3


def test_indices_that_are_tuples_and_those_that_are_lists(tmp_path):
    got = [one.args[1] for one in cases_in(recorded(tmp_path / "A")) if last(one.op) == "__getitem__"]
    assert got[0] == (slice(None), slice(1, 3), ..., None)
    assert got[1][0] == 0 and got[1][1].values == "integers 1 2"
    assert got[2] == [0, 1]


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("statistics", [True, False])
def test_all_of_them_are_judged(tmp_path, level, statistics):
    cases = cases_in(recorded(tmp_path / "A", level=level, statistics=statistics))
    rows = [row for case in cases for row in Judge(CPU).rows(case)]
    assert len(cases) > 15 and {row.status for row in rows} <= {"agrees", "not judged"}, rows
    assert all(row.reason == "uninitialized memory" for row in rows if row.status == "not judged")
    assert any(row.phase == "backward" for row in rows) == (level == "torch")
    if level == "aten":  # backward calls are operators of their own there
        assert "aten::convolution_backward" in {one.op for one in cases}


def test_a_fault_of_the_device_is_found_by_the_recording_of_a_program_on_the_cpu(tmp_path):
    (conv,) = [one for one in cases_in(recorded(tmp_path / "A")) if last(one.op) == "conv2d"]
    with sim.fault("scale", ops="convolution_backward"):
        rows = Judge(torch.device("sim:0")).rows(conv)
    assert [(row.phase, row.status) for row in rows] == [("forward", "agrees"), ("backward", "differs")]


def test_of_a_program_on_a_device_its_calls_there_are_cases(tmp_path):
    def also_on_the_cpu():
        torch.arange(5)
        program("sim")

    with op_tools.OpRecord(output_dir=str(tmp_path)) as recorder:
        also_on_the_cpu()
    names = {last(one.op) for one in cases_in(recorder.path)}
    assert "conv2d" in names and "arange" not in names


def test_files_folders_lines_of_json_and_captures_beside_them(tmp_path):
    path = Path(recorded(tmp_path / "A", format="jsonl"))
    whole = cases_in(tmp_path / "A")
    assert whole == cases_in(path) == cases_in(path.with_suffix(".jsonl"))
    with op_tools.OpCapture(output_dir=str(tmp_path / "A")):
        torch.tanh(torch.ones(3))
    both = cases_in(tmp_path / "A")
    assert [one for one in both if one.data is None] == whole
    assert "torch.tanh" in [one.op for one in both if one.data is not None]


def test_modules_are_no_operators(tmp_path, capfd):
    with op_tools.OpRecord(output_dir=str(tmp_path), modules_only=True) as recorder:
        torch.nn.Linear(4, 2)(torch.ones(3, 4))
    with pytest.raises(op_tools.Error, match=re.escape(f"{recorder.path}: no call of it can be a case")):
        cases_in(recorder.path)
    assert "1 different calls are no cases: module:Linear: " in capfd.readouterr().err


def changed(path, **fields):
    """The recording with another first call."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    call = next(one for one in lines if "op" in one)
    assert set(fields) <= set(call)
    call.update(fields)
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"op": "torch.load"}, "is no operator"),
        ({"op": "os.system", "scalars": '{"args[0]":"ls"}'}, "is no operator"),
        ({"scalars": '{"args[99999]":1}'}, "an argument at args[99999]"),
        ({"scalars": '{"args[0][1]":1,"args[0]":2,"args[0][0]":2}'}, "two arguments at args[0]"),
        ({"scalars": '{"bytes":5000,"hash":"7"}'}, "arguments that are too long for a recording"),
        ({"scalars": '{"kwargs.generator":"Generator"}'}, "a random generator"),
        ({"scalars": '{"args[1]":"twice"}'}, "raises when it is made of the recording"),
        ({"scalars": '{"args[1]":[1,2,3,4,5]}'}, ""),
        ({"scalars": "[1]"}, "too long"),
        ({"error": "RuntimeError: no"}, None),
    ],
)
def test_calls_that_are_no_case_are_named_and_the_others_are_cases(tmp_path, capfd, fields, why):
    with op_tools.OpRecord(output_dir=str(tmp_path), format="jsonl") as recorder:
        torch.mul(torch.ones(3, 4), 2)
        torch.tanh(torch.ones(3))
    path = changed(Path(recorder.path).with_suffix(".jsonl"), **fields)
    whole = {last(one.op) for one in cases_in(Path(recorder.path))}
    functions = {last(one.op) for one in cases_in(path)}
    assert "tanh" in functions and whole - functions <= {"ones"}
    told = capfd.readouterr().err
    if why:
        assert "1 different calls are no cases" in told and why in told
    else:
        assert ("no cases" in told) == (why is not None)


def test_the_command_takes_a_recording(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = recorded(tmp_path / "A")
    listed = ["conformance", "list", "--captures", path, "--fname", "conv2d|embedding", "--write", "cases.jsonl"]
    assert command.main(listed) == 0
    assert "2 cases, 2 functions" in capsys.readouterr().out
    run = ["conformance", "run", "--device", "cpu", "--jobs", "1", "-o"]
    assert command.main([*run, "recording", "--captures", path, "--fname", "conv2d|embedding"]) == 0
    assert command.main([*run, "list", "--list", "cases.jsonl"]) == 0
    assert Path("recording/summary.json").read_text() == Path("list/summary.json").read_text()
    assert command.main([*run, "none", "--captures", str(tmp_path)]) == 2
    assert "holds no captured call and no recording" in capsys.readouterr().err
    (tmp_path / "broken.oprec").write_bytes(b"no recording")
    assert command.main([*run, "none", "--captures", "broken.oprec"]) == 2
    assert "broken.oprec: byte 0" in capsys.readouterr().err
