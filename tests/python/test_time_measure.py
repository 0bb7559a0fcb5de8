"""OpTimeMeasure: right counts and rows, files that agree with them, the habits of torch.profiler's users."""

import collections
import contextlib
import csv
import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import Attention, LeNet, digits
from torch.overrides import TorchFunctionMode

import op_tools

QUIET = {"lines": False}


def batch(count=8):
    images, targets = digits()
    return images[:count], targets[:count]


def train_step(model, optimizer, count=8):
    images, targets = batch(count)
    optimizer.zero_grad()
    F.cross_entropy(model(images), targets).backward()
    optimizer.step()


def counts(result):
    return {(row.op.rpartition(".")[2], row.phase): row.calls for row in result.rows}


def calls_of(result):
    with (Path(result.root) / "calls.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def trace_of(result):
    return json.loads((Path(result.root) / "trace.json").read_text())


def profiled(step):
    """Names of the outermost aten operators of a step, in order, as torch.profiler saw them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        step()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    return [event.name for event in events]


def test_a_training_step_has_the_right_counts():
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with op_tools.OpTimeMeasure(ops="torch.nn.functional.*", **QUIET) as tool:
        for _ in range(3):
            train_step(model, optimizer)
            tool.step()
    result = tool.result()
    for op, calls in {"conv2d": 6, "linear": 6, "relu": 9, "max_pool2d": 6, "cross_entropy": 3}.items():
        assert counts(result)[op, "forward"] == calls
        assert counts(result)[op, "backward"] == calls
    assert (result.calls, result.backward) == (30, 30)
    assert sum(row.share for row in result.rows) == pytest.approx(1)
    for row in result.rows:
        assert 0 < row.min_ms <= row.p50_ms <= row.p99_ms <= row.max_ms <= row.total_ms
        assert row.mean_ms == pytest.approx(row.total_ms / row.calls)
        assert row.device == "cpu"


class Counter(TorchFunctionMode):
    """A user's own mode: counts the functions that a program calls."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls[function.__name__] += 1
        return function(*args, **kwargs or {})


def test_a_transformer_layer_has_the_counts_that_a_function_mode_sees():
    model = Attention()
    optimizer = torch.optim.Adam(model.parameters())
    with Counter() as plain:
        train_step(model, optimizer)
    names = "linear|layer_norm|dropout|relu|multi_head_attention_forward|cross_entropy|mean"
    with op_tools.OpTimeMeasure(ops=rf"torch\.(nn\.functional\.|Tensor\.)?({names})", **QUIET) as tool:
        train_step(model, optimizer)
    seen = {(name, "forward"): plain.calls[name] for name in names.split("|")}
    assert min(seen.values()) > 0
    # Each of them takes part in the loss, so each comes back once.
    assert counts(tool.result()) == seen | {(name, "backward"): calls for (name, _), calls in seen.items()}


def test_forward_calls_and_their_order_are_those_of_the_profiler():
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_step(model, optimizer)
    seen = profiled(lambda: train_step(model, optimizer))
    with op_tools.OpTimeMeasure(level="aten", **QUIET) as tool:
        train_step(model, optimizer)
    ours = [call["op"].partition(".")[0] for call in calls_of(tool.result())]
    # The profiler also shows inner calls of operators; ours are a part of its list, in its order.
    position = 0
    for name in ours:
        assert name in seen[position:], f"{name} is not in the profile after {seen[position - 1]}"
        position = seen.index(name, position) + 1
    for name in ("aten::convolution", "aten::convolution_backward", "aten::addmm", "aten::_log_softmax"):
        assert ours.count(name) == seen.count(name)


def test_aten_operators_of_the_backward_engine_are_in_phase_backward():
    x = torch.randn(4, 4, requires_grad=True)
    with op_tools.OpTimeMeasure(level="aten", ops="mm", **QUIET) as tool:
        (x @ x).sum().backward()
    assert counts(tool.result()) == {("aten::mm", "forward"): 1, ("aten::mm", "backward"): 2}


def test_results_and_gradients_stay_what_they_are():
    images, targets = batch()
    outcome = []
    for tool in (contextlib.nullcontext(), op_tools.OpTimeMeasure(memory=True, mark_ranges=True, **QUIET)):
        torch.manual_seed(3)
        model = Attention()
        with tool:
            loss = F.cross_entropy(model(images), targets)
            loss.backward()
        outcome.append([loss.detach(), *(p.grad for p in model.parameters()), torch.rand(3)])
    for plain, measured in zip(*outcome, strict=True):
        assert torch.equal(plain, measured)


@pytest.mark.parametrize("mode", ["sync", "event", "host"])
def test_a_backward_pass_of_several_nodes_counts_once(mode):
    x = torch.randn(4, 3, 8, requires_grad=True)
    w = torch.randn(5, 8, requires_grad=True)
    with op_tools.OpTimeMeasure(mode=mode, ops="torch.nn.functional.linear", **QUIET) as tool:
        y = F.linear(x, w)  # view, mm and view again
        y.sum().backward(retain_graph=True)
        y.sum().backward()
    assert counts(tool.result()) == {("linear", "forward"): 1, ("linear", "backward"): 2}
    assert [call["pass"] for call in calls_of(tool.result())] == ["0", "0", "1"]


def test_part_of_a_graph_and_double_backward():
    x = torch.randn(3, requires_grad=True)
    w = torch.randn(3, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.Tensor.mul", **QUIET) as tool:
        y = torch.Tensor.mul(x, w)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        grad.sum().backward()
    assert counts(tool.result())["mul", "backward"] >= 1


def test_backward_after_the_scope_is_measured_and_flushed():
    x = torch.randn(4, 4, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.relu", **QUIET) as tool:
        y = torch.relu(x)
    y.sum().backward()
    assert counts(tool.result())["relu", "backward"] == 1
    assert len(calls_of(tool.result())) == 1
    tool.flush()
    assert [call["phase"] for call in calls_of(tool.result())] == ["forward", "backward"]


def test_graphs_that_never_run_backward_leave_nothing():
    x = torch.randn(4, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.relu", files=False, **QUIET) as tool:
        y = torch.relu(x)
        node = y.grad_fn
        del y, node
        gc.collect()
    assert tool.result().backward == 0


def test_a_backward_that_raises_passes_and_later_ones_are_measured():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("on purpose")

    x = torch.randn(4, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.relu", **QUIET) as tool:
        with pytest.raises(ValueError, match="on purpose"):
            torch.relu(Fails.apply(torch.relu(x))).sum().backward()
        torch.relu(x).sum().backward()
    # The pass that failed is none.
    assert counts(tool.result()) == {("relu", "forward"): 3, ("relu", "backward"): 1}


def test_a_call_that_raises_is_counted_and_raises():
    with op_tools.OpTimeMeasure(ops="torch.matmul", **QUIET) as tool, pytest.raises(RuntimeError, match="shape"):
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    (row,) = tool.result().rows
    assert (row.calls, row.failed) == (1, 1)
    assert calls_of(tool.result())[0]["failed"] == "1"


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_devices_that_are_named_and_not_there_leave_measuring_on(level):
    with op_tools.OpTimeMeasure(level=level) as tool:
        for device in ("xla:0", "vulkan", "nothing"):
            with pytest.raises((RuntimeError, AssertionError)):
                torch.ones(2, device=device)
        assert torch.device("xla", 0).type == "xla"
        torch.ones(2)
        assert tool._scope.hook_failures == 0


def test_an_exception_in_the_scope_leaves_files():
    tool = op_tools.OpTimeMeasure(ops="torch.relu", **QUIET)

    @tool
    def fail():
        torch.relu(torch.ones(2))
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(calls_of(tool.result())) == 1


def test_self_time_leaves_out_what_ran_inside():
    x = torch.randn(64, 64, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.Tensor.backward, torch.matmul", **QUIET) as tool:
        torch.Tensor.backward(torch.matmul(x, x), torch.ones(64, 64))
    rows = {(row.op, row.phase): row for row in tool.result().rows}
    outer, inner = rows["torch.Tensor.backward", "forward"], rows["torch.matmul", "backward"]
    assert inner.self_ms == inner.total_ms
    assert outer.self_ms == pytest.approx(outer.total_ms - inner.total_ms)


def test_compiled_code_autocast_and_workers():
    model = LeNet()
    images, targets = batch()
    compiled = torch.compile(model, backend="eager")
    with op_tools.OpTimeMeasure(level="aten", ops="convolution", **QUIET) as tool:
        compiled(images)
    assert counts(tool.result())["aten::convolution", "forward"] == 2

    tool = op_tools.OpTimeMeasure(level="aten", ops="convolution", **QUIET)
    with tool, torch.autocast("cpu", dtype=torch.bfloat16):
        model(images)
    assert {row.dtypes for row in tool.result().rows} == {"bfloat16"}

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, targets), batch_size=4, num_workers=1)
    with op_tools.OpTimeMeasure(ops="torch.relu", **QUIET) as tool:
        for part, _ in loader:
            torch.relu(part)
    assert counts(tool.result())["relu", "forward"] == 2


def test_rows_by_shape_line_and_module():
    model = LeNet()
    images, _ = batch()
    with op_tools.OpTimeMeasure(with_stack=True, with_modules=True, ops="torch.nn.functional.*", **QUIET) as tool:
        model(images)
    result = tool.result()
    by_shape = {row.shapes for row in result.by_shape if row.op.endswith("conv2d")}
    assert by_shape == {"[[8, 1, 8, 8], [6, 1, 3, 3], [6]]", "[[8, 6, 4, 4], [16, 6, 3, 3], [16]]"}
    assert {row.module for row in result.by_module} == {
        "LeNet",
        *(f"LeNet.{name}" for name in ("conv1", "conv2", "fc1", "fc2")),
    }
    assert all(re.search(r"models\.py:\d+ forward$", row.line) for row in result.by_line)
    assert not torch.nn.modules.module._global_forward_pre_hooks  # ours are gone


def test_tables_sort_and_limit():
    with op_tools.OpTimeMeasure(ops="torch.relu, torch.neg, torch.abs", files=False, **QUIET) as tool:
        for count, function in enumerate((torch.relu, torch.neg, torch.abs), 1):
            for _ in range(count):
                function(torch.ones(4))
    result = tool.result()
    lines = result.table(sort_by="calls", row_limit=2).splitlines()
    assert [line.split()[0] for line in lines] == ["op", "torch.abs", "torch.neg", "...", "total"]
    assert [line.split()[0] for line in result.table(sort_by="op").splitlines()[1:-1]] == [
        "torch.abs",
        "torch.neg",
        "torch.relu",
    ]
    assert "[[4]]" in result.table(group_by="shape", sort_by="total")
    with pytest.raises(op_tools.Error, match="sort_by=: 'speed'"):
        result.table(sort_by="speed")
    with pytest.raises(op_tools.Error, match="group_by=: 'day'"):
        result.table(group_by="day")


def test_flops_are_those_of_torchs_formulas():
    x = torch.randn(2, 3, 8, requires_grad=True)
    w = torch.randn(5, 8, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.nn.functional.linear, torch.relu", files=False, **QUIET) as tool:
        for _ in range(2):
            torch.relu(F.linear(x, w)).sum().backward()
    flops = {(row.op, row.phase): row.flops for row in tool.result().rows}
    once = 2 * 6 * 8 * 5
    assert flops["torch.nn.functional.linear", "forward"] == 2 * once
    assert flops["torch.nn.functional.linear", "backward"] == 2 * 2 * once
    assert flops["torch.relu", "forward"] == 0

    with op_tools.OpTimeMeasure(level="aten", ops="convolution", files=False, **QUIET) as tool:
        F.conv2d(torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3))
    assert tool.result().rows[0].flops == 2 * 9 * 3 * 2 * 9


def test_memory_by_operator_and_what_is_alive():
    with op_tools.OpTimeMeasure(memory=True, with_stack=True, ops="torch.add", files=False, **QUIET) as tool:
        kept = [torch.add(torch.ones(1000), 1) for _ in range(3)]
        torch.add(torch.ones(1000), 1)
        result = tool.result()
    (row,) = result.rows
    assert row.allocated_bytes >= 4 * 4000
    assert row.peak_bytes >= 4000
    assert sum(one["bytes"] for one in result.alive) == 12000
    assert "test_time_measure.py" in result.alive[0]["where"]
    del kept
    assert tool.result().alive == []


def test_the_trace_shows_what_the_records_say():
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with op_tools.OpTimeMeasure(with_stack=True, **QUIET) as tool:
        for _ in range(2):
            train_step(model, optimizer)
            tool.step()
    result = tool.result()
    trace = trace_of(result)
    events = trace["traceEvents"]
    for event in events:
        assert {"ph", "name", "pid", "tid"} <= set(event)
        assert event["ph"] in "MXsf"
        assert "ts" in event or event["ph"] == "M"
        assert event.get("dur", 0) >= 0
    steps = [event for event in events if event["name"].startswith("step ")]
    assert [event["args"]["step"] for event in steps] == [0, 1]
    bars = {}
    for event in events:
        if event["ph"] == "X" and event not in steps:
            bars.setdefault((event["args"]["id"], event["name"].endswith("backward")), []).append(event)
    calls = calls_of(result)
    assert set(bars) == {(int(call["id"]), call["phase"] == "backward") for call in calls}
    for call in calls:
        parts = bars[int(call["id"]), call["phase"] == "backward"]
        assert sum(part["dur"] for part in parts) == pytest.approx(1000 * float(call["ms"]), abs=0.01)
        assert all(part["args"].get("shapes", "") == call["shapes"] for part in parts)
    # Arrows lead from the start of a forward bar to the start of a backward bar.
    starts = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    assert set(starts) == set(ends)
    assert len(starts) == result.backward
    times = {event["ts"] for parts in bars.values() for event in parts}
    assert set(starts.values()) | set(ends.values()) <= times
    assert all(starts[number] < ends[number] for number in starts)


def test_the_trace_is_on_the_profilers_clock_and_merges(tmp_path):
    x = torch.ones(64, 64)
    tool = op_tools.OpTimeMeasure(level="aten", ops="mm", **QUIET)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, tool:
        for _ in range(5):
            x @ x
    theirs, merged = tmp_path / "theirs.json", tmp_path / "merged.json"
    profiler.export_chrome_trace(str(theirs))
    tool.result().export_chrome_trace(str(merged), merge_with=str(theirs))
    trace = json.loads(merged.read_text())
    assert trace["baseTimeNanoseconds"] == json.loads(theirs.read_text())["baseTimeNanoseconds"]
    bars = [event for event in trace["traceEvents"] if event["name"] == "aten::mm" and event["ph"] == "X"]
    ours = [event for event in bars if event["cat"] == "op_tools"]
    profile = [event for event in bars if event["cat"] != "op_tools"]
    assert len(ours) == len(profile) == 5
    # Microseconds: the profiler fits its clock, which it reads otherwise, and a busy machine stops us between two readings. Another
    # clock would be off by hours.
    slack = 100_000
    for mine, its in zip(ours, profile, strict=True):
        assert mine["ts"] <= its["ts"] + slack
        assert mine["ts"] + mine["dur"] >= its["ts"] + its["dur"] - slack
    with pytest.raises(op_tools.Error, match=r"nothing\.json"):
        tool.result().export_chrome_trace(str(merged), merge_with=str(tmp_path / "nothing.json"))


def test_beside_a_profiler_nothing_counts_twice_and_ranges_are_marked():
    x = torch.ones(8, 8)

    def names(**arguments):
        tool = op_tools.OpTimeMeasure(ops="torch.matmul", **QUIET, **arguments) if arguments else None
        profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with profile as profiler, tool or contextlib.nullcontext():
            torch.matmul(x, x)
        return sorted(event.name for event in profiler.events()), tool

    plain, _ = names()
    beside, tool = names(memory=True)
    assert beside == plain
    assert tool.result().calls == 1
    marked, _ = names(mark_ranges=True)
    assert marked == sorted([*plain, "op_tools::torch.matmul"])


def test_a_schedule_leaves_warm_up_out_and_hands_each_cycle_over(tmp_path):
    runs = []

    def ready(tool):
        tool.export_chrome_trace(str(tmp_path / f"trace{len(runs)}.json"))
        runs.append(tool.result())

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with op_tools.OpTimeMeasure(ops="torch.relu", schedule=schedule, on_trace_ready=ready, **QUIET) as tool:
        for number in range(10):
            for _ in range(number + 1):
                torch.relu(torch.ones(2))
            tool.step()
    assert [run.calls for run in runs] == [3 + 4, 7 + 8]
    assert [sorted({call["step"] for call in calls_of(run)}) for run in runs] == [["2", "3"], ["6", "7"]]
    assert runs[0].root != runs[1].root
    assert json.loads((tmp_path / "trace1.json").read_text())["op_tools"]["calls"] == 15


def test_a_cycle_that_the_end_cuts_short_is_handed_over():
    runs = []
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=5)
    with op_tools.OpTimeMeasure(
        ops="torch.relu", schedule=schedule, on_trace_ready=lambda tool: runs.append(tool.result().calls), **QUIET
    ) as tool:
        for _ in range(3):
            torch.relu(torch.ones(2))
            tool.step()
    assert runs == [2]


def test_stacks_are_written_as_the_profiler_writes_them(tmp_path):
    with op_tools.OpTimeMeasure(with_stack=True, ops="torch.matmul", files=False, **QUIET) as tool:
        torch.matmul(torch.ones(256, 256), torch.ones(256, 256))
    path = tmp_path / "stacks.txt"
    tool.result().export_stacks(str(path))
    (line,) = path.read_text().splitlines()
    frames, _, microseconds = line.rpartition(" ")
    assert int(microseconds) > 0
    assert " " not in frames
    assert frames.split(";")[-1] == "torch.matmul"
    assert "test_time_measure.py" in frames.split(";")[-2]
    with pytest.raises(op_tools.Error, match="with_stack"):
        op_tools.TimeResult().export_stacks(str(path))


@pytest.mark.parametrize(("compat", "word"), [(None, "elapsed"), ("ditorch", "elasped")])
def test_lines_are_those_of_the_interface(compat, word, monkeypatch, log_level, capfd):
    if compat:
        monkeypatch.setenv("OP_TOOLS_COMPAT", compat)
    log_level("info")
    x = torch.ones(2, 3, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.relu"):
        torch.relu(x).sum().backward()
    lines = capfd.readouterr().err.splitlines()
    line = next(line for line in lines if "forward" in line)
    assert re.match(
        rf"OpTimeMeasureHook: torch\.relu +forward {word}:  \d+\.\d{{8}} ms     input: \{{'args': \(\{{'shape': "
        r"torch\.Size\(\[2, 3\]\), 'stride': \(3, 1\), 'numel': 6, 'dtype': 'torch\.float32', 'device': 'cpu', "
        r"'requires_grad': True, .*\} output: \{'args': ",
        line,
    ), line
    assert any(re.match(rf"OpTimeMeasureHook: torch\.relu +backward {word}:  \d+\.\d{{8}} ms$", line) for line in lines)
    summary = next(line for line in lines if line.startswith("OpTimeMeasure (sync)"))
    assert re.search(r"1 calls?, 1 backward pass(es)?; files in .*op_time_measure_result/0/", summary)


def test_limits_and_environment(monkeypatch):
    monkeypatch.setenv("OP_TIME_MEASURE_LIST", "torch.relu")
    monkeypatch.setenv("OP_TIME_MEASURE_MAX_CALLS", "3")
    monkeypatch.setenv("OP_TIME_MEASURE_MODE", "host")
    with op_tools.OpTimeMeasure(**QUIET) as tool:
        for _ in range(10):
            torch.relu(torch.ones(2))
            torch.neg(torch.ones(2))
    result = tool.result()
    assert (result.calls, result.overflowed, result.mode) == (10, 7, "host")
    assert len(calls_of(result)) == 10
    monkeypatch.setenv("OP_TIME_MEASURE_MODE", "fast")
    with pytest.raises(op_tools.Error, match=r"OP_TIME_MEASURE_MODE.*fast"):
        op_tools.OpTimeMeasure().start()


def test_restarted_entered_again_and_as_a_decorator():
    tool = op_tools.OpTimeMeasure(ops="torch.relu", files=False, **QUIET)

    @tool
    def work():
        with tool:
            torch.relu(torch.ones(2))

    for _ in range(2):
        work()
        assert tool.result().calls == 1
    torch.relu(torch.ones(2))
    assert tool.result().calls == 1
    tool.stop()  # more often than started: nothing


def test_beside_capture_both_see_every_call():
    x = torch.randn(4, 4, requires_grad=True)
    with op_tools.OpTimeMeasure(ops="torch.relu", **QUIET) as time, op_tools.OpCapture(ops="torch.relu") as capture:
        torch.relu(x).sum().backward()
    assert counts(time.result()) == {("relu", "forward"): 1, ("relu", "backward"): 1}
    (row,) = capture.result().rows
    assert (row.calls, row.backward) == (1, 1)


PLANTED = """
import op_tools, op_tools.sim_device, torch

def measure(mode, microseconds):
    x = torch.randn(16, 16, device="sim", requires_grad=True)
    with op_tools.sim_device.latency({"mm": microseconds}):
        with op_tools.OpTimeMeasure(mode=mode, ops="torch.matmul", lines=False) as tool:
            for _ in range(3):
                torch.matmul(x, x).sum().backward()
                tool.step()
    return tool.result()

made = op_tools.OpTimeMeasure(ops="torch.ones, torch.Tensor.to", lines=False)
with made:
    torch.ones(2, device="sim")
    torch.ones(2).to("sim")
print({row.op: row.device for row in sorted(made.result().rows, key=lambda row: row.op)})
for mode in ("sync", "event", "host"):
    for row in measure(mode, 20000).rows:
        print(mode, row.phase, row.calls, row.device, row.min_ms)
"""


def test_a_device_that_works_later_is_waited_for_or_asked():
    # In a process of its own: the simulated device has to be there before the first backward.
    command = [sys.executable, "-c", PLANTED]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    devices, *lines = run.stdout.splitlines()
    assert devices == "{'torch.Tensor.to': 'sim:0', 'torch.ones': 'sim:0'}"
    for line in lines:
        mode, phase, calls, device, least = line.split()
        assert (calls, device) == ("3", "sim:0")
        mms = 1 if phase == "forward" else 2
        if mode == "host":
            assert float(least) < 20  # issuing does not wait for the 20 ms
        else:
            assert float(least) >= 20 * mms
    assert len(lines) == 6
