"""The conclusions of a bisection from outcomes that vary. The runner is a table here: no program, no device."""

import random

import pytest

from op_tools._bisect.bisection import Session
from op_tools._bisect.items import Call
from op_tools._bisect.outcome import BisectJudge, Outcome


def call(op, line="a.py:1", occurrence=0):
    of_op, of_line = f"{op} forward", f"{op} {line}"
    return Call(op, "Net", line, "forward", occurrence, of_op, of_line, f"{of_line} {occurrence}")


class Table:
    """Answers trials by `number_of(trial, how-manyth run)`: the loss of that run."""

    def __init__(self, calls, number_of):
        self._calls, self._number_of, self._count = calls, number_of, 0

    def run(self, trials, stop):
        return [self._one(trial) for trial in trials]

    def _one(self, trial):
        self._count += 1
        moved = frozenset(one.of_call for group in trial.groups for one in group.calls)
        return Outcome([self._number_of(trial, moved, self._count)], seconds=0.1)

    def calls(self):
        return self._calls

    def capture(self, calls, moved):
        return []


def bisect(calls, number_of, band=0.01):
    return Session(Table(calls, number_of), BisectJudge([1.0], band=band)).run()


@pytest.mark.parametrize(("times_worse", "verdict"), [(1, "found"), (3, "inconsistent")])
def test_errors_cancel_only_if_one_alone_is_worse_each_time(times_worse, verdict):
    """A fault that does not show alike each time is larger now and then; two errors that cancel in part are so each time."""
    calls = [call("aten::tanh"), call("aten::cos"), call("aten::sin")]
    guilty = {calls[0].of_call, calls[1].of_call}
    alone = []

    def number_of(trial, moved, count):
        if trial.everything or (guilty <= moved and trial.remedy == "fallback"):
            return 1.0
        if trial.purpose == "alone" and calls[0].of_call in moved:
            alone.append(count)
            return 1.5 if len(alone) <= times_worse else 1.1
        return 1.1

    result = bisect(calls, number_of)
    assert result.verdict == verdict, result.explanation
    assert {one["op"] for one in result.culprits} == {"aten::tanh", "aten::cos"}


def test_an_operator_is_found_whose_single_lines_change_no_more_than_the_noise():
    """All of its lines heal; two of three do at first, and no more when they are tried again."""
    calls = [call("aten::tanh", f"a.py:{line}") for line in range(3)] + [call("aten::cos")]
    lines = {one.of_call for one in calls[:3]}

    def number_of(trial, moved, count):
        if trial.everything or (lines <= moved and trial.remedy == "fallback"):
            return 1.0
        if trial.purpose == "refinement" and len(lines & moved) == 2:
            return 1.009
        return 1.011 if len(lines & moved) == 2 else 1.1

    result = bisect(calls, number_of)
    assert result.verdict == "found", result.explanation
    assert [(one["op"], one["line"]) for one in result.culprits] == [
        ("aten::tanh", f"a.py:{line}") for line in range(3)
    ]


def test_a_race_that_one_alone_makes_worse_is_no_error_that_cancels():
    """Moved alone, an operator changes when the others run; that both on copies heal names the cause."""
    calls = [call("aten::tanh"), call("aten::cos"), call("aten::sin")]
    guilty = {calls[0].of_call, calls[1].of_call}

    def number_of(trial, moved, count):
        if trial.everything or guilty <= moved:
            return 1.0
        return 1.5 if guilty & moved else 1.1

    result = bisect(calls, number_of)
    assert result.verdict == "found" and result.placebo is True, result.explanation
    assert {one["op"] for one in result.culprits} == {"aten::tanh", "aten::cos"}


@pytest.mark.parametrize(("hidden", "least"), [(0.4, 18), (0.6, 12)])
def test_a_fault_that_hides_in_many_runs_is_found(hidden, least):
    """Right runs are always right: a set that is good most times and bad sometimes is bad."""
    calls = [call(f"aten::op{number}") for number in range(30)]
    hits = 0
    for seed in range(20):
        chance = random.Random(seed)

        def number_of(trial, moved, count, chance=chance):
            if trial.everything or (calls[17].of_call in moved and trial.remedy == "fallback"):
                return 1.0
            shows = trial.purpose == "nothing" or chance.random() >= hidden
            return 1.1 if shows else 1.0

        result = bisect(calls, number_of)
        hits += [one["op"] for one in result.culprits] == ["aten::op17"] and result.verdict == "found"
    assert hits >= least, hits
