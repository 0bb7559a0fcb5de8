"""The cost of a call that no tool takes, in counts: benchmarks/call_counts.py, its rows that do not take long."""

import sys
from pathlib import Path

import pytest
from conftest import PYTHON

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import call_counts as counts  # noqa: E402

STEPPED = [
    counts.Row(kind, counts.HOOK, level, counts.LEFT_OUT)
    for level in counts.LEVELS
    for kind in ("C function", "F.layer_norm", "property")
]


@pytest.fixture(autouse=True)
def _a_python_of_its_own(monkeypatch):
    """A copy of a process is no child that could be traced, and has the addresses of that process."""
    monkeypatch.setattr(sys, "executable", PYTHON)


def test_no_tool_makes_a_system_call_on_the_way_of_a_call_that_it_leaves_out():
    """Of each kind, with each tool, at both levels. Waits for other threads and files that are written would be seen here."""
    rows = [
        counts.Row(kind, tool, level, counts.LEFT_OUT)
        for tool in counts.TOOLS
        for level in counts.LEVELS
        for kind in counts.KINDS
    ]
    system_calls = {part.row.name(): part.counts.system_calls for part in counts.added(rows, instructions=False)}
    assert len(system_calls) == len(rows)
    assert {name: calls for name, calls in system_calls.items() if calls > 0} == {}


def test_a_wait_with_a_limit_of_nothing_is_seen():
    """The kernel rounds the limit up: such a wait in the core once made each call of a left-out Python function take 100 us."""
    (_, nothing), (_, wait) = counts.counted([counts.Row("nothing"), counts.Row("a wait")], instructions=True)
    seen = wait.less(nothing)
    assert seen.system_calls >= 1 and seen.waits == 1


def test_a_call_that_is_left_out_takes_no_more_instructions_locks_and_allocations_than_it_did(capsys):
    """Growth by more than 5 % is named; where that is meant, `./dev bench call_counts --write` notes the new counts."""
    now = list(counts.added(STEPPED))
    assert [part.row.name() for part in now if part.counts.locks > 0 or part.counts.waits > 0] == []
    made_with, before = counts.read_baseline()
    if made_with != counts.made_with():
        before = {}
        with capsys.disabled():
            sys.stdout.write(f"\n{counts.BASELINE.name} was made with {made_with}: instructions are not compared\n")
    else:
        assert counts.grown_at_all_addresses(now, before) == []
    assert all(part.plain.instructions > 1000 for part in now)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"instructions": 1.5}, "instructions"),
        ({"instructions": 1.0}, ""),
    ],
)
def test_growth_is_named(change, named):
    row = counts.Row("C function", counts.HOOK, "torch", counts.LEFT_OUT)
    now = counts.Added(
        row, counts.Counts(instructions=int(1000 * change["instructions"])), counts.Counts(instructions=10000)
    )
    growth = list(counts.grown([now], {row.name(): counts.Counts(instructions=1000)}))
    assert [(of, named in line) for of, line in growth] == ([(row, True)] if named else [])


def test_growth_at_some_addresses_is_not_named_and_growth_at_all_addresses_is(monkeypatch):
    row = counts.Row("C function", counts.HOOK, "torch", counts.LEFT_OUT)

    def of(instructions):
        return counts.Added(row, counts.Counts(instructions=instructions), counts.Counts(instructions=10000))

    before = {row.name(): counts.Counts(instructions=1000)}
    for later, lines in (((1500, 1000), 0), ((1500, 1500, 1500), 1)):
        rounds = iter(later)
        monkeypatch.setattr(counts, "added", lambda rows, addresses, rounds=rounds: [of(next(rounds))])
        assert len(counts.grown_at_all_addresses([of(1500)], before)) == lines
        assert next(rounds, None) is None


def test_what_is_new_is_in_the_baseline():
    row = counts.Row("C function", counts.HOOK, "torch", counts.LEFT_OUT)
    assert "not in call_counts.json" in next(counts.grown([counts.Added(row, counts.Counts(), counts.Counts())], {}))[1]
