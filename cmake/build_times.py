"""Where the time of a build went: the longest steps and the sum of each part, as ninja's log has them.

    ./dev build --times

Seconds are those between a step's start and its end, a step per core: on an idle machine the CPU time. A step that the
compiler cache answered takes next to nothing; CCACHE_DISABLE=1 and ./dev clean show the time of compiling.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path


def read_log(build: Path) -> dict[str, float]:
    """Output file -> seconds of the last time when it was made."""
    seconds = {}
    for line in (build / ".ninja_log").read_text().splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(start)) / 1000
    return {output: time for output, time in seconds.items() if (build / output).exists()}


def part_of(output: str) -> str:
    """The CMake target whose file it is, or its folder: "op_tools_hooks"."""
    folders = [part.removesuffix(".dir") for part in Path(output).parts if part.endswith(".dir")]
    return folders[0] if folders else "links"


def main() -> None:
    seconds = read_log(Path(sys.argv[1]))
    parts: dict[str, list[float]] = defaultdict(list)
    for output, time in seconds.items():
        parts[part_of(output)].append(time)
    print(f"{'seconds':>8}  steps  part")
    for name, times in sorted(parts.items(), key=lambda part: -sum(part[1])):
        print(f"{sum(times):8.1f}  {len(times):5}  {name}")
    print(f"{sum(seconds.values()):8.1f}  {len(seconds):5}  all\n\n seconds  step")
    for output, time in sorted(seconds.items(), key=lambda step: -step[1])[:10]:
        print(f"{time:8.1f}  {output}")


if __name__ == "__main__":
    main()
