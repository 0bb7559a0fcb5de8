"""Programs of torch.compile under the tools: what the option `compiled` does, and which wrong compilers OpAutoCompare finds."""

import pytest
import torch
from torch import nn
from unchanged import LEVELS, assert_same

import op_tools

pytestmark = pytest.mark.filterwarnings("ignore")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.last(nn.functional.gelu(self.norm(self.first(x))))


def inputs(rows=5):
    return torch.linspace(-1, 1, 6 * rows).view(rows, 6)


def train(backend, dynamic=None, dtype=torch.float32):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Block().to(dtype)
    step = torch.compile(model, backend=backend, dynamic=dynamic)
    seen = []
    for rows in (5, 7):
        y = step(inputs(rows).to(dtype))
        y.square().mean().backward()
        seen += [y.detach(), model.calls.clone(), *(p.grad.clone() for p in model.parameters())]
    return seen


TOOLS = ["OpAutoCompare", "OpObserve", "OpOverflowCheck", "OpTimeMeasure", "OpRecord", "OpBlackBox", "OpCapture"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TOOLS)
def test_a_compiled_program_runs_as_without_the_tool(name, level, dynamic):
    expected = train("aot_eager", dynamic)
    with getattr(op_tools, name)(level=level) as tool:
        result = train("aot_eager", dynamic)
    assert_same(result, expected)
    assert tool._scope.hook_failures == 0
    account = tool.coverage()
    takes_graphs = level == "torch" and name not in ("OpCapture",)
    assert (account.graphs > 0) == takes_graphs
    assert (account.compiled > 0) == (level == "torch" and not takes_graphs)  # aot_eager's operators come to the aten level


def replaced(graph, old, new):
    for node in graph.graph.nodes:
        if node.target is old:
            node.target = new
    graph.recompile()
    return graph.forward


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


def each(change):
    """A backend that changes the tensors which the graph returns."""

    def backend(graph, _):
        return lambda *args: tuple(
            change(y) if isinstance(y, torch.Tensor) and y.is_floating_point() else y for y in graph(*args)
        )

    return backend


def loses_mutation(graph, _):
    def run(*args):
        return graph(*(x.clone() if isinstance(x, torch.Tensor) and x.dtype == torch.int64 else x for x in args))

    return run


WRONG = {
    "values": (each(lambda y: y * 1.001), "values"),
    "element": (each(lambda y: y.index_fill(0, torch.tensor([0]), 0.25)), "values"),
    "bfloat16": (each(lambda y: y.bfloat16().float()), "values"),
    "shape": (each(lambda y: y[:1]), "shape"),
    "dtype": (each(lambda y: y.double()), "dtype"),
    "strides": (each(lambda y: y.t().contiguous().t()), "strides"),
    "gradient": (each(Halved.apply), "values"),
    "no gradient function": (each(torch.Tensor.detach), "no gradient"),
    "lost mutation": (loses_mutation, "alias"),
    "activation": (lambda graph, _: replaced(graph, nn.functional.gelu, nn.functional.relu), "values"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_compiler_is_found(fault):
    backend, kind = WRONG[fault]
    torch._dynamo.reset()
    model = Block()
    step = torch.compile(model, backend=backend)
    with op_tools.OpAutoCompare() as tool:
        y = step(inputs())
        if y.requires_grad:
            y.square().mean().backward()
    result = tool.result()
    assert result.verdict.value == "differs"
    wrong = [row for row in result.rows if row.verdict == "differs"]
    assert {row.op for row in wrong} <= {"torch.compile.graph_" + row.op.rpartition("_")[2] for row in wrong}
    assert any(kind in (row.kind, row.reason) or kind in row.reason for row in wrong), wrong


def test_a_raise_of_the_compiled_code_is_found():
    def backend(graph, _):
        def run(*args):
            raise RuntimeError("the engine has no such kernel")

        return run

    torch._dynamo.reset()
    step = torch.compile(Block(), backend=backend)
    with op_tools.OpAutoCompare() as tool, pytest.raises(RuntimeError, match="no such kernel"):
        step(inputs())
    assert tool.result().verdict.value == "differs"
