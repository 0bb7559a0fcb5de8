"""Makes docs/images/many_ranks.svg: the cost of commands over long runs of many ranks.

    ./dev prove many_ranks --calls 3e6 1e7 > lines; ./dev run python docs/make_scaling.py lines

Bars of CPU minutes for 10^8 calls, from the lines that the proof prints: a bar for each command, number of ranks and of processes, of the most
calls that were measured.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

IMAGE = Path(__file__).parent / "images" / "many_ranks.svg"
WIDTH, ROW, LEFT, TOP = 760, 20, 330, 44  # pixels
COLORS = {"1": "#3b6ea5", "2": "#d98032"}  # by number of processes


def measured(text: str) -> list[tuple[str, int, str, float, int]]:
    """Command, ranks, processes, CPU minutes and MB, of the most calls."""
    most: dict[tuple[str, int, str], tuple[int, float, int]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 8 or not words[0].isdigit() or words[-1] == "CPU":
            continue
        ranks, calls, *command, jobs, _, _, memory, minutes = words
        key = (" ".join(command), int(ranks), jobs)
        if key not in most or most[key][0] < int(calls):
            most[key] = (int(calls), float(minutes), int(memory))
    return sorted((name, ranks, jobs, minutes, memory) for (name, ranks, jobs), (_, minutes, memory) in most.items())


def drawn(rows: list[tuple[str, int, str, float, int]]) -> str:
    """The picture."""
    largest = max(minutes for *_, minutes, _ in rows) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{TOP + ROW * len(rows) + 10}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="24" font-size="15">CPU minutes for 10^8 calls; beside them the memory of a process</text>',
    ]
    for number, (name, ranks, jobs, minutes, memory) in enumerate(rows):
        y = TOP + number * ROW
        width = (WIDTH - LEFT - 130) * minutes / largest
        label = escape(f"{name}, {ranks:,} ranks" + (f", {jobs} processes" if jobs != "1" else ""))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{label}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{y + 2}" width="{width:.1f}" height="{ROW - 6}" fill="{COLORS.get(jobs, "#777")}"/>'
        )
        parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 13}">{minutes:.1f} min, {memory:,} MB</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> int:
    IMAGE.write_text(drawn(measured("".join(Path(name).read_text() for name in sys.argv[1:]))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
