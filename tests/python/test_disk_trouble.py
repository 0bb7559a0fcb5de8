"""Whatever happens to the disk while OpCapture writes: a single clear error, capture off, and the program's result unchanged."""

import shutil
import subprocess

import pytest
from conftest import launched

LAYOUTS = ["folders", "container"]

# Runs steps of training with capture on; `trouble(step)` is called before each.
PROGRAM = """
import os, resource, shutil, sys, torch, op_tools
import torch.nn.functional as F

def trouble(step):
    pass

TROUBLE

def numbers(before_step=lambda step: None):
    torch.manual_seed(0)
    x = torch.randn(100, 100, requires_grad=True)
    for step in range(12):
        before_step(step)
        F.linear(x[: 8 * step + 8], x).relu().sum().backward()
    return x.grad

expected = numbers()
tool = op_tools.OpCapture(format=FORMAT, output_dir=FOLDER)
def before_step(step):
    tool.flush()
    trouble(step)
trouble(-1)
with tool:
    result = numbers(before_step)
assert torch.equal(result, expected)
sys.stdout.write(tool.result().failure)
"""


def one_error(done):
    """The only error line; the program ended well."""
    errors = [line for line in done.stderr.splitlines() if "op_tools error" in line]
    assert len(errors) == 1, done.stderr
    assert "the program goes on" in errors[0]
    assert done.stdout and done.stdout in errors[0]
    assert "writing FAILED" in done.stderr.splitlines()[-1]
    return errors[0]


def program(layout, folder, trouble=""):
    return PROGRAM.replace("TROUBLE", trouble).replace("FORMAT", repr(layout)).replace("FOLDER", repr(str(folder)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folder_that_is_removed_while_the_program_runs(layout, python):
    error = one_error(
        python(
            program(
                layout,
                "out",
                """
def trouble(step):
    if step == 4:
        shutil.rmtree("out")
""",
            )
        )
    )
    assert "out/op_capture_result" in error and "No such file or directory" in error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_too_long_path(layout, python):
    error = one_error(python(program(layout, "out/" + "/".join(["x" * 250] * 20))))
    assert "File name too long" in error and "x" * 250 in error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_too_many_open_files(layout, python):
    # The container takes its file when the first call is written.
    when = 4 if layout == "folders" else -1
    error = one_error(
        python(
            program(
                layout,
                "out",
                f"""
def trouble(step):
    if step == {when}:
        most = len(os.listdir("/proc/self/fd")) - 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
""",
            )
        )
    )
    assert "Too many open files" in error and "out/op_capture_result" in error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unwritable_folder(layout, python, tmp_path):
    (tmp_path / "out").mkdir(mode=0o555)
    # Root may write everywhere; a thread that gave its capabilities away, and those that it starts, may not.
    without_rights = """
import ctypes, struct
def trouble(step):
    if step == -1:
        assert ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) == 0
"""
    assert "Permission denied" in one_error(python(program(layout, "out", without_rights)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folder_of_a_kind_that_holds_no_folders(layout, python):
    error = one_error(python(program(layout, "/proc/self/out")))
    assert "/proc/self/out" in error


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 600 kB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", folder]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_full_disk(layout, python, small_disk, replay):
    error = one_error(python(program(layout, small_disk)))
    assert "No space left on device" in error and str(small_disk) in error
    assert not list(small_disk.rglob("*.tmp"))
    report = replay(small_disk, "--acc_check", "-q")
    summary = report.summary
    assert summary["differs"] == 0 and summary["agrees"] == summary["bit_equal"] > 5
    # Files that the full disk cut off are named; all others are whole. The account, where it had room, says that calls are not there.
    cut_off = [problem for problem in report.json["problems"] if "could not be written to the disk" not in problem]
    assert len(cut_off) <= 2 and all("cut off" in problem for problem in cut_off)


WRITERS = """
import shutil, torch, op_tools

def step():
    torch.manual_seed(0)
    x = torch.randn(8, 8, requires_grad=True)
    torch.nn.functional.linear(x, x).log().tanh().sum().backward()
    return x.grad

expected = step()
for level in ("torch", "aten"):
    with op_tools.TOOL(level=level, output_dir=FOLDER):
        result = step()
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
"""


@pytest.mark.parametrize("place", ["full disk", "no folders"])
@pytest.mark.parametrize("tool", ["OpAutoCompare", "OpObserve", "OpOverflowCheck", "OpTimeMeasure"])
def test_every_tool_that_writes_says_it_once_and_leaves_the_program_alone(tool, place, python, request):
    if place == "full disk":
        folder = request.getfixturevalue("small_disk")
        folder.joinpath("all there is").write_bytes(bytes(596 << 10))
    else:
        folder = "/proc/self/out"
    done = python(WRITERS.replace("TOOL", tool).replace("FOLDER", repr(str(folder))))
    errors = [line for line in done.stderr.splitlines() if "op_tools error" in line]
    assert len(errors) == 2, done.stderr  # an error for each level
    assert all(tool in line and str(folder) in line and "goes on" in line for line in errors)


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_overflow_check_goes_on_without_files(level, python):
    text = f"""
import torch, op_tools

with op_tools.OpOverflowCheck(level={level!r}, output_dir="/proc/self/out") as tool:
    for _ in range(3):
        torch.zeros(4).log()
result = tool.result()
assert (result.producers, len(result.rows)) == (3, 3), result
assert "/proc/self/out" in result.failure and result.rows[0].not_saved == result.failure
assert not result.ok and result.verdict.name == "DIFFERS"
"""
    done = python(text)
    assert len([line for line in done.stderr.splitlines() if "op_tools error" in line]) == 1


def test_a_file_of_rows_stops_growing_and_wrong_results_are_still_written(python, tmp_path):
    text = f"""
import csv, torch, op_tools, op_tools.sim_device as sim
from pathlib import Path

x = torch.ones(4, device="sim")
with op_tools.OpAutoCompare(level="aten", output_dir={str(tmp_path)!r}) as tool, op_tools.OpTimeMeasure(
    level="aten", lines=False, output_dir={str(tmp_path)!r}
) as time:
    for _ in range(100):
        x + x
    with sim.fault("scale", "aten::mul.Tensor"):
        x * x
result = tool.result()
assert (result.passed, result.failed) == (100, 1)
time.result()
(rows,), (calls,) = (list(Path({str(tmp_path)!r}).rglob(name)) for name in ("autocompare.csv", "calls.csv"))
verdicts = [row["verdict"] for row in csv.DictReader(rows.open())]
print(verdicts.count("agrees"), verdicts.count("differs"), len(calls.read_text().splitlines()) - 1)
"""
    done = python(text, OP_TOOLS_MAX_ROWS_GB="8e-6")
    agrees, differs, calls = map(int, done.stdout.split()[-3:])
    assert 0 < agrees < 50 and differs == 1 and 0 < calls < 100
    full = [line for line in done.stderr.splitlines() if "further rows are left out" in line]
    assert len(full) == 2 and all("OP_TOOLS_MAX_ROWS_GB" in line for line in full)


CHANGES_FOLDER = """
import os, torch, op_tools, op_tools.sim_device as sim

x = torch.ones(4, 4, device="sim")
os.makedirs("work", exist_ok=True)
with op_tools.TOOL(WHERE) as tool, sim.fault("nan", "aten::exp"):
    x + x
    os.chdir("work")
    x.exp()
    x @ x
print(tool.result().coverage.lost, tool.coverage().off)
"""

WRITERS_OF_RUNS = {
    "OpCapture": "meta.json",
    "OpAutoCompare": "input.pth",
    "OpObserve": "calls.jsonl",
    "OpOverflowCheck": "overflow.jsonl",
    "OpTimeMeasure": "calls.csv",
    "OpMemoryCheck": "memory.csv",
    "OpRecord": "*.oprec",
    "OpBlackBox": "*.blackbox",
    "OpInvariance": "invariance.jsonl",
}


@pytest.mark.parametrize("where", ["", "output_dir='out'"], ids=["default", "out"])
@pytest.mark.parametrize("tool", WRITERS_OF_RUNS)
def test_results_are_in_the_folder_in_which_a_program_began(tool, where, python, tmp_path):
    text = CHANGES_FOLDER.replace("TOOL", tool).replace("WHERE", where)
    done = python(text)
    assert "op_tools error" not in done.stderr and "{} False" in done.stdout
    begun = tmp_path / "out" if where else tmp_path
    assert list(begun.rglob(WRITERS_OF_RUNS[tool]))
    assert tool in ("OpRecord", "OpBlackBox") or list(begun.rglob("coverage.json"))
    assert not list((tmp_path / "work").rglob("*.*"))


REMOVED = """
import shutil, torch, op_tools

def step():
    torch.manual_seed(0)
    x = torch.randn(8, 8, requires_grad=True)
    torch.nn.functional.linear(x, x).tanh().sum().backward()
    return x.grad

expected = step()
with op_tools.TOOL(level=LEVEL, output_dir="out") as tool:
    for number in range(4):
        result = step()
        tool.step()
        if number == 1:
            tool.flush()
            shutil.rmtree("out")
assert torch.equal(result, expected)
"""


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("tool", ["OpRecord", "OpObserve"])
def test_a_file_that_is_removed_while_it_is_written_is_an_error(tool, level, python):
    done = python(REMOVED.replace("TOOL", tool).replace("LEVEL", repr(level)))
    errors = [line for line in done.stderr.splitlines() if "op_tools error" in line]
    assert len(errors) == 1, done.stderr
    assert tool in errors[0] and "/out/" in errors[0] and "removed while it was written" in errors[0]
    assert "calls in" not in done.stderr or tool != "OpRecord"  # no summary of a file that is gone


def test_a_comparison_whose_own_recording_is_removed_says_so(python):
    text = """
import pathlib, torch, op_tools

def train(tool, trouble):
    net = torch.nn.Linear(3, 3)
    method = torch.optim.SGD(net.parameters(), lr=0.1)
    with tool:
        for number in range(4):
            net(torch.ones(2, 3)).sum().backward()
            method.step()
            if trouble and number == 1:
                [file.unlink() for file in pathlib.Path("op_against_result").glob("*.oprec")]

train(op_tools.OpRecord(output_dir="a"), False)
train(op_tools.OpAgainst("a"), True)
"""
    done = python(text)
    (error,) = [line for line in done.stderr.splitlines() if "op_tools error: OpRecord" in line]
    assert "op_against_result" in error and "removed while it was written" in error


@pytest.mark.parametrize("kilobytes", [40, 200])
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_a_black_box_that_finds_no_room_says_so(level, kilobytes, small_disk, tmp_path):
    small_disk.joinpath("all but that").write_bytes(bytes((596 - kilobytes) << 10))
    program = tmp_path / "program.py"
    program.write_text("import torch\nfor _ in range(9):\n    torch.ones(3).relu()\nprint('done')\n")
    options = ["--blackbox", "--level", level, "--output-dir", str(small_disk), "--fail-on-wrong"]
    done = launched("-m", "op_tools", "run", *options, program, check=False)
    assert done.stdout == "done\n" and done.returncode == 2, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if "op_tools error" in line]
    assert "OpBlackBox" in error and str(small_disk) in error and "No space left on device" in error
    assert "NOT JUDGED" in done.stderr and "no room" in done.stderr
    allowed = launched("-m", "op_tools", "run", *options, "--allow-unseen", program, check=False)
    assert allowed.returncode == 0
