"""The docs are true: snippets run, commands and flags exist, links and paths lead somewhere, and every public name
has a docstring that names its arguments."""

import argparse
import ast
import dataclasses
import inspect
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from conftest import launched
from printed_commands import parser_of_command, refused

import op_tools
import op_tools.formats
import op_tools.sim_device
import op_tools_compat.arrays
import op_tools_compat.pytorch15
import op_tools_compat.troubleshooter

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")))]
HISTORY = ["CHANGELOG.md", *(f"docs/history/{page.name}" for page in sorted((ROOT / "docs" / "history").glob("*.md")))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text_of(page):
    return (ROOT / page).read_text()


# --- Snippets ----------------------------------------------------------------------------------------------------------


def python_of(page):
    """The Python blocks of a page, and those of a comment `<!-- setup: ... -->`, in the lines where they stand."""
    text = text_of(page)
    code = [""] * (text.count("\n") + 1)
    for block in re.finditer(r"^```python\n(.*?)^```$|^<!-- setup:\n(.*?)^-->$", text, re.MULTILINE | re.DOTALL):
        first = text.count("\n", 0, block.start()) + 1
        lines = (block[1] if block[1] is not None else block[2]).splitlines()
        code[first : first + len(lines)] = lines
    return "\n".join(code)


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in text_of(page)])
def test_python_snippets_of_a_page_run_in_their_order(page, tmp_path):
    (tmp_path / "page.py").write_text(python_of(page))
    launched("-W", "error::UserWarning", "page.py", cwd=tmp_path)


def test_cpp_snippets_are_in_examples_that_are_compiled():
    examples = ["\n".join(map(str.strip, path.read_text().splitlines())) for path in ROOT.glob("examples/*.cpp")]
    missing = []
    for page in PAGES:
        for language, body in FENCE.findall(text_of(page)):
            lines = "\n".join(map(str.strip, body.strip().splitlines()))
            if language == "cpp" and not any(lines in example for example in examples):
                missing.append(f"{page}: {body}")
    assert missing == []


# --- Commands ----------------------------------------------------------------------------------------------------------


def commands_of(page):
    """Lines of blocks without a language, and code in sentences, that begin with a program of ours."""
    text = text_of(page)
    blocks = [
        body.replace("\\\n", " ").replace("\n    [", " [") for language, body in FENCE.findall(text) if not language
    ]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    lines = [line for block in blocks for line in block.splitlines()] + inline
    start = r"(?:^|\$ |\$\(|-m )(op-tools|\./dev|(?:op_tools\.)?run_op_from_data)((?: [^#;)`]*)?)"
    for line in lines:
        for program, rest in re.findall(start, line):
            yield program.removeprefix("op_tools."), rest.strip()


def flags_below(parser, words):
    """The flags of the command that the words name, and of the parsers above it."""
    flags = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and not words[0].startswith("-"):
            assert words[0] in action.choices, f"op-tools {' '.join(words)}: there is no such command"
            flags |= flags_below(action.choices[words[0]], words[1:])
    return flags


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def unknown_words(program, words, build_dir):
    """The words of a command that its program does not know: the command, or flags of ours before the user's own program."""
    if program == "./dev":
        lines = re.findall(r"^\./dev (.+?)  ", output_of("bash", str(ROOT / "dev"), "help"), re.MULTILINE)
        return [word for word in words[:1] if word not in re.findall(r"\w+", " ".join(lines))]
    if program == "op-tools":
        known = " ".join(flags_below(parser_of_command(*words[:1]), words))
    else:
        known = output_of(str(build_dir / "run_op_from_data"), "--help")
    flags = []
    for word in words:
        if word == "--" or word.endswith(".py"):
            break  # the rest belongs to the user's program
        flags += re.findall(r"(?:^|\[)(--\w[\w-]*)", word)
    return [flag for flag in flags if flag != "--TOOL" and not re.search(rf"{flag}\b", known)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_flags_exist(page, build_dir):
    wrong = []
    for program, rest in set(commands_of(page)):
        words = shlex.split(rest.replace("'", " ").replace('"', " "))
        wrong += [f"{program} {rest}: {word}" for word in unknown_words(program, words, build_dir)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES)
def test_the_parser_takes_the_commands_of_a_page(page):
    """Those of blocks as they stand; in a sentence a command may lack what follows: its program, its folder."""
    text = text_of(page)
    blocks = "\n".join(body for language, body in FENCE.findall(text) if language in ("", "sh", "bash"))
    wrong = []
    for program, rest in set(commands_of(page)):
        words = shlex.split(rest)
        if program != "op-tools" or not words:
            continue
        fault = refused(words)
        is_part = f"`{program} {rest}`" in text and f"{program} {rest}\n" not in blocks
        if fault and not (is_part and re.search(r"arguments are required|expected one argument", fault)):
            wrong.append(f"{program} {rest}: {fault}")
    assert wrong == []


# --- Links and paths ---------------------------------------------------------------------------------------------------


def anchors_of(text):
    """As GitHub makes them of headings, and those that stand in the text."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {*slugs, *re.findall(r'<a id="([\w-]+)">', text)}


@pytest.mark.parametrize("page", PAGES + HISTORY)
def test_links_lead_somewhere(page):
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text_of(page))):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        if not file.is_file() or (anchor and anchor not in anchors_of(file.read_text())):
            wrong.append(target)
    assert wrong == []


def test_glossary_is_in_alphabetical_order():
    words = re.findall(r'^- <a id="[\w-]+"></a>\*\*(.+?)\*\*', text_of("docs/glossary.md"), re.MULTILINE)
    assert len(words) > 20
    assert words == sorted(words, key=str.lower)


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_are_named_exist(page):
    folders = "src|bindings|tools|tests|docs|benchmarks|examples|op_tools|cmake"
    named = re.findall(rf"`((?:{folders})/[^`\s<>*]*?)`", text_of(page))
    wrong = []
    for name in named:
        stem, _, suffixes = name.partition(".{")
        for path in [f"{stem}.{one}" for one in suffixes.rstrip("}").split(",")] if suffixes else [name]:
            if not (ROOT / path).exists() and "/" in path and "{" not in path:
                wrong.append(path)
    assert wrong == []


def test_performance_page_is_made_of_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _document

    page = text_of("docs/performance.md")
    assert _document.page_from(page, text_of("docs/performance_tables.md")) == page


# --- Docstrings --------------------------------------------------------------------------------------------------------


def public_members(scope, name):
    """(name, object) of a class or function, and of the members of a class that users see."""
    yield name, scope
    if not inspect.isclass(scope) or not scope.__module__.startswith("op_tools"):
        return
    for key, member in vars(scope).items():
        if not key.startswith("_"):
            member = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
            if inspect.isfunction(member) or isinstance(member, property):
                yield f"{name}.{key}", member


PUBLIC = [
    (name, member)
    for module, prefix in (
        (op_tools, "op_tools"),
        (op_tools.sim_device, "op_tools.sim_device"),
        (op_tools.formats, "op_tools.formats"),
        (op_tools_compat.arrays, "op_tools_compat.arrays"),
        (op_tools_compat.troubleshooter.migrator, "op_tools_compat.troubleshooter.migrator"),
        (op_tools_compat.pytorch15, "op_tools_compat.pytorch15"),
    )
    for key in module.__all__
    if inspect.isclass(getattr(module, key)) or inspect.isfunction(getattr(module, key))
    for name, member in public_members(getattr(module, key), f"{prefix}.{key}")
]


def arguments_of(member):
    """The names of the arguments of a function, or of a class's constructor."""
    if isinstance(member, property) or dataclasses.is_dataclass(member) or not callable(member):
        return []
    if inspect.isclass(member) and "__init__" not in vars(member):
        return []
    try:
        parameters = inspect.signature(member).parameters.values()
    except ValueError:  # a class of the extension
        return []
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    return [one.name for one in parameters if one.name not in ("self", "cls") and one.kind not in kinds]


# Made by a function, which describes their parts; users make none of them.
MADE_BY_US = {"op_tools.Feature", "op_tools.sim_device.Fault", "op_tools.sim_device.Latency"}


def inherited_doc(member):
    return inspect.getdoc(member) or ""


def test_every_public_name_is_documented():
    assert len(PUBLIC) > 60
    assert [name for name, member in PUBLIC if len(inherited_doc(member)) < 10] == []


def test_docstrings_name_every_argument():
    missing = []
    for name, member in PUBLIC:
        if name in MADE_BY_US:
            continue
        doc = inherited_doc(member)
        missing += [
            f"{name}: {argument}"
            for argument in arguments_of(member)
            if not re.search(rf"^\s*{argument}: |`{argument}`", doc, re.M)
        ]
    assert missing == []


def test_callbacks_of_frameworks_name_every_argument():
    """Read as text: the frameworks need not be installed."""
    for path in sorted((ROOT / "op_tools" / "integrations").glob("[!_]*.py")):
        for scope in ast.walk(ast.parse(path.read_text())):
            if isinstance(scope, ast.ClassDef):
                doc = ast.get_docstring(scope) or ""
                (init,) = [one for one in scope.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
                assert all(f"{one.arg}: " in doc for one in init.args.args[1:]), path


def test_reference_pages_are_made_and_have_every_public_name(tmp_path):
    launched(ROOT / "docs" / "make_reference.py", tmp_path)
    page = (tmp_path / "op_tools.html").read_text()
    assert [name for name in op_tools.__all__ if f'id="{name}"' not in page and not name.startswith("__")] == []
    assert (tmp_path / "op_tools" / "sim_device.html").is_file()
