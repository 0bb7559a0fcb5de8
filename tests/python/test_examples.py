"""The examples run and show their points."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import launched

ROOT = Path(__file__).resolve().parents[2]


def fits(out):
    """80 columns, but for paths, which are single words."""
    return [line for line in out.splitlines() if len(line) > 80 and max(map(len, line.split())) < 50]


def pasted(out, first):
    """The exit status of the printed command that begins so, run by a shell."""
    lines = out[out.index(first) :].splitlines()
    command = []
    for line in lines:
        command.append(line)
        if not line.endswith("\\"):
            break
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(["sh", "-c", "\n".join(command)], capture_output=True, env=environment).returncode


def run(name, *arguments, path=""):
    return launched(ROOT / "examples" / name, *arguments, PATH=f"{path}{os.pathsep}{os.environ['PATH']}").stdout


def test_demo_trains_captures_the_last_step_and_replays_all_of_it_bit_for_bit(build_dir, tmp_path):
    out = run("demo_digits.py", "--steps", 40, "--output", tmp_path / "demo", path=build_dir)
    assert "step   40/40" in out
    correct = int(out.split(" of 297 images")[0].split()[-1])
    assert correct > 200
    summary = json.loads((tmp_path / "demo" / "report.json").read_text())["summary"]
    assert summary["calls"] == summary["ran"] and summary["agrees"] == summary["bit_equal"] > 30
    assert (
        summary["differs"] == 0 and summary["calls"] - summary["agrees"] == 1
    )  # torch.randint: the device's own numbers
    metas = [json.loads(path.read_text()) for path in (tmp_path / "demo").rglob("meta.json")]
    assert len(metas) == summary["calls"] and {meta["step"] for meta in metas} == {39}
    assert "torch.nn.functional.conv2d/" in out or "torch.conv2d/" in out
    assert len(metas) == len(list((tmp_path / "demo").rglob("input.pth")))
    assert "SyncExecuteTimer: " in out and "grad_inputs.pth" in out
    assert f"{summary['calls']} calls in" in out and "bit for bit" in out
    assert "Story 1: " in out and "spread" not in out and fits(out) == []
    tried = out[out.index("Try next") :]
    assert pasted(tried, tried.splitlines()[2]) == 0
    assert pasted(tried, sys.executable) == 0


def test_custom_hook_counts_operators_and_finds_the_largest_output():
    out = run("custom_hook.py")
    assert "aten::addmm" in out
    assert "largest output: 16384 elements" in out


def test_bring_up_names_the_wrong_operator_replays_it_and_lives_without_it(build_dir, tmp_path):
    out = run("demo_bring_up.py", "--output", tmp_path / "demo", path=build_dir)
    assert "Story 2: " in out and "Planted: aten::threshold_backward" in out and fits(out) == []
    wrong = int(out.split(" results wrong")[0].split()[-1])
    assert wrong == out.count("called at ") == out.count("   saved in ") == 2
    assert pasted(out, "OP_TOOLS_SIM_FAULTS=") == 1
    assert "torch.nn.functional.relu 0th input grad" in out
    assert "the loss is right" in out
    assert "demo_bring_up.py:" in out


def test_a_cuda_script_is_brought_to_another_device(build_dir, tmp_path):
    out = run("demo_port.py", "--output", tmp_path / "demo", path=build_dir)
    assert "Story 4: " in out and fits(out) == []
    assert "conformance and bisect name the planted operator" in out
    statuses = [int(line.split()[-1]) for line in out.splitlines() if line.startswith("exit status")]
    assert statuses == [
        0,
        0,
        1,
        1,
        0,
        0,
        1,
        0,
    ]  # analyse, run, conformance, autocompare, bisect, repro, on sim, on the CPU


@pytest.mark.usefixtures("op_tools_on_path")
def test_bisect_goes_from_a_wrong_loss_to_a_script(build_dir, tmp_path):
    out = run("demo_bisect.py", "--output", tmp_path / "demo", path=build_dir)
    assert "Story 3: " in out and fits(out) == []
    assert "op-tools bisect found the planted operator" in out and "next: op-tools repro" in out
    assert [line for line in out.splitlines() if line.startswith("exit status")] == [
        "exit status 0",  # bisect
        "exit status 0",  # repro
        "exit status 1",  # the script on the device
        "exit status 0",  # on the CPU
    ]


def test_a_compiled_program_is_cut_to_its_wrong_fusion(build_dir, tmp_path):
    out = run("demo_compiled.py", "--output", tmp_path / "demo", path=build_dir)
    assert "Story 5: " in out and fits(out) == []
    assert "the script has the fused operators alone" in out
    assert [line for line in out.splitlines() if line.startswith("exit status")] == [
        "exit status 1",  # the compiled program
        "exit status 0",  # its operators without the compiler
        "exit status 0",  # repro
        "exit status 1",  # the script with the faulty compiler
        "exit status 0",  # with the right compiler
    ]
