"""op-tools repro: the content of its scripts, their agreement with OpAutoCompare, and hostile files."""

import contextlib
import io
import json
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "proofs"))
import repro_verdicts

import op_tools
import op_tools.sim_device as sim
from op_tools.__main__ import main as command
from op_tools._conformance.case import make_call
from op_tools._conformance.lists import our_list
from op_tools._conformance.shard_run import sampled
from op_tools.repro import Plan, make, shrink
from op_tools.repro._cpp import cpp_text, quoted, write_cpp
from op_tools.repro._expected import name_of, read_expected
from op_tools.repro._literals import comment, dotted, expression, flat_tensor, same_bits
from op_tools.repro._make import Made, plan_for
from op_tools.repro._saved import function_of, read_saved
from op_tools.repro._script import write
from op_tools.repro._trial import Judged
from op_tools.run_op_from_data import main as run_op_from_data

ADDMM = "scale:ops=aten::mm|aten::addmm,scale=1.5"


@pytest.fixture
def library(build_dir):
    return str(build_dir / "libop_tools_sim_device.so")


def saved_failure(work, kind, level="torch", **fault):
    """The folder of the first failure of `work` with a fault."""
    with sim.fault(kind, **fault), op_tools.OpAutoCompare(level=level) as tool:
        work()
    saved = [row.saved for row in tool.result().failures if row.saved]
    assert saved, "the fault made no failure"
    return f"{saved[0]}/device"


def captured(work):
    """The folder of the only call of `work`."""
    with op_tools.OpCapture() as capture:
        work()
    (folder,) = Path(capture.result().root).glob("*/*")
    return str(folder)


def made_script(folder, library, monkeypatch, fault, path="repro.py", plan=None, runs=1):
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", fault)
    lines = []
    saved, judged, result = make(
        folder, Path(path), plan or Plan("sim", libraries=(library,)), 120, lines.append, runs=runs
    )
    return saved, judged, result, lines


def run(path, *arguments, fault=""):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, path, *arguments],
        env={**environment, "OP_TOOLS_SIM_FAULTS": fault},
        capture_output=True,
        text=True,
        timeout=120,
    )


def linear():
    torch.manual_seed(1)
    x = torch.randn(4, 8, device="sim", requires_grad=True)
    torch.nn.Linear(8, 3).to("sim")(x).sum().backward()


def evaluated(text, **names):
    """The value of an expression of a script."""
    return eval(text, {"torch": torch, "inf": math.inf, "nan": math.nan, **names})  # noqa: S307


# --- Values


def special(dtype):
    info = torch.finfo(dtype)
    numbers = [0.0, -0.0, 1.0, -1.5, 0.1, math.pi, info.max, info.min, info.tiny, info.eps, 1 / 3]
    if dtype not in (torch.float8_e4m3fn,):
        numbers += [math.inf, -math.inf]
    return torch.tensor([*numbers, math.nan], dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_floats_have_their_bits(dtype):
    for values in (special(dtype), torch.randn(100).to(dtype)):
        assert same_bits(evaluated(flat_tensor(values)), values)


def test_nan_payloads_and_subnormals_have_their_bits():
    bits = torch.tensor([0x7FC00001, 0x7F800001, -1, 1, 0x00000003, 0x7F7FFFFF], dtype=torch.int32)
    values = bits.view(torch.float32)
    assert same_bits(evaluated(flat_tensor(values)), values)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_integers_have_their_bits(dtype):
    extremes = [0, 1] if dtype == torch.bool else [torch.iinfo(dtype).min, torch.iinfo(dtype).max, 0, 7]
    values = torch.tensor(extremes, dtype=dtype)
    assert same_bits(evaluated(flat_tensor(values)), values)
    assert "torch.full" in flat_tensor(torch.zeros(50, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_have_their_bits(dtype):
    values = torch.tensor([complex(0.1, -0.0), complex(math.nan, math.inf), complex(-0.0, 1 / 3)], dtype=dtype)
    assert same_bits(evaluated(flat_tensor(values)), values)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        0.1,
        math.inf,
        complex(1, -math.inf),
        "it's",
        'a "quote"\n\\ end\\',
        '"""\nimport os',
        b"\x00'\"",
        torch.Size([2, 3]),
        slice(1, None, -2),
        [1, (2,), {"a": [None, ...]}],
        torch.strided,
        torch.channels_last,
        torch.int32,
        {1, 2},
        (),
    ],
)
def test_arguments_evaluate_to_themselves(value):
    text = expression(value, lambda _: "")
    assert evaluated(text, device="cpu") == value


# --- Hostile files


@pytest.mark.parametrize(
    "name", ['torch.add"', "torch.add(__import__('os'))", "torch.load", "torch.hub.load", "os.system"]
)
def test_names_that_are_no_operators_are_refused(name):
    with pytest.raises(op_tools.Error):
        function_of(name)


@pytest.mark.parametrize("part", ["a b", "a;b", "a\nb", "", "a(", "é́"])
def test_parts_of_names_are_identifiers(part):
    with pytest.raises(ValueError, match="no name"):
        dotted(["torch", part])


def test_words_of_python_are_names_of_overloads():
    text = function_of("aten::random_.from")
    assert evaluated(text) is getattr(torch.ops.aten.random_, "from")


@pytest.mark.parametrize("text", ['"""\nimport os', "\\", 'end"', "\x1b[31m", "\u2028x", "*/ // \\\n x"])
def test_comments_stay_comments(text):
    shown = comment(text)
    assert '"' not in shown and "\\" not in shown and shown.isprintable()
    assert compile(f'"""{shown}"""\n# {shown}\n1', "", "exec")


@pytest.mark.parametrize("text", ['"; system("x"); "', "\\", "??/", "\n", "é", "plain 1.5"])
def test_cpp_strings_are_quoted(text):
    shown = quoted(text)
    inside = shown[1:-1]
    assert '"' not in inside and "\n" not in inside and "?" not in inside
    assert inside.encode().decode("unicode_escape").encode("latin-1").decode() == text


def hostile_folder(tmp_path, **changes):
    folder = tmp_path / "hostile" / "1"
    folder.mkdir(parents=True)
    file = {"name": "torch.einsum", "args": ("ij,ij->", torch.ones(2, 2), torch.ones(2, 2)), "kwargs": {}, "id": 1}
    torch.save({**file, **changes}, folder / "input.pth")
    evil = 'x"""\nraise SystemExit(77)\n"""\\'
    meta = {"name": "torch.einsum", "level": "torch", "stack": [evil], "inputs": [], "state": {}, "error": evil}
    (folder / "meta.json").write_text(json.dumps(meta))
    return str(folder)


def test_strings_of_a_file_never_become_code(tmp_path):
    evil = '";raise SystemExit(77)#\n\\'
    folder = hostile_folder(tmp_path, args=(evil, torch.ones(2, 2)))
    saved = read_saved(folder)
    script = write(saved, Plan("cpu", libraries=(evil,)), f"{evil}.pth", f"head {evil}")
    tree = compile(script.text, "repro.py", "exec")
    assert 77 not in tree.co_consts
    assert evil in evaluated(script.text.split("torch.einsum(")[1].split(", x[0]")[0])


@pytest.mark.parametrize("kwargs", [{"a b": 1}, {"x=1)#": 1}])
def test_keywords_are_identifiers(tmp_path, kwargs):
    with pytest.raises(op_tools.Error, match="no name of an argument"):
        write(read_saved(hostile_folder(tmp_path, kwargs=kwargs)), Plan("cpu"), "", "")


@pytest.mark.parametrize("name", ["os;x", "a b", "x\nimport os"])
def test_modules_to_import_are_names(tmp_path, name):
    with pytest.raises(op_tools.Error, match="no name of a module"):
        write(read_saved(hostile_folder(tmp_path)), Plan("cpu", imports=(name,)), "", "")


# --- Inputs


def inputs_of(folder, plan=None):
    """The result of the script's inputs(), run here."""
    saved = read_saved(folder)
    script = write(saved, plan or Plan("cpu"), "side.pth", "")
    text = script.text.split('if __name__ == "__main__":')[0]
    if script.side_file:
        torch.save(script.side_file, "side.pth")
    space = {"__name__": "script", "__file__": str(Path("repro.py").resolve())}
    exec(compile(text, "repro.py", "exec"), space)  # noqa: S102
    return saved, space["inputs"](lambda memory, here="cpu": memory.clone())


@pytest.mark.parametrize(
    "case", ["transposed", "offset", "expanded", "aliases", "gaps", "empty", "scalar", "conj", "leaf"]
)
def test_tensors_are_as_they_were(case):
    base = torch.randn(6, 8)
    pairs = {
        "transposed": (base.t(), torch.randn(8, 6)),
        "offset": (base[2:4, 1:5], torch.randn(2, 4)),
        "expanded": (torch.randn(1, 5).expand(3, 5), torch.randn(3, 5)),
        "aliases": (base[:3], base[1:4]),
        "gaps": (base[::2, ::3], torch.randn(3, 3)),
        "empty": (torch.randn(0, 3), torch.randn(0, 3)),
        "scalar": (torch.tensor(2.5), torch.tensor(1.5)),
        "conj": (torch.randn(3, dtype=torch.complex64).conj(), torch.randn(3, dtype=torch.complex64)),
        "leaf": (torch.randn(3, requires_grad=True), torch.randn(3)),
    }
    first, other = pairs[case]
    folder = captured(lambda: torch.add(first, other))
    _, (tensors, _) = inputs_of(folder)
    for made_, original in zip(tensors, (first, other), strict=True):
        assert made_.shape == original.shape and made_.stride() == original.stride()
        assert made_.is_conj() == original.is_conj() and made_.requires_grad == original.requires_grad
        assert same_bits(made_.detach().resolve_conj().reshape(-1), original.detach().resolve_conj().reshape(-1))
    shares = tensors[0].untyped_storage().data_ptr() == tensors[1].untyped_storage().data_ptr()
    assert shares == (
        case in ("aliases", "empty") and first.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    )


@pytest.mark.parametrize("rows", [70, 700])
def test_data_in_the_script_and_beside_it_are_the_same_bits(rows):
    x = torch.randn(rows, 3)
    x[3, 1] = math.nan
    folder = captured(lambda: torch.add(x, x))
    _, (tensors, _) = inputs_of(folder)
    assert same_bits(tensors[0].reshape(-1), x.reshape(-1))


# --- Whole scripts, on the simulated device


def test_forward_and_backward_reproduce_in_a_fresh_process(library, monkeypatch):
    folder = saved_failure(linear, "scale", ops="aten::mm|aten::addmm", scale=1.5)
    _, judged, result, _ = made_script(folder, library, monkeypatch, ADDMM, runs=3)
    assert len(judged.failures) == 3
    assert result.reproduced == 3 and result.reproduces
    text = Path("repro.py").read_text()
    assert "Reproduces: 3 of 3" in text and "import op_tools" not in text
    for what in ("output", "gradient of input 0", "gradient of input 1"):
        assert f"WRONG: {what}:" in result.output
    assert "root mean square error" in result.output
    assert run("repro.py", "cpu", fault=ADDMM).returncode == 0
    assert run("repro.py").returncode == 0  # the device without its fault
    assert run("repro.py", fault=ADDMM).returncode == 1


def raising():
    with pytest.raises(RuntimeError):
        torch.exp(torch.ones(2, device="sim"))


CASES = {
    "in place": ("scale", "aten::mul_.Tensor", lambda: torch.randn(5, device="sim").mul_(torch.randn(5, device="sim"))),
    "in place, with a gradient": (
        "scale",
        "aten::mul_.Tensor",
        lambda: (
            (torch.randn(5, device="sim", requires_grad=True) * 1).mul_(torch.randn(5, device="sim")).sum().backward()
        ),
    ),
    "out=": (
        "scale",
        "aten::add.out",
        lambda: torch.add(torch.ones(3, device="sim"), 2, out=torch.empty(3, device="sim")),
    ),
    "lost write": ("lost_write", "aten::mul_.Tensor", lambda: torch.randn(5, device="sim").mul_(2.5)),
    "exception": (
        "exception",
        "aten::exp",
        raising,
    ),
    "changed input": ("mutate_input", "aten::exp", lambda: torch.exp(torch.randn(6, device="sim"))),
    "strides": ("strides", "aten::exp", lambda: torch.exp(torch.randn(6, 4, device="sim"))),
    "nan": ("nan", "aten::exp", lambda: torch.exp(torch.randn(6, 4, device="sim"))),
    "integers": ("element", "aten::add.Tensor", lambda: torch.arange(6, device="sim") + torch.arange(6, device="sim")),
    "bfloat16": ("scale", "aten::exp", lambda: torch.exp(torch.randn(6, 4, device="sim", dtype=torch.bfloat16))),
    "complex": ("scale", "aten::exp", lambda: torch.exp(torch.randn(6, device="sim", dtype=torch.complex64))),
    "list": ("scale", "aten::cat", lambda: torch.cat([torch.randn(3, device="sim"), torch.randn(2, device="sim")], 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_kinds_of_calls_and_failures_reproduce(case, library, monkeypatch):
    kind, ops, work = CASES[case]
    extra = {"scale": 1.5} if kind == "scale" else {}
    folder = saved_failure(work, kind, ops=ops, **extra)
    fault = f"{kind}:ops={ops}" + "".join(f",{name}={value}" for name, value in extra.items())
    _, judged, result, lines = made_script(folder, library, monkeypatch, fault)
    assert judged.failures
    assert result.reproduces, (lines, result.output)
    right = run("repro.py")
    assert right.returncode == 0, right.stdout + right.stderr


def test_autocast_is_on_in_the_script(library, monkeypatch):
    def work():
        with torch.autocast("sim", dtype=torch.bfloat16):
            torch.nn.functional.linear(torch.randn(8, 8, device="sim"), torch.randn(8, 8, device="sim"))

    folder = saved_failure(work, "scale", ops="aten::mm|aten::addmm", scale=1.5)
    _, _, result, lines = made_script(folder, library, monkeypatch, ADDMM)
    assert "with autocast(kind):" in result.script.text
    assert result.reproduces, (lines, result.output)
    assert run("repro.py").returncode == 0


def test_large_data_stands_beside_the_script(library, monkeypatch):
    x = torch.randn(40, 50)
    x[3, 3] = math.nan
    folder = saved_failure(lambda: torch.exp(x.to("sim")), "scale", ops="aten::exp", scale=1.5)
    _, _, result, _ = made_script(folder, library, monkeypatch, "scale:ops=aten::exp,scale=1.5")
    assert result.reproduces and result.side_path == Path("repro.pth")
    assert len(Path("repro.py").read_text()) < 20000
    beside = torch.load("repro.pth", weights_only=True)
    assert same_bits(beside["memory 0"], x.reshape(-1))
    assert torch.equal(beside["output: value 0"][:9], x.double().exp().reshape(-1)[:9])


def test_a_failure_of_the_second_call_only_is_called_several_times(library, monkeypatch):
    folder = saved_failure(lambda: torch.exp(torch.ones(3, device="sim")), "scale", ops="aten::exp", scale=1.5)
    _, _, result, _ = made_script(folder, library, monkeypatch, "scale:ops=aten::exp,scale=1.5,call=1")
    assert result.reproduces and result.script.plan.calls == 2
    assert "of call 2" in result.output and "of call 1" not in result.output


def test_the_folder_that_autocompare_prints_is_taken_and_no_script_is_overwritten(library, monkeypatch, capsys):
    folder = saved_failure(lambda: torch.exp(torch.ones(3, device="sim")), "scale", ops="aten::exp", scale=1.5)
    printed = Path(folder)
    printed = printed.parent if printed.name == "device" else printed
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "scale:ops=aten::exp,scale=1.5")
    Path("repro.py").write_text("# of another call")
    assert command(["repro", str(printed), "--load", library]) == 0
    assert Path("repro.py").read_text() == "# of another call"
    assert "repro_2.py" in capsys.readouterr().out
    assert "Reproduces: 3 of 3" in Path("repro_2.py").read_text()
    assert command(["show", str(printed)]) == 0
    assert "run it again" in capsys.readouterr().out


def test_a_right_call_is_no_repro(library, monkeypatch, capsys):
    folder = saved_failure(lambda: torch.exp(torch.ones(3, device="sim")), "scale", ops="aten::exp", scale=1.5)
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "")
    assert command(["repro", folder, "--load", library, "-o", "right.py"]) == 1
    assert "Reproduces: 0 of 3" in Path("right.py").read_text()
    assert "reproduces: 0 of 3" in capsys.readouterr().err
    assert run("right.py").returncode == 0


@pytest.mark.parametrize(
    ("function", "inputs", "said"),
    [
        (torch.exp, (torch.linspace(-2, 2, 20).view(4, 5),), "right"),
        (torch.mul, (torch.tensor([math.nan, 1.0]), torch.tensor([2.0, 3.0])), "right"),
        (
            lambda x, at, ones: x.index_put((at,), ones, accumulate=True),
            (torch.zeros(1).bfloat16(), torch.zeros(1000, dtype=torch.long), torch.ones(1000).bfloat16()),
            "WRONG: output: at [0]: 256.0 instead of 1000.0",
        ),
    ],
    ids=["right", "nan", "wrong"],
)
def test_a_call_on_the_cpu_is_judged_by_float64(function, inputs, said, capsys):
    folder = captured(lambda: function(*inputs))
    status = command(["repro", folder, "-o", "r.py"])
    assert f"reproduces: {0 if said == 'right' else 3} of 3" in capsys.readouterr().err
    script = run("r.py")
    lines = [line for line in script.stdout.splitlines() if line.startswith(("WRONG:", "right"))]
    assert lines == [said]
    assert (status, script.returncode) == ((1, 0) if said == "right" else (0, 1))


def said_by(folder, device="cpu"):
    """The last line of the script of a call, run in this process; None: the call has no form in a script."""
    arguments = [folder, "--acc_check", "--device", device, "--expected", "expected.pth", "--quiet", "--no_summary"]
    run_op_from_data(arguments)
    (checks,) = torch.load("expected.pth", weights_only=True).values()
    try:
        saved = read_saved(folder)
        script = write(saved, plan_for(saved, Judged(expected=checks), Plan(device)), "side.pth", "")
    except op_tools.Error:
        return None
    torch.save(script.side_file, "side.pth")
    Path("script.py").write_text(script.text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        runpy.run_path("script.py", run_name="__main__")
    return printed.getvalue().splitlines()[-1], ended.value.code


@pytest.mark.filterwarnings("ignore")
def test_right_calls_of_torchs_samples_are_right(quiet, monkeypatch):
    """Of a part of the suite's cases on the CPU: those that OpAutoCompare calls right, in their scripts too."""
    monkeypatch.setenv("OP_CAPTURE_FORMAT", "folders")
    monkeypatch.setattr(sys, "argv", ["script.py"])
    tried, wrong = 0, []
    for case in sampled([case for case in our_list("op_db") if '"variant":"error"' not in case.to_json()], 160):
        call = make_call(case, torch.device("cpu"))
        with op_tools.OpAutoCompare(max_saved=0) as compare, op_tools.OpCapture() as capture:
            results = call.run()
            if case.gradient:
                call.backward(results)
        verdicts = {row.op: set() for row in compare.result().rows}
        for row in compare.result().rows:
            verdicts[row.op].add(row.verdict)
        for folder in Path(capture.result().root).glob("*/*/"):
            if verdicts.get(folder.parent.name) == {"agrees"} and (said := said_by(str(folder))):
                tried += said == ("right", 0)
                wrong += [(case.id, said)] if said[1] == 1 else []  # random numbers are not judged
    assert wrong == [] and tried > 120


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.randn(0, 3) * 2,  # nothing to compare
        lambda: torch.randn(3, 2)[:1, :1].transpose(0, 1) + 0,
        lambda: torch.randn(6, 2)[:1, :1].t().clone(),  # one element, whose stride means nothing
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(0).sum(),
    ],
    ids=["empty", "one element", "stride", "sparse", "sum of nothing"],
)
def test_unusual_results_that_are_right(work, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["script.py"])
    with op_tools.OpCapture() as capture:
        work()
    said = [said_by(str(folder)) for folder in Path(capture.result().root).glob("*/*/")]
    assert len(said) > 1 or said[0]
    not_judged = ("NOT JUDGED: no result could be compared", 2)  # the random numbers of the input
    assert {one for one in said if one} - {not_judged} == {("right", 0)}


def test_random_numbers_are_no_repro(library, monkeypatch):
    """The device draws others than the CPU: a script that compares them would call the right device wrong."""
    x = torch.randn(40, device="sim")
    folder = saved_failure(
        lambda: torch.native_dropout(x, 0.5, True), "scale", ops="aten::native_dropout", level="aten"
    )
    _, judged, result, _ = made_script(folder, library, monkeypatch, "scale:ops=aten::native_dropout")
    assert judged.failures and result.reproduced == 0
    assert "is not compared: " in Path("repro.py").read_text()
    done = run("repro.py")
    assert done.returncode == 2 and "NOT JUDGED: no result could be compared" in done.stdout


def test_wrong_usage_ends_with_2(tmp_path, capsys):
    assert command(["repro", str(tmp_path / "missing")]) == 2
    assert "missing" in capsys.readouterr().err
    assert command(["repro", hostile_folder(tmp_path), "-o", "name.txt"]) == 2
    assert ".py" in capsys.readouterr().err


def test_a_folder_above_calls_and_limits_that_are_no_limits_are_wrong_usage(tmp_path, capsys):
    with op_tools.OpCapture(output_dir=tmp_path / "capture"):
        torch.exp(torch.ones(3)).sin()
    assert command(["repro", str(tmp_path / "capture")]) == 64
    assert "3 calls below it; name the folder of a call, such as " in capsys.readouterr().err
    for option in ("--timeout", "--attempts"):
        with pytest.raises(SystemExit) as end:
            command(["repro", str(tmp_path), option, "0"])
        assert end.value.code == 64
        assert f"{option}: 0 is not allowed" in capsys.readouterr().err


def test_a_factory_that_names_no_device_has_that_of_the_script(library, monkeypatch):
    torch.set_default_device("sim")
    try:
        folder = saved_failure(lambda: torch.ones(4), "scale", ops="aten::fill_.Scalar", scale=1.5)
    finally:
        torch.set_default_device(None)
    saved = read_saved(folder)
    assert op_tools.load_call(folder).kwargs == {}
    assert (saved.device, saved.kwargs) == ("sim", {"device": torch.device("cpu")})
    plan = Plan("sim", libraries=(library,))
    script = write(saved, plan, "side.pth", "")
    assert "torch.ones(4, device=torch.device(device))" in script.text
    text = cpp_text(saved, Made(Path("x.py"), script, 3, "", ""), {}, "x.pth")
    assert 'findSchemaOrThrow("aten::ones", "")' in text and "c10::IValue(device)" in text
    fault = "scale:ops=aten::fill_.Scalar,scale=1.5"
    assert made_script(folder, library, monkeypatch, fault)[2].reproduces
    assert run("repro.py").returncode == 0


def test_shrink_finds_the_limit_and_the_script_names_it(library, monkeypatch, capsys):
    folder = saved_failure(lambda: torch.exp(torch.randn(40, device="sim")), "above_size", ops="aten::exp", size=7)
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "above_size:ops=aten::exp,size=7")
    assert command(["repro", folder, "--load", library, "--shrink", "-o", "small.py"]) == 0
    text = Path("small.py").read_text()
    assert "fails from 8 on; passes at 7" in text
    assert "40 elements before, 8 now" in text
    assert "shrink 2:" in capsys.readouterr().err
    assert run("small.py", fault="above_size:ops=aten::exp,size=7").returncode == 1


CRASHES = """
import os, signal, time, torch
import op_tools.sim_device
library = torch.library.Library("crashing", "DEF")
library.define("work(Tensor x) -> Tensor")
def on_device(x):
    if x.numel() == {dead}: os.kill(os.getpid(), signal.SIGKILL)
    if x.numel() == {slow}: time.sleep(1000)
    return x + (1.0 if x.numel() >= {wrong} else 0.0)
library.impl("work", lambda x: x + 0.0, "CPU")
library.impl("work", on_device, "PrivateUse1")
"""


def crashing_call(tmp_path, monkeypatch, **sizes):
    """A saved call of an operator whose kernel for the device ends its process, or hangs, for some sizes."""
    (tmp_path / "crashing.py").write_text(CRASHES.format(**{"dead": -1, "slow": -1, "wrong": 10**9, **sizes}))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = tmp_path / "saved" / "1"
    folder.mkdir(parents=True)
    torch.save({"name": "crashing::work", "args": (torch.ones(64),), "kwargs": {}, "id": 1}, folder / "input.pth")
    tensor = {"shape": [64], "dtype": "torch.float32", "device": "sim:0", "layout": "torch.strided"}
    tensor |= {"requires_grad": False, "is_leaf": True}
    meta = {"name": "crashing::work", "level": "aten", "inputs": [tensor], "outputs": [], "state": {}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return str(folder)


@pytest.mark.parametrize("trouble", [{"dead": 32}, {"slow": 32}])
def test_shrink_goes_on_after_a_crash_and_a_hang(trouble, tmp_path, monkeypatch):
    folder = crashing_call(tmp_path, monkeypatch, wrong=20, **trouble)
    (tmp_path / "small").mkdir()
    lines = []
    done = shrink(folder, str(tmp_path / "small"), Plan("sim", ("crashing",)), attempts=40, timeout=2, say=lines.append)
    assert any("ends or holds the process" in line for line in lines)
    assert done.elements < 64 and done.elements >= 20
    assert op_tools.load_call(done.folder).args[0].numel() == done.elements


# --- C++


def test_the_cpp_program_holds_the_same_call():
    folder = saved_failure(linear, "scale", ops="aten::mm|aten::addmm", scale=1.5)
    saved = read_saved(folder)
    script = write(saved, Plan("sim"), "", "")
    side = {}
    text = cpp_text(saved, Made(Path("x.py"), script, 3, '*/ "finding"', ""), side, "x.pth")
    assert 'findSchemaOrThrow("aten::linear", "")' in text and not side
    assert text.count("requires_grad_()") == 3
    assert "gradients->push_back(m3" in text


def cpp_of(work):
    saved = read_saved(captured(work))
    script = write(saved, Plan("sim"), "", "")
    return cpp_text(saved, Made(Path("x.py"), script, 3, "finding", ""), {}, "x.pth")


def test_a_function_in_python_is_the_operators_that_it_calls_in_cpp():
    x, rows = torch.arange(12.0).view(3, 4), torch.tensor([0, 2])
    text = cpp_of(lambda: x[rows, 1:])
    steps = re.findall(r'const auto (v\d) = step\(.*findSchemaOrThrow\("([\w:]+)", "(\w+)"\)', text)
    assert [name for _, name, _ in steps][-1] == "aten::index" and "aten::slice" in [name for _, name, _ in steps]
    assert f"*stack = {{{steps[-1][0]}[0]}};" in text and "      x[0],\n      x[1],\n" in text
    assert "std::optional<at::Tensor>(x[1])" in text, "the rows are the input, not a copy of their values"


def test_what_a_step_returns_is_given_to_the_next_in_cpp():
    images = torch.rand(1, 2, 4, 4)
    text = cpp_of(lambda: F.interpolate(images, scale_factor=2, mode="bilinear"))
    assert '"aten::upsample_bilinear2d", "vec"' in text and "c10::List<double>({0x1.0000000000000p+1" in text
    changed = torch.rand(3, 4)
    text = cpp_of(lambda: changed.__rtruediv__(2.0))
    assert '"aten::reciprocal"' in text and "v0[0].toTensor(), wrapped(0x1.0000000000000p+1)" in text


def test_numbers_without_dimensions_keep_their_dtype_in_cpp():
    """view({}) of C++ is a view in another dtype."""
    number, factors = torch.tensor(2.0), torch.rand(3)
    text = cpp_of(lambda: torch.mul(factors, number))
    assert ".reshape({})" in text and ".view({})" not in text


def test_a_list_of_numbers_of_any_kind_is_written_in_cpp():
    tensors = [torch.rand(2), torch.rand(2)]
    text = cpp_of(lambda: torch._foreach_mul(tensors, [0.5, 2]))
    assert "c10::List<at::Scalar>({at::Scalar(0x1.0000000000000p-1), at::Scalar(int64_t{2})})" in text


@pytest.mark.skipif(not shutil.which("cmake") or not shutil.which("g++"), reason="there is no C++ compiler")
def test_the_cpp_program_of_a_right_call_says_right():
    """With NaN and a gradient."""
    x = torch.randn(6, 40)
    x[0, 0] = math.nan
    x.requires_grad_()
    with op_tools.OpCapture() as capture:
        F.softmax(x, 1).square().sum().backward()
    folder = next(str(one) for one in Path(capture.result().root).glob("*softmax*/*"))
    _, judged, result = make(folder, Path("right.py"), Plan("cpu"), 120, lambda _: None)
    assert judged.rows and not judged.failures and result.reproduced == 0
    assert result.output.splitlines()[-1] == "right"
    built = write_cpp(folder, Path("right"), result, 120, lambda _: None)
    assert built.trouble == "" and built.output.splitlines()[-1] == "right" and not built.reproduces


def test_script_and_judge_say_the_same(quiet):
    """tests/proofs/repro_verdicts.py does it for all cases. Of 16-bit floats, where operators without a float64 run are, too."""
    done = list(repro_verdicts.trials(repro_verdicts.cases_of(60), (0.0, 1.5, 5.0, 20.0)))
    done += repro_verdicts.trials(repro_verdicts.cases_of(30, ("bfloat16",)), (1.5, 5.0, 12.0))
    assert [trial for trial in done if not trial.same] == []
    assert {trial.script for trial in done} >= {"agrees", "differs"} and len(done) > 150


def test_without_a_float64_run_the_limit_is_that_of_the_judge():
    """In bfloat16 the judge allows 8 units then; the script had its own rule, of 2."""
    x = torch.ones(64, dtype=torch.bfloat16)
    more = 2 * x
    folder = captured(lambda: torch.nextafter(x, more))
    arguments = ["--acc_check", "--device", "sim", "--expected", "expected.pth", "--quiet", "--no_summary"]
    run_op_from_data([folder, *arguments])
    (checks,) = torch.load("expected.pth", weights_only=True).values()
    (output,) = (one for one in read_expected(checks)[0] if one.part == "output")
    assert output.limit is not None
    assert 8 <= output.limit.item() / (torch.finfo(torch.bfloat16).eps * output.values[0].max().item()) < 8.1


def test_names_of_results_are_those_of_the_judge():
    assert [name_of(*one) for one in (("output", None), ("output", 1), ("gradient", 0), ("input", 2))] == [
        "output",
        "output 1",
        "gradient of input 0",
        "input 2 after the call",
    ]


def test_the_session_of_the_page_is_what_is_printed(library, monkeypatch, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "repro.md").read_text()

    def printed(name):
        return page.split(f"<!-- session: {name} -->\n```text\n")[1].split("```")[0]

    torch.manual_seed(0)
    x = torch.randn(40, device="sim")
    folder = saved_failure(lambda: torch.exp(x), "above_size", ops="aten::exp", size=7)
    fault = "above_size:ops=aten::exp,size=7"
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", fault)
    capsys.readouterr()
    assert command(["repro", folder, "--shrink"]) == 0
    done = capsys.readouterr()
    assert done.err + done.out == printed("repro")
    wrong = run("repro.py", fault=fault)
    assert wrong.returncode == 1 and wrong.stdout.partition("\n")[2] == printed("device").partition("\n")[2]
    assert run("repro.py", "cpu", fault=fault).stdout.endswith("\nright\n")
