"""Writes the files that follow from the declarations of options and rows in C++: op_tools/_base/declared.py (types for checkers, and
the row classes) and the tables between markers in docs/*.md; and src/base/other_names.cpp, the names under which torch has the
same function twice. Run it after changing a declaration and building:

python tools/generate_declared.py          writes
python tools/generate_declared.py --check  exit status 1 when a file is outdated
"""

from __future__ import annotations

import argparse
import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
if "op_tools" not in sys.modules:
    # The package itself may need the files that are about to be written: only its parts are imported that do not.
    import torch  # noqa: F401  (loads the libraries that the extension needs)

    package = sys.modules["op_tools"] = types.ModuleType("op_tools")
    package.__path__ = [str(ROOT / "op_tools")]

from op_tools._base import core  # noqa: E402
from op_tools._base.tool_descriptions import Option, Row, enumerations, further_rows, hook_options, kinds  # noqa: E402
from op_tools._torch.operator_names import other_names, torch_names  # noqa: E402

DECLARED = ROOT / "op_tools" / "_base" / "declared.py"
OTHER_NAMES = ROOT / "src" / "base" / "other_names.cpp"
# In a page: <!-- options: OpCapture --> table <!-- end -->; "options: all" are those that all tools share; "tokens: Gap" an
# enumeration of the account of a run.
_BLOCK = re.compile(r"<!-- (options|columns|tokens): (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_HEAD = '''"""The options of each tool, and the rows of its result. Made by tools/generate_declared.py from the declarations in
C++: do not edit."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from typing_extensions import TypedDict
'''
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


def declared_text() -> str:
    """The content of op_tools/_base/declared.py."""
    shared = _options_class("ToolOptions", "TypedDict", "Options that all tools share.", hook_options())
    parts = [_HEAD, shared.replace("OP_HOOK", "OP_<TOOL>")]
    parts += [_enumeration(name, members) for name, members in enumerations().items()]
    rows: dict[str, Row] = {}
    for kind in kinds().values():
        parts.append(_options_class(f"{kind.name}Options", "ToolOptions", f"Options of {kind.name}.", kind.own_options))
        rows.update({row.name: row for row in kind.rows})
    rows.update({row.name: row for row in further_rows()})
    text = "\n\n\n".join([*parts, *map(_row_class, rows.values())]) + "\n"
    if ": Any" not in text and "[Any" not in text and "Any]" not in text:
        text = text.replace("from typing import Any, Literal", "from typing import Literal")
    return text.replace("TypedDict\n\n\n\n", "TypedDict\n\n\n")


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


def _block(kind: str, name: str) -> str:
    if kind == "tokens":
        return _table(["word", "meaning"], [[f"`{one}`", meaning] for one, meaning in core.coverage_tokens()[name]])
    if kind == "columns" and name == "Coverage":
        fields = [[f"`{one}`", f"`{kind}`", meaning] for one, kind, meaning in core.coverage_fields()]
        return _table(["field", "type", "meaning"], fields)
    if kind == "columns":
        of_tools = [row for one in kinds().values() for row in one.rows]
        (row,) = (row for row in (*of_tools, *further_rows()) if row.name == name)
        return _table(
            ["column", "type", "meaning"], [[f"`{one.name}`", f"`{one.type}`", one.help] for one in row.columns]
        )
    options = hook_options() if name == "all" else kinds()[name].own_options
    return _table(
        ["argument", "variable", "meaning", "default"],
        [
            [
                f"`{option.name}=`",
                f"`{option.variable.replace('OP_HOOK', 'OP_<TOOL>')}`" if option.variable else "",
                option.help,
                option.default,
            ]
            for option in options
        ],
    )


def page_text(text: str) -> str:
    """A page with its blocks as they are now."""
    return _BLOCK.sub(
        lambda found: f"<!-- {found[1]}: {found[2]} -->\n{_block(found[1], found[2])}\n<!-- end -->", text
    )


def documented_tools(pages: Iterable[str]) -> set[str]:
    """The tools whose options stand in any of these pages."""
    return {found[2] for page in pages for found in _BLOCK.finditer(page) if found[1] == "options"}


def stale(*, write: bool) -> list[Path]:
    """Outdated files; with `write` they are written anew."""
    wanted = {DECLARED: declared_text(), OTHER_NAMES: other_names_text()}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        wanted[page] = page_text(page.read_text(encoding="utf-8"))
    outdated = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if write:
        for path in outdated:
            path.write_text(wanted[path], encoding="utf-8")
    return outdated


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
