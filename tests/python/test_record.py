"""OpRecord: a run's file has its calls, tensors and their producers; and the file of a run that ends badly."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint
from conftest import PYTHON

import op_tools
from op_tools.__main__ import main

LEVELS = ["torch", "aten"]


def record(work, tmp_path, **options):
    """The recording of a run of `work`."""
    with op_tools.OpRecord(output_dir=tmp_path, **options) as tool:
        work(tool)
    result = tool.result()
    assert result.failure == ""
    recording = op_tools.read_recording(result.path)
    assert recording.complete and recording.damage == ""
    assert len(recording.calls) == result.calls
    return recording


def calls_of(recording, op, phase="forward"):
    return [call for call in recording.calls if call.op == op and call.phase == phase]


def only(recording, op, phase="forward"):
    (call,) = calls_of(recording, op, phase)
    return call


def tensor_at(tensors, place):
    return next(tensor for where, tensor in tensors if where == place)


# ---- statistics ----

DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 511, 512, 513, 5000, 100_000])
def test_statistics_are_those_of_torch(dtype, size, tmp_path):
    torch.manual_seed(size)
    x = (torch.randn(size, dtype=torch.float64) * 20).to(dtype)
    call = only(record(lambda _: torch.neg(x) if dtype != torch.bool else x.logical_not(), tmp_path), op_of(dtype))
    statistics, wide = call.inputs[0][1], x.double()
    assert statistics.known and (statistics.nan, statistics.inf, statistics.zero) == (0, 0, int((wide == 0).sum()))
    assert (statistics.min, statistics.max) == (wide.min().item(), wide.max().item())
    assert statistics.mean == pytest.approx(wide.mean().item(), rel=1e-9, abs=1e-9)
    assert statistics.norm == pytest.approx(wide.norm().item(), rel=1e-12)


def op_of(dtype):
    return "torch.Tensor.logical_not" if dtype == torch.bool else "torch.neg"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_special_value_anywhere_is_counted(dtype, bad, tmp_path):
    for place in (0, 9, 512, 999):
        x = torch.ones(1000, dtype=dtype)
        x[place] = bad
        statistics = only(record(lambda _, x=x: torch.neg(x), tmp_path), "torch.neg").inputs[0][1]
        assert (statistics.nan, statistics.inf) == ((1, 0) if bad != bad else (0, 1))
        assert statistics.zero == 0


def difference(one_tensor, other):
    return sum((a - b) ** 2 for a, b in zip(one_tensor.projections, other.projections, strict=True)) / 4


def test_projections_estimate_how_far_tensors_are_apart(tmp_path):
    """Of single elements, of constants and of random noise: within the factors that four signs allow."""
    torch.manual_seed(0)
    x = torch.randn(3000, dtype=torch.float64)
    single, shifted, noisy = x.clone(), x + 1e-3, x + torch.randn(3000, dtype=torch.float64) * 1e-3
    single[2345] += 0.5
    swapped = x.clone()
    swapped[[10, 2000]] = swapped[[2000, 10]]
    recording = record(lambda _: [torch.neg(t) for t in (x, single, shifted, noisy, swapped)], tmp_path)
    base, *others = [call.inputs[0][1] for call in calls_of(recording, "torch.neg")]
    for other, changed in zip(others, (single, shifted, noisy, swapped), strict=True):
        exact = (changed - x).norm().item()
        assert 0.05 * exact < difference(base, other) ** 0.5 < 4 * exact
    assert difference(base, others[0]) ** 0.5 == pytest.approx(0.5, rel=1e-9)


def test_projections_do_not_depend_on_strides(tmp_path):
    x = torch.randn(37, 53)
    recording = record(lambda _: (torch.neg(x), torch.neg(x.t().contiguous().t())), tmp_path)
    one_way, other = [call.inputs[0][1] for call in calls_of(recording, "torch.neg")]
    assert one_way.stride != other.stride
    assert (one_way.hash, one_way.projections) == (other.hash, other.projections)


@pytest.mark.parametrize("level", LEVELS)
def test_numbers_that_a_call_gives_to_the_program_are_its_results(level, tmp_path):
    x = torch.tensor([1.5, 2.0, -3.0], dtype=torch.bfloat16)

    def work(_):
        x[1].item()
        torch.tensor(3).item()
        torch.tensor(1 + 2j).item()
        torch.equal(x, x)
        x.tolist()
        x.data_ptr(), x.size(0), x.get_device()  # sizes and places are no elements

    recording = record(work, tmp_path, level=level)
    numbers = [
        (tensor.dtype.removeprefix("torch."), tensor.shape, tensor.mean)
        for call in recording.calls
        if call.op.split(".")[-1].split("::")[-1] in ("item", "_local_scalar_dense", "equal", "tolist")
        for place, tensor in call.outputs
        if place == "result"
    ]
    assert numbers[:4] == [("bfloat16", (), 2.0), ("int64", (), 3), ("complex128", (), 5**0.5), ("bool", (), 1)]
    if level == "torch":
        assert numbers[4:] == [("bfloat16", (3,), pytest.approx(0.5 / 3))]
    assert not any(call.op.endswith(("data_ptr", "size", "get_device")) and call.outputs for call in recording.calls)


# ---- where tensors come from ----


VIEWS = {
    "transposed": lambda x: x.t(),
    "rows": lambda x: x[3:, 5:90],
    "columns": lambda x: x[:, ::3],
    "expanded": lambda x: x[:, :1].expand(-1, 70),
    "permuted": lambda x: x[:12].reshape(3, 4, 17, 10).permute(2, 0, 3, 1),
    "merged and not": lambda x: x[:, :160].reshape(37, 8, 20)[:, 1:5].transpose(1, 2),
    "large and transposed": lambda x: x.repeat(6, 5).t(),
    "windows": lambda x: x.flatten().unfold(0, 9, 4),
    "one of size 1": lambda x: x[:, None, 2:60].transpose(0, 1),
}


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128])
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_numbers_of_its_copy(view, dtype, tmp_path):
    torch.manual_seed(3)
    x = (torch.randn(37, 170, dtype=torch.float64) * 20).to(dtype)
    shown = VIEWS[view](x)
    assert not shown.is_contiguous()

    def work(_):
        shown.clone(memory_format=torch.contiguous_format)

    call = only(record(work, tmp_path), "torch.Tensor.clone")
    (_, of_view), (_, of_copy) = call.inputs[0], call.outputs[0]
    for name in ("hash", "nan", "inf", "zero", "min", "max", "mean", "norm", "projections"):
        assert getattr(of_view, name) == getattr(of_copy, name), name


def test_views_in_the_order_of_what_they_show_and_in_another(tmp_path):
    x = torch.randn(12, 7)

    def work(_):
        y = x.t()
        (y.unsqueeze(0), y.view(7, 3, 4), y[:, None].squeeze(1), y[:, :11], y.t(), y.view(7, 3, 4).transpose(1, 2))

    recording = record(work, tmp_path, level="aten")
    kept, others = [], []
    for call in recording.calls:
        (_, shown), (_, copied) = call.inputs[0], call.outputs[0]
        same = (shown.hash, shown.projections, shown.mean) == (copied.hash, copied.projections, copied.mean)
        (kept if same else others).append(call.op)
        expected = x.t().reshape(7, 3, 4).transpose(1, 2) if copied.shape == (7, 4, 3) else None
        if expected is not None:
            assert copied.norm == pytest.approx(expected.norm().item(), rel=1e-6)
    assert {"aten::unsqueeze", "aten::view", "aten::squeeze.dim"} <= set(kept)
    assert sorted(others) == ["aten::slice.Tensor", "aten::t", "aten::t", "aten::transpose.int"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(4, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.fc2 = torch.nn.Linear(8, 2)

    def forward(self, x, scale=None):
        y = torch.relu(self.norm(self.fc1(x)))
        return self.fc2(y if scale is None else y * scale)


def training(model, optimizer, batches, tool=None):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if tool is not None:
            tool.step()


def batches(count=3):
    torch.manual_seed(1)
    return [torch.randn(16, 4) for _ in range(count)]


def producer(recording, tensor):
    return recording.calls[tensor.producer]


def check_links(recording):
    """Every link leads to the call that has this very value among its outputs, or a tensor over the same memory."""
    linked = 0
    for index, call in enumerate(recording.calls):
        for place, tensor in (*call.inputs, *call.outputs):
            if tensor.origin != "call":
                continue
            linked += 1
            made_by = recording.calls[tensor.producer]
            assert tensor.producer <= index
            assert tensor.output < len(made_by.outputs), (call.op, place)
            value = made_by.outputs[tensor.output][1]
            if value.shape == tensor.shape and value.stride == tensor.stride:
                assert value.hash == tensor.hash or not value.known, (call.op, place)
    return linked


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_links_of_a_training_loop_lead_to_the_calls_that_made_the_tensors(level, optimizer, tmp_path):
    torch.manual_seed(0)
    model = Net()
    recording = record(
        lambda tool: training(model, optimizer(model.parameters(), lr=0.1), batches(), tool), tmp_path, level=level
    )
    assert check_links(recording) > 100
    assert {call.step for call in recording.calls} == {0, 1, 2}
    assert {call.phase for call in recording.calls} == {"forward", "backward"}


def test_parameters_buffers_inputs_and_gradients_have_names(tmp_path):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    inputs = batches(2)
    recording = record(lambda tool: training(model, optimizer, inputs, tool), tmp_path)
    first = calls_of(recording, "torch.nn.functional.linear")[0]
    assert [(tensor.origin, tensor.name) for _, tensor in first.inputs] == [
        ("input", "Net.input[0]"),
        ("parameter", "Net.fc1.weight"),
        ("parameter", "Net.fc1.bias"),
    ]
    norm = calls_of(recording, "torch.nn.functional.batch_norm")[0]
    assert ("buffer", "Net.norm.running_mean") in [(tensor.origin, tensor.name) for _, tensor in norm.inputs]
    gradients = {
        tensor.name for call in recording.calls for _, tensor in call.inputs if tensor.name.startswith("grad:")
    }
    linked = {
        tensor.shape
        for call in recording.calls
        if call.phase == "forward" and not call.module
        for _, tensor in call.inputs
        if tensor.origin == "call" and producer(recording, tensor).phase == "backward"
    }
    named = {f"grad:Net.{name}" for name, _ in model.named_parameters()}
    assert gradients | linked and gradients <= named
    # After the optimizer's step the parameter is a result of the optimizer, and still has its name.
    second = calls_of(recording, "torch.nn.functional.linear")[2]
    weight = tensor_at(second.inputs, "args[1]")
    assert (weight.origin, weight.name) == ("call", "Net.fc1.weight")
    assert producer(recording, weight).module == "" and producer(recording, weight).step == 0


def test_each_recording_of_a_process_has_the_names(tmp_path):
    net, x = torch.nn.Linear(4, 4), torch.ones(2, 4)

    def named(recording):
        return {tensor.name for call in recording.calls for _, tensor in call.inputs} - {""}

    with op_tools.OpRecord(output_dir=tmp_path / "outer") as outer:
        first, second = (record(lambda tool: net(x), tmp_path / name) for name in "ab")
    assert named(first) == named(second) == {"Linear.weight", "Linear.bias", "Linear.input[0]"}
    assert named(first) <= named(op_tools.read_recording(outer.result().path))


def test_gradients_that_were_accumulated_have_names(tmp_path):
    model = torch.nn.Linear(3, 3)

    def work(_):
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
        torch.neg(model.weight.grad)

    gradient = only(record(work, tmp_path), "torch.neg").inputs[0][1]
    assert (gradient.origin, gradient.name) == ("gradient", "grad:Linear.weight")


def test_running_statistics_are_outputs_of_the_call_that_writes_them(tmp_path):
    model = Net()
    recording = record(lambda _: [model(x) for x in batches(2)], tmp_path)
    first, second = calls_of(recording, "torch.nn.functional.batch_norm")
    before, after = tensor_at(first.inputs, "args[1]"), tensor_at(first.outputs, "written args[1]")
    assert before.hash != after.hash
    again = tensor_at(second.inputs, "args[1]")
    assert again.number == after.number and producer(recording, again).id == first.id


@pytest.mark.parametrize("level", LEVELS)
def test_written_inputs_are_outputs(level, tmp_path):
    x = torch.zeros(4)

    def work(_):
        y = torch.neg(x)
        y.add_(1)
        y[1:3].mul_(5)
        torch.neg(y)

    recording = record(work, tmp_path, level=level)
    names = {"torch": ("torch.Tensor.add_", "torch.Tensor.mul_", "torch.neg")}.get(
        level, ("aten::add_.Tensor", "aten::mul_.Tensor", "aten::neg")
    )
    (add,), (mul,), (_, last) = (calls_of(recording, name) for name in names)
    assert [place for place, _ in add.outputs] == ["result", "written args[0]"]
    assert tensor_at(add.outputs, "written args[0]").mean == 1
    assert producer(recording, mul.inputs[0][1]).op != mul.op
    # The base was written through a view of it.
    assert last.inputs[0][1].max == 5
    assert producer(recording, last.inputs[0][1]).id == mul.id


def test_a_tensor_that_was_not_written_has_one_value(tmp_path):
    x = torch.randn(1000)
    recording = record(lambda _: [torch.neg(x) for _ in range(20)], tmp_path)
    assert len({call.inputs[0][1].number for call in calls_of(recording, "torch.neg")}) == 1


def test_memory_that_is_used_again_is_another_tensor(tmp_path):
    """The allocator gives the same address to the next tensor, whose version is 0 as well."""

    def work(_):
        for i in range(50):
            torch.neg(torch.full((1000,), float(i)))

    recording = record(work, tmp_path)
    assert [call.inputs[0][1].max for call in calls_of(recording, "torch.neg")] == [float(i) for i in range(50)]
    check_links(recording)


def test_views_in_place_and_out_arguments(tmp_path):
    def work(_):
        x = torch.arange(12.0).reshape(3, 4)
        base = torch.neg(x)
        rows = base.unbind(0)
        rows[1].add_(100)
        out = torch.empty(3, 4)
        torch.add(base, 1, out=out)
        torch.abs(out)
        torch.cat([base, out])
        torch.where(out > 0, out, base)

    recording = record(work, tmp_path)
    check_links(recording)
    last = only(recording, "torch.abs").inputs[0][1]
    assert producer(recording, last).op == "torch.add" and last.max == 97 + 0
    assert [place for place, _ in only(recording, "torch.cat").inputs] == ["args[0][0]", "args[0][1]"]
    assert [place for place, _ in only(recording, "torch.add").inputs] == ["args[0]", "kwargs.out"]
    assert json.loads(only(recording, "torch.add").scalars) == {"args[1]": 1}


ARGUMENTS = [
    lambda x: torch.add(x, x, alpha=1),
    lambda x: torch.add(x, x, alpha=2),
    lambda x: torch.add(x, x, alpha=2.0),
    lambda x: torch.add(x, x),
    lambda x: torch.add(x, 2),
    lambda x: torch.add(x, 2.0),
    lambda x: torch.add(x, True),
    lambda x: torch.add(2, x),
    lambda x: torch.sum(x, 0),
    lambda x: torch.sum(x, (0,)),
    lambda x: torch.sum(x, (0, 1)),
    lambda x: torch.sum(x, dim=0),
    lambda x: torch.sum(x, 0, True),
    lambda x: torch.sum(x, 0, keepdim=True, dtype=torch.float64),
    lambda x: torch.sum(x, 0, keepdim=True, dtype=torch.float16),
    lambda x: torch.cat([x, x]),
    lambda x: torch.cat((x, x)),
    lambda x: torch.cat([x, x, x], 1),
    lambda x: torch.split(x, 1),
    lambda x: torch.split(x, 2),
    lambda x: torch.max(x, 0),
    lambda x: x[0],
    lambda x: x[0:1],
    lambda x: x[..., None],
    lambda x: x[torch.tensor([0, 1])],
    lambda x: torch.clamp(x, None, 1),
    lambda x: torch.clamp(x, 1),
    lambda x: torch.einsum("ij->j", x),
    lambda x: torch.einsum("ij->i", x),
    lambda x: x.to("cpu", torch.float64),
    lambda x: x.to(torch.device("cpu"), torch.float16),
    lambda x: torch.rand(2, generator=torch.Generator()),
]


@pytest.mark.parametrize("level", LEVELS)
def test_a_call_that_is_like_one_before_has_its_own_arguments(level, tmp_path):
    """Facts about the first call's arguments are said of no other call: each alone, then all of them, twice."""

    def said(recording):
        return [
            (call.op, call.scalars, [place for place, _ in call.inputs], [place for place, _ in call.outputs])
            for call in recording.calls
        ]

    x = torch.ones(2, 2)
    alone = [said(record(lambda _, call=call: call(x), tmp_path, level=level)) for call in ARGUMENTS]
    together = said(record(lambda _: [call(x) for call in ARGUMENTS * 2], tmp_path, level=level))
    assert together == [row for rows in alone * 2 for row in rows]
    assert len({json.dumps(rows) for rows in alone}) > 20


def test_numbers_that_are_others_in_each_call_are_noted(tmp_path):
    x = torch.ones(2)
    recording = record(lambda _: [torch.add(x, i / 7) for i in range(1000)], tmp_path, statistics=False)
    assert [json.loads(call.scalars) for call in calls_of(recording, "torch.add")] == [
        {"args[1]": i / 7} for i in range(1000)
    ]


def test_checkpoint_retain_graph_and_double_backward(tmp_path):
    model = Net()
    x = batches(1)[0]

    def work(_):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        gradient = torch.autograd.grad(model(x).square().sum(), model.fc1.weight, create_graph=True)[0]
        gradient.square().sum().backward()

    recording = record(work, tmp_path)
    assert check_links(recording) > 50
    passes = {call.backward_pass for call in calls_of(recording, "torch.relu", "backward")}
    assert {0, 1} <= passes


@pytest.mark.parametrize("level", LEVELS)
def test_backward_calls_know_their_forward_call(level, tmp_path):
    model = Net()
    recording = record(lambda _: model(batches(1)[0]).square().mean().backward(), tmp_path, level=level)
    by_id = {call.id: call for call in recording.calls if call.phase == "forward"}
    backward = [call for call in recording.calls if call.phase == "backward"]
    known = [call for call in backward if call.forward_id]
    assert len(known) > (0.9 if level == "torch" else 0.7) * len(backward)
    for call in known:
        assert call.forward_id in by_id
    if level == "aten":
        (relu,) = [call for call in known if call.op == "aten::threshold_backward"]
        assert by_id[relu.forward_id].op == "aten::relu"
        assert relu.module == "Net"


def test_modules_that_share_one_and_modules_that_come_and_go_have_their_own_paths(tmp_path):
    """A thread's notes of its stack of modules are found by their addresses."""

    class Inner(torch.nn.Module):
        def forward(self, x):
            return torch.neg(x)

    class Left(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    class Right(Left):
        pass

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            inner = Inner()
            self.left, self.right = Left(inner), Right(inner)

        def forward(self, x):
            return self.right(self.left(x))

    def work(_):
        model = Both()
        for _ in range(3):
            model(torch.ones(2))
        for i in range(100):
            kind = type(f"Net{i}", (Inner,), {})
            kind()(torch.ones(2))
            del kind

    recording = record(work, tmp_path)
    names = [call.module for call in calls_of(recording, "torch.neg")]
    assert names == ["Both.left.inner", "Both.right.inner"] * 3 + [f"Net{i}" for i in range(100)]


def test_threads_are_each_in_their_own_module_and_line(tmp_path):
    class First(torch.nn.Module):
        def forward(self, x):
            return torch.neg(x)

    class Second(torch.nn.Module):
        def forward(self, x):
            return torch.abs(x)

    def work(model):
        for _ in range(200):
            model(torch.ones(3))

    def both(_):
        threads = [threading.Thread(target=work, args=(model,)) for model in (First(), Second())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recording = record(both, tmp_path, level="aten", all_threads=True)
    calls = [call for call in recording.calls if call.op in ("aten::neg", "aten::abs")]
    wanted = {"First": "aten::neg", "Second": "aten::abs"}
    assert len(calls) == 400
    for call in calls:
        assert wanted[call.module] == call.op
        assert call.line.endswith(" forward")


def test_a_forked_child_does_not_wait_for_threads_that_it_has_not(tmp_path):
    program = """
import os, sys, torch, op_tools
torch.set_num_threads(2)
x = torch.randn(400_000)
x + 1  # torch's threads begin
child = os.fork()
if child == 0:
    with op_tools.OpRecord(output_dir=sys.argv[1], level="aten"):
        x.view(2, -1)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "0\n"
    (path,) = tmp_path.glob("*.oprec")
    (call,) = op_tools.read_recording(path).calls
    assert call.inputs[0][1].known


@pytest.mark.parametrize("level", LEVELS)
def test_the_same_elements_are_one_value(level, tmp_path):
    x = torch.ones(4)

    def work(_):
        torch.neg(x)
        torch.neg(x.detach())
        torch.neg(x.data)
        torch.neg(x.view(2, 2))
        x.data.mul_(3)
        torch.neg(x.data)

    recording = record(work, tmp_path, level=level)
    values = [call.inputs[0][1] for call in calls_of(recording, "torch.neg" if level == "torch" else "aten::neg")]
    assert values[0].number == values[1].number
    assert values[0].hash == values[2].hash == values[3].hash
    assert values[4].max == 3


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("write", ["data", "preserved"])
def test_a_write_that_the_version_of_a_tensor_does_not_count_is_seen(level, write, tmp_path):
    x = torch.randn(4, 4)

    def work(_tool):
        torch.neg(x)
        if write == "data":
            x.data[1].fill_(5.0)  # another tensor of the same memory, with versions of its own
        else:
            with torch.autograd._unsafe_preserve_version_counter(x):
                x.view(-1)[:4].fill_(5.0)
        torch.abs(x)

    recording = record(work, tmp_path, level=level)
    before = only(recording, "torch.neg" if level == "torch" else "aten::neg").inputs[0][1]
    after = only(recording, "torch.abs" if level == "torch" else "aten::abs").inputs[0][1]
    assert before.max < 5 and after.max == 5
    assert before.hash != after.hash


def test_calls_of_a_module_are_counted(tmp_path):
    class Twice(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(torch.relu(self.fc(x)))

    model = Twice()

    def work(tool):
        for _ in range(2):
            model(torch.ones(1, 4))
            model(torch.ones(1, 4))
            tool.step()

    recording = record(work, tmp_path)
    linear = calls_of(recording, "torch.nn.functional.linear")
    assert [(call.step, call.module, call.module_call) for call in linear] == [
        (step, "Twice.fc", number) for step in (0, 1) for number in range(4)
    ]


def test_random_draws_and_errors_are_noted(tmp_path):
    def work(_):
        torch.manual_seed(3)
        torch.nn.functional.dropout(torch.ones(10), 0.5)
        torch.neg(torch.ones(2))
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    recording = record(work, tmp_path)
    assert only(recording, "torch.nn.functional.dropout").random == "cpu"
    assert only(recording, "torch.neg").random == ""
    failed = only(recording, "torch.mm")
    assert "cannot be multiplied" in failed.error and failed.outputs == [] and len(failed.inputs) == 2


def test_inference_mode(tmp_path):
    model = Net().eval()

    def work(_):
        with torch.inference_mode():
            y = model(torch.ones(2, 4))
            y.add_(1)
            torch.neg(y)

    recording = record(work, tmp_path)
    add, neg = only(recording, "torch.Tensor.add_"), only(recording, "torch.neg")
    assert tensor_at(add.outputs, "written args[0]").mean == pytest.approx(add.inputs[0][1].mean + 1)
    assert neg.inputs[0][1].hash == tensor_at(add.outputs, "written args[0]").hash


def test_steps_and_ops_are_filtered(tmp_path):
    def work(tool):
        for _ in range(4):
            torch.neg(torch.ones(2))
            torch.abs(torch.ones(2))
            tool.step()

    recording = record(work, tmp_path, steps=[1, 3], ops="torch.neg")
    assert [(call.op, call.step) for call in recording.calls] == [("torch.neg", 1), ("torch.neg", 3)]


def test_without_statistics_there_are_shapes_and_links(tmp_path):
    recording = record(lambda _: torch.abs(torch.neg(torch.ones(2))), tmp_path, statistics=False)
    result = only(recording, "torch.abs").inputs[0][1]
    assert not result.known and result.shape == (2,) and result.nan == -1
    assert producer(recording, result).op == "torch.neg"


@pytest.mark.parametrize("level", LEVELS)
def test_ids_are_those_of_captured_calls(level, tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path, level=level) as capture:
        recording = record(lambda _: torch.abs(torch.neg(torch.randn(3))), tmp_path / "record", level=level)
    for name in ("neg", "abs"):
        call = next(
            call for call in recording.calls if call.op.partition("::")[2] == name or call.op == f"torch.{name}"
        )
        (folder,) = [path for path in (tmp_path / "op_capture_result").rglob(str(call.id)) if path.is_dir()]
        saved = op_tools.load_call(folder)
        assert saved.name == call.op
        assert saved.result.double().norm().item() == pytest.approx(call.outputs[0][1].norm)
    assert capture.result().lost == 0


def test_jitter_changes_the_first_tensor_of_a_module_by_one_unit(tmp_path):
    model = torch.nn.Linear(4, 4)

    def work(_):
        torch.neg(torch.ones(3))
        torch.nn.functional.linear(torch.zeros(1, 4), model.weight)
        model(torch.full((300, 4), 1.5))

    plain, *noisy = [record(work, tmp_path, jitter=seed) for seed in (0, 1, 2, 1)]
    assert only(plain, "torch.neg").inputs[0][1].hash == only(noisy[0], "torch.neg").inputs[0][1].hash
    second_inputs = [calls_of(found, "torch.nn.functional.linear")[1].inputs[0][1] for found in (plain, *noisy)]
    assert (second_inputs[0].min, second_inputs[0].max) == (1.5, 1.5)
    unit = 2.0**-23
    assert (second_inputs[1].min, second_inputs[1].max) == (1.5 - unit, 1.5 + unit)
    assert second_inputs[1].hash == second_inputs[3].hash != second_inputs[2].hash


# ---- the file ----


def test_the_header_says_what_the_run_was(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_TEST_OF_RECORD", "7")
    torch.manual_seed(42)
    header = record(lambda _: torch.neg(torch.ones(2)), tmp_path).header
    assert header["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert header["op_tools"] == op_tools.__version__
    assert (header["rank"], header["world_size"], header["pid"]) == (0, 1, os.getpid())
    assert header["environment"]["OMP_TEST_OF_RECORD"] == "7"
    assert header["seeds"]["cpu"] == "42"
    assert header["flags"]["deterministic"] is False and header["flags"]["num_threads"] == torch.get_num_threads()
    assert header["argv"] == sys.argv


def test_each_run_of_a_process_has_its_file(tmp_path):
    paths = [record(lambda _: torch.neg(torch.ones(2)), tmp_path).path for _ in range(3)]
    assert len(set(paths)) == 3
    assert Path(paths[0]).name == f"rank0-{os.getpid()}.oprec"


def test_recordings_are_shown(tmp_path, capsys):
    record(lambda _: torch.neg(torch.ones(2, 3)), tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "torch.neg" in text and "float32[2, 3]" in text and "complete" in text
    assert f"rank 0, world_size 1, pid {os.getpid()}, level torch" in text.replace("\n", " ") and "{" not in text


def test_a_result_has_a_table_and_a_data_frame(tmp_path):
    pandas = pytest.importorskip("pandas")
    with op_tools.OpRecord(output_dir=tmp_path) as tool:
        torch.neg(torch.ones(2))
        torch.neg(torch.ones(3, requires_grad=True)).sum().backward()
    result = tool.result()
    assert "torch.neg" in result.table()
    (neg,) = [row for row in result.rows if row.op == "torch.neg"]
    assert (neg.calls, neg.backward, neg.failed) == (2, 1, 0)
    frame = op_tools.read_recording(result.path).to_pandas()
    assert isinstance(frame, pandas.DataFrame) and set(frame["place"]) >= {"args[0]", "result"}


def test_threads_have_numbers(tmp_path):
    def work(_):
        torch.neg(torch.ones(2))

        def other():
            with op_tools.HookScope(op_tools.Hook()):
                pass
            torch.abs(torch.ones(2))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    recording = record(work, tmp_path, level="aten", all_threads=True)
    assert only(recording, "aten::neg").thread == 0
    assert [call.thread for call in calls_of(recording, "aten::abs")] in ([], [1])


PROGRAM = """
import os, sys, time
import torch
import op_tools
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tool = op_tools.OpRecord(output_dir=sys.argv[1], level=sys.argv[2]).start()
for step in range(1_000_000):
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    tool.step()
    if step == 3:
        print("trains", flush=True)
"""


@pytest.mark.parametrize("level", LEVELS)
def test_what_was_recorded_survives_sigkill_at_any_moment(level, tmp_path):
    generator = random.Random(level)
    for trial in range(3):
        folder = tmp_path / str(trial)
        program = subprocess.Popen([PYTHON, "-c", PROGRAM, str(folder), level], stdout=subprocess.PIPE)
        assert program.stdout.readline() == b"trains\n"
        time.sleep(generator.random() * 0.7)
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()
        (path,) = folder.glob("*.oprec")
        recording = op_tools.read_recording(path)
        assert not recording.complete and recording.damage == ""
        assert len(recording.calls) > 20
        check_links(recording)


def test_a_forked_child_records_nothing_and_the_parent_goes_on(tmp_path):
    def work(_):
        torch.neg(torch.ones(2))
        child = os.fork()
        if child == 0:
            torch.abs(torch.ones(2))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        torch.exp(torch.ones(2))

    recording = record(work, tmp_path)
    assert [call.op for call in recording.calls if call.op != "torch.ones"] == ["torch.neg", "torch.exp"]
    assert len(list(tmp_path.glob("*.oprec"))) == 1


def test_a_full_disk_stops_the_recording_and_not_the_program(tmp_path):
    program = """
import resource, signal, sys, torch, op_tools
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
with op_tools.OpRecord(output_dir=sys.argv[1]) as tool:
    x = torch.ones(2)
    for _ in range(20_000): x = torch.neg(x)
print(x.tolist(), tool.result().failure)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[1.0, 1.0] ") and "cannot be written" in done.stdout
    assert done.stderr.count("stops recording") == 1
    (path,) = tmp_path.glob("*.oprec")
    recording = op_tools.read_recording(path)
    assert len(recording.calls) > 500 and recording.damage == ""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 300_000


def test_op_tools_run_records(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nm = torch.nn.Linear(3, 3)\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "for _ in range(2):\n    m(torch.ones(2, 3)).sum().backward()\n    o.step()\n"
    )
    command = [sys.executable, "-m", "op_tools", "run", "--record", "--output-dir", str(tmp_path / "A"), str(script)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = (tmp_path / "A").glob("*.oprec")
    recording = op_tools.read_recording(path)
    linear = calls_of(recording, "torch.nn.functional.linear")
    assert [call.step for call in linear] == [0, 1]
    assert linear[0].module == "Linear" and linear[0].line.startswith(f"{script}:5 ")


def test_what_is_no_recording_is_an_error(tmp_path):
    path = tmp_path / "a.oprec"
    path.write_bytes(b"something else")
    with pytest.raises(op_tools.Error, match=r"a\.oprec: byte 0"):
        op_tools.read_recording(path)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_tensors_without_strides_have_rows(level, tmp_path):
    x = torch.eye(3)
    with op_tools.OpRecord(level=level, output_dir=tmp_path) as record:
        x.to_sparse_csr() @ x
        x.to_sparse().coalesce()
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2
    assert any("mm" in call.op or "matmul" in call.op for call in op_tools.read_recording(record.result().path).calls)
    # A hook that fails is off from then on.
    with op_tools.OpRecord(level=level, output_dir=tmp_path / "more") as record:
        torch.sparse.sampled_addmm(x.to_sparse_csr(), x, x)
        x.exp()
    assert any("exp" in call.op for call in op_tools.read_recording(record.result().path).calls)


@pytest.mark.parametrize(
    ("level", "op", "bias"), [("torch", "torch.nn.functional.linear", "args[2]"), ("aten", "aten::addmm", "args[0]")]
)
def test_what_a_fused_optimizer_writes_is_recorded_and_read_anew(tmp_path, level, op, bias):
    """torch._fused_adam_ does not move the version counters of the parameters."""
    net = torch.nn.Linear(4, 2)
    method = torch.optim.Adam(net.parameters(), fused=True)
    net(torch.ones(3, 4)).sum().backward()

    def work(tool):
        net(torch.ones(3, 4))
        method.step()
        net(torch.ones(3, 4))

    recording = record(work, tmp_path, level=level)
    step = only(recording, f"{level}{'::' if level == 'aten' else '.'}_fused_adam_")
    before, after = (tensor_at(call.inputs, bias) for call in calls_of(recording, op))
    assert tensor_at(step.inputs, "args[0][1]").hash == before.hash
    assert tensor_at(step.outputs, "written args[0][1]").hash == after.hash != before.hash


def test_data_among_the_arguments_does_not_stay_in_memory(tmp_path):
    def work(tool):
        numbers = list(range(20_000))
        for i in range(300):
            numbers[0] = i
            torch.tensor(numbers)

    work(None)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    record(work, tmp_path, statistics=False)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kB; 54 MB if each list stayed


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_weights_that_share_a_storage_keep_their_names(level, tmp_path):
    """As cuDNN's recurrent networks have them on CUDA."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    offset = 0
    for parameter in model.parameters():
        parameter.data.set_(flat.untyped_storage(), offset, parameter.shape, parameter.stride())
        offset += parameter.numel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with op_tools.OpRecord(output_dir=tmp_path, level=level) as tool:
        model(torch.ones(5, 3)).square().sum().backward()
        optimizer.step()
    recording = op_tools.read_recording(tool.result().path)
    names = {
        (str(place).startswith("written"), tensor.name)
        for call in recording.calls
        for place, tensor in [*call.inputs, *call.outputs]
        if tensor.origin in ("parameter", "call") and tensor.name
    }
    weights = {f"Sequential.{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")}
    assert {name for is_written, name in names if not is_written} >= weights
    assert {name for is_written, name in names if is_written} == weights
