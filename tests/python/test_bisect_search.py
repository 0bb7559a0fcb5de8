"""The order of trials: the right set, in few tests, also with answers that vary; checked against delta debugging."""

import random

import pytest

from op_tools._bisect.search import Tries, Votes, narrowed, needed, search


def oracle(planted, counter=None, flip=0.0, draw=None, skips=()):
    """Good where all planted items are chosen; `flip`: how often the answer is wrong."""

    def answer(chosen):
        if counter is not None:
            counter.append(chosen)
        if any(chosen == one for one in skips):
            return "skip"
        good = planted <= chosen
        if flip and draw.random() < flip:
            good = not good
        return "good" if good else "bad"

    return lambda sets: [answer(one) for one in sets]


def ddmin(items, good):
    """Zeller's delta debugging, for a set that is good and as small as it gets."""
    parts = 2
    while len(items) > 1:
        size = max(1, len(items) // parts)
        pieces = [items[i : i + size] for i in range(0, len(items), size)]
        for piece in pieces:
            rest = [one for one in items if one not in piece]
            if good(piece):
                items, parts = piece, 2
                break
            if len(pieces) > 2 and good(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(items):
                break
            parts = min(len(items), parts * 2)
    return items


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_planted_set_is_found_and_is_that_of_delta_debugging(count):
    for seed in range(40):
        draw = random.Random(seed)
        size = draw.randint(count, 60)
        planted = frozenset(draw.sample(range(size), count))
        searched = search(range(size), oracle(planted))
        assert frozenset(searched.items) == planted and searched.good and searched.conflict is None
        assert frozenset(ddmin(list(range(size)), lambda part, right=planted: right <= set(part))) == planted


def test_one_of_300_takes_at_most_12_tests_and_5_with_suspects():
    most = most_ranked = 0
    for planted in range(300):
        tests = []
        assert search(range(300), oracle(frozenset([planted]), tests)).items == [planted]
        most = max(most, len(tests))
        order = [one for one in range(300) if one != planted]
        order.insert(planted % 2, planted)  # suspects: among the first two
        tests = []
        assert search(order, oracle(frozenset([planted]), tests), ranked=True).items == [planted]
        most_ranked = max(most_ranked, len(tests))
    assert most <= 12 and most_ranked <= 5


def test_several_at_a_time_find_the_same():
    for seed in range(30):
        planted = frozenset(random.Random(seed).sample(range(80), 3))
        for ways in (2, 3, 7):
            assert frozenset(search(range(80), oracle(planted), ways=ways).items) == planted


@pytest.mark.parametrize(("count", "flip", "least"), [(1, 0.05, 0.95), (2, 0.05, 0.9)])
def test_votes_find_it_with_answers_that_vary(count, flip, least):
    right = 0
    for seed in range(100):
        draw = random.Random(seed)
        planted = frozenset(draw.sample(range(100), count))
        searched = search(range(100), oracle(planted, flip=flip, draw=draw), votes=Votes(5, majority=True))
        right += frozenset(searched.items) == planted
    assert right >= least * 100


@pytest.mark.parametrize(
    ("votes", "majority", "answer"),
    [
        (["good", "good", "bad"], False, "bad"),
        (["good", "good", "bad"], True, "good"),
        (["good", "bad", "bad"], True, "bad"),
        (["good", "skip", "skip"], False, "good"),
        (["skip", "skip"], True, "skip"),
    ],
)
def test_answers_that_vary_are_counted(votes, majority, answer):
    assert Votes(len(votes), majority).settle(votes) == answer


def test_a_fault_that_shows_in_half_of_the_runs_is_found_with_a_set_that_must_be_good_each_time():
    right = 0
    for seed in range(100):
        draw = random.Random(seed)
        planted = frozenset(draw.sample(range(60), 2))

        def test(sets, planted=planted, draw=draw):
            return ["good" if planted <= one or draw.random() < 0.5 else "bad" for one in sets]

        right += frozenset(search(range(60), test, votes=Votes(9)).items) == planted
    assert right >= 95


def test_a_set_that_is_known_to_be_good_saves_tests():
    tests = []
    order = [0, 3, *range(4, 40)]
    assert search(order, oracle(frozenset([3]), tests), ranked=True, good=[0, 3]).items == [3]
    assert len(tests) <= 3, "{0}, {3}, and {3} again"


def test_a_skipped_set_is_passed_over():
    planted = frozenset([7])
    skips = [frozenset(range(length)) for length in (8, 10)]
    assert search(range(20), oracle(planted, skips=skips)).items == [7]


def test_errors_that_cancel_are_a_conflict():
    """c alone is wrong in effect: a and b cancel where both stay, or both are moved."""

    def test(sets):
        return ["good" if "c" in one and ("a" in one) == ("b" in one) else "bad" for one in sets]

    searched = search(list("axcyb"), test)
    assert searched.conflict is not None and searched.conflict[0] < searched.conflict[1]


def test_a_set_that_is_bad_when_tried_again_is_no_result():
    asked = []

    def answer(moved):
        asked.append(moved)
        return "good" if 2 in moved and asked.count(moved) == 1 else "bad"

    searched = search(range(4), lambda sets: [answer(one) for one in sets])
    assert searched.items == [2] and not searched.good


def test_no_more_parts_than_asked_for():
    tries = Tries(oracle(frozenset(range(10))), answers={frozenset(): "bad", frozenset(range(10)): "good"})
    assert needed(tries, range(10), most=3) is None


def test_where_all_items_are_not_good_the_search_ends_at_once():
    tests = []
    searched = search(range(300), oracle(frozenset([300]), tests))
    assert searched.items == [] and not searched.good and len(tests) <= 12


@pytest.mark.parametrize(
    ("count", "planted", "left", "tests"),
    [
        (12, range(12), None, 4),  # more than three are needed
        (12, (0, 3, 6, 9), None, 4),  # an item in each share
        (12, (2,), list(range(9)), 1),
        (12, (11,), [0, 1, 2, 3, 4, 5, 9, 10, 11], 2),
        (2, (0, 1), None, 2),  # all
    ],
)
def test_shares_that_can_be_left_out(count, planted, left, tests):
    asked = []
    tries = Tries(oracle(frozenset(planted), asked))
    assert narrowed(tries, range(count), frozenset(), most=3) == left and len(asked) == tests


def test_a_share_whose_test_is_skipped_shows_nothing():
    tries = Tries(lambda sets: ["skip" if 0 not in one else "bad" for one in sets])
    assert narrowed(tries, range(8), frozenset(), most=3) == list(range(8))


def test_an_item_that_can_be_left_out_is_left_out():
    """Either half of a pair heals."""
    searched = search(range(6), lambda sets: ["good" if {1, 4} & one else "bad" for one in sets])
    assert len(searched.items) == 1 and searched.items[0] in (1, 4)
