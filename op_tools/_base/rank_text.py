"""Ranks in a text, and those that are absent."""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import pairwise

_RANGES = 8
_MOST_RANKS = 100_000  # a number beyond comes from a damaged file


def lines_of_ranks(texts: Iterable[tuple[int, str]], *, fewest_first: bool = False) -> list[str]:
    """Ranks and their texts as a line for each text: "ranks 0 to 4, 6: complete".

    Args:
        texts: of each rank, any number.
        fewest_first: the texts of the fewest ranks first; else in the order of their first ranks.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, text in texts:
        ranks_of.setdefault(text, []).append(rank)
    groups = sorted(ranks_of.items(), key=lambda group: len(group[1])) if fewest_first else ranks_of.items()
    return [f"{ranks_text(ranks)}: {text}" for text, ranks in groups]


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0 to 4, 6, 7", "ranks 1 to 61 in steps of 4": each rank once; "" without any. Of many ranges the first
    eight: "ranks 0, 2, ... (31 ranks)"."""
    numbers = sorted(set(ranks))
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > _RANGES and len(steps) == 1 and steps != {1}:
        return f"ranks {numbers[0]} to {numbers[-1]} in steps of {steps.pop()}"
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [
        f"{first} to {last}" if last > first + 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in ranges[:_RANGES]
    ]
    if len(ranges) > _RANGES:
        texts.append(f"... ({len(numbers)} ranks)")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(texts)}" if texts else ""


def absent_ranks(ranks: Set[int], count: int) -> set[int]:
    """Of the first `count` ranks those that are not among `ranks`."""
    return {*range(min(count, _MOST_RANKS))} - ranks
