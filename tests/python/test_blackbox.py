"""OpBlackBox: the call that a process died in is named, whatever killed it."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import op_tools
from op_tools.__main__ import main

# A kernel that does what its argument says.
PROGRAM = """
import ctypes, os, signal, sys, threading, time
import torch
import op_tools

@torch.library.custom_op("blackbox_test::kernel", mutates_args=())
def kernel(x: torch.Tensor, what: str) -> torch.Tensor:
    if what == "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
    if what == "SIGSEGV": ctypes.string_at(0)
    if what == "abort": os.abort()
    if what == "_exit": os._exit(7)
    if what == "hang": time.sleep(1000)
    return x.clone()

class Layer(torch.nn.Module):
    def forward(self, x, what):
        return kernel(x, what)  # the guilty line

def work(what):
    layer = Layer()
    for _ in range(5):
        x = layer(torch.relu(torch.randn(3, 4)), "")
    layer(x, what)

output, what, where = sys.argv[1:]
box = op_tools.OpBlackBox(output_dir=output, stall=0.2 if what == "hang" else 0).start()
if where == "thread":
    thread = threading.Thread(target=work, args=(what,)); thread.start(); thread.join()
elif where == "fork":
    torch.relu(torch.randn(2))
    if os.fork() == 0:
        work(what)
    os.wait()
else:
    work(what)
"""


def ended(folder, what, where="main"):
    """Runs the program to its end, and reads its files."""
    subprocess.run([sys.executable, "-c", PROGRAM, str(folder), what, where], capture_output=True, timeout=300)
    return [op_tools.read_black_box(path) for path in sorted(folder.rglob("*.blackbox"))]


@pytest.mark.parametrize("what", ["SIGKILL", "SIGSEGV", "abort", "_exit"])
@pytest.mark.parametrize("where", ["main", "thread"])
def test_the_call_that_the_process_died_in_is_named(tmp_path, what, where):
    (box,) = ended(tmp_path, what, where)
    guilty = next(row for row in box.open if row.op.startswith("blackbox_test::kernel"))
    assert guilty.inputs == "float32[3, 4]"
    assert guilty.module == "Layer"
    assert guilty.line.endswith("<string>:17 forward")
    assert not box.alive and not box.closed
    assert "ended in " in box.verdict and "blackbox_test::kernel" in box.verdict
    assert [row.op for row in box.rows if row.state == "ended"].count("aten::relu") == 5


def test_a_forked_child_has_a_file_of_its_own(tmp_path):
    boxes = ended(tmp_path, "SIGKILL", "fork")
    assert len(boxes) == 2
    dead = [box for box in boxes if box.open]
    assert len(dead) == 1 and any("kernel" in row.op for row in dead[0].open)
    (parent,) = (box for box in boxes if not box.open)
    assert [row.op for row in parent.rows].count("aten::relu") == 1  # and none of the child's
    assert parent.pid != dead[0].pid


def test_a_hanging_call_is_named_while_it_hangs_with_the_stacks_of_all_threads(tmp_path, capsys):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "hang", "thread"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            # What the operator's first call imports may take longer than the limit: that is reported, too.
            for _message in process.stdout:
                (path,) = tmp_path.rglob("*.blackbox")
                stacks = Path(f"{path}.stacks").read_text()
                if "in kernel" in stacks.rpartition("no call has begun or ended")[2]:
                    break
            box = op_tools.read_black_box(path)
            assert box.alive and "is in blackbox_test::kernel" in box.verdict.partition(" and in ")[0]
            assert "in join" in stacks  # of the main thread
            assert main(["blackbox", str(tmp_path)]) == 0
            assert "is in blackbox_test::kernel" in capsys.readouterr().out
        finally:
            process.kill()
    assert not op_tools.read_black_box(path).alive


def test_random_deaths_always_leave_a_file_that_can_be_read(tmp_path):
    program = """
import sys, torch, op_tools
with op_tools.OpBlackBox(output_dir=sys.argv[1], calls=16):
    print("on", flush=True)
    net = torch.nn.Linear(4, 4)
    while True:
        net(torch.randn(2, 4)).sum().backward()
"""
    order = random.Random(5)
    for number in range(6):
        folder = tmp_path / str(number)
        with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(order.random() * 0.2)
            process.send_signal(signal.SIGKILL)
        (path,) = folder.rglob("*.blackbox")
        box = op_tools.read_black_box(path)
        assert all(row.op.startswith("aten::") for row in box.rows)
        assert len(box.open) <= 3
        assert len(box.rows) <= 2 * 16 + 3


def test_what_ran_is_there_and_the_program_is_as_without(tmp_path):
    def program():
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        net(torch.randn(2, 8)).sum().backward()
        return [parameter.grad for parameter in net.parameters()]

    expected = program()
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        found = program()
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    result = box.result()
    assert result.closed and result.alive and result.open == []
    assert {row.phase for row in result.rows if row.op == "aten::mm"} == {"forward", "backward"}
    assert [row.inputs for row in result.rows if row.state == "failed"] == ["float32[2, 3], float32[2, 3]"]
    assert any(row.module == "Sequential.0" for row in result.rows)
    assert all(row.ms >= 0 for row in result.rows)
    assert "no call was open" in result.verdict
    assert all(len(line) <= 100 for line in result.table().splitlines())


def test_threads_are_told_apart(tmp_path):
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        torch.relu(torch.ones(1))
        thread = threading.Thread(target=lambda: [torch.sigmoid(torch.ones(1)) for _ in range(3)])
        thread.start()
        thread.join()
    rows = box.result().rows
    relu = {row.thread for row in rows if row.op == "aten::relu"}
    assert relu == {threading.get_native_id()}
    assert {row.thread for row in rows if row.op == "aten::sigmoid"} == {thread.native_id}


@pytest.mark.parametrize("damage", ["empty", "short", "other", "cut", "numbers"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, damage, capsys):
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        torch.relu(torch.ones(1))
    path = tmp_path / "damaged.blackbox"
    data = bytearray(Path(box.path).read_bytes())
    order = random.Random(3)
    if damage == "numbers":  # anything may stand there: an answer or an Error, nothing else
        for _ in range(300):
            broken = bytearray(data)
            for _ in range(order.randrange(1, 6)):
                broken[order.randrange(8, 4096 + 8192)] = order.randrange(256)
            path.write_bytes(broken)
            with contextlib.suppress(op_tools.Error):
                op_tools.read_black_box(path)
        return
    path.write_bytes({"empty": b"", "short": data[:50], "other": b"PK" + data[2:], "cut": data[:100_000]}[damage])
    with pytest.raises(op_tools.Error, match=r"damaged\.blackbox: "):
        op_tools.read_black_box(path)
    assert main(["blackbox", str(path)]) == 2
    assert "op-tools: " in capsys.readouterr().err


def test_the_command_line(tmp_path, capsys):
    with op_tools.OpBlackBox(output_dir=tmp_path):
        for _ in range(20):
            torch.relu(torch.ones(1))
    assert main(["blackbox", str(tmp_path), "--last", "3"]) == 0
    text = capsys.readouterr().out
    assert "no call was open" in text and text.count("relu") <= 3
    assert main(["blackbox", str(tmp_path), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    read = json.loads(line)
    assert read["pid"] == os.getpid() and read["closed"] is True
    assert main(["blackbox", str(tmp_path / "nothing")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["blackbox", str(tmp_path / "empty")]) == 2
    assert "no file of OpBlackBox" in capsys.readouterr().err


def test_options(tmp_path):
    with pytest.raises(op_tools.Error, match="stall="):
        op_tools.OpBlackBox(output_dir=tmp_path, stall=float("nan")).start()
    with pytest.raises(op_tools.Error, match="calls="):
        op_tools.OpBlackBox(output_dir=tmp_path, calls=3).start()
    with pytest.raises(op_tools.Error, match="no file"):
        op_tools.OpBlackBox(output_dir=tmp_path).result()


def test_it_goes_on_without_a_file(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    with op_tools.OpBlackBox(output_dir=tmp_path / "file") as box:
        assert torch.equal(torch.relu(torch.ones(1)), torch.ones(1))
    assert box.path == ""
    assert "OpBlackBox records nothing" in capfd.readouterr().err
