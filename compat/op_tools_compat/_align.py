"""Pairs the calls of two dumps."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from op_tools._base.core import align_keys


def align(keys_a: Sequence[Hashable], keys_b: Sequence[Hashable]) -> list[tuple[int | None, int | None]]:
    """Pairs the items of two sequences in their order, as the comparison of runs does.

    Args:
        keys_a: the keys of a sequence; items with equal keys may be a pair.
        keys_b: those of the other.

    Returns:
        pairs of indices, None where an item has no partner; every item is in a single pair.
    """
    numbers: dict[Hashable, int] = {}  # 0 is none
    in_a, in_b = ([numbers.setdefault(key, len(numbers) + 1) for key in keys] for keys in (keys_a, keys_b))
    pairs: list[tuple[int | None, int | None]] = []
    a = b = 0
    for next_a, next_b in [*align_keys(in_a, in_b), (len(keys_a), len(keys_b))]:
        pairs += [(i, None) for i in range(a, next_a)] + [(None, j) for j in range(b, next_b)]
        if next_a < len(keys_a):
            pairs.append((next_a, next_b))
        a, b = next_a + 1, next_b + 1
    return pairs
