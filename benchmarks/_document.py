"""Puts the tables of build/bench into the docs, each between its marks: all rows into docs/performance_tables.md, a summary of
their promises and the whole models into docs/performance.md. ./dev bench --write runs it."""

from __future__ import annotations

import json
import re
import sys

from _measure import PROMISE, RESULTS, ROOT

ALL_ROWS = ROOT / "docs" / "performance_tables.md"
PAGE = ROOT / "docs" / "performance.md"


def sections(text: str) -> dict[str, str]:
    """The text between the marks of a page, by name of the benchmark."""
    return dict(re.findall(r"<!-- bench: (\w+) -->\n(.*?)\n?<!-- end: \1 -->", text, re.DOTALL))


def replaced(text: str, name: str, body: str) -> str:
    """The page with `body` between the marks of `name`."""
    marks = f"<!-- bench: {name} -->", f"<!-- end: {name} -->"
    return re.sub(f"{marks[0]}.*?{marks[1]}", lambda _: f"{marks[0]}\n\n{body}\n\n{marks[1]}", text, flags=re.DOTALL)


def table(columns: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows])


def cells(body: str) -> list[list[str]]:
    """The rows of the tables in a section."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]


def promises(all_rows: str) -> str:
    """How many promises each benchmark checks, how many hold, and those that do not."""
    counts, misses = [], []
    for name, body in sections(all_rows).items():
        checked = [row for row in cells(body) if len(row) == len(PROMISE) and re.search("holds|misses", row[4])]
        missed = [[row[0], row[2], row[3]] for row in checked if "misses" in row[4]]
        misses += missed
        if checked:
            counts.append([f"`{name}`", str(len(checked)), str(len(checked) - len(missed))])
    return "\n\n".join(
        [table(["benchmark", "promises", "hold"], counts), "The misses:", table(["what", "limit", "measured"], misses)]
    )


def whole_models(all_rows: str) -> str:
    """A line for each tool, over all operators of each model."""
    models = re.findall(r"\*\*([\w]+), ([^:]+):[^*]*\*\*\n\n(.*?)\n\n", sections(all_rows)["models"], re.DOTALL)
    columns = [f"{model}, {level}" for model, _, _ in models for level in ("torch", "aten")]
    by_tool: dict[str, list[str]] = {}
    for _, _, body in models:
        for row in cells(body)[2:]:
            by_tool.setdefault(row[0], []).extend([row[1], row[3]])
    return table(["tool", *columns], [[tool, *row] for tool, row in by_tool.items()])


def page_from(page: str, all_rows: str) -> str:
    return replaced(replaced(page, "promises", promises(all_rows)), "models", whole_models(all_rows))


def main() -> int:
    all_rows = ALL_ROWS.read_text()
    missing = []
    for name in sections(all_rows):
        tables = RESULTS / f"{name}.md"
        if not tables.exists():
            missing.append(name)
            continue
        facts = json.loads((RESULTS / f"{name}.json").read_text())
        about = f"(torch {facts['torch']}, Python {facts['python']}, {facts['cores']} cores)"
        all_rows = replaced(all_rows, name, f"{tables.read_text()}\n{about}")
    ALL_ROWS.write_text(all_rows)
    PAGE.write_text(page_from(PAGE.read_text(), all_rows))
    if missing:
        sys.stderr.write(f"not run yet, the tables are as they were: {', '.join(missing)}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
