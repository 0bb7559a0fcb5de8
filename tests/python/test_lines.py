"""The lines that a run prints: a line per kind of finding, not a line per step."""

import pytest
from conftest import launched

from op_tools._tools.launch import tools_by_flag

STEPS = 200
MOST = 25  # lines of a tool; lines of the program itself are none
PROGRAM = f"""
import torch
import op_tools.sim_device

weight = torch.full((4,), 0.5, device="sim", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.001)
for _ in range({STEPS}):
    loss = torch.exp(weight).sum() + torch.sin(weight).sum()
    (weight.detach() * 0).log()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FAULTS = "scale:ops=exp,scale=1.5;scale:ops=sin,scale=1.25"


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def lines_of(program, folder, *options, faults=FAULTS):
    """Of op-tools run, with the log level of a user's terminal."""
    command = ["-m", "op_tools", "run", *options, "--output-dir", folder, program]
    done = launched(*command, cwd=folder, OP_TOOLS_SIM_FAULTS=faults, OP_TOOLS_LOG_LEVEL="notice")
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


@pytest.mark.parametrize("flag", sorted(tools_by_flag()))
def test_a_run_of_200_steps_prints_at_most_25_lines(program, tmp_path, flag):
    lines = lines_of(program, tmp_path, f"--{flag}", *(["--max-calls", "20"] if flag == "capture" else []))
    assert 0 < len(lines) <= MOST or (flag == "blackbox" and not lines), "\n".join(lines)


def test_each_kind_of_wrong_result_has_a_line_and_its_count(program, tmp_path):
    lines = lines_of(program, tmp_path, "--autocompare", "--level", "aten")
    for op, place in (("aten::exp", "train.py:8"), ("aten::sin", "train.py:8")):
        (told,) = [line for line in lines if f"{op} is wrong" in line]
        assert place in told
        (row,) = [line for line in lines if line.startswith(f"{op} ")]
        assert f" {STEPS} " in row
        assert place in row
    assert not any(line.startswith("aten::mul") for line in lines)  # it is right


def test_all_lines_are_there_on_demand(program, tmp_path):
    lines = lines_of(program, tmp_path, "--autocompare", "--level", "aten", "-v")
    assert sum("aten::exp is wrong" in line for line in lines) == STEPS
    assert any(line.startswith("aten::mul") for line in lines)


def test_findings_of_invariance_without_a_line_are_counted(program, tmp_path):
    options = ("--invariance", "--level", "aten", "--first-n-per-signature", "20")
    faults = "every_second:ops=exp;every_second:ops=sin"
    lines = lines_of(program, tmp_path, *options, faults=faults)
    for op in ("aten::exp", "aten::sin"):
        (told,) = [line for line in lines if f"OpInvariance: {op} does not repeat" in line]
        assert "train.py:8" in told
    (closing,) = [line for line in lines if "NOT KEPT" in line]
    assert " 40 NOT KEPT; 38 of them without a line" in closing


def test_findings_of_overflow_check_without_a_line_are_counted(program, tmp_path):
    lines = lines_of(program, tmp_path, "--overflow", "--level", "aten")
    assert sum("OpOverflowCheckHook" in line for line in lines) == 1
    assert any(
        f"{STEPS} made NaN or infinities" in line and f"{STEPS - 1} of them without a line" in line for line in lines
    )
