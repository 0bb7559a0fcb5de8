"""Ranks in a text."""

from __future__ import annotations

from collections.abc import Iterable


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
    """ "rank 3", "ranks 0 to 4, 6, 7": each rank once, three neighbours and more as a range; "" without any."""
    numbers = sorted(set(ranks))
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [
        f"{first} to {last}" if last > first + 1 else ", ".join(map(str, range(first, last + 1)))
        for first, last in ranges
    ]
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(texts)}" if texts else ""
