"""The slowest tests and the steps of the last `./dev test` and `.ci/run`, with their share of the CPU time.

    python tests/slowest.py [--write]

CPU time, as the clock shows on a busy machine how busy it is. `./dev` notes its steps in build/logs/steps.txt, pytest the tests in
build/logs/costs.json (`--costs`). `--write` puts both tables into docs/testing.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "logs"
PAGE = ROOT / "docs" / "testing.md"
BEGIN, END = "<!-- slowest: written by ./dev slowest --write -->\n", "<!-- end of slowest -->"
TESTS = 40


def table(heads: list[str], rows: list[tuple[object, ...]]) -> str:
    lines = [heads, ["---"] * len(heads), *([str(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def steps() -> str:
    """Those of the last run, in their order."""
    rows = [line.split() for line in (LOGS / "steps.txt").read_text().splitlines()]
    whole = sum(int(cpu) for _, _, cpu in rows) or 1
    minutes = [
        (name, f"{int(clock) / 60:.1f}", f"{int(cpu) / 60:.1f}", f"{int(cpu) / whole:.0%}") for name, clock, cpu in rows
    ]
    return table(["step", "minutes", "CPU minutes", "share"], [*minutes, ("all", "", f"{whole / 60:.1f}", "")])


def tests() -> str:
    costs: dict[str, float] = json.loads((LOGS / "costs.json").read_text())
    whole = sum(costs.values()) or 1.0
    files: dict[str, float] = {}
    for name, seconds in costs.items():
        file = name.partition("::")[0]
        files[file] = files.get(file, 0) + seconds
    text = f"{len(costs)} tests, {whole / 60:.1f} CPU minutes.\n\n"
    for head, times in (("test", costs), ("file", files)):
        slowest = sorted(times.items(), key=lambda item: -item[1])[:TESTS]
        rows = [
            (f"`{name.removeprefix('tests/python/')}`".replace("|", "\\|"), f"{seconds:.1f}", f"{seconds / whole:.1%}")
            for name, seconds in slowest
        ]
        text += table([head, "CPU seconds", "share"], rows) + "\n"
    return text


def main() -> None:
    parts = [part() for part, file in ((steps, "steps.txt"), (tests, "costs.json")) if (LOGS / file).exists()]
    if not parts:
        sys.exit(f"{LOGS} has no times: ./dev test and .ci/run write them")
    text = "\n".join(parts)
    if "--write" in sys.argv[1:]:
        page = PAGE.read_text()
        begin = page.index(BEGIN) + len(BEGIN)
        PAGE.write_text(f"{page[:begin]}\n{text}\n{page[page.index(END, begin) :]}")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
