"""Histograms of errors in units of the last place (ULP): how many results have an error of which size, by dtype."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from .part import Mark, Shares

_MOST_DTYPES = 4
_LARGEST = 20  # the bin behind 2**20 ULP has all that are larger


def _bin(ulp: float) -> int:
    """0: no error; n: above 2**(n - 2), up to 2**(n - 1); of the first, above 0."""
    if ulp == 0:
        return 0
    return min(max(1, math.ceil(math.log2(ulp)) + 1), _LARGEST + 2) if math.isfinite(ulp) else _LARGEST + 2


def _title_of_bin(number: int) -> str:
    if number < 2:
        return "0 to 1" if number else "0"
    low = 2 ** (number - 2)
    return f"more than {low:,}" if number == _LARGEST + 2 else f"{low:,} to {2 * low:,}"


class UlpHistograms:
    """Counts the largest errors of results."""

    def __init__(self) -> None:
        self._by_dtype: dict[str, dict[int, Counter[str]]] = {}

    def add(self, dtype: str, ulp: float | None, mark: Mark) -> None:
        """A result. Those of integers have no ULP, and results that were not judged may have none."""
        if ulp is None or math.isnan(ulp) or ulp < 0 or not dtype.startswith(("float", "bfloat", "complex")):
            return
        self._by_dtype.setdefault(dtype, {}).setdefault(_bin(ulp), Counter())[mark.value] += 1

    def pictures(self) -> Iterable[Shares]:
        """A histogram for each of the dtypes with most results."""
        most_results = sorted(self._by_dtype.items(), key=lambda item: -sum(map(Counter.total, item[1].values())))
        marks = tuple(mark.value for mark in (Mark.WRONG, Mark.NOT_JUDGED, Mark.RIGHT))
        for dtype, bins in most_results[:_MOST_DTYPES]:
            rows: list[tuple[str, Counter[str]]] = []
            for number in range(max(bins) + 1):
                if number in bins:
                    rows.append((_title_of_bin(number), bins[number]))
                elif rows and rows[-1][1]:
                    rows.append(("...", Counter()))  # for all bins without a result up to the next
            yield Shares(f"Errors in units of the last place, {dtype}", "ULP", marks, tuple(rows))
