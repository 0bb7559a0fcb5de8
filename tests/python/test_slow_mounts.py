"""Output folders on a mount that is slow, hangs or fails: the program goes on, and hears of it once."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import op_tools

# Steps on tensors whose rows and records fill more than one write. `said(text)` tells the mount its trouble.
PROGRAM = """
import sys, torch, op_tools
from pathlib import Path

def said(text):
    Path(TROUBLE).write_text(text)

def numbers(tool=None):
    torch.manual_seed(0)
    x = torch.randn(64, 64, requires_grad=True)
    for step in range(4):
        if tool and step == 2:
            said(NEWS)
        for width in range(8 * step + 1, 8 * step + 9):
            (x[:width] @ x).relu().sum().backward()
        if tool:
            tool.step()
    return x.grad

expected = numbers()
with TOOL as tool:
    result = numbers(tool)
    said(AFTER)
assert torch.equal(result, expected)
print(tool.result().failure, flush=True)
said("")
"""

# A not-a-number gives each tool something to write. The trouble ends with the program, whose end a mount that hangs
# would hold.
START = """
import torch, op_tools
from pathlib import Path

try:
    with TOOL:
        result = (torch.ones(4) * float("nan")).sum()
    print(result, flush=True)
finally:
    Path(TROUBLE).write_text("")
"""

# Each makes its folder on the program's thread, or at its end.
AT_THE_START = {
    "capture": "op_tools.OpCapture(output_dir=FOLDER)",
    "record": "op_tools.OpRecord(output_dir=FOLDER)",
    "observe": "op_tools.OpObserve(output_dir=FOLDER)",
    "overflow": "op_tools.OpOverflowCheck(output_dir=FOLDER)",
    "time": "op_tools.OpTimeMeasure(output_dir=FOLDER)",
    "memory": "op_tools.OpMemoryCheck(output_dir=FOLDER)",
    "autocompare": "op_tools.OpAutoCompare(output_dir=FOLDER)",
    "blackbox": "op_tools.OpBlackBox(output_dir=FOLDER)",
}

TOOLS = {
    "capture": "op_tools.OpCapture(format='folders', output_dir=FOLDER, write_timeout=1, max_pending_mb=1)",
    "capture, container": "op_tools.OpCapture(format='container', output_dir=FOLDER, write_timeout=1, max_pending_mb=1)",
    "record": "op_tools.OpRecord(output_dir=FOLDER, write_timeout=1)",
}


@pytest.fixture
def mount(tmp_path):
    """The mount's folder and the file that says its trouble."""
    pytest.importorskip("mfusepy", reason="mfusepy or libfuse is not installed", exc_type=(ImportError, OSError))
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse: this system mounts no file systems of users")
    behind, folder, trouble = tmp_path / "behind", tmp_path / "mount", tmp_path / "trouble"
    behind.mkdir()
    folder.mkdir()
    trouble.write_text("")
    command = [sys.executable, Path(__file__).with_name("slow_mount.py"), behind, folder, trouble]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(500):
            if folder.is_mount() or server.poll() is not None:
                break
            time.sleep(0.02)
        if server.poll() is not None:
            pytest.skip(f"mounting is not allowed here: {server.stderr.read().strip()[-200:]}")
        assert folder.is_mount()
        yield folder, trouble
    finally:
        trouble.write_text("")
        subprocess.run(["umount", "-l", folder], check=False)
        try:
            server.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a file of a program that is gone is still open there
            server.kill()
            server.communicate()


def run(python, mount, tool, news, after):
    folder, trouble = mount
    text = PROGRAM.replace("TOOL", TOOLS[tool]).replace("FOLDER", repr(str(folder / "out")))
    text = text.replace("TROUBLE", repr(str(trouble))).replace("NEWS", repr(news)).replace("AFTER", repr(after))
    done = python(text, timeout=30)
    return done.stdout.strip(), [line for line in done.stderr.splitlines() if "op_tools error" in line]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_slow_mount_loses_nothing(tool, mount, python, replay):
    failure, errors = run(python, mount, tool, "slow 0.05" if tool == "record" else "slow 0.001", after="")
    assert (failure, errors) == ("", [])
    if tool == "record":
        (path,) = mount[0].rglob("*.oprec")
        recording = op_tools.read_recording(path)
        assert recording.complete
        assert sum("matmul" in call.op for call in recording.calls) == 2 * 32  # and their backward
    else:
        summary = replay(mount[0], "--acc_check", "-q").summary
        assert summary["differs"] == 0 and summary["agrees"] == summary["bit_equal"] > 4 * 32


@pytest.mark.parametrize("tool", TOOLS)
def test_a_mount_that_hangs_stops_the_tool_and_not_the_program(tool, mount, python):
    # The program ends the trouble itself, after its work: it would wait for ever if the mount held it.
    failure, (error,) = run(python, mount, tool, "hang", after="hang")
    assert "for 1 s (OP_TOOLS_WRITE_TIMEOUT)" in failure and failure in error and "the program goes on" in error


@pytest.mark.parametrize("tool", TOOLS)
def test_a_mount_that_fails_stops_the_tool_and_not_the_program(tool, mount, python):
    failure, (error,) = run(python, mount, tool, "gone", after="gone")
    assert "Input/output error" in failure and failure in error and "the program goes on" in error


@pytest.mark.parametrize("trouble", ["hang", "gone"])
@pytest.mark.parametrize("tool", AT_THE_START)
def test_a_mount_that_takes_no_folder_stops_the_tool_and_not_the_program(tool, trouble, mount, python):
    folder, trouble_file = mount
    trouble_file.write_text(trouble)
    text = START.replace("TOOL", AT_THE_START[tool]).replace("FOLDER", repr(str(folder / "out")))
    done = python(text.replace("TROUBLE", repr(str(trouble_file))), timeout=30, OP_TOOLS_WRITE_TIMEOUT="1")
    assert "tensor(nan)" in done.stdout
    (error,) = (line for line in done.stderr.splitlines() if "op_tools error" in line)
    assert {"hang": "took nothing for 1 s (OP_TOOLS_WRITE_TIMEOUT)", "gone": "Input/output error"}[trouble] in error
