"""Lines that are printed by default, calls that are counted, and files after SIGTERM."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import op_tools
import op_tools._base.tool_descriptions

PROGRAM = """
import torch, op_tools
{tool}
for _ in range(30):
    torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3, requires_grad=True)).relu().sum().backward()
tool.stop()
"""
TOOLS = [
    "op_tools.OpCapture()",
    "op_tools.OpAutoCompare()",
    "op_tools.OpTimeMeasure()",
    "op_tools.OpObserve()",
    "op_tools.OpOverflowCheck()",
    "op_tools.OpFallback(ops='torch.mm')",
]


@pytest.mark.parametrize("tool", TOOLS)
def test_by_default_a_run_prints_its_summary_and_no_line_per_call(tool, python):
    text = PROGRAM.replace("{tool}", f"tool = {tool}.start()")
    lines = python(text, OP_TOOLS_LOG_LEVEL="").stderr.splitlines()
    lines = [line for line in lines if not line.startswith("op_tools warning: ops=")]
    assert 1 <= len(lines) <= 15, lines
    assert lines[0].startswith(tool.partition(".")[2].partition("(")[0])


def on_a_terminal(program, folder):
    """The output of a program to a terminal's stderr."""
    ours, theirs = pty.openpty()
    path = os.pathsep.join([str(Path(op_tools.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path, "OP_TOOLS_LOG_LEVEL": ""}
    with subprocess.Popen([sys.executable, "-c", program], cwd=folder, env=settings, stderr=theirs) as running:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux says so that the other side is closed
            while more := os.read(ours, 65536):
                shown += more
    os.close(ours)
    assert running.returncode == 0, shown.decode()
    return shown.decode()


@pytest.mark.parametrize("name", sorted(op_tools._base.tool_descriptions.kinds()))
def test_each_tool_draws_one_line_of_progress_on_a_terminal(name, tmp_path):
    program = f"""
import torch, op_tools
x = torch.ones(2)
with op_tools.{name}(ops="torch.neg", level="torch") as tool:
    for _ in range(1100):
        torch.neg(x)
"""
    assert f"\r\x1b[K{name}: " in on_a_terminal(program, tmp_path)


def test_lines_for_each_call_at_info_and_as_ditorch_prints_them(python):
    text = PROGRAM.replace("{tool}", "tool = op_tools.OpCapture(ops='torch.relu|torch.Tensor.relu').start()")
    for settings in ({"OP_TOOLS_LOG_LEVEL": "info"}, {"OP_TOOLS_LOG_LEVEL": "", "OP_TOOLS_COMPAT": "ditorch"}):
        lines = python(text, **settings).stderr.splitlines()
        assert sum(line.startswith("apply OpCaptureHook on torch.Tensor.relu") for line in lines) == 30


def test_printing_a_tensor_counts_nothing(capsys):
    x = torch.randn(3, 3)
    with op_tools.OpObserve() as observe:
        sys.stdout.write(f"{x} {x.sum():.3f} {x!r} {[x]}" + str(x) + repr({"x": x}))
        torch.neg(x)
    assert {row.op for row in observe.result().rows} == {"torch.neg", "torch.Tensor.sum"}
    seen = []

    class Names(op_tools.Hook):
        def after(self, call, state):
            seen.append(call.name)

    with op_tools.HookScope(Names(), ops="torch.Tensor.__repr__, torch.Tensor.neg"):
        repr(x)
        x.neg()
    assert seen == ["torch.Tensor.__repr__", "torch.Tensor.neg"]


def test_printing_a_tensor_counts_nothing_at_the_aten_level_either(tmp_path):
    import op_tools.sim_device

    x = torch.randn(3, 3)
    on_device = x.to("sim")
    with op_tools.OpObserve(level="aten", output_dir=tmp_path) as observe:
        text = f"{x!r} {[x]}" + str(x) + repr({"x": x}) + repr(on_device)
        torch.neg(x)
    assert {row.op for row in observe.result().rows} == {"aten::neg"}
    assert text.count("tensor(") == 5
    # A device that lacks operators of repr still gets them from the CPU.
    lacking = op_tools.sim_device.fault("missing", ops="aten::abs|aten::isfinite|aten::ne.*|aten::masked_select")
    with lacking, op_tools.OpFallback(level="aten"):
        assert repr(on_device) == text[-len(repr(on_device)) :]


KILLED = """
import os, signal, sys, time, torch, op_tools
tool = {tool}
tool.start()
torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3, requires_grad=True)).relu().sum().backward()
torch.log(torch.zeros(2))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""
FILES = {
    "op_tools.OpCapture(format='container')": "calls.zip",
    "op_tools.OpTimeMeasure()": "summary.csv",
    "op_tools.OpObserve()": "calls.jsonl",
    "op_tools.OpAutoCompare()": "autocompare.csv",
    "op_tools.OpOverflowCheck()": "overflow.jsonl",
    "op_tools.OpRecord()": "*.oprec",
    "op_tools.OpBlackBox()": "*.blackbox",
}


@pytest.mark.parametrize("tool", FILES)
def test_sigterm_flushes_the_tool_and_ends_the_program(tool, tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED.replace("{tool}", tool))
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == -signal.SIGTERM
    (file,) = tmp_path.rglob(FILES[tool])
    assert file.stat().st_size > 100
    if file.suffix == ".zip":
        assert op_tools._C.find_calls(str(file))[1] == []  # it has its directory
    if file.suffix == ".oprec":
        assert op_tools.read_recording(file).complete


HANGS = """
import torch, op_tools
import op_tools.sim_device as sim
x = torch.ones(4, 4, device="sim")
tool = op_tools.OpBlackBox(stall=0).start()
sim.fault("hang", ops="mm").start()
print("ready", flush=True)
for _ in range(3):
    y = x @ x
y.sum().item()
"""


def test_sigterm_ends_a_program_that_hangs_outside_of_the_interpreter(tmp_path):
    """Python never calls its handler there; without a tool such a program ends at once."""
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        (file,) = tmp_path.rglob("*.blackbox")
        opened: list[int] = []
        while len(opened) < 2 or opened[-1] != opened[-2]:  # it is in the call that never ends
            time.sleep(0.2)
            opened += [row.id for row in op_tools.read_black_box(file).open if row.op == "aten::mm"][-1:]
        child.send_signal(signal.SIGTERM)
        try:
            _, printed = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == -signal.SIGTERM
    assert b"SIGTERM: the interpreter has not answered" in printed
    assert "ended in aten::mm" in op_tools.read_black_box(file).verdict


def test_the_programs_own_handler_of_sigterm_stays_and_ours_goes():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with op_tools.OpTimeMeasure(files=False), op_tools.OpObserve(detail=0):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    def mine(*_):
        pass

    signal.signal(signal.SIGTERM, mine)
    try:
        with op_tools.OpObserve(detail=0):
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_sigterm_ends_a_forked_child_at_once():
    import multiprocessing

    with op_tools.OpObserve(detail=0) as tool:
        torch.neg(torch.ones(3))
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(30)
        assert child.exitcode == -signal.SIGTERM
        torch.neg(torch.ones(3))
    assert tool.result().calls >= 2
