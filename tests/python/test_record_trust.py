"""OpRecord: written memory is read again, a device under suspicion is not asked, traces of compilers are no calls."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from conftest import launched

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main


def record(work, path, level="aten"):
    with op_tools.OpRecord(output_dir=path, level=level) as tool:
        work()
    assert tool.result().failure == ""
    recording = op_tools.read_recording(tool.result().path)
    assert recording.complete
    return recording


def test_a_view_of_what_a_fused_optimizer_wrote_is_read_again(tmp_path):
    weight = torch.nn.Parameter(torch.randn(8, 8))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    norms = []

    def work():
        for _ in range(3):
            norms.append(float(weight.detach().double().norm()))
            torch.mm(torch.ones(2, 8), weight.t()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    views = [call.outputs[0][1].norm for call in record(work, tmp_path).calls if call.op == "aten::t"]
    assert len(set(norms)) == 3
    for norm in norms:
        assert any(abs(norm - view) < 1e-6 for view in views)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_what_an_operator_of_a_library_writes_is_read_again(level, tmp_path):
    library = torch.library.Library(f"record_trust_{level}", "DEF")
    library.define("double(Tensor(a!) x) -> ()")
    library.impl("double", lambda x: x.numpy().__imul__(2) is None or None, "CPU")
    double = getattr(torch.ops, f"record_trust_{level}").double
    x = torch.ones(4)

    def work():
        torch.neg(x)
        double(x)
        torch.neg(x)

    calls = [call for call in record(work, tmp_path, level).calls if call.op.rsplit(".")[-1].endswith("neg")]
    assert [call.inputs[0][1].max for call in calls] == [1, 2]


@pytest.mark.parametrize("op", ["mm", "sum", "cat"])
@pytest.mark.parametrize("jitter", [0, 1])
def test_a_wrong_operator_that_statistics_are_made_of_is_named(op, jitter, tmp_path):
    def run(device, path, jitter):
        torch.manual_seed(0)
        net = torch.nn.Linear(64, 64).to(device)
        x, w = torch.randn(32, 64).to(device), torch.randn(64, 5).to(device)
        with op_tools.OpRecord(output_dir=path, level="aten", jitter=jitter):
            y = torch.tanh(net(x))
            torch.mm(torch.cat([y, y]), w).sum().item()

    run("cpu", tmp_path / "a", 0)
    with sim.fault("scale", ops=op, scale=1.05):
        run("sim", tmp_path / "b", jitter)
    first = op_tools.compare_runs(tmp_path / "a", tmp_path / "b").ranks[0].first
    assert first is not None
    assert first.op.split("::")[1].split(".")[0] == op


def chain(device, path, faults=(), first=6):
    """Calls of a kind, then `faults`, then a call of another kind."""
    torch.manual_seed(0)
    x = torch.randn(8, 8).to(device)
    tool = op_tools.OpRecord(output_dir=path, level="aten").start()
    for _ in range(first):
        x = torch.tanh(x)
    for fault in faults:
        fault.start()
    torch.neg(x)
    tool.stop()
    for fault in faults:
        fault.stop()
    return tool.result()


def test_statistics_of_a_device_that_turns_out_wrong_are_in_doubt(tmp_path, capsys):
    chain("cpu", tmp_path / "a")
    sound = chain("sim", tmp_path / "sound")
    assert sound.statistics_on_host == [] and sound.statistics_in_doubt == 0
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "sound")]) == 0
    # Nothing of the program is wrong; the values of the first calls' statistics may have been.
    result = chain("sim", tmp_path / "b", [sim.fault("scale", ops="sum", scale=1.05)])
    assert result.statistics_on_host == ["sim"] and result.statistics_in_doubt > 0 and result.ended_early == ""
    recording = op_tools.read_recording(result.path)
    assert recording.complete and recording.header["statistics_in_doubt"] == result.statistics_in_doubt
    assert recording.header["statistics_on_host"]["sim"]["from_call"] <= len(recording.calls)
    values = {tensor.number: tensor for call in recording.calls for _, tensor in (*call.inputs, *call.outputs)}
    in_doubt = [tensor for tensor in values.values() if tensor.in_doubt]
    assert len(in_doubt) == result.statistics_in_doubt
    assert all(not tensor.known and tensor.hash == 0 for tensor in in_doubt)
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "are not judged: sim" in capsys.readouterr().out


def test_faults_in_some_calls_count_those_of_the_program(tmp_path):
    x = torch.ones(8, 8, device="sim")
    with sim.fault("scale", ops="sum", call=1, scale=2) as fault, op_tools.OpRecord(output_dir=tmp_path, level="aten"):
        sums = [torch.sum(x).item() for _ in range(3)]
    assert sums == [64, 128, 64] and fault.hits == 1


ENDS = """
import os, resource, signal, sys, torch, op_tools
folder, how = sys.argv[1:]
tool = op_tools.OpRecord(output_dir=folder).start()
x = torch.ones(1000)
if how == "disk_full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
for _ in range(2000):
    x = torch.neg(x)
if how == "no_end":
    os._exit(0)
assert tool.result().ended_early == how
"""


@pytest.mark.parametrize("how", ["disk_full", "no_end"])
def test_a_recording_says_why_it_ends_early(how, tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(ENDS)
    launched(script, tmp_path / "a", how)
    (path,) = (tmp_path / "a").glob("*.oprec")
    recording = op_tools.read_recording(path)
    assert not recording.complete and recording.header["ended_early"] == how
    assert len(recording.calls) > 300
    assert main(["compare", str(path), str(path)]) == 2
    assert "ends before its program did" in capsys.readouterr().out


def test_a_failure_of_its_own_ends_a_recording_and_is_told(tmp_path):
    with op_tools.OpRecord(output_dir=tmp_path, level="aten") as tool:
        torch.neg(torch.ones(3))
        with sim.fault("exception", ops="aten::_copy_from"):
            torch.tanh(torch.ones(3, device="sim"))
    result = tool.result()
    recording = op_tools.read_recording(result.path)
    assert result.ended_early == "failure" == recording.header["ended_early"]
    assert recording.header["failure"] == result.failure != ""
    assert [call.op for call in recording.calls][:2] == ["aten::ones", "aten::neg"]


def test_an_export_does_not_end_a_recording(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())

    def work():
        x = torch.randn(5, 4)
        torch.export.export(net, (x,))
        for _ in range(5):
            x = torch.tanh(x)

    assert sum(call.op == "aten::tanh" for call in record(work, tmp_path).calls) == 5


def test_a_view_expanded_without_end_is_not_read(tmp_path):
    calls = record(lambda: torch.ones(1).expand(2**33).view(2, -1), tmp_path).calls
    assert any(tensor.shape == (2**33,) and not tensor.known for call in calls for _, tensor in call.outputs)


HUNG = """
import torch
import op_tools.sim_device as sim

x = torch.ones(4, 4, device="sim")
for _ in range(5):
    x = torch.tanh(x)
sim.fault("hang", ops="mm").start()
print("hangs", flush=True)
y = x @ x
print(y.sum().item())
"""


def test_sigterm_of_a_program_whose_device_hangs_keeps_its_calls(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(HUNG)
    command = [
        sys.executable,
        "-m",
        "op_tools",
        "run",
        "--record",
        "--overflow",
        "--output-dir",
        str(tmp_path),
        str(script),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "hangs\n"
        time.sleep(2)
        program.send_signal(signal.SIGTERM)
        assert program.wait(timeout=60) == -signal.SIGTERM
    (path,) = tmp_path.glob("*.oprec")
    ops = [call.op for call in op_tools.read_recording(path).calls]
    assert ops.count("torch.tanh") == 5


GBK = b"\xb2\xe2\xca\xd4"  # no UTF-8


def test_every_tool_works_in_a_folder_whose_name_is_no_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(GBK)
    folder.mkdir()
    (folder / "program.py").write_text(
        "import torch\nx = torch.ones(3, requires_grad=True)\nfor _ in range(3):\n    (x * 2).sum().backward()\n"
    )
    tools = ["record", "capture", "autocompare", "overflow", "observe", "time", "blackbox", "memory"]
    command = [sys.executable, "-m", "op_tools", "run", *(f"--{tool}" for tool in tools), "--output-dir", folder]
    done = subprocess.run([*command, folder / "program.py"], cwd=folder, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert b"off now" not in done.stderr and b"stops recording" not in done.stderr and b"error" not in done.stderr
    (file,) = folder.glob("*.oprec")
    recording = op_tools.read_recording(file)
    assert recording.complete and sum(call.op == "torch.Tensor.mul" for call in recording.calls) == 6
    assert all("program.py:4" in call.line for call in recording.calls if "mul" in call.op)
    shown = subprocess.run(
        [sys.executable, "-m", "op_tools", "compare", folder, folder], capture_output=True, timeout=100, check=True
    )
    assert b"agree" in shown.stdout.lower() or b"no difference" in shown.stdout.lower()
    for tool in ("capture", "autocompare", "observe", "time_measure", "blackbox", "memory"):
        assert any(tool in path.name for path in folder.iterdir()), tool
