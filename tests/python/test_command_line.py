"""The command line before its work: help and errors of usage, which need no torch."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PYTHON, launched
from printed_commands import commands_in, refused

from op_tools.__main__ import main
from op_tools._base.optional_parts import READ_FORMATS, WRITTEN_FORMATS
from op_tools._base.tool_declarations import declared_kinds, declared_shared_options
from op_tools._base.tool_descriptions import hook_options, kinds
from op_tools._commands.command_line import parser_of
from op_tools._commands.questions import QUESTIONS, answers
from op_tools._work import conformance_cases
from op_tools.analyse import MODES
from op_tools.analyse._reports import COLUMNS
from op_tools.formats import _FORMATS
from op_tools.formats._export import _WRITERS

ROOT = Path(__file__).resolve().parents[2]


def leaves(parser, words=()):
    """The words of each command that has no further commands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield words
    for action in below:
        for name, command in action.choices.items():
            yield from leaves(command, (*words, name))


COMMANDS = list(leaves(parser_of()))


def ended(*words):
    """Status, standard output, standard error without the lines about imports, and the modules that were imported."""
    command = [PYTHON, "-X", "importtime", "-m", "op_tools", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    lines = done.stderr.splitlines()
    modules = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    return done.returncode, done.stdout, [line for line in lines if not line.startswith("import time:")], modules


def of_torch(modules):
    return {name for name in modules if name.partition(".")[0] in ("torch", "numpy") or name == "op_tools._C"}


def test_the_list_of_commands_is_what_it_should_be():
    assert len(COMMANDS) > 20 and ("conformance", "gen") in COMMANDS and ("one-iter", "save") in COMMANDS


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_and_a_mistyped_option_need_no_torch(words):
    status, out, errors, modules = ended(*words, "--help")
    assert (status, errors) == (0, []) and out.startswith(f"usage: op-tools {words[0]}")
    assert "argparse" in modules and of_torch(modules) == set()
    status, out, errors, modules = ended(*words, "--no-such-option")
    assert (status, out) == (64, "") and len(errors) <= 4 and "error: " in errors[-1]
    assert of_torch(modules) == set()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--help",), 0, "run an unchanged script"),
        (("--version",), 0, r"^op_tools \d+\.\d+"),
        (("help", "autocompare"), 0, "--autocompare-method"),
        (("run", "--autocompare", "--help"), 0, "--autocompare-method"),
        (("help",), 0, "usage: op-tools"),
        (("help", "xyzzy"), 64, "xyzzy is no command"),
        (("shwo",), 64, "did you mean show"),
        (("bisect", "--timeuot", "3"), 64, "did you mean --timeout"),
        (("run", "--capture-max-cals", "3", "a.py"), 64, "did you mean --capture-max-calls"),
        (("run", "--steps", "x", "a.py"), 64, "--steps"),
        (("export", "a", "b", "--format", "nyp"), 64, "did you mean npy"),
        ((), 64, "required: COMMAND"),
    ],
)
def test_what_needs_no_torch_does_not_load_it(words, status, said):
    ended_with, out, errors, modules = ended(*words)
    assert ended_with == status
    assert re.search(said, out if status == 0 else "\n".join(errors)), (out, errors)
    assert of_torch(modules) == set()


def test_the_work_of_a_command_has_torch_and_the_core():
    status, out, _, modules = ended("ops", "--ops", "torch.neg")
    assert (status, out) == (0, "torch.neg\n")
    assert {"torch", "op_tools._C"} <= modules


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("which operator is slow", "timing.md"),
        ("my job hangs", "blackbox.md"),
        ("NaN in the loss", "autocompare.md"),
        ("out of memory", "memory.md"),
        ("why is my result empty", "interface.md"),
    ],
)
def test_a_question_has_commands_for_an_answer(words, first, capsys):
    assert main(["help", *words.split()]) == 0
    assert re.findall(r"more: docs/(\S+)", capsys.readouterr().out)[0] == first


def test_questions_of_the_readme_have_the_pages_of_the_readme():
    """Word for word, and the commands are commands."""
    table = (ROOT / "README.md").read_text().partition("| question | tool |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    known = {question.text: question for question in QUESTIONS}
    assert len(rows) > 12 and {row[0] for row in rows} | {"why is my result empty"} == set(known)
    for question, answer in rows:
        assert answers(question)[0].text == question
        assert f"docs/{known[question].page}" in answer, question
        for command in known[question].commands:
            ((program, *words),) = commands_in(command)
            assert program == "run_op_from_data" or refused(words) == "", command


def epilogs(parser):
    yield parser.epilog or ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from epilogs(command)


def test_commands_that_help_shows_are_taken():
    shown = [words for text in epilogs(parser_of()) for words in commands_in(text)]
    assert len(shown) > 25
    assert [(words, fault) for name, *words in shown if name == "op-tools" and (fault := refused(words))] == []


def test_a_wrong_command_would_be_noticed():
    text = "Next: /a/python3 -m op_tools comapre a 'b c'; op-tools show --no-such 'a b' # why\n(op-tools one-iter) run_op_from_data a --acc_check"
    commands = list(commands_in(text))
    assert commands == [
        ["op-tools", "comapre", "a", "b c"],
        ["op-tools", "show", "--no-such", "a b"],
        ["op-tools", "one-iter"],
        ["run_op_from_data", "a", "--acc_check"],
    ]
    faults = [refused(words) for _, *words in commands[:3]]
    assert [re.search(r"did you mean|unrecognized|required", fault)[0] for fault in faults] == [
        "did you mean",
        "unrecognized",
        "required",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes(shell, capsys):
    pytest.importorskip("shtab", reason="shtab is not installed")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "one-iter" in script and "conformance" in script and "fail-on-wrong" in script
    if shell != "bash":
        return
    ask = 'COMP_WORDS=(op-tools {0}); COMP_CWORD={1}; _shtab_op_tools; echo "${{COMPREPLY[@]}}"'
    asked = "\n".join([script, ask.format("conf", 1), ask.format("report --te", 2)])
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.split() == ["conformance", "--text"]


def test_without_its_library_completion_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 64
    assert "pip install shtab" in capsys.readouterr().err


def test_the_man_page_has_every_command():
    manpage = pytest.importorskip("argparse_manpage.manpage", reason="argparse-manpage is not installed")
    text = str(manpage.Manpage(parser_of(), format="single-commands-section")).replace("\\-", "-")
    assert all(f"op-tools {words[0]}" in text for words in COMMANDS)


def test_names_that_the_parsers_have_are_those_of_the_parts():
    assert tuple(COLUMNS) == MODES
    assert tuple(_FORMATS) == READ_FORMATS and tuple(_WRITERS) == WRITTEN_FORMATS
    (listing,) = [words for words in COMMANDS if words == ("conformance", "list")]
    by = parser_of(listing[0])._actions[-1].choices["conformance"]._actions[-1].choices["list"]
    (groups,) = [action.choices for action in by._actions if action.dest == "by"]
    assert list(groups) == sorted(conformance_cases._GROUPS)


def test_declared_tools_are_those_of_the_core():
    declared, described = declared_kinds(), kinds()
    assert list(declared) == list(described) and declared_shared_options() == hook_options()
    for name, kind in described.items():
        assert declared[name].options == kind.options and declared[name].own_options == kind.own_options
        assert declared[name].flag == kind.flag and declared[name].summary


@pytest.mark.parametrize("is_on_path", [True, False])
def test_commands_in_messages_of_the_core_are_called_as_those_of_python(is_on_path, tmp_path):
    """The core is told how when the package is imported."""
    container = tmp_path / "my calls" / "calls.zip"
    container.parent.mkdir()
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
import torch, op_tools
from op_tools._base.core import find_calls
with op_tools.OpCapture(output_dir={str(tmp_path)!r}, format="container") as capture:
    torch.ones(2) + 1
os.rename(next(iter(__import__("pathlib").Path(capture.result().root).rglob("calls.zip"))), {str(container)!r})
try:
    find_calls(os.fsencode({str(container)!r} + "!torch.no_such/1"))
except op_tools.Error as error:
    print(error)
"""
    if is_on_path:
        (tmp_path / "op-tools").touch(mode=0o755)
    done = launched("-c", program, fresh=True, PATH=str(tmp_path))
    (told,) = [line for line in done.stdout.splitlines() if "there is no such call" in line]
    ((name, *words),) = commands_in(told)
    assert (name, words) == ("op-tools", ["show", str(container), "lists", "operators"])
    assert refused(words[:2]) == ""
    called = "op-tools" if is_on_path else f"{PYTHON} -m op_tools"
    assert f"; {called} show '{container}' lists operators" in told
