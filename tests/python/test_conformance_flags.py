"""op-tools conformance: every flag in every stage works or is an error; every exit status of every stage."""

import argparse
import json
import re
from pathlib import Path

import pytest
import torch
from printed_commands import parser_of_command
from sample_cases import ADD, ADD_, MM, OUT, SIM, SOFTMAX, case, tensor

import op_tools
import op_tools.sim_device  # makes the device "sim"
from op_tools import _C
from op_tools.__main__ import main
from op_tools._conformance import shard_run
from op_tools._conformance.case import Case
from op_tools._conformance.lists import read_list
from op_tools._conformance.mutations import mutated
from op_tools._conformance.rows import read_rows, row_of
from op_tools._conformance.shard_run import sampled, share_of

CPU = ("--device", "cpu")
SELECTION = ("--source", "--list", "--captures", "--mine", "--fname", "--model", "--filter-dtype", "--phase", "--nhwc")
SELECTION += ("--four-bytes", "--sample")
WORK = ("--device", "--output", "--import", "--shard", "--jobs", "--timeout", "--resume", "--allow-unseen", *SELECTION)
FLAGS = {
    "run": {*WORK, "--golden", "--device-config", "--method", "--time"},
    "gen": {*WORK, "--digests", "--float64"},
    "list": {*SELECTION, "--by", "--ids", "--list-models", "--write"},
    "export": {*SELECTION, "--output", "--format"},
    "record": {"--output", "--name"},
    "verify": {"--allow-unseen"},
    "report": {"--allow-unseen"},
}
"""Each of these pairs is tested below."""
ALL = sorted(set().union(*FLAGS.values()))


IMAGE = case("torch.relu", tensor(2, 3, 4, 5))
CASES = (MM, SOFTMAX, ADD, ADD_, OUT, IMAGE)
STAGES = ("run", "gen", "list", "export")


def changed(name):
    return {mutated(one, name) or one for one in CASES}


@pytest.fixture(autouse=True)
def _one_parser(monkeypatch):
    """To make it takes longer than most of these commands."""
    monkeypatch.setattr("op_tools.__main__.parser_of", parser_of_command)


@pytest.fixture
def listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return str(written("cases.jsonl", CASES))


def written(name, cases):
    path = Path(name)
    path.write_text("".join(one.to_json() + "\n" for one in cases))
    return path


@pytest.fixture
def quick(monkeypatch):
    """Cases run in this process, without the self-test: these tests are about the work before and after them."""

    def work_through(items, start, work, **_):
        start()
        for item in items:
            yield item, work(item), None

    class NoSelfTest:
        def outcome(self):
            return ""

    threads = torch.get_num_threads()
    monkeypatch.setattr(shard_run, "work_through", work_through)
    monkeypatch.setattr("op_tools._work.conformance.SelfTest", NoSelfTest)
    monkeypatch.setattr("op_tools._work.conformance.prepare", lambda **_: None)
    with monkeypatch.context() as variables:
        variables.setenv("OP_TOOLS_LOG_LEVEL", "warn")
        yield
    torch.set_num_threads(threads)
    _C.reload_log_level()


def status_of(*arguments):
    try:
        return main(["conformance", *map(str, arguments)])
    except SystemExit as error:
        return error.code


def rows_of(folder):
    return {name: rows for file in Path(folder).glob("rows*.jsonl") for name, rows in read_rows(file).items()}


def counts(folder):
    return json.loads((Path(folder) / "summary.json").read_text())["statuses"]


def facts(folder):
    return json.loads((Path(folder) / "run.json").read_text())


def chosen(stage, capsys, *flags):
    """The ids of the cases that a stage took."""
    arguments = {"list": ["--ids"], "export": ["-o", "out"]}.get(stage, [*CPU, "-o", "out", "--jobs", "1"])
    capsys.readouterr()
    assert status_of(stage, *arguments, *flags) == 0, capsys.readouterr().err
    if stage == "list":
        return set(capsys.readouterr().out.splitlines()[:-1])
    return {one.id for one in read_list(Path("out/cases.jsonl"))} if stage == "export" else set(rows_of("out"))


# --- Which flags there are ------------------------------------------------------------------------------------------------


def parser_of(stage):
    def inner(parser, name):
        (actions,) = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
        return actions.choices[name]

    return inner(inner(parser_of_command(), "conformance"), stage)


@pytest.mark.parametrize("stage", FLAGS)
def test_the_flags_of_a_stage_are_those_that_are_tested(stage):
    known = {option for one in parser_of(stage)._actions for option in one.option_strings if option.startswith("--")}
    assert known - {"--help"} == FLAGS[stage]


POSITIONAL = {"record": ["train.py"], "verify": ["result"], "report": ["result"]}


@pytest.mark.parametrize(
    ("stage", "flag"), [(stage, flag) for stage, flags in FLAGS.items() for flag in ALL if flag not in flags]
)
def test_a_flag_that_a_stage_does_not_have_is_an_error(stage, flag, capsys):
    needed = {"run": [*CPU, "-o", "r"], "gen": [*CPU, "-o", "r"], "export": ["-o", "r"], "record": ["-o", "r"]}
    for value in ([], ["1"]):  # --time 1 is not --timeout 1
        assert status_of(stage, *needed.get(stage, []), flag, *value, *POSITIONAL.get(stage, [])) == 64
        assert flag in capsys.readouterr().err


# --- Flags that choose cases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--fname", "mm|add_?"], {MM, ADD, ADD_}),
        (["--model", "net"], {MM, SOFTMAX}),
        (["--filter-dtype", "float32", "--filter-dtype", "float64"], {ADD}),
        (["--phase", "forward"], {MM, SOFTMAX, ADD, IMAGE}),
        (["--phase", "backward"], {SOFTMAX}),
        (["--phase", "inplace"], {ADD_}),
        (["--phase", "out"], {OUT}),
        (["--nhwc"], changed("nhwc")),
        (["--four-bytes"], changed("four-bytes")),
        (["--sample", "2"], set(sampled(CASES, 2))),
        (["--source", "mine"], set(CASES)),
        (["--phase", "forward", "--filter-dtype", "int64", "--model", "net", "--fname", ".*max"], {SOFTMAX}),
    ],
    ids=lambda one: "".join(one) if isinstance(one, list) else "",
)
def test_flags_that_choose_cases(listed, quick, capsys, stage, flags, expected):
    assert chosen(stage, capsys, "--list", listed, *flags) == {one.id for one in expected}


@pytest.mark.parametrize("stage", STAGES)
def test_sources_of_cases(tmp_path, monkeypatch, quick, capsys, stage):
    monkeypatch.chdir(tmp_path)
    mine = json.loads(MM.to_json())
    for name in ("one.json", "two.json"):
        Path(name).write_text(json.dumps([{key: mine[key] for key in ("op", "args")}]))
        mine["op"] = "torch.matmul"
    with op_tools.OpCapture(output_dir="A"):
        torch.tanh(torch.full((3,), 0.5))
    with op_tools.OpRecord(output_dir="B"):
        torch.sigmoid(torch.full((3,), 0.5))
    files = ["--mine", "one.json", "--captures", "A", "--mine", "two.json", "--captures", "B", "--sample", "9"]
    assert {name.split("/")[1] for name in chosen(stage, capsys, *files)} >= {
        "torch.mm", "torch.matmul", "torch.tanh", "torch.sigmoid"
    }  # fmt: skip


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("flags", "status", "why"),
    [
        (["--source", "captures"], 64, "--source captures: say which files: --captures"),
        (["--source", "mine", "op_db"], 64, "--source mine: say which files: --mine"),
        (["--source", "models", "--mine", "m.json"], 64, "--mine: is left out by --source models"),
        (["--list", "cases.jsonl", "--captures", "A"], 64, "--captures: is no source beside --list"),
        (["--source", "mars"], 64, "--source"),
        (["--sample", "0"], 64, "--sample"),
        (["--phase", "sideways"], 64, "--phase"),
        (["--list", "nowhere.jsonl"], 2, "nowhere.jsonl"),
        (["--mine", "nowhere.json"], 2, "nowhere.json"),
        (["--captures", "nowhere"], 2, "nowhere"),
        (["--list", "cases.jsonl", "--fname", "("], 64, "--fname"),
        (["--list", "cases.jsonl", "--fname", "nothing"], 2, "no case is left"),
        (["--list", "cases.jsonl", "--source", "op_db"], 2, "no case is left"),
        (["--list", "cases.jsonl", "--model", "nat"], 64, "did you mean net?"),
        (["--list", "cases.jsonl", "--filter-dtype", "float3"], 64, "--filter-dtype float3"),
        (["--captures", "A", "--nhwc"], 2, "--nhwc: captures/"),
        (["--captures", "A", "--four-bytes"], 2, "--four-bytes: captures/"),
    ],
)
def test_flags_that_choose_no_cases(listed, quick, capsys, stage, flags, status, why):
    if "A" in flags:
        with op_tools.OpCapture(output_dir="A"):
            torch.tanh(torch.full((3,), 0.5))
    needed = {"list": [], "export": ["-o", "out"]}.get(stage, [*CPU, "-o", "out"])
    assert status_of(stage, *needed, *flags) == status
    assert why in capsys.readouterr().err and not Path("out/rows.jsonl").exists()


# --- Flags of run and gen ---------------------------------------------------------------------------------------------------

WORKING = pytest.mark.parametrize("stage", ["run", "gen"])


@WORKING
def test_the_device_its_backend_and_the_folder(listed, quick, stage):
    assert status_of(stage, *SIM, "--list", listed, "--fname", "mm", "-o", "some/where") == 0
    assert facts("some/where")["device"] == "sim" and counts("some/where") == {"agrees": 1}
    assert status_of(stage, "--device", "sim:0", "--list", listed, "--fname", "mm", "-o", "first") == 0
    assert facts("first")["device"] == "sim:0"


@WORKING
def test_shards_have_their_parts(listed, quick, stage):
    for number in range(2):
        assert status_of(stage, *CPU, "--list", listed, "-o", "out", "--shard", f"{number}/2") == 0
        done = read_rows(Path(f"out/rows.{number}-of-2.jsonl"))
        assert set(done) == {one.id for one in share_of(CASES, number, 2)}
    assert set(rows_of("out")) == {one.id for one in CASES}
    assert status_of("verify", "out") == 0


@WORKING
def test_jobs(tmp_path, monkeypatch, quick, stage):
    monkeypatch.chdir(tmp_path)
    listed = written("many.jsonl", [case("torch.neg", tensor(n + 1)) for n in range(51)])
    workers = []

    def counted(items, *_, jobs, **__):
        workers.append(jobs)
        return ((one, [row_of(Case.from_json(one))], None) for one in items)

    monkeypatch.setattr(shard_run, "work_through", counted)
    for jobs in (1, 2, 9):
        assert status_of(stage, *CPU, "--list", listed, "-o", f"of-{jobs}", "--jobs", jobs) == 0
    assert workers == [1, 2, 2]  # a process is worth 50 cases


@WORKING
def test_a_time_limit(listed, monkeypatch, stage):
    """In worker processes."""
    monkeypatch.setenv("OP_TOOLS_SIM_FAULTS", "hang:ops=mm")
    more = ("--list", listed, "--fname", "mm|add", "--jobs", "1", "-o", "out")
    assert status_of(stage, *SIM, "--timeout", "1.5", *more) == 1
    assert {rows[0].op: rows[0].status for rows in rows_of("out").values()} == {
        "torch.mm": "hung",
        "torch.add": "agrees",
    }


@WORKING
def test_resume(listed, quick, capsys, stage):
    run = (stage, *CPU, "--list", listed, "-o", "out")
    assert status_of(*run, "--resume") == 0  # nothing was there
    lines = Path("out/rows.jsonl").read_text().splitlines(keepends=True)
    Path("out/rows.jsonl").write_text("".join(lines[:3]))
    assert status_of(*run) == 2 and "--resume" in capsys.readouterr().err
    assert status_of(*run, "--resume") == 0
    after = Path("out/rows.jsonl").read_text().splitlines(keepends=True)
    assert after[:3] == lines[:3] and set(rows_of("out")) == {one.id for one in CASES}


@WORKING
@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (["--shard", "2/2"], 64),
        (["--shard", "one"], 64),
        (["--jobs", "0"], 64),
        (["--timeout", "0"], 64),
        (["--timeout", "nan"], 64),
        (["--resume", "now"], 64),
        (["--device", "nonsense"], 2),
        (["--import", "no_such_backend"], 2),
        (["-o", "cases.jsonl/r"], 2),
    ],
)
def test_wrong_values(listed, quick, capsys, stage, flags, status):
    assert status_of(stage, *CPU, "--list", listed, "-o", "out", *flags) == status
    assert flags[-1] in capsys.readouterr().err


def test_the_phase_that_is_judged_and_kept(listed, quick):
    for phase in ("forward", "backward"):
        assert status_of("run", *CPU, "--list", listed, "--fname", "softmax", "--phase", phase, "-o", phase) == 0
        assert [row.phase for row in rows_of(phase)[SOFTMAX.id]] == [phase]
    for phase, number in (("forward", 0), ("backward", 1)):
        arguments = ("--list", listed, "--fname", "softmax", "--phase", phase, "--format", "folders")
        assert status_of("export", *arguments, "-o", f"{phase}s") == 0
        assert len(list(Path(f"{phase}s").rglob("grad_inputs.pth"))) == number


def test_what_run_judges_by(listed, quick, monkeypatch):
    run = ("run", *SIM, "--list", listed, "--fname", "mm", "-o")
    assert status_of(*run, "timed", "--time") == 0 and rows_of("timed")[MM.id][0].median > 0
    assert status_of(*run, "plain") == 0 and rows_of("plain")[MM.id][0].median is None
    for method in ("relative", "allclose", "bitwise", "ulp", "msprobe-quick", "msprobe-absolute"):
        assert status_of(*run, method, "--method", method) == 0
        assert facts(method)["method"] == method
    assert rows_of("allclose")[MM.id][0].method == "allclose"
    assert status_of("gen", *SIM, "--list", listed, "-o", "golden") == 0
    assert status_of(*run, "golden-run", "--golden", "golden") == 0
    assert rows_of("golden-run")[MM.id][0].reference == "sim, float64"
    known = [{"op": r"torch\.mm", "expect": "unsupported", "reason": "next year"}]
    Path("known.json").write_text(json.dumps({"exception": known}))
    assert status_of(*run, "known", "--device-config", "known.json") == 0
    assert counts("known") == {"unexpected agreement": 1}


@pytest.mark.parametrize("kind", ["values", "digests", "float64"])
def test_what_gen_keeps(listed, quick, kind):
    flags = [] if kind == "values" else [f"--{kind}"]
    assert status_of("gen", *CPU, "--list", listed, "-o", "golden", *flags) == 0
    assert json.loads(Path("golden/golden.json").read_text())["kind"] == kind
    assert counts("golden") == {"agrees": len(CASES)}
    assert status_of("run", *SIM, "--list", listed, "-o", "out", "--golden", "golden") == 0
    assert counts("out") == {"agrees": len(CASES)}


# --- Flags of list, export, record ------------------------------------------------------------------------------------------


def test_what_list_shows(listed, capsys):
    def shown(*flags):
        capsys.readouterr()
        assert status_of("list", "--list", listed, *flags) == 0
        return capsys.readouterr().out

    for by, name in (("op", "torch.relu"), ("variant", "inplace"), ("layout", "contiguous"), ("mutation", "(none)")):
        assert re.search(rf"^{re.escape(name)} +\d$", shown("--by", by), re.MULTILINE)
    assert re.search("^mine +6$", shown(), re.MULTILINE) and MM.id not in shown()
    assert MM.id in shown("--ids").splitlines()
    assert re.search("^net +2\n1 models$", shown("--list-models"), re.MULTILINE)
    assert re.search("^net +1\n1 models$", shown("--list-models", "--fname", "mm"), re.MULTILINE)
    assert "6 cases, 6 functions in new.jsonl" in shown("--write", "new.jsonl")
    assert list(read_list(Path("new.jsonl"))) == list(CASES)
    for flags in (
        ("--ids", "--by", "op"),
        ("--ids", "--list-models"),
        ("--by", "op", "--list-models"),
        ("--by", "age"),
    ):
        assert status_of("list", "--list", listed, *flags) == 64
    assert status_of("list", "--list", listed, "--write", "cases.jsonl/x") == 2


def test_what_export_writes(listed, quick, capsys):
    for form, files in (("container", 0), ("folders", len(CASES))):
        assert status_of("export", "--list", listed, "-o", form, "--format", form) == 0
        assert (
            len(list(Path(form).rglob("input.pth"))) == files and len(list(read_list(Path(form, "cases.jsonl")))) == 6
        )
        assert f"{len(CASES)} calls in {form}" in capsys.readouterr().out
    assert status_of("export", "--list", listed, "-o", "container") == 2
    assert status_of("export", "--list", listed, "-o", "x", "--format", "zip") == 64
    assert status_of("export", "--list", listed) == 64
    wrong = written("wrong.jsonl", [MM, case("torch.mm", tensor(7, 9), tensor(8, 5))])
    assert status_of("export", "--list", wrong, "-o", "some") == 1
    assert "not exported: mat1" in capsys.readouterr().err


def test_what_record_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import sys, torch\ntorch.relu(torch.ones(int(sys.argv[2])))\n")
    assert status_of("record", "-o", "a.jsonl", "train.py", "--size", "7") == 0
    assert status_of("record", "-o", "b.jsonl", "--name", "net", "train.py", "--name", "7") == 0
    for name, model in (("a.jsonl", "train"), ("b.jsonl", "net")):
        (relu,) = [one for one in read_list(Path(name)) if one.op == "torch.relu"]
        assert relu.models == {model: 1} and relu.tensors[0].shape == (7,)
    assert status_of("record", "train.py") == 64
    assert status_of("record", "-o", "a.jsonl", "nowhere.py") == 2
    Path("ends.py").write_text("import sys\nsys.exit(3)\n")
    assert status_of("record", "-o", "a.jsonl", "ends.py") == 2
    assert "ended with the status 3" in capsys.readouterr().err


# --- Exit statuses ------------------------------------------------------------------------------------------------------


STATUSES = {
    0: ["report right", "report right right", "report wrong right", "verify right", "verify wrong", "list", "gen -o g"],
    1: ["report wrong", "report right wrong", "verify edited"],
    2: ["report void", "report nowhere", "report right nowhere", "verify nowhere", "gen -o h --list raises.jsonl"],
    64: ["report", "report right wrong void", "verify", "verify right wrong", "list x", "gen", "run", "nothing", ""],
}


STATUSES[2] += ["list --list broken.jsonl", "run -o h --list raises.jsonl", "verify void"]
# More cases that nothing can judge than others.
STATUSES[2] += ["run -o open --list open.jsonl", "verify open", "report open", "gen -o kept --list open.jsonl"]
STATUSES[0] += ["verify void --allow-unseen", "report void --allow-unseen", "run -o p --list most.jsonl"]
STATUSES[0] += ["run -o q --list open.jsonl --allow-unseen", "gen -o r --list open.jsonl --allow-unseen"]


def test_exit_statuses(listed, quick):
    of_mm = ("run", *SIM, "--list", listed, "--fname", "mm", "-o")
    assert status_of(*of_mm, "right") == 0
    with op_tools.sim_device.fault("scale", ops="mm"):
        assert status_of(*of_mm, "wrong") == 1
    with op_tools.sim_device.fault("missing", ops="mm"):
        assert status_of(*of_mm, "void") == 2
    Path("edited").mkdir()
    for path in Path("right").iterdir():
        (Path("edited") / path.name).write_bytes(path.read_bytes())
    told = json.loads(Path("right/summary.json").read_text())
    Path("edited/summary.json").write_text(json.dumps({**told, "cases": 7}))
    Path("broken.jsonl").write_text("{}\n")
    written("raises.jsonl", [case("torch.mm", tensor(7, 9), tensor(8, 5))])
    undefined = [case("torch.empty_like", tensor(n)) for n in (3, 4)]
    written("open.jsonl", [MM, *undefined])
    written("most.jsonl", [MM, ADD, *undefined])
    for status, commands in STATUSES.items():
        for command in commands:
            stage, *more = command.split(" ")
            device = CPU if stage in ("run", "gen") else ()
            cases = ("--list", listed) if stage in ("run", "gen", "list") and "--list" not in more else ()
            assert status_of(*filter(None, [stage]), *device, *cases, *more) == status, command
