"""Commands whose work the processes of a launch share, and recordings of many ranks that are compared part by part."""

import dataclasses
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import ROOT, launched

import op_tools
from op_tools.__main__ import main
from op_tools._base.core import Error
from op_tools._runs import compare_many as many_runs
from op_tools._torch.rank_shares import Ranks, launch_of_this_process
from op_tools.run_op_from_data import main as replay

pytest.importorskip("xxhash")
sys.path.insert(0, str(ROOT / "tests" / "proofs"))
from _multiplied import Change, Template, write_run

RANKS, STEPS, SICK = 16, 8, 5
SIZES = {32: 4096, 16: 8192}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of 16 ranks, "a" and "b": rank 5 of b has a wrong gelu in step 6."""
    folder = tmp_path_factory.mktemp("runs")
    proof = ROOT / "tests" / "proofs" / "many_ranks.py"
    launched(proof, "--template", folder / "template")
    (file,) = (folder / "template").iterdir()
    template = Template(file, SIZES)
    from many_ranks import Place, role_of

    def role(rank):
        return role_of(template, Place(rank, RANKS))

    calls = write_run(folder / "a", template, role, RANKS, STEPS)
    assert calls == write_run(folder / "b", template, role, RANKS, STEPS, Change(sick=(SICK, 6)))
    write_run(folder / "rounded", template, role, RANKS, STEPS, Change(rounds=True))
    for name in ("a", "b", "rounded"):  # whose rows are not too many for a test of files with all of them
        (folder / f"few_{name}").mkdir()
        for rank in (4, 5, 6):
            file = next((folder / name).glob(f"rank{rank}-*"))
            (folder / f"few_{name}" / file.name).hardlink_to(file)
    return folder


def shared(count, *command, cwd, **environment):
    """The same command as so many tasks of srun: (status, standard output, standard error) of each."""

    def task(number):
        slurm = {"SLURM_PROCID": str(number), "SLURM_NTASKS": str(count), "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
        done = launched("-m", "op_tools", *command, cwd=cwd, check=False, **slurm, **environment)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(count) as tasks:
        return list(tasks.map(task, range(count)))


# --- The same answer as of a single process ---


@pytest.mark.parametrize("command", [("few_a", "few_b"), ("a",), ("few_a", "few_rounded")], ids=" ".join)
def test_tasks_of_srun_give_the_answer_of_a_single_process(runs, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    words = ["compare", *command, "--json"]
    status = main([*words, str(tmp_path / "single.json")])
    text = capsys.readouterr().out
    # The replicas of "a" have data of their own: most of their calls cannot be compared. The few are not all ranks of their run.
    assert status == {"few_b": 1, "few_rounded": 2, "a": 2}[command[-1]] and ("gelu (forward, step 6)" in text) == (
        "few_b" in command
    )
    answers = shared(2, *words, str(tmp_path / "shared.json"), cwd=runs)
    assert answers[0] == (status, text, "") and answers[1] == (status, "", "")
    assert (tmp_path / "shared.json").read_bytes() == (tmp_path / "single.json").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if "share" in path.name] == ["shared.json"]  # no files are left


def test_jobs_and_torchrun_give_the_answer_of_a_single_process(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    assert main(["compare", "a", "b"]) == 1
    text = capsys.readouterr().out
    jobs = launched("-m", "op_tools", "compare", "a", "b", "--jobs", "2", cwd=runs, check=False)
    assert (jobs.returncode, jobs.stdout) == (1, text), jobs.stderr
    ranks = launched("-m", "op_tools", "compare", "a", "rounded", ranks=2, cwd=runs)
    assert main(["compare", "a", "rounded"]) == 0
    assert ranks.stdout == capsys.readouterr().out


def test_a_command_in_a_batch_script_works_alone(monkeypatch):
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(name, value)
    assert launch_of_this_process() is None
    monkeypatch.setenv("SLURM_STEP_ID", "4294967291")  # of the script itself
    assert launch_of_this_process() is None
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    assert launch_of_this_process().name == "7-3" and launch_of_this_process().count == 8
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Error, match="--rdzv-id NAME"):
        launch_of_this_process()


# --- A process that is missing ---


@pytest.mark.parametrize("command", [("few_a", "few_a"), ("a",)], ids=" ".join)
def test_what_a_missing_process_had_to_do_is_not_judged(runs, command, tmp_path, monkeypatch):
    monkeypatch.setattr(many_runs, "_MOST_CALLS", RANKS * 250)  # a step or two at a time
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OP_TOOLS_SHARE_TIMEOUT", "0.3")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.json"
    assert main(["compare", *(str(runs / name) for name in command), "--json", str(out)]) == 2
    summary = json.loads(out.read_text().splitlines()[-1])
    assert summary["verdict"] == "not judged" and summary["exit_status"] == 2
    *others, reason = summary["unseen"]
    others = [text for text in others if "ranks 0 to 3, 7 to 15: no file in" not in text]
    assert [text.split(":")[0] for text in others] == ["most calls cannot be compared"] * (command == ("a",))
    assert "process 1 of 2 gave no part: no sign of life for 0.3 s (OP_TOOLS_SHARE_TIMEOUT)" in reason
    assert ("rank 5: process" if len(command) == 2 else "steps from") in reason
    assert list(tmp_path.iterdir()) == [out]


def test_a_replay_and_a_run_of_cases_that_lack_a_process_are_not_judged(tmp_path, monkeypatch, capfd):
    with op_tools.OpCapture(output_dir=tmp_path / "captures"):
        torch.ones(3).exp()
        torch.ones(3).sin()
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OP_TOOLS_SHARE_TIMEOUT", "0.3")
    monkeypatch.chdir(tmp_path)
    command = [str(tmp_path / "captures"), "--acc_check", "--json", "result.json"]
    assert replay(command) == 2
    printed = capfd.readouterr()
    why = "process 1 of 2 gave no part: no sign of life for 0.3 s (OP_TOOLS_SHARE_TIMEOUT)"
    assert f"NOT JUDGED: {why}" in printed.err
    assert "2 agree" in printed.out and f"part 1/2, 2 of 4 calls: {why}" in printed.out
    (problem,) = json.loads(Path("result.json").read_text())["problems"]
    assert problem == f"part 1/2, 2 of 4 calls: {why}"
    for output in (tmp_path / "captures").rglob("output.pth"):
        torch.save({**torch.load(output, weights_only=True), "args": (torch.full((3,), 7.0),)}, output)
    assert replay(command) == 1  # the other process found it
    assert "2 differ" in capfd.readouterr().out and json.loads(Path("result.json").read_text())["problems"]


IN_SLURM = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}
IN_TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0"}


@pytest.mark.parametrize(
    ("launch", "wrong"),
    [
        (IN_SLURM, {"SLURM_STEP_NUM_TASKS": "x"}),
        (IN_SLURM, {"SLURM_PROCID": "2"}),
        (IN_SLURM, {"OP_TOOLS_SHARE_TIMEOUT": "nan"}),
        (IN_SLURM, {"OP_TOOLS_SHARE_TIMEOUT": "inf"}),
        (IN_SLURM, {"OP_TOOLS_SHARE_TIMEOUT": "-1"}),
        (IN_SLURM, {"OP_TOOLS_SHARE_TIMEOUT": "abc"}),
        (IN_TORCHRUN, {"RANK": "z"}),
        (IN_TORCHRUN, {"LOCAL_WORLD_SIZE": "1"}),
        ({}, {"OP_TOOLS_SHARE": "abc"}),
    ],
)
def test_wrong_variables_of_a_launch_are_wrong_usage(launch, wrong, tmp_path, monkeypatch, capfd):
    for name, value in {**launch, **wrong}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for run in (main, replay):
        assert run(["compare", "a", "b"]) == 64
        (line,) = capfd.readouterr().err.splitlines()
        assert "--rdzv-id" in line if "LOCAL_WORLD_SIZE" in wrong else f"{next(iter(wrong))}" in line


def test_a_replay_that_lacks_its_first_process_is_not_judged(tmp_path, monkeypatch, capfd):
    for name, value in {**IN_SLURM, "SLURM_PROCID": "1", "OP_TOOLS_SHARE_TIMEOUT": "0.3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    with op_tools.OpCapture():
        torch.ones(3).exp()
    assert replay(["op_capture_result", "--acc_check"]) == 2
    assert "run_op_from_data: the first process showed no sign of life for 0.3 s" in capfd.readouterr().err
    (tmp_path / "file").touch()
    assert replay(["op_capture_result", "--json", "file/below/result.json"]) == 2
    assert "cannot meet here" in capfd.readouterr().err


def test_without_its_first_process_a_launch_ends(runs, tmp_path):
    slurm = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
    command = ("-m", "op_tools", "compare", runs / "a", runs / "a")
    done = launched(*command, cwd=tmp_path, check=False, OP_TOOLS_SHARE_TIMEOUT="0.3", **slurm)
    assert done.returncode == 2 and "the first process showed no sign of life for 0.3 s" in done.stderr


def test_a_failure_of_a_process_is_told_to_the_others(tmp_path):
    first, second = Ranks(0, 2, tmp_path), Ranks(1, 2, tmp_path)
    first.begin()
    second.begin()
    second.fail(RuntimeError("its disk is gone"))
    assert first.gathered("mine") == ["mine", None]
    assert first.missing == ["process 1 of 2 gave no part: its disk is gone"]
    second.gathered("late")
    first.fail(RuntimeError("no memory"))
    with pytest.raises(Error, match="the first process failed: no memory"):
        second.agreed(None)


def test_parts_and_answers_of_an_earlier_launch_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_SHARE_TIMEOUT", "10")
    for text in ("old", "new"):  # nothing of the old launch is taken away
        first, second = Ranks(0, 2, tmp_path), Ranks(1, 2, tmp_path)
        with ThreadPoolExecutor(1) as other:
            second.begin()
            assert second.gathered(text) is None
            told = other.submit(second.agreed, None)
            time.sleep(0.1)  # it sees what was left, and comes before the first process
            first.begin()
            assert first.gathered("mine") == ["mine", text] and first.missing == []
            assert first.agreed(f"answer to {text}") == told.result(10) == f"answer to {text}"


def test_a_folder_of_others_is_refused(runs, tmp_path, monkeypatch, capsys):
    for name, value in {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "6", "SLURM_STEP_ID": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    folder = Path(".op_tools_share_6-0")
    folder.mkdir()
    folder.chmod(0o777)
    assert main(["compare", str(runs / "a"), str(runs / "a")]) == 2
    assert "is not a folder of this user alone" in capsys.readouterr().err and not [*folder.iterdir()]


# --- Part by part ---


def test_steps_by_themselves_say_what_whole_recordings_say(runs, tmp_path, monkeypatch):
    whole = op_tools.compare_many([runs / "a"])
    assert whole.verdict == "not judged" and whole.rows == [] and whole.calls["compared"] > RANKS * STEPS
    monkeypatch.setattr(many_runs, "_MOST_CALLS", RANKS * 250)
    assert op_tools.compare_many([runs / "a"]) == whole
    pair = [next((runs / name).glob(f"rank{SICK}-*")) for name in ("a", "b")]
    pair.append(pair[0])
    parted = op_tools.compare_many(pair)
    monkeypatch.undo()
    assert op_tools.compare_many(pair) == parted
    (odd,) = parted.rows
    assert (odd.op, odd.step, odd.like_it, odd.others) == ("torch.nn.functional.gelu", 6, 1, 2)
    assert odd.collective.endswith("all_reduce")


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_equal_recordings_have_the_rows_that_a_search_for_pairs_gives(level, tmp_path):
    def run(name):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, 5)
        )
        method = torch.optim.Adam(net.parameters())
        tool = op_tools.OpRecord(output_dir=tmp_path / name, level=level)
        with tool:
            for _ in range(2):
                loss = net(torch.randn(2, 3, 8, 8)).square().sum() + torch.empty(3).fill_(1).sum()
                loss.backward()
                method.step()
                tool.step()
                torch.empty(4)
        return tool.result().path

    a, b = run("a"), run("b")
    (quick,) = op_tools.compare_runs(a, b).ranks
    (searched,) = op_tools.compare_runs(a, b, noise=a).ranks
    assert quick.counts == searched.counts and len(quick.rows) > 30
    assert [dataclasses.replace(row, noise=None) for row in searched.rows] == [
        dataclasses.replace(row, noise=None) for row in quick.rows
    ]
    assert quick.is_judged == searched.is_judged and quick.first is searched.first is None
