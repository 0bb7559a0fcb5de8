"""Answers of commands where they cannot be written, and places that are no files."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import PYTHON

import op_tools
from op_tools import __main__ as command_line
from op_tools._base.result_rows import write_rows
from op_tools._base.written_file import folder_of
from op_tools._work import ops


@pytest.fixture
def two_runs(tmp_path):
    """Two recordings that agree, and the file of a black box."""
    for name in ("a", "b"):
        with op_tools.OpRecord(output_dir=tmp_path / name):
            torch.neg(torch.ones(3))
    with op_tools.OpBlackBox(output_dir=tmp_path / "boxes"):
        torch.neg(torch.ones(3))
    return tmp_path


def into_full_device(*words, cwd):
    with Path("/dev/full").open("w") as full:
        command = [PYTHON, "-m", "op_tools", *words]
        return subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=120, cwd=cwd
        )


@pytest.mark.parametrize("words", [["compare", "a", "b"], ["blackbox", "boxes"]], ids=" ".join)
def test_an_answer_that_the_disk_does_not_take_is_no_difference(words, two_runs):
    done = into_full_device(*words, cwd=two_runs)
    assert (done.returncode, done.stderr) == (2, "op-tools: No space left on device\n")


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_an_answer_in_a_file_that_cannot_be_written_is_named(option, two_runs, monkeypatch, capsys):
    monkeypatch.chdir(two_runs)
    assert command_line.main(["compare", "a", "b", option, "/dev/full"]) == 2
    assert capsys.readouterr().err == "op-tools: /dev/full: cannot be written: No space left on device\n"


def test_a_fault_of_op_tools_itself_is_no_difference(monkeypatch, capsys):
    def fails(_):
        raise KeyError("a fault of op_tools")

    monkeypatch.setattr(ops, "run_command", fails)
    monkeypatch.setattr(sys, "argv", ["op-tools", "ops"])
    # init_process_group() in an earlier test of this process has put one that writes "[rank0]:" before each line.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    assert command_line.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and "KeyError: 'a fault of op_tools'" in said


@pytest.mark.parametrize(("answer", "folder"), [("", "."), ("a.json", "."), ("out/a.json", "out"), ("/dev/full", ".")])
def test_ranks_meet_in_the_folder_of_the_answer_or_where_no_file_can_be_in_the_working_folder(
    answer, folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert folder_of(answer) == (tmp_path / folder).resolve()


def test_a_device_or_a_pipe_is_written_to_and_stays(two_runs, monkeypatch, capsys):
    monkeypatch.chdir(two_runs)
    node, pipe = two_runs / "full", two_runs / "pipe.html"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, Path("/dev/full").stat().st_rdev)
    except PermissionError:
        pass  # not root
    else:
        assert command_line.main(["report", "boxes", "-o", str(node)]) == 2
        assert stat.S_ISCHR(node.stat().st_mode) and f"{node}: cannot be written" in capsys.readouterr().err
        with pytest.raises(op_tools.Error, match="full: cannot be written"):
            write_rows(node, [], {})
        assert stat.S_ISCHR(node.stat().st_mode)
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert command_line.main(["report", "boxes", "-o", str(pipe)]) == 0
    assert reader.communicate(timeout=60)[0].startswith("<!DOCTYPE html>") and stat.S_ISFIFO(pipe.stat().st_mode)
    assert not list(two_runs.glob("*.part"))


def test_a_page_to_standard_output_is_written_there(two_runs):
    before = Path("/dev/stdout").readlink()
    with (two_runs / "page.html").open("w") as page:
        subprocess.run(
            [PYTHON, "-m", "op_tools", "report", "boxes", "-o", "/proc/self/fd/1"],
            stdout=page,
            check=True,
            timeout=120,
            cwd=two_runs,
        )
    text = (two_runs / "page.html").read_text()
    assert text.startswith("<!DOCTYPE html>") and text.rstrip().endswith("MB)")
    assert Path("/dev/stdout").readlink() == before
