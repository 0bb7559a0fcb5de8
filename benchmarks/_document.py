"""Puts the tables that the benchmarks left in build/bench into docs/performance.md, each between its marks."""

from __future__ import annotations

import json
import re
import sys

from _measure import RESULTS, ROOT

DOCUMENT = ROOT / "docs" / "performance.md"


def main() -> int:
    text = DOCUMENT.read_text()
    missing = []
    for name in re.findall(r"<!-- bench: (\w+) -->", text):
        tables = RESULTS / f"{name}.md"
        if not tables.exists():
            missing.append(name)
            continue
        facts = json.loads((RESULTS / f"{name}.json").read_text())
        body = f"{tables.read_text()}\n(torch {facts['torch']}, Python {facts['python']}, {facts['cores']} cores)\n"
        marks = f"<!-- bench: {name} -->", f"<!-- end: {name} -->"
        text = re.sub(f"{marks[0]}.*?{marks[1]}", lambda _: f"{marks[0]}\n\n{body}\n{marks[1]}", text, flags=re.DOTALL)  # noqa: B023
    DOCUMENT.write_text(text)
    if missing:
        sys.stderr.write(f"not run yet, the tables are as they were: {', '.join(missing)}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
