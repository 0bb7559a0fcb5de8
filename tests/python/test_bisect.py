"""op_tools.bisect() and op-tools bisect find the operators that have to move; their answers where there are none."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from models import LeNet, digits

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main
from op_tools._base.own_command import op_tools_line
from op_tools._bisect.outcome import BisectJudge, Metric, Outcome, curve_distance, read_reference
from op_tools._bisect.processes import State

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _no_fault_stays():
    yield
    sim.faults_clear()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 16), torch.nn.Linear(16, 10)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x.flatten(1))).sigmoid())


def training(model=Net, steps=3):
    """run() and a checkpoint for it."""
    torch.manual_seed(7)
    images, labels = digits()
    network = model().to("sim")
    method = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)

    def run(tool):
        for step in range(steps):
            rows = slice(step * 16, (step + 1) * 16)
            method.zero_grad()
            loss = F.cross_entropy(network(images[rows].to("sim")), labels[rows].to("sim"))
            loss.backward()
            method.step()
            yield loss.item()

    return run, op_tools.Checkpoint(network, method)


def places(result):
    return sorted((one["op"], one["phase"]) for one in result.culprits)


@pytest.mark.parametrize(
    ("ops", "kind", "expected"),
    [
        ("tanh", "scale", [("aten::tanh", "forward")]),
        ("sigmoid_backward", "scale", [("aten::sigmoid_backward", "backward")]),
        ("tanh|sigmoid_backward", "element", [("aten::sigmoid_backward", "backward"), ("aten::tanh", "forward")]),
        ("tanh", "nan", [("aten::tanh", "forward")]),
        ("sigmoid", "exception", [("aten::sigmoid", "forward")]),
    ],
)
def test_planted_operators_are_found(ops, kind, expected):
    run, checkpoint = training()
    with sim.fault(kind, ops=ops):
        result = op_tools.bisect(run, checkpoint=checkpoint)
    assert result.verdict == "found" and places(result) == expected, result.table()
    assert result.placebo is False and result.status == 0
    saved = [json.loads((Path(folder) / "meta.json").read_text())["name"] for folder in result.captured]
    assert sorted(saved) == sorted(op for op, _ in expected)
    assert all(f"next: {op_tools_line('repro', folder)}" in result.table() for folder in result.captured)


def test_a_culprit_has_its_module_and_line():
    run, checkpoint = training()
    with sim.fault("scale", ops="tanh"):
        (culprit,) = op_tools.bisect(run, checkpoint=checkpoint).culprits
    assert culprit["module"] == "Net" and "test_bisect.py:" in culprit["line"] and culprit["calls"] == 1


def test_one_call_of_many():
    """The operator is wrong for large inputs only: a single call of it in each step."""
    run, checkpoint = training(LeNet)
    with sim.fault("above_size", ops="relu", size=3000):
        result = op_tools.bisect(run, checkpoint=checkpoint)
    assert [one["op"] for one in result.culprits] == ["aten::relu"] and result.culprits[0]["calls"] == 1, result.table()


def test_a_late_write_is_recognised_by_the_placebo():
    run, checkpoint = training()
    with sim.fault("late_write", ops="tanh"):
        result = op_tools.bisect(run, checkpoint=checkpoint)
    assert result.placebo is True and "race" in result.explanation, result.table()
    assert ("aten::tanh", "forward") in places(result)


def test_a_late_write_to_parameters_does_not_arrive_in_the_next_trial():
    """Work that the last step of a trial left under way would change the parameters that are restored for the next trial."""
    run, checkpoint = training()
    with sim.fault("late_write", ops="_foreach_add_.List"):
        result = op_tools.bisect(run, checkpoint=checkpoint)
    assert result.placebo is True, result.table()
    assert places(result) == [("aten::_foreach_add_.List", "forward")]


def test_a_checkpoint_waits_for_what_is_under_way():
    parameter = torch.nn.Linear(2, 2).to("sim")
    right = [one.cpu() for one in parameter.parameters()]
    with sim.fault("late_write", ops="mul_"), torch.no_grad():
        for weight in parameter.parameters():
            weight.mul_(2)
        checkpoint = op_tools.Checkpoint(parameter)
        for weight in parameter.parameters():
            weight.mul_(2)
        checkpoint.restore()
        torch.accelerator.synchronize()
    assert all(torch.equal(one.cpu(), 2 * old) for one, old in zip(parameter.parameters(), right, strict=True))


def test_float32_is_enough():
    """A kernel that is too coarse for bfloat16, not for float32: the other remedies do not know."""

    def run(tool):
        x = torch.linspace(0.1, 3, 64, device="sim").bfloat16()
        yield torch.tanh(x).float().sum().item()

    right = list(run(None))
    with sim.fault("low_precision", ops="tanh"):
        result = op_tools.bisect(run, op_tools.BisectJudge(right, band=1e-3), remedy="float32")
    assert places(result) == [("aten::tanh", "forward")] and "float32" in result.explanation
    assert result.placebo is False


def test_nothing_wrong_is_inconsistent():
    run, checkpoint = training()
    result = op_tools.bisect(run, checkpoint=checkpoint)
    assert result.verdict == "inconsistent" and "nothing to find" in result.explanation and result.status == 2


def test_wrong_data_is_no_operator():
    run, checkpoint = training()
    result = op_tools.bisect(run, [9.0, 9.0, 9.0], checkpoint=checkpoint)
    assert result.verdict == "not an operator" and result.status == 1 and result.runs == 6


def cancelling(further):
    def run(tool):
        x = torch.linspace(-1, 1, 16, device="sim")
        yield (torch.tanh(x) * torch.cos(x)).sigmoid().square().sum().item()

    with sim.fault("scale", ops="tanh", scale=2), sim.fault("scale", ops="cos", scale=further):
        return op_tools.bisect(run)


def test_errors_that_cancel_in_part_are_inconsistent():
    result = cancelling(0.55)
    assert result.verdict == "inconsistent" and "cancel" in result.explanation, result.table()
    assert places(result) == [("aten::cos", "forward"), ("aten::tanh", "forward")]


def test_errors_that_cancel_do_not_hide_a_third():
    """They change nothing while both stay, and the set that heals without them is a right answer."""
    with sim.fault("scale", ops="sigmoid", scale=1.5):
        result = cancelling(0.5)
    assert result.verdict == "inconsistent" or places(result) == [("aten::sigmoid", "forward")], result.table()


def test_a_checkpoint_restores_all():
    run, checkpoint = training()
    noise = torch.Generator().manual_seed(3)
    checkpoint_of_noise = op_tools.Checkpoint(noise)
    first, numbers = list(run(None)), torch.rand(3, generator=noise)
    checkpoint.restore()
    checkpoint_of_noise.restore()
    assert list(run(None)) == first
    assert torch.equal(torch.rand(3, generator=noise), numbers)


def test_suspects_come_first():
    run, checkpoint = training()
    with sim.fault("scale", ops="tanh"):
        with op_tools.OpAutoCompare(level="aten", output_dir="suspects"):
            list(run(None))
        checkpoint.restore()
        without = op_tools.bisect(run, checkpoint=checkpoint, suspects="none")
        ranked = op_tools.bisect(run, checkpoint=checkpoint, suspects="suspects")
    assert places(ranked) == places(without) and ranked.runs < without.runs


def test_suspects_are_found_by_itself():
    run, checkpoint = training(LeNet)
    said = []
    with sim.fault("scale", ops="max_pool2d_with_indices_backward"):
        without = op_tools.bisect(run, checkpoint=checkpoint, suspects="none")
        result = op_tools.bisect(run, checkpoint=checkpoint, say=said.append)
    assert set(places(result)) == set(places(without)) == {("aten::max_pool2d_with_indices_backward", "backward")}
    assert any("1 operator wrong: aten::max_pool2d_with_indices_backward" in line for line in said), said
    assert result.runs < without.runs


@pytest.fixture(scope="module")
def of_300_operators():
    """A program that calls 300 operators once each."""
    library = torch.library.Library("many", "DEF")
    for number in range(300):
        library.define(f"op{number}(Tensor x) -> Tensor")
        library.impl(f"op{number}", torch.sin if number % 2 else torch.cos, "CPU")

    def run(tool):
        x = torch.linspace(0, 1, 4, device="sim")
        yield sum(getattr(torch.ops.many, f"op{number}")(x) for number in range(300)).sum().item()

    yield run
    library._destroy()


@pytest.mark.parametrize("number", [0, 123, 299])
def test_one_of_300_operators_takes_few_runs(of_300_operators, number):
    with sim.fault("scale", ops=f"many::op{number}", scale=1.5):
        result = op_tools.bisect(of_300_operators, suspects="none")
        with op_tools.OpAutoCompare(level="aten", output_dir="suspects"):
            list(of_300_operators(None))
        ranked = op_tools.bisect(of_300_operators, suspects="suspects")
    for bisected, most in ((result, 12), (ranked, 5)):
        assert places(bisected) == [(f"many::op{number}", "forward")], bisected.table()
        search = bisected.runs_for.pop("search")
        assert search <= most and bisected.runs_for == {"opening": 6, "confirmation": 1, "placebo": 1}
        assert bisected.runs == search + 8


def test_an_operator_that_is_wrong_in_all_its_calls_is_not_searched_for_single_ones():
    """Four tests show that more than three of its 16 calls are needed."""

    def run(tool):
        yield sum(torch.tanh(torch.full([2], 0.1 * number, device="sim")) for number in range(16)).sum().item()

    with sim.fault("scale", ops="tanh", scale=1.5):
        result = op_tools.bisect(run, suspects="none")
    assert places(result) == [("aten::tanh", "forward")] and result.culprits[0]["calls"] == 16
    assert result.runs_for["lines and calls"] == 4 and "4 lines and calls" in result.table()


def test_what_is_expected_and_known_is_drawn(monkeypatch):
    drawn = []
    monkeypatch.setattr(op_tools._bisect.program, "log_progress", drawn.append)
    run, checkpoint = training()
    with sim.fault("scale", ops="tanh"):
        result = op_tools.bisect(run, checkpoint=checkpoint, suspects="none")
    bars = [line for line in drawn if line]
    assert bars[0].startswith("bisect [....................] run 1 of about 6;") and "opening" in bars[0]
    assert any(re.search(r"\[#+\.*\] run 8 of about \d+, \d+ s left; ", line) for line in bars), bars
    assert "aten::tanh forward" in bars[-1] and f"run {result.runs} of about" in bars[-1]
    assert drawn[-1] == "", "the line is cleared at the end"


def test_operators_behind_one_that_ends_the_program_are_found():
    """Nothing is listed behind the first exception: calls there are seen once its operator is moved."""
    run, checkpoint = training()
    with sim.fault("exception", ops="tanh|_log_softmax|sigmoid_backward"):
        result = op_tools.bisect(run, checkpoint=checkpoint)
    expected = [("aten::_log_softmax", "forward"), ("aten::sigmoid_backward", "backward"), ("aten::tanh", "forward")]
    assert result.verdict == "found" and places(result) == expected, result.table()


def test_a_fault_that_does_not_show_each_time():
    """A set is tried several times once its answers vary."""
    for seed in range(5):
        run, checkpoint = training(steps=2)
        with sim.fault("scale", ops="tanh|sigmoid_backward", scale=2, probability=0.7, seed=seed):
            result = op_tools.bisect(run, checkpoint=checkpoint)
        culprits = [("aten::sigmoid_backward", "backward"), ("aten::tanh", "forward")]
        assert result.verdict == "found" and places(result) == culprits, result.table()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("step 3 loss 0.5", [0.5]),
        ("Loss: 1e-3", [0.001]),
        ('{"step": 1, "loss": 2.5}', [2.5]),
        ("loss=0.25 lr=0.1", [0.25]),
        ("glossy 3", []),
        ("loss none", []),
        ("[0.5, 0.25]", [0.5, 0.25]),
        ('{"loss": [1, 2.5]}', [1.0, 2.5]),
        ("[op_tools] warning: loss 3", []),
        ("op-tools: loss 3", []),
    ],
)
def test_numbers_of_lines(text, numbers):
    assert Metric().numbers(text) == numbers


def test_a_program_without_numbers_is_an_error_after_one_run(capfd):
    Path("quiet.py").write_text("print('hello')")
    assert main(["bisect", "--", "quiet.py"]) == 2
    said = capfd.readouterr().err
    assert "--metric" in said and "hello" in said
    assert len(list(Path("op_bisect_result").glob("run*"))) == 1


def test_the_band_with_a_reference_is_measured():
    right, wrong = Outcome([0.5, 0.25]), Outcome([0.5, 0.252])  # off by 0.8 %
    judge = BisectJudge([0.5, 0.25])
    assert not judge.settle([wrong] * 3, [right] * 3)
    assert judge.answer(wrong) == "bad" and judge.answer(right) == "good"


def test_what_rounds_otherwise_is_inside_the_band():
    judge, rounded = BisectJudge([0.5, 0.25]), Outcome([0.5, 0.2500001])
    judge.settle([rounded] * 3, [Outcome([0.5, 0.25])] * 3)
    assert judge.answer(rounded) == "good"


def test_distance():
    assert curve_distance([1.0, 2.0], [1.0, 2.0]) == 0
    assert curve_distance([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert curve_distance([float("nan")], [1.0]) == float("inf")
    assert curve_distance([1.0], [1.0, 5.0]) == 0, "not at its end yet"


@pytest.mark.parametrize("text", ["[0.5, 0.25]", '{"loss": [0.5, 0.25]}', "loss 0.5\nloss 0.25\n"])
def test_references(tmp_path, text):
    (tmp_path / "ref").write_text(text)
    assert read_reference(str(tmp_path / "ref"), Metric()) == [0.5, 0.25]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which program"),
        (["--timeout", "-1", "--", "x.py"], "--timeout: -1 is not allowed"),
        (["--timeout", "nan", "--", "x.py"], "--timeout: nan is not allowed"),
        (["--jobs", "0", "--", "x.py"], "--jobs: 0 is not allowed"),
        (["--band", "nan", "--", "x.py"], "--band: nan is not allowed"),
        (["--band", "-1", "--", "x.py"], "--band: -1 is not allowed"),
        (["--metric", "(", "--", "x.py"], "regular expression"),
        (["--reference", "r", "--check", "true", "--", "x.py"], "the one or the other"),
        (["--", "nothing.py"], "nothing.py: there is no such script"),
        (["--", "this python", "nothing.py"], "nothing.py: there is no such script"),
    ],
)
def test_wrong_usage(arguments, said, capsys):
    Path("x.py").touch()
    try:
        status = main(["bisect", *(sys.executable if word == "this python" else word for word in arguments)])
    except SystemExit as end:
        status = end.code
    assert status == 64
    assert said in capsys.readouterr().err
    assert not Path("op_bisect_result").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reference", "missing", "--", "x.py"], "missing"),
        (["--suspects", "missing", "--", "x.py"], "missing"),
        (["--resume", "--", "x.py"], "state.jsonl"),
        (["--", "./no_such_program"], "no_such_program"),
    ],
)
def test_what_cannot_be_read_or_started_is_named(arguments, said, capsys):
    Path("x.py").touch()
    assert main(["bisect", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_wrong_arguments():
    with pytest.raises(op_tools.Error, match="remedy"):
        op_tools.bisect(lambda tool: [], remedy="hope")
    Path("autocompare.csv").write_text("a,b\n1,2\n")
    with pytest.raises(op_tools.Error, match="no table"):
        op_tools.bisect(lambda tool: [], suspects="autocompare.csv")


def test_a_list_of_calls_is_checked():
    Path("calls").write_text("not hexadecimal\n")
    with pytest.raises(op_tools.Error, match="16 hexadecimal"):
        op_tools.OpFallback(level="aten", only_calls="calls").start()
    with pytest.raises(op_tools.Error, match="only_calls"):
        op_tools.OpCapture(only_calls="missing").start()


SCRIPT = """
import os, signal, sys, time
import torch
import op_tools.sim_device

library = torch.library.Library("shop", "DEF")
library.define("guilty(Tensor x) -> Tensor")
library.impl("guilty", lambda x: x * 2, "CPU")

def on_device(x):
    if sys.argv[1] == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if sys.argv[1] == "hang":
        time.sleep(1000)
    return x * 2.5

library.impl("guilty", on_device, "PrivateUse1")
if sys.argv[1] == "ranks":
    torch.distributed.init_process_group("gloo")
x = torch.linspace(0, 1, 4, device="sim")
for step in range(2):
    loss = torch.ops.shop.guilty(x.tanh()).exp().sum().cpu()
    if sys.argv[1] == "ranks":
        torch.distributed.all_reduce(loss)
    if os.environ.get("RANK", "0") == "0":
        print("loss", loss.item(), flush=True)
if sys.argv[1] == "ranks":
    time.sleep(1)  # gloo's thread aborts where Python ends before it frees the last work
    torch.distributed.destroy_process_group()
"""


def driver(*arguments, launcher=(), kind="wrong", program=("train.py",)):
    Path("train.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OP_TOOLS_LOG_LEVEL": "error"}
    command = [
        sys.executable,
        "-m",
        "op_tools",
        "bisect",
        "--json",
        "result.json",
        *arguments,
        "--",
        *launcher,
        *program,
        kind,
    ]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(process, status=0):
    out, _ = process.communicate(timeout=500)
    assert process.returncode == status, out
    return json.loads(Path("result.json").read_text()), out


@pytest.mark.parametrize(
    ("kind", "options"), [("crash", ["--jobs", "2"]), ("hang", ["--timeout", "20", "--jobs", "2"])]
)
def test_a_script_that_crashes_or_hangs(kind, options):
    result, out = finished(driver(*options, kind=kind))
    assert [one["op"] for one in result["culprits"]] == ["shop::guilty"], out
    assert "train.py:" in result["culprits"][0]["line"] and result["runs"] <= 14
    (captured,) = result["captured"]
    assert (Path(captured) / "input.pth").exists(), "saved in a run in which it is moved"


def test_a_state_knows_what_ended_and_kills_what_a_killed_driver_left():
    state = State(Path("state"), {"command": 1}, resume=False)
    state.begin(1, "ended", os.getpid())
    state.end(1, Outcome([1.0], seconds=2.0))
    left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    state.begin(2, "left", left.pid)
    again = State(Path("state"), {"command": 1}, resume=True)
    assert left.wait(timeout=30) == -signal.SIGKILL
    assert again.known("ended") == Outcome([1.0], seconds=2.0)
    assert again.known("ended") is None, "each once"
    assert again.known("left") is None, "the driver was killed, not the machine: it is run again"
    with pytest.raises(op_tools.Error, match="another command"):
        State(Path("state"), {"command": 2}, resume=True)
    with pytest.raises(op_tools.Error, match="--resume"):
        State(Path("state"), {"command": 1}, resume=False)


def test_a_run_in_which_the_machine_went_down_is_bad():
    state = State(Path("state"), {}, resume=False)
    state.begin(1, "guilty", os.getpid())
    text = Path("state").read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    Path("state").write_text(text.replace(boot, "another") + '{"end": 1, "outc')
    outcome = State(Path("state"), {}, resume=True).known("guilty")
    assert outcome is not None and outcome.ended == "crashed"


@pytest.mark.parametrize(
    ("damage", "known"),
    [
        (lambda lines: [*lines[:1], bytes(len(lines[1])), *lines[2:]], ["b"]),  # its begin
        (lambda lines: [*lines[:2], bytes(len(lines[2])), *lines[3:]], ["b"]),  # its end
        (lambda lines: [*lines[:2], lines[2].replace(b"note", b"n\xffte"), *lines[3:]], ["b"]),
        (lambda lines: [*lines[:2], lines[2].replace(b"[1.0]", b'["x"]'), *lines[3:]], ["b"]),
        (lambda lines: [*lines[:2], lines[2].replace(b"done", b"over"), *lines[3:]], ["b"]),
        (lambda lines: [*lines[:1], b"null", b"[]", b"{}", b'{"end": 9, "outcome": {}}', *lines[1:]], ["a", "b"]),
    ],
)
def test_a_damaged_line_of_a_state_is_a_run_that_is_made_again(damage, known):
    state = State(Path("state"), {}, resume=False)
    for number, key in enumerate("ab", 1):
        state.begin(number, key, os.getpid())
        state.end(number, Outcome([1.0]))
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    lines = Path("state").read_bytes().replace(boot, b"another").splitlines()
    Path("state").write_bytes(b"\n".join(damage(lines)) + b"\n")
    again = State(Path("state"), {}, resume=True)
    assert [key for key in "ab" if again.known(key)] == known


def test_a_line_behind_a_line_that_was_cut_is_read():
    state = State(Path("state"), {}, resume=False)
    with Path("state").open("a") as file:
        file.write('{"begin": 1, "k')
    state.begin(2, "a", os.getpid())
    state.end(2, Outcome([1.0]))
    assert State(Path("state"), {}, resume=True).known("a")


def test_resume_after_kill():
    process = driver()
    state = Path("op_bisect_result/state.jsonl")
    while not (state.exists() and state.read_text().count('"end"') >= 4):
        assert process.poll() is None and not time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = state.read_text().count('"end"')
    result, out = finished(driver("--resume"))
    assert [one["op"] for one in result["culprits"]] == ["shop::guilty"], out
    runs = state.read_text().count('"end"')
    assert before >= 4 and runs == result["runs"], "no run was made twice"


def test_two_ranks():
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    result, out = finished(driver("--jobs", "2", launcher=launcher, kind="ranks"))
    assert [one["op"] for one in result["culprits"]] == ["shop::guilty"], out


@pytest.mark.parametrize(
    ("check", "status", "verdict", "said"),
    [
        ("grep -q 'loss 9[0-9][0-9]'", 1, "not an operator", "--check: exit status 1"),
        ("grep -q 'loss 5'", 2, "inconsistent", "with nothing moved the result is right"),
    ],
)
def test_a_check_and_the_exit_statuses(check, status, verdict, said):
    """The program needs no torch: it prints the same in each run."""
    result, _ = finished(driver("--check", check, kind="loss 5", program=("echo",)), status=status)
    assert result["verdict"] == verdict and said in result["explanation"]
    assert result["culprits"] == [] and result["runs"] == 6


EARLIER = """
import concurrent.futures, threading
earlier = concurrent.futures.ThreadPoolExecutor(1)
earlier.submit(int).result()
import torch, op_tools.sim_device

def start():
    thread = threading.Thread(target=lambda: torch.ones(2, device="sim") * 2)
    thread.start()
    thread.join()

"""


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("torch.ones(2)", "no operator of the program can be moved: none ran on a device"),
        # Some of its operators are those of a thread that was started by a thread which was there before the tool.
        ("x = torch.ones(2, device='sim') * 2\nearlier.submit(start).result()", "unseen"),
    ],
)
def test_what_was_not_looked_at_is_no_operator_s_matter(program, why):
    """With everything moved the program is wrong as well; that says nothing of operators which could not be moved."""
    Path("reference.json").write_text("[9.0]")
    Path("program.py").write_text(EARLIER + program + "\nprint('loss', 1.0)\n")
    result, _ = finished(driver("--reference", "reference.json", program=("program.py",)), status=2)
    assert result["verdict"] == "not judged" and why in result["explanation"], result


def plain(session):
    """Without values that differ from run to run: times, folders, and the widths of columns with folders."""
    session = re.sub(r" {2,}", "  ", re.sub(r"\S*/(?=[\w.]+)", "", session))
    session = re.sub(r"[\d.e+]+(?= times its limit)|^torch \S+, .*", "N", session)
    return re.sub(r"\b\d+ (s|min)\b", "N s", session).strip()


@pytest.mark.usefixtures("op_tools_on_path")
def test_the_sessions_of_the_page_are_what_is_printed(build_dir):
    """From a wrong loss to a script that ends with status 1 on the device, and with 0 on the CPU."""
    page = (ROOT / "docs" / "bisect.md").read_text()
    Path("train.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    environment = {**os.environ, "OP_TOOLS_LOG_LEVEL": "error"}
    environment["OP_TOOLS_SIM_FAULTS"] = "scale:ops=tanh_backward,scale=1.5"

    def printed(*command, status=0, path=str(ROOT)):
        done = subprocess.run(
            [sys.executable, *command],
            env={**environment, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def shown(name):
        return plain(page.split(f"<!-- session: {name} -->\n```text\n")[1].split("```")[0])

    out = printed("-m", "op_tools", "bisect", "--", "train.py")
    assert shown("bisect") == plain(out)
    folder = out.split("next: op-tools repro ")[1].strip()
    library = str(build_dir / "libop_tools_sim_device.so")
    assert shown("repro") == plain(printed("-m", "op_tools", "repro", folder, "--shrink", "--load", library))
    assert shown("device") == plain(printed("repro.py", status=1, path=""))
    assert printed("repro.py", "cpu", path="").splitlines()[-1] == "right"
