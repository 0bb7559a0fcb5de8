"""A second look at two runs: the calls around a divergence captured by the printed commands, a run compared with a
recording while it goes on, a run on the inputs of another run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import op_tools
import op_tools._runs.against
import op_tools._runs.judged_captures
import op_tools.sim_device as sim

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ["torch", "aten"]

PROGRAM = """
import sys
import torch
from torch import nn
import op_tools.sim_device

torch.manual_seed(3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


net = Net().to("sim")
method = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.ones(8, 16, device="sim")).square().mean()
    method.zero_grad()
    loss.backward()
    method.step()
print("loss", loss.item())
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""
FAULT = "scale:ops=aten::relu,call=6,scale=1.5"  # the third relu of step 1
SECOND = "scale:ops=aten::addmm,call=7,scale=1.25"  # the last layer of step 1: its input is different already


@pytest.fixture
def run(tmp_path):
    """A shell command in the test's folder, in which op-tools is a command and train.py a program."""
    commands = tmp_path / "bin"
    commands.mkdir()
    python = sys.executable
    for name, module in (("op-tools", "op_tools"), ("run_op_from_data", "op_tools.run_op_from_data")):
        (commands / name).write_text(f'#!/bin/sh\nexec {python} -m {module} "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(command, status=0, **environment):
        paths = {
            "PATH": os.pathsep.join([str(commands), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**os.environ, **paths, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    return run


def captured_names(folder):
    return [(one.name, one.module, one.step) for one in op_tools._runs.judged_captures.captured_calls(folder)]


# ---- --next ----


@pytest.mark.parametrize("level", LEVELS)
def test_the_printed_commands_capture_the_calls_around_the_divergence_and_no_others(level, run, tmp_path):
    run(f"op-tools run --level {level} --record a train.py")
    run(f"op-tools run --level {level} --record b train.py", OP_TOOLS_SIM_FAULTS=FAULT)
    shown = run("op-tools compare a b --next", status=1).stdout
    commands = [line.strip() for line in shown.partition("Next: capture")[2].splitlines() if line.startswith("  ")]
    assert len(commands) == 3 and "OP_TOOLS_SIM_FAULTS" in commands[1] and "--unset" in commands[0]
    for command in commands[:2]:
        run(command)
    confirmed = run(commands[2], status=1).stdout
    (rank,) = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks
    first = rank.first
    around = [row for row in rank.rows[first.row - 3 : first.row + 1] if row.step == first.step]
    for side, of in (("a", "op"), ("b", "op_b")):
        assert captured_names(tmp_path / "op_compare_next" / side) == [
            (getattr(row, of), row.module, row.step) for row in around
        ]
    assert first.module == "Net" and "relu" in first.op
    assert confirmed.count("B's operator is wrong") == 1
    wrong = next(line for line in confirmed.splitlines() if "B's operator is wrong" in line)
    assert "relu" in wrong


def test_the_printed_commands_run_in_another_folder_than_the_recordings(run, tmp_path):
    run("op-tools run --record a train.py")
    run("op-tools run --record b train.py", OP_TOOLS_SIM_FAULTS=FAULT)
    (tmp_path / "else where").mkdir()
    shown = run("cd 'else where' && op-tools compare ../a ../b --next", status=1).stdout
    commands = [line.strip() for line in shown.partition("Next: capture")[2].splitlines() if line.startswith("  ")]
    assert "B's operator is wrong" in run("\n".join(["cd 'else where'", *commands]), status=1).stdout


def test_the_folder_of_a_recording_of_another_machine_is_named(run, tmp_path):
    (tmp_path / "program").mkdir()
    run("cd program && op-tools run --record ../a ../train.py")
    run("cd program && op-tools run --record ../b ../train.py", OP_TOOLS_SIM_FAULTS=FAULT)
    (tmp_path / "program").rmdir()
    shown = run("op-tools compare a b --next", status=1).stdout
    assert f"(start the programs as in {tmp_path / 'program'}, which this machine does not have)" in shown


def test_a_call_of_backward_is_captured_by_the_printed_commands(run, tmp_path):
    run("op-tools run --level aten --record a train.py")
    run(
        "op-tools run --level aten --record b train.py", OP_TOOLS_SIM_FAULTS="scale:ops=aten::threshold_backward,call=5"
    )
    shown = run("op-tools compare a b --next", status=1).stdout
    commands = [line.strip() for line in shown.partition("Next: capture")[2].splitlines() if line.startswith("  ")]
    for command in commands[:2]:
        run(command)
    assert "B's operator is wrong" in run(commands[2], status=1).stdout
    (rank,) = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks
    assert rank.first.phase == "backward" and rank.first.step == 1
    names = captured_names(tmp_path / "op_compare_next" / "b")
    assert ("aten::threshold_backward", rank.first.module, 1) in names and len(names) <= 4


def test_lists_of_an_earlier_divergence_stay(run, tmp_path):
    run("op-tools run --record a train.py")
    run("op-tools run --record b train.py", OP_TOOLS_SIM_FAULTS=FAULT)
    for _ in range(2):
        run("op-tools compare a b --next", status=1)
    assert (tmp_path / "op_compare_next" / "calls_a.txt").is_file()
    assert (tmp_path / "op_compare_next_2" / "calls_b.txt").is_file()
    assert "op_compare_next" not in run("op-tools compare a b", status=1).stdout
    assert not (tmp_path / "op_compare_next_3").exists()


# ---- --against ----


@pytest.mark.parametrize("level", LEVELS)
def test_a_fault_is_caught_while_the_program_runs_and_its_call_is_saved(level, run, tmp_path):
    run(f"op-tools run --level {level} --record a train.py")
    plain = run("python train.py 5", status=5, OP_TOOLS_SIM_FAULTS=FAULT)
    done = run("op-tools run --against a train.py 5", status=5, OP_TOOLS_SIM_FAULTS=FAULT)
    assert done.stdout == plain.stdout  # the program is untouched
    (line,) = [line for line in done.stderr.splitlines() if "against:" in line]
    assert "relu (forward, Net, " in line and "train.py:17 forward, step 1): born here: other numbers" in line
    command = re.search(r"saved: (\S+ -m op_tools.run_op_from_data .*)", line)[1]
    assert "1 differ" in run(command, status=1).stdout
    saved = captured_names(tmp_path / "op_against_result")
    assert [(name.rpartition(".")[2].rpartition("::")[2], step) for name, _, step in saved] == [("relu", 1)]
    # The recording goes on: the whole of it agrees with the report.
    (rank,) = op_tools.compare_runs(tmp_path / "a", tmp_path / "op_against_result").ranks
    assert rank.first.id_b == op_tools._runs.judged_captures.captured_calls(tmp_path / "op_against_result")[0].id
    assert rank.structure.steps_only_a == []


def test_stop_ends_the_program_with_status_1(run):
    run("op-tools run --record a train.py")
    done = run("op-tools run --against a --stop train.py", status=1, OP_TOOLS_SIM_FAULTS=FAULT)
    assert "against:" in done.stderr and "loss" not in done.stdout
    assert "Traceback" not in done.stderr
    assert "loss" in run("op-tools run --against a --stop train.py").stdout
    assert "--against" in run("op-tools run --stop train.py", status=64).stderr


def test_a_doubled_loss_fails_a_run_against_a_recording(run, tmp_path):
    run("op-tools run --record a train.py")
    doubled = PROGRAM.replace(".square().mean()", ".square().mean() * 2")
    assert doubled != PROGRAM
    (tmp_path / "doubled.py").write_text(doubled)
    run("op-tools run --against a --fail-on-wrong doubled.py", status=1)


def test_of_runs_that_agree_nothing_is_saved(run, tmp_path):
    run("op-tools run --record a train.py")
    done = run("op-tools run --against a --fail-on-wrong train.py")
    assert "against:" not in done.stderr
    with pytest.raises(op_tools.Error, match="no captured calls"):
        op_tools._runs.judged_captures.captured_calls(tmp_path / "op_against_result")
    run("op-tools run --against a --fail-on-wrong train.py", status=1, OP_TOOLS_SIM_FAULTS=FAULT)
    assert "nothing_here" in run("op-tools run --against nothing_here train.py", status=2).stderr
    assert "max_calls" in run("op-tools run --against a --max-calls 3 train.py", status=64).stderr
    run("op-tools run --capture --output-dir good train.py")
    refused = run("op-tools run --shadow good --ops '(' train.py", status=64)
    assert "Traceback" not in refused.stderr and "loss" not in refused.stdout


def trained(steps=2, tool=None):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to("sim")
    for _ in range(steps):
        net(torch.ones(2, 8, device="sim")).sum().backward()
        if tool:
            tool.step()


def test_against_in_a_program(tmp_path, capfd):
    with op_tools.OpRecord(output_dir=tmp_path / "a", level="aten") as a:
        trained(tool=a)
    tool = op_tools.OpAgainst(a.result().path, output_dir=tmp_path)
    with tool:
        trained(tool=tool)
    assert tool.result().ok and tool.result().steps == 2  # nothing is left at the end
    assert "against:" not in capfd.readouterr().err
    stopped = op_tools.OpAgainst(a.result().path, output_dir=tmp_path / "b", stop=True)
    with pytest.raises(SystemExit) as ended, sim.fault("scale", ops="aten::relu", call=1, scale=1.5), stopped:
        trained(tool=stopped)
    assert ended.value.code == 1
    result = stopped.result()
    assert result.first.op == "aten::relu" and op_tools.load_call(result.capture).name == "aten::relu"
    # At the end of a program that marks no steps.
    with sim.fault("scale", ops="aten::relu", call=0, scale=1.5), op_tools.OpAgainst(a.result().path) as late:
        trained(steps=1)
    assert late.result().first.op == "aten::relu"


def test_a_comparison_that_fails_is_no_failure_of_the_program(tmp_path, monkeypatch, capfd):
    with op_tools.OpRecord(output_dir=tmp_path / "a") as a:
        trained(tool=a)
    monkeypatch.setattr(op_tools._runs.against, "calls_below", lambda _: 1 // 0)
    with op_tools.OpAgainst(tmp_path / "a", output_dir=tmp_path, stop=True) as tool:
        trained(tool=tool)
    assert capfd.readouterr().err.count("no longer compared") == 1
    assert tool.result().verdict.value == "not judged" and tool.result().unseen


# ---- --shadow ----


@pytest.mark.parametrize("level", LEVELS)
def test_each_wrong_operator_is_named_though_the_first_hides_the_second(level, run, tmp_path):
    run(f"op-tools run --capture --level {level} --output-dir good train.py")
    run(f"op-tools run --level {level} --record a train.py")
    both = f"{FAULT};{SECOND}"
    run(f"op-tools run --level {level} --record b train.py", OP_TOOLS_SIM_FAULTS=both)
    (rank,) = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks
    linear = "torch.nn.functional.linear" if level == "torch" else "aten::addmm"
    relu = "torch.relu" if level == "torch" else "aten::relu"
    assert [rank.rows[row].op for row in rank.births] == [relu]  # the second is hidden
    done = run("op-tools run --shadow good train.py", OP_TOOLS_SIM_FAULTS=both)
    assert "2 of them are wrong" in done.stdout
    wrong = [line.split()[:3] for line in done.stdout.splitlines() if "differs" in line]
    assert wrong == [["1", relu, "Net"], ["1", linear, "Net.layers.3"]]
    run("op-tools run --shadow good --fail-on-wrong train.py", status=1, OP_TOOLS_SIM_FAULTS=both)
    clean = run("op-tools run --shadow good --fail-on-wrong train.py").stdout
    assert " 0 of them are wrong" in clean and "were not made" not in clean


def test_shadow_gives_the_inputs_of_the_capture(tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path, level="aten") as capture:
        torch.manual_seed(0)
        net = nn.Linear(4, 4)
        wide = torch.randn(4, 1).expand(4, 4)
        dense = torch.randn(2, 4)
        wanted = net(dense).relu(), wide.neg()
    torch.manual_seed(1)
    other = nn.Linear(4, 4)
    shadow = op_tools.OpShadow(capture.result().root, ops="addmm,relu,neg", output_dir=tmp_path / "shadow")
    with shadow:
        expanded = torch.zeros(4, 1).expand(4, 4)
        read = torch.zeros(2, 4)
        got = other(read).relu(), expanded.neg()
        got[0].sum().backward()
        torch.relu(torch.ones(3))  # no such call was captured
    assert all(map(torch.equal, got, wanted))
    assert torch.equal(expanded, wide) and torch.equal(read, dense) and torch.equal(other.weight, net.weight)
    result = shadow.result()
    assert not result.wrong and not result.ok and len(result.rows) == 3 and result.unfed == 1
    assert {row.inputs for row in result.rows} == {0.0}
    assert "had no captured inputs" in result.table()


def test_results_without_a_verdict_are_said(tmp_path):
    def program():
        nn.functional.dropout(torch.relu(torch.ones(4, 4, device="sim")), 0.5)

    with op_tools.OpCapture(output_dir=tmp_path) as capture:
        program()
    with op_tools.OpShadow(capture.result().root, output_dir=tmp_path / "shadow") as shadow:
        program()
    result = shadow.result()
    assert [row.op for row in result.not_judged] == ["torch.nn.functional.dropout"] and result.exit_status == 0
    assert "calls without a verdict: 1 (torch.nn.functional.dropout)" in result.table()


def test_a_damaged_capture_is_a_problem_and_the_program_goes_on(tmp_path):
    with op_tools.OpCapture(output_dir=tmp_path) as capture:
        torch.relu(torch.ones(3))
        torch.tanh(torch.ones(3))
    (file,) = Path(capture.result().root).glob("torch.relu/*/input.pth")
    file.write_bytes(file.read_bytes()[:100])
    with op_tools.OpShadow(tmp_path, output_dir=tmp_path / "shadow") as shadow:
        out = torch.relu(torch.zeros(3))
        torch.tanh(torch.zeros(3))
    result = shadow.result()
    assert torch.equal(out, torch.zeros(3)) and len(result.problems) == 1 and "torch.relu" in result.problems[0]
    assert [row.op for row in result.rows] == ["torch.tanh"] and result.exit_status == 2
    json.dumps([row.verdict for row in result.rows])
    with pytest.raises(op_tools.Error, match="nothing"):
        op_tools.OpShadow(tmp_path / "nothing")


def test_a_step_is_compared_with_the_steps_of_a_until_then(tmp_path):
    """A recurrent network has other formulas on the CPU; each step's gradients and parameters say that they agree."""

    def trains(device, tool):
        torch.manual_seed(3)
        net, head = nn.GRU(6, 5).to(device), nn.Linear(5, 3).to(device)
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
        x = torch.randn(4, 2, 6).to(device)
        with tool:
            for _ in range(3):
                optimizer.zero_grad()
                head(net(x)[0]).logsumexp(-1).sum().backward()
                optimizer.step()
                tool.step()

    recorded = op_tools.OpRecord(output_dir=tmp_path / "a", level="aten")
    trains("cpu", recorded)
    against = op_tools.OpAgainst(recorded.result().path, output_dir=tmp_path)
    with sim.rounding():
        trains("sim", against)
    assert against.result().ok, against.result()
    whole = op_tools._base.core.read_recording(recorded.result().path)
    ranks = [op_tools._base.core.recording_before_step(whole, step) for step in range(4)]
    assert [run.calls for run in ranks] == sorted({run.calls for run in ranks})
    assert ranks[0].calls == ranks[0].values == 0 and ranks[3].calls == whole.calls
    step_of = [whole.call(number)[4] for number in range(whole.calls)]
    assert ranks[2].calls == sum(step < 2 for step in step_of)
