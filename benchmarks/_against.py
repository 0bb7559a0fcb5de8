"""This commit's costs against an older commit's: the same steps, in processes that take turns.

    ./dev bench --against REV [--pairs 15] [--all]

REV is built in build/against/REV, once. A row's ratio is this commit's CPU time divided by REV's, pair by pair: neighbours in time,
so that a machine that becomes slower makes neither side slower; the median of all pairs, with the interval in which it lies at 95 %
(between two of the sorted ratios; for fewer than six pairs between the least and the largest). `slower` and `faster`: the whole interval
is on one side of 1, and the median further away from it than 5 %, and than that of any row without a tool, in which nothing of ours
runs: the machine's own noise.
Exit status 1 where a row is slower.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from _measure import RESULTS, ROOT
from tqdm import tqdm

NOISE = 0.05
WITHOUT = " without"  # the end of the names of rows without a tool
WORK = Path(__file__).with_name("_steps_under_tools.py")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def built(revision: str) -> Path:
    """The folder of that commit's sources, with its package built."""
    commit = git("rev-parse", "--short", f"{revision}^{{commit}}")
    folder = ROOT / "build" / "against" / commit
    if not folder.exists():
        git("worktree", "prune")
        git("worktree", "add", "--detach", "--force", str(folder), commit)
    own = ("OP_TOOLS_BUILD_DIR", "_OP_TOOLS_DEV_LOCKED", "PYTHONPATH", "PYTHONPYCACHEPREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    subprocess.run(
        ["./dev", "run", "true"],
        cwd=folder,
        check=True,
        env={**environment, "OP_TOOLS_VENV": os.environ["VIRTUAL_ENV"], "OP_TOOLS_TOGETHER": "8"},
        stdout=sys.stderr,
    )
    return folder


def measured(source: Path) -> dict[str, int]:
    """Nanoseconds by row, of the op_tools in that folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "OP_TOOLS_BUILD_DIR": str(source / "build" / "dev"),
        "OP_TOOLS_LOG_LEVEL": "error",
    }
    done = subprocess.run(
        [sys.executable, str(WORK)], env=environment, check=True, capture_output=True, text=True, cwd=ROOT
    )
    return json.loads(done.stdout)


@dataclass
class Row:
    """Median times in nanoseconds; ratios of neighbours in time."""

    name: str
    ratio: float
    least: float
    most: float
    now: float
    before: float

    def change(self, noise: float) -> str:
        """`noise`: the distance of a ratio from 1 that is no change."""
        if self.ratio > 1 + noise and self.least > 1:
            return "slower"
        return "faster" if self.ratio < 1 - noise and self.most < 1 else "as before"

    def __str__(self) -> str:
        spread = f"{self.least:.2f} to {self.most:.2f}"
        return f"{self.name:<32} {self.ratio:>6.2f} {spread:>13} {self.now / 1e6:>8.2f} {self.before / 1e6:>8.2f}"


def noise_of(rows: list[Row]) -> float:
    """The least distance of a ratio from 1 that is a change: no row without a tool has it."""
    return max([NOISE, *(abs(row.ratio - 1) for row in rows if row.name.endswith(WITHOUT))])


def around_the_median(values: list[float]) -> tuple[float, float]:
    """The k-th least and the k-th largest: the median of what the values are drawn from lies outside with a chance of at most 5 %,
    P(fewer than k of n fair coins show heads) on each side."""
    n, k = len(values), 1
    outside = 2 / 2**n
    while (outside := outside + 2 * math.comb(n, k) / 2**n) <= 0.05:
        k += 1
    ordered = sorted(values)
    return ordered[k - 1], ordered[n - k]


def compared(pairs: list[tuple[dict[str, int], dict[str, int]]]) -> list[Row]:
    """A row for each name that both commits have. A pair: this commit's times, the older commit's."""
    rows = []
    for name in pairs[0][0].keys() & pairs[0][1].keys():
        ratios = [new[name] / old[name] for new, old in pairs]
        times = [statistics.median(side[name] for side in sides) for sides in zip(*pairs, strict=True)]
        rows.append(Row(name, statistics.median(ratios), *around_the_median(ratios), *times))
    return sorted(rows, key=lambda row: -row.ratio)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revision", help="a commit, tag or branch")
    parser.add_argument("--pairs", type=int, default=15, help="processes of each commit (15)")
    parser.add_argument("--all", action="store_true", help="print the rows that are as before, too")
    options = parser.parse_args()
    old_source = built(options.revision)
    pairs = []
    for turn in tqdm(range(options.pairs), desc="pairs", file=sys.stderr):
        sources = (ROOT, old_source) if turn % 2 == 0 else (old_source, ROOT)
        times = {source: measured(source) for source in sources}
        pairs.append((times[ROOT], times[old_source]))
    rows = compared(pairs)
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts = {"revision": options.revision, "rows": [asdict(row) for row in rows]}
    (RESULTS / "against.json").write_text(json.dumps(facts, indent=1))
    print(f"{'steps of':<32} {'ratio':>6} {'95 %':>13} {'ms now':>8} {'before':>8}")
    noise = noise_of(rows)
    changes = [(row, row.change(noise)) for row in rows]
    for row, change in changes:
        if options.all or change != "as before":
            print(f"{row}  {change}")
    slower = sum(change == "slower" for _, change in changes)
    print(f"{len(rows)} rows, {options.pairs} pairs: {slower} slower by more than noise, which is {noise:.0%}")
    return slower > 0


if __name__ == "__main__":
    sys.exit(main())
