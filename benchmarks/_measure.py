"""The common part of the benchmarks: variants that take turns, ratios of neighbours in time, tables as JSON and Markdown.

The machine may be busy with other things, so nothing is measured alone: in each round every variant runs once, in an order
that turns, and a figure is the median over rounds of the ratio (or difference) within a round. `cpu` is the time of the
program's own thread, which others on the machine disturb least; `wall` is a user's waiting time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "bench"
os.environ.setdefault("OP_TOOLS_LOG_LEVEL", "error")


def scratch() -> str:
    """Where benchmarks make the folders that they write to: the project's own disk, in a folder that git ignores."""
    place = os.environ.get("OP_TOOLS_OUTPUT_DIR", str(RESULTS))
    Path(place).mkdir(parents=True, exist_ok=True)
    return place


@dataclass(frozen=True)
class Spent:
    """Seconds."""

    wall: float
    cpu: float

    def per(self, count: float) -> Spent:
        return Spent(self.wall / count, self.cpu / count)


def spend(work: Callable[[], object]) -> Spent:
    """The time of a run of `work` in this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    work()
    return Spent(time.perf_counter() - wall, time.thread_time() - cpu)


def keep_freed_memory() -> None:
    """Memory that is freed stays with the program, on both sides of a comparison.

    The C library gives the top of its heap back when something large was freed there, and the next operator pays for fresh
    pages: whether that happens depends on what lies above, so it hits either side by chance (up to half of a
    call's time).
    """
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 32 << 20)


class Turns:
    """The times of every variant, round by round."""

    def __init__(self, variants: Mapping[str, Callable[[], Spent]], rounds: int, warm_up: int = 1) -> None:
        names = list(variants)
        self.spent: dict[str, list[Spent]] = {name: [] for name in names}
        for turn in range(-warm_up, rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                spent = variants[name]()
                if turn >= 0:
                    self.spent[name].append(spent)

    def _values(self, name: str, clock: str) -> list[float]:
        return [getattr(spent, clock) for spent in self.spent[name]]

    def median(self, name: str, clock: str = "cpu") -> float:
        return statistics.median(self._values(name, clock))

    def least(self, name: str, clock: str = "cpu") -> float:
        return min(self._values(name, clock))

    def ratio(self, name: str, other: str, clock: str = "cpu") -> float:
        pairs = zip(self._values(name, clock), self._values(other, clock), strict=True)
        return statistics.median(one / two for one, two in pairs)

    def more(self, name: str, other: str, clock: str = "cpu") -> float:
        """Seconds that `name` takes more than `other`."""
        pairs = zip(self._values(name, clock), self._values(other, clock), strict=True)
        return statistics.median(one - two for one, two in pairs)


@dataclass
class Table:
    title: str
    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    note: str = ""

    def row(self, *cells: object) -> None:
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append([str(cell) for cell in cells])
        print("  " + " | ".join(self.rows[-1]), flush=True)

    def markdown(self) -> str:
        lines = [
            f"| {' | '.join(self.columns)} |",
            f"|{'---|' * len(self.columns)}",
            *(f"| {' | '.join(row)} |" for row in self.rows),
        ]
        return f"**{self.title}**\n\n" + "\n".join(lines) + (f"\n\n{self.note}" if self.note else "")


class Report:
    """The tables of a benchmark program, written to build/bench/<name>.json and .md."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.tables: list[Table] = []

    def table(self, title: str, *columns: str, note: str = "") -> Table:
        print(f"{title}\n  {' | '.join(columns)}", flush=True)
        self.tables.append(Table(title, list(columns), note=note))
        return self.tables[-1]

    def write(self) -> None:
        import torch

        RESULTS.mkdir(parents=True, exist_ok=True)
        facts = {
            "name": self.name,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "tables": [asdict(table) for table in self.tables],
        }
        (RESULTS / f"{self.name}.json").write_text(json.dumps(facts, indent=1))
        (RESULTS / f"{self.name}.md").write_text("\n\n".join(table.markdown() for table in self.tables) + "\n")


PROMISE = ("what", "against", "must reach", "measured", "", "absolute")


def verdict(value: float, most: float | None = None, least: float | None = None) -> str:
    good = (most is None or value <= most) and (least is None or value >= least)
    return "holds" if good else "**misses**"


def ns(seconds: float) -> str:
    return f"{seconds * 1e9:+.0f} ns"


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.2f} us"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, no figures to keep")
    return parser
