"""OpBlackBox: the call that a process died in is named, whatever killed it."""

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import PYTHON, launched

import op_tools
import op_tools._tools.black_box_file
import op_tools._tools.black_boxes
from op_tools.__main__ import main
from op_tools._tools.black_box_file import ask_for_stacks, save_kept_calls
from op_tools._tools.launch import status_of_tools

# A kernel that fails as its argument says.
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
    launched("-c", PROGRAM, folder, what, where, check=False)
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
    parent = next(box for box in boxes if not box.parent)
    (child,) = (box for box in boxes if box.parent == parent.pid)
    assert len(boxes) == 2 and Path(child.path).parent == Path(parent.path).parent
    assert [row.op for row in parent.rows].count("aten::relu") == 1 and parent.open == []
    assert f"(forked from {parent.pid}) ended in" in child.verdict and "blackbox_test::kernel" in child.verdict
    assert [row.op for row in child.rows].count("aten::relu") == 5


WORKERS = """
import ctypes, os, sys, torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        x = torch.full((4,), float(index)).sinh()
        if index == int(sys.argv[1]):
            print("dies:", os.getpid(), flush=True)
            ctypes.string_at(0)
        return x.cosh()

for epoch in range(2):
    for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2):
        batch.sum()
"""


def run_with_tool(folder, program, *arguments):
    """Of op-tools run: how it ended, and the files."""
    (folder / "program.py").write_text(program)
    ran = launched("-m", "op_tools", "run", "--blackbox", "program.py", *arguments, cwd=folder, check=False)
    return ran, [op_tools.read_black_box(path) for path in sorted(folder.rglob("*.blackbox"))]


def test_the_worker_of_a_data_loader_that_died_is_named(tmp_path, capsys):
    ran, boxes = run_with_tool(tmp_path, WORKERS, "21")
    # The loader says it in several ways: the worker was killed, or its connection is closed.
    assert ran.returncode == 1 and "segmentation fault" in ran.stderr.lower(), ran.stderr
    main_process = next(box for box in boxes if not box.parent)
    (died,) = re.findall(r"dies: (\d+)", ran.stdout)
    dead = [box for box in boxes if box.parent == main_process.pid and box.pid == int(died)]
    assert len(dead) == 1 and len(boxes) <= 3, ran.stderr
    assert "ended outside of any operator; the last was aten::sinh" in dead[0].verdict
    assert "program.py:7 __getitem__" in dead[0].verdict
    assert main(["blackbox", str(tmp_path)]) == 0
    assert f"(forked from {main_process.pid}) ended outside of any operator" in capsys.readouterr().out.splitlines()[0]


def test_workers_that_end_as_they_should_leave_no_file(tmp_path):
    ran, boxes = run_with_tool(tmp_path, WORKERS, "-1")
    assert ran.returncode == 0, ran.stderr
    assert [(box.parent, box.closed) for box in boxes] == [(0, True)]


@pytest.mark.parametrize(("ends", "kept"), [("SystemExit(0)", 0), ("SystemExit(1)", 1), ("ValueError()", 1)])
def test_a_forked_process_that_fails_keeps_its_file(tmp_path, ends, kept):
    program = f"""
import multiprocessing, torch
def work():
    torch.ones(2).asinh()
    raise {ends}
torch.ones(2).acosh()
child = multiprocessing.get_context("fork").Process(target=work); child.start(); child.join()
"""
    _, boxes = run_with_tool(tmp_path, program)
    children = [box for box in boxes if box.parent]
    assert [box.rows[-1].op for box in children] == ["aten::asinh"] * kept


def test_a_tool_that_is_left_in_the_child_is_off_there(tmp_path):
    program = """
import os, sys, torch, op_tools
with op_tools.OpBlackBox(output_dir=sys.argv[1]) as box:
    child = os.fork()
    torch.ones(2).sinh()
torch.ones(2).cosh()
if child: os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert [row.op for row in box.result().rows] == ["aten::ones", "aten::sinh"], box.result().rows
with op_tools.OpBlackBox(output_dir=sys.argv[1]) as again: torch.ones(2).tanh()
assert [row.op for row in again.result().rows] == ["aten::ones", "aten::tanh"]
"""
    launched("-c", program, tmp_path)
    boxes = [op_tools.read_black_box(path) for path in tmp_path.rglob("*.blackbox")]
    assert len(boxes) == 3 and all(box.closed for box in boxes)


def test_processes_that_the_program_spawns_have_the_tool_and_their_ranks(tmp_path):
    program = """
import os, time, torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=3)
    x = torch.ones(2)
    dist.all_reduce(x)
    if rank == 2:
        time.sleep(1)
        os._exit(3)
    dist.all_reduce(x)
if __name__ == "__main__":
    mp.spawn(work, args=(os.path.abspath("rendezvous"),), nprocs=3)
"""
    ran, boxes = run_with_tool(tmp_path, program)
    assert "process 2 terminated with exit code 3" in ran.stderr
    ranks = {box.rank: box for box in boxes if any(row.number for row in box.rows)}
    assert sorted(ranks) == [0, 1, 2]
    assert not ranks[2].closed and "c10d::allreduce_" in ranks[2].verdict
    findings = op_tools._tools.black_boxes.collective_progress(list(ranks.values()))
    assert any("behind is rank 2" in line for line in findings), findings


def test_a_hanging_call_is_named_while_it_hangs_with_the_stacks_of_all_threads(tmp_path, capsys):
    command = [PYTHON, "-c", PROGRAM, str(tmp_path), "hang", "thread"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            # Imports of the operator's first call may take longer than the limit: that is reported, too.
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


def test_a_lock_that_the_program_waits_for_is_reported_with_its_line(tmp_path):
    program = """
import sys, threading, torch, op_tools

def wait_for_ever():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=60)

with op_tools.OpBlackBox(output_dir=sys.argv[1], stall=0.3):
    torch.ones(2).tanh()
    wait_for_ever()
"""
    command = [PYTHON, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = process.stderr.readline()
            (stacks,) = tmp_path.rglob("*.stacks")
            assert "is in no operator; the last was aten::tanh" in said
            assert "line 7 in wait_for_ever" in stacks.read_text()
        finally:
            process.kill()


def test_stacks_are_read_while_threads_run_and_the_program_lives_on(tmp_path):
    program = """
import subprocess, sys, threading, time, torch, op_tools

def dive():
    while not ended:
        names = {}  # the code of these frames is freed all the time
        exec("def deeper(depth): return depth and deeper(depth - 1)", names)
        names["deeper"](60)

ended = False
with op_tools.OpBlackBox(output_dir=sys.argv[1], stall=0.04):  # it looks for requests each 10 ms
    torch.relu(torch.randn(2))
    threads = [threading.Thread(target=dive) for _ in range(3)]
    for thread in threads: thread.start()
    print("on", flush=True)
    sys.stdin.readline()
    ended = True
    for thread in threads: thread.join()
print("ended", subprocess.run(["true"]).returncode, flush=True)
"""
    command = [PYTHON, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "on\n"
        (path,) = tmp_path.rglob("*.blackbox")
        stacks = [op_tools._tools.black_box_file.ask_for_stacks(path) for _ in range(30)]
        rest, _ = process.communicate("\n")
    assert process.returncode == 0 and rest == "ended 0\n"
    assert all("was there" in text.splitlines()[0] for text in stacks)
    assert sum("in dive" in text for text in stacks) >= 20


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
        with subprocess.Popen([PYTHON, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
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
        results = program()
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
    assert all(torch.equal(a, b) for a, b in zip(expected, results, strict=True))
    result = box.result()
    assert result.closed and result.alive and result.open == []
    assert {row.phase for row in result.rows if row.op == "aten::mm"} == {"forward", "backward"}
    assert [row.inputs for row in result.rows if row.state == "failed"] == ["float32[2, 3], float32[2, 3]"]
    assert any(row.module == "Sequential.0" for row in result.rows)
    assert all(row.ms >= 0 for row in result.rows)
    assert "no call was open; the last call raised: aten::mm (forward, " in result.verdict
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


def test_names_and_new_shapes_stay_when_descriptions_have_gone_round(tmp_path):
    """Dynamic shapes: more descriptions of inputs than have room in the file."""
    x = torch.zeros(8)
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        torch.relu(x)
        for number in range(8000):
            torch.cat([x[: number % 9]] * 60 + [x[:1].expand(number + 1)])
        torch.sigmoid(x)
        torch.relu(x)
        rows = box.result().rows
    assert [row.inputs for row in rows if row.op in ("aten::sigmoid", "aten::relu")] == ["float32[8]", "float32[8]"]
    assert all(row.op and row.line and row.inputs for row in rows)
    assert len({row.inputs for row in rows if row.op == "aten::cat"}) > 100


MANY_THREADS = """
import os, sys, threading
import torch, op_tools
count, output = int(sys.argv[1]), sys.argv[2]
threading.stack_size(1 << 18)
all_have_called, end = threading.Barrier(count), threading.Event()
@torch.library.custom_op("blackbox_test::die", mutates_args=())
def die(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), 9)
    return x.clone()
def work():
    torch.relu(torch.ones(3))
    all_have_called.wait()
    end.wait()
op_tools.OpBlackBox(output_dir=output, calls=16, stall=0).start()
for _ in range(count - 1): threading.Thread(target=work).start()
all_have_called.wait()  # whoever comes now comes last
threading.Thread(target=lambda: die(torch.ones(3))).start()
end.wait()
"""


@pytest.mark.parametrize("count", [80, 280])
def test_the_call_of_one_of_many_threads(tmp_path, count):
    """More threads than have a place in the file: it says so, and not that there was no call."""
    launched("-c", MANY_THREADS, count, tmp_path, check=False)
    (path,) = tmp_path.rglob("*.blackbox")
    box = op_tools.read_black_box(path)
    if count == 80:
        assert [row.op for row in box.open] == ["blackbox_test::die"] and box.left_out == 0
        assert "ended in blackbox_test::die" in box.verdict
    else:
        assert not box.open and box.left_out > 0
        assert "may have ended in one of the calls that have no place in the file" in box.verdict
        assert "outside" not in box.verdict


def test_a_link_beside_the_file_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        torch.relu(torch.ones(1))
        for suffix in (".copy", ".copy.tmp", ".stacks"):
            Path(box.path + suffix).symlink_to(victim)
        Path(box.path + ".ask").touch()
        ends = time.monotonic() + 60
        while Path(box.path + ".ask").exists() and time.monotonic() < ends:
            time.sleep(0.02)
        assert not Path(box.path + ".copy").is_symlink()
        assert op_tools.read_black_box(box.path + ".copy").copied
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("damage", ["empty", "short", "other", "cut", "numbers"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, damage, capsys):
    with op_tools.OpBlackBox(output_dir=tmp_path, calls=16) as box:
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


def test_a_lost_page_is_not_judged(tmp_path, capsys):
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        for _ in range(200):
            torch.relu(torch.ones(1))
    path, page = Path(box.path), 4096
    first, *others = (row.op.encode() for row in box.result().rows)
    data = path.read_bytes()
    assert others and data.count(first) == 1  # names stand there once
    lost = data.index(first) // page
    path.write_bytes(data[: lost * page] + bytes(page) + data[(lost + 1) * page :])
    assert main(["blackbox", str(path)]) == 2
    assert "NOT JUDGED: the file is damaged" in capsys.readouterr().out
    assert main(["blackbox", str(path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["lacks"] == ["damaged"]


def test_a_file_that_is_written_meanwhile_is_not_damaged(tmp_path):
    ended, damaged = threading.Event(), 0

    def compute() -> None:
        while not ended.is_set():
            torch.relu(torch.ones(1))

    with op_tools.OpBlackBox(output_dir=tmp_path, calls=64) as box:
        threads = [threading.Thread(target=compute) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            damaged += op_tools.read_black_box(box.path).damaged
        ended.set()
        for thread in threads:
            thread.join()
    assert damaged == 0


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


def test_a_file_that_cannot_be_read_does_not_hide_the_others(tmp_path, capsys):
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        torch.relu(torch.ones(1))
    assert status_of_tools([box]) == 0  # its sentence is no verdict about operators
    Path(box.path).with_name("other.blackbox").write_bytes(Path(box.path).read_bytes()[:5000])
    assert main(["blackbox", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "no call was open" in shown.out and "is cut off" in shown.err
    assert main(["blackbox", str(tmp_path), "--allow-unseen"]) == 0
    capsys.readouterr()
    assert main(["blackbox", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["lacks"] == []


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


# Calls on the simulated device, the first of each operator apart: it runs in the calling thread.
ON_DEVICE = """
import sys
import torch, op_tools
import op_tools.sim_device as sim

output, kind, asynchronous, inputs = sys.argv[1:]
sim.set_asynchronous(asynchronous == "1")
a = torch.arange(16.0).view(4, 4).to("sim")
torch.mm(a, a).relu()
torch.accelerator.synchronize()
with op_tools.OpBlackBox(output_dir=output, marks=1, inputs=int(inputs), inputs_ops="mm", stall=0.2):
    for _ in range(5):
        torch.mm(a, a).relu()
    torch.accelerator.synchronize()
    torch.abs(a)
    torch.accelerator.synchronize()
    sim.fault(kind, ops="mm").start()
    b = torch.mm(a, a)  # the guilty line
    for _ in range(3):
        torch.relu(a)
    torch.accelerator.synchronize()
"""


def device_program(folder, kind, asynchronous=True, inputs=0):
    return ["-c", ON_DEVICE, str(folder), kind, str(int(asynchronous)), str(inputs)]


def test_a_kernel_that_crashes_is_the_open_call_of_a_synchronous_device_and_runs_again_from_the_file(tmp_path):
    done = launched(*device_program(tmp_path, "crash", asynchronous=False, inputs=4), check=False)
    assert done.returncode == -signal.SIGSEGV
    (path,) = tmp_path.rglob("*.blackbox")
    box = op_tools.read_black_box(path)
    (guilty,) = box.open
    assert guilty.op == "aten::mm" and guilty.stored == "inputs" and guilty.line.endswith("<string>:18 <module>")
    assert main(["blackbox", str(path), "--save", str(tmp_path / "saved")]) == 0
    folders = sorted((tmp_path / "saved").rglob("meta.json"))
    assert len(folders) == 4, "of the last calls of this operator"
    call = op_tools.load_call(tmp_path / "saved" / "aten.mm" / str(guilty.id))
    assert torch.equal(call.args[0], torch.arange(16.0).view(4, 4)) and call.meta["level"] == "aten"
    report = tmp_path / "report.json"
    launched("-m", "op_tools.run_op_from_data", tmp_path / "saved", "--json", report)


def test_a_kernel_that_crashes_later_is_the_first_that_no_event_showed_to_be_done(tmp_path):
    assert launched(*device_program(tmp_path, "crash"), check=False).returncode == -signal.SIGSEGV
    (path,) = tmp_path.rglob("*.blackbox")
    box = op_tools.read_black_box(path)
    begun = [*box.suspects, *box.open]
    assert begun and begun[0].line.endswith("<string>:18 <module>")
    assert all(row.stream == "sim:0, stream 0" for row in begun)
    if box.suspects:
        assert "the last call known to be done is aten::abs" in box.device_verdict
        assert "--time-mode sync --time-level aten --no-time-lines --time-ops aten::" in box.device_verdict


def test_a_kernel_that_hangs_is_named_while_the_program_waits_outside_of_any_call(tmp_path, capsys):
    with subprocess.Popen([PYTHON, *device_program(tmp_path, "hang")], stderr=subprocess.PIPE, text=True) as process:
        try:
            while "no call has begun or ended" not in (line := process.stderr.readline()):
                assert line, "the process ended"
            assert "waits, and its device has not done aten::mm" in line and "<string>:18 <module>" in line
            (path,) = tmp_path.rglob("*.blackbox")
            copy = op_tools.read_black_box(f"{path}.copy")
            assert copy.copied is not None and "was in no operator when its file was copied" in copy.verdict
            assert copy.suspects[0].op == "aten::mm"
            Path(f"{path}.stacks").write_text("")
            assert main(["blackbox", str(path), "--stacks"]) == 0
            assert ".ask was there" in (asked := capsys.readouterr().out) and "in <module>" in asked
            assert main(["blackbox", str(path)]) == 0
            assert "launched since: 4, the first aten::mm" in capsys.readouterr().out
        finally:
            process.kill()
    with pytest.raises(op_tools.Error, match="does not live"):
        ask_for_stacks(path)


def test_the_command_that_it_names_makes_the_crash_the_open_call(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch
import op_tools.sim_device as sim

a = torch.ones(4, 4).to("sim")
for _ in range(3):
    torch.mm(a, a).relu()
sim.fault("crash", ops="mm").start()
torch.mm(a, a)
for _ in range(100):
    a.relu()
torch.accelerator.synchronize()
"""
    )
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    launched("-m", "op_tools", "run", "--blackbox", "--blackbox-output-dir", first, program, check=False, fresh=True)
    (path,) = first.rglob("*.blackbox")
    command = shlex.split(op_tools.read_black_box(path).device_verdict.partition("to name the guilty one: ")[2])
    assert command[-1] == str(program) and "aten::mm" in command[-2]
    done = launched("-m", "op_tools", *command[command.index("run") :], cwd=second, check=False)
    assert done.returncode == -signal.SIGSEGV
    (path,) = second.rglob("*.blackbox")
    (guilty,) = op_tools.read_black_box(path).open
    assert guilty.op == "aten::mm" and guilty.line.endswith("program.py:9 <module>")


def test_inputs_that_are_kept_are_those_before_the_call(tmp_path):
    torch.manual_seed(0)
    x = torch.arange(6.0).view(2, 3)
    large = torch.zeros(1 << 19)  # 2 MB
    with op_tools.OpBlackBox(output_dir=tmp_path, inputs=3, inputs_ops="aten::add_.*, bernoulli_.*, abs") as box:
        for _ in range(5):
            x.add_(1)
        drawn = torch.ones(100).bernoulli_(0.5)
        torch.abs(large)
        torch.relu(x)
    rows = {row.op: row.stored for row in box.result().rows}
    assert rows["aten::abs"] == "too large" and rows["aten::relu"] == ""
    places = save_kept_calls(box.path, tmp_path / "saved")
    assert len(places) == 3
    first = op_tools.load_call(places[0])
    assert torch.equal(first.args[0], torch.arange(6.0).view(2, 3) + 3)
    random_call = op_tools.load(places[-1] / "input.pth")
    assert random_call["name"] == "aten::bernoulli_.float"
    state = torch.get_rng_state()
    torch.set_rng_state(random_call["rng"]["cpu"])
    assert torch.equal(random_call["args"][0].bernoulli_(0.5), drawn), "the state is that before the call"
    torch.set_rng_state(state)


def test_a_file_without_inputs_is_told_so(tmp_path, capsys):
    with op_tools.OpBlackBox(output_dir=tmp_path) as box:
        torch.relu(torch.ones(1))
    assert main(["blackbox", box.path, "--save", str(tmp_path / "saved")]) == 2
    assert "keeps them with inputs=N" in capsys.readouterr().err
    assert not (tmp_path / "saved").exists()


def test_scopes_that_ended_leave_no_memory(tmp_path):
    def scopes(count):
        for _ in range(count):
            with op_tools.OpBlackBox(output_dir=tmp_path, calls=16):
                torch.ones(1)
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = scopes(40)
    assert scopes(200) - before < 3e6  # bytes; a thread's notes of a file take 32 KB
