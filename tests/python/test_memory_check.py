"""OpMemoryCheck: lines that leak, peaks, writes out of bounds, files; tests/proofs/leaks.py does it at length."""

import csv
import gc
import importlib
import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import op_tools
import op_tools.sim_device as sim
from op_tools._work import doctor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "proofs"))
import leaks  # noqa: E402


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("OP_TOOLS_LOG_LEVEL", "off")
    monkeypatch.setenv("OP_TOOLS_OUTPUT_DIR", str(tmp_path))
    op_tools._C.reload_log_level()
    gc.collect()
    yield
    monkeypatch.undo()
    op_tools._C.reload_log_level()


@pytest.mark.parametrize("frees", [False, True])
@pytest.mark.parametrize("kind", leaks.LEAKS)
def test_the_line_that_leaks_is_named_and_no_other(kind, frees):
    named, held, text = leaks.trial(kind, "sim", random.Random(3), frees, ["policy"])
    assert named, text
    assert held == (kind != "fault"), text


@pytest.mark.parametrize(("name", "device"), [("table", "cpu"), ("policy", "sim")])
def test_a_clean_training_names_nothing_and_its_peak_is_the_allocators(name, device):
    nothing, difference, text = leaks.clean(name, device, random.Random(4))
    assert nothing, text
    assert difference < leaks.MOST_OF_PEAK, text


def test_the_operator_that_writes_out_of_bounds_is_named():
    operators = leaks.operators_of("policy")
    outcomes = [leaks.out_of_bounds("policy", operators, random.Random(seed)) for seed in range(8)]
    hit = [one for one in outcomes if one is not None]
    assert len(hit) >= 3
    assert all(named for named, _ in hit), hit


def test_a_write_behind_a_result_that_is_smaller_than_its_memory_was_is_named():
    x = torch.randn(4, 4, device="sim")
    with sim.fault("out_of_bounds", ops="mse_loss") as fault, op_tools.OpMemoryCheck(guard=True, files=False) as check:
        torch.nn.functional.mse_loss(x, x * 2)
    assert fault.hits == 1
    (overwrite,) = check.result().overwrites
    assert (overwrite.op, overwrite.bytes, overwrite.block_bytes) == ("aten::mse_loss", 4, 4)


@pytest.mark.parametrize("steps", [15, 16, 17, 30, 32])
def test_cycles_that_wait_for_pythons_collector_are_no_leak(steps):
    def train():
        kept = []
        for _ in range(steps):
            cycle = [torch.ones(8) * 2]
            cycle.append(cycle)
            kept.append(torch.ones(4) * 3)
            check.step()

    gc.disable()
    try:
        with op_tools.OpMemoryCheck(files=False) as check:
            train()
    finally:
        gc.enable()
    (leak,) = check.result().leaks
    assert (leak.growth, leak.alive, leak.held_by.partition(", ")[2]) == (16, 0, "kept in train()")


def held_and_dropped(check):
    model = torch.nn.Sequential(torch.nn.Linear(8, 4))
    held = []
    for _ in range(10):
        held.append(model(torch.ones(2, 8)).detach() * 2)
        check.step()
    return held


def test_rows_say_operator_module_line_and_what_freed():
    with op_tools.OpMemoryCheck(files=False) as check:
        held = held_and_dropped(check)
    (leak,) = check.result().leaks
    assert (leak.op, leak.alive, leak.alive_bytes, leak.growth) == ("aten::mul.Tensor", 10, 320, 32.0)
    assert "test_memory_check.py" in leak.line
    assert leak.held_by == "list of 10, held in test_rows_say_operator_module_line_and_what_freed()"
    row = next(row for row in check.result().rows if row.op == "aten::addmm")
    assert (row.module, row.alive, row.allocations, row.device) == ("Sequential.0", 0, 10, "cpu")
    assert row.freed_by == "between operators"
    by_line = check.result().alive_by()
    assert sum(by_line.values()) == check.result().devices[0].alive_bytes and by_line[leak.line] == 320
    assert check.result().alive_by("op")["aten::mul.Tensor"] == 320
    assert len(held) == 10


class Failing(torch.Tensor):
    """A class whose code must not run when somebody looks for the owners of memory."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise LookupError("code of the program ran")


def test_a_tensor_class_that_fails_hides_no_owner():
    failing = torch.ones(3).as_subclass(Failing)
    with op_tools.OpMemoryCheck(files=False) as check:
        held = held_and_dropped(check)
    (leak,) = check.result().leaks
    assert leak.held_by == "list of 10, held in test_a_tensor_class_that_fails_hides_no_owner()"
    assert len(held) == 10
    assert type(failing) is Failing


def test_the_peak_is_divided_by_kind():
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    with op_tools.OpMemoryCheck(files=False) as check:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 100)).sum().backward()
            optimizer.step()
            check.step()
    result = check.result()
    by_kind = result.peak_by()
    parameters = 4 * 100 * 101
    assert by_kind["parameter"] == by_kind["gradient"] == parameters
    assert by_kind["optimizer"] >= 2 * parameters
    assert sum(by_kind.values()) == result.devices[0].peak_bytes
    with pytest.raises(op_tools.Error, match="field=: 'bytes' is not allowed"):
        result.peak_by("bytes")


def test_files_and_the_snapshot_that_torch_reads(tmp_path):
    with op_tools.OpMemoryCheck() as check:
        held = held_and_dropped(check)
    root = Path(check.result().root)
    assert root.is_relative_to(tmp_path)
    rows = [json.loads(line) for line in (root / "memory.jsonl").read_text().splitlines()]
    assert [row["op"] for row in csv.DictReader((root / "memory.csv").read_text().splitlines())] == [
        row["op"] for row in rows
    ]
    (leak,) = map(json.loads, (root / "leaks.jsonl").read_text().splitlines())
    assert leak["op"] == "aten::mul.Tensor"
    viz = importlib.import_module("torch.cuda._memory_viz")
    snapshot = pickle.loads((root / "snapshot.pickle").read_bytes())
    alive = sum(row["alive_bytes"] for row in rows)
    assert sum(block["size"] for one in snapshot["segments"] for block in one["blocks"]) == alive
    assert "10 entries" in viz.trace(snapshot)
    assert viz.segsum(snapshot)
    assert "html" in viz.trace_plot(snapshot)
    assert len(held) == 10


def test_backtraces_are_of_both_languages():
    with op_tools.OpMemoryCheck(files=False, backtrace=True) as check:
        held = torch.ones(3) * 2
    row = next(row for row in check.result().rows if row.op == "aten::mul.Tensor")
    assert "test_memory_check.py" in row.stack
    assert "at::" in row.stack
    assert held.numel() == 3


def test_the_programs_allocator_is_there_again_and_a_child_is_left_alone():
    check = op_tools.OpMemoryCheck(files=False).start()
    x = torch.ones(1000)
    child = os.fork()
    if child == 0:
        y = x + 1
        del x, y
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    check.stop()
    before = check.result().devices[0]
    del x
    torch.ones(1000)
    assert check.result().devices[0] == before


SCRIPT = """
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
held = []
for _ in range(8):
    held.append(weight.detach() * 2)
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
"""


def run_script(folder, script, *flags, **variables):
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "op_tools", "run", *flags, "--fail-on-wrong", str(folder / "train.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OP_TOOLS_LOG_LEVEL": "notice", **variables}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("flags", "variables"), [(["--memory"], {}), ([], {"DIPU_MEM_CHECK": "1"})])
def test_op_tools_run_says_what_leaks(tmp_path, flags, variables):
    status, text = run_script(tmp_path, SCRIPT, *flags, **variables)
    assert status == 1, text
    assert "train.py:7" in text
    assert "is held by list of 8, held in __main__" in text
    assert "was not judged" not in text


def test_a_program_without_steps_is_told_that_growth_was_not_judged(tmp_path):
    status, text = run_script(tmp_path, "import torch\nheld = [torch.ones(3) * 2 for _ in range(20)]\n", "--memory")
    assert status == 0, text
    assert "growth was not judged: 0 steps ended, 4 are needed" in text


def test_doctor_says_whether_the_allocator_reports(monkeypatch):
    import op_tools.sim_device

    def memory_line():
        return next(line for line in doctor.examine().lines if line.startswith("memory "))

    assert [op_tools._C.reports_memory(device) for device in ("cpu", "sim", "meta")] == [True, True, False]
    assert "reports its allocations" in memory_line()
    monkeypatch.setattr(doctor, "reports_memory", lambda _: False)
    assert "reports nothing" in memory_line()
