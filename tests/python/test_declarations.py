"""Options and rows are declared once, in C++: the files made from the declarations fit them."""

import dataclasses
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import op_tools
from op_tools._base import declared_options, declared_rows
from op_tools._base.tool_descriptions import hook_options, kinds
from op_tools._tools.tool_classes import tool_classes

ROOT = Path(__file__).resolve().parents[2]


def generator():
    spec = importlib.util.spec_from_file_location("generate_declared", ROOT / "tools" / "generate_declared.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_what_the_declarations_say():
    assert generator().stale(write=False) == [], "python tools/generate_declared.py writes them"


def test_the_options_of_every_tool_stand_in_a_page():
    tables = generator().blocks(generator().page_texts())
    assert {name for kind, name in tables if kind == "options"} == {"all", *kinds()}


def test_the_arguments_of_every_command_stand_in_a_page():
    program = generator()
    tables = program.blocks(program.page_texts())
    assert {name for kind, name in tables if kind == "arguments"} == set(program.commands())
    assert {
        ("tools", "all"),
        ("variables", "all"),
        ("commands", "all"),
        ("folders", "src"),
        ("folders", "op_tools"),
    } <= set(tables)


def test_a_row_that_is_gone_from_a_page_is_seen():
    program = generator()
    pages = program.page_texts()
    places = program.blocks(pages)
    for kind, name, row in [
        ("tools", "all", "| `OpBlackBox` |"),
        ("variables", "all", "| `OP_TOOLS_ALLOW_UNSEEN` |"),
        ("commands", "all", "| `op-tools conformance gen` |"),
        ("arguments", "compare", "| `--fusions FILE` |"),
        ("folders", "src", "| `src/blackbox` |"),
        ("folders", "op_tools", "| `op_tools/_runs` |"),
    ]:
        page = places[kind, name]
        lines = pages[page].splitlines(keepends=True)
        (at,) = (number for number, line in enumerate(lines) if line.startswith(row))
        shorter = "".join(lines[:at] + lines[at + 1 :])
        assert program.page_text(page, shorter, places) == pages[page]


def test_the_first_page_has_every_tool():
    page = (ROOT / "README.md").read_text()
    assert [name for name in kinds() if f"`{name}`" not in page] == []


def test_every_folder_of_the_repository_has_its_row():
    by_dev = {"build", "dist"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"} - by_dev
    rows = "".join(re.findall(r"^\| (`[^|]*)\|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    assert {folder for folder in folders if not re.search(rf"`{re.escape(folder)}[`/]", rows)} == set()


@pytest.mark.parametrize("name", kinds())
def test_a_tool_takes_its_declared_options_by_keyword_and_documents_them(name):
    tool, kind = tool_classes()[name], kinds()[name]
    parameters = inspect.signature(tool).parameters
    for option in kind.options:
        assert parameters[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"    {option.name}: {option.help}" in tool.__doc__
        tool(**{option.name: None})
    types = declared_options.__dict__[f"{name}Options"].__annotations__
    assert set(types) | {one.name for one in hook_options()} == {option.name for option in kind.options}
    with pytest.raises(TypeError, match="has no option 'opps'; did you mean ops"):
        tool(opps="torch.add")


@pytest.mark.parametrize("name", kinds())
def test_a_row_class_has_the_declared_columns(name):
    for row in kinds()[name].rows:
        row_class = declared_rows.__dict__[row.name]
        assert [field.name for field in dataclasses.fields(row_class)] == [column.name for column in row.columns]


def test_every_variable_that_the_sources_name_is_listed():
    """A variable that is read without being declared would be a problem for op-tools doctor."""
    listed = {one["name"] for one in op_tools._C.variables()}
    starts = [re.escape(kind.prefix) for kind in kinds().values()]
    pattern = re.compile(rf'"((?:OP_TOOLS|DIPU|AUTOCOMPARE|{"|".join(starts)})_[A-Z_0-9]+|RANK)"')
    sources = [
        *ROOT.glob("src/**/*.cpp"),
        *ROOT.glob("src/**/*.h"),
        *ROOT.glob("tools/**/*.cpp"),
        *ROOT.glob("op_tools/**/*.py"),
    ]
    variables = {name for path in sources for name in pattern.findall(path.read_text())}
    variables |= set(re.findall(r"^(?:Variables:)? +(OP_TOOLS_[A-Z]+) ", (ROOT / "dev").read_text(), re.MULTILINE))
    prefixes = {kind.prefix for kind in kinds().values()} | {"OP_HOOK", "OP_TOOLS_SIM"}  # the beginnings of several
    assert len(variables) > 15
    assert variables - prefixes <= listed


def mypy(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_a_users_script_pass_the_type_checker():
    pytest.importorskip("mypy", reason="mypy is not installed")
    mypy("mypy", "op_tools", "tests/python/typing_sample.py")


def test_the_stubs_of_the_extensions_are_what_the_modules_have():
    pytest.importorskip("mypy", reason="mypy is not installed")
    mypy("mypy.stubtest", "op_tools._C", "op_tools._sim", "--allowlist", "tests/python/stubtest_allowlist.txt")
