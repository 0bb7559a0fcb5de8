"""Which items of many have to be chosen so that a test is good. It knows nothing of operators.

Prefix search: of the items in their order, find the shortest prefix that is good. Its last item is needed: it is fixed, and the
search goes on among those before it, until the fixed ones alone are good. This takes about log2(n) tests for each needed item. It
relies on a set staying good when items are added to it; Found says where that did not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

Answer = Literal["good", "bad", "skip"]
ItemT = TypeVar("ItemT")
Test = Callable[[list[frozenset[ItemT]]], list[Answer]]
"""Answers for several sets, which may be tried at the same time."""

MOST_SKIPS = 3  # tests beside a skipped test


@dataclass(frozen=True)
class Votes:
    """How answers that vary are counted."""

    repeats: int = 1
    majority: bool = False
    """Else a set is good if it is good each time: for a fault that does not show each time, while right runs stay right."""

    def settle(self, votes: Sequence[Answer]) -> Answer:
        """The answer for a set that was asked for several times."""
        told = [vote for vote in votes if vote != "skip"]
        if not told:
            return "skip"
        bad = told.count("bad")
        return "bad" if (2 * bad >= len(told) if self.majority else bad) else "good"


@dataclass
class Found(Generic[ItemT]):
    """The result of a search."""

    items: list[ItemT]
    good: bool = True
    """The items together are good, tried again after the search."""
    conflict: tuple[frozenset[ItemT], frozenset[ItemT]] | None = None
    """A good set, and a larger set that is bad."""
    tests: int = 0


@dataclass
class Tries(Generic[ItemT]):
    """Asks a test for each set once, or several times where answers vary."""

    test: Test[ItemT]
    votes: Votes = Votes()
    answers: dict[frozenset[ItemT], Answer] = field(default_factory=dict)
    count: int = 0

    def ask(self, sets: Sequence[frozenset[ItemT]], *, again: bool = False) -> list[Answer]:
        """The answers for all of them; `again`: also for those whose answer is known."""
        new = [one for one in dict.fromkeys(sets) if again or one not in self.answers]
        if new:
            repeats = self.votes.repeats
            self.count += len(new) * repeats
            votes = self.test([one for one in new for _ in range(repeats)])
            for number, group in enumerate(new):
                self.answers[group] = self.votes.settle(votes[number * repeats : (number + 1) * repeats])
        return [self.answers[one] for one in sets]

    def good(self, items: Collection[ItemT]) -> bool:
        """Is this set good? A set whose test is skipped is not."""
        return self.ask([frozenset(items)])[0] == "good"

    def conflict(self) -> tuple[frozenset[ItemT], frozenset[ItemT]] | None:
        """A good set and a larger bad set, among those that were asked for."""
        good = [one for one, answer in self.answers.items() if answer == "good"]
        bad = [one for one, answer in self.answers.items() if answer == "bad"]
        return next(((small, large) for small in good for large in bad if small < large), None)


def shortest_prefix(
    tries: Tries[ItemT], fixed: frozenset[ItemT], rest: Sequence[ItemT], *, ranked: bool, ways: int
) -> int:
    """The length of the shortest prefix of `rest` that is good together with `fixed`; all of it is known to be."""
    low, high = 0, len(rest)
    reach = 1
    while high - low > 1:
        if ranked and low + reach < high and ways == 1:
            points = [low + reach]  # needed items are near the front: look there first
            reach *= 2
        else:
            parts = min(ways, high - low - 1) + 1
            points = sorted({low + max(1, (high - low) * part // parts) for part in range(1, parts)})
        answers = _with_neighbours(tries, fixed, rest, points, (low, high))
        if not answers:
            return high  # nothing between could be tried: the whole range is as small as it gets
        good = [point for point, answer in answers.items() if answer == "good"]
        ranked = ranked and not good
        high = min([high, *good])
        low = max([low, *(point for point, answer in answers.items() if answer == "bad" and point < high)])
    return high


def _with_neighbours(
    tries: Tries[ItemT],
    fixed: frozenset[ItemT],
    rest: Sequence[ItemT],
    points: list[int],
    between: tuple[int, int],
) -> dict[int, Answer]:
    """The answers at these lengths; where all are skipped, those at lengths beside them."""
    tried: dict[int, Answer] = {}
    for _ in range(MOST_SKIPS + 1):
        answers = tries.ask([fixed | frozenset(rest[:point]) for point in points])
        tried |= dict(zip(points, answers, strict=True))
        useful: dict[int, Answer] = {point: answer for point, answer in tried.items() if answer != "skip"}
        if useful:
            return useful
        middle = points[0]
        beside = [point for point in range(between[0] + 1, between[1]) if point not in tried]
        if not beside:
            break
        points = [min(beside, key=lambda point: abs(point - middle))]
    return {}


def needed(
    tries: Tries[ItemT],
    items: Sequence[ItemT],
    fixed: frozenset[ItemT] = frozenset(),
    *,
    ranked: bool = False,
    ways: int = 1,
    most: int | None = None,
) -> list[ItemT] | None:
    """Those of `items` that have to be chosen, besides `fixed`. None: all of them are not good either.

    All are tried only where nothing less was good.

    Args:
        ranked: the needed ones are probably among the first.
        ways: tests at the same time.
        most: also None where there are more of them.
    """
    needed: list[ItemT] = []
    rest = list(items)
    while not tries.good(fixed | frozenset(needed)):
        if not rest or (most is not None and len(needed) == most):
            return None
        if needed == [items[-1]] and not tries.good(fixed | frozenset(items)):
            return None  # no shorter prefix was good, nor are all of them
        length = shortest_prefix(tries, fixed | frozenset(needed), rest, ranked=ranked, ways=ways)
        needed.append(rest[length - 1])
        rest = rest[: length - 1]
    return needed


def narrowed(
    tries: Tries[ItemT], items: Sequence[ItemT], fixed: frozenset[ItemT], *, most: int, ways: int = 1
) -> list[ItemT] | None:
    """Those of `items` that are left when a share of them, which can be left out, is. All of them with `fixed` are known to be good.

    None: none of `most` + 1 shares can be left out, so that more than `most` items are needed, or all. This takes `most` + 1 tests,
    where a search for single needed items would take many more.
    """
    count = min(len(items), most + 1)
    ends = [len(items) * number // count for number in range(count + 1)]
    # The last ones first: those that are probably needed are in front.
    rests = [[*items[: ends[share]], *items[ends[share + 1] :]] for share in reversed(range(count))]
    skipped = False
    for number in range(0, count, ways):
        some = rests[number : number + ways]
        answers = tries.ask([fixed | frozenset(rest) for rest in some])
        for rest, answer in zip(some, answers, strict=True):
            if answer == "good":
                return rest
        skipped = skipped or "skip" in answers
    return list(items) if skipped else None


def minimal(tries: Tries[ItemT], items: list[ItemT], fixed: frozenset[ItemT] = frozenset()) -> list[ItemT]:
    """Without those that can be left out, each tried once."""
    for item in list(items):
        others = [one for one in items if one != item]
        if others and tries.good(fixed | frozenset(others)):
            items = others
    return items


def search(
    items: Sequence[ItemT],
    test: Test[ItemT],
    *,
    ranked: bool = False,
    votes: Votes | None = None,
    ways: int = 1,
    good: Collection[ItemT] = (),
) -> Found[ItemT]:
    """The smallest set that is good, for a test that is bad for no item. The result is tried again at the end; it is empty where all
    items together are not good.

    Args:
        items: in the order in which they are tried.
        test: gives the answers.
        ranked: the needed items are probably among the first.
        votes: how often each set is tried.
        ways: tests at the same time.
        good: items that are known to be good together: the search is among these; none: not known of any.
    """
    among = list(good) or items
    tries = Tries(test, votes or Votes(), {frozenset(): "bad"})
    if good:
        tries.answers[frozenset(good)] = "good"
    chosen = needed(tries, among, ranked=ranked, ways=ways)
    if not chosen:
        return Found([], good=False, conflict=tries.conflict(), tests=tries.count)
    chosen = minimal(tries, chosen)
    if len(chosen) > 1:
        tries.ask([frozenset([one]) for one in chosen])
    confirmed = tries.ask([frozenset(chosen)], again=True)[0] == "good"
    return Found(chosen, confirmed, tries.conflict(), tries.count)
