"""Aligns the calls of two runs: the only place of the package that does."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Sequence


def align(keys_a: Sequence[Hashable], keys_b: Sequence[Hashable]) -> list[tuple[int | None, int | None]]:
    """Pairs the items of two sequences in their order: a longest common subsequence.

    Args:
        keys_a: the keys of one sequence; items with equal keys may be a pair.
        keys_b: those of the other.

    Returns:
        pairs of indices, None where an item has no partner; every item is in one pair.
    """
    pairs: list[tuple[int | None, int | None]] = []
    blocks = difflib.SequenceMatcher(None, keys_a, keys_b, autojunk=False).get_matching_blocks()
    a = b = 0
    for block in blocks:
        pairs += [(i, None) for i in range(a, block.a)] + [(None, j) for j in range(b, block.b)]
        pairs += [(block.a + i, block.b + i) for i in range(block.size)]
        a, b = block.a + block.size, block.b + block.size
    return pairs
