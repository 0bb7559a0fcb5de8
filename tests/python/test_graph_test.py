"""op-tools graph-test: wrong compilers, compilers that hand on, and graphs that are none."""

import itertools
import json
from pathlib import Path

import pytest
import torch

import op_tools.sim_graph as sim_graph
from op_tools.__main__ import main as command
from op_tools._conformance.graph_judge import GraphJudge, GraphPlan, between
from op_tools._conformance.patterns import PATTERNS, Pattern, pattern_cases
from op_tools._conformance.rows import NOT_JUDGED, UNSUPPORTED
from op_tools.sim_graph import layouts

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def rows_of(name, backend="sim_graph", dynamic=(False,), training=False):
    """The rows of the first case of a pattern."""
    case = next(case for case in pattern_cases(training=training) if case.op == name)
    return GraphJudge(CPU, plan=GraphPlan(backend, dynamic, training)).rows(case)


def convolved(x, weight):
    y = torch.nn.functional.conv2d(x, weight)
    z = torch.nn.functional.conv2d(y.relu(), torch.ones(2, 4, 2, 2))
    return torch.nn.functional.silu(z).flatten(1)


def of_transposed(x, weight):
    return torch.nn.functional.layer_norm(x.mT, (6,)) @ weight


def divided(x, weight):
    return (x + weight).sum(0) / x.shape[0]


@pytest.mark.parametrize(
    ("function", "shapes", "fault", "dynamic"),
    [
        (convolved, ((2, 3, 6, 6), (4, 3, 2, 2)), "wrong layout", False),
        (of_transposed, ((2, 6, 5), (6, 4)), "16-bit products", False),
        (divided, ((4, 6), (6,)), "stale size", True),
    ],
)
def test_sim_graph_keeps_values_and_strides(monkeypatch, function, shapes, fault, dynamic):
    monkeypatch.setitem(PATTERNS, "rms_norm", Pattern(function, {"mine": shapes}))
    for training in (False, True):
        assert {row.status for row in rows_of("rms_norm", dynamic=(dynamic,), training=training)} == {"agrees"}
    with sim_graph.plant(fault):
        assert "differs" in {row.status for row in rows_of("rms_norm", dynamic=(dynamic,))}


def test_a_convolution_and_its_neighbours_keep_channels_last_memory(monkeypatch):
    programs = []
    choose = layouts.choose
    monkeypatch.setattr(layouts, "choose", lambda program: (choose(program), programs.append(program)))
    torch._dynamo.reset()
    compiled = torch.compile(convolved, backend="sim_graph")
    compiled(torch.randn(2, 3, 6, 6), torch.randn(4, 3, 2, 2))
    kernels = [step.kernel for step in programs[0].steps if step.kernel != "torch"]
    assert kernels.count("image_convolution") == 2 and kernels.count("planar") == 1
    between = kernels[kernels.index("image_convolution") + 1 : len(kernels) - kernels[::-1].index("image_convolution")]
    assert "relu" in between and "planar" not in between


FAULTS = {
    "wrong fusion": ("linear_gelu", "forward"),
    "wrong constant": ("add_layer_norm", "forward"),
    "lost mutation": ("running_sum", "forward"),
    "copied view": ("view_of_input", "forward"),
    "int64 narrowed": ("large_integers", "forward"),
    "no correction": ("std_of_all", "forward"),
    "no gradient function": ("add_layer_norm", "backward"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    name, phase = FAULTS[fault]
    training = phase == "backward"
    assert {row.status for row in rows_of(name, training=training)} == {"agrees"}
    with sim_graph.plant(fault):
        assert "differs" in {row.status for row in rows_of(name, training=training)}


def test_static_and_dynamic_sizes_have_rows_of_their_own():
    rows = rows_of("rms_norm", dynamic=(False, True), training=True)
    assert [row.phase for row in rows] == ["forward", "backward", "forward dynamic", "backward dynamic"]
    assert {row.status for row in rows} == {"agrees"}


def test_who_ran_a_case_is_said():
    assert rows_of("linear_gelu", backend="aot_eager")[0].ran == "torch"


def counting(change):
    """A backend that changes the first result: `change` gets it, the number of the call, and the arguments."""

    def backend(graph, _):
        calls = itertools.count()

        def run(*args):
            first, *rest = graph(*args)
            return (change(first, next(calls), args), *rest)

        return run

    return backend


def test_a_fault_of_the_second_call_alone_is_found():
    (row,) = rows_of("rms_norm", backend=counting(lambda y, call, _: y * 1.1 if call else y))
    assert row.status == "differs" and row.reason.startswith("second call: ")


def test_a_size_that_was_compiled_in_is_found_with_dynamic_sizes():
    first = []

    def stale(y, _, args):
        sizes = [arg for arg in args if isinstance(arg, int)]
        first.extend(sizes[: not first])
        return y * (first[0] / sizes[0]) if sizes else y

    rows = rows_of("rms_norm", backend=counting(stale), dynamic=(False, True))
    assert [row.status for row in rows] == ["agrees", "differs"]
    assert rows[1].reason.startswith("second call, with other sizes: ")


def test_breaks_recompiles_and_fallbacks_are_counted(monkeypatch):
    def broken(x, weight):
        torch._dynamo.graph_break()
        return x * weight if x.shape[1] > 10 else x + weight

    monkeypatch.setitem(PATTERNS, "rms_norm", Pattern(broken, PATTERNS["rms_norm"].shapes))
    static, dynamic = rows_of("rms_norm", backend="aot_eager", dynamic=(False, True))
    assert (static.breaks, static.recompiles, static.fallbacks) == (1, 0, 1)
    assert (dynamic.breaks, dynamic.recompiles, dynamic.fallbacks) == (1, 1, 1)


def test_a_compiler_without_such_an_operator_is_unsupported():
    def backend(graph, _):
        raise NotImplementedError("no kernel")

    (row,) = rows_of("linear_gelu", backend=backend)
    assert row.status == UNSUPPORTED and "no kernel" in row.reason


def test_a_function_without_a_graph_is_not_judged(monkeypatch):
    kept = torch.compiler.disable(PATTERNS["rms_norm"].function)
    shapes = PATTERNS["rms_norm"].shapes
    monkeypatch.setitem(PATTERNS, "rms_norm", Pattern(lambda x, weight: kept(x, weight), shapes))
    (row,) = rows_of("rms_norm")
    assert (row.status, row.ran) == (NOT_JUDGED, "uncompiled")


def test_neighbours_do_not_change_a_result():
    x = torch.randn(3, 4)
    assert torch.equal(between(torch.tanh)(torch.ones(()), x), x.tanh())
    indices = between(torch.sort)(torch.ones(()), x)[1]
    assert torch.equal(indices, x.sort()[1])


def test_the_command_writes_a_scorecard():
    status = command(
        "graph-test --backend aot_eager --fname rms_norm --ops 0 --filter-dtype float64 -o result --jobs 1".split()
    )
    assert status == 0
    summary = json.loads(Path("result/summary.json").read_text())
    assert (
        summary["device"] == "aot_eager on cpu"
        and summary["ran"] == {"torch": 4}
        and summary["statuses"] == {"agrees": 4}
    )
    assert summary["compiled"]["runs"] == 4 and summary["compiled"]["fallbacks"]["runs"] == 4
    assert ",float64,contiguous" not in Path("result/cases.csv").read_text()
    card = Path("result/scorecard.md").read_text()
    assert "torch's kernels" in card and "| 0 | 0 | recompiles |" in card
    assert Path("result/cases.csv").read_text().splitlines()[0].endswith("worker,ran,breaks,recompiles,fallbacks")


def test_an_unknown_compiler_is_an_error(capsys):
    assert command(["graph-test", "--backend", "nonsense", "-o", "result"]) == 64
    assert "no such backend" in capsys.readouterr().err


def test_sim_graph_refuses_operators_that_take_functions():
    torch._dynamo.reset()
    step = torch.compile(
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)), backend="sim_graph"
    )
    with pytest.raises(Exception, match="sim_graph has no operators that take functions"):
        step(torch.ones(3))
