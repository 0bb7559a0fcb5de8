"""Captured calls of real training runs run again, by the program without Python and by the Python module."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import MODELS, TROUBLE_OF_LSTM_UNDER_AUTOCAST, digits, train

import op_tools
import op_tools.sim_device
from op_tools.__main__ import main

MODULE = ["-m", "op_tools.run_op_from_data"]
LEVELS = ["torch", "aten"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Captures of a step of each model, at both levels, with and without autocast: {(level, model): folder}."""
    digits()  # read once and outside: torch.tensor(numpy array) has arguments without a form in a file
    folders = {}
    for level in LEVELS:
        for number, model in enumerate(MODELS):
            folder = tmp_path_factory.mktemp(f"{level}-{model}")
            folders[level, model] = folder
            for autocast, optimizer in ((False, "adam"), (True, "sgd")):
                autocast = autocast and not (model == "lstm" and TROUBLE_OF_LSTM_UNDER_AUTOCAST)
                # Both layouts, every other time.
                layout = "container" if (number + autocast) % 2 else "folders"
                with op_tools.OpCapture(level=level, format=layout, output_dir=folder) as tool:
                    train(model, optimizer, autocast, steps=1)
                assert tool.result().failure == ""
    return folders


@pytest.fixture
def module(monkeypatch):
    """The arguments of Python for the module, which finds this package from any folder."""
    monkeypatch.setenv("PYTHONPATH", str(Path(op_tools.__file__).parents[1]))
    return MODULE


# Without a result that could be compared: their memory has any values.
UNINITIALISED = {
    "torch.empty",
    "torch.empty_like",
    "aten::empty.memory_format",
    "aten::empty_like",
    "aten::empty_strided",
}
# No operator of torch's: the Python module runs them.
PYTHON_ONLY = {"torch.nn.functional.multi_head_attention_forward"}


def assert_adds_up(report):
    """Every call has a single outcome, and the summary counts them all."""
    counts = Counter(call["status"] for call in report.calls)
    summary = report.summary
    assert len(report.calls) == summary["calls"] == summary["ran"] + summary["could_not_run"]
    assert summary["ran"] == summary["agrees"] + summary["differs"] + summary["not_judged"]
    assert counts["agrees"] == summary["agrees"] and counts["differs"] == summary["differs"]
    assert counts["could not run"] == summary["could_not_run"]
    assert all(call["reason"] for call in report.calls if call["status"] == "could not run")
    assert report.json["problems"] == []


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_program_without_python_replays_training_bit_for_bit(level, model, runs, replay):
    report = replay(runs[level, model], "--acc_check", "-q")
    assert_adds_up(report)
    assert report.summary["differs"] == 0, [c for c in report.calls if c["status"] == "differs"][:3]
    assert report.summary["bit_equal"] == report.summary["agrees"] > 50
    could_not = {call["name"] for call in report.calls if call["status"] == "could not run"}
    assert could_not <= (PYTHON_ONLY if level == "torch" else set())
    assert {call["name"] for call in report.calls if call["status"] == "not judged"} <= UNINITIALISED
    assert report.status == (2 if could_not else 0)
    if level == "torch":  # backward was replayed as well
        assert sum(any("grad" in c["what"] for c in call.get("checks", ())) for call in report.calls) > 5


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("level", LEVELS)
def test_python_module_replays_all_of_training_bit_for_bit(level, model, runs, replay, module):
    report = replay(runs[level, model], "--acc_check", "-q", python=module)
    assert_adds_up(report)
    summary = report.summary
    assert summary["differs"] == 0
    assert summary["ran"] >= 0.99 * summary["calls"]
    assert summary["bit_equal"] == summary["agrees"] >= 0.99 * (summary["ran"] - summary["not_judged"])
    assert {call["name"] for call in report.calls if call["status"] == "not judged"} <= UNINITIALISED
    assert report.status == (2 if summary["could_not_run"] else 0)


def test_count_of_replayed_calls_is_the_count_of_captured_calls(tmp_path, replay):
    with op_tools.OpCapture(level="aten") as tool:
        train("lenet", steps=1)
    report = replay(tool.result().root, "-q")
    assert report.summary["calls"] == sum(row.calls for row in tool.result().rows)
    names = Counter(call["name"] for call in report.calls)
    assert names == {row.op: row.calls for row in tool.result().rows}


def test_several_jobs_give_the_same_report(runs, replay):
    serial = replay(runs["torch", "transformer"], "--acc_check", "-q", "--jobs", 1)
    two = replay(runs["torch", "transformer"], "--acc_check", "-q", "--jobs", 2)

    def outcome(report):
        return [(call["path"], call["status"], call.get("bit_equal")) for call in report.calls]

    assert outcome(serial) == outcome(two)
    assert serial.status == two.status


def test_random_calls_repeat_what_they_drew(replay):
    torch.manual_seed(11)
    x = torch.ones(50, requires_grad=True)
    with op_tools.OpCapture() as tool:
        F.dropout(x, 0.5).sum().backward()
        torch.rand(3)
        torch.randperm(10)
        torch.randn(4, generator=torch.Generator().manual_seed(3))
        x.detach().clone().normal_()
        torch.bernoulli(torch.full((9,), 0.5))
    report = replay(tool.result().root, "--acc_check", "--run_times", 2)
    assert report.status == 0, report.out
    assert report.summary["bit_equal"] == report.summary["calls"]


def test_lines_summary_and_filter(replay):
    x = torch.ones(3, requires_grad=True)
    with op_tools.OpCapture() as tool:
        (x.exp() / 2).sum().backward()
    report = replay(tool.result().root, "--acc_check", "--sync_time_measure", "--filter", "torch.Tensor.(exp|div)")
    assert report.status == 0
    lines = report.err.splitlines() + report.out.splitlines()
    for op in ("torch.Tensor.exp", "torch.Tensor.div"):
        assert any(
            line.startswith(f"SyncExecuteTimer: {op} forward  elapsed ") and line.endswith(" ms") for line in lines
        )
        assert any(line.startswith(f"SyncExecuteTimer: {op} backward elapsed ") for line in lines)
        assert any(f"OpAutoCompareHook: {op} 0th input grad" in line and "allclose: True" in line for line in lines)
    assert not any("torch.Tensor.sum" in line for line in lines)
    assert "2 ran, 2 agree (2 bit for bit), 0 differ" in report.out
    assert report.summary["left_out"] >= 1


def test_run_times_and_only_run_forward(replay):
    x = torch.ones(3, requires_grad=True)
    with op_tools.OpCapture(ops="torch.exp") as tool:
        torch.exp(x).sum().backward()
    both = replay(tool.result().root, "--run_times", 3, "--sync_time_measure").calls[0]
    assert len(both["forward_ms"]) == len(both["backward_ms"]) == 3
    forward = replay(tool.result().root, "--run_times", 2, "--sync_time_measure", "--only_run_forward").calls[0]
    assert len(forward["forward_ms"]) == 2 and not forward.get("backward_ms")


def test_finished_containers_and_folders_give_the_same_verdicts(replay):
    def program():
        torch.manual_seed(0)
        x = torch.randn(4, 4, requires_grad=True)
        F.layer_norm(F.linear(x, x), (4,)).sum().backward()

    verdicts = []
    for layout in ("folders", "container"):
        with op_tools.OpCapture(format=layout) as tool:
            program()
        report = replay(tool.result().root, "--acc_check")
        verdicts.append([(call["name"], call["status"]) for call in sorted(report.calls, key=lambda c: c["path"])])
    assert verdicts[0] == verdicts[1] and len(verdicts[0]) >= 4


# --- Exit statuses ----------------------------------------------------------------------------------------------


@pytest.fixture
def one_call(captured):
    with op_tools.OpCapture(ops="torch.exp,torch.sin") as tool:
        torch.exp(torch.ones(64))
        torch.sin(torch.ones(64))
    return captured(tool)


BOTH = pytest.mark.parametrize("python", [None, MODULE], ids=["program", "module"])


@BOTH
def test_status_is_0_when_all_agreed(python, one_call, replay, module):
    assert replay(one_call[0].folder, "--acc_check", python=python).status == 0


@BOTH
def test_status_is_1_when_a_result_is_another_and_names_the_worst_element(python, one_call, replay, module):
    path = one_call[0].folder / "output.pth"
    saved = torch.load(path, weights_only=True)
    saved["args"][0][5] += 1
    torch.save(saved, path)
    report = replay(one_call[0].folder.parents[1], "--acc_check", python=python)
    assert report.status == 1
    assert report.summary["differs"] == 1 and report.summary["agrees"] == 1
    assert str(one_call[0].folder) in report.out and "at [5]" in report.out


@BOTH
def test_an_input_that_was_written_with_the_same_bits_is_judged_within_its_limits(python, captured, replay, module):
    with op_tools.OpCapture(level="aten", ops="add_") as tool:
        torch.full((5,), 0.2053220272064209).add_(1e-10)  # less than half a unit: it rounds to the same number
    (call,) = captured(tool)
    path = call.folder / "output.pth"
    saved = torch.load(path, weights_only=True)
    assert list(saved["mutated"]) == [0]
    for tensor in (saved["args"][0], saved["mutated"][0]):
        tensor[4] = 0.2053220123052597  # a device that rounds otherwise
    torch.save(saved, path)
    assert replay(call.folder, "--acc_check", python=python).status == 0


@BOTH
@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "no zip", "missing"])
def test_status_is_2_with_the_path_when_a_file_cannot_be_read(python, damage, one_call, replay, module):
    path = one_call[0].folder / "input.pth"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 0xFF
        path.write_bytes({"truncated": data[:-100], "flipped": flipped, "empty": b"", "no zip": b"x" * 300}[damage])
    report = replay(one_call[0].folder.parents[1], "--acc_check", python=python)
    assert report.status == 2, report.out
    assert str(one_call[0].folder) in report.out
    assert report.summary["agrees"] == 1  # the other one


def test_status_is_2_when_there_is_nothing_to_run(tmp_path, replay):
    (tmp_path / "nothing").mkdir()
    for where in (tmp_path / "nothing", tmp_path / "not there"):
        report = replay(where)
        assert report.status == 2
        assert str(where) in report.out + report.err


@BOTH
@pytest.mark.parametrize(
    "arguments",
    [[], ["--no-such-flag", "."], [".", "--run_times", "0"], [".", "--device", "nonsense"], [".", "--filter", "("]],
)
def test_status_is_64_for_wrong_usage(python, arguments, replay, module):
    report = replay(*arguments, python=python)
    assert report.status == 64
    assert report.err.strip()


def test_file_with_code_in_it_is_refused_and_not_run(one_call, replay, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "was run"), "w"))

    torch.save({"name": "torch.exp", "args": (Evil(),), "kwargs": {}}, one_call[0].folder / "input.pth")
    for python in (None, MODULE):
        report = replay(one_call[0].folder, python=python)
        assert report.status == 2 and str(one_call[0].folder) in report.out
    assert not (tmp_path / "was run").exists()


def test_call_that_raised_when_it_was_captured_is_reported_and_no_crash(replay):
    with op_tools.OpCapture(ops="torch.mm") as tool, pytest.raises(RuntimeError):
        torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    report = replay(tool.result().root, "--acc_check")
    assert report.status in (0, 2)
    assert report.summary["calls"] == 1 and report.summary["differs"] == 0
    assert_adds_up(report)


def test_folders_may_be_moved_and_copied(one_call, replay, tmp_path):
    moved = tmp_path / "elsewhere" / "case"
    shutil.copytree(one_call[0].folder, moved)
    (moved / "meta.json").write_text(json.dumps(json.loads((moved / "meta.json").read_text())))
    report = replay(moved, "--acc_check")
    assert report.status == 0 and report.calls[0]["path"] == str(moved)


def test_what_no_file_may_call_is_said_to_be_so_in_python_too(replay):
    with op_tools.OpCapture(ops="torch.device") as capture:
        torch.device("cpu")
    again = replay(capture.result().root, python=MODULE)
    assert again.status == 2
    assert "torch.device exists in Python only, and is none of the operator functions that files may name" in again.out
    assert "use python -m" not in again.out
    assert "exists in Python only; use python -m op_tools.run_op_from_data" in replay(capture.result().root).out


def test_numbers_are_what_python_makes_of_them(replay):
    with op_tools.OpCapture() as tool:
        for tensor in (torch.tensor(3), torch.tensor(2.5), torch.tensor(True)):
            float(tensor), int(tensor), bool(tensor)
        [10, 20, 30, 40][torch.tensor(2)]
    done = replay(tool.result().root, "--acc_check")
    assert done.json["summary"]["agrees"] == 14, done.out


def test_a_call_that_its_python_function_refused_is_not_judged_by_the_operator(replay):
    with (
        op_tools.OpCapture(ops="torch.nn.functional.batch_norm") as tool,
        pytest.raises(ValueError, match="more than 1 value per channel"),
    ):
        torch.nn.functional.batch_norm(torch.ones(1, 3), torch.zeros(3), torch.ones(3), training=True)
    done = replay(tool.result().root, "--acc_check")
    (call,) = done.json["calls"]
    assert done.status == 2 and call["status"] == "not judged"  # nothing was judged
    assert (
        "the Python function raised: ValueError: Expected more than 1 value per channel" in call["checks"][0]["reason"]
    )


def written_leaf():
    torch.ones(3, requires_grad=True).mul_(2)


def random_in_vmap():
    torch.vmap(lambda x: x * torch.rand(2))(torch.ones(3, 2))


@pytest.mark.parametrize("program", [written_leaf, random_in_vmap])
def test_a_call_that_autograd_or_vmap_refused_is_not_judged_by_the_operator(program, replay, tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path) as tool, pytest.raises(RuntimeError):
        program()
    done = replay(tool.result().root, "--acc_check")
    assert done.status == 0, done.out
    assert any("refused it" in check["reason"] for call in done.json["calls"] for check in call["checks"])


def test_tensors_made_of_numbers_need_no_python(replay, tmp_path):
    x = torch.randn(2, 3)
    programs = [
        lambda: torch.tensor(3),
        lambda: torch.tensor(True),
        lambda: torch.tensor(2.5),
        lambda: torch.tensor(1 - 2j),
        lambda: torch.tensor([]),
        lambda: torch.tensor([[], []]),
        lambda: torch.tensor([[1, 2], (3, 4)]),
        lambda: torch.tensor([True, False]),
        lambda: torch.tensor([True, 2, 0.1]),
        lambda: torch.tensor([1, 2j]),
        lambda: torch.tensor([1.7, -1.7], dtype=torch.int32),
        lambda: torch.tensor([1, 0], dtype=torch.bool),
        lambda: torch.tensor([2**62 + 1]),
        lambda: torch.tensor([0.1, float("nan"), float("-inf")], dtype=torch.float16),
        lambda: torch.tensor([0.1], dtype=torch.complex64),
        lambda: torch.tensor(data=[1.0], device="cpu", requires_grad=True),
        lambda: torch.tensor(x.shape),
        lambda: torch.tensor([x.shape, x.shape], dtype=torch.float64, pin_memory=False),
    ]
    with op_tools.OpCapture(ops="torch.tensor", output_dir=tmp_path) as capture:
        results = [make() for make in programs]
    report = replay(capture.result().root, "--acc_check")
    assert report.summary["ran"] == report.summary["bit_equal"] == len(results), report.out


def test_tensors_made_of_tensors_in_lists_are_for_python(replay, tmp_path):
    with op_tools.OpCapture(ops="torch.tensor", output_dir=tmp_path) as capture:
        torch.tensor([torch.tensor(1.0), torch.tensor(2.0)])
    assert "something else than numbers" in replay(capture.result().root).out


def test_numbers_of_numpy_are_numbers(replay, tmp_path):
    numpy = pytest.importorskip("numpy")
    x = torch.linspace(-1, 1, 5)
    with op_tools.OpCapture(output_dir=tmp_path) as capture:
        torch.clamp(x, min=numpy.float32(0.1))
        torch.full((2,), numpy.float16(0.1))
        torch.sum(x, dim=numpy.int64(0), keepdim=True)
        x * numpy.float64(3)
    metas = [json.loads(path.read_text()) for path in tmp_path.rglob("meta.json")]
    assert len(metas) == 4 and not [meta["unsupported"] for meta in metas if meta.get("unsupported")]
    report = replay(capture.result().root, "--acc_check")
    assert report.summary["ran"] == report.summary["bit_equal"] == 4, report.out


def test_the_program_takes_names_as_users_write_them_and_says_which_are_near(tmp_path, build_dir):
    with op_tools.OpCapture(output_dir=tmp_path) as tool:
        torch.unique(torch.tensor([3, 1, 3]))
        torch.norm(torch.ones(3))
    program = [build_dir / "run_op_from_data", tool.result().root, "--acc_check"]
    matched = subprocess.run([*program, "--filter", "torch.unique"], capture_output=True, text=True, check=False)
    assert matched.returncode == 0, matched.stdout + matched.stderr
    assert "1 call in" in matched.stdout and "left out by --filter" in matched.stdout
    missed = subprocess.run([*program, "--filter", "torch.uniqe"], capture_output=True, text=True, check=False)
    assert missed.returncode == 2
    assert "did you mean torch.functional.unique" in missed.stdout + missed.stderr


def test_a_call_that_asks_torch_for_the_module_of_the_device_replays_in_a_python_without_it(build_dir, tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path):
        torch.tensor([1.0, 2.0], device="sim")  # torch imports torch.sim for it
    command = [sys.executable, "-m", "op_tools.run_op_from_data", str(tmp_path), "--acc_check", "--device", "sim"]
    command += ["--load", str(build_dir / "libop_tools_sim_device.so")]
    environment = {**os.environ, "PYTHONPATH": str(Path(op_tools.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "1 ran, 1 agree (1 bit for bit)" in done.stdout, done.stdout + done.stderr
    assert "RuntimeWarning" not in done.stderr


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, ::2]], ids=["dense", "with gaps"])
def test_inputs_that_a_kernel_changed_against_its_schema_are_saved_as_it_left_them(replay, view, level, tmp_path):
    """The result is right, and no version counter moves."""
    x = view(torch.ones(3, 8, device="sim"))
    y = torch.ones(x.shape[1], 5, device="sim")
    with (
        op_tools.OpCapture(ops=r"torch.mm|aten::mm", level=level, output_dir=tmp_path) as capture,
        op_tools.sim_device.fault("mutate_input", ops="aten::mm"),
    ):
        torch.mm(x, y)
    replayed = replay(capture.result().root, "--acc_check")
    (call,) = replayed.calls
    assert replayed.status == 1
    assert [check["what"] for check in call["checks"] if check["verdict"] == "differs"] == ["input 0 after the call"]


def test_inputs_of_a_device_that_a_right_kernel_reads_are_saved_once(replay, captured, tmp_path):
    base = torch.ones(4, 4, device="sim")
    with op_tools.OpCapture(level="aten", output_dir=tmp_path) as capture:
        torch.mm(base, base.t())
        base[0].expand(1000, 4).sum()
        base.add_(1)
    written = {call.name: list(call.file("output.pth").get("mutated", {})) for call in captured(capture)}
    assert {name: found for name, found in written.items() if found} == {"aten::add_.Tensor": [0]}
    assert replay(capture.result().root, "--acc_check").status == 0


def without_gradient_of_weight(gradient, x, weight, sizes, *rest):
    cpu = [value.cpu() if isinstance(value, torch.Tensor) else value for value in (gradient, x, weight)]
    gradients = torch.ops.aten.convolution_backward.default(*cpu, sizes, *rest)
    return gradients[0].to("sim"), None, gradients[2].to("sim") if gradients[2] is not None else None


def convolved():
    x = torch.randn(1, 2, 4, 4).to("sim").requires_grad_()
    weight = torch.randn(2, 2, 3, 3).to("sim").requires_grad_()
    return x, F.conv2d(x, weight)


def test_a_gradient_that_was_missing_in_the_captured_run_is_named(replay, tmp_path):
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("convolution_backward", without_gradient_of_weight, "PrivateUse1")
        with op_tools.OpCapture(ops="torch.nn.functional.conv2d", output_dir=tmp_path) as capture:
            convolved()[1].sum().backward()
    replayed = replay(capture.result().root, "--acc_check")
    (call,) = replayed.calls
    assert replayed.status == 1
    differing = [check for check in call["checks"] if check["verdict"] == "differs"]
    assert [(check["kind"], check["index"]) for check in differing] == [("presence", 1)]


def test_a_gradient_that_the_program_did_not_ask_for_is_not_missing(replay, tmp_path):
    with op_tools.OpCapture(ops="torch.nn.functional.conv2d", output_dir=tmp_path) as capture:
        x, y = convolved()
        torch.autograd.grad(y.sum(), [x])
    assert replay(capture.result().root, "--acc_check").status == 0


def test_strides_that_the_captured_run_got_wrong_are_named(replay, tmp_path):
    x = torch.randn(4, 6, device="sim")
    with (
        op_tools.OpCapture(ops=r"torch\.(exp|t|Tensor\.cpu)", output_dir=tmp_path) as capture,
        op_tools.sim_device.fault("strides", ops="aten::exp"),
    ):
        torch.exp(x)
        torch.t(x)[::2].cpu()
    replayed = replay(capture.result().root, "--acc_check")
    assert replayed.status == 1
    differing = [
        (call["name"], check["kind"])
        for call in replayed.calls
        for check in call["checks"]
        if check["verdict"] == "differs"
    ]
    assert differing == [("torch.exp", "strides")]


def factories():
    """None has a tensor or names a device."""
    torch.ones(4)
    torch.full((2,), 3.0)
    torch.linspace(0, 1, 4)
    torch.arange(3.0)
    torch.eye(3)
    torch.tensor([1.0, 2.0])
    torch.zeros(2, device=None)
    torch.ops.aten.ones.default([5])


@BOTH
def test_a_factory_that_names_no_device_runs_on_that_of_the_replay(python, replay, module, tmp_path, monkeypatch):
    with op_tools.OpCapture(output_dir=tmp_path / "capture") as capture:
        factories()
    root = capture.result().root
    for ops in (None, "fill_|linspace.*"):
        monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", f"scale:ops={ops},scale=1.5" if ops else "")
        replayed = replay(root, "--acc_check", "--device", "sim", python=python)
        differing = {call["name"] for call in replayed.calls if call["status"] == "differs"}
        wrong = {"torch.ones", "torch.full", "torch.linspace", "torch.ops.aten.ones.default"} if ops else set()
        assert (differing, replayed.status) == (wrong, 1 if ops else 0)
    assert replay(root, "--acc_check", python=python).status == 0


def test_a_failure_on_the_default_device_is_seen_again_there(replay, tmp_path, monkeypatch):
    torch.set_default_device("sim")
    try:
        with (
            op_tools.sim_device.fault("scale", ops="aten::fill_.Scalar", scale=1.5),
            op_tools.OpAutoCompare(output_dir=tmp_path / "compare") as tool,
        ):
            torch.ones(4)
    finally:
        torch.set_default_device(None)
    (row,) = tool.result().failures
    assert op_tools.load_call(row.saved + "/device").kwargs == {}
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "scale:ops=fill_,scale=1.5")
    again = replay(row.saved + "/device", "--acc_check", "--device", "sim")
    assert again.status == 1
    assert "this run is right" not in again.out
    monkeypatch.delenv("OP_TOOLS_SIM_FAULTS")
    assert "this run is right" in replay(row.saved + "/device", "--acc_check", "--device", "sim").out


@BOTH
def test_a_call_that_did_not_run_on_the_device_is_not_judged(python, replay, module, tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path / "capture", ops="torch.normal") as capture:
        torch.normal(0.0, 1.0, (3,))
    replayed = replay(capture.result().root, "--acc_check", "--device", "sim", python=python)
    assert replayed.status == 2
    assert [check["reason"] for call in replayed.calls for check in call["checks"]] == ["the call did not run on sim"]


def test_a_report_that_cannot_be_written_is_no_all_clear(one_call, build_dir):
    command = [build_dir / "run_op_from_data", one_call[0].folder]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, "standard output cannot be written" in done.stderr) == (2, True), done.stderr


@BOTH
def test_a_device_that_is_not_there_is_wrong_usage(python, one_call, replay, module):
    report = replay(one_call[0].folder, "--device", "sim:7", python=python)
    assert report.status == 64
    assert "--device sim:7: there is no such device" in report.err


@BOTH
@pytest.mark.parametrize("option", ["--json", "--expected"])
@pytest.mark.parametrize("file", ["/dev/full", "/nonexistent/file"])
def test_a_file_that_cannot_be_written_is_status_2(python, option, file, one_call, build_dir, module):
    start = [sys.executable, *python] if python else [build_dir / "run_op_from_data"]
    command = [*map(str, start), str(one_call[0].folder), "--acc_check", option, file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert f"{option} {file}: cannot be written" in done.stderr


def test_gradients_that_agree_do_not_stand_for_an_output_that_was_not_saved(replay, tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path / "capture", ops="torch.exp") as capture:
        torch.exp(torch.randn(3, requires_grad=True)).sum().backward()
    root = Path(capture.result().root)
    for output in root.rglob("output.pth"):
        output.unlink()
    replayed = replay(root, "--acc_check")
    assert replayed.status == 2
    (call,) = replayed.calls
    assert call["status"] == "not judged"
    assert {check["reason"] for check in call["checks"]} == {"no output was saved"}


LAYOUTS = {
    "folders": {"format": "folders"},
    "container": {"format": "container"},
    "shared": {"format": "folders", "dedupe": True},
    "shared container": {"format": "container", "dedupe": True},
}


@pytest.fixture(params=LAYOUTS)
def whole(request, tmp_path):
    """The folder of a captured run: 3 calls of linear, 2 of gelu, 1 of softmax."""
    x = torch.ones(2, 4)
    with op_tools.OpCapture(
        ops="torch.nn.functional.*", output_dir=tmp_path / "calls", **LAYOUTS[request.param]
    ) as tool:
        for _ in range(2):
            x = F.gelu(F.linear(x, torch.ones(4, 4)))
        F.softmax(F.linear(x, torch.ones(4, 4)), -1)
    return Path(tool.result().root)


def remove(run, op, number=None):
    """Removes calls of an operator from a captured run: all, or the first `number`."""
    container = run / "calls.zip"
    if container.exists():
        with zipfile.ZipFile(container) as file:
            entries = {name: file.read(name) for name in file.namelist()}
    else:
        entries = {path.relative_to(run).as_posix(): b"" for path in run.glob("*/*/*")}
    calls = sorted({name.rsplit("/", 1)[0] for name in entries if name.startswith(op + "/")})[:number]
    assert calls
    if not container.exists():
        for call in calls:
            shutil.rmtree(run / call)
        return
    with zipfile.ZipFile(container, "w") as file:
        for name, content in entries.items():
            if name.rsplit("/", 1)[0] not in calls:
                file.writestr(name, content)


LINEAR, GELU, SOFTMAX = (f"torch.nn.functional.{name}" for name in ("linear", "gelu", "softmax"))


def test_the_account_has_the_number_of_saved_calls_and_a_whole_capture_agrees(whole, replay):
    account = json.loads((whole / "coverage.json").read_text())
    assert account["rows"] == {LINEAR: 3, GELU: 2, SOFTMAX: 1}
    done = replay(whole.parents[2], "--acc_check")
    assert done.status == 0 and done.summary["agrees"] == 6, done.out


@BOTH
def test_calls_that_are_missing_are_not_judged(python, whole, replay, module):
    remove(whole, LINEAR)
    remove(whole, GELU, 1)
    calls = "calls.zip!OP/ID" if (whole / "calls.zip").exists() else "OP/ID"
    said = (
        f"{whole}: 4 of 6 saved calls are missing (1 of {GELU}, 3 of {LINEAR}): not judged; if they were removed on purpose, "
        f"give the others by name: {whole}/{calls}"
    )
    done = replay(whole.parents[2], "--acc_check", python=python)
    assert done.status == 2 and said in done.out, done.out
    assert done.summary["agrees"] == 2 and done.json["problems"] == [said]
    assert replay(whole, "--acc_check", "--allow-unseen", python=python).status == 0
    if python is None and (whole / "calls.zip").exists():
        assert said in replay(whole / "calls.zip", "--acc_check").out


def of_rank(whole, rank, **account):
    """The captured run as that of another rank of its launch."""
    run = shutil.copytree(whole, whole.parents[1] / str(rank) / whole.name)
    told = json.loads((run / "coverage.json").read_text())
    (run / "coverage.json").write_text(json.dumps({**told, **account}))
    return run


@BOTH
@pytest.mark.parametrize(
    ("others", "account", "said"),
    [
        ((), {"ranks": 2}, "rank 1: no results here, of 2 ranks"),
        ((1,), {"ranks": 2}, None),
        ((1, 2), {"ranks": 9}, "ranks 3 to 8: no results here, of 9 ranks"),
        ((3, 6), {}, "ranks 1, 2, 4, 5: no results here, of 7 ranks"),  # below the largest
    ],
)
def test_ranks_whose_calls_are_not_there_are_named(others, account, said, python, whole, replay, module, capsys):
    for rank in others:
        of_rank(whole, rank, **account)
    told = json.loads((whole / "coverage.json").read_text())
    (whole / "coverage.json").write_text(json.dumps({**told, **account}))
    done = replay(whole.parents[2], "--acc_check", python=python)
    assert done.status == (2 if said else 0) and ("no results here" in done.out) == bool(said), done.out
    assert said is None or (len(done.json["problems"]) == 1 and f"{whole.parents[1]}: {said}" in done.out)
    assert replay(whole.parents[2], "--acc_check", "--allow-unseen", python=python).status == 0
    assert (
        replay(whole.parent, "--acc_check", python=python).status == 0
    )  # who names the folder of a rank asks for no other
    for command in (["report", "--text"], ["show"]):
        assert main([*command, str(whole.parents[2])]) == 0
        told = capsys.readouterr().out
        assert said in told if said else "no results" not in told


def test_a_rank_whose_program_was_killed_is_no_missing_rank(whole, replay):
    run = of_rank(whole, 1)
    told = json.loads((whole / "coverage.json").read_text())
    (whole / "coverage.json").write_text(json.dumps({**told, "ranks": 2}))
    (run / "coverage.json").unlink()
    assert "no results here" not in replay(whole.parents[2], "--acc_check").out


def test_a_selection_of_calls_misses_none(whole, replay):
    remove(whole, LINEAR)
    calls = whole / "calls.zip" if (whole / "calls.zip").exists() else whole
    between = "!" if calls != whole else "/"
    others = [call["path"] for call in replay(whole, "--acc_check").calls]
    assert len(others) == 3 and all(other.startswith(f"{calls}{between}") for other in others)
    assert replay(*others, "--acc_check").status == 0  # by name
    assert replay(whole, "--acc_check", "--filter", GELU).status == 0
    assert replay(whole, "--acc_check", "--filter", f"{GELU},{LINEAR}").status == 2
    if calls == whole:
        assert replay(whole / GELU, whole / SOFTMAX, "--acc_check").status == 0


def test_an_older_account_or_none_asks_for_no_calls(whole, replay):
    file = whole / "coverage.json"
    account = json.loads(file.read_text())
    file.write_text(json.dumps({**account, "rows": {LINEAR: 1}}))  # its program was killed later
    assert replay(whole, "--acc_check").status == 0
    remove(whole, SOFTMAX)
    file.write_text(json.dumps({**account, "rows": {}}))  # as older versions
    assert replay(whole, "--acc_check").status == 0
    file.write_text('{"meta": {"version": "7.6"}, "files": {}}')  # of the package coverage
    assert replay(whole, "--acc_check").status == 0
    file.unlink()
    assert replay(whole, "--acc_check").status == 0


@pytest.mark.parametrize("changed", [{"rows": [1]}, {"rows": {LINEAR: "3"}}, {"seen": "x"}, None])
def test_a_damaged_account_is_said(changed, one_call, replay):
    run = one_call[0].folder.parents[1]
    file = run / "coverage.json"
    text = file.read_text()
    file.write_text(json.dumps({**json.loads(text), **changed}) if changed else text[:-20])
    done = replay(run, "--acc_check")
    assert done.status == 2 and f"{file}: is damaged: " in done.out
    assert replay(one_call[0].folder, "--acc_check").status == 0


@BOTH
@pytest.mark.parametrize("has_account", [True, False], ids=["account", "killed"])
def test_a_call_whose_folder_is_empty_is_cut_off(python, has_account, one_call, replay, module):
    folder = one_call[0].folder
    for file in folder.iterdir():
        file.unlink()
    if not has_account:
        (folder.parents[1] / "coverage.json").unlink()
    for place in (folder.parents[1], folder.parent):
        done = replay(place, "--acc_check", python=python)
        assert done.status == 2 and f"{folder}: cut off: it is empty" in done.out, done.out
        assert "missing" not in done.out


@BOTH
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"off": True, "gaps": ["tool_off"]}, "the tool failed and was off: calls after that were not saved"),
        ({"lost": {"not_written": 3}}, "3 calls or gradients could not be written to the disk"),
    ],
    ids=["off", "not written"],
)
def test_a_tool_that_went_off_left_out_calls(changed, said, python, one_call, replay, module):
    file = one_call[0].folder.parents[1] / "coverage.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    done = replay(file.parent, "--acc_check", python=python)
    assert done.status == 2 and f"{file.parent}: {said}" in done.out
    assert replay(one_call[0].folder, "--acc_check").status == 0


def test_calls_that_limits_left_out_are_not_missing(replay, tmp_path):
    with op_tools.OpCapture(ops="torch.exp", max_calls=2, output_dir=tmp_path) as tool:
        for _ in range(6):
            torch.exp(torch.ones(3))
    done = replay(tool.result().root, "--acc_check")
    assert done.status == 0 and done.summary["agrees"] == 2
