"""CONTRIBUTING's "Add a tool", followed literally: a tool from the template, built against an installed op_tools."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON

ROOT = Path(__file__).resolve().parents[2]


def environment(**more):
    path = os.pathsep.join([str(Path(PYTHON).parent), os.environ["PATH"]])
    packages = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PATH": path, "PYTHONPATH": packages, **more}


def run(*command, **more):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, cwd=ROOT, env=environment(**more), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tool(build_dir, tmp_path_factory):
    """The folder in which the commands of the page made a tool, and their output."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a tool")[2].partition("\n## ")[0]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1]
    folder = tmp_path_factory.mktemp("tool")
    prefix = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", build_dir, "--prefix", prefix)
    printed = run("bash", "-e", "-c", commands, PREFIX=str(prefix), TOOL=str(folder / "my_tool"))
    return folder / "my_tool", printed


def test_the_page_makes_a_tool_that_counts(tool):
    _, printed = tool
    lines = [line.split() for line in printed.splitlines()]
    assert ["op", "calls"] in lines
    assert ["torch.add", "2"] in lines
    assert not [line for line in lines if line[:1] == ["torch.mul"]]  # min_calls=2


USE = """
import sys, inspect, torch, op_tools
from op_tools._commands.command_line import parser_of
from op_tools._work.run import chosen_tools
(OpToy,) = op_tools.load_tools(sys.argv[1])
assert "min_calls: report only operators with at least N calls. None: OP_TOY_MIN_CALLS, else 1." in OpToy.__doc__
assert "min_calls" in inspect.signature(OpToy).parameters
x = torch.ones(3)
with op_tools.apply_feature(["torch.add"], "count_calls") as feature:
    torch.add(x, 1)
    torch.mul(x, 2)
(row,) = feature.result().rows
assert (type(row).__name__, row.op, row.calls) == ("ToyRow", "torch.add", 1)
for wrong, text in [
    (lambda: OpToy(min_call=2), "has no option 'min_call'; did you mean min_calls?"),
    (lambda: OpToy(min_calls="two").start(), "min_calls=: 'two' is not an integer"),
    (lambda: OpToy(min_calls=0).start(), "min_calls=: '0' is not allowed; give an integer of at least 1"),
    (lambda: op_tools.load_tools(sys.argv[1]), "it registered no tool that is not there already"),
    (lambda: op_tools.load_tools("/nowhere.so"), "/nowhere.so"),
]:
    try:
        wrong()
    except (TypeError, op_tools.Error) as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
assert "OP_TOY_MIN_CALLS" in {one["name"] for one in op_tools._C.variables()}
options = parser_of().parse_args(["run", "--toy", "--toy-min-calls", "4", "script.py"])
(made,) = chosen_tools(options)
assert type(made) is OpToy and made._arguments["min_calls"] == 4
print("used")
"""


def test_a_registered_tool_is_used_by_name_as_those_of_the_package(tool):
    folder, _ = tool
    library = folder / "build" / "libop_toy.so"
    assert run(PYTHON, "-c", USE, library).strip().endswith("used")
    assert run(PYTHON, folder / "use.py", library, OP_TOY_LIST="torch.mul", OP_TOY_MIN_CALLS="1")
