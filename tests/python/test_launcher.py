"""The command line: tools on programs that know nothing of them, and help for an empty result."""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import PYTHON, launched
from printed_commands import parser_of_command

import op_tools
from op_tools import __main__ as command_line
from op_tools._base.config_file import read_config
from op_tools._base.optional_parts import Group, installed_parts
from op_tools._base.tool_descriptions import kind_of, kinds
from op_tools._commands.command_line import COMMANDS, parser_of
from op_tools._tools import launch
from op_tools._tools.launch import make_tools, tools_by_flag
from op_tools._work.run import chosen_tools

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import atexit, pickle, sys
import torch

class Mine:
    pass

WORD = "kept"
atexit.register(lambda: print("at exit", WORD))

if __name__ == "__main__":
    print(sys.argv, __file__, sys.path[0], sys.stdin.read())
    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        (weight * 2).sum().backward()
        optimizer.step()
    print(weight.tolist())
    sys.exit(5)
"""


@pytest.fixture
def op_tools_command(tmp_path):
    """Runs `python -m op_tools ARGUMENTS` in a process of its own, in the test's folder."""

    def run(*arguments, program=("-m", "op_tools"), text="", **environment):
        return launched(*program, *arguments, standard_input=text, cwd=tmp_path, check=False, **environment)

    return run


def test_a_script_runs_as_python_runs_it(op_tools_command, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = op_tools_command("train.py", "a", "--capture", program=(), text="typed")
    tooled = op_tools_command("run", "--capture", "--level", "aten", "train.py", "a", "--capture", text="typed")
    assert plain.returncode == tooled.returncode == 5, tooled.stderr
    assert plain.stdout == tooled.stdout
    assert "at exit kept" in plain.stdout
    assert list(tmp_path.glob("op_capture_result/0/*/aten.mul.Tensor/*/input.pth"))


def test_a_module_runs_as_python_runs_it(op_tools_command, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys, torch; torch.ones(2).exp(); print(sys.argv[1:], __name__, __spec__.name)"
    )
    plain = op_tools_command("-m", "package", "x", program=())
    tooled = op_tools_command("run", "--capture", "-m", "package", "x")
    assert plain.returncode == tooled.returncode == 0, tooled.stderr
    assert plain.stdout == tooled.stdout
    assert list(tmp_path.glob("op_capture_result/0/*/torch.Tensor.exp/*/input.pth"))


# By name: those that Python's own __main__ module, an archive and a stream that the program closes would end.
PROGRAMS = {
    "builtins.py": "print(__builtins__.len([1]), type(__loader__).__name__, *sorted(globals()))",
    "closed.py": "import sys; print('last', flush=True); sys.stdout.close()",
    "none.py": "import sys; print('last', flush=True); sys.stdout = None",
    "syntax.py": "def f(:",
    "folder/__main__.py": "import sys; print(sys.argv, __name__)",
    "archive.zip": "import sys; print(sys.argv, __name__)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_any_form_ends_as_without_us(name, op_tools_command, tmp_path):
    if name.endswith(".zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("__main__.py", PROGRAMS[name])
    else:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PROGRAMS[name])
    words = name.removesuffix("/__main__.py"), "x"
    plain = op_tools_command(*words, program=(), fresh=True)
    tooled = op_tools_command("run", "--time", "-q", *words, fresh=True)
    assert (tooled.returncode, tooled.stdout) == (plain.returncode, plain.stdout)
    assert ("op_tools" in tooled.stderr, tooled.stderr.splitlines()[-1:]) == (False, plain.stderr.splitlines()[-1:])


CALLS_ITSELF = """
import sys
import torch
if "sim" in sys.argv:
    import op_tools.sim_device
DEVICE = sys.argv[1]

class WithText(Exception):
    def __str__(self):
        return str(self.args[0])

def deeper(number):
    return torch.ones(1, device=DEVICE) + deeper(number + 1)

def nested(tensor):
    return nested(torch.tanh(tensor))

def raises(number):
    try:
        return raises(number + 1)
    except RecursionError:
        raise WithText(torch.ones(1))

for function, given in (deeper, 0), (raises, 0), (nested, torch.ones(3, device=DEVICE)):
    try:
        function(given)
    except (RecursionError, WithText) as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("device", ["cpu", "sim"])
@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("flag", ["--autocompare", "--record", "--capture", "--time", "--observe", "--overflow"])
def test_a_program_may_reach_the_limit_of_recursion(flag, level, device, op_tools_command, tmp_path):
    (tmp_path / "deep.py").write_text(CALLS_ITSELF)
    plain = op_tools_command("deep.py", device, program=())
    tooled = op_tools_command("run", flag, "--level", level, "-q", "deep.py", device)
    assert plain.stdout.split() == ["RecursionError", "WithText", "RecursionError"]
    assert (tooled.returncode, tooled.stdout) == (0, plain.stdout), tooled.stderr


HARD_EXITS = """
import os, sys, threading, torch
import op_tools.sim_device as sim

torch.ones(3, device="sim").exp()
if "wrong" in sys.argv:
    with sim.fault("scale", ops="exp", scale=2):
        torch.ones(3, device="sim").exp()
if "thread" in sys.argv:
    threading.Thread(target=os._exit, args=[0]).start()
    threading.Event().wait()
if "exec" in sys.argv:
    os.execv(sys.executable, [sys.executable, "-c", "print('another')"])
os._exit(5 if "fails" in sys.argv else 0)
"""


@pytest.mark.parametrize("how", ["run", "env"])
@pytest.mark.parametrize(
    ("words", "status"), [([], 0), (["wrong"], 1), (["wrong", "fails"], 5), (["wrong", "thread"], 0), (["exec"], 0)]
)
def test_a_program_that_ends_past_atexit_has_rows_and_verdict(words, status, how, op_tools_command, tmp_path):
    (tmp_path / "hard.py").write_text(HARD_EXITS)
    flags = ["--autocompare", "--fail-on-wrong"]
    if how == "run":
        done = op_tools_command("run", *flags, "hard.py", *words)
    else:
        exported = dict(re.findall("^export (\\w+)=(.*)$", op_tools_command("env", *flags).stdout, re.MULTILINE))
        variables = {name: "".join(shlex.split(value)) for name, value in exported.items()}
        done = op_tools_command("hard.py", *words, program=(), **variables)
    assert done.returncode == status, done.stderr
    assert ("another" in done.stdout) == ("becomes another" in done.stderr) == ("exec" in words)
    (rows,) = tmp_path.glob("op_autocompare_result/0/*/autocompare.jsonl")
    assert ("differs" in rows.read_text()) == ("wrong" in words)
    assert ("agrees" in rows.read_text()) == ("exec" not in words)


FORKS = """
import os, sys, torch
torch.ones(3) + 1
child = os.fork()
if child == 0:
    if "works" in sys.argv:
        torch.ones(3).exp()
    os._exit(0)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("level", ["torch", "aten"])
@pytest.mark.parametrize("flag", ["--autocompare", "--overflow"])
@pytest.mark.parametrize(("words", "status"), [(["works"], 2), ([], 0)])
def test_a_forked_process_counts_from_its_first_operator_on(words, status, flag, level, op_tools_command, tmp_path):
    (tmp_path / "forks.py").write_text(FORKS)
    done = op_tools_command("run", flag, "--level", level, "--fail-on-wrong", "forks.py", *words)
    assert done.returncode == status, done.stderr
    assert ("1 process of the program had no tool" in done.stderr) == (status == 2)


def test_an_exception_and_a_signal_end_the_program_as_without_us(op_tools_command, tmp_path):
    (tmp_path / "raises.py").write_text("import torch\ntorch.ones(2).exp()\nraise KeyError('mine')")
    done = op_tools_command("run", "--capture", "raises.py")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    (tmp_path / "killed.py").write_text(
        "import os, signal, torch\ntorch.ones(2).exp()\nos.kill(os.getpid(), signal.SIGTERM)"
    )
    assert op_tools_command("run", "--capture", "killed.py").returncode == -signal.SIGTERM
    assert len(list(tmp_path.glob("op_capture_result/0/*/torch.Tensor.exp/*/input.pth"))) >= 1


def test_an_optimizers_step_is_a_training_step(op_tools_command, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    op_tools_command("run", "--capture", "train.py")
    calls = [op_tools.load_call(folder.parent) for folder in tmp_path.rglob("torch.Tensor.mul/*/input.pth")]
    assert sorted(call.meta["step"] for call in calls) == [0, 1, 2]


def test_the_folder_of_a_recording_stands_behind_its_flag(op_tools_command, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "package.py").write_text("import torch; torch.ones(2).exp()")
    (tmp_path / "b").mkdir()
    script = op_tools_command("run", "--record", "a", "train.py", "x")
    module = op_tools_command("run", "--record", "b", "-m", "package")
    between = op_tools_command("run", "--record", "c", "--level", "aten", "train.py", "x")
    assert script.returncode == 5, script.stderr
    assert module.returncode == 0, module.stderr
    assert list((tmp_path / "a").rglob("*.oprec"))
    assert list((tmp_path / "b").rglob("*.oprec"))
    assert between.returncode == 5 and list((tmp_path / "c").rglob("*.oprec")), between.stderr
    assert op_tools_command("run", "--capture", "a", "train.py").returncode == 64


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing",),
        ("compare", "a", "b", "--nothing"),
        ("one-iter", "save"),
        ("bisect", "--remedy", "nothing", "--", "true"),
        ("conformance", "run", "--jobs", "none"),
        ("run", "--nothing", "train.py"),
    ],
)
def test_a_command_line_that_is_not_understood_has_a_status_of_its_own(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 64
    assert capsys.readouterr().err.startswith("usage: op-tools")


def test_the_limit_of_a_range_of_steps_is_said(capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(("run", "--time", "--steps", "0:4000000000", "train.py"))
    assert ended.value.code == 64 and "a range has at most 1,000,000 steps" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("reportt", "."), "report"),
        (("run", "--autocompar", "train.py"), "--autocompare"),
        (("run", "--max-call=3", "train.py"), "--max-calls"),
        (("ops", "--level", "tarch"), "torch"),
        (("conformance", "runn"), "run"),
    ],
)
def test_a_mistyped_word_gets_the_nearest(arguments, name, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    text = capsys.readouterr().err
    assert ended.value.code == 64 and text.endswith(f"; did you mean {name}?\n")
    assert len(text.splitlines()) <= 4
    with pytest.raises(SystemExit):
        command_line.main(("ops", "--xyzzy\x1b[2J"))
    text = capsys.readouterr().err
    assert "did you mean" not in text and "\x1b" not in text


def test_the_version_is_said(capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(("--version",))
    assert ended.value.code == 0 and capsys.readouterr().out == f"op_tools {op_tools.__version__}\n"


def test_a_reader_that_is_gone_ends_a_command_quietly():
    # More than a pipe holds, so that the command has not ended when its reader goes.
    words = ["op-tools", "ops", "--level", "aten", "--ops", ".*"]
    command = f"from op_tools.__main__ import main; import sys; sys.argv = {words}; sys.exit(main())"
    program = subprocess.Popen([PYTHON, "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"::" in program.stdout.readline()
    program.stdout.close()
    assert program.stderr.read() == b"" and program.wait() == 141
    program.stderr.close()


def test_wrong_usage_is_said(op_tools_command, tmp_path):
    no_tool = op_tools_command("run", "train.py")
    assert no_tool.returncode == 64
    assert "name at least one tool: --capture" in no_tool.stderr
    option_alone = op_tools_command("run", "--jitter", "3", "train.py")
    assert option_alone.returncode == 64
    assert "--jitter is an option of --record; name at least one tool" in option_alone.stderr
    no_script = op_tools_command("run", "--capture", "missing.py")
    assert no_script.returncode == 64
    assert "missing.py: there is no such script" in no_script.stderr
    for module in ("missing", "missing.part", ".missing"):
        no_module = op_tools_command("run", "--capture", "--fail-on", "wrong", "-m", module)
        assert no_module.returncode == 64 and f"-m {module}: there is no such module" in no_module.stderr
        assert len(no_module.stderr.splitlines()) == 1
    (tmp_path / "fine.py").write_text("print('ran')")
    bad_filter = op_tools_command("run", "--capture", "--ops", "(", "fine.py")
    assert bad_filter.returncode == 64
    assert "'('" in bad_filter.stderr and "ran" not in bad_filter.stdout
    for words, said in (
        (("--autocompare", "--modules", "("), "modules=: '('"),
        (("--capture", "--max-calls", "0"), "max_calls=: '0' is not allowed; give an integer of at least 1"),
        (("--stop", "--capture"), "--stop needs --against"),
        (("--autocompare", "--all-threads"), "works at the aten level only"),
        (("--capture", "--config", "missing.toml"), "missing.toml"),
        (("--capture", "--only-calls", "missing"), "missing"),
    ):
        done = op_tools_command("run", *words, "fine.py")
        assert done.returncode == 64 and said in done.stderr and "ran" not in done.stdout, done.stderr
    printed = op_tools_command("env", "--capture", "--ops", "(")
    assert printed.returncode == 64 and printed.stdout == ""


def test_a_wrong_variable_ends_run_before_the_program_and_doctor_names_it(op_tools_command, tmp_path):
    (tmp_path / "fine.py").write_text("print('ran')")
    for tool, name, value, why in WRONG_VARIABLES:
        done = op_tools_command("run", f"--{tool}", "fine.py", **{name: value})
        assert done.returncode == 64 and f"{name}: {why}" in done.stderr and "ran" not in done.stdout, done.stderr
    done = op_tools_command("run", "--record", "--autocompare", "fine.py", RANK="3", WORLD_SIZE="2")
    assert done.returncode == 0 and done.stderr.count("RANK=3 contradicts WORLD_SIZE=2") == 1, done.stderr
    wrong = {name: value for _, name, value, _ in WRONG_VARIABLES}
    switches = {"OP_TOOLS_FAIL_ON_WRONG": "yes", "OP_TOOLS": "capture,tims"}
    doctor = op_tools_command("doctor", **wrong, **switches)
    problems = [line for line in doctor.stdout.splitlines() if "PROBLEM: " in line]
    assert doctor.returncode == 1 and {line.split()[0] for line in problems} >= {*wrong, *switches}, doctor.stdout
    for name in wrong | switches:
        assert sum(line.startswith(f"{name} ") for line in problems) == 1, problems


WRONG_VARIABLES = [
    ("autocompare", "OP_AUTOCOMPARE_LEVEL", "banana", "'banana' is not allowed; give aten or torch"),
    (
        "autocompare",
        "OP_AUTOCOMPARE_STEPS",
        "5:2",
        "'5:2' is not allowed; give integers of at least 0, as 0,5; a range",
    ),
    ("autocompare", "AUTOCOMPARE_ERROR_TOLERANCE", "a,b", "'a,b' is not"),
    (
        "overflow",
        "OP_OVERFLOW_CHECK_EVERY",
        "99999999999999999999",
        "'99999999999999999999' is not allowed; give an integer of at most",
    ),
    ("overflow", "OP_OVERFLOW_CHECK_ALLOW", "(", "'(' is no valid regular expression"),
    ("blackbox", "OP_BLACKBOX_INPUTS_OPS", "(", "'(' is no valid regular expression"),
    ("capture", "OP_CAPTURE_LIST", "(", "'(' is no valid regular expression"),
    ("dtype-cast", "OP_DTYPE_CAST_DICT", "float99->float32", "'float99->float32'"),
    ("time", "OP_TOOLS_MAX_ROWS_GB", "0", "'0' is not allowed; give a number above 0"),
    ("record", "RANK", "abc", "'abc' is not allowed; give an integer of at least 0"),
    ("autocompare", "WORLD_SIZE", "-1", "'-1' is not allowed; give an integer of at least 0"),
    ("memory", "OP_TOOLS_WRITE_TIMEOUT", "-1", "'-1' is not allowed; give a number"),
]


def test_the_environment_starts_tools_in_programs_of_others(op_tools_command, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('their sitecustomize ran')")
    lines = op_tools_command("env", "--capture", "--level", "aten").stdout.splitlines()
    exported = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert exported["OP_TOOLS"] == "capture:aten"
    path = os.pathsep.join([exported["PYTHONPATH"], str(theirs), str(ROOT)])
    done = op_tools_command("train.py", program=(), PYTHONPATH=path, OP_TOOLS=exported["OP_TOOLS"])
    assert done.returncode == 5, done.stderr
    assert "their sitecustomize ran" in done.stdout
    assert len(list(tmp_path.glob("op_capture_result/0/*/aten.mul.Tensor/*/input.pth"))) >= 3


def test_a_mistake_in_the_environment_leaves_the_program_alone(op_tools_command, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    startup = ROOT / "op_tools" / "startup"
    done = op_tools_command("train.py", program=(), PYTHONPATH=f"{startup}{os.pathsep}{ROOT}", OP_TOOLS="captrue")
    assert done.returncode == 5
    assert "no tool was started: OP_TOOLS: there is no tool 'captrue'; there are capture" in done.stderr
    assert not (tmp_path / "op_capture_result").exists()


def test_a_python_of_the_program_that_has_no_op_tools_imports_its_torch(tmp_path):
    for name, text in {"torch": "version = 'another'", "op_tools": "raise ImportError('no core')"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    path = f"{ROOT / 'op_tools' / 'startup'}{os.pathsep}{tmp_path}"
    command = [sys.executable, "-c", "import torch; print(torch.version)"]
    environment = os.environ | {"PYTHONPATH": path, "OP_TOOLS": "blackbox"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "another\n"), done.stderr
    assert "no tool was started in" in done.stderr and "no core" in done.stderr


def test_every_tool_of_the_core_can_be_launched():
    launched = {kind._kind for kind in tools_by_flag().values()}
    assert launched == set(kinds())
    for kind in tools_by_flag().values():
        assert kind.__doc__ and kind_of(kind._kind).prefix.startswith("OP_")


def test_filter_variables_are_those_that_the_core_reads(monkeypatch):
    for kind in tools_by_flag().values():
        variable = f"{kind_of(kind._kind).prefix}_LIST"
        monkeypatch.setenv(variable, "torch.(")
        with pytest.raises(op_tools.Error, match=variable):
            kind().start()
        monkeypatch.delenv(variable)


def output_of(capsys, *arguments):
    status = command_line.main(list(arguments))
    printed = capsys.readouterr()
    return status, printed.out + printed.err


@pytest.mark.parametrize("layout", ["folders", "container"])
def test_show_counts_what_was_captured(layout, tmp_path, capsys):
    weight = torch.ones(3, 4, requires_grad=True)
    with op_tools.OpCapture(format=layout, output_dir=tmp_path) as capture:
        for size in (2, 2, 5):
            torch.nn.functional.linear(torch.ones(size, 4), weight).sum().backward()
    status, text = output_of(capsys, "show", str(tmp_path))
    assert status == 0
    row = next(line.split() for line in text.splitlines() if line.startswith("torch.nn.functional.linear"))
    assert row[1:5] == ["3", "3", "0", "2"]  # calls, backward, failed, signatures
    calls = sum(row.calls for row in capture.result().rows)
    assert f"{calls} calls of {len(capture.result().rows)} ops" in text


def test_show_prints_one_call_in_full(tmp_path, capsys, captured):
    x = torch.tensor([1.0, float("inf")], requires_grad=True)
    with op_tools.OpCapture(ops="torch.mul", output_dir=tmp_path) as capture:
        torch.mul(x, 3).sum().backward()
    status, text = output_of(capsys, "show", str(captured(capture)[0].folder))
    assert status == 0
    assert "args[0]            float32[2] stride [1]" in text
    assert "not finite: 1" in text
    assert "grad of input 0" in text
    assert "test_launcher.py" in text


def test_show_says_what_is_wrong(tmp_path, capsys):
    assert output_of(capsys, "show", str(tmp_path / "nowhere")) == (
        2,
        f"op-tools: {tmp_path}/nowhere: there is no such folder\n",
    )
    status, text = output_of(capsys, "show", str(tmp_path))
    assert status == 2 and "there are no captured calls here" in text
    (tmp_path / "calls.zip").write_bytes(b"PK\x03\x04 cut off")
    status, text = output_of(capsys, "show", str(tmp_path))
    assert status == 2 and "cut off" in text


def test_show_takes_no_file_inside_for_the_container(tmp_path, capsys):
    with op_tools.OpCapture(format="container", output_dir=tmp_path) as tool:
        torch.ones(3) + 1
    container = Path(tool.result().root, "calls.zip")
    whole = container.read_bytes()
    container.write_bytes(whole[: whole.index(b"PK\x05\x06") + 30])  # the end of the first file inside
    status, text = output_of(capsys, "show", str(container))
    assert status == 0 and "1 calls of 1 ops" in text and "cut off" in text


def test_doctor_names_what_is_wrong(monkeypatch, capsys):
    status, text = output_of(capsys, "doctor")
    assert status == 0
    assert torch.__version__ in text and "PROBLEM" not in text
    monkeypatch.setenv("OP_CAPTRUE_LIST", "torch.add")
    monkeypatch.setenv("OP_CAPTURE_LIST", "torch.Tensor.srot, torch.mm")
    monkeypatch.setenv("OP_TOOLS_SKIP_CPU", "1")
    status, text = output_of(capsys, "doctor")
    assert status == 1
    assert "did you mean OP_CAPTURE_LIST?" in text
    assert "'torch.Tensor.srot' matches no operator" in text
    assert "matches 1 of" in text
    monkeypatch.setenv("OP_CAPTURE_LIST", "(")
    status, text = output_of(capsys, "doctor")
    assert status == 1 and "OP_CAPTURE_LIST" in text


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("OP_CAPTURE_FORMATT", "OP_CAPTURE_FORMAT"),
        ("OP_TIME_MESURE_MAX_CALLS", "OP_TIME_MEASURE_MAX_CALLS"),
        ("DIPU_DUMP_OP_ARG", "DIPU_DUMP_OP_ARGS"),
        ("OP_TOOLS_OUTPUT_DIRECTORY", "OP_TOOLS_OUTPUT_DIR"),
        ("AUTOCOMPARE_ERROR_TOLERANCES", "AUTOCOMPARE_ERROR_TOLERANCE"),
    ],
)
def test_doctor_names_the_variable_that_was_meant(misspelt, meant, monkeypatch, capsys):
    monkeypatch.setenv(misspelt, "1")
    status, text = output_of(capsys, "doctor")
    assert status == 1
    assert re.search(rf"{misspelt} +PROBLEM: no tool reads it; did you mean {meant}\?", text)


def test_the_first_tool_of_a_process_names_variables_that_nothing_reads(op_tools_command, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import torch\ntorch.ones(2) + 1\n")
    misspelled = {"OP_CAPTURE_LISTS": "add", "OP_TIME_MESURE_MAX_CALLS": "3"}
    others = {"OP_CAPTURE_LIST": "add", "LINEAR_OP_DTYPE_CAST_DICT": "", "OPEN_LIST": "x", "OP_RETURN": "1"}
    done = op_tools_command("run", "--capture", "--time", str(script), **misspelled, **others)
    warned = re.findall(r"(\w+): no tool reads a variable of this name", done.stderr)
    assert done.returncode == 0, done.stderr
    assert warned == sorted(misspelled)


@pytest.mark.parametrize("arguments", [["compare", "a", "b", "--json", ""], ["report", "a", "-o", ""]])
def test_an_empty_name_of_a_file_is_wrong_usage(arguments, capsys):
    """As an unset variable of a shell gives it."""
    with pytest.raises(SystemExit) as ended:
        command_line.main(arguments)
    assert ended.value.code == 64
    assert "is empty: give a file" in capsys.readouterr().err


def test_doctor_knows_every_variable_that_a_tool_reads(monkeypatch, capsys):
    for kind in kinds().values():
        for option in kind.options:
            if option.variable and option.type in ("choice", "bool", "int"):
                value = option.choices[0] if option.choices else "1"
                monkeypatch.setenv(option.variable, value)
    monkeypatch.setenv("LINEAR_OP_DTYPE_CAST_DICT", "float16->float32")
    monkeypatch.setenv("ADD_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16", "1,1")
    monkeypatch.delenv("OP_TOOLS_SKIP_CPU")
    monkeypatch.setenv("OP_BLACKBOX_CALLS", "16")  # the least
    monkeypatch.delenv("OP_AUTOCOMPARE_ASYNC")  # not with the variable that raises at once
    status, text = output_of(capsys, "doctor")
    assert status == 0, text
    assert "ADD_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16" in text and "OP_CAPTURE_FORMAT" in text


def given_by(*flags):
    """The tools that `op-tools run FLAGS script.py` would make."""
    options = vars(parser_of_command("run").parse_args(["run", *flags, "script.py", "--max-calls", "9"]))
    assert options["arguments"] == ["--max-calls", "9"]
    return chosen_tools(argparse.Namespace(**options))


def test_run_takes_every_option_of_every_tool_as_a_flag():
    of_type = {
        "bool": ([], True),
        "int": (["3"], 3),
        "float": (["0.5"], 0.5),
        "names": (["torch.add"], "torch.add"),
        "path": (["there"], "there"),
        "dtypes": (["float16->float32"], "float16->float32"),
        "ints": (["1,2"], [1, 2]),
    }
    for kind in kinds().values():
        for option in kind.options:
            text, value = of_type.get(option.type) or ([option.choices[-1]], option.choices[-1])
            for flag in (f"--{option.name}", f"--{kind.flag}-{option.name}"):
                flag = flag.replace("_", "-").removesuffix("-")
                if flag == "--memory":
                    continue  # the tool OpMemoryCheck, not the option of OpTimeMeasure
                (tool,) = given_by(f"--{kind.flag}", flag, *text)
                assert tool._arguments[option.name] == value, flag
    assert [type(tool).__name__ for tool in given_by("--time", "--memory")] == ["OpTimeMeasure", "OpMemoryCheck"]


@pytest.mark.parametrize(
    ("text", "steps"),
    [("3", [3]), ("0,5", [0, 5]), ("3:6", [3, 4, 5]), ("first:3", [0, 1, 2]), ("first:2,7", [0, 1, 7])],
)
def test_steps_are_numbers_or_ranges(text, steps):
    (capture,) = given_by("--capture", "--steps", text)
    assert capture._arguments["steps"] == steps


@pytest.mark.parametrize("text", ["last:3", "5:3", "3:", "first", "0:10000000000"])
def test_steps_that_are_no_range_are_wrong_usage(text, capsys):
    with pytest.raises(SystemExit) as ended:
        given_by("--capture", "--steps", text)
    assert ended.value.code == 64
    assert "--steps" in capsys.readouterr().err


def test_an_option_goes_to_each_chosen_tool_that_has_it_or_to_the_one_that_is_named():
    capture, time, fallback = given_by(
        *("--capture", "--time", "--fallback", "--max-calls", "5", "--time-max-calls", "7", "--steps", "3")
    )
    assert (capture._arguments["max_calls"], time._arguments["max_calls"]) == (5, 7)
    assert "max_calls" not in fallback._arguments
    assert capture._arguments["steps"] == fallback._arguments["steps"] == [3]
    with pytest.raises(op_tools.Error, match="workers: none of these tools has such an option"):
        given_by("--capture", "--workers", "3")
    (quiet,) = given_by("--time", "--no-lines")
    assert quiet._arguments["lines"] is False
    assert make_tools(["time:aten"], {"level": "torch"})[0]._arguments["level"] == "aten"


def help_text(capsys, *arguments):
    with contextlib.suppress(SystemExit):
        assert command_line.main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["run", "env"])
def test_help_of_run_is_short(command, capsys):
    text = help_text(capsys, command, "--help")
    assert len(text.splitlines()) < 100
    for flag in tools_by_flag():
        assert f"--{flag} " in text
    assert "--level {aten,torch}" in text and "max-calls" not in text.replace("(--max-calls)", "")


@pytest.mark.parametrize("arguments", [["run", "--TOOL", "--help"], ["env", "--TOOL", "-h"], ["help", "TOOL"]])
def test_help_of_a_tool_says_each_option_with_its_default_and_variable(arguments, capsys):
    text = {
        tool: " ".join(help_text(capsys, *(one.replace("TOOL", tool) for one in arguments)).split())
        for tool in ("capture", "autocompare")
    }
    assert "--capture-max-calls N record at most N calls (OP_CAPTURE_MAX_CALLS, else no limit)" in text["capture"]
    assert "--autocompare-workers N threads of `async_` (OP_AUTOCOMPARE_WORKERS, else 2)" in text["autocompare"]
    assert "autocompare-" not in text["capture"]


def test_help_of_a_command(capsys):
    assert help_text(capsys, "help", "compare") == help_text(capsys, "compare", "--help")
    assert help_text(capsys, "help") == help_text(capsys, "--help")
    both = help_text(capsys, "help", "blackbox")
    assert "--blackbox-stall" in both and help_text(capsys, "blackbox", "--help") in both
    assert command_line.main(["help", "bogus"]) == 64
    assert "bogus is no command (ops, run" in capsys.readouterr().err


def test_show_prints_a_call_of_a_container_and_the_folder_of_a_file(tmp_path, capsys):
    with op_tools.OpCapture(format="container", ops="torch.neg", output_dir=tmp_path) as capture:
        torch.neg(torch.ones(3))
    container = f"{capture.result().root}/calls.zip"
    with zipfile.ZipFile(container) as entries:
        call = next(name for name in entries.namelist() if name.endswith("input.pth")).rpartition("/")[0]
    status, text = output_of(capsys, "show", f"{container}!{call}")
    assert status == 0 and text.startswith("torch.neg\n") and f"run_op_from_data '{container}!{call}'" in text
    status, text = output_of(capsys, "show", f"{container}!torch.neg/99")
    assert status == 2 and "there is no such call" in text

    with op_tools.OpCapture(ops="torch.nn.functional.linear", output_dir=tmp_path / "folders") as capture:
        torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))
    (file,) = Path(capture.result().root).rglob("input.pth")
    status, text = output_of(capsys, "show", str(file))
    assert status == 0 and "module       0 of Sequential" in text


def test_show_names_what_else_is_there(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    status, text = output_of(capsys, "show", str(tmp_path / "empty"))
    assert status == 2 and "is empty" in text and "op-tools doctor" in text
    with op_tools.OpTimeMeasure(output_dir=tmp_path / "time", lines=False):
        torch.neg(torch.ones(3))
    status, text = output_of(capsys, "show", str(tmp_path / "time"))
    assert status == 0 and text.startswith("OpTimeMeasure, rank 0") and "torch.neg" in text
    with op_tools.OpCapture(ops="torch.neg", output_dir=tmp_path / "torn") as capture:
        torch.neg(torch.ones(3))
    (meta,) = Path(capture.result().root).rglob("meta.json")
    meta.write_text('{"name": ')
    status, text = output_of(capsys, "show", str(tmp_path / "torn"))
    assert status == 2 and f"{meta}: is damaged" in text


def test_a_filter_that_matches_nothing_is_said(capsys):
    status, text = output_of(capsys, "ops", "--ops", "torch.Tensor.srot")
    assert status == 1 and "did you mean" in text and "torch.Tensor.sort" in text
    status, text = output_of(capsys, "ops", "--ops", "addmm.out")
    assert status == 1 and "of level aten 1 (--level aten)" in text


def test_doctor_knows_the_filters_of_modules(monkeypatch, capsys):
    monkeypatch.setenv("OP_CAPTURE_MODULES", "layer3.*")
    status, text = output_of(capsys, "doctor")
    assert status == 0 and "only calls made in modules layer3.*" in text
    monkeypatch.setenv("OP_CAPTURE_MODULES", "(")
    monkeypatch.setenv("OP_CAPTURE_MODULE", "layer3")
    status, text = output_of(capsys, "doctor")
    assert status == 1 and "OP_CAPTURE_MODULES: '('" in text and "did you mean OP_CAPTURE_MODULES?" in text


def test_only_some_modules_of_a_script(op_tools_command, tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\ntorch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))(torch.ones(1, 2))"
    )
    done = op_tools_command("run", "--capture", "--modules", "1", "model.py")
    assert done.returncode == 0, done.stderr
    (meta,) = tmp_path.glob("op_capture_result/0/*/torch.nn.functional.linear/*/meta.json")
    assert json.loads(meta.read_text())["module"] == "1"


def test_a_config_file_names_tools_and_options_and_everything_else_wins_over_it(
    op_tools_command, tmp_path, monkeypatch
):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "op_tools.toml").write_text(
        'tools = ["capture:torch"]\nsteps = [1]\nmax_calls = 9\n[capture]\nmax-calls = 2\nformat = "container"\n'
    )
    done = op_tools_command("run", "train.py")
    assert done.returncode == 5, done.stderr
    calls = op_tools._C.find_calls(str(tmp_path / "op_capture_result"))[0]
    assert len(calls) == 2 and all(json.loads(call[1])["step"] == 1 for call in calls)
    options = ["run", "--steps", "0,2", "train.py"]
    monkeypatch.setenv("OP_CAPTURE_MAX_CALLS", "1")
    (tool,) = chosen_tools(*parsed(options))
    assert tool._arguments == {"level": "torch", "steps": [0, 2], "format": "container"}


def parsed(options):
    options_read = parser_of_command().parse_args(options)
    return options_read, read_config(options_read.config)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[captrue]\nmax_calls = 1", r"\[captrue\]: no tool or option has this name; did you mean capture\?"),
        ("max_call = 1", r"max_call: .*did you mean max_calls\?"),
        ("[capture]\nmodes = 1", r"\[capture\] modes: .*did you mean modules\?"),
        ("tools = 3", "tools: give a list of words"),
        ('fail_on_wrong = "yes"', "fail_on_wrong: give true or false"),
        ("tools = [", "is no TOML"),
    ],
)
def test_a_config_file_with_a_mistake_is_refused(text, said, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(op_tools.Error, match=rf"mine\.toml: {said}"):
        read_config(str(tmp_path / "mine.toml"))
    with pytest.raises(op_tools.Error, match=r"none\.toml: cannot be read"):
        read_config(str(tmp_path / "none.toml"))


def test_env_exports_a_variable_for_every_option(capsys, monkeypatch, tmp_path):
    values = {"bool": "", "int": "3", "float": "0.5", "names": "torch.add", "path": "there", "ints": "1,2"}
    calls = tmp_path / "calls"
    calls.write_text("0123456789abcdef\n")
    for kind in kinds().values():
        flags = []
        for option in kind.options:
            text = values.get(option.type, option.choices[-1] if option.choices else "torch.float16->torch.float32")
            if option.name == "only_calls":
                text = str(calls)
            if option.name == "list_calls":
                text = str(tmp_path / "list")
            if option.name == "calls":
                text = "16"  # the least that OpBlackBox takes
            # Not together with async_, modules_only, level torch.
            if option.name not in ("raise_on_failure", "row_hashes", "all_threads"):
                flags += [f"--{kind.flag}-{option.name.strip('_').replace('_', '-')}", *([text] if text else [])]
        assert command_line.main(["env", f"--{kind.flag}", *flags, "--fail-on-wrong", "-v"]) == 0
        exported = dict(
            line.removeprefix("export ").split("=", 1) for line in capsys.readouterr().out.splitlines() if line
        )
        assert exported["OP_TOOLS_FAIL_ON_WRONG"] == "1" and exported["OP_TOOLS_LOG_LEVEL"] == "info"
        with monkeypatch.context() as context:
            for name, value in exported.items():
                context.setenv(name, value.strip("'"))
            (tool,) = make_tools(exported["OP_TOOLS"].split(","))
            for option in kind.options:
                left_out = option.name in ("level", "raise_on_failure", "row_hashes", "all_threads")
                assert left_out or option.variable in exported, option.name
            tool._open()


WRONG = """
import sys, torch, op_tools.sim_device
with op_tools.sim_device.fault("scale", ops="mm", scale=2.0):
    torch.mm(torch.ones(2, 2).to("sim"), torch.ones(2, 2).to("sim"))
print("ran")
sys.exit(EXIT)
"""


@pytest.mark.parametrize(("fails", "own", "status"), [(True, 0, 1), (False, 0, 0), (True, 5, 5)])
def test_fail_on_wrong_is_the_exit_status(fails, own, status, op_tools_command, tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG.replace("EXIT", str(own)))
    (tmp_path / "right.py").write_text("import torch\ntorch.mm(torch.ones(2, 2), torch.ones(2, 2))")
    flags = ["--autocompare", *(["--fail-on-wrong"] if fails else [])]
    done = op_tools_command("run", *flags, "wrong.py")
    assert done.returncode == status, done.stderr
    assert done.stdout == "ran\n"
    assert op_tools_command("run", *flags, "right.py").returncode == 0
    variables = {"OP_TOOLS": "autocompare", "OP_TOOLS_FAIL_ON_WRONG": str(int(fails))}
    path = f"{ROOT / 'op_tools' / 'startup'}{os.pathsep}{ROOT}"
    done = op_tools_command("wrong.py", program=(), PYTHONPATH=path, **variables)
    assert (done.returncode, done.stdout) == (status, "ran\n"), done.stderr


def in_environment(*options, code="", **variables):
    """Runs a program text with tools of the environment, in a Python that is started for it: copies have imported op_tools."""
    path = f"{ROOT / 'op_tools' / 'startup'}{os.pathsep}{ROOT}"
    return launched("-c", code, *options, check=False, fresh=True, PYTHONPATH=path, **variables)


IMPORTS = ("import op_tools.sim_device\nimport torch", "import op_tools", "import torch\nimport op_tools.repro")


@pytest.mark.parametrize("imports", IMPORTS)
def test_the_environment_starts_tools_in_a_program_that_imports_op_tools_first(imports, tmp_path):
    text = f"{imports}\n{WRONG.replace('EXIT', '0')}"
    variables = {"OP_TOOLS": "autocompare", "OP_TOOLS_FAIL_ON_WRONG": "1", "OP_TOOLS_OUTPUT_DIR": str(tmp_path)}
    done = in_environment(code=text, **variables)
    assert (done.returncode, done.stdout) == (1, "ran\n"), done.stderr
    assert "no tool was started" not in done.stderr and len(list(tmp_path.rglob("autocompare.csv"))) == 1


def test_an_exception_that_ends_the_program_is_its_status(tmp_path):
    variables = {"OP_TOOLS": "autocompare", "OP_TOOLS_FAIL_ON_WRONG": "1", "OP_TOOLS_OUTPUT_DIR": str(tmp_path)}
    done = in_environment(code="import torch\nraise RuntimeError('its own')", **variables)
    assert done.returncode == 1 and "NOT JUDGED: no call was seen" in done.stderr, done.stderr
    done = in_environment(code="import torch", **variables)
    assert done.returncode == 2, done.stderr


RANK = """
import os, sys, torch
torch.ones(3).exp()
if os.environ["RANK"] == "1":
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(("own", "status"), [(0, 0), (3, 1)])
def test_a_launcher_has_no_tool_of_its_own(own, status, tmp_path):
    """It would be a rank 0 that computed nothing, and its status would say so."""
    (tmp_path / "rank.py").write_text(RANK)
    path = f"{ROOT / 'op_tools' / 'startup'}{os.pathsep}{ROOT}"
    variables = {"OP_TOOLS": "autocompare,blackbox", "OP_TOOLS_FAIL_ON_WRONG": "1", "PYTHONPATH": path}
    command = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "rank.py", own)
    done = launched(*command, cwd=tmp_path, check=False, fresh=True, **variables)
    assert done.returncode == status and "NOT JUDGED" not in done.stderr, done.stderr
    assert sorted(len([*folder.iterdir()]) for folder in (tmp_path / "op_blackbox_result").iterdir()) == [1, 1]


@pytest.mark.parametrize(
    ("words", "is_launcher"),
    [
        (["/bin/torchrun", "train.py"], True),
        (["/bin/accelerate", "launch", "train.py"], True),
        (["/lib/torch/distributed/run.py", "train.py"], True),
        (["/bin/accelerate", "estimate-memory"], False),
        (["train.py", "torchrun"], False),
    ],
)
def test_launchers_are_known_by_their_words(words, is_launcher, monkeypatch):
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", *words])
    assert launch._is_launcher() is is_launcher
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "from multiprocessing.spawn import spawn_main"])
    assert launch._is_launcher() is False


@pytest.mark.parametrize("fails", ["", "0", "1", "yes"])
def test_tools_that_cannot_start_have_judged_nothing(fails, tmp_path):
    status = 2 if fails in ("1", "yes") else 0
    variables = {"OP_TOOLS": "captrue", "OP_TOOLS_FAIL_ON_WRONG": fails}
    done = in_environment(code="import torch; print('ran')", **variables)
    assert (done.returncode, done.stdout) == (status, "ran\n") and "no tool was started" in done.stderr
    for name, text in {"torch": "", "op_tools": "raise ImportError('no core')"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    path = f"{ROOT / 'op_tools' / 'startup'}{os.pathsep}{tmp_path}"
    environment = os.environ | {"PYTHONPATH": path, **variables}
    command = [sys.executable, "-c", "import torch; print('ran')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (status, "ran\n") and "no core" in done.stderr


def test_a_program_that_closes_its_output_has_the_status_of_its_tools(tmp_path):
    text = f"{WRONG.replace('EXIT', '0').replace('sys.exit', 'sys.stdout.close(); sys.exit')}"
    variables = {"OP_TOOLS": "autocompare", "OP_TOOLS_FAIL_ON_WRONG": "1", "OP_TOOLS_OUTPUT_DIR": str(tmp_path)}
    assert in_environment(code=text, **variables).returncode == 1


def test_the_environment_starts_no_tool_in_a_command_of_the_package(op_tools_command, tmp_path):
    (tmp_path / "fine.py").write_text("import torch\nprint('ran')")
    path = f"{ROOT / 'op_tools' / 'startup'}{os.pathsep}{ROOT}"
    variables = {"PYTHONPATH": path, "OP_TOOLS": "autocompare", "OP_TOOLS_FAIL_ON_WRONG": "1"}
    for words in (["ops", "--ops", "torch.neg"], ["run", "--time", "fine.py"]):
        done = launched("-m", "op_tools", *words, cwd=tmp_path, fresh=True, **variables)
        assert ("OP_TOOLS starts no tool here" in done.stderr) == (words[0] == "run"), done.stderr
    assert not (tmp_path / "op_autocompare_result").exists()


def test_v_prints_a_line_for_each_call(op_tools_command, tmp_path):
    (tmp_path / "fine.py").write_text("import torch\nfor _ in range(9): torch.neg(torch.ones(2))")
    quiet = op_tools_command("run", "--capture", "fine.py", OP_TOOLS_LOG_LEVEL="")
    loud = op_tools_command("run", "--capture", "-v", "fine.py", OP_TOOLS_LOG_LEVEL="")
    nothing = op_tools_command("run", "--capture", "-q", "fine.py", OP_TOOLS_LOG_LEVEL="")
    assert len(quiet.stderr.splitlines()) == 1 and "18 calls of 2 ops" in quiet.stderr
    assert loud.stderr.count("apply OpCaptureHook on torch.neg") == 9
    assert nothing.stderr == ""


def test_show_of_a_file_that_is_no_capture(tmp_path, capsys):
    (tmp_path / "train.py").write_text("print()")
    status, text = output_of(capsys, "show", str(tmp_path / "train.py"))
    assert status == 2 and "train.py: is no capture: give the folder of a call" in text
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pth")
    status, text = output_of(capsys, "show", str(tmp_path / "model.pth"))
    assert status == 2 and "model.pth: no container of calls" in text


def test_show_counts_incomplete_calls(tmp_path, capsys):
    with op_tools.OpCapture(ops="torch.neg", output_dir=tmp_path) as tool:
        for _ in range(3):
            torch.neg(torch.ones(3))
    next(Path(tool.result().root).rglob("meta.json")).unlink()
    status, text = output_of(capsys, "show", str(tmp_path))
    assert status == 0 and "3 calls of 1 ops" in text and "; 1 of them incomplete" in text


def test_a_filter_that_matched_nothing_names_what_was_meant(log_level, capfd):
    log_level("warn")
    with op_tools.OpObserve(ops="torch.Tensor.srot, add.Tensr, addmm.out, torch.nn.functional.gelu"):
        torch.neg(torch.ones(2))
    said = capfd.readouterr().err
    assert re.search(r"'torch\.Tensor\.srot' matched no operator.*did you mean .*torch\.Tensor\.sort", said)
    assert re.search(r"'add\.Tensr'.*did you mean aten::add\.Tensor", said)
    assert re.search(r"'addmm\.out'.*1 of level aten would be \(level='aten'\)", said)
    assert "'torch.nn.functional.gelu' matched no operator that was called; there are such operators" in said
    status, text = output_of(capfd, "ops", "--ops", "*mul")
    assert status == 2 and "did you mean '.*mul'?" in text


def test_every_spelling_of_a_public_function_is_taken_by_filters():
    x = torch.eye(3)
    calls = {
        "torch.unique": lambda: torch.unique(x),
        "torch.relu_": lambda: torch.relu_(x.clone()),
        "torch.sparse.mm": lambda: torch.sparse.mm(x.to_sparse(), x),
        "torch.einsum": lambda: torch.einsum("ij->i", x),
        "torch.conv1d": lambda: torch.conv1d(x[None], x[None]),
        "torch.special.expit": lambda: torch.special.expit(x),
        "torch.norm": lambda: torch.norm(x),
    }
    for name, call in calls.items():
        with op_tools.OpObserve(ops=name) as tool:
            call()
        assert tool.result().calls == 1, name
        with op_tools.OpObserve(skip=name) as tool:
            call()
        own = name.rpartition(".")[2]
        assert not any(row.op.rpartition(".")[2].removeprefix("_sparse_") == own for row in tool.result().rows), name
        assert name in op_tools._C.admitted([name], name, "")


def test_the_seeds_command_verbatim(tmp_path, op_tools_command):
    with op_tools.OpCapture(ops="torch.neg", output_dir=tmp_path) as tool:
        torch.neg(torch.ones(3))
    script = str(ROOT / "op_tools" / "run_op_from_data.py")
    done = op_tools_command(tool.result().root, "--acc_check", "--run_times", "1", program=(script,))
    assert done.returncode == 0, done.stderr
    assert "1 agree" in done.stdout


def test_fallback_prints_inputs_and_outputs_as_ditorch_does(python):
    text = """
import torch, op_tools, op_tools.sim_device
with op_tools.OpFallback(ops="torch.mm"):
    torch.mm(torch.ones(2, 3).to("sim"), torch.ones(3, 2).to("sim"))
"""
    lines = python(text, OP_TOOLS_LOG_LEVEL="", OP_TOOLS_COMPAT="ditorch").stderr.splitlines()
    for what in ("input", "output"):
        assert [line for line in lines if re.match(rf"OpFallbackHook: torch\.mm +{what}: .*float32", line)], lines
    assert "OpFallbackHook:" not in python(text, OP_TOOLS_LOG_LEVEL="info").stderr


def test_replay_brings_the_simulated_device_by_itself(tmp_path, build_dir):
    with op_tools.OpCapture(ops="torch.neg", output_dir=tmp_path) as tool:
        torch.neg(torch.ones(3))
    arguments = [tool.result().root, "--acc_check", "--device", "sim"]
    done = subprocess.run([build_dir / "run_op_from_data", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    launched("-m", "op_tools.run_op_from_data", *arguments)


def test_replay_refuses_what_it_cannot_do_before_the_work(tmp_path, build_dir):
    with op_tools.OpCapture(ops="torch.neg", output_dir=tmp_path) as tool:
        torch.neg(torch.ones(3))

    def replay_with(*flags):
        command = [str(build_dir / "run_op_from_data"), tool.result().root, *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    status, text = replay_with("--device", "npu")
    assert status == 64 and "--device npu" in text and "--load" in text
    assert "python -m op_tools.run_op_from_data --device npu DIR" in text
    status, text = replay_with("--device", "xpu")
    assert status == 64 and "--load" in text and "run_op_from_data --device xpu" in text
    for target in (tmp_path / "missing" / "report.json", tmp_path):
        status, text = replay_with("--json", str(target))
        assert status == 2 and f"--json {target}: cannot be written" in text and "1 call" not in text
    status, text = replay_with("--filter", "torch.sin")
    assert status == 2 and "--filter torch.sin: none of the 1 call has such a name" in text
    assert replay_with("--filter", "torch.neg", "--json", str(tmp_path / "report.json"))[0] == 0


def test_each_command_is_in_the_module_that_is_imported_for_it():
    def commands(parser):
        (choices,) = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
        return set(choices)

    modules = COMMANDS
    for names in modules.values():
        for name in names:
            assert commands(parser_of(name)) == set(names)
    everything = {name for names in modules.values() for name in names} | set(installed_parts(Group.COMMANDS))
    assert commands(parser_of()) == commands(parser_of("--help")) == everything
    folder = Path(command_line.__file__).parent / "_commands"
    added = {path.stem for path in folder.glob("*.py") if "\ndef add(" in path.read_text()}
    assert set(modules) == added
