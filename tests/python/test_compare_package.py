"""compare_package: a program of torch.export, and what stands for a compiled package of it."""

import pytest
import torch
from torch import nn

import op_tools

pytestmark = pytest.mark.filterwarnings("ignore")


class Words(nn.Module):
    """Its only input is of integers, so that all float values are its own."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(20, 16), nn.Linear(16, 6)

    def forward(self, words, *, counts):
        counts.add_(1)
        y = self.out(nn.functional.gelu(self.words(words)))
        return y, {"first": y[:, 0].to(torch.bfloat16), "words": words.view(-1)}


def words():
    return torch.arange(12).view(3, 4)


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    return torch.export.export(Words().eval(), (words(),), {"counts": torch.zeros(3, dtype=torch.int64)})


def changed(program, change):
    """A package whose results, or inputs, are changed."""
    right = program.module()

    def package(words, *, counts):
        return change(*right(words, counts=counts), words, counts)

    return package


def test_a_right_package_agrees_and_keeps_the_inputs(program, tmp_path):
    counts = torch.zeros(3, dtype=torch.int64)
    inputs = {"counts": counts, "words": words()}
    result = op_tools.compare_package(program.module(), program, inputs, output_dir=tmp_path)
    assert result.verdict == "agrees"
    assert result.ok
    (op,) = {row.op for row in result.rows}
    assert op.startswith("torch.compile.package_")
    assert result.coverage.judged == 8  # of two calls three results and a changed input
    assert result.coverage.graphs == 1
    assert result.coverage.compiled == 0
    assert not counts.any()
    assert (
        op_tools.compare_package(program.module(), program, output_dir=tmp_path).verdict == "agrees"
    )  # example inputs


CHANGES = {
    "values": lambda y, more, *_: (y * 1.001, more),
    "an element": lambda y, more, *_: (y + (torch.arange(y.numel()).view(y.shape) == 7) * 0.01, more),
    "strides": lambda y, more, *_: (y.transpose(0, 1).contiguous().transpose(0, 1), more),
    "dtype": lambda y, more, *_: (y, {**more, "first": more["first"].float()}),
    "aliases": lambda y, more, *_: (y, {**more, "words": more["words"].clone()}),
    "lost change": lambda y, more, _, counts: (counts.sub_(1), (y, more))[1],
    "bfloat16": lambda y, more, *_: (y.bfloat16().float(), more),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_wrong_package_is_named(program, name, tmp_path):
    result = op_tools.compare_package(changed(program, CHANGES[name]), program, output_dir=tmp_path)
    assert result.verdict == "differs"
    assert all(row.op.startswith("torch.compile.package_") for row in result.failures)


def test_a_fault_of_a_later_call_and_a_raise_are_named(program, tmp_path):
    calls = []

    def later(y, more, *_):
        calls.append(y)
        return y * (1 if len(calls) == 1 else 1.01), more

    def raising(*_):
        raise ValueError("no kernel")

    assert op_tools.compare_package(changed(program, later), program, output_dir=tmp_path).verdict == "differs"
    result = op_tools.compare_package(changed(program, raising), program, output_dir=tmp_path)
    assert result.verdict == "differs"
    assert "no kernel" in result.failures[0].reason


def test_results_that_stay_are_written_by_the_next_call_or_are_none_are_named(tmp_path):
    class Views(nn.Module):
        def forward(self, x):
            y = x * 2
            return {"all": y, "flat": y.view(-1), "nothing": None}

    program = torch.export.export(Views(), (torch.randn(2, 4),))
    right = program.module()
    kept = {}

    def stale(x):
        return kept.setdefault("stale", right(x))

    def reused(x):
        memory = kept.setdefault("reused", torch.empty(2, 4)).copy_(x * 2)
        return {"all": memory, "flat": memory.view(-1), "nothing": None}

    def kinds(package):
        result = op_tools.compare_package(package, program, output_dir=tmp_path)
        return result.verdict, {row.kind for row in result.failures}

    assert kinds(lambda x: dict(reversed(right(x).items()))) == ("agrees", set())
    assert kinds(stale) == ("differs", {"values"})
    assert kinds(reused) == ("differs", {"overwritten"})
    assert kinds(lambda x: {**right(x), "flat": right(x)["flat"]}) == ("differs", {"alias"})
    assert kinds(lambda x: {**right(x), "nothing": torch.ones(3)}) == ("differs", {"value"})


@pytest.mark.parametrize("choice", ["nodes", "eager", "as-is", "check"])
def test_a_package_runs_whatever_a_tool_around_it_wants(program, choice, tmp_path):
    calls = []

    def counted(y, more, *_):
        calls.append(y)
        return y * 1.01, more

    with op_tools.OpObserve(compiled=choice, output_dir=tmp_path):
        result = op_tools.compare_package(changed(program, counted), program, output_dir=tmp_path)
    assert (result.verdict, len(calls)) == ("differs", 2)


def test_inputs_that_the_program_does_not_take_are_refused(program, tmp_path):
    for inputs in (
        torch.ones(3),
        {"words": words()},
        (words()[:2],),
        {"words": words()[:2], "counts": torch.zeros(3, dtype=torch.int64)},
    ):
        with pytest.raises(op_tools.Error, match="does not take these inputs"):
            op_tools.compare_package(lambda *_, **__: None, program, inputs, output_dir=tmp_path)


def test_changed_buffers_are_refused_and_random_results_not_judged(tmp_path):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return x * self.calls

    class Random(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    x = torch.ones(3)
    counting = torch.export.export(Counting(), (x,))
    with pytest.raises(op_tools.Error, match=r"changes its buffers \(calls\)"):
        op_tools.compare_package(counting.module(), counting, output_dir=tmp_path)
    drawn = torch.export.export(Random(), (x,))
    result = op_tools.compare_package(drawn.module(), drawn, output_dir=tmp_path)
    assert result.verdict == "not judged"
