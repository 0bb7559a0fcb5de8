"""op-tools diagnose: the order of the questions, the budget, the state, and stories with a planted cause."""

import json
from pathlib import Path

import pytest
from conftest import ROOT, launched
from diagnose_stories import STORIES, answer_in, command_of, environment_of, faults_of

from op_tools._base.core import Error
from op_tools._diagnose.answer import SENTENCES, Answer, Asked, Cause, Culprit
from op_tools._diagnose.conclusion import finish
from op_tools._diagnose.program import Program
from op_tools._diagnose.reference import reference_losses
from op_tools._diagnose.runs import Ended, Run, RunState
from op_tools._diagnose.session import ANSWER, NotAsked, Plan, Question, Session

PLAIN_PATH = "/usr/local/bin:/usr/bin:/bin"  # no op-tools in it: the copies of this Python are asked


def story(name):
    return next(story for story in STORIES if story.name == name)


def diagnosed(name, tmp_path, *more, **options):
    """A story, told to op-tools diagnose: the finished process, and its answer."""
    words = command_of(story(name), tmp_path, ())
    command = ["-m", "op_tools", words[0], *more, *words[1:]]
    variables = {"PATH": PLAIN_PATH, **environment_of(story(name))}
    done = launched(*command, cwd=tmp_path, check=False, timeout=400, **variables, **options)
    return done, answer_in(tmp_path)


# --- Stories ------------------------------------------------------------------------------------------------------------


def test_a_missing_operator_is_named_and_a_resumed_diagnosis_runs_nothing_again(tmp_path):
    done, answer = diagnosed("missing operator", tmp_path)
    assert faults_of(story("missing operator"), answer) == [], done.stdout + done.stderr
    assert done.returncode == 1
    assert "--fallback-on-missing" in done.stdout
    assert answer["verdict"] == "differs"
    assert [asked["name"] for asked in answer["asked"] if asked["commands"]] == ["run", "report"]
    for command in (command for asked in answer["asked"] for command in asked["commands"]):
        assert command in done.stderr  # each is shown as it was run

    state = (tmp_path / "op_diagnose_result" / "state.jsonl").read_text()
    again, same = diagnosed("missing operator", tmp_path, "--resume")
    assert same["culprits"] == answer["culprits"]
    assert (tmp_path / "op_diagnose_result" / "state.jsonl").read_text() == state
    assert "failed before" in again.stderr


def test_a_wrong_kernel_is_named_and_shown_in_fresh_processes(tmp_path):
    done, answer = diagnosed("wrong kernel", tmp_path)
    assert faults_of(story("wrong kernel"), answer) == [], done.stdout + done.stderr
    assert all(culprit["certain"] for culprit in answer["culprits"])
    commands = {item["purpose"]: item["command"] for item in answer["next"]}
    meanwhile = next(command for purpose, command in commands.items() if "on the CPU" in purpose)
    assert "--fallback" in meanwhile
    assert "aten::tanh_backward" in meanwhile
    assert Path(tmp_path / answer["report"]).is_file()
    assert any("--reference" in gap for gap in answer["not_looked_at"]) or answer["not_looked_at"]


def test_a_program_that_waits_forever_is_found_with_its_line(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import threading\nimport torch\nx = torch.ones(3)\nx + x\nprint('loss 1', flush=True)\nthreading.Event().wait()\n"
    )
    command = ["-m", "op_tools", "diagnose", "--stall", "4", "--", "train.py"]
    done = launched(*command, cwd=tmp_path, check=False, timeout=200, PATH=PLAIN_PATH)
    answer = answer_in(tmp_path)
    assert answer["cause"] == Cause.HANG.value, done.stdout + done.stderr
    assert answer["culprits"][0]["line"].startswith(f"{program}:6"), answer["culprits"]
    assert answer["asked"][0]["commands"][0].startswith("timeout ")


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_call_that_the_cpu_refuses_too_is_no_lack_of_the_device(device, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nimport op_tools.sim_device\nprint('loss 1', flush=True)\n"
        f"(torch.ones(3, device='{device}') + 1).sum()\n"
        f"torch.histc(torch.ones(4, dtype=torch.int32, device='{device}'))\n"
    )
    command = ["-m", "op_tools", "diagnose", "--", "train.py"]
    done = launched(*command, cwd=tmp_path, check=False, timeout=200, PATH=PLAIN_PATH)
    answer = answer_in(tmp_path)
    assert answer["cause"] == Cause.PROGRAM_RAISES.value, done.stdout + done.stderr
    assert "--fallback" not in done.stdout


# --- The order ----------------------------------------------------------------------------------------------------------


def _question(name, culprits=(), reason=None, error=""):
    def ask(session):
        if error:
            raise Error(error)
        return list(culprits)

    return Question(name, f"the question {name}", ask, lambda session: reason, lambda session: 1.0)


def _session(folder, questions, **options):
    plan = Plan(Program(("train.py",)), folder, **options)
    session = Session(plan, questions, resume=False, say=lambda line: None)
    session.report = lambda words: None  # there is nothing to make a page of
    return session


CERTAIN = Culprit(Cause.WRONG_OPERATOR, "aten::mm", "forward", line="train.py:3", certain=True, question="b")
GUESS = Culprit(Cause.WRONG_OPERATOR, "aten::relu", "forward")


def test_it_ends_with_the_first_certain_answer_unless_all_is_asked(tmp_path):
    questions = [_question("a", [GUESS]), _question("b", [CERTAIN]), _question("c")]
    answer = _session(tmp_path / "first", questions).run(finish)
    assert answer.cause is Cause.WRONG_OPERATOR
    assert [asked.not_asked != "" for asked in answer.asked[:3]] == [False, False, True]
    assert answer.culprits[0] == CERTAIN
    answer = _session(tmp_path / "all", questions, ask_all=True).run(finish)
    assert not any(asked.not_asked for asked in answer.asked)


def test_nothing_found_is_never_an_all_clear_about_what_was_not_looked_at(tmp_path):
    questions = [_question("a"), _question("b", reason=NotAsked("there is no reference"))]
    answer = _session(tmp_path / "gap", questions).run(finish)
    assert (answer.cause, answer.verdict.value) == (Cause.NOT_KNOWN, "not judged")
    assert "the question b: there is no reference" in answer.text()
    assert "says nothing of all else" in answer.sentence()
    questions[1] = _question("b", reason=NotAsked("no graph ran", is_gap=False))
    assert _session(tmp_path / "whole", questions).run(finish).verdict.value == "agrees"


def test_a_question_that_fails_is_a_gap_and_the_next_is_asked(tmp_path):
    answer = _session(tmp_path, [_question("a", error="the disk is full"), _question("b", [CERTAIN])]).run(finish)
    assert answer.culprits == [CERTAIN]
    assert any("the disk is full" in gap for gap in answer.gaps)


def test_a_spent_budget_leaves_questions_out_and_says_so(tmp_path):
    session = _session(tmp_path, [_question("a", [CERTAIN])], minutes=0.01)
    answer = session.run(finish)
    assert answer.culprits == []
    assert answer.verdict.value == "not judged"
    assert "budget of 0.01 minutes is spent" in answer.text()
    assert json.loads((tmp_path / ANSWER).read_text())["cause"] == "not_known"


def test_a_reference_is_a_command_a_recording_or_losses(tmp_path):
    losses, script, recording = tmp_path / "losses.txt", tmp_path / "ref.py", tmp_path / "recording"
    losses.write_text("loss 0.5\nloss 0.25\n")
    script.write_text("print('loss 3')")
    recording.mkdir()
    (recording / "rank0-1.oprec").touch()
    read = [reference_losses(Plan(Program(("t.py",)), tmp_path, str(path))) for path in (losses, script, recording)]
    assert read == [[0.5, 0.25], [], []]
    assert reference_losses(Plan(Program(("t.py",)), tmp_path, f"{script} --lr 1")) == []
    (tmp_path / "empty.txt").write_text("nothing")
    with pytest.raises(Error, match="finite numbers"):
        reference_losses(Plan(Program(("t.py",)), tmp_path, str(tmp_path / "empty.txt")))


def test_an_answer_that_nothing_confirmed_says_so():
    assert Answer([GUESS], [Asked("a", "a")]).sentence().startswith("probably ")


# --- Commands -----------------------------------------------------------------------------------------------------------


def test_a_launcher_gets_the_tools_by_variables_and_a_script_by_op_tools_run(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda word: f"/bin/{word}")
    script = Program(("train.py", "--lr", "0.1")).with_tools(["--time"], 60)
    assert script == ["timeout", "-k", "30", "60", "op-tools", "run", "--time", "train.py", "--lr", "0.1"]
    launcher = Program(("torchrun", "train.py")).with_tools(["--ops", "a b"], 60)
    assert launcher[-1] == "eval \"$(op-tools env --ops 'a b')\"; exec torchrun train.py"


@pytest.mark.parametrize(
    ("arguments", "variables", "text"),
    [
        ([], {}, "which program?"),
        (["--", "nothing.py"], {}, "nothing.py: there is no such script"),
        (["--budget", "0", "--", "train.py"], {}, "--budget: 0 is not allowed"),
        (["--budget", "nan", "--", "train.py"], {}, "--budget: nan is not allowed"),
        (["--budget", "inf", "--", "train.py"], {}, "--budget: inf is not allowed"),
        (["--stall", "nan", "--", "train.py"], {}, "--stall: nan is not allowed"),
        (["--steps", "0", "--", "train.py"], {}, "--steps: 0 is not allowed"),
        (["--reference", "empty.txt", "--", "train.py"], {}, "empty.txt: give a JSON list of finite numbers"),
        (["--", "train.py"], {"RANK": "0"}, "give the launcher to it"),
    ],
)
def test_wrong_usage_is_named(tmp_path, arguments, variables, text):
    (tmp_path / "empty.txt").write_text("nothing")
    (tmp_path / "train.py").touch()
    done = launched("-m", "op_tools", "diagnose", *arguments, cwd=tmp_path, check=False, **variables)
    assert done.returncode == 64
    assert text in done.stderr


def test_another_program_cannot_resume_a_state(tmp_path):
    _session(tmp_path, [])
    with pytest.raises(Error, match="go on with it by --resume"):
        _session(tmp_path, [])
    plan = Plan(Program(("other.py",)), tmp_path)
    with pytest.raises(Error, match="of another program"):
        Session(plan, [], resume=True, say=lambda line: None)


@pytest.mark.parametrize("damage", [b"null", b"[]", b"\xff", b'{"key": "b", "run": {"ended": "x"}}', b'{"key": [1]}'])
def test_a_damaged_line_of_a_state_is_a_command_that_runs_again(damage, tmp_path):
    file = tmp_path / "state.jsonl"
    RunState(file, {}, resume=False).end("a", Run("c", "f", Ended.DONE, 0, 1.0))
    file.write_bytes(file.read_bytes() + damage + b"\n")
    RunState(file, {}, resume=True).end("b", Run("c", "f", Ended.DONE, 0, 1.0))
    again = RunState(file, {}, resume=True)
    assert again.known("a") == again.known("b") == Run("c", "f", Ended.DONE, 0, 1.0)
    file.write_bytes(damage + b"\n")
    with pytest.raises(Error, match="of another program"):
        RunState(file, {}, resume=True)


@pytest.mark.parametrize("end", ["sys.exit(5)", "sys.exit('no luck')", "raise ValueError('mine')"])
def test_a_program_that_exits_raises_no_exception(end, tmp_path):
    """Nor does it go on for ever: a bisection is not asked, and says why."""
    text = "import sys, torch\nimport op_tools.sim_device\nfor step in range(3):\n    print('loss', float((torch.ones(3, device='sim') * step).sum()), flush=True)\n"
    (tmp_path / "train.py").write_text(text + end)
    command = ["-m", "op_tools", "diagnose", "--", "train.py"]
    done = launched(*command, cwd=tmp_path, check=False, timeout=300, PATH=PLAIN_PATH)
    answer = answer_in(tmp_path)
    status = 5 if "5" in end else 1
    if "raise" in end:
        assert answer["sentence"].startswith("probably the program raises an exception"), done.stdout
    else:
        assert answer["cause"] == "program_exits" and "probably" not in answer["sentence"], done.stdout
        assert answer["sentence"].endswith(f"with another exit status than 0: status {status}; nothing else was found")
    why = [asked["not_asked"] for asked in answer["asked"] if asked["name"] == "loss"]
    assert why == [f"the program ends with status {status}, and the loss of a trial counts with status 0"], done.stderr


def test_the_page_has_each_cause_and_its_sentence():
    page = (ROOT / "docs" / "diagnose.md").read_text()
    assert set(SENTENCES) == set(Cause)
    for cause, sentence in SENTENCES.items():
        assert f"| `{cause.value}` | {sentence} |" in page
    assert {ended.value for ended in Ended} >= {"hung", "crashed"}
