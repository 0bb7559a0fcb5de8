"""Compiled graphs as files, their smallest parts that fail, and guesses how they were computed."""

import importlib
import json
import math
import os
from pathlib import Path

import pytest
import torch
from conftest import launched
from torch import nn
from unchanged import assert_same

import op_tools
import op_tools.sim_graph as sim_graph
from op_tools import _sim
from op_tools._base.core import Error
from op_tools._reduce import reduce_graph
from op_tools._reduce.values import made_inputs, values_of
from op_tools._torch.hypotheses import Hypothesis, explaining
from op_tools._torch.saved_graphs import cut, graph_folder, read_graph, saved_form
from op_tools.repro import Plan, make

pytestmark = pytest.mark.filterwarnings("ignore")
MODULE = "op_tools.sim_graph"
KEEPING = """
import torch

@torch._dynamo.register_backend(name="keeping")
def keeping(graph, _):
    \"\"\"The results of a graph with a tanh have the same memory in each call.\"\"\"
    if not any("tanh" in str(node.target) for node in graph.graph.nodes):
        return graph
    kept = []

    def run(*args):
        results = graph(*args)
        kept.extend(result.clone() for result in results if not kept)
        for memory, result in zip(kept, results):
            memory.copy_(result)
        return tuple(memory.view_as(memory) for memory in kept)

    return run
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x):
        return nn.functional.gelu(self.last(self.norm(self.first(x)).tanh())).softmax(-1)


def graph_of(function, *args, dynamic=False, backend="sim_graph"):
    """The saved form of the only graph of a function."""
    graphs = []

    def keep(graph, _):
        graphs.append(saved_form(graph, "torch.compile.graph_0", backend, {}))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(function, backend=keep, dynamic=dynamic)(*args)
    (graph,) = graphs
    return graph


def many_forms(x, weight, rows):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ weight
    a, b = y.float().chunk(2, -1)
    z = a * b.to(torch.float32) + torch.ones(a.shape[0], 1, dtype=torch.float32)
    z[0] = 2.0
    z = torch.where(z > float("inf"), z, z.clamp(min=-1.0))
    z = z + z.mT.mT
    return z[..., :2].reshape(-1), nn.functional.embedding(rows, weight, padding_idx=None), a.size(0) * 2, z.view(-1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_saved_graph_gives_the_results_of_the_graph(dynamic):
    args = torch.randn(4, 6), torch.randn(6, 8), torch.tensor([0, 3])
    graph = graph_of(many_forms, *args, dynamic=dynamic)
    graph.write(Path("graph"))
    again = read_graph(Path("graph"))
    assert (again.nodes, again.inputs, again.outputs, again.dynamic) == (
        graph.nodes,
        graph.inputs,
        graph.outputs,
        dynamic,
    )
    inputs = made_inputs(again)
    tensors = iter(args)
    inputs = [next(tensors) if isinstance(value, torch.Tensor) else value for value in inputs]
    expected = [leaf for leaf in many_forms(*args) if isinstance(leaf, torch.Tensor)]
    results = again.operators()(*inputs)
    assert_same([leaf for leaf in results if isinstance(leaf, torch.Tensor)], expected)
    names = {"torch": torch, "operator": __import__("operator"), "math": __import__("math")}
    exec(again.source("graph"), names)  # noqa: S102
    assert_same([leaf for leaf in names["graph"](*inputs) if isinstance(leaf, torch.Tensor)], expected)


def test_a_note_of_use_is_no_part_of_a_saved_graph():
    """torch's own functions make it: transformers' models have such a node in front."""

    def noted(x):
        torch._C._log_api_usage_once("torch.test")
        return x.sin()

    graph = graph_of(noted, torch.ones(3))
    assert [node.target for node in graph.nodes] == [".sin"]
    assert_same([torch.ones(3).sin()], list(graph.operators()(torch.ones(3))))


def test_sizes_that_the_graph_makes_have_a_form_in_a_file():
    """gpt2 makes them with dynamic sizes."""

    def with_size(x):
        return x.view(torch.Size([*x.size()[:-1], 3, 2])).sin() / math.sqrt(x.size(-2))

    x = torch.arange(30.0).view(5, 6)
    graph = graph_of(with_size, x, dynamic=True)
    graph.write(Path("graph"))
    again = read_graph(Path("graph"))
    assert {"torch.Size", "torch._sym_sqrt"} <= {node.target for node in again.nodes}
    inputs = [x if "dtype" in example else example["number"] for example in again.examples]
    assert_same([with_size(x)], list(again.operators()(*inputs)))


@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "os.system",
        "torch.Generator",
        "torch.hub.load",
        "torch.nn.functional.importlib",
        ".tofile",
        ".no_method",
    ],
)
def test_a_file_calls_nothing_but_operators(target):
    graph_of(torch.relu, torch.ones(2)).write(Path("graph"))
    path = Path("graph/graph.json")
    facts = json.loads(path.read_text())
    facts["nodes"][0]["target"] = target
    path.write_text(json.dumps(facts))
    with pytest.raises(Error, match=r"may (call|name)"):
        read_graph(Path("graph"))


def test_a_damaged_file_is_an_error():
    Path("graph").mkdir()
    Path("graph/graph.json").write_text('{"name": 3}')
    with pytest.raises(Error, match="damaged"):
        read_graph(Path("graph"))


def with_changes(x, y):
    a = x * 2.0
    b = a.view(-1)
    a.add_(y)
    return b.sin(), a


def test_a_part_gets_the_values_that_its_nodes_saw():
    x, y = torch.ones(2, 2), torch.full((2, 2), 3.0)
    graph = graph_of(with_changes, x, y)
    values = values_of(graph, [x, y])
    sine = next(node.name for node in graph.nodes if node.target == ".sin")
    part = cut(graph, [sine])
    (value,) = values.inputs_of(graph, part)
    assert torch.equal(value.content, torch.full((4,), 5.0))  # a change of another view came before
    change = next(node.name for node in graph.nodes if node.target == ".add_")
    assert values.are_written(cut(graph, [change])) and not values.are_written(part)
    assert torch.equal(x, torch.ones(2, 2))


def test_the_smallest_part_of_a_wrong_graph_is_the_wrong_fusion():
    torch.manual_seed(0)
    torch._dynamo.reset()
    with sim_graph.plant("wrong fusion"):
        step = torch.compile(Block(), backend="sim_graph")
        with op_tools.OpAutoCompare() as tool:
            step(torch.randn(5, 6)).square().sum().backward()
        (saved, *_) = {row.saved for row in tool.result().failures}
        assert graph_folder(Path(saved)) == Path(saved).absolute().parent
        reduced = reduce_graph(saved, "op_autocompare_result", imports=[MODULE])
        _, _, script = make(
            reduced.folder, Path("repro.py"), Plan("cpu", (MODULE,)), 120, lambda _: None, reduced.notes, runs=1
        )
    assert [node.target for node in reduced.part.nodes] == ["torch._C._nn.linear", "torch._C._nn.gelu"]
    assert [node.module for node in reduced.part.nodes] == ["Block.last", ""]
    assert all(f"{Path(__file__).name}:" in node.line for node in reduced.part.nodes)
    assert script.reproduces and "torch._C._nn.gelu" in Path("repro.py").read_text()


def test_a_size_that_was_compiled_in_is_shown_after_a_call_with_other_sizes():
    torch._dynamo.reset()
    with sim_graph.plant("stale size"):
        step = torch.compile(lambda x: x.sin().sum(0) / x.shape[0], backend="sim_graph", dynamic=True)
        with op_tools.OpAutoCompare() as tool:
            step(torch.ones(4, 3))
            step(torch.ones(5, 3))
        (saved,) = {row.saved for row in tool.result().failures}
        reduced = reduce_graph(saved, "op_autocompare_result", imports=[MODULE])
        _, _, script = make(reduced.folder, Path("repro.py"), Plan("cpu", (MODULE,)), 120, lambda _: None, runs=1)
    assert [node.target for node in reduced.part.nodes] == ["_operator.truediv"]
    assert script.reproduces and "The first call, with other sizes" in Path("repro.py").read_text()


def test_memory_of_an_earlier_result_that_a_call_writes_is_cut_and_shown(monkeypatch):
    Path("keeping.py").write_text(KEEPING)
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    importlib.import_module("keeping")
    torch._dynamo.reset()
    step = torch.compile(lambda x, rows: x[rows].tanh().mul(2.0).sin(), backend="keeping")
    held = []
    with torch.no_grad(), op_tools.OpAutoCompare() as tool:
        for number in range(2):
            held.append(step(torch.full((4, 3), number + 1.0), torch.tensor([3, 0])))
    (row,) = tool.result().failures
    assert row.kind == "overwritten"
    reduced = reduce_graph(row.saved, "op_autocompare_result", imports=["keeping"])
    _, _, script = make(reduced.folder, Path("repro.py"), Plan("cpu", ("keeping",)), 120, lambda _: None, runs=1)
    assert [node.target for node in reduced.part.nodes] == [".tanh"] and reduced.result.kinds == {"overwritten"}
    assert script.reproduces and "writes its memory while the program holds it" in script.finding


def test_a_compiler_that_ends_the_process_is_cut_as_well():
    """No call of the graph was saved: its inputs are made."""
    graph_of(Block(), torch.randn(5, 6), dynamic=True).write(Path("graph"))
    said = []
    with sim_graph.plant("crash"):
        reduced = reduce_graph("graph", ".", imports=[MODULE], say=said.append)
    assert [node.target for node in reduced.part.nodes] == ["torch._C._nn.linear"]
    assert reduced.result.kinds == {"crashed"} and any("crashed" in line for line in said)


def test_a_graph_that_does_not_fail_is_an_error():
    graph_of(torch.relu, torch.ones(2, 2)).write(Path("graph"))
    with pytest.raises(Error, match="does not fail"):
        reduce_graph("graph", ".", imports=[MODULE])


HOW = {
    Hypothesis.BFLOAT16: (lambda x: torch.tanh(x @ x), lambda x: torch.tanh(x.bfloat16() @ x.bfloat16()).float()),
    Hypothesis.FLOAT32: (lambda x: x.double() @ x.double(), lambda x: (x @ x).double()),
    Hypothesis.INT32: (lambda x: x.long() * 3_000_000_000, lambda x: (x.long() * 3_000_000_000).int().long()),
    Hypothesis.NO_CORRECTION: (lambda x: x.std(), lambda x: x.std(correction=0)),
    Hypothesis.TANH_GELU: (nn.functional.gelu, lambda x: nn.functional.gelu(x, approximate="tanh")),
}


def test_a_way_in_which_a_graph_cannot_be_computed_explains_nothing():
    def operators(x):
        if x.dtype == torch.bfloat16:
            raise RuntimeError("no such kernel")
        return x @ x

    x = torch.randn(4, 4)
    assert Hypothesis.BFLOAT16 not in explaining(operators, [x], [operators(x) * 2.0])
    assert explaining(operators, [x], [(x.half() @ x.half()).float()])[0] is Hypothesis.FLOAT16


@pytest.mark.parametrize("hypothesis", HOW)
def test_it_is_said_how_a_graph_seems_to_have_been_computed(hypothesis):
    right, observed = HOW[hypothesis]
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)) * 2
    x = x * 100 if hypothesis is Hypothesis.INT32 else x
    assert explaining(right, [x], [observed(x)])[0] is hypothesis
    assert explaining(right, [x], [right(x)]) == []
    assert explaining(right, [x], [right(x) * 3 + 1]) == []


def test_a_hypothesis_may_hold_for_some_operators_and_results_only():
    def right(x):
        return x.std(), x.var(0), nn.functional.gelu(x).mean() * x.std(1), x.sum()

    def of_all_elements_without_correction(x):
        rounded_otherwise = x.flip(0).sum()
        return x.std(correction=0), x.var(0), nn.functional.gelu(x).mean() * x.std(1), rounded_otherwise

    def without_correction(x):
        return x.std(correction=0), x.var(0, correction=0), x.mean() * x.std(1), x.sum()

    x = torch.randn(7, 5)
    assert explaining(right, [x], of_all_elements_without_correction(x)) == [Hypothesis.NO_CORRECTION]
    assert Hypothesis.NO_CORRECTION not in explaining(right, [x], without_correction(x))  # gelu is missing


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        y = self.head(self.block(x)).relu()
        q = y.view(2, -1, 4)
        return torch.softmax(q @ q.mT * 0.5, -1) @ q + y.std()


@pytest.mark.parametrize("dynamic", [False, True])
def test_sim_graph_is_right_without_a_fault(dynamic):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Layers()
    step = torch.compile(model, backend="sim_graph", dynamic=dynamic)
    with op_tools.OpAutoCompare() as tool:
        for rows in (6, 8):
            step(torch.randn(rows, 6)).square().sum().backward()
    assert tool.result().verdict.value == "agrees" and model.calls == 2


def test_sim_graph_keeps_the_program_of_equal_graphs():
    torch._dynamo.reset()
    torch.compile(Block(), backend="sim_graph")(torch.ones(2, 6))
    count = sim_graph.compiled_programs()
    torch._dynamo.reset()
    torch.compile(Block(), backend="sim_graph")(torch.ones(2, 6))
    assert sim_graph.compiled_programs() == count


def test_a_program_computes_with_registers():
    size, twice, product, joined = map(_sim.Register, (2, 3, 4, 5))
    x, factor = map(_sim.Register, (0, 1))
    calls = [
        ("aten::sym_size", "int", (x, 0), {}, [size.number], []),
        ("aten::mul", "int", (size, 2), {}, [twice.number], []),
        ("aten::mul", "Tensor", (x, size), {}, [product.number], [size.number]),  # a size where a tensor is taken
        ("aten::cat", "", ([x, product],), {"dim": 1}, [joined.number], [product.number]),
        ("aten::add_", "Tensor", (x, factor), {"alpha": 2}, [product.number], [product.number]),
    ]
    program = _sim.GraphProgram(2, 6, calls, [joined, twice, None, x])
    for rows in (2, 3):
        mine = torch.ones(rows, 1)
        results = program.run(mine, torch.tensor(1.0))
        assert results[0].tolist() == [[1.0, float(rows)]] * rows and results[1:3] == (2 * rows, None)
        assert results[3] is mine and mine.tolist() == [[3.0]] * rows


def test_a_program_that_is_wrong_raises():
    x = _sim.Register(0)
    with pytest.raises(ValueError, match="no operator aten::nothing"):
        _sim.GraphProgram(1, 1, [("aten::nothing", "", (x,), {}, [0], [])], [x])
    with pytest.raises(ValueError, match="lacks its argument dim"):
        _sim.GraphProgram(1, 1, [("aten::sym_size", "int", (x,), {}, [0], [])], [x])
    program = _sim.GraphProgram(1, 2, [("aten::select", "int", (x, 0, 7), {}, [1], [])], [_sim.Register(1)])
    with pytest.raises(RuntimeError, match="takes 1 inputs, not 2"):
        program.run(torch.ones(2), torch.ones(2))
    with pytest.raises(IndexError):
        program.run(torch.ones(2))


def test_on_the_simulated_device_the_kernels_of_a_graph_go_to_its_queue():
    program = """
import torch, op_tools.sim_device, op_tools.sim_graph
from op_tools import _sim
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
expected, x = model(torch.ones(5, 6)), torch.ones(5, 6).to("sim")
step = torch.compile(model.to("sim"), backend="sim_graph")
for _ in range(3):
    with torch.no_grad():
        before = _sim.statistics(0)["asynchronous"]
        y = step(x)
        later = _sim.statistics(0)["asynchronous"] - before
print(torch.allclose(y.cpu(), expected, atol=1e-6), later > 3)
"""
    assert launched("-c", program).stdout.splitlines()[-1] == "True True"
