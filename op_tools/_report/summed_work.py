"""The work of a rank from its rows of summary.csv: which operators it called how often, and their times."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._base.core import is_collective
from .part import dtype_of, integer_of, number_of, text_of
from .rank_work import FEWEST_CALLS, MOST_MS, SEPARATOR, TRACE_FILE, Measure, Mode, Work

_MOST_ROWS = 500  # of a rank, the longest
_LEAST_TIME, _MOST_CALLS = 1e-9, 10**12  # numbers beyond come from a damaged file
_HEAD = 4096  # bytes of a trace, in which its mode stands
_MODE = re.compile(rb'"op_tools":\{"mode":"(\w+)"')


class WorkOfRows:
    """Sums the rows of summary.csv of a rank."""

    def __init__(self) -> None:
        self._rows: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
        self._self_ms = self._waits_ms = 0.0
        self._is_on_device = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row; one that is damaged counts nothing."""
        op, calls = text_of(row, "op"), integer_of(row, "calls") or 0
        self_ms, mean, shortest, longest = (
            value if (value := number_of(row, name)) is not None and 0 <= value <= MOST_MS else -1.0
            for name in ("self_ms", "mean_ms", "min_ms", "max_ms")
        )
        if not op or not 0 < calls <= _MOST_CALLS or min(self_ms, mean, shortest, longest) < 0:
            return
        if is_collective(op):
            self._waits_ms += self_ms
            return
        device = text_of(row, "device").partition(":")[0]
        self._is_on_device |= device not in ("", "cpu", "meta")
        names = op, text_of(row, "phase"), text_of(row, "shapes"), dtype_of(row, "dtypes"), device
        sums = self._rows[SEPARATOR.join(names)]
        self._self_ms += self_ms
        sums[0] += calls
        if calls >= FEWEST_CALLS and min(self_ms, shortest, mean) >= _LEAST_TIME:
            sums[1] += self_ms * min(1.0, shortest / mean)
            sums[2] += self_ms * max(0.0, 1 - longest / (mean * calls))
        sums[3] += self_ms

    def work(self, folder: str) -> Work:
        """All of them. `folder`: of the run, whose trace says how it measured."""
        work = Work(_mode_of(folder) if self._is_on_device else Mode.MEASURED)
        work.self_ms, work.waits_ms = self._self_ms, self._waits_ms
        kind = hashlib.blake2b(digest_size=16)
        for key in sorted(self._rows):
            kind.update(f"{key}{SEPARATOR}{self._rows[key][0]}{SEPARATOR}".encode("utf-8", "replace"))
        work.kind = kind.digest()
        longest = sorted(self._rows.items(), key=lambda item: -item[1][3])[:_MOST_ROWS]
        for key, (calls, each, some, _) in sorted(longest):
            work.keys.append(sys.intern(key))
            work.calls.append(int(calls))
            work.times[Measure.EACH].append(each)
            work.times[Measure.SOME].append(some)
        return work


def _mode_of(folder: str) -> Mode:
    file = Path(folder) / TRACE_FILE
    if not folder or file.is_symlink() or not file.is_file():
        return Mode.UNKNOWN
    try:
        with file.open("rb") as content:
            mode = _MODE.search(content.read(_HEAD))
    except OSError:
        return Mode.UNKNOWN
    return Mode.UNKNOWN if mode is None else Mode.ISSUED if mode[1] == b"host" else Mode.MEASURED
