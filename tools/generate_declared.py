"""Writes the files that follow from the declarations of options and rows in C++: op_tools/_base/declared_options.py (types for checkers),
declared_rows.py (the row classes), declared_tools.json (the options, for the command line) and src/base/other_names.cpp, the names under which torch has the same function twice. And the tables between markers in
the pages: of tools, options, columns, variables, commands with their arguments, and folders. Run it after changing a declaration and
building:

python tools/generate_declared.py          writes
python tools/generate_declared.py --check  exit status 1 when a file is outdated
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import json
import os
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "python")]
if "op_tools" not in sys.modules:
    # The package itself may need the files that are about to be written: only its parts are imported that do not.
    import torch  # noqa: F401  (loads the libraries that the extension needs)

    package = sys.modules["op_tools"] = types.ModuleType("op_tools")
    package.__path__ = [str(ROOT / "op_tools")]

from folders import MAY_IMPORT, ROOMS  # noqa: E402

from op_tools._base import core  # noqa: E402
from op_tools._base.tool_declarations import FILE as TOOLS  # noqa: E402
from op_tools._base.tool_declarations import Option, Row  # noqa: E402
from op_tools._base.tool_descriptions import enumerations, further_rows, hook_options, kinds  # noqa: E402
from op_tools._torch.operator_names import other_names, torch_names  # noqa: E402
from op_tools._torch.torch_limits import TORCH_LIMITS  # noqa: E402

OPTIONS = ROOT / "op_tools" / "_base" / "declared_options.py"
ROWS = ROOT / "op_tools" / "_base" / "declared_rows.py"
OTHER_NAMES = ROOT / "src" / "base" / "other_names.cpp"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# In a page: <!-- options: OpCapture --> table <!-- end -->; "options: all" are those that all tools share; "tokens: Gap" an
# enumeration of the account of a run; "arguments: conformance run, conformance gen" those of both commands; "limits: torch" those of
# older versions of torch.
_BLOCK = re.compile(
    r"<!-- (options|columns|tokens|tools|variables|commands|arguments|folders|limits): ([\w, -]+?) -->\n.*?<!-- end -->",
    re.DOTALL,
)
_OF_OPTIONS = '''"""The options of each tool, for type checkers. Made by tools/generate_declared.py from the declarations in C++: do not edit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from typing_extensions import TypedDict
'''
_OF_ROWS = '''"""The rows of the results, and the words in them. Made by tools/generate_declared.py from the declarations in C++: do not edit."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any
'''
# Enumerations in Python whose values are sentences for people, by module.
_OF_PYTHON = {"Hypothesis": "op_tools._torch.hypotheses", "Ran": "op_tools._conformance.graph_judge"}
_ENUMERATIONS = {
    "CallVerdict": "The verdicts of RunRow.",
    "Finding": "How the results of a RunRow differ.",
}


def _options_class(name: str, base: str, help: str, options: Iterable[Option]) -> str:
    lines = [f"class {name}({base}, total=False):", f'    """{help}"""', ""]
    for option in options:
        lines += [f"    {option.name}: {option.annotation}", f'    """{_capital(option.sentence)}"""']
    return "\n".join(lines)


def _row_class(row: Row) -> str:
    lines = ["@dataclass(frozen=True)", f"class {row.name}:", f'    """{row.help}"""', ""]
    for column in row.columns:
        lines += [f"    {column.name}: {column.type}", f'    """{_capital(column.help)}."""']
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text if text.startswith(("`", "'")) else text[:1].upper() + text[1:]


def _enumeration(name: str, members: Iterable[tuple[str, str]]) -> str:
    lines = [f"class {name}(str, enum.Enum):", f'    """{_ENUMERATIONS[name]}"""', ""]
    return "\n".join([*lines, *(f'    {token} = "{text}"' for token, text in members)])


def options_text() -> str:
    """The content of op_tools/_base/declared_options.py."""
    shared = _options_class("ToolOptions", "TypedDict", "Options that all tools share.", hook_options())
    parts = [_OF_OPTIONS, shared.replace("OP_HOOK", "OP_<TOOL>")]
    for kind in kinds().values():
        parts.append(_options_class(f"{kind.name}Options", "ToolOptions", f"Options of {kind.name}.", kind.own_options))
    return _joined(parts)


def rows_text() -> str:
    """The content of op_tools/_base/declared_rows.py."""
    rows = {row.name: row for kind in kinds().values() for row in kind.rows}
    rows |= {row.name: row for row in further_rows()}
    words = [_enumeration(name, members) for name, members in enumerations().items()]
    return _joined([_OF_ROWS, *words, *map(_row_class, rows.values())])


def tools_text() -> str:
    """The content of op_tools/_base/declared_tools.json."""
    summaries = {name: _summary(tool) for name, tool in _tool_classes().items()}
    tools = [
        {
            **{name: getattr(kind, name) for name in ("name", "feature", "flag", "prefix")},
            "summary": summaries[kind.name],
            "options": [dataclasses.asdict(option) for option in kind.options],
        }
        for kind in kinds().values()
    ]
    shared = [dataclasses.asdict(option) for option in hook_options()]
    return json.dumps({"shared": shared, "tools": tools}, indent=1) + "\n"


def _joined(parts: Iterable[str]) -> str:
    return "\n\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def other_names_text() -> str:
    """The content of src/base/other_names.cpp."""
    seen = set(torch_names())
    rows = "".join(f'    {{"{name}", "{other}"}},\n' for name, other in sorted(other_names()) if name in seen)
    return (
        "// Made by tools/generate_declared.py: do not edit.\n"
        '#include "base/other_names.h"\n\n'
        "namespace op_tools {\n\n"
        "// clang-format off\n"
        "const std::vector<std::pair<std::string, std::string>>& other_names_of_torch() {\n"
        "  static const auto* const names = new std::vector<std::pair<std::string, std::string>>{\n"
        f"{rows}"
        "  };\n"
        "  return *names;\n"
        "}\n"
        "// clang-format on\n\n"
        "}  // namespace op_tools\n"
    )


def _table(titles: list[str], rows: list[list[str]]) -> str:
    cells = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") or " " for cell in row) + " |" for row in cells)


def _options_table(name: str) -> str:
    return _table(
        ["argument", "variable", "meaning", "default"],
        [
            [
                f"`{option.name}=`",
                f"`{option.variable.replace('OP_HOOK', 'OP_<TOOL>')}`" if option.variable else "",
                option.help,
                option.default,
            ]
            for option in (hook_options() if name == "all" else kinds()[name].own_options)
        ],
    )


def _columns_table(name: str) -> str:
    if name == "Coverage":
        fields = [[f"`{field}`", f"`{kind}`", meaning] for field, kind, meaning in core.coverage_fields()]
        return _table(["field", "type", "meaning"], fields)
    of_tools = [row for kind in kinds().values() for row in kind.rows]
    (row,) = (row for row in (*of_tools, *further_rows()) if row.name == name)
    columns = [[f"`{column.name}`", f"`{column.type}`", column.help] for column in row.columns]
    return _table(["column", "type", "meaning"], columns)


def _tokens_table(name: str) -> str:
    if name in _OF_PYTHON:
        members = getattr(importlib.import_module(_OF_PYTHON[name]), name)
        return _table(["word", "meaning"], [[f"`{member.name.lower()}`", member.value] for member in members])
    tokens = [[f"`{token}`", meaning] for token, meaning in core.coverage_tokens()[name]]
    return _table(["word", "meaning"], tokens)


def _limits_table() -> str:
    rows = [[".".join(map(str, limit.since)), limit.of, limit.text] for limit in TORCH_LIMITS]
    return _table(["before torch", "of", "limit"], rows)


# --- Tools, variables, commands ------------------------------------------------------------------------------------------


def _package() -> None:
    """Imports the package as it is, with the files that have been written."""
    if not hasattr(sys.modules["op_tools"], "__file__"):
        del sys.modules["op_tools"]
        importlib.import_module("op_tools")


def _tool_classes() -> dict[str, type]:
    _package()
    classes: dict[str, type] = importlib.import_module("op_tools._tools.tool_classes").tool_classes()
    return classes


def _summary(tool: type) -> str:
    """The first line of its docstring."""
    return (tool.__doc__ or "").partition("\n")[0]


def _link(page: Path, target: Path | None) -> str:
    """To another page."""
    return f"[page]({os.path.relpath(target, page.parent)})" if target not in (None, page) else ""


def _tools_table(page: Path, places: Mapping[tuple[str, str], Path]) -> str:
    classes = _tool_classes()
    return _table(
        ["tool", "flag", "variables", "effect", "options"],
        [
            [
                f"`{name}`",
                f"`--{kind.flag}`",
                f"`{kind.prefix}`",
                _summary(classes[name]).rstrip("."),
                _link(page, places.get(("options", name))) or "below",
            ]
            for name, kind in kinds().items()
        ],
    )


def _variables_table() -> str:
    """Those that are no option of a tool."""
    of_options = {option.variable for kind in kinds().values() for option in kind.options}
    of_options |= {option.variable for option in hook_options()}
    rows = []
    for variable in core.variables():
        if variable["name"] not in of_options:
            of_operator = f"; `LINEAR_{variable['name']}`: of that operator" if variable["per_operator"] else ""
            rows.append([f"`{variable['name']}`", variable["help"] + of_operator])
    return _table(["variable", "meaning"], rows)


def _below(
    parser: argparse.ArgumentParser, words: str, effect: str
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield words, effect, parser
    for group in groups:
        helps = {action.dest: action.help or "" for action in group._choices_actions}
        for name, command in group.choices.items():
            yield from _below(command, f"{words} {name}".strip(), helps[name])


def commands() -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """The line of help and the parser of each command: "one-iter save"."""
    _package()
    parser = importlib.import_module("op_tools._commands.command_line").parser_of()
    return {words: (effect, command) for words, effect, command in _below(parser, "", "")}


def _argument(action: argparse.Action) -> str:
    """An argument as a command line has it: -o, --output FILE."""
    names = [action.metavar] if isinstance(action.metavar, str) else list(action.metavar or [])
    if not names and action.nargs != 0:
        choices = [str(choice) for choice in action.choices or ()]
        names = choices if len(choices) == 1 else [action.dest.upper() if action.option_strings else action.dest]
    value = " ".join(names) + (" ..." if action.nargs in ("+", "*", argparse.REMAINDER) else "")
    return f"`{' '.join(filter(None, [', '.join(action.option_strings), value]))}`"


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    choices = [f"`{choice}`" for choice in action.choices or ()]
    return ": ".join(filter(None, [text.replace("<", "\\<"), ", ".join(choices) if len(choices) > 1 else ""]))


def _arguments_of(command: str) -> Iterator[tuple[str, str]]:
    """Argument and meaning. Of `run` and `env` the flags and the options of tools stand in tables of their own."""
    of_tools = {f"--{kind.flag}" for kind in kinds().values()} if command in ("run", "env") else set()
    _, parser = commands()[command]
    for action in parser._actions:
        is_of_tool = ":" in action.dest or of_tools.intersection(action.option_strings)
        if action.help != argparse.SUPPRESS and not is_of_tool and "--help" not in action.option_strings:
            yield _argument(action), _meaning(action, parser)


def _arguments_table(names: str) -> str:
    listed = names.split(", ")
    having: dict[tuple[str, str], list[str]] = {}
    for name in listed:
        for row in _arguments_of(name):
            having.setdefault(row, []).append(name)
    if len(listed) == 1:
        return _table(["argument", "meaning"], [list(row) for row in having])
    rows = [[*row, "each" if of == listed else ", ".join(f"`{name}`" for name in of)] for row, of in having.items()]
    return _table(["argument", "meaning", "of"], rows)


def _commands_table(page: Path, places: Mapping[tuple[str, str], Path]) -> str:
    return _table(
        ["command", "effect", "arguments"],
        [
            [f"`op-tools {name}`", effect, _link(page, places.get(("arguments", name))) or "below"]
            for name, (effect, _) in commands().items()
        ],
    )


# --- Folders -------------------------------------------------------------------------------------------------------------


def _content_of(folder: Path) -> str:
    """The first paragraph of the docstring of a folder of the package, or of its only file."""
    file = folder / "__init__.py"
    if not file.exists():
        (file,) = folder.glob("*.py")
    return " ".join(
        (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0].split()
    ).rstrip(".")


def _folders_table(name: str) -> str:
    """By the height at which a folder stands; of the folders that it uses those that no other of them uses."""
    if name == "src":
        folders = {room: (description.content, description.may_include) for room, description in ROOMS.items()}
        shown = {"src": "src", "bindings": "bindings", "run_op_from_data": "tools/run_op_from_data"}
    else:
        folders = {folder: (_content_of(ROOT / name / folder), below) for folder, below in MAY_IMPORT.items()}
        shown = {}

    def height(folder: str) -> int:
        return max((height(below) + 1 for below in folders[folder][1]), default=0)

    rows = []
    for folder in sorted(folders, key=height):
        content, uses = folders[folder]
        nearest = sorted(uses - {deeper for other in uses for deeper in folders[other][1]})
        path = shown.get(folder, f"{name}/{folder}")
        rows.append([f"`{path}`", content, ", ".join(f"`{other}`" for other in nearest)])
    return _table(["folder", "content", "stands on"], rows)


def _block(kind: str, name: str, page: Path, places: Mapping[tuple[str, str], Path]) -> str:
    if kind == "tools":
        return _tools_table(page, places)
    if kind == "commands":
        return _commands_table(page, places)
    tables = {"options": _options_table, "columns": _columns_table, "tokens": _tokens_table}
    tables |= {
        "limits": lambda _: _limits_table(),
        "variables": lambda _: _variables_table(),
        "arguments": _arguments_table,
        "folders": _folders_table,
    }
    return tables[kind](name)


def blocks(pages: Mapping[Path, str]) -> dict[tuple[str, str], Path]:
    """In which page the table of a kind and name stands; a table of several commands is a table of each."""
    return {
        (block[1], name): page
        for page, text in pages.items()
        for block in _BLOCK.finditer(text)
        for name in block[2].split(", ")
    }


def page_text(page: Path, text: str, places: Mapping[tuple[str, str], Path]) -> str:
    """A page with its tables as they are now."""
    return _BLOCK.sub(
        lambda block: f"<!-- {block[1]}: {block[2]} -->\n{_block(block[1], block[2], page, places)}\n<!-- end -->", text
    )


def page_texts() -> dict[Path, str]:
    """All pages, as they are."""
    return {page: page.read_text(encoding="utf-8") for page in PAGES}


def _differing(wanted: Mapping[Path, str]) -> list[Path]:
    return [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def stale(*, write: bool) -> list[Path]:
    """Outdated files; with `write` they are written anew."""
    sources = {OPTIONS: options_text(), ROWS: rows_text(), OTHER_NAMES: other_names_text()}
    outdated = _differing(sources)
    if outdated and not write:
        return outdated  # the package, which the pages describe, needs them
    for path in outdated:
        path.write_text(sources[path], encoding="utf-8")
    outdated += _differing(described := {TOOLS: tools_text()})  # of the package with the files above
    if TOOLS in outdated and not write:
        return outdated
    for path in described if TOOLS in outdated else ():
        path.write_text(described[path], encoding="utf-8")
    pages = page_texts()
    places = blocks(pages)
    wanted = {page: page_text(page, text, places) for page, text in pages.items()}
    outdated_pages = _differing(wanted)
    for page in outdated_pages if write else ():
        page.write_text(wanted[page], encoding="utf-8")
    return outdated + outdated_pages


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 when something would change")
    check = parser.parse_args().check
    outdated = stale(write=not check)
    for path in outdated:
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'does not fit the declarations' if check else 'written'}\n")
    return 1 if check and outdated else 0


if __name__ == "__main__":
    sys.exit(main())
